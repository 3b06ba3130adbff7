"""Defines profiles: what a kind of node should be, and what NCCL needs on a kind of network. Every value has a reason and a
source."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct


class Value(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Holds one declared value: the dotted ``key`` of the node document, the value, why it is declared, and the source."""

    key: str
    value: Any
    why: str
    source: str


class Reference(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Holds the value that a healthy node of this kind reaches in one figure. ``measure``: tool and figure, such as
    ``all_reduce.busbw``. ``bytes``: the message size that the value applies to, or 0 for every size."""

    measure: Annotated[str, Meta(pattern=r"^[a-z_]+\.[a-z0-9_]+$")]
    value: Annotated[float, Meta(gt=0)]
    unit: str
    why: str
    source: str
    bytes: Annotated[int, Meta(ge=0)] = 0


class Peak(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Holds a theoretical peak. The peak is shown beside a figure, and no node is judged by it. ``algorithm``: the algorithm or
    the link that the peak belongs to."""

    measure: Annotated[str, Meta(pattern=r"^[a-z_]+\.[a-z0-9_]+$")]
    value: Annotated[float, Meta(gt=0)]
    unit: str
    algorithm: str
    source: str


class Undeclared(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Names a key of the node document that the profile does not declare, and the reason: the value is not public, or it depends
    on the server or the site."""

    key: str
    why: str


class Match(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Says how `fairlead init` recognises this kind of node.

    ``gpus``: the PCI IDs of its GPU. ``gpu_count``: how many GPUs its board carries, or 0 if that depends on the server.
    ``nvswitches``: how many NVSwitches the kernel of the node sees. ``source``: who publishes the PCI IDs.
    """

    gpus: tuple[Annotated[str, Meta(pattern=r"^[0-9a-f]{4}:[0-9a-f]{4}$")], ...]
    source: str
    gpu_count: Annotated[int, Meta(ge=0)] = 0
    nvswitches: Annotated[int, Meta(ge=0)] = 0


class Profile(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Holds a profile file (TOML). ``match``: how `fairlead init` recognises such a node, or None if it cannot.
    ``undeclared``: the keys that an admin may expect here and that the profile leaves to the site.

    ``unsupported``: names of facts and of parts that this hardware does not have. A fact is a dotted name of a Gpu field, such
    as ``nvlinks`` or ``ecc.sram_threshold_exceeded``. Such a fact does not count as unreadable. A part is ``cpufreq``,
    ``cpuidle``, ``energy_performance`` or ``pcie_aspm``. A setting for such a part is not applicable.
    """

    name: str
    summary: str
    unsupported: tuple[str, ...] = ()
    unsupported_why: str = ""
    match: Match | None = None
    values: tuple[Value, ...] = ()
    undeclared: tuple[Undeclared, ...] = ()
    references: tuple[Reference, ...] = ()
    peaks: tuple[Peak, ...] = ()


Day = Annotated[str, Meta(pattern=r"^20[0-9]{2}-[01][0-9]-[0-3][0-9]$")]


class FabricValue(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Holds the value of a key of the node document. ``reviewed``: the day on which somebody last read the source."""

    key: str
    value: Any
    why: str
    source: str
    reviewed: Day


class FabricVariable(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Describes a variable that differs from NCCL's default.

    ``where``: node (set in /etc/nccl.conf), or job (set by the task prolog). ``when`` and ``unless`` apply to a job. ``when``:
    nodes (a job on more than one node), or nodes:N (a job on at least N nodes). ``unless``: another variable. If the user has
    set that variable, fairlead does not set this one. ``nccl``: the versions of NCCL that the variable is for (>=2.21,<2.30),
    or "any".
    """

    name: str
    value: str
    where: Literal["node", "job"]
    nccl: str
    why: str
    source: str
    reviewed: Day
    when: str = "nodes"
    unless: str = ""


class LeftOut(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Names a variable that others set on this fabric and that fairlead does not set."""

    name: str
    why: str
    source: str


class Fabric(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Holds a fabric profile file (TOML). ``owner``: the vendor's plugin that sets the variables, or "". With an owner, fairlead
    sets no variables."""

    name: str
    summary: str
    owner: str = ""
    values: tuple[FabricValue, ...] = ()
    variables: tuple[FabricVariable, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
