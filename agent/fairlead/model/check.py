"""What a check is: one module in ``checks/`` with a ``check = Check(...)``; its file name is its name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any

from msgspec import Meta, Struct

from fairlead.model.facts import Missing, Node
from fairlead.model.finding import Finding, Mode, named
from fairlead.model.host_facts import Wanted
from fairlead.model.rma import with_rma_details

Sweeps = Annotated[int, Meta(ge=1, le=100)]


class CheckParams(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Parameters that every check has. A check adds its own by subclassing."""

    enabled: Annotated[bool, Meta(description="Run this check.")] = True
    mode: Annotated[Mode | None, Meta(description="observe or enforce; unset: the check's own default.")] = None
    confirm: Annotated[Sweeps | None, Meta(description="Bad sweeps of the last `confirm_of` that count.")] = None
    confirm_after_job: Annotated[
        Sweeps | None, Meta(description="The same for a finding that waits for the job's end; unset: as `confirm`.")
    ] = None
    confirm_warn: Annotated[Sweeps | None, Meta(description="The same for a warning; unset: 1.")] = None
    confirm_of: Annotated[Sweeps | None, Meta(description="Window of sweeps for `confirm`.")] = None
    recover: Annotated[Sweeps | None, Meta(description="Clean sweeps before it no longer counts.")] = None
    boot_grace_seconds: Annotated[
        Annotated[int, Meta(ge=0, le=3600)] | None, Meta(description="After a boot it drains nothing for this long.")
    ] = None


class KernelRecord(Struct, frozen=True, kw_only=True):
    """One record of the kernel log, facility kernel only. ``seconds`` is CLOCK_MONOTONIC since boot. Its beginning is the
    kernel's own (``model.kernel_text``); what follows may hold names that users choose.

    jobs, uids: the jobs that were on the record's GPU at that moment, and their users; empty where that is not known, and where
    there were none, which is known when it is ``attributed``.
    """

    sequence: int
    seconds: float
    priority: int
    text: str
    boot_id: str = ""
    jobs: tuple[int, ...] = ()
    uids: tuple[int, ...] = ()
    attributed: bool = False


class Sample(Struct, frozen=True, kw_only=True):
    """One value of one counter of one device at one moment (CLOCK_BOOTTIME seconds of ``boot_id``)."""

    device: str  # GPU serial where known, else PCI address; or NIC name
    name: str
    seconds: float
    value: float


class Daily(Struct, frozen=True, kw_only=True):
    """A counter of a board's life as it was some days ago (today: 0), over all boots."""

    device: str
    name: str
    days_ago: int
    value: float


class Past(Struct, frozen=True, kw_only=True):
    """History as a value. Empty for a one-shot look: then a check says ``needs_history`` where it matters.

    ``records``: kernel records of this boot that are not acknowledged. ``samples``: oldest first.
    ``readable``: ``device/field`` names that could be read earlier with the driver that is loaded. ``gpu_cards``: the board
    (serial, else UUID) by PCI address, as first seen or first seen after a repair. ``daily``: by counter, oldest first.
    ``devices``: block devices and memory controllers that were there at any time in this boot, by their names in /sys.
    ``log``: why the kernel log cannot be read now, None when it can.
    """

    available: bool = False
    records: tuple[KernelRecord, ...] = ()
    samples: tuple[Sample, ...] = ()
    readable: frozenset[str] = frozenset()
    gpu_cards: Mapping[str, str] = {}
    devices: frozenset[str] = frozenset()
    daily: tuple[Daily, ...] = ()
    overrun: int = 0  # kernel records of this boot lost to ring buffer overruns,
    overrun_seconds: float = 0.0  # the last of them noticed at (CLOCK_BOOTTIME)
    log: Missing | None = None


class Check(Struct, frozen=True, kw_only=True):
    """What a check declares.

    summary: one line for the docs table. params: its CheckParams class. judge: pure, yields findings; callers use ``findings``.
    mode: its default. confirm/confirm_of: bad sweeps needed out of the last so many (1 of 1: at once).
    recover: clean sweeps needed before it no longer counts. boot_grace_seconds: not judged earlier than that.
    wakes_on: prefixes of kernel record text that run this check at once on the last known Node. kind: of a record that begins
    so, what happened in one word and to what ("failed nvme0n1"); "" for a record that does not matter, which is not even
    remembered (unset: all matter). Of each kind the first and the last few are remembered, so it must hold nothing that a user
    chooses: no name of a process, no number that runs.
    samples: extracts the counters to remember from a Node, as (device, name, value).
    daily: the same for counters of a board's life, which are remembered by the day and over boots.
    reads: files whose text the check needs in ``Node.texts``.
    judges: whether it judges anything at all with these parameters (default: always); if not, nothing is read for it.
    slow: its facts are read on thorough looks only (``Node.thorough``): between them it is not judged, its last findings
    stand, and confirmation and recovery count thorough looks. wants: what its parameters want to be asked of the host.
    reads_records: the kernel log records that its parameters declare, as prefixes (with ``wakes_on``).
    """

    summary: str
    params: type[CheckParams]
    judge: Callable[[Node, Past, Any], Iterable[Finding]]
    mode: Mode = Mode.OBSERVE
    confirm: int = 1
    confirm_of: int = 1
    recover: int = 3
    boot_grace_seconds: int = 0
    wakes_on: tuple[str, ...] = ()
    kind: Callable[[str], str] | None = None
    samples: Callable[[Node], Iterable[tuple[str, str, float]]] | None = None
    daily: Callable[[Node], Iterable[tuple[str, str, float]]] | None = None
    reads: tuple[str, ...] = ()
    slow: bool = False
    judges: Callable[[Any], bool] | None = None
    wants: Callable[[Any], Wanted] | None = None
    reads_records: Callable[[Any], tuple[str, ...]] | None = None

    @property
    def name(self) -> str:
        """The name of its file, which is that of the module with its ``judge``."""
        return self.judge.__module__.rpartition(".")[2]

    def findings(self, node: Node, past: Past, params: Any) -> Iterator[Finding]:
        """What it finds, under its name, with what an RMA needs where one is due."""
        return (with_rma_details(f, node) for f in named(self.name, self.judge(node, past, params)))

    def heeds(self, text: str) -> bool:
        """Whether a record that begins as this check asks for matters to it."""
        return self.kind is None or self.kind(text) != ""
