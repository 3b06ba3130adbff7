"""Takes every right from a process that reads what nodes have sent: it can only read, write and end.

The kernel then refuses each other system call with EPERM (seccomp(2), SECCOMP_MODE_FILTER). So the process cannot reach munge,
slurmctld, slurmdbd, a file or another process, whatever a hostile record makes of it. A process of root first becomes ``nobody``.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import struct

from fairlead.errors import HostError

NOBODY = 65534
_MEMORY_MAX_BYTES = 1 << 30
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _MODE_FILTER = 38, 22, 2
_ALLOW, _EPERM, _KILL = 0x7FFF0000, 0x00050001, 0x80000000
#: The system calls that are allowed, by machine: AUDIT_ARCH (linux/audit.h), and their numbers (asm/unistd_64.h and
#: asm-generic/unistd.h): read, write, close, fstat, lseek, poll, mmap, mprotect, munmap, mremap, madvise, brk, rt_sigaction,
#: rt_sigprocmask, rt_sigreturn, sigaltstack, futex, getpid, gettid, clock_gettime, getrandom, exit, exit_group
_CALLS = {
    "x86_64": (
        0xC000003E,
        (0, 1, 3, 5, 8, 7, 9, 10, 11, 25, 28, 12, 13, 14, 15, 131, 202, 39, 186, 228, 318, 60, 231),
    ),
    "aarch64": (
        0xC00000B7,
        (63, 64, 57, 80, 62, 73, 222, 226, 215, 216, 233, 214, 134, 135, 139, 132, 98, 172, 178, 113, 278, 93, 94),
    ),
}


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def seal() -> None:
    """Take all rights from this process, for good. Raises HostError if the kernel does not do that."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_MAX_BYTES, _MEMORY_MAX_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    machine = platform.machine()
    if machine not in _CALLS:
        raise HostError(f"the reader of records cannot be sealed on {machine}", hint="run it on a machine with x86_64 or aarch64")
    program = _filter(*_CALLS[machine])
    libc = ctypes.CDLL(None, use_errno=True)
    prog = _Program(len(program) // 8, program)
    for call in ((_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(prog), 0, 0)):
        if libc.prctl(*call):
            why = os.strerror(ctypes.get_errno())
            raise HostError(
                f"the reader of records cannot be sealed: prctl: {why}", hint="a kernel with CONFIG_SECCOMP_FILTER is needed"
            )


def _filter(arch: int, calls: tuple[int, ...]) -> bytes:
    """Return a BPF program over struct seccomp_data: kill on another architecture, allow these calls, refuse all others."""
    load, equal, give = 0x20, 0x15, 0x06  # BPF_LD|BPF_W|BPF_ABS, BPF_JMP|BPF_JEQ|BPF_K, BPF_RET|BPF_K
    code = [(load, 0, 0, 4), (equal, 1, 0, arch), (give, 0, 0, _KILL), (load, 0, 0, 0)]
    code += [(equal, len(calls) - at, 0, number) for at, number in enumerate(calls)]
    code += [(give, 0, 0, _EPERM), (give, 0, 0, _ALLOW)]
    return b"".join(struct.pack("HBBI", *each) for each in code)
