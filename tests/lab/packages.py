"""Debian packages beside a lab root, unpacked into a folder of their own and kept: the root itself stays as it is.

apt-get works on lists of its own and on the root's dpkg database, so it fetches what that root lacks, in that root's release.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

from tests.lab import roots
from tests.lab.roots import LabError


def unpacked(suite: str, *words: str, recommends: bool = False) -> Path:
    """A folder with the named packages (``NAME`` or ``NAME=VERSION``) and what they depend on that the root lacks.

    Raises LabError with apt's own words where they cannot be fetched.
    """
    return _kept(suite, words, ["install", "--yes", "--download-only", f"-oAPT::Install-Recommends={str(recommends).lower()}"])


def alone(suite: str, word: str, *, component: str = "main") -> Path:
    """A folder with one package and nothing that it depends on. Raises LabError as ``unpacked``."""
    return _kept(suite, (word,), ["download"], component)


def _kept(suite: str, words: tuple[str, ...], command: list[str], component: str = "main") -> Path:
    root = roots.root(suite)
    recipe = [root.name, *words, *command, component]
    digest = hashlib.sha256(" ".join(recipe).encode()).hexdigest()[:12]
    kept = roots.lab_dir() / "build" / f"packages-{suite}-{digest}"
    with roots.locked(f"packages-{suite}-{digest}"):
        if not (kept / ".complete").is_file():
            shutil.rmtree(kept, ignore_errors=True)
            (kept / "archives/partial").mkdir(parents=True)
            _fetch(suite, root, kept, [*command, *words], component)
            for package in sorted((kept / "archives").glob("*.deb")):
                subprocess.run(["dpkg-deb", "--extract", package, kept / "root"], check=True, timeout=60)
            shutil.rmtree(kept / "archives")
            (kept / ".complete").touch()
    return kept / "root"


def _fetch(suite: str, root: Path, kept: Path, command: list[str], component: str) -> None:
    roots.say(f"apt-get {' '.join(command)} for {suite}")
    (kept / "lists/partial").mkdir(parents=True)
    key = root / "usr/share/keyrings/debian-archive-keyring.gpg"
    sources = kept / "sources.list"
    sources.write_text(f"deb [signed-by={key}] {roots.mirror() or 'http://deb.debian.org/debian'} {suite} {component}\n")
    settings = {
        "Dir::Etc::sourcelist": sources,
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::State::Lists": kept / "lists",
        "Dir::State::status": root / "var/lib/dpkg/status",
        "Dir::Cache": kept,
        "Dir::Cache::archives": kept / "archives",
        "Dir::Cache::pkgcache": "",
        "Dir::Cache::srcpkgcache": "",
        "APT::Sandbox::User": "root",
    }
    options = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
    for words in (["update"], command):
        done = subprocess.run(
            ["apt-get", "-qq", *options, *words], cwd=kept / "archives", capture_output=True, text=True, timeout=240, check=False
        )
        if done.returncode:
            raise LabError(f"apt-get {' '.join(command)} for {suite}: {done.stderr.strip()[-300:]}")
    shutil.rmtree(kept / "lists")
