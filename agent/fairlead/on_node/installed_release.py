"""Installs a release of fairlead below /opt/fairlead: a virtual environment made of the wheels that were sent."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import sys
from typing import Any

from .managed_files import read
from .selinux_labels import restore
from .stop import Stop


def noexec(path: str) -> bool:
    """Return whether ``path``, or the nearest folder above it that exists, is mounted noexec. No library can be loaded from
    such a mount (mmap(2), EPERM)."""
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return bool(os.statvfs(path).f_flag & os.ST_NOEXEC)


def verify(request: dict[str, Any], payload: dict[str, Any]) -> None:
    """Compare the payload with the request. The payload must have only wheels that the request lists, one of each package, and
    files with the hashes that the request lists. Raises Stop before anything is changed."""
    locked = {entry["name"]: entry for entry in request.get("wheels", ())}
    packages = []
    for wheel in payload["wheels"]:
        entry = locked.get(wheel["name"])
        if entry is None:
            raise Stop("{}: sent to this node, and not in the list of wheels for it".format(wheel["name"]), "run it again")
        if len(wheel["content"]) != entry["size"] or hashlib.sha256(wheel["content"]).hexdigest() != entry["sha256"]:
            hint = "run it again; if it fails again, make the folder that it comes from (bundle, wheelhouse) again"
            raise Stop("{}: not the file that the admin host listed (another sha256)".format(wheel["name"]), hint)
        packages.append(wheel["name"].split("-")[0])
    if payload["wheels"] and sorted(packages) != sorted({name.split("-")[0] for name in locked}):
        raise Stop("the wheels sent are {}: not one of each package".format(" ".join(sorted(packages))), "run it again")
    for entry in request["files"]:
        content = payload["files"].get(entry["path"])
        if content is not None and hashlib.sha256(content).hexdigest() != entry["sha256"]:
            raise Stop("{}: damaged on the way here".format(entry["path"]), "run it again")


class Release:
    """Describes one version of fairlead in its own virtual environment. ``path``: the folder of this environment, which exists
    only if it is complete. wheels: the wheels that ``verify`` has checked."""

    def __init__(self, opt: str, name: str, wheels: list[dict[str, Any]]) -> None:
        self.opt = opt
        self.path = os.path.join(opt, name)
        self.wheels = wheels
        self.python = "{}.{}".format(*sys.version_info[:2])

    @property
    def program(self) -> str:
        """Return the path of the command `fairlead`."""
        return os.path.join(self.path, "bin", "fairlead")

    def installed(self) -> bool:
        """Return whether the release is complete, and was made for this version of Python."""
        return read(os.path.join(self.path, ".installed")) == self.python.encode()

    def runnable(self) -> None:
        """Raise Stop if a release could not run after its installation, because ``opt`` is mounted noexec."""
        if noexec(self.opt):
            raise Stop(f"{self.opt}: mounted noexec, and fairlead runs from there", "mount it without noexec")

    def scratch(self) -> str:
        """Return a folder in which the release can be unpacked and run for a short time. Many sites mount /tmp noexec."""
        import tempfile

        candidates = (tempfile.gettempdir(), "/var/tmp", os.path.dirname(self.opt))
        return next((c for c in candidates if os.access(c, os.W_OK) and not noexec(c)), candidates[0])

    def unpack(self, folder: str) -> str:
        """Make a virtual environment with the wheels in ``folder``, and return the path of its site-packages. This code does
        the work of pip, because nodes have neither pip nor the network."""
        import zipfile  # imported late, because a node that lacks nothing does not need it

        site = os.path.join(folder, "lib", "python" + self.python, "site-packages")
        os.makedirs(site, mode=0o755)
        os.mkdir(os.path.join(folder, "bin"), 0o755)
        base = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
        with open(os.path.join(folder, "pyvenv.cfg"), "w") as f:
            f.write(f"home = {os.path.dirname(base)}\ninclude-system-site-packages = false\n")
        for name in ("python", "python3"):
            os.symlink(base, os.path.join(folder, "bin", name))
        for wheel in self.wheels:
            with zipfile.ZipFile(io.BytesIO(wheel["content"])) as archive:
                for member in archive.infolist():
                    if ".data/" in member.filename or member.is_dir():
                        continue
                    path = archive.extract(member, site)
                    os.chmod(path, 0o755 if member.external_attr >> 16 & 0o111 else 0o644)
        script = os.path.join(folder, "bin", "fairlead")
        with open(script, "w") as f:
            f.write(f"#!{self.path}/bin/python -I\nimport sys\nfrom fairlead.cli import main\nsys.exit(main())\n")
        os.chmod(script, 0o755)  # noqa: S103
        return site

    def install(self) -> None:
        """Unpack and compile the release in a temporary folder, and then rename that folder to ``path``. Raises OSError with the
        name of a file."""
        import compileall

        building = os.path.join(self.opt, "." + os.path.basename(self.path) + ".new")
        shutil.rmtree(building, ignore_errors=True)
        try:
            os.makedirs(building, mode=0o755)
            site = self.unpack(building)
            compileall.compile_dir(site, quiet=2, stripdir=building, prependdir=self.path)
            with open(os.path.join(building, ".installed"), "w") as f:
                f.write(self.python)
        except OSError as e:  # the error of a full disk names no file
            shutil.rmtree(building, ignore_errors=True)
            raise OSError(e.errno, e.strerror, e.filename or building) from None
        os.sync()
        shutil.rmtree(self.path, ignore_errors=True)  # an incomplete release, or one for another Python
        os.rename(building, self.path)
        restore(self.path)

    def prune(self, previous: str) -> None:
        """Remove all releases except this one and ``previous``."""
        keep = {self.path, os.path.join(self.opt, os.path.basename(previous or self.path))}
        for name in os.listdir(self.opt):
            path = os.path.join(self.opt, name)
            if os.path.isdir(path) and not os.path.islink(path) and path not in keep:
                shutil.rmtree(path, ignore_errors=True)
