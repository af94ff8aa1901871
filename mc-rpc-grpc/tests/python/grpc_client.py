"""Talks to a master over gRPC with the usual packages, grpcio and protobuf.

Usage: grpc_client.py HOST:PORT PROTO_DIR WORK_DIR

Generates a client from the .proto in PROTO_DIR, and exits with 0 when the master answers
everything as it should. No other client uses the master.
"""

import asyncio
import json
import pathlib
import subprocess
import sys

import grpc
from google.protobuf import descriptor_pool, message_factory
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from grpc_status import rpc_status
from grpc_tools import protoc

SERVICE = "mc.store.v1.MasterService"
MIB = 1 << 20


def generate(proto_dir, work_dir):
    """Makes the client's modules and returns them."""
    proto = "mc/store/v1/master.proto"
    code = protoc.main(
        ["protoc", f"-I{proto_dir}", f"--python_out={work_dir}", f"--grpc_python_out={work_dir}", proto]
    )
    assert code == 0, f"protoc ended with {code}"
    sys.path.insert(0, str(work_dir))
    from mc.store.v1 import master_pb2, master_pb2_grpc

    return master_pb2, master_pb2_grpc


def refusal(call, *args, **kwargs):
    """The error that a call ends with."""
    try:
        answer = call(*args, **kwargs)
    except grpc.RpcError as error:
        return error
    raise AssertionError(f"answered with {answer}")


def details_of(error):
    """The parts of the error's google.rpc.Status, by their type's name."""
    status = rpc_status.from_call(error)
    assert status.code == error.code().value[0] and status.message == error.details()
    found = {}
    for detail in status.details:
        for kind in (error_details_pb2.ErrorInfo, error_details_pb2.RetryInfo):
            if detail.Is(kind.DESCRIPTOR):
                found[kind.DESCRIPTOR.name] = kind()
                assert detail.Unpack(found[kind.DESCRIPTOR.name])
    return found


def an_object_lives_its_life(stub, pb2):
    client = bytes(range(16))
    mounted = stub.MountSegment(
        pb2.MountSegmentRequest(
            buffer=0x7F0000000000,
            size=64 * MIB,
            segment_name="python-node",
            segment_id=b"s" * 16,
            client_id=client,
            endpoint="tcp://10.0.0.9:50052",
            remote_key=b"r" * 16,
            ticket_key=b"t" * 16,
        )
    )
    pong = stub.Ping(pb2.PingRequest(client_id=client))
    assert pong.client_status == pb2.PingResponse.OK
    assert pong.clock_epoch == mounted.clock_epoch != 0
    assert pong.master_time_ms >= mounted.master_time_ms

    start = pb2.PutStartRequest(key="block", value_length=4096, client_id=client)
    grant = stub.PutStart(start)
    handle = grant.replica_list[0].handles[0]
    assert (handle.segment_name, handle.size) == ("python-node", 4096)
    assert len(handle.ticket) == 24 and grant.grant_ttl_ms > 0

    # Another put of the key is refused meanwhile, and the refusal says when to try again.
    error = refusal(stub.PutStart, start)
    assert error.code() == grpc.StatusCode.ABORTED, error
    details = details_of(error)
    assert details["ErrorInfo"].reason == "PUT_IN_PROGRESS"
    assert details["RetryInfo"].retry_delay.ToMilliseconds() > 0

    # Who knows the client and the put cannot end it: the grant told a token.
    end = pb2.PutEndRequest(
        key="block", client_id=client, generation=grant.generation, slice_checksums=[0xC0FFEE]
    )
    error = refusal(stub.PutEnd, end)
    assert details_of(error)["ErrorInfo"].reason == "ILLEGAL_CLIENT", error
    end.put_token = grant.put_token
    stub.PutEnd(end)
    found = stub.GetReplicaList(pb2.GetReplicaListRequest(key="block", ranges=[0, 1, 9000, 9001]))
    spans = [(span.start, span.end, span.tail) for span in found.spans]
    assert spans == [(0, 4096, 0xC0FFEE), (0, 0, 0)], spans
    assert len(found.replica_list[0].handles[0].ticket) == 24
    assert found.replica_list[0].handles[0].buffer == handle.buffer
    assert found.generation == grant.generation and found.lease_ttl_ms > 0
    assert [(part.length, part.checksum) for part in found.slices] == [(4096, 0xC0FFEE)]
    assert stub.ExistKey(pb2.ExistKeyRequest(key="block")).exists
    assert not stub.ExistKey(pb2.ExistKeyRequest(key="absent")).exists


def batches_small_and_large(stub, pb2):
    batch = stub.BatchGetReplicaList(pb2.BatchGetReplicaListRequest(keys=["block", "absent", ""]))
    assert [item.status_code for item in batch.items] == [0, -704, -400], batch
    assert batch.segments[0].segment_name == "python-node"
    index = batch.items[0].replica_list[0].handles[0].segment_index
    assert index == 1
    # Large enough to take many frames in both directions.
    keys = ["block"] + [f"{number:0>100}" for number in range(30_000)]
    batch = stub.BatchGetReplicaList(pb2.BatchGetReplicaListRequest(keys=keys))
    assert len(batch.items) == len(keys) and batch.items[0].status_code == 0


