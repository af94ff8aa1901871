"""The checked contents of requests, and their answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from aiohttp import web


class Refused(Exception):
    """The request is refused, for the reason in the text. Answered with ``status``."""

    def __init__(self, status: int, text: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.headers = headers or {}


class BadRequest(Refused):
    """The request is invalid, for the reason in the text. Answered with status 400."""

    def __init__(self, text: str) -> None:
        super().__init__(400, text)


class StoreFailed(Exception):
    """The store failed, with this text and error ``code``. Answered with status 500."""

    def __init__(self, message: str, code: int, **more: Any) -> None:
        super().__init__(message)
        self.body = {"error": message, "code": code, **more}


def success(**more: Any) -> web.Response:
    return web.json_response({"status": "success", **more})


def error(status: int, message: str, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.json_response({"error": message}, status=status, headers=headers)


def check_is_json(request: web.Request) -> None:
    """Raises ``Refused`` for a body of another type, which web pages can send without preflight."""
    if request.content_type != "application/json":
        raise Refused(415, "Content-Type must be application/json")


def json_object(body: bytes | bytearray) -> dict[str, Any]:
    """Returns the content of a body, which must be a JSON object, in UTF-8."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as problem:
        raise BadRequest("Malformed JSON body") from problem
    if not isinstance(content, dict):
        raise BadRequest("Request body must be a JSON object")
    return content


def text_field(body: dict[str, Any], name: str, default: str) -> str:
    value = body.get(name, default)
    if not isinstance(value, str):
        raise BadRequest(f"Invalid {name}, must be a string")
    return value


def whole_field(
    body: dict[str, Any], name: str, *, least: int, most: int, default: int | None = None
) -> int:
    """An integer of ``least`` to ``most``; without a default it must be there."""
    value = body.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        kind = "a positive integer" if least else "a non-negative integer"
        raise BadRequest(f"Invalid {name}, must be {kind} no greater than {most}")
    return value


def segment_ids_field(body: dict[str, Any]) -> list[str]:
    value = body.get("segment_ids")
    ids = [value] if isinstance(value, str) else value
    if not ids:
        raise BadRequest("Missing segment_ids")
    if not isinstance(ids, list) or not all(isinstance(id, str) and id for id in ids):
        raise BadRequest("Invalid segment_ids, must be a list of strings")
    return ids


def key_of(request: web.Request) -> str:
    return str(request.match_info["key"])
