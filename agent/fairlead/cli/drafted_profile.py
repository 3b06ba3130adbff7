"""Decides what a drafted profile declares, and what a person has to confirm first.

Declared is what is proved or what a profile of fairlead justifies: the PCI IDs of the GPUs, the width and generation that both
ends of their links support, the values that all profiles of fairlead share, and every value of fairlead's profile for the same
hardware. What was only found on the node has to be confirmed, because a node that lacks a part today must not make the missing
part the expectation of its class.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from fairlead import checks, config
from fairlead.checks.gpu_count import NVIDIA, gpus_on_bus
from fairlead.cli import found_values, read_machine
from fairlead.cli.machine_tree import machine
from fairlead.config.site import profile_layer
from fairlead.errors import DataError
from fairlead.host.recorded_tree import refuse_broken
from fairlead.judge import judge
from fairlead.model.check_definition import Past
from fairlead.model.facts import Gpu, Missing, Node
from fairlead.model.finding import Finding, Level
from fairlead.model.plain_text import one_line
from fairlead.model.profile_files import Profile, Value

#: Checks whose expectations depend on the server or the site, also where the GPUs are those of a known profile.
OF_THE_SERVER = ("rdma_ports", "cpu_memory", "memory_errors", "gpu_direct_rdma", "imex")
#: Facts that some data centre GPUs do not have (PCIe cards without NVLink, GPUs without MIG). Other facts that NVML does not give
#: are a fault, such as ECC counters after a double bit error.
MAY_BE_ABSENT = ("nvlinks", "mig_current", "mig_pending")
_NVSWITCH_CLASS = 0x0680
_TEXT = 64


class DraftedProfile(Struct, frozen=True, kw_only=True):
    """Holds a drafted profile. node: the name of the node that it was made of. to_confirm: values that were found and that
    nothing justifies. known: fairlead's profile for the same hardware, or None. like: the name of that profile, or ""."""

    name: str
    node: str
    summary: str
    gpu_ids: tuple[str, ...]
    gpu_count: int
    nvswitches: int
    declared: tuple[Value, ...]
    to_confirm: tuple[Value, ...]
    unsupported: tuple[str, ...] = ()
    known: Profile | None = None

    @property
    def like(self) -> str:
        return self.known.name if self.known else ""


def draft_of(root: str, name: str) -> DraftedProfile:
    """Return the draft of the machine below ``root``. Raises InputMissing for a folder that is no machine tree, and DataError
    (one line: what and where) for a damaged tree and for a sick node."""
    where = "this machine" if root == "/" else root
    refuse_broken(machine(root))
    node, past = _read(root, config.profile_document("localhost"))
    gpus = _gpus(node, where)
    known = _known(node, [config.load_profile(p) for p in config.profile_names()])
    unsupported = known.unsupported if known else found_values.unsupported(gpus, MAY_BE_ABSENT)
    found = found_values.found(node, gpus)
    layer = profile_layer(known) if known else {"unsupported": unsupported, "checks": _to_judge_by(found)}
    node, past = _read(root, config.resolve_layers("localhost", [("draft", layer)])[0])
    differing = _refuse_sick(node, past, layer, known, where)
    declared = _of_known(known, differing) if known else (*_proved(node, where), *_shared())
    keys = {value.key for value in declared}
    return DraftedProfile(
        name=name or _slug(gpus),
        node=one_line(node.name, _TEXT),
        summary=f"{len(gpus)} x {one_line(gpus[0].name, _TEXT) if isinstance(gpus[0].name, str) else 'GPU'}",
        gpu_ids=tuple(sorted({f"{d.vendor:04x}:{d.device:04x}" for d in gpus_on_bus(node)})),
        gpu_count=len(gpus),
        nvswitches=_nvswitches(node),
        declared=declared,
        to_confirm=tuple(value for value in found if value.key not in keys),
        unsupported=unsupported,
        known=known,
    )


def _read(root: str, document: config.Document) -> tuple[Node, Past]:
    return read_machine.read_machine(argparse.Namespace(root=root), document)


def _nvswitches(node: Node) -> int:
    return sum(d.vendor == NVIDIA and d.class_code >> 8 == _NVSWITCH_CLASS for d in node.pci)


def _gpus(node: Node, where: str) -> tuple[Gpu, ...]:
    """Return the GPUs. Raises DataError if there is none."""
    if isinstance(node.gpus, Missing):
        raise _sick(where, f"NVML did not say which GPUs there are ({node.gpus.detail or 'no answer'})")
    if not node.gpus:
        raise _sick(where, "NVML lists no GPU")
    return node.gpus


def _sick(where: str, words: str) -> DataError:
    hint = "take a snapshot of a good node: fairlead snapshot DIR"
    return DataError(f"{where}: no profile is drafted from a sick node: {one_line(words, 200)}", hint=hint)