def errors_say_their_cause(stub, pb2, channel):
    error = refusal(stub.GetReplicaList, pb2.GetReplicaListRequest(key="absent"))
    assert error.code() == grpc.StatusCode.NOT_FOUND, error
    details = details_of(error)
    assert "RetryInfo" not in details
    info = details["ErrorInfo"]
    assert (info.reason, info.domain) == ("OBJECT_NOT_FOUND", "mc.store.v1")
    assert dict(info.metadata) == {"code": "-704"}

    error = refusal(stub.ExistKey, pb2.ExistKeyRequest())
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT and "key is empty" in error.details()
    # Short messages are sent as they are.
    long = pb2.BatchExistKeyRequest(keys=["k" * 1000] * 10)
    error = refusal(stub.BatchExistKey, long, compression=grpc.Compression.Gzip)
    assert error.code() == grpc.StatusCode.UNIMPLEMENTED, error
    raw = channel.unary_unary(f"/{SERVICE}/ExistKey")
    assert refusal(raw, b"\x0b garbage").code() == grpc.StatusCode.INVALID_ARGUMENT
    assert refusal(raw, b"k" * (17 * MIB)).code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    error = refusal(channel.unary_unary(f"/{SERVICE}/Explode"), b"")
    assert error.code() == grpc.StatusCode.UNIMPLEMENTED, error
    metadata = (("mc-tenant", "no/name"),)
    error = refusal(stub.ExistKey, pb2.ExistKeyRequest(key="k"), metadata=metadata)
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT, error
    metadata = (("mc-tenant", "default"), ("authorization", "Bearer something"))
    stub.ExistKey(pb2.ExistKeyRequest(key="k"), metadata=metadata, timeout=30)


def the_health_is_told(channel):
    health = health_pb2_grpc.HealthStub(channel)
    for service in ("", SERVICE):
        answer = health.Check(health_pb2.HealthCheckRequest(service=service))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    watch = health.Watch(health_pb2.HealthCheckRequest(service=SERVICE))
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
    watch.cancel()


def reflection_is_enough(channel):
    """Calls with what reflection tells, without the .proto."""
    database = ProtoReflectionDescriptorDatabase(channel)
    services = set(database.get_services())
    assert {SERVICE, "grpc.health.v1.Health"} <= services, services
    pool = descriptor_pool.DescriptorPool(database)
    method = pool.FindServiceByName(SERVICE).methods_by_name["ExistKey"]
    ask = message_factory.GetMessageClass(method.input_type)
    answer = message_factory.GetMessageClass(method.output_type)
    call = channel.unary_unary(f"/{SERVICE}/{method.name}", ask.SerializeToString, answer.FromString)
    assert call(ask(key="block")).exists


def command_line_tools_work(address):
    """Buf's client is one of those that know a server by its reflection only."""
    buf = pathlib.Path(sys.executable).with_name("buf")

    def run(*args):
        command = [buf, "curl", "--protocol", "grpc", "--http2-prior-knowledge", *args]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    listed = run("--list-services", f"http://{address}")
    assert SERVICE in listed.stdout.split(), listed
    url = f"http://{address}/{SERVICE}"
    told = run("-d", '{"key": "block"}', f"{url}/GetReplicaList")
    assert told.returncode == 0, told
    assert json.loads(told.stdout)["replicaList"][0]["handles"][0]["size"] == "4096", told
    told = run("-d", '{"key": "absent"}', f"{url}/GetReplicaList")
    assert told.returncode != 0, told
    error = json.loads(told.stderr)
    assert (error["code"], error["details"][0]["type"]) == ("not_found", "google.rpc.ErrorInfo"), told


async def many_calls_share_a_connection(address, pb2, pb2_grpc):
    async with grpc.aio.insecure_channel(address) as channel:
        stub = pb2_grpc.MasterServiceStub(channel)
        keys = ["block", "absent"] * 1000
        asked = [stub.ExistKey(pb2.ExistKeyRequest(key=key)) for key in keys]
        answers = await asyncio.gather(*asked)
        assert [answer.exists for answer in answers] == [True, False] * 1000
        given_up = stub.ExistKey(pb2.ExistKeyRequest(key="block"))
        given_up.cancel()
        assert (await stub.ExistKey(pb2.ExistKeyRequest(key="block"))).exists


def main():
    address, proto_dir, work_dir = sys.argv[1:]
    pb2, pb2_grpc = generate(proto_dir, work_dir)
    with grpc.insecure_channel(address) as channel:
        stub = pb2_grpc.MasterServiceStub(channel)
        an_object_lives_its_life(stub, pb2)
        batches_small_and_large(stub, pb2)
        errors_say_their_cause(stub, pb2, channel)
        the_health_is_told(channel)
        reflection_is_enough(channel)
        assert stub.ExistKey(pb2.ExistKeyRequest(key="block")).exists
    asyncio.run(many_calls_share_a_connection(address, pb2, pb2_grpc))
    command_line_tools_work(address)


if __name__ == "__main__":
    main()
