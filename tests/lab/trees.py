"""Machine trees: kept in tests/machines as archives and differences, unpacked to .cache/machines.

A base tree is ``tests/machines/NAME.tar.gz``. A tree with a fault is the folder ``tests/machines/NAME``: ``base`` names the tree
that it is made from, ``everywhere`` has lines ``FILE VALUE`` (each file of the base with this name gets this value), and every
other file takes the place of the base's file at the same path. ``tests/machines/described/NAME.toml`` describes a public machine,
and ``tests/lab/described.py`` writes its tree. A machine has over 2,000 such files, and links that lead in
circles: no checkout should hold them.

``python -m tests.lab.trees`` unpacks what is new. ``python -m tests.lab.trees pack NAME FOLDER`` writes the archive or the
differences from a folder that holds the whole tree.
"""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import io
import os
import shutil
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
SOURCES = PROJECT / "tests/machines"
MACHINES = PROJECT / ".cache/machines"
STAMP = "sources.sha256"
BASE, EVERYWHERE = "base", "everywhere"
DESCRIBED = "described"
#: What writes the trees of descriptions, below tests/lab.
WRITERS = ("described", "machines", "models", "pcitree", "cpufacts", "gpufacts", "hostfacts", "kernelfacts", "software")


def names(sources: Path = SOURCES) -> list[str]:
    """All trees, the base trees first, those of descriptions last."""
    bases = sorted(path.name.removesuffix(".tar.gz") for path in sources.glob("*.tar.gz"))
    return bases + sorted(path.parent.name for path in sources.glob(f"*/{BASE}")) + described(sources)


def described(sources: Path = SOURCES) -> list[str]:
    """The trees that are written from a description."""
    return sorted(path.stem for path in sources.glob(f"{DESCRIBED}/*.toml"))


def stamp(sources: Path = SOURCES) -> str:
    """A digest of all archives, differences and descriptions, by name and content, and of what writes the described."""
    digest = hashlib.sha256()
    for name in WRITERS if described(sources) else ():
        digest.update(Path(__file__).with_name(f"{name}.py").read_bytes())
    for path in sorted(path for path in sources.rglob("*") if path.is_file() and path != sources / "README.md"):
        digest.update(f"{path.relative_to(sources)}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def ensure(sources: Path = SOURCES, cache: Path = MACHINES) -> Path:
    """Unpack all trees again unless the cache was made from these sources. Returns the cache.

    Raises SystemExit with one line that names the file, where an archive or a difference cannot be read.
    """
    wanted = stamp(sources)
    if _read(cache / STAMP) == wanted:
        return cache
    cache.parent.mkdir(parents=True, exist_ok=True)
    with (cache.parent / f"{cache.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _read(cache / STAMP) != wanted:  # else another process has just made it
            _rebuild(sources, cache, wanted)
    return cache


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _rebuild(sources: Path, cache: Path, wanted: str) -> None:
    made, old = (cache.with_name(f"{cache.name}.{word}-{os.getpid()}") for word in ("new", "old"))
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir()
    for name in names(sources):
        try:
            _unpack(sources, name, made)
        except (OSError, EOFError, ValueError, tarfile.TarError) as e:
            shutil.rmtree(made, ignore_errors=True)
            next_step = "get it again: git checkout -- tests/machines"
            raise SystemExit(f"tests/machines: {name} cannot be unpacked: {e}; {next_step}") from None
    (made / STAMP).write_text(f"{wanted}\n")
    if cache.exists():
        cache.rename(old)
    made.rename(cache)
    shutil.rmtree(old, ignore_errors=True)


def _unpack(sources: Path, name: str, into: Path) -> None:
    description = sources / DESCRIBED / f"{name}.toml"
    if description.exists():
        from tests.lab.described import write_described

        write_described(into / name, description)
        return
    archive = sources / f"{name}.tar.gz"
    if archive.exists():
        with tarfile.open(archive, "r:gz") as tar:
            tar.extractall(into / name, filter="tar")  # the links of /sys lead upwards, within the tree
        return
    difference = sources / name
    base = (difference / BASE).read_text().strip()
    if not (into / base).is_dir():
        raise ValueError(f"its base is {base!r}, which is no archive")
    shutil.copytree(into / base, into / name, symlinks=True)
    for file, value in _everywhere(difference):
        for path in (into / name).rglob(file):
            path.write_text(f"{value}\n")
    for path in _replaced(difference):
        target = into / name / path.relative_to(difference)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)


def _everywhere(difference: Path) -> Iterator[tuple[str, str]]:
    path = difference / EVERYWHERE
    for line in path.read_text().splitlines() if path.exists() else ():
        file, _, value = line.partition(" ")
        yield file, value


def _replaced(difference: Path) -> list[Path]:
    ours = {difference / BASE, difference / EVERYWHERE}
    return sorted(path for path in difference.rglob("*") if path.is_file() and path not in ours)


def pack(name: str, tree: Path, sources: Path = SOURCES, cache: Path = MACHINES) -> None:
    """Write the archive of a base tree, or the files of a tree with a fault that differ from its base.

    Raises ValueError where the tree lacks a file of its base, or has another link: a difference cannot say that.
    """
    difference = sources / name
    if not (difference / BASE).exists():
        (sources / f"{name}.tar.gz").write_bytes(archived(tree))
        return
    ensure(sources, cache)
    base = cache / (difference / BASE).read_text().strip()
    everywhere = dict(_everywhere(difference))
    for path in _replaced(difference):
        path.unlink()
    for path in sorted(p for p in tree.rglob("*") if p.is_file() and not p.is_symlink()):
        below = path.relative_to(tree)
        said = everywhere.get(path.name)
        content = path.read_bytes()
        if not (base / below).exists() or content != ((base / below).read_bytes() if said is None else f"{said}\n".encode()):
            (difference / below).parent.mkdir(parents=True, exist_ok=True)
            (difference / below).write_bytes(content)
    links = _links(base).items() ^ _links(tree).items()
    files = [str(path.relative_to(base)) for path in base.rglob("*") if path.is_file()]
    unsaid = sorted(path for path, _ in links) + [path for path in files if not (tree / path).exists()]
    if unsaid:
        raise ValueError(f"{name}: a difference cannot say that a file is missing or that a link changed: {unsaid[0]}")


def _links(tree: Path) -> dict[str, str]:
    return {str(path.relative_to(tree)): str(path.readlink()) for path in tree.rglob("*") if path.is_symlink()}


def archived(tree: Path) -> bytes:
    """A tree as tar and gzip; the same bytes for the same tree: names in order, no owner, no time."""

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = entry.mtime = 0
        entry.uname = entry.gname = ""
        entry.mode = 0o755 if entry.isdir() else 0o644
        return entry

    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for path in sorted(tree.rglob("*")):
            tar.add(path, str(path.relative_to(tree)), recursive=False, filter=plain)
    return gzip.compress(raw.getvalue(), 9, mtime=0)


def main(words: list[str]) -> int:
    match words:
        case []:
            print(ensure())
        case ["pack", name, folder]:
            pack(name, Path(folder))
            print(ensure() / name)
        case _:
            print("usage: python -m tests.lab.trees [pack NAME FOLDER]", file=sys.stderr)
            return 64
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