def _known(node: Node, profiles: Iterable[Profile]) -> Profile | None:
    """Return fairlead's profile for the same hardware, or None: the same GPU, and as many GPUs as the profile says. If the node
    also has the NVSwitches of the profile, fewer GPUs are a fault and no other hardware. (A virtual machine may see no NVSwitch.)
    """
    gpus, switches = gpus_on_bus(node), _nvswitches(node)
    ids, count = {f"{d.vendor:04x}:{d.device:04x}" for d in gpus}, len(gpus)
    found: dict[bool, Profile] = {}
    for profile in profiles:
        match = profile.match
        if match is None or not ids or not ids <= set(match.gpus):
            continue
        same_switches = match.nvswitches == switches
        if match.gpu_count in (0, count) or (switches and same_switches and count < match.gpu_count):
            found.setdefault(same_switches, profile)
    return found.get(True, found.get(False))


def _to_judge_by(found: Iterable[Value]) -> dict[str, dict[str, Any]]:
    """Return the parameters to judge an unknown node with. If all GPUs have as many active NVLinks, none of them has lost one."""
    links = next((value.value for value in found if value.key == "checks.nvlink.links"), None)
    return {} if links is None else {"nvlink": {"links": links}}


def _refuse_sick(node: Node, past: Past, layer: Mapping[str, Any], known: Profile | None, where: str) -> frozenset[str]:
    """Raise DataError for the first fault that the checks find. Return the names of the checks that find another server than the
    profile's: for them the node is judged again without the profile's expectations."""
    document = config.resolve_layers("localhost", [("draft", layer)])[0]
    plain = config.profile_document("localhost")
    differing = {f.check for f in _faults(document, node, past) if f.check in OF_THE_SERVER}
    expected = document.checks["gpu_count"].expected  # type: ignore[attr-defined]
    if expected not in (None, len(gpus_on_bus(node))) and not _nvswitches(node):
        differing.add("gpu_count")  # another server with the same cards
    if known and known.match and not known.match.gpu_count and not _has_nvlink(node):
        differing.add("nvlink")  # the same cards without NVLink bridges
    faults = [f for f in _faults(document, node, past) if f.check not in differing]
    faults += [f for f in _faults(plain, node, past) if f.check in differing]
    if faults:
        first = faults[0]
        more = f" (and {len(faults) - 1} more: `fairlead check`)" if len(faults) > 1 else ""
        raise _sick(where, f"{first.check}: {first.summary}{more}")
    return frozenset(differing)


def _has_nvlink(node: Node) -> bool:
    """Return whether any NVLink of any GPU is active, or cannot be read."""
    links = [g.nvlinks for g in node.gpus] if not isinstance(node.gpus, Missing) else []
    return any(isinstance(each, Missing) or any(link.active is not False for link in each) for each in links)


def _faults(document: config.Document, node: Node, past: Past) -> list[Finding]:
    found = judge(document, node, past, tuple(checks.load()))
    return sorted((f for f in found if f.level in (Level.DRAIN, Level.UNKNOWN) and not f.needs_history), key=lambda f: f.level)


def _of_known(known: Profile, differing: frozenset[str]) -> tuple[Value, ...]:
    """Return the values of fairlead's profile, without those in which this server differs."""
    return tuple(v for v in known.values if not v.key.startswith(tuple(f"checks.{check}." for check in differing)))


def _proved(node: Node, where: str) -> Iterable[Value]:
    """Yield the width and the generation of the GPUs' links, where all GPUs and the ports above them support the same."""
    for key, words, value in found_values.links(node):
        yield Value(
            key=key,
            value=value,
            why=f"Each GPU and the port above it support {words}, and the link has it.",
            source=f"NVML and sysfs (max_link_width, max_link_speed) of {one_line(where, _TEXT)}",
        )


def _shared() -> tuple[Value, ...]:
    """Return the values that all profiles of fairlead declare alike, with the reason and the source of one of them."""
    profiles = [config.load_profile(name) for name in config.profile_names()]
    first, *others = profiles
    alike = [v for v in first.values if all(any(o.key == v.key and o.value == v.value for o in p.values) for p in others)]
    return tuple(replace(v, source=f"every profile of fairlead; {v.source}") for v in alike)


def _slug(gpus: tuple[Gpu, ...]) -> str:
    """Return a name such as h100-80gb-hbm3-x8."""
    name = gpus[0].name if isinstance(gpus[0].name, str) else "gpu"
    words = re.findall(r"[a-z0-9]+", name.lower().replace("nvidia", ""))
    return f"{'-'.join(words)[:32].strip('-') or 'gpu'}-x{len(gpus)}"
