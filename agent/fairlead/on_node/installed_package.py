"""Finds fairlead's own package (RPM or .deb) on a node. A node that has the package gets no wheels, no hooks and no units.

The package has the same files as the release that `fairlead provision` would send, and the name of that release in a file. So
the program compares one line. It never installs the package, because the site's own tools do that.
"""

from __future__ import annotations

import os
import shutil
from typing import Any

from .installed_release import Release
from .managed_files import link_target, read
from .stop import Stop


class PackagedRelease(Release):
    """Describes the release in the package. The package manager installs and removes it."""

    def installed(self) -> bool:
        return True


def packaged(request: dict[str, Any]) -> PackagedRelease | None:
    """Return the release of the node's package, or None if the node has none and may get wheels. Raises Stop if the package has
    another release than the admin host, and if the site wants a package and the node has none."""
    package = request.get("package")
    if not package:
        return None
    folder: str = package["folder"]
    found = (read(os.path.join(folder, "release")) or b"").decode("utf-8", "replace").strip()
    if request["state"] == "absent":
        return PackagedRelease(*os.path.split(folder), []) if found else None
    if not found and package["required"]:
        words = "this node does not have the package fairlead, which the site asks for ([ansible] package)"
        raise Stop(words, "install fairlead {} there, with the package that fits this admin host".format(package["version"]))
    if found and found != request["release"]:
        hint = "install the packages of one version: fairlead on the node, fairlead-admin here (version {})".format(
            package["version"]
        )
        raise Stop("the package fairlead here is release {}, and the admin host has {}".format(found, request["release"]), hint)
    return PackagedRelease(*os.path.split(folder), []) if found else None


def replaced(request: dict[str, Any], release: PackagedRelease) -> list[str]:
    """Return what `fairlead provision` has written on this node before the package came, and what would hide files of the
    package: units in /etc/systemd, the link in /usr/local and the releases made of wheels."""
    opt: str = request["opt"]
    paths = [entry["path"] for entry in request["files"] if "/etc/systemd/" in entry["path"]]
    paths += [path for path, target in request["links"] if os.path.dirname(path) != opt and link_target(path) == target]
    names = os.listdir(opt) if os.path.isdir(opt) else ()
    paths += sorted(os.path.join(opt, n) for n in names if os.path.isfile(os.path.join(opt, n, ".installed")) and n != "current")
    return [path for path in paths if os.path.lexists(path)]


def remove(path: str, keep: tuple[str, ...] = ()) -> None:
    """Remove a file, a link or a folder with all that is in it. A folder in ``keep`` belongs to the package: it stays, and is
    emptied, but for other folders in ``keep``. Raises OSError."""
    if os.path.islink(path) or not os.path.isdir(path):
        os.unlink(path)
    elif path not in keep:
        shutil.rmtree(path)
    else:
        for name in os.listdir(path):
            if os.path.join(path, name) not in keep:
                remove(os.path.join(path, name))
