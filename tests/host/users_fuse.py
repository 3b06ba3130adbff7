"""A user's FUSE mount whose server never answers, in a mount namespace of its own: real mount table, real waits in the kernel."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

USER = 65431
_MOUNTS = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
folder, user, *mounts = sys.argv[1:]
if libc.unshare(0x00020000) or libc.mount(b"none", b"/", None, 1 << 18 | 1 << 14, None):
    sys.exit("unshare")
for number, (kind, source, path) in enumerate(zip(*[iter(mounts)] * 3)):
    path = f"{folder}/{path}"
    os.makedirs(path, exist_ok=True)
    fd = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={fd},rootmode=40000,user_id={user},group_id={user}"
    if libc.mount(os.fsencode(source), os.fsencode(path), os.fsencode(kind), 1, options.encode()):
        sys.exit(f"mount {source!r}: {os.strerror(ctypes.get_errno())}")
print("mounted", flush=True)
sys.stdin.read()
"""

needs_fuse = pytest.mark.skipif(
    os.geteuid() != 0 or not os.path.exists("/dev/fuse") or not shutil.which("nsenter"), reason="needs root, /dev/fuse, nsenter"
)


@contextmanager
def fuse(folder: Path, *mounts: tuple[str, str, str], user: int = USER) -> Iterator[int]:
    """Mounts (type, source, path below ``folder``), all read-only, of ``user``; the process that sees them."""
    words = [word for mount in mounts for word in mount]
    keeper = subprocess.Popen(
        [sys.executable, "-c", _MOUNTS, os.fspath(folder), str(user), *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert keeper.stdout is not None and keeper.stdin is not None
        assert keeper.stdout.readline() == b"mounted\n"
        yield keeper.pid
    finally:
        keeper.kill()  # its descriptors of /dev/fuse go with it: whoever waits is told that the connection ended
        keeper.wait()
        for pipe in (keeper.stdin, keeper.stdout):
            if pipe is not None:
                pipe.close()
