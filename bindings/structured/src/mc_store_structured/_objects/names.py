"""The keys of one object::

    PREFIX/PARTITION/ID/manifest
    PREFIX/PARTITION/ID/meta                 and the same with /chunk/0, /chunk/1, ... if it is long
    PREFIX/PARTITION/ID/buffer/NAME

ID is 32 hexadecimal digits, new for each object, so no two writers share a key.
"""

from __future__ import annotations

import uuid

_MANIFEST = "/manifest"


def checked_prefix(prefix: str) -> str:
    """``prefix`` without slashes at its ends.

    Raises ``ValueError`` if nothing is left, or if it has control characters.
    """
    if not isinstance(prefix, str):
        raise TypeError(f"key_prefix must be a str, not {type(prefix).__name__}")
    stripped = prefix.strip("/")
    if not stripped or _has_control_characters(stripped):
        raise ValueError(
            f"key_prefix must be non-empty text without control characters: {prefix!r}"
        )
    return stripped


def checked_segment(text: object, what: str) -> str:
    """``text`` itself, if it can be one segment of a key: not empty, no slash, no control
    character. Raises ``ValueError`` that names ``what`` otherwise."""
    if not isinstance(text, str) or not text or "/" in text or _has_control_characters(text):
        raise ValueError(
            f"invalid bundle {what}: {text!r}; it must be non-empty text without '/' and without "
            "control characters"
        )
    return text


def new_object_id(partition: str) -> str:
    """``PARTITION/ID`` for a new object."""
    return f"{checked_segment(partition, 'partition')}/{uuid.uuid4().hex}"


def is_object_id(text: object) -> bool:
    """Whether ``text`` has the form of :func:`new_object_id`'s result."""
    if not isinstance(text, str):
        return False
    partition, _, number = text.rpartition("/")
    digits = len(number) == 32 and all(digit in "0123456789abcdef" for digit in number)
    return digits and bool(partition) and "/" not in partition


class ObjectKeys:
    """The keys of the object ``object_id`` (see :func:`new_object_id`) under ``prefix``."""

    def __init__(self, prefix: str, object_id: str) -> None:
        self.object_id = object_id
        self._root = f"{prefix}/{object_id}"

    @property
    def manifest(self) -> str:
        """The key of the manifest."""
        return self._root + _MANIFEST

    @property
    def meta(self) -> str:
        """The key of the metadata, which no chunk has if there are several chunks."""
        return f"{self._root}/meta"

    def buffer(self, name: str) -> str:
        """The key of the payload ``name``, which no chunk has if there are several chunks."""
        return f"{self._root}/buffer/{name}"

    def owns(self, key: str) -> bool:
        """Whether ``key`` is one of the object's."""
        return key.startswith(self._root + "/")


def keys_of_manifest(manifest_key: str, prefix: str) -> ObjectKeys:
    """The keys of the object with the manifest ``manifest_key``.

    Raises ``ValueError`` if the object is not one of ``prefix``.
    """
    object_id = manifest_key.removeprefix(prefix + "/").removesuffix(_MANIFEST)
    keys = ObjectKeys(prefix, object_id)
    if not is_object_id(object_id) or keys.manifest != manifest_key:
        raise ValueError(
            f"the manifest {manifest_key!r} is outside the bundle namespace {prefix!r}: use a "
            "transfer with the key_prefix of the writer"
        )
    return keys


def chunk_key(key: str, index: int) -> str:
    """The key of chunk ``index`` of the payload ``key``, which has several chunks."""
    return f"{key}/chunk/{index}"


def _has_control_characters(text: str) -> bool:
    return any(ord(character) < 32 or ord(character) == 127 for character in text)
