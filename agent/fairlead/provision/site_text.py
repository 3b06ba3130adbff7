"""Writes a proposed site.toml, with comments that say what was found and what a person has to confirm."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

from fairlead.model.nodelist import fold
from fairlead.model.plain_text import one_line
from fairlead.model.profile_files import Profile
from fairlead.provision.node_hardware import NodeHardware
from fairlead.provision.site_proposal import ETHERNET, INFINIBAND, Proposal, ProposedClass

_HEAD = """\
# `fairlead init` proposed this site on {day}. Read every line before you use it. Lines that begin with "# ?" are not part of
# the declaration: they are values that were found on the nodes and that no profile declares. Remove "# ? " from what is right.
# Next: fairlead config check {file}; fairlead plan --site {file}
schema = 1
generation = 1

# Nothing drains a node until you remove this table (docs/how-to/roll-out.md).
[policy]
mode = "observe"
"""


def site_text(
    proposal: Proposal, *, file: str, day: str, ansible: Mapping[str, Any], unreached: Mapping[str, Iterable[str]]
) -> str:
    """Return the text of a site.toml. day: the date to write into it. ansible: the table [ansible]. unreached: the nodes that
    did not answer, by the reason."""
    parts = [_HEAD.format(day=day, file=file), *(_class_text(entry) for entry in proposal.classes)]
    for reasons, words in ((proposal.without, "no class"), (unreached, "not reached, so no class")):
        lines = [_comment(f"{fold(nodes)}: {words}: {one_line(why, 200)}") for why, nodes in reasons.items()]
        if lines:
            parts.append("".join(lines))
    plain = {key: value for key, value in ansible.items() if key != "hosts"}
    if plain:
        parts.append(_table("ansible", plain))
    if ansible.get("hosts"):
        parts.append(_table("ansible.hosts", ansible["hosts"]))
    return "\n".join(parts)


def _class_text(entry: ProposedClass) -> str:
    lines = [_comment(f"{len(entry.nodes)} node{'s' * (len(entry.nodes) != 1)}: {hardware_text(entry.like)}")]
    lines += [_comment(f"Differs: {line}") for line in entry.unlike]
    if entry.profile is None:
        lines.append(_comment("No hardware profile matches. `fairlead profile draft` makes one from a snapshot of a good node."))
    else:
        lines.append(_comment(f"Profile: {entry.profile.summary}"))
    wanted = {"nodes": fold(entry.nodes), **({"profile": entry.profile.name} if entry.profile else {}), "fabric": entry.fabric}
    lines.append(_table(f"classes.{entry.name}", wanted))
    confirmed, found = expectations(entry.like, entry.profile)
    lines += [_table(f"classes.{entry.name}.checks.{check}", values) for check, values in confirmed.items()]
    for check, values in found.items():
        lines.append(textwrap.indent(_table(f"classes.{entry.name}.checks.{check}", values), "# ? "))
    return "".join(lines)


def hardware_text(machine: NodeHardware) -> str:
    """Return one line that describes the hardware of a node."""
    words = [f"{count} GPUs {pci_id}" if count != 1 else f"1 GPU {pci_id}" for pci_id, count in machine.gpus.items()]
    if machine.nvswitches:
        words.append(f"{machine.nvswitches} NVSwitches")
    for layer in (INFINIBAND, ETHERNET):
        rates = sorted({port.gbps for port in machine.ports_of(layer) if port.gbps})
        count = sum(port.gbps > 0 for port in machine.ports_of(layer))
        if count:
            words.append(f"{count} active {layer} ports with RDMA ({', '.join(f'{rate:g}' for rate in rates)} Gbit/s)")
    words += [f"{machine.cpus} CPUs"] * bool(machine.cpus)
    words += [f"{machine.memory_bytes / 2**30:.0f} GiB of memory"] * bool(machine.memory_bytes)
    product = f"{machine.vendor} {machine.product}".strip()
    return one_line(f"{product}: {', '.join(words)}" if product else ", ".join(words))


def expectations(machine: NodeHardware, profile: Profile | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the checks' parameters that the class has to declare, and the parameters that a person has to confirm first.

    The number of GPUs is declared where the profile matches servers with any number of GPUs. Everything else that the profile
    does not expect, or expects with another value, has to be confirmed.
    """
    declared = {value.key: value.value for value in profile.values} if profile else {}
    count = sum(machine.gpus.values())
    gpus = {"gpu_count": {"expected": count}} if declared.get("checks.gpu_count.expected") != count else {}
    fixed = profile is not None and profile.match is not None and profile.match.gpu_count > 0
    found: dict[str, dict[str, Any]] = {}
    ports = {
        "infiniband_ports": sum(port.gbps > 0 for port in machine.ports_of(INFINIBAND)),
        "ethernet_ports": sum(port.gbps > 0 for port in machine.ports_of(ETHERNET)),
    }
    if values := {key: n for key, n in ports.items() if n != declared.get(f"checks.rdma_ports.{key}", 0)}:
        found["rdma_ports"] = values
    if machine.cpus and "checks.cpu_memory.cpus_expected" not in declared:
        found["cpu_memory"] = {
            "cpus_expected": machine.cpus,
            "memory_bytes_min": machine.memory_bytes * 98 // 100 // 10**9 * 10**9,
        }
    confirmed = {} if fixed or profile is None else gpus
    return confirmed, {**({} if fixed or profile else gpus), **found}


def _table(name: str, values: Mapping[str, Any]) -> str:
    """Return a table. Texts and numbers of JSON are also texts and numbers of TOML, and a NodeName may have a dot."""
    rows = (f"{json.dumps(key) if '.' in key else key} = {json.dumps(value)}\n" for key, value in values.items())
    return f"[{name}]\n" + "".join(rows)


def _comment(text: str) -> str:
    return textwrap.fill(text, 120, initial_indent="# ", subsequent_indent="#   ", break_on_hyphens=False) + "\n"
