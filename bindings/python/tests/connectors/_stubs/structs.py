"""The part of the package msgspec that the connectors use, over msgpack: structures as maps."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, dataclass_transform

import msgpack

from connectors._stubs import stand_in


@dataclass_transform(field_specifiers=(dataclasses.field,))
class Struct:
    def __init_subclass__(cls, *, omit_defaults: bool = False) -> None:
        dataclasses.dataclass(cls)


def encode(value: Any) -> bytes:
    # Not by `asdict`, which is slow with long lists.
    members = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    packed: bytes = msgpack.packb(members)
    return packed


def decode(packed: bytes, *, type: Callable[..., Any]) -> Any:
    return type(**msgpack.unpackb(packed))


class Encoder:
    encode = staticmethod(encode)


class Decoder:
    def __init__(self, type: Callable[..., Any]) -> None:
        self._type = type

    def decode(self, packed: bytes) -> Any:
        return decode(packed, type=self._type)


def provide() -> None:
    """Provides it where it is not installed."""
    if find_spec("msgspec") is not None:
        return
    names = {"encode": encode, "decode": decode, "Encoder": Encoder, "Decoder": Decoder}
    stand_in(
        "msgspec",
        Struct=Struct,
        field=dataclasses.field,
        DecodeError=type("DecodeError", (ValueError,), {}),
        msgpack=stand_in("msgspec.msgpack", **names),
    )
