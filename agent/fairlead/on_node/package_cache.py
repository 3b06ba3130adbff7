"""Keeps the package files of the declared driver in the node's cache.

The request lists the files that the node's driver needs. The node answers which of them it lacks. The action plugin copies
only those into a folder of its own on the node. From there each file moves into the cache, if its content is what the request
says. Thus hundreds of MB never go through the request, and a node that lacks no file needs no further round trip.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from typing import Any

from .stop import Stop

PACKAGES = "/var/cache/fairlead/packages"


def lacking(request: dict[str, Any]) -> list[str]:
    """Return the names of the files that are not in the node's cache with their size. Their content is compared before they
    are used."""
    return [entry["file"] for entry in request["package_files"] if not _cached(entry)]


def _cached(entry: dict[str, Any]) -> bool:
    try:
        return bool(os.stat(os.path.join(PACKAGES, entry["file"])).st_size == entry["size"])
    except OSError:
        return False


def take_in(request: dict[str, Any]) -> int:
    """Move what was copied to the node into the cache, each file whole. Return how many. Raises Stop for a file with other
    content."""
    incoming = request.get("incoming", "")
    digests = {entry["file"]: entry["sha256"] for entry in request["package_files"]}
    count = 0
    for name in lacking(request) if incoming else ():
        source = os.path.join(incoming, name)
        with open(source, "rb") as f:
            digest = hashlib.file_digest(f, "sha256").hexdigest()
        if digest != digests[name]:
            raise Stop(
                f"{name}: damaged on the way here, or not the file that the lock names", "`fairlead lock --check` says which"
            )
        os.makedirs(PACKAGES, mode=0o755, exist_ok=True)
        part = os.path.join(PACKAGES, f".{name}.part")
        shutil.move(source, part)
        os.chmod(part, 0o644)
        os.chown(part, 0, 0)
        os.rename(part, os.path.join(PACKAGES, name))
        count += 1
    return count
