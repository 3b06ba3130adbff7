"""The node's side of `fairlead provision`: package files of the declared driver. See on_node.py, sent with it.

A node says which files of its document's set it lacks; the action plugin puts those, and no others, into a folder of its own
there, and here each is taken into the cache when its content is what the document says. Hundreds of MB never go through the
request, and a node that lacks none is asked nothing more.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from typing import Any

if "Stop" not in globals():  # on a node all parts share one namespace
    from fairlead.provision.on_node_files import Stop

PACKAGES = "/var/cache/fairlead/packages"


def package_files(request: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The files of the set by name, where they come from here (no mirror is declared)."""
    if '"packages"' not in request["documents"][0]["content"]:
        return {}
    driver = json.loads(request["documents"][0]["content"]).get("settings", {}).get("driver") or {}
    if not driver.get("managed", True) or driver.get("mirror"):
        return {}
    found = {}
    for p in driver.get("packages", ()):
        found["{}_{}_{}.deb".format(p["name"], p["version"].replace(":", "%3a"), p["architecture"])] = p
    return found


def lacking(request: dict[str, Any]) -> list[str]:
    """The files that are not in the node's cache with their size; their content is looked at before they are used."""
    absent = []
    for name, package in package_files(request).items():
        try:
            there = os.stat(os.path.join(PACKAGES, name)).st_size == package["size"]
        except OSError:
            there = False
        if not there:
            absent.append(name)
    return absent


def take_in(request: dict[str, Any]) -> int:
    """Move what was brought into the cache, each file whole; how many. Raises Stop for one that is not what was meant."""
    incoming = request.get("incoming", "")
    wanted = package_files(request)
    taken = 0
    for name in lacking(request) if incoming else ():
        source = os.path.join(incoming, name)
        with open(source, "rb") as f:
            digest = hashlib.file_digest(f, "sha256").hexdigest()
        if digest != wanted[name]["sha256"]:
            raise Stop(f"{name}: damaged on the way here, or not the file that the lock names", "`fairlead lock --check` says")
        os.makedirs(PACKAGES, mode=0o755, exist_ok=True)
        part = os.path.join(PACKAGES, f".{name}.part")
        shutil.move(source, part)
        os.chmod(part, 0o644)
        os.chown(part, 0, 0)
        os.rename(part, os.path.join(PACKAGES, name))
        taken += 1
    return taken
