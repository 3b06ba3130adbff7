"""Defines the errors and the exit codes of every fairlead command. The number after each error is its exit code.

FairleadError            the message is one line; ``hint`` says what to do next
+- UsageError            the command line is wrong (64)
+- DataError             a file of fairlead or a machine tree is malformed (65)
+- InputMissing          a named file, tree or node does not exist (66)
+- HostError             this machine could not be read or changed (69)
|  +- NodeBusy           a job runs here: try again when it has ended (75)
|  +- AgentRuns          an agent runs on this node already (75)
+- SlurmError            slurmctld refused a request (69)
|  +- SlurmUnavailable   slurmctld did not answer: try again (75)
+- ProvisionError        an Ansible play failed (69)
+- NeedsRoot             the command must run as root (77)
+- WrongProfile          the hardware profile is for another GPU than the node has (78)
+- ConfigError           a configuration value is wrong: file, key, reason (78)
"""

from __future__ import annotations

import errno
from enum import IntEnum


class ExitCode(IntEnum):
    """Lists the exit codes of all commands but hooks.

    0 to 3 are the results of ``fairlead check``, in the order of Nagios plugins
    (https://nagios-plugins.org/doc/guidelines.html, "Plugin Return Codes"). 64 to 78 are the codes of BSD sysexits.h. 130 and 141
    are the codes that a shell reports for a program that SIGINT or SIGPIPE has ended.
    """

    OK = 0
    WARN = 1
    DRAIN = 2
    UNKNOWN = 3
    USAGE = 64
    BAD_DATA = 65
    NO_INPUT = 66
    NO_HOST = 68
    UNAVAILABLE = 69
    BUG = 70
    TRY_AGAIN = 75
    NEEDS_ROOT = 77
    CONFIG = 78
    INTERRUPTED = 130
    READER_GONE = 141


def next_step(error: OSError) -> str:
    """Return what to do about a file that cannot be written, by the errno(3). Return "" if the message says everything."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "make room there"
    if error.errno == errno.EROFS:
        return "that is mounted read-only: see in the kernel log whether its disk failed, then mount it read-write"
    return ""


class FairleadError(Exception):
    """Is raised for a problem that an operator can act on. ``str()`` is one line: the message and those of its causes."""

    exit_code = ExitCode.BUG

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        parts = [self.message]
        cause = self.__cause__
        while cause is not None:
            text = str(cause)
            if text and text not in parts[-1]:
                parts.append(text)
            cause = None if isinstance(cause, FairleadError) else cause.__cause__
        return ": ".join(" ".join(p.split()) for p in parts)


class UsageError(FairleadError):
    exit_code = ExitCode.USAGE


class DataError(FairleadError):
    exit_code = ExitCode.BAD_DATA


class InputMissing(FairleadError):
    exit_code = ExitCode.NO_INPUT


class HostError(FairleadError):
    exit_code = ExitCode.UNAVAILABLE


class NodeBusy(HostError):
    exit_code = ExitCode.TRY_AGAIN


class AgentRuns(HostError):
    exit_code = ExitCode.TRY_AGAIN


class SlurmError(FairleadError):
    exit_code = ExitCode.UNAVAILABLE


class SlurmUnavailable(SlurmError):
    exit_code = ExitCode.TRY_AGAIN


class NoSlurmConf(SlurmUnavailable):
    """Slurm's commands found no slurm.conf and did not reach slurmctld. slurmd fetches the file when it starts."""


class NoSuchJob(SlurmError):
    """slurmctld does not have the job: it has forgotten it (MinJobAge), or there never was one."""


class ProvisionError(FairleadError):
    exit_code = ExitCode.UNAVAILABLE


class NeedsRoot(FairleadError):
    exit_code = ExitCode.NEEDS_ROOT


class WrongProfile(FairleadError):
    """Is raised if the hardware profile of a document is for another GPU than the node has."""

    exit_code = ExitCode.CONFIG


class ConfigError(FairleadError):
    """Is raised for a configuration value that is wrong. ``file`` and ``key`` (a dotted path) say where the value is."""

    exit_code = ExitCode.CONFIG

    def __init__(self, file: str, key: str, reason: str, *, hint: str = "") -> None:
        where = f"{file}: {key}" if key else file
        super().__init__(f"{where}: {reason}", hint=hint)
        self.file = file
        self.key = key
        self.reason = reason
