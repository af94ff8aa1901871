"""router.py ENDPOINT REPLAY_ENDPOINT KEY: follows the KV events of a store, and prints who holds the key."""
import sys, time, msgpack, zmq

key, context, holders = sys.argv[3], zmq.Context(), {}
context.linger, context.rcvtimeo = 0, 10_000

def ask(request):  # on a socket of its own: no answer to an earlier request is in the way
    with context.socket(zmq.DEALER) as dealer:
        dealer.connect(sys.argv[2]), dealer.send(request)
        while (answer := dealer.recv_multipart())[0] != b"\xff" * 8:
            yield answer

def apply(batch):
    for kind, *fields in msgpack.unpackb(batch)[1]:
        if kind == "RemoveAllEvent": holders.clear()
        elif fields[1]: holders[fields[0]] = fields[1]
        else: holders.pop(fields[0], None)

def start():  # subscribes, then takes everything there is
    global live, incarnation, number
    live, first, cursor = context.socket(zmq.SUB), None, b""
    live.connect(sys.argv[1]), live.subscribe(b""), holders.clear()
    while not first or cursor:
        _, *state, cursor, page = next(ask(b"SNAPSHOT:" + cursor))
        first = first or state
        apply(page)
    incarnation, number = map(int.from_bytes, first)

def catch_up(end):  # asks for the messages before this number
    global number
    for at, batch in ask(number.to_bytes(8)) if number < end else ():
        if int.from_bytes(at) == number: apply(batch); number += 1
    if number < end: start()  # they are not kept

start(); shown, checked = "nothing yet", time.time()
while True:
    if live.poll(1000):
        _, at, batch = live.recv_multipart()
        if (at := int.from_bytes(at)) > number: catch_up(at + 1)
        elif at == number: apply(batch); number += 1
    if time.time() > checked + 1:  # is it another publisher, is a message missing that no later one shows?
        checked, info = time.time(), msgpack.unpackb(next(ask(b"INFO"))[1])
        start() if info["incarnation"] != incarnation else catch_up(info["next"])
    if (now := holders.get(key)) != shown:
        print(key, shown := now, flush=True)
