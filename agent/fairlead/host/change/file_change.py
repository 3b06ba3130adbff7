"""Files of a setting: by temp and rename, on the disk when that is said."""

from __future__ import annotations

import os

from fairlead.host.atomic_file import replace, sync_folder


def write_file(path: str, content: bytes | None, mode: int = 0o644) -> None:
    """Put ``content`` at ``path`` whole or not at all (None removes it); owner root, exact ``mode``. Raises OSError.

    A left-over of a killed run is overwritten by the next.
    """
    folder, name = os.path.split(path)
    if content is None:
        try:
            os.unlink(path)
        except FileNotFoundError:
            return
        sync_folder(folder)
        return
    os.makedirs(folder, mode=0o755, exist_ok=True)
    replace(path, content, temporary=os.path.join(folder, f".{name}.fairlead-new"), mode=mode, sync=True)
