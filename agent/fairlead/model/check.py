"""Defines what a check is: one module in ``checks/`` with a ``check = Check(...)``. Its file name is its name."""

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
    """Holds the parameters that every check has. A check adds its own by subclassing."""

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
    """Holds one record of the kernel log, of the facility kernel only. ``seconds`` is CLOCK_MONOTONIC since boot. The kernel
    itself has chosen how the text begins (``model.kernel_text``); the rest may hold names that users choose.

    jobs, uids: the jobs that were on the record's GPU at that time, and their users. They are empty where that is not known,
    and also where there were none. ``attributed`` says that it is known.
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
    """Holds one value of one counter of one device at one time (CLOCK_BOOTTIME seconds of ``boot_id``)."""

    device: str  # GPU serial where known, else PCI address; or NIC name
    name: str
    seconds: float
    value: float


class Daily(Struct, frozen=True, kw_only=True):
    """Holds a lifetime counter of a GPU card as it was some days ago (today: 0), over all boots."""

    device: str
    name: str
    days_ago: int
    value: float


class Past(Struct, frozen=True, kw_only=True):
    """Holds the history as a value. It is empty where a node is judged by one reading only; then a check says
    ``needs_history`` where that matters.

    ``records``: kernel records of this boot that are not acknowledged. ``samples``: the oldest first. ``readable``:
    ``device/field`` names that could be read earlier with the driver that is loaded. ``gpu_cards``: the GPU card (serial, else
    UUID) by PCI address, as first seen, or as first seen after a repair. ``daily``: by counter, the oldest first. ``devices``:
    block devices and memory controllers that were there at any time in this boot, by their names in /sys. ``log``: why the
    kernel log cannot be read now; None when it can.
    """

    available: bool = False
    records: tuple[KernelRecord, ...] = ()
    samples: tuple[Sample, ...] = ()
    readable: frozenset[str] = frozenset()
    gpu_cards: Mapping[str, str] = {}
    devices: frozenset[str] = frozenset()
    daily: tuple[Daily, ...] = ()
    overrun: int = 0  # kernel records of this boot that the ring buffer has overwritten
    overrun_seconds: float = 0.0  # when the last loss was noticed (CLOCK_BOOTTIME)
    log: Missing | None = None


class Check(Struct, frozen=True, kw_only=True):
    """Declares a check.

    summary: one line for the docs table. params: its CheckParams class. judge: a pure function that yields findings; callers
    use ``findings``. mode: its default. confirm, confirm_of: how many of the last so many sweeps must be bad (1 of 1: at
    once). recover: how many clean sweeps end a finding. boot_grace_seconds: for how long after a boot nothing is judged.

    wakes_on: prefixes of kernel records; such a record runs the check at once on the last known Node. kind: for a record that
    begins so, what happened in one word and to which device ("failed nvme0n1"); "" for a record that does not matter, which is
    not remembered either. Where it is not set, every such record matters. The first and the last few records of each kind are
    remembered, so a kind must hold nothing that a user chooses: no name of a process, no running number.

    samples: returns the counters of a Node to remember, as (device, name, value). daily: the same for lifetime counters of a
    GPU card, which are remembered by the day and over boots. reads: the files whose text the check needs in ``Node.texts``.
    judges: whether the check judges anything with these parameters (default: always); if not, nothing is read for it.

    slow: its facts are read on thorough sweeps only (``Node.thorough``). Between them the check is not judged and its last
    findings stay; confirmation and recovery count thorough sweeps. wants: what the host has to be asked because of its
    parameters. reads_records: the prefixes of kernel records that its parameters declare (with ``wakes_on``).
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
        """Return the name of its file, which is that of the module with its ``judge``."""
        return self.judge.__module__.rpartition(".")[2]

    def findings(self, node: Node, past: Past, params: Any) -> Iterator[Finding]:
        """Return what the check finds, under its name, and with what a vendor asks for where the action is an RMA."""
        return (with_rma_details(f, node) for f in named(self.name, self.judge(node, past, params)))

    def heeds(self, text: str) -> bool:
        """Say whether a record that begins with one of its prefixes matters to the check."""
        return self.kind is None or self.kind(text) != ""
