"""Writes kernel values and bits of config space, and reads them back."""

from __future__ import annotations

import errno
import math
import os

from fairlead.errors import HostError
from fairlead.host.root import Root
from fairlead.model.change import KernelValue, PciBits


class RefusedError(HostError):
    """The device did not accept the value, and its old value is unchanged."""


def current_choice(text: str) -> str:
    """Return the value of a kernel file: the word in brackets if it is like ``always [madvise] never``, else the text."""
    words = text.split()
    chosen = [w[1:-1] for w in words if w.startswith("[") and w.endswith("]")]
    return chosen[0] if len(chosen) == 1 and len(words) > 1 else " ".join(words)


def write_kernel_value(change: KernelValue, root: Root) -> None:
    """Write the value, and read it back. Raises OSError, or HostError if another value is read.

    The kernel reserves huge pages in parts if a signal comes meanwhile, and succeeds (mm/hugetlb.c, set_max_huge_pages: "Bail for
    signals"). So a number is written again as long as each write brings it nearer.
    """
    path, wanted = root.join(change.path), " ".join(change.value.split())
    got, missing = _written(change, path), math.inf
    while got != wanted and got.isdecimal() and wanted.isdecimal() and abs(int(wanted) - int(got)) < missing:
        missing = abs(int(wanted) - int(got))
        got = _written(change, path)
    if got != wanted:
        raise HostError(f"reads back {got!r} after {change.value!r} was written", hint="another program writes this value")


def _written(change: KernelValue, path: str) -> str:
    """Write the value, and return what is read then."""
    fd = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)  # never O_CREAT: an absent kernel file is an error
    try:
        os.write(fd, change.value.encode() + b"\n")
    except OSError as e:
        if e.errno == errno.EIO and change.path.startswith("/proc/irq/"):  # kernel/irq/proc.c, write_irq_affinity
            raise HostError("its driver manages this interrupt: name the device in settings.irq_affinity.skip") from None
        raise
    finally:
        os.close(fd)
    with open(path, encoding="utf-8", errors="replace") as f:
        return current_choice(f.read(65536))


def write_bits(change: PciBits, root: Root) -> int:
    fd = os.open(root.join(f"/sys/bus/pci/devices/{change.address}/config"), os.O_RDWR | os.O_CLOEXEC)
    try:
        raw = os.pread(fd, 2, change.offset)
        if len(raw) != 2:
            raise HostError(f"config space ends before {change.offset:#x}", hint="reading beyond 64 bytes needs root")
        word = int.from_bytes(raw, "little")
        wanted = word & ~change.mask & 0xFFFF | change.value
        os.pwrite(fd, wanted.to_bytes(2, "little"), change.offset)
        got = int.from_bytes(os.pread(fd, 2, change.offset), "little")
    finally:
        os.close(fd)
    if got & change.mask != change.value & change.mask:
        kind = RefusedError if got == word else HostError
        raise kind(f"reads back {got:#06x} after {wanted:#06x} was written: the device keeps these bits")
    return got
