"""Keeps the package files of the declared set in the node's cache: fetched from a mirror, compared by hash, pruned.

`fairlead provision` puts the files into the cache, or they come from the site's mirror. A file is used only with the content
that the lock says.
"""

from __future__ import annotations

import hashlib
import os
import shutil

from fairlead.errors import HostError
from fairlead.host.root import Root
from fairlead.model.change import Package, Packages

CACHE = "/var/cache/fairlead/packages"
FETCH_SECONDS = 60.0  # the longest time without a byte from the mirror
SPARE_BYTES = 64 << 20


def make_folder(root: Root) -> str:
    """Make the cache there if it is missing, and return its path on this machine. Raises HostError for an image without
    /dev/null, which the scripts of packages write to."""
    path = root.join(CACHE)
    os.makedirs(path, mode=0o755, exist_ok=True)
    if not root.is_live and not os.path.exists(root.join("/dev/null")):
        raise HostError(f"{root.path}: no /dev/null in this image", hint="mount /dev there")
    return path


def fill(change: Packages, root: Root, cache: str) -> None:
    """Have every file of ``change.install`` in the cache, with room for all of them unpacked. Raises HostError with what is
    missing; nothing but the cache was changed then."""
    _require_room(change, root)
    for package in change.install:
        _have_package(package, change.mirror, cache)


def _require_room(change: Packages, root: Root) -> None:
    """Raise HostError if the disk has no room for the new files beside the old files, or if /usr is mounted read-only, as on a
    node that boots an image of its system. Nothing has been changed then."""
    if change.install and os.statvfs(root.join("/usr")).f_flag & os.ST_RDONLY:
        words = "/usr is mounted read-only, so no package can be installed; nothing was changed"
        raise HostError(words, hint="mount it read-write, or install the packages in the node's image")
    for path, needed in (
        ("/usr", sum(p.installed_kib for p in change.install) * 1024),
        (CACHE, sum(p.size for p in change.install if not root.exists(f"{CACHE}/{p.file}"))),
    ):
        free = shutil.disk_usage(root.join(path)).free
        if free < needed + SPARE_BYTES:
            words = f"{path}: {free >> 20} MiB free, {(needed + SPARE_BYTES) >> 20} MiB needed for {len(change.install)} packages"
            raise HostError(words, hint="make room there; nothing was changed")


def _have_package(package: Package, mirror: str, cache: str) -> None:
    """Fetch the package file from the mirror if the cache lacks it, and compare its hash with the lock. Raises HostError."""
    path = os.path.join(cache, package.file)
    if not os.path.exists(path):
        if not mirror:
            words = f"{package.file}: not in {CACHE}, and no mirror is declared"
            raise HostError(words, hint="run `fairlead provision`, or declare settings.driver.mirror")
        _fetch(package, mirror, path)
    with open(path, "rb") as f:
        digest = hashlib.file_digest(f, "sha256").hexdigest()
    if digest != package.sha256:
        os.unlink(path)
        raise HostError(f"{package.file}: not the file that the lock names (another sha256)", hint="it was removed; run it again")


def _fetch(package: Package, mirror: str, path: str) -> None:
    """Copy the package file from the mirror, which is a local folder or a URL. ``path`` never gets an incomplete file."""
    from urllib.error import URLError
    from urllib.parse import quote
    from urllib.request import urlopen

    part = f"{path}.part"
    source = f"{mirror.rstrip('/')}/{package.file}"
    try:
        if mirror.startswith("/"):
            shutil.copyfile(source, part)
        else:
            url = f"{mirror.rstrip('/')}/{quote(package.file)}"
            with urlopen(url, timeout=FETCH_SECONDS) as answer, open(part, "wb") as out:  # noqa: S310 (the document's own URL)
                shutil.copyfileobj(answer, out, 1 << 20)
        os.rename(part, path)
    except (OSError, URLError, ValueError) as e:
        said = getattr(e, "reason", None) or getattr(e, "strerror", None) or e
        raise HostError(f"{source}: {said}", hint="is the mirror complete? `fairlead lock --check --mirror` says") from None
    finally:
        if os.path.exists(part):
            os.unlink(part)


def prune(change: Packages, cache: str) -> None:
    """Remove from the cache the package files that belong neither to this set nor to the set before it."""
    keep = (*(p.file for p in change.allowed), *change.keep)
    for name in os.listdir(cache):
        if name.endswith((".deb", ".rpm", ".part")) and not name.startswith(keep):
            os.unlink(os.path.join(cache, name))
