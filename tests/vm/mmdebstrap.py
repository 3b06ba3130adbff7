"""mmdebstrap(1): packages of a Debian release, unpacked into a folder."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.lab.roots import LabError, mirror

#: What a compute node does not read.
EXCLUDED = ("/usr/share/man/*", "/usr/share/locale/*", "/usr/share/doc/*")


def need_mmdebstrap() -> None:
    """Raise LabError if mmdebstrap is not installed."""
    if shutil.which("mmdebstrap") is None:
        raise LabError("mmdebstrap is not installed; run: apt-get install mmdebstrap")


def mmdebstrap(suite: str, folder: Path, packages: tuple[str, ...], variant: str = "minbase") -> list[str]:
    """Return the command that unpacks ``packages`` of ``suite`` into ``folder``, from the mirror that this machine's apt uses."""
    words = ["mmdebstrap", "--mode=root", f"--variant={variant}", f"--include={','.join(packages)}"]
    words += ["--keyring=/usr/share/keyrings/debian-archive-keyring.gpg"]
    # A mirror's copy of testing may be older than its Release file says that it should be.
    words += ["--aptopt=Acquire::Check-Valid-Until false", *(f"--dpkgopt=path-exclude={path}" for path in EXCLUDED)]
    source = mirror()
    return [*words, suite, str(folder), *([source] if source else [])]
