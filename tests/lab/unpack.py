"""Tar archives, on every Python that fairlead runs with."""

from __future__ import annotations

import tarfile
from pathlib import Path


def unpack(archive: str | Path, folder: str | Path, *, keep: str = "tar") -> None:
    """All of an archive. ``keep``: the extraction filter (PEP 706: "fully_trusted", "tar" or "data") where this Python has them;
    Debian 12's 3.11.2 has none, and unpacks as "fully_trusted" does."""
    with tarfile.open(archive) as tar:
        if hasattr(tarfile, "data_filter"):
            tar.extractall(folder, filter=keep)
        else:
            tar.extractall(folder)
