"""The SPANK plugin, compiled against the headers of each root's own Slurm (package libslurm-dev), kept among builds."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

from tests.lab import packages, roots
from tests.lab.roots import LabError

SOURCE = Path(__file__).resolve().parents[2] / "slurm/spank/fairlead.c"
STUB = Path(__file__).resolve().parents[1] / "hooks/spank_stub.c"
STAND_IN = Path(__file__).with_name("pyxis_stand_in.c")
AFFINITY = STUB.with_name("spank_affinity.c")
#: Where the tests put it inside a root, as a site would.
INSIDE = "/usr/lib/fairlead-spank/fairlead.so"


def slurm_version(root: Path) -> str:
    """Debian's version of the Slurm in ``root``, from its dpkg database. Raises LabError."""
    for stanza in (root / "var/lib/dpkg/status").read_text(errors="replace").split("\n\n"):
        fields = dict(line.split(": ", 1) for line in stanza.splitlines() if ": " in line and line[0] != " ")
        if fields.get("Package") == "slurmd":
            return fields["Version"]
    raise LabError(f"{root}: no slurmd there")


def headers(suite: str) -> Path:
    """The folder to include (it has slurm/spank.h), of the root's own Slurm release, fetched once. Raises LabError.

    The archive keeps only its newest revision (24.11.5-4+deb13u1), and the root may have been built before that revision.
    """
    release = slurm_version(roots.root(suite)).rpartition("-")[0]
    return packages.alone(suite, f"libslurm-dev={release}-*") / "usr/include"


def plugin(suite: str) -> Path:
    """fairlead.so for the Slurm of ``suite``, compiled as slurm/README.md says. Raises LabError with the compiler's words."""
    return _built(suite, "spank", ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"], [SOURCE])


def pyxis_stand_in(suite: str) -> Path:
    """The stand-in for pyxis (pyxis_stand_in.c) for the Slurm of ``suite``. Raises LabError with the compiler's words."""
    return _built(suite, "pyxis-stand-in", ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"], [STAND_IN])


def stub() -> Path:
    """The plugin as a program (tests/hooks/spank_stub.c) with the sanitizers of gcc. Raises LabError."""
    flags = ["-std=gnu11", "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-static-libasan"]
    return _built("trixie", "spank-stub", flags, [SOURCE, STUB])


def on_any_cpus() -> Path:
    """The plugin as a program that prints the mask that it asks for (tests/hooks/spank_affinity.c). Raises LabError."""
    return _built("trixie", "spank-affinity", ["-std=gnu11", "-O1", "-g"], [SOURCE, STUB, AFFINITY])


def _built(suite: str, kind: str, flags: list[str], sources: list[Path]) -> Path:
    include = headers(suite)
    recipe = b"".join(s.read_bytes() for s in sources) + " ".join([*flags, str(include)]).encode()
    built = roots.lab_dir() / "build" / f"{kind}-{suite}-{hashlib.sha256(recipe).hexdigest()[:12]}"
    if not built.is_file():
        fresh = built.with_name(f".{built.name}.{os.getpid()}")
        command = ["gcc", *flags, f"-I{include}", "-o", str(fresh), *map(str, sources)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode:
            raise LabError(f"{' '.join(command)}: {done.stderr.strip()}")
        fresh.rename(built)
    return built
