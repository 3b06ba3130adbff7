"""Defines profiles: what a kind of node should be, and what NCCL needs on a kind of network. Every value says why it is so,
and its source."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct


class Value(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Holds one declared value: the dotted ``key`` of the node document, why it is so, and the source."""

    key: str
    value: Any
    why: str
    source: str


class Reference(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Says what a healthy node of this kind delivers. ``measure``: tool and figure, such as ``all_reduce.busbw``. ``bytes``:
    the message size that it applies to, 0 for any."""

    measure: Annotated[str, Meta(pattern=r"^[a-z_]+\.[a-z0-9_]+$")]
    value: Annotated[float, Meta(gt=0)]
    unit: str
    why: str
    source: str
    bytes: Annotated[int, Meta(ge=0)] = 0


class Peak(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Holds a theoretical peak, which is shown beside a figure and by which nothing is judged. ``algorithm``: what it is the
    peak of."""

    measure: Annotated[str, Meta(pattern=r"^[a-z_]+\.[a-z0-9_]+$")]
    value: Annotated[float, Meta(gt=0)]
    unit: str
    algorithm: str
    source: str


class Profile(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Holds a profile file (TOML).

    ``unsupported``: facts that this hardware cannot give, which are skipped and not found unreadable (dotted names of Gpu
    fields, such as ``nvlinks`` or ``ecc.sram_threshold_exceeded``); and hardware that settings may not find (``cpufreq``,
    ``cpuidle``, ``energy_performance``, ``pcie_aspm``), so that such a setting is not applicable.
    """

    name: str
    summary: str
    unsupported: tuple[str, ...] = ()
    unsupported_why: str = ""
    values: tuple[Value, ...] = ()
    references: tuple[Reference, ...] = ()
    peaks: tuple[Peak, ...] = ()


Day = Annotated[str, Meta(pattern=r"^20[0-9]{2}-[01][0-9]-[0-3][0-9]$")]


class FabricValue(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Holds a key of the node document. ``reviewed``: the day on which somebody last read the source."""

    key: str
    value: Any
    why: str
    source: str
    reviewed: Day


class FabricVariable(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Describes a variable that differs from NCCL's default.

    ``where``: node (/etc/nccl.conf), or job (the task prolog). For a job, ``when``: nodes (more than one), nodes:N (at least
    N); ``unless``: not when the user has set that other variable. ``nccl``: the versions that it is for (>=2.21,<2.30), or
    "any".
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
    """Names what others set on this fabric and fairlead does not set."""

    name: str
    why: str
    source: str


class Fabric(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Holds a fabric profile file (TOML). ``owner``: the vendor's plugin that sets the variables; fairlead then sets none."""

    name: str
    summary: str
    owner: str = ""
    values: tuple[FabricValue, ...] = ()
    variables: tuple[FabricVariable, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
