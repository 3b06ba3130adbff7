"""Defines what a setting is: one module in ``settings/`` with a ``setting = Setting(...)``. The file's name is the setting's
name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Annotated, Any

from msgspec import Meta, Struct

from fairlead.errors import ConfigError
from fairlead.model import tuned_profile
from fairlead.model.change import AnyChange, Disruption, Layer
from fairlead.model.facts import Missing, Node
from fairlead.model.finding import Action, Finding, Level, Mode, Service, named
from fairlead.model.node_jobs import NodeJobs


class Want(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Holds the fields that every setting's declaration has. If a setting has no declaration in the document, or ``managed`` is
    false, fairlead does not change the setting."""

    managed: Annotated[bool, Meta(description="fairlead observes and changes this setting.")] = True
    mode: Annotated[Mode, Meta(description="enforce: drift of this setting may drain. observe: it is reported.")] = Mode.OBSERVE


class HardwareAbsent(ConfigError):
    """Reports that the node has no hardware for this setting. ``fact``: the name that allows this in the profile's
    ``unsupported``. ``missing``: the absent hardware, as part of a sentence."""

    def __init__(self, setting: str, fact: str, missing: str, *, hint: str) -> None:
        allow = f"or name {fact!r} in `unsupported` of the hardware profile if nodes of this kind never have it"
        super().__init__("node.json", f"settings.{setting}", missing, hint=f"{hint}, {allow}")
        self.fact = fact
        self.missing = missing


class Setting(Struct, frozen=True, kw_only=True):
    """Declares a setting.

    summary: one line for the docs table. group: the name by which `--tags` chooses related settings together, such as pcie.
    want: the class of the setting's declaration. reads: the files (globs allowed) whose text the setting needs. reads_for:
    returns further files that the setting needs for a given ``want``. nvml: True if observe needs facts from NVML.

    observe: returns the node's present state, or Missing. plan: returns the changes from the observed to the wanted state, or
    () if the node is as wanted. plan may raise ConfigError for a wanted value that this node cannot have. drift and apply then
    report the error and change nothing. plan raises HardwareAbsent if the node has no hardware for the setting. drift and apply
    then report a warning, or skip the setting if the profile allows that. All other settings are still applied.

    plan_among_jobs: does the same as plan on a node that is drained while jobs still run. It is given these jobs. A change that
    disturbs none of them has the disruption DRAINING.

    disruption: the greatest disruption of any change. volatile: a reboot loses the value, so the boot unit applies the setting
    again. lost_by_reset: the reset of one PCIe device also loses the value. The agent then applies the setting again as soon as
    it sees the loss (``agent.reapply``). live: the plan needs the running node, its hardware or its units. So the setting is
    not applied to an image, but at the boot of the node. as_wanted: returns the texts of the kernel's files, by path, on a node
    that is as ``want`` declares. They are used for an image, which has no kernel, so that plan returns only persisted changes.

    instead_of: parameters of checks that apply while this setting is declared, so that no check judges what the setting
    declares. tuned_too: a profile of tuned may write the same values. If tuned runs, drift and apply report that.
    """

    summary: str
    want: type[Want]
    observe: Callable[[Node], Any]
    plan: Callable[[Any, Any], tuple[AnyChange, ...]]
    reads: tuple[str, ...] = ()
    disruption: Disruption = Disruption.NONE
    volatile: bool = False
    lost_by_reset: bool = False
    tuned_too: bool = False
    nvml: bool = False
    instead_of: Mapping[str, Mapping[str, Any]] = {}
    reads_for: Callable[[Any], tuple[str, ...]] | None = None
    group: str = ""
    live: bool = False
    as_wanted: Callable[[Any], Mapping[str, str]] | None = None
    plan_among_jobs: Callable[[Any, Any, NodeJobs], tuple[AnyChange, ...]] | None = None

    def wanted_reads(self, want: Want) -> tuple[str, ...]:
        """Return all files whose text the setting needs for ``want``."""
        return self.reads + (self.reads_for(want) if self.reads_for else ()) + (tuned_profile.READS if self.tuned_too else ())


def drift(name: str, setting: Setting, want: Want, node: Node, unsupported: Collection[str] = ()) -> Iterable[Finding]:
    """Return the drift of one setting as findings of the check ``setting.NAME``, by the same observe and plan that apply uses.

    unsupported: the names of parts that nodes of this kind do not have by their profile. Absent hardware never drains a node.
    """
    return named(f"setting.{name}", _drift(setting, want, node, unsupported))


def _drift(setting: Setting, want: Want, node: Node, unsupported: Collection[str]) -> Iterable[Finding]:
    observed = setting.observe(node)
    if isinstance(observed, Missing):
        yield Finding(level=Level.UNKNOWN, summary=f"cannot be read: {observed.detail}")
        return
    try:
        changes = setting.plan(want, observed)
    except HardwareAbsent as absent:
        if absent.fact not in unsupported:
            yield Finding(level=Level.WARN, summary=absent.missing, evidence=(absent.hint,))
        return
    except ConfigError as refused:  # the node cannot have the wanted value: drift reports this, and apply never tries it
        yield Finding(
            level=Level.DRAIN if want.mode is Mode.ENFORCE else Level.WARN,
            summary=str(refused),
            evidence=(refused.hint,) if refused.hint else (),
            action=Action.PROVISION,
            service=Service.DRAIN_AFTER_JOB,
        )
        return
    rival = tuned_profile.second_writer(node.texts) if setting.tuned_too else ""
    for change in changes:
        pending = change.layer is Layer.PENDING_REBOOT
        yield Finding(
            level=Level.DRAIN if want.mode is Mode.ENFORCE else Level.WARN,
            device=getattr(change, "address", getattr(change, "pci", getattr(change, "path", ""))),
            summary=f"{change.why}; {rival}" if rival else change.why,
            action=Action.REBOOT_NODE if pending else Action.PROVISION,
            service=Service.DRAIN_AFTER_JOB,
        )
