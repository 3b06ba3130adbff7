"""Reads what the admin host sends: the request, and the payload of files and wheels that may follow it."""

from __future__ import annotations

import json
from typing import Any, BinaryIO

from .installed_release import verify
from .stop import Stop


def receive(stream: BinaryIO) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return the request, and the payload that follows it, or None if there is no payload. Raises Stop if the payload does not
    match the request."""
    request = json.loads(stream.read(int(stream.readline())).decode("utf-8"))
    head = stream.readline()
    if not head:
        return request, None
    index = json.loads(stream.read(int(head)).decode("utf-8"))
    files = {entry["path"]: stream.read(entry["size"]) for entry in index["files"]}
    wheels = [dict(entry, content=stream.read(entry["size"])) for entry in index["wheels"]]
    if any(len(w["content"]) != w["size"] for w in wheels):
        raise Stop("the connection ended early", "run it again")
    payload = {"files": files, "wheels": wheels}
    verify(request, payload)
    return request, payload
