"""Python wheels for the roots: nodes have no way out, so what the agent needs is fetched here, once per Python.

They are the wheels of fairlead's own lock, fetched as `fairlead provision` fetches them, by this machine's pip with its own
index configuration. Only built wheels are taken: nothing is compiled, and nothing runs at download.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from fairlead.errors import FairleadError
from fairlead.provision import wheel_lock
from fairlead.provision.wheels import cache_folder, download, pip_download
from tests.lab.roots import LabError, lab_dir, locked, root, say


def python_version(suite: str) -> str:
    """The root's own Python, such as '3.11'."""
    return os.readlink(root(suite) / "usr/bin/python3").removeprefix("python")


def wheelhouse(suite: str) -> Path:
    """Folder of the wheels of the lock for the Python of ``suite``'s root. Raises LabError with pip's last line."""
    return wheelhouse_of(python_version(suite))


def wheelhouse_of(version: str) -> Path:
    """Folder of the wheels of the lock for a Python such as '3.11'. Raises LabError with pip's last line."""
    return _filled(f"cp{version.replace('.', '')}", wheel_lock.FILE, lambda to: download(version, platform.machine(), str(to)))


def admin_wheels() -> Path:
    """Folder of what an admin host of this Python needs besides fairlead. Raises LabError."""
    lock = wheel_lock.ADMIN_FILE
    here = f"admin{sys.version_info.major}{sys.version_info.minor}"
    return _filled(here, lock, lambda to: pip_download(["-d", str(to), "-r", str(lock)], "the admin host", 600, ""))


def into_cache(suite: str) -> None:
    """Put the wheels for the nodes of a rack where `fairlead provision` looks: its racks have no way out to an index."""
    house, cache = wheelhouse(suite), Path(cache_folder())
    with locked("wheels"):
        cache.mkdir(parents=True, exist_ok=True)
        for wheel in house.glob("*.whl"):
            if not (cache / wheel.name).exists():
                shutil.copyfile(wheel, cache / f".{wheel.name}")
                (cache / f".{wheel.name}").rename(cache / wheel.name)


def _filled(name: str, lock: Path, fill: Callable[[Path], None]) -> Path:
    """A folder made once for this state of the lock."""
    made = lab_dir() / "wheels" / f"{name}-{hashlib.sha256(lock.read_bytes()).hexdigest()[:8]}"
    with locked("wheels"):
        if made.is_dir():
            return made
        fresh = made.with_name(f".{made.name}")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        say(f"fetching {name}: what {lock.name} lists")
        try:
            fill(fresh)
        except FairleadError as e:
            shutil.rmtree(fresh)
            raise LabError(str(e)) from None
        fresh.rename(made)
    return made


if __name__ == "__main__":
    for each in sys.argv[1:] or ["bookworm"]:
        print(wheelhouse(each))
