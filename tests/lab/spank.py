"""The SPANK plugin, compiled against the headers of each root's own Slurm (package libslurm-dev), kept among builds."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from tests.lab import roots
from tests.lab.roots import LabError

SOURCE = Path(__file__).resolve().parents[2] / "slurm/spank/fairlead.c"
STUB = Path(__file__).resolve().parents[1] / "hooks/spank_stub.c"
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
    """The folder to include (it has slurm/spank.h), fetched once."""
    root = roots.root(suite)
    version = slurm_version(root)
    kept = roots.lab_dir() / "build" / f"slurm-headers-{suite}-{hashlib.sha256(version.encode()).hexdigest()[:12]}"
    with roots.locked(f"slurm-headers-{suite}"):
        if not (kept / "usr/include/slurm/spank.h").is_file():
            shutil.rmtree(kept, ignore_errors=True)
            _fetch(suite, root, version, kept)
    return kept / "usr/include"


def _fetch(suite: str, root: Path, version: str, kept: Path) -> None:
    roots.say(f"fetching the headers of Slurm {version} for {suite}")
    lists = kept / "lists"
    (lists / "partial").mkdir(parents=True)
    key = root / "usr/share/keyrings/debian-archive-keyring.gpg"
    sources = kept / "sources.list"
    sources.write_text(f"deb [signed-by={key}] {roots.mirror() or 'http://deb.debian.org/debian'} {suite} main\n")
    settings = {
        "Dir::Etc::sourcelist": sources,
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::State::Lists": lists,
        "Dir::Cache": kept,
        "Dir::Cache::pkgcache": "",
        "Dir::Cache::srcpkgcache": "",
        "APT::Sandbox::User": "root",
    }
    options = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
    for words in (["update"], ["download", f"libslurm-dev={version}"]):
        done = subprocess.run(
            ["apt-get", "-qq", *options, *words], cwd=kept, capture_output=True, text=True, timeout=240, check=False
        )
        if done.returncode:
            raise LabError(f"libslurm-dev={version} of {suite} cannot be fetched: {done.stderr.strip()[-300:]}")
    (package,) = kept.glob("libslurm-dev_*.deb")
    subprocess.run(["dpkg-deb", "--extract", package, kept], check=True, timeout=60)
    shutil.rmtree(lists)


def plugin(suite: str) -> Path:
    """fairlead.so for the Slurm of ``suite``, compiled as slurm/README.md says. Raises LabError with the compiler's words."""
    return _built(suite, "spank", ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"], [SOURCE])


def stub() -> Path:
    """The plugin as a program (tests/hooks/spank_stub.c) with the sanitizers of gcc. Raises LabError."""
    flags = ["-std=gnu11", "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-static-libasan"]
    return _built("trixie", "spank-stub", flags, [SOURCE, STUB])


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
