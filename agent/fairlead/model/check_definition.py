"""Defines what a check is: one module in ``checks/`` with a ``check = Check(...)``. The file's name is the check's name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any

from msgspec import Meta, Struct

from fairlead.model.facts import Missing, Node
from fairlead.model.finding import Finding, Mode, named
from fairlead.model.host_facts import Wanted
from fairlead.model.rma_evidence import with_rma_details

Sweeps = Annotated[int, Meta(ge=1, le=100)]


class CheckParams(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Holds the parameters that every check has. A check with parameters of its own has a subclass."""

    enabled: Annotated[bool, Meta(description="Run this check.")] = True
    mode: Annotated[Mode | None, Meta(description="`observe` or `enforce`. If unset, the check's own default.")] = None
    confirm: Annotated[
        Sweeps | None, Meta(description="A finding counts after this many bad sweeps of the last `confirm_of`.")
    ] = None
    confirm_after_job: Annotated[
        Sweeps | None, Meta(description="`confirm` for a finding that waits for the end of the job. If unset, `confirm`.")
    ] = None
    confirm_warn: Annotated[Sweeps | None, Meta(description="`confirm` for a warning. If unset, 1.")] = None
    confirm_of: Annotated[Sweeps | None, Meta(description="Number of sweeps that `confirm` looks back.")] = None
    recover: Annotated[Sweeps | None, Meta(description="A finding counts until this many sweeps in a row are clean.")] = None
    boot_grace_seconds: Annotated[
        Annotated[int, Meta(ge=0, le=3600)] | None,
        Meta(description="Seconds after a boot in which findings of this check do not drain."),
    ] = None


class KernelRecord(Struct, frozen=True, kw_only=True):
    """Holds one record of the kernel log, of the facility kernel only. ``seconds`` is CLOCK_MONOTONIC since boot. No user has
    chosen the beginning of the text (``model.kernel_text``). The rest of the text may contain names that users choose.

    jobs, uids: the jobs that were on the record's GPU at that time, and their users. Both are empty if the jobs are not known,
    and also if there were none. attributed: True if the jobs are known.
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

    device: str  # the GPU's serial if known, else its PCI address; for a NIC its name
    name: str
    seconds: float
    value: float


class Daily(Struct, frozen=True, kw_only=True):
    """Holds the value that a lifetime counter of a GPU card had some days ago. ``days_ago``: 0 for today."""

    device: str
    name: str
    days_ago: int
    value: float


class Past(Struct, frozen=True, kw_only=True):
    """Holds the history of a node as a frozen value. The history is empty if the node is judged by one reading only. If one
    reading is not enough for a finding, the check sets the finding's ``needs_history``.

    ``records``: kernel records of this boot that are not acknowledged. ``samples``: the oldest first. ``readable``:
    ``device/field`` names of facts that could be read earlier with the driver that is loaded. ``gpu_cards``: the GPU card
    (serial, else UUID) that was first seen at each PCI address, or first seen there after a repair. ``daily``: ordered by
    counter, the oldest value first. ``devices``: block devices and memory controllers that existed at any time in this boot,
    by their names in /sys. ``log``: why the kernel log cannot be read now, or None if it can be read.
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

    summary: one line for the docs table. params: the class of the check's parameters. judge: a pure function that yields
    findings. Callers use ``findings`` instead. mode: the default mode. confirm, confirm_of: a finding counts after ``confirm``
    bad sweeps of the last ``confirm_of`` sweeps (1 of 1: at once). recover: how many clean sweeps end a finding.
    boot_grace_seconds: for how long after a boot the check's findings do not drain.

    wakes_on: prefixes of kernel records. A record with such a prefix starts the check at once with the last known Node. kind:
    returns for such a record what happened in one word and to which device ("failed nvme0n1"). It returns "" for a record that
    does not matter, which is then not remembered. Without ``kind``, every record with such a prefix matters. Only the first and
    the last few records of each kind are remembered. So a kind must not contain what a user can change: no name of a process,
    no running number.

    samples: returns the counters of a Node to remember, as (device, name, value). daily: returns the lifetime counters of GPU
    cards in the same form. They are remembered for each day, also of earlier boots. reads: the files whose text the check needs
    in ``Node.texts``. judges: returns whether the check judges anything with these parameters. Without it, the check always
    does. If it returns False, nothing is read for the check.

    slow: True if the check's facts are read on thorough sweeps only (``Node.thorough``). Between thorough sweeps the check is
    not judged and its last findings stay. Confirmation and recovery then count thorough sweeps. wants: returns what the host
    has to be asked for because of the parameters. reads_records: returns the prefixes of kernel records that the parameters
    declare in addition to ``wakes_on``.

    another_gpu: parameters and the values that replace the declared ones while every GPU of the node is of another kind than
    declared. With these values the check does not compare the node with hardware that is declared for another kind of node.
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
    another_gpu: Mapping[str, Any] = {}

    @property
    def name(self) -> str:
        """Return the check's name, which is the name of the module that defines ``judge``."""
        return self.judge.__module__.rpartition(".")[2]

    def findings(self, node: Node, past: Past, params: Any) -> Iterator[Finding]:
        """Return the check's findings with the check's name. For the action contact_support, add the details for an RMA."""
        return (with_rma_details(f, node) for f in named(self.name, self.judge(node, past, params)))

    def heeds(self, text: str) -> bool:
        """Return whether a record with a prefix of ``wakes_on`` matters to the check."""
        return self.kind is None or self.kind(text) != ""
