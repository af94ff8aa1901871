#!/usr/bin/env python3
"""Writes the seeds of the fuzz targets into fuzz/seeds/: valid messages and plausible operations.

Run it after a change of the protocol or of a target's input. It needs nothing but Python: it reads the
`.proto` and the numbers of methods by itself. The inputs of the targets that take operations are laid
out as the crate `arbitrary` reads them: integers little-endian, an enum as 32 bits of which the upper
part chooses the variant, a list as one odd byte before each element.
"""

import io
import json
import random
import re
import struct
import zipfile
from collections import defaultdict
from pathlib import Path

FUZZ = Path(__file__).resolve().parent
RPC = FUZZ.parent / "mc-rpc"
# Messages inside messages beyond this are empty.
MAX_DEPTH = 3
FIXED = {"fixed32": 4, "sfixed32": 4, "float": 4, "fixed64": 8, "sfixed64": 8, "double": 8}
FIELD = re.compile(r"(repeated |optional )?([\w.]+) (\w+) = (\d+)(?: \[.*\])?;")


def contract():
    """The fields of each message, the names of enums, and the request of each rpc."""
    messages, enums, requests, scope = defaultdict(list), set(), {}, []
    for line in (RPC / "proto/mc/store/v1/master.proto").read_text().splitlines():
        line = line.split("//")[0].strip()
        if line.endswith("{}"):
            # A message without fields.
            continue
        if match := re.match(r"(message|enum|service|oneof) (\w+) \{", line):
            kind, name = match.groups()
            scope.append(None if kind == "oneof" else name)
            path = ".".join(part for part in scope if part)
            enums |= {path} if kind == "enum" else set()
        elif line.startswith("}"):
            scope.pop()
        elif match := re.match(r"rpc (\w+)\s*\((\w+)\)", line):
            requests[match[1]] = match[2]
        elif match := FIELD.match(line):
            path = ".".join(part for part in scope if part)
            messages[path].append((match[1], match[2], match[3], int(match[4])))
    return messages, enums, requests


MESSAGES, ENUMS, REQUESTS = contract()


def varint(value):
    out = b""
    while value >= 0x80:
        out, value = out + bytes([value & 0x7F | 0x80]), value >> 7
    return out + bytes([value])


def delimited(number, content):
    return varint(number << 3 | 2) + varint(len(content)) + content


def filled(path, depth=0):
    """A message with a value in each of its fields."""
    out = b""
    for label, kind, name, number in MESSAGES[path] if depth <= MAX_DEPTH else []:
        nested = [f"{path}.{kind}", kind]
        if kind == "bytes":
            out += delimited(number, bytes([1] * 16))
        elif kind == "string":
            out += delimited(number, b"tcp://h:1" if name == "endpoint" else b"k")
        elif inner := next((each for each in nested if each in MESSAGES and each not in ENUMS), None):
            out += delimited(number, filled(inner, depth + 1))
        else:
            one = (1).to_bytes(FIXED[kind], "little") if kind in FIXED else b"\x01"
            wire = {4: 5, 8: 1}.get(FIXED.get(kind), 0)
            packed = label == "repeated "
            out += delimited(number, one) if packed else varint(number << 3 | wire) + one
    return out


def methods():
    """Number, name and least role of each method."""
    table = (RPC / "src/method.rs").read_text().split("\nmethods! {")[1]
    return [(int(n), name, role) for name, n, role in re.findall(r"(\w+) = (\d+): (\w+), ", table)]


def connections():
    """The first messages of peers, and for each role the requests of all of its methods."""
    hello = delimited(1, bytes(15) + b"\x07") + delimited(2, b"secret") + b"\x20\x01"
    preface = b"\xa7MCRPC\r\n" + struct.pack("<HHI", 2, len(hello), 16 << 20) + hello
    seeds = defaultdict(bytes, preface=preface)
    for number, name, role in methods():
        request = filled(REQUESTS[name])
        seeds[role.lower()] += struct.pack("<IQHBBI", len(request), number, number, 0, 0, 1000) + request
    return seeds


