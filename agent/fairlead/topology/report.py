"""What `fairlead topology` shows: the machine as JSON, and as a matrix that reads like `nvidia-smi topo -m`."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import msgspec

from fairlead.model.facts import Gpu, Missing, Nic, Node
from fairlead.topology import locality, nics, paths
from fairlead.topology.audit import audit

LEGEND = """\
  X     itself
  SYS   crosses the sockets (between NUMA nodes)
  NODE  between host bridges of one NUMA node
  PHB   through one host bridge, i.e. the CPU
  PXB   through several PCIe ports, not through the CPU
  PIX   through one PCIe switch
  NV#   through so many NVLinks
"""


def report(node: Node) -> dict[str, Any]:
    """The machine's topology. A GPU of which nobody knows the place gets numa -1 and an even share of the CPUs, and a finding.

    Sizes are bytes, rates Gbit/s; values that could not be read are None.
    """
    gpus = locality.gpus(node)
    return {
        "node": node.name,
        "numa": [
            {"id": n.id, "cpus": locality.cpulist(n.cpus), "memory_bytes": _value(n.memory_bytes)}
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
            {"a": a, "b": b, "nccl": _nccl(node, a, b), "smi": _smi(node, a, b)} for a, b in combinations(_addresses(node), 2)
        ],
        "audit": [msgspec.to_builtins(finding, enc_hook=str) | {"level": finding.level.word} for finding in audit(node)],
    }


def matrix(node: Node) -> str:
    """The path matrix by nvidia-smi's classes, CPU and NUMA affinity, a legend and the audit, as text."""
    gpus, devices = locality.gpus(node), _devices(node)
    names = {gpu.pci: f"GPU{i}" for i, gpu in enumerate(gpus)}
    names.update({nic.pci: nic.name for nic in devices if nic.pci not in names})
    head = ["", *names.values(), "CPU Affinity", "NUMA Affinity"]
    rows = [head]
    where = {gpu["pci"]: gpu for gpu in report(node)["gpus"]}
    for a, name in names.items():
        tail = [where[a]["cpus"], str(where[a]["numa"]) if where[a]["numa"] >= 0 else "N/A"] if a in where else ["", ""]
        rows.append([name, *(_smi(node, a, b) for b in names), *tail])
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    table = "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)
    identity = "".join(f"  {name:<8}{address}\n" for address, name in names.items())
    found = "".join(f"  {f.summary}\n" for f in audit(node)) or "  nothing to say\n"
    return f"{table}\n\n{identity}\nLegend:\n{LEGEND}\nAudit:\n{found}"


def _value(value: Any) -> Any:
    return None if isinstance(value, Missing) else value


def _gpu(node: Node, gpu: Gpu, position: int, count: int) -> dict[str, Any]:
    where = locality.of_pci(node, gpu.pci)
    cpus = where.cpus or locality.even_split(node, position, count)
    return {
        "index": gpu.index,
        "pci": gpu.pci,
        "numa": where.numa,
        "cpus": locality.cpulist(cpus),
        "nics": [nic.name for nic in nics.nearest(node, gpu.pci)[0]],
    }


def _nics(node: Node) -> list[Nic]:
    return sorted(node.nics, key=lambda n: (not n.rdma, nics.natural(n.name), n.port))


def _devices(node: Node) -> list[Nic]:
    """NICs that take part in paths: RDMA devices, one entry a PCI function."""
    seen: dict[str, Nic] = {}
    for nic in nics.candidates(node):
        seen.setdefault(nic.pci, nic)
    return list(seen.values())


def _addresses(node: Node) -> list[str]:
    return list(dict.fromkeys([*(g.pci for g in locality.gpus(node)), *(n.pci for n in _devices(node))]))


def _pair(node: Node, a: str, b: str) -> tuple[Gpu, Gpu] | None:
    by_pci = {g.pci: g for g in locality.gpus(node)}
    return (by_pci[a], by_pci[b]) if a in by_pci and b in by_pci else None


def _nccl(node: Node, a: str, b: str) -> str:
    pair = _pair(node, a, b)
    return paths.nccl_gpus(node, *pair, locality.gpus(node)) if pair else paths.nccl(node, a, b)


def _smi(node: Node, a: str, b: str) -> str:
    pair = _pair(node, a, b)
    return paths.smi_gpus(node, *pair) if pair else paths.smi(node, a, b)
