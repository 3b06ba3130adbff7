"""Packs the program that a run sends to nodes: the folder fairlead/on_node as a zip archive, which Python imports directly.

The admin host reads the folder as data only. Nothing in the folder runs on the admin host (docs/decisions/0042).
"""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import fairlead

FOLDER = Path(fairlead.__file__).parent / "on_node"
_EPOCH = (1980, 1, 1, 0, 0, 0)


def archive() -> bytes:
    """Return the archive, with the folder as the package ``on_node``. The same files give the same bytes."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as made:
        for source in sorted(FOLDER.glob("*.py")):
            info = zipfile.ZipInfo(f"{FOLDER.name}/{source.name}", _EPOCH)
            info.compress_type = zipfile.ZIP_DEFLATED
            made.writestr(info, source.read_bytes())
    return out.getvalue()