def variant(number, count):
    return struct.pack("<I", ((number << 32) // count) + 1)


def element(number, count, *fields):
    return b"\x01" + variant(number, count) + b"".join(fields)


def u8(value):
    return struct.pack("<B", value)


def u16(value):
    return struct.pack("<H", value)


def u64(value):
    return struct.pack("<Q", value)


def alloc_operations(draw):
    """The operations of `alloc_ops`: number of the variant, then its fields."""
    size, small = draw.randrange(1, 1 << 16), draw.randrange(1, 4096)
    choice, power = u8(draw.randrange(256)), u8(draw.randrange(8))
    kinds = [(0, u64(size)), (1, u16(small)), (2,), (3,), (4, u64(size), u64(1 << draw.randrange(12)))]
    kinds += [(5, u16(small), power), (6, choice), (7, choice), (8,), (9, u64(size)), (10, u16(small)), (11,)]
    # Mostly allocations and frees, so that there is something to be freed.
    return draw.choice(kinds if draw.random() < 0.3 else [kinds[0], kinds[1], kinds[5], kinds[6]])


def slab_operations(draw):
    """The operations of `slab_ops`."""
    size, choice = draw.randrange(1, 1 << 14), u8(draw.randrange(256))
    extent = b"\x01" + u16(draw.randrange(16)) + u16(size & 0xFFF) + b"\x00"
    kinds = [(0, u64(size), u64(64)), (1, u16(size), u8(draw.randrange(8))), (2,), (3, choice), (4,)]
    kinds += [(5, choice), (6, u64(draw.randrange(1 << 20))), (7,), (8, extent), (9,)]
    return draw.choice(kinds if draw.random() < 0.3 else [kinds[0], kinds[1], kinds[1], kinds[3]])


def asks(draw, order):
    """The calls of `rpc_messages`, each with every field filled once."""
    out = b""
    for index in order:
        who = variant(6, 7) if draw.random() < 0.5 else variant(draw.randrange(7), 7)
        call = u8(index) + who + b"\x00" + u16(draw.randrange(100))
        out += b"\x01" + call + b"\x01" + u8(draw.randrange(256)) + b"\x00" + b"\x00"
    return out


def replay_requests():
    """The frames of `events_replay_request`, in both forms."""
    bodies = {"number": struct.pack(">Q", 7), "info": b"INFO", "snapshot": b"SNAPSHOT:cursor"}
    seeds = {}
    for name, body in bodies.items():
        seeds[name] = u8(len(body)) + body
        seeds[f"{name}-delimited"] = u8(0) + seeds[name]
    return seeds


def weights():
    """The smallest files of `c2c_weights`: one layer of one weight each."""
    networks = {}
    for part in ("key", "value"):
        for name, shape in (("in", [1, 1]), ("mlp1", [1, 1]), ("proj_out", [1, 1])):
            networks[f"layers.0.{part}.{name}.weight"] = shape
            networks[f"layers.0.{part}.{name}.bias"] = [1]
        networks[f"layers.0.{part}.gate_logit"] = []
    properties = {"format": "kv-projector", "version": "1", "variant": "simplified", "gate": "sigmoid"}
    properties |= {"activation": "gelu_tanh_pade", "source_layers": "1", "target_layers": "1"}
    properties |= {"source_kv_heads": "1", "target_kv_heads": "1"}
    header = {"__metadata__": properties}
    for at, (name, shape) in enumerate(networks.items()):
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [4 * at, 4 * at + 4]}
    header = json.dumps(header).encode()
    container = struct.pack("<Q", len(header)) + header + bytes(4 * len(networks))
    return {"bin": u8(0) + struct.pack("<4i", 1, 1, 1, 1) + bytes(56), "container": u8(1) + container}


def state_dicts():
    """The inputs of `c2c_pickle`: a pickle of two tensors of one storage, and a file that has it."""
    text = lambda words: b"X" + struct.pack("<I", len(words)) + words
    storage = b"(" + text(b"storage") + b"ctorch\nFloatStorage\n" + text(b"0") + text(b"cpu") + b"K\x04tQq\x00"
    tensor = b"ctorch._utils\n_rebuild_tensor_v2\n(%bK\x00K\x02K\x02\x86K%bK%b\x86\x89ccollections\nOrderedDict\n)RtR"
    pickle = b"\x80\x02ccollections\nOrderedDict\n)Rq\x01(" + text(b"w") + tensor % (storage, b"\x02", b"\x01")
    pickle += text(b"t") + tensor % (b"h\x00", b"\x01", b"\x02") + b"u}" + text(b"_metadata") + b"}sb."
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in (("data.pkl", pickle), ("byteorder", b"little"), ("data/0", bytes(16))):
            archive.writestr(zipfile.ZipInfo(f"a/{name}"), content)
    return {"pickle": u8(1) + pickle, "file": u8(0) + file.getvalue()}


def packed(value):
    """A small value in MessagePack."""
    if isinstance(value, bool):
        return u8(0xC3 if value else 0xC2)
    if isinstance(value, float):
        return b"\xcb" + struct.pack(">d", value)
    if isinstance(value, int):
        return b"\xcf" + struct.pack(">Q", value)
    if isinstance(value, str):
        return u8(0xA0 + len(value)) + value.encode()
    if isinstance(value, dict):
        return u8(0x80 + len(value)) + b"".join(packed(k) + packed(v) for k, v in value.items())
    return u8(0x90 + len(value)) + b"".join(map(packed, value))


def received(kind, *frames):
    """A step of `events_index`: 0 is a message, 1 an answer, 2 a silence, 3 new connections."""
    return u8(kind) + u8(len(frames)) + b"".join(u16(len(frame)) + frame for frame in frames)


def subscriptions():
    """Messages to a subscriber that starts late and misses some, and to one whose publisher restarts."""
    number = [struct.pack(">Q", at) for at in range(8)]
    replicas = [["memory", "10.0.0.1:1"], ["disk", ""]]
    store = packed([0.5, [["BlockStoreEvent", "k", replicas, "m", 4, "7", "", [1, 2]]]])
    update = packed([0.5, [["BlockUpdateEvent", "k", replicas[:1]], ["Yours", {"a": 1}]]])
    clear = packed([0.5, [["RemoveAllEvent"]]])
    infos = [
        packed({"incarnation": at, "encoding": "s4", "oldest": 0, "next": 5, "snapshot": True}) for at in (6, 7)
    ]
    end = received(1, b"\xff" * 8, b"")
    page = received(1, b"SNAPSHOT:", number[6], number[2], b"", store)
    late = received(1, b"INFO", infos[0]) + received(1, b"SNAPSHOT:", number[6], number[2], b"c", store)
    late += received(0, b"", number[3], update) + page + received(1, number[2], clear) + end
    gap = received(0, b"", number[6], update) + received(1, number[4], store) + received(1, number[5], clear) + end
    restart = received(2) + received(1, b"INFO", infos[0]) + received(3) + received(1, b"INFO", infos[1]) + page
    return {"store": store, "update": update, "late": late, "gap": late + gap, "restart": late + gap + restart}


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return struct.pack("<I", crc ^ 0xFFFFFFFF)


def batch(records):
    """A batch of `mc-ha`, as its module `encoding` describes it."""
    tables = b"".join(bytes([n]) * 16 for n in (7, 8, 9)) + bytes(map(len, records))
    payload = b"".join(crc32c(fields) + fields for fields in records)
    head = b"MCJB\x01\0\0\0" + struct.pack("<5Q", 1, 1, len(records) + 1, 0, 1000)
    head += struct.pack("<6I", 0xFFFFFFFF, 0, 3, len(records), len(tables), len(payload))
    return head + crc32c(head + tables) + tables + payload


def journals():
    """Records of every kind: each behind its length, as a batch, and as batches with damage between."""
    space = b"\x01\x00\x05\x07"
    whole = b"\x04\xff\x01k\x00\x01\x02\x91\x03abcd\x06\x01\x00\x80\x20\x05\x03\x02gr" + bytes(range(8))
    records = [
        b"\x01\x07",
        b"\x02\x00\x01\x02\x01\x01\x07\x03seg\x02\x09tcp://a:1\x07shm://b" + bytes(16) + b"\x01" + bytes(16),
        b"\x03\x00",
        b"\x04\x01\x01k\x00\x01\x01\xc8\x01\x01\x00\x80\x20\x00",
        whole + b"\x01abcd" + space,
        b"\x05\x01k\x03",
        b"\x06\x05" + space,
        b"\x07" + space,
        b"\x08\x03ten\x01\x81\x01",
        b"\x04\x00\x01k\x00\x01\x01\xc8\x01\x01\x00\x80\x20\x00",
        b"\x09\x01\x01abcd\x00",
    ]
    one, two = batch(records), batch(records[:3])
    lengths = b"".join(u8(len(fields)) + fields for fields in records)
    return {"records": lengths, "batch": one, "stream": one + two, "damaged": one[:-9] + b"MCJ" + two + one[:70]}


def object_files():
    """Headers of files of `mc-tier`: without a tenant and with one, one slice and two."""
    def header(tenant, key, *lengths):
        head = b"MCTO" + struct.pack("<IQHHI", 1, 7, len(tenant), len(key), len(lengths)) + tenant + key
        head += b"".join(struct.pack("<QI", length, 9) for length in lengths)
        return head + crc32c(head)
    return {"one": header(b"", b"k", 5), "two": header(b"team", "é/..".encode(), 1, 1 << 30) + b"bytes"}


def write(target, seeds):
    folder = FUZZ / "seeds" / target
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in seeds.items():
        (folder / name).write_bytes(content)


def main():
    draw = random.Random(1)
    write("rpc_frame", connections())
    write("events_index", subscriptions())
    write("events_replay_request", replay_requests())
    write("c2c_pickle", state_dicts())
    write("c2c_weights", weights())
    write("ha_batch", journals())
    write("tier_object_file", object_files())
    count = len(methods())
    orders = {"in-order": range(count), "mixed": [draw.randrange(count) for _ in range(200)]}
    write("rpc_messages", {name: asks(draw, order) for name, order in orders.items()})
    for target, operations, variants, head in (
        ("alloc_ops", alloc_operations, 12, u64(1 << 20) + u16(1000)),
        ("slab_ops", slab_operations, 10, u64(1 << 18) + u8(1) + b"\x00"),
    ):
        lengths = {"short": 20, "long": 150}
        write(target, {
            name: head + b"".join(element(kind, variants, *fields) for kind, *fields in
                                  (operations(draw) for _ in range(length)))
            for name, length in lengths.items()
        })


if __name__ == "__main__":
    main()
