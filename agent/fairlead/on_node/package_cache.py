"""Puts the package files of the declared driver into the node's cache.

The request lists the files that the node's driver needs. The node answers which of these files it lacks. Ansible's action plugin
copies only the missing files to a separate folder on the node. From there each file is moved into the cache, if its hash is that
of the request. Thus the request does not contain hundreds of MB, and a node that lacks no file needs no further round trip.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from typing import Any

from .stop import Stop

PACKAGES = "/var/cache/fairlead/packages"


def lacking(request: dict[str, Any]) -> list[str]:
    """Return the names of the files that are not in the node's cache, or have another size there. The hash of a file is
    compared later, before the file is used."""
    return [entry["file"] for entry in request["package_files"] if not _cached(entry)]


def _cached(entry: dict[str, Any]) -> bool:
    try:
        return bool(os.stat(os.path.join(PACKAGES, entry["file"])).st_size == entry["size"])
    except OSError:
        return False


def take_in(request: dict[str, Any]) -> int:
    """Move the files that were copied to the node into the cache, and return their number. Raises Stop for a file with another
    hash."""
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
