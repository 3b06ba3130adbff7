"""What one row of the scorecard is, as data: the steps that break the node, and the twin's, that look alike and are normal.

A step is one thing that happens to the node. Addresses of GPUs are written ``{gpu3}``, their upstream ports ``{port3}``,
InfiniBand devices are mlx5_N; values are put in when a step is taken (``node.ScoreNode``). Nothing here does anything.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Kernel:
    """A record of the kernel log; facility 0 is the kernel's own (Documentation/ABI/testing/dev-kmsg)."""

    text: str
    facility: int = 0
    level: int = 3
    times: int = 1
    seconds_ago: float = 0.0

    @property
    def signal(self) -> str:
        found = re.match(r"NVRM: Xid \([^)]*\): |nvidia-nvswitch\d+: SXid|\S+ \S+", self.text)
        return "kernel " + re.sub(r"\{\w+\}|\d+", "N", found[0] if found else self.text)


@dataclass(frozen=True)
class Nvml:
    """A value of nvml.json (``ecc.volatile_corrected``) from now on; a dict ``{"error": CODE}`` for no answer."""

    gpu: int
    key: str
    value: int | str | Mapping[str, int]

    @property
    def signal(self) -> str:
        return "nvml " + re.sub(r"\.\d+(?=\.|$)", "", self.key)


@dataclass(frozen=True)
class Call:
    """A fault of the library (tests/lab/faults.py): error, delay, hang, crash of a call, or lost, handle_lost of a GPU."""

    verb: str
    arguments: tuple[Any, ...]
    about: str = ""

    @property
    def signal(self) -> str:
        return f"call {self.about or next((a for a in self.arguments if isinstance(a, str)), self.verb)}"


@dataclass(frozen=True)
class File:
    """A file below /sys, /proc or anywhere in the node's root; None removes it (a link to a device too)."""

    path: str
    text: str | bytes | None

    @property
    def signal(self) -> str:
        return "file " + "/".join(re.sub(r"\{\w+\}|\d+", "N", self.path).split("/")[:5])


@dataclass(frozen=True)
class Job:
    """A job's record, as the prolog writes it: running on these GPUs (Slurm's indices)."""

    id: int
    uid: int = 1000
    gpus: str = "0-7"

    signal = "job"


@dataclass(frozen=True)
class Ended:
    """The epilog of a job."""

    id: int

    signal = "job"


@dataclass(frozen=True)
class Elapse:
    """So much time passes: the agent is ended in peace and started again in a clock that is so far on (same boot)."""

    seconds: int

    signal = "time"


@dataclass(frozen=True)
class Anew:
    """The agent is started with an empty history: what stands now has stood since before anybody looked."""

    signal = "time"


@dataclass(frozen=True)
class Fast:
    """From here on the node's clocks run so much faster: for what is judged over minutes. The agent is started anew."""

    speed: float = 40.0

    signal = "time"


@dataclass(frozen=True)
class Clock:
    """What adjtimex(2) says from now on (code 5: TIME_ERROR; microseconds), and by how many seconds the clock was set on."""

    code: int = 0
    maximum: int = 2000
    estimated: int = 15
    step: float = 0.0

    signal = "clock"


@dataclass(frozen=True)
class Document:
    """What the node's document says otherwise, such as {"checks": {"gpu_count": {"expected": 7}}}, then a reload."""

    changes: Mapping[str, Any]

    signal = "document"


@dataclass(frozen=True)
class Sweeps:
    """So many sweeps, or thorough looks, go by before the next step."""

    count: int = 2
    thorough: bool = False

    signal = "sweeps"


@dataclass(frozen=True)
class Run:
    """A command in the node, as root; ``undo`` takes it back."""

    command: str
    undo: str = ""
    about: str = ""

    @property
    def signal(self) -> str:
        return f"run {self.about or self.command.split()[0]}"


Step = Kernel | Nvml | Call | File | Job | Ended | Elapse | Anew | Fast | Clock | Document | Sweeps | Run
#: Steps that say nothing about the hardware by themselves.
_STAGE = ("job", "time", "document", "sweeps")


@dataclass(frozen=True)
class Fault:
    """One fault and its harmless twin.

    check: which check is to fire (``setting.NAME`` for drift). level: its finding's word, "drain", "warn" or "unknown".
    twin_words: why the twin is normal. source: who says so. twin_told: a finding of the twin that is meant (a job's own Xid
    is reported, and drains nothing), as part of its summary; it is not counted as noise.
    fresh: in an agent with an empty history. says: a part of the finding's summary.
    """

    name: str
    title: str
    check: str
    level: str
    steps: tuple[Step, ...]
    twin: tuple[Step, ...]
    twin_words: str
    source: str
    twin_said: str = ""
    fresh: bool = False
    says: str = ""

    def signals(self) -> frozenset[str]:
        """What the fault shows itself by."""
        return frozenset(s.signal for s in self.steps if s.signal not in _STAGE)

    def twin_signals(self) -> frozenset[str]:
        return frozenset(s.signal for s in self.twin if s.signal not in _STAGE)
