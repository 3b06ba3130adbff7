"""The release before this one, from the history of this repository: the newest tag v* before this commit. No release has a tag
yet, so a commit takes its place."""

from __future__ import annotations

import subprocess
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[1]
#: Of 2026-11-24. It installs its releases as today's does. Its task prolog differs, its usage records have fewer keys, its store
#: has the schema before, and it has no service records.
BEFORE = "09777dec5b98084859d9584523818f8dfe90ab7d"


def name_before(project: Path = PROJECT) -> str:
    """The newest tag v* of an earlier commit of this branch, or the commit that stands for it."""
    words = ["git", "tag", "--list", "v*", "--merged", "HEAD", "--no-contains", "HEAD", "--sort=-version:refname"]
    done = subprocess.run(words, cwd=project, capture_output=True, text=True, check=False)
    return next(iter(done.stdout.split()), BEFORE)


def release_before(folder: Path) -> Path:
    """Write the release before into the folder, or skip the test where this clone does not have it."""
    name = name_before()
    done = subprocess.run(["git", "archive", name], cwd=PROJECT, capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"this clone does not have the commit {name[:8]}: {done.stderr.decode().strip()[:100]}")
    with tarfile.open(fileobj=BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder
