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
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
folder, user, reads, *mounts = sys.argv[1:]
libc.prctl(1, 9)  # PR_SET_PDEATHSIG
if libc.unshare(0x00020000) or libc.mount(b"none", b"/", None, 1 << 18 | 1 << 14, None):
    sys.exit("unshare")
for number, (kind, source, path) in enumerate(zip(*[iter(mounts)] * 3)):
    path = f"{folder}/{path}"
    os.makedirs(path, exist_ok=True)
    fd = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={fd},rootmode=40000,user_id={user},group_id={user}"
    if libc.mount(os.fsencode(source), os.fsencode(path), os.fsencode(kind), 0 if reads else 1, options.encode()):
        sys.exit(f"mount {source!r}: {os.strerror(ctypes.get_errno())}")
print("mounted", flush=True)
if not reads:
    sys.stdin.read()
while True:  # include/uapi/linux/fuse.h: what the mount and its root need is answered, the rest is read
    asked = os.read(fd, 1 << 20)
    opcode, unique = struct.unpack_from("<IQ", asked, 4)
    error, said = 0, b""
    if opcode == 26:  # FUSE_INIT
        said = struct.pack("<IIIIHHIIHHI", 7, 31, 0, 0, 0, 0, 4096, 1, 0, 0, 0) + bytes(28)
    elif opcode == 3:  # FUSE_GETATTR
        numbers = (1, 0, 0, 0, 0, 0, 0, 0, 0, 0o40777, 2, int(user), int(user), 0, 4096, 0)
        said = struct.pack("<QII6Q10I", 3600, 0, 0, *numbers)
    elif opcode == 34:  # FUSE_ACCESS
        error = -38  # ENOSYS: the kernel asks no more
    else:
        continue
    os.write(fd, struct.pack("<IiQ", 16 + len(said), error, unique) + said)
"""

needs_fuse = pytest.mark.skipif(
    os.geteuid() != 0 or not os.path.exists("/dev/fuse") or not shutil.which("nsenter"), reason="needs root, /dev/fuse, nsenter"
)


@contextmanager
def fuse(folder: Path, *mounts: tuple[str, str, str], user: int = USER, reads: bool = False) -> Iterator[int]:
    """Mounts (type, source, path below ``folder``) of ``user``; the process that sees them. ``reads``: the server of the last
    one takes its requests, so that not even SIGKILL ends a wait for it; else all are read-only."""
    words = [word for mount in mounts for word in mount]
    keeper = subprocess.Popen(
        [sys.executable, "-c", _MOUNTS, os.fspath(folder), str(user), "reads" if reads else "", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
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
