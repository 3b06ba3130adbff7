"""The release before this one, from the history of this repository. No release has a tag yet, so a commit takes its place."""

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


def release_before(folder: Path) -> Path:
    """Write the release before into the folder, or skip the test where this clone does not have it."""
    done = subprocess.run(["git", "archive", BEFORE], cwd=PROJECT, capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"this clone does not have the commit {BEFORE[:8]}: {done.stderr.decode().strip()[:100]}")
    with tarfile.open(fileobj=BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder
