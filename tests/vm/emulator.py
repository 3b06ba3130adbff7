"""QEMU of Debian testing, unpacked once below ``FAIRLEAD_LAB_DIR`` in ``vm/qemu-HASH``. Nothing is installed on the machine.

Under QEMU 11.1 a guest starts twenty programs in 0.2 s, and in 0.6 s under QEMU 7.2 of Debian 12. Older releases also failed with
this guest, whose four CPUs are emulated on two cores. Of 28 boots under QEMU 10.0 of Debian 13, three stood still because the
timer of a CPU had stopped, and two ended in an assertion of QEMU. One of nine boots under QEMU 7.2 ended in an assertion too. All
14 boots under QEMU 11.1 succeeded. ``FAIRLEAD_VM_QEMU=PROGRAM`` uses another QEMU.

A folder with other files than its unpacking left is unpacked again, for example if somebody has deleted a library.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import time
from pathlib import Path

from tests.lab.roots import LabError, isolated, lab_dir, locked, need_room, say
from tests.vm.mmdebstrap import mmdebstrap, need_mmdebstrap

PACKAGE = "qemu-system-x86"
SUITE = "forky"
ROOM_BYTES = 1 << 30
VERSION_SECONDS = 30.0  # a QEMU that answers takes 0.1 s
#: The folder's own loader and libraries run QEMU, with its own accelerators and firmware. exec keeps the process's number.
STARTER = """\
#!/bin/sh
root={root}
export QEMU_MODULE_DIR=$root/usr/lib/x86_64-linux-gnu/qemu
exec $root/lib64/ld-linux-x86-64.so.2 --library-path $root/usr/lib/x86_64-linux-gnu \\
    $root/usr/bin/qemu-system-x86_64 -L $root/usr/share/qemu -L $root/usr/share/seabios "$@"
"""


def qemu() -> str:
    """Return the program that starts QEMU. Unpacks it first if it is missing or damaged.

    Raises LabError with one line if ``FAIRLEAD_VM_QEMU`` names no program, or if QEMU cannot be unpacked or does not start.
    """
    if wanted := named():
        return wanted
    recipe = hashlib.sha256("\n".join((SUITE, PACKAGE, STARTER, "2")).encode()).hexdigest()[:12]
    folder = lab_dir() / "vm" / f"qemu-{recipe}"
    program = str(folder / "qemu")
    with locked("vm-qemu"):
        if folder.is_dir() and (found := damage(folder)):
            say(f"{folder}: {found}; QEMU is unpacked again")
            shutil.rmtree(folder)
        if not folder.is_dir():
            _unpack(folder)
        if refusal := _refusal(program):
            raise LabError(f"{program}: {refusal}; name another QEMU: FAIRLEAD_VM_QEMU=PROGRAM")
    return program


def named() -> str:
    """Return the program that ``FAIRLEAD_VM_QEMU`` names, or ''. Raises LabError if it does not start as QEMU."""
    wanted = os.environ.get("FAIRLEAD_VM_QEMU", "")
    if wanted and shutil.which(wanted) is None:
        raise LabError(f"FAIRLEAD_VM_QEMU={wanted}: there is no such program; name another, or unset the variable")
    if wanted and (refusal := _refusal(wanted)):
        raise LabError(f"FAIRLEAD_VM_QEMU={wanted}: {refusal}; name another program, or unset the variable")
    return wanted


def damage(folder: Path) -> str:
    """Return what is wrong with the unpacked QEMU in ``folder``, or '' if its files are as the unpacking left them."""
    try:
        unpacked = (folder / "unpacked").read_text()
    except OSError as error:
        return f"{error}"
    return "" if unpacked == _listing(folder) else "a file of it was changed, added or deleted"


def _listing(folder: Path) -> str:
    """Return a hash of the names, sizes and times of all files below ``folder``, without the file ``unpacked``."""
    lines = []
    for parent, _, names in os.walk(folder):
        stats = ((name, os.lstat(f"{parent}/{name}")) for name in names)
        lines += [f"{os.path.relpath(parent, folder)}/{name} {s.st_size} {s.st_mtime_ns}" for name, s in stats]
    return hashlib.sha256("\n".join(sorted(line for line in lines if not line.startswith("./unpacked "))).encode()).hexdigest()


def _refusal(program: str) -> str:
    """Return in one line why ``program`` does not start as QEMU, or '' if it prints its version."""
    try:
        done = subprocess.run(
            [program, "--version"], capture_output=True, text=True, errors="replace", timeout=VERSION_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"it did not print its version in {VERSION_SECONDS:g} s"
    except OSError as error:
        return f"it does not start: {error.strerror}"
    if done.returncode == 0:
        return "" if "QEMU" in done.stdout else "it is not QEMU by the version that it prints"
    said = done.stderr.strip().splitlines()
    ended = f"signal {-done.returncode}" if done.returncode < 0 else f"exit status {done.returncode}"
    return f"it does not start: {said[-1][:200] if said else ended}"


def _unpack(folder: Path) -> None:
    """Unpack QEMU beside ``folder`` and rename the result, so that a killed run leaves nothing that looks complete."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    for stale in folder.parent.glob(".unpacking-qemu-*"):
        shutil.rmtree(stale)
    need_room(folder.parent, ROOM_BYTES)
    need_mmdebstrap()
    began = time.monotonic()
    say(f"unpacking QEMU of Debian {SUITE} in {folder}, about half a minute")
    unpacking = folder.parent / f".unpacking-qemu-{os.getpid()}"
    unpacking.mkdir()
    try:
        isolated(mmdebstrap(SUITE, unpacking / "root", (PACKAGE,)), lab_dir() / "vm-qemu.log")
        (unpacking / "qemu").write_text(STARTER.format(root=folder / "root"))
        (unpacking / "qemu").chmod(0o755)
        (unpacking / "unpacked").write_text(_listing(unpacking))
        unpacking.rename(folder)
    except BaseException:
        shutil.rmtree(unpacking, ignore_errors=True)
        raise
    for stale in folder.parent.glob("qemu-*"):
        if stale != folder:
            shutil.rmtree(stale)  # a QEMU that still runs keeps its open files
    say(f"QEMU unpacked after {time.monotonic() - began:.0f} s")
