"""Writes the output of `fairlead topology`: the machine as JSON, and as a matrix like that of `nvidia-smi topo -m`."""

from __future__ import annotations

from itertools import combinations
from typing import Any, TypedDict

import msgspec

from fairlead.model.cpulist import format_cpulist
from fairlead.model.facts import Missing, Nic, Node
from fairlead.model.finding import Finding, Level
from fairlead.topology.audit.layout_audit import audit
from fairlead.topology.distances import locality, nearest_nics
from fairlead.topology.distances.accelerators import Accelerator, accelerators
from fairlead.topology.distances.path_classes import PathClasses

LEGEND = """\
  X     itself
  SYS   crosses the sockets (between NUMA nodes)
  NODE  between host bridges of one NUMA node
  PHB   through one host bridge, i.e. the CPU
  PXB   through several PCIe ports, not through the CPU
  PIX   through one PCIe switch
NV#   through this number of NVLinks (XGMI# of AMD)
"""


class MachineNuma(TypedDict):
    """A NUMA node. memory_bytes: null if it could not be read."""

    id: int
    cpus: str
    memory_bytes: int | None


class MachineGpu(TypedDict):
    """A GPU. numa: -1 if it is not known. nics: the nearest ones."""

    index: int
    pci: str
    numa: int
    cpus: str
    nics: list[str]


class MachineNic(TypedDict):
    """A network adapter. link_layer: "" if it has no RDMA device. null: it could not be read."""

    name: str
    pci: str
    numa: int
    link_layer: str
    rate_gbps: float | None
    state: str | None


class ReportedPath(TypedDict):
    """The path between two devices, in the classes of NCCL and of nvidia-smi."""

    a: str
    b: str
    nccl: str
    smi: str


class AuditFinding(TypedDict):
    """A finding of the audit, with all fields of a Finding. level: ok, warn, drain or unknown."""

    check: str
    level: str
    summary: str
    device: str
    evidence: list[str]
    action: str
    service: str
    evidence_id: str
    fault: str
    needs_history: bool
    jobs: list[int] | None


class MachineReport(TypedDict):
    """A machine's topology. audit: findings about it."""

    numa: list[MachineNuma]
    gpus: list[MachineGpu]
    nics: list[MachineNic]
    paths: list[ReportedPath]
    audit: list[AuditFinding]


def report(node: Node) -> MachineReport:
    """Return the machine's topology. A GPU of unknown locality has numa -1, an even part of the CPUs, and a finding.

    Sizes are in bytes and rates in Gbit/s. Values that could not be read are None. A NUMA node without CPUs has "" as its cpus.
    """
    gpus = accelerators(node)
    classes = PathClasses(node, [nic.pci for nic in nearest_nics.functions(node)])
    return {
        "numa": [
            {"id": n.id, "cpus": format_cpulist(n.cpus), "memory_bytes": _value(n.memory_bytes)}
            for n in sorted(node.numa, key=lambda n: n.id)
        ],
        "gpus": [_gpu(node, gpu, i, len(gpus)) for i, gpu in enumerate(gpus)],
        "nics": [
            {
                "name": nic.name,
                "pci": nic.pci,
                "numa": locality.of_nic(node, nic).numa,
                "link_layer": nic.link_layer,
                "rate_gbps": _value(nic.rate_gbps),
                "state": _value(nic.state),
            }
            for nic in _nics(node)
        ],
        "paths": [
            {"a": a, "b": b, "nccl": classes.nccl(a, b), "smi": classes.smi(a, b)} for a, b in combinations(_addresses(node), 2)
        ],
        "audit": [_finding(finding) for finding in audit(node)],
    }


def _finding(finding: Finding) -> AuditFinding:
    data: AuditFinding = msgspec.to_builtins(finding, enc_hook=str) | {"level": finding.level.word}
    return data


def matrix(node: Node) -> str:
    """Return a text with the path matrix in nvidia-smi's classes, the CPU and NUMA affinity, a legend and the audit's
    findings."""
    gpus = accelerators(node)
    names = {gpu.pci: f"GPU{gpu.index}" for gpu in gpus}
    what = {gpu.pci: gpu.name for gpu in gpus}
    classes = PathClasses(node)
    for nic in nearest_nics.functions(node):
        names.setdefault(nic.pci, nic.name)
        rate = "" if isinstance(nic.rate_gbps, Missing) else f" {nic.rate_gbps:g} Gb/s"
        state = "" if isinstance(nic.state, Missing) else f" {nic.state}"
        what.setdefault(nic.pci, f"{nic.link_layer or 'RDMA device'}{rate}{state}")
    head = ["", *names.values(), "CPU Affinity", "NUMA Affinity"]
    rows = [head]
    where = {gpu.pci: _gpu(node, gpu, i, len(gpus)) for i, gpu in enumerate(gpus)}
    for a, name in names.items():
        tail = [where[a]["cpus"], str(where[a]["numa"]) if where[a]["numa"] >= 0 else "N/A"] if a in where else ["", ""]
        rows.append([name, *(classes.smi(a, b) for b in names), *tail])
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    table = "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)
    wide = max((len(name) for name in names.values()), default=0)
    identity = "".join(f"  {name:<{wide}}  {address}  {what[address]}\n" for address, name in names.items())
    found = "".join(f"  {line}\n" for line in audit_lines(audit(node))) or "  nothing to say\n"
    return f"{table if names else 'No GPU and no RDMA device.'}\n\n{identity}\nLegend:\n{LEGEND}\nAudit:\n{found}"


def audit_lines(found: tuple[Finding, ...]) -> list[str]:
    """Return the findings as lines. Findings with the same text about several devices are one line."""
    groups: dict[tuple[str, str], list[Finding]] = {}
    for f in found:
        groups.setdefault((f.check, f.summary.replace(f.device, "*") if f.device else f.summary), []).append(f)
    lines = []
    for alike in groups.values():
        first = alike[0]
        mark = "note: " if first.level == Level.OK else ""
        more = f" (and {len(alike) - 1} more: {', '.join(f.device for f in alike[1:])})" if len(alike) > 1 else ""
        lines.append(f"{mark}{first.summary}{more}")
    return lines


def _value(value: Any) -> Any:
    return None if isinstance(value, Missing) else value


def _gpu(node: Node, gpu: Accelerator, position: int, count: int) -> MachineGpu:
    where = locality.of_pci(node, gpu.pci)
    cpus = where.cpus or locality.even_split(node, position, count)
    return {
        "index": gpu.index,
        "pci": gpu.pci,
        "numa": where.numa,
        "cpus": format_cpulist(cpus) or "-",
        "nics": [nic.name for nic in nearest_nics.nearest(node, gpu.pci)[0]],
    }


def _nics(node: Node) -> list[Nic]:
    return sorted(node.nics, key=lambda n: (not n.rdma, nearest_nics.natural(n.name), n.port))


def _addresses(node: Node) -> list[str]:
    return list(dict.fromkeys([*(g.pci for g in accelerators(node)), *(n.pci for n in nearest_nics.functions(node))]))
