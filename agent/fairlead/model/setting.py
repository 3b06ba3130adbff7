"""Defines what a setting is: one module in ``settings/`` with a ``setting = Setting(...)``. Its file name is its name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Annotated, Any

from msgspec import Meta, Struct

from fairlead.errors import ConfigError
from fairlead.model import tuned_profile
from fairlead.model.change import AnyChange, Disruption, Layer
from fairlead.model.facts import Missing, Node
from fairlead.model.finding import Action, Finding, Level, Mode, Service, named


class Want(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Holds what every setting's declaration has. When it is absent from the document, or ``managed`` is false, fairlead
    changes nothing."""

    managed: Annotated[bool, Meta(description="fairlead observes and changes this setting.")] = True
    mode: Annotated[Mode, Meta(description="enforce: drift of this setting may drain. observe: it is reported.")] = Mode.OBSERVE


class HardwareAbsent(ConfigError):
    """Is raised when the node has no hardware for this setting. ``fact``: what the profile names in ``unsupported`` to allow
    that. ``missing``: what is not there, as part of a sentence."""

    def __init__(self, setting: str, fact: str, missing: str, *, hint: str) -> None:
        allow = f"or name {fact!r} in `unsupported` of the hardware profile if nodes of this kind never have it"
        super().__init__("node.json", f"settings.{setting}", missing, hint=f"{hint}, {allow}")
        self.fact = fact
        self.missing = missing


class Setting(Struct, frozen=True, kw_only=True):
    """Declares a setting.

    summary: one line for the docs table. group: the name by which `--tags` chooses it together with others of its kind, such
    as pcie. want: its Want class. reads: the files (globs allowed) whose text it needs. reads_for: the files that it needs
    besides ``reads``, by what is wanted. nvml: observe needs what NVML says.

    observe: returns what the node is now, or Missing. plan: returns the changes from observed to wanted; () means that the
    node is as wanted. plan may raise ConfigError for a wanted value that this node cannot take; drift and apply then say so
    and change nothing. It raises HardwareAbsent where the node has no hardware for the setting: that is a warning, or not
    applicable where the profile allows it, and all other settings are made.

    disruption: the worst that a change may do. volatile: a reboot loses the value, so the boot unit applies it again.
    lost_by_reset: the reset of one PCIe device loses it too, so the agent has it applied again as soon as it sees that
    (``agent.reapply``). live: its plan needs the running node, its hardware or its units, so an image leaves it to the node's
    boot. as_wanted: what the kernel of a node says where ``want`` holds, path -> text. An image has no kernel, so only what is
    persisted is left to plan.

    instead_of: what a setting declares is never also a check: these parameters of checks apply while it is declared.
    tuned_too: a profile of tuned may write the same values, so where tuned runs, drift and apply say so.
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

    def wanted_reads(self, want: Want) -> tuple[str, ...]:
        """Return all files whose text the setting needs for ``want``."""
        return self.reads + (self.reads_for(want) if self.reads_for else ()) + (tuned_profile.READS if self.tuned_too else ())


def drift(name: str, setting: Setting, want: Want, node: Node, unsupported: Collection[str] = ()) -> Iterable[Finding]:
    """Return the drift of one setting as findings of the check ``setting.NAME``, by the same observe and plan that apply uses.

    unsupported: what nodes of this kind do not have by their profile. Hardware that is absent never drains.
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
    except ConfigError as refused:  # the node cannot take the wanted value: drift says so, and apply never tries it
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
