"""Finds values on a node that a person may confirm as the expectation of a profile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fairlead.checks import fabric_manager, gpu_fabric, imex
from fairlead.checks.cpu_memory import host_memory_bytes
from fairlead.model.facts import Gpu, Missing, Nic, Node, PcieLink
from fairlead.model.host_facts import Host
from fairlead.model.link import able, port_above
from fairlead.model.profile_files import Value

_TO_SAY = "Say why every node of this kind has it."
_NOT_SUPPORTED = "NOT_SUPPORTED (3)"  # as host.gpu_reader writes NVML's answer into the detail


def unsupported(gpus: Sequence[Gpu], names: Sequence[str]) -> tuple[str, ...]:
    """Return those of the facts that NVML does not support on any of the GPUs."""
    return tuple(name for name in names if all(_is_unsupported(getattr(gpu, name)) for gpu in gpus))


def _is_unsupported(value: object) -> bool:
    return isinstance(value, Missing) and _NOT_SUPPORTED in value.detail


def links(node: Node) -> Iterator[tuple[str, str, int]]:
    """Yield the key, the words and the number of the links' width and generation, if they are the same for all GPUs."""
    devices = {d.address: d for d in node.pci}
    possible = []
    for gpu in () if isinstance(node.gpus, Missing) else node.gpus:
        device = devices.get(gpu.pci)
        ends = [link for link in (gpu.pcie, device.link if device else None) if isinstance(link, PcieLink)]
        possible.append(able(*ends, port_above(device, devices)))
    widths, generations = {p.width for p in possible}, {p.gen for p in possible}
    if len(widths) == 1 and (width := widths.pop()) is not None:
        yield "checks.pcie_link.gpu_width", f"x{width}", width
    if len(generations) == 1 and (generation := generations.pop()) is not None:
        yield "checks.pcie_link.gpu_gen", f"generation {generation}", generation


def found(node: Node, gpus: Sequence[Gpu]) -> tuple[Value, ...]:
    """Return what the node has. Each value still needs a person who says why, and a source."""
    values = [
        *_gpu_values(node, gpus),
        *_adapter_values(node),
        *(_host_values(node, node.host) if isinstance(node.host, Host) else ()),
    ]
    return tuple(
        Value(key=key, value=value, why=f"Found on one node: {words}. {_TO_SAY}", source="Name who publishes or specifies it.")
        for key, value, words in values
    )


def _gpu_values(node: Node, gpus: Sequence[Gpu]) -> Iterator[tuple[str, Any, str]]:
    yield "checks.gpu_count.expected", len(gpus), f"{len(gpus)} GPUs on the PCI bus and in the driver's list"
    active = {None if isinstance(g.nvlinks, Missing) else sum(n.active is True for n in g.nvlinks) for g in gpus}
    if len(active) == 1:
        count = active.pop() or 0
        yield "checks.nvlink.links", count, f"{count} active NVLinks on each GPU"
    if isinstance(node.text(fabric_manager.STAT), str):
        yield "checks.fabric_manager.required", True, "a fabric manager runs"
    if all(not isinstance(g.load.fabric, Missing) and g.load.fabric.state == gpu_fabric.COMPLETED for g in gpus):
        yield "checks.gpu_fabric.required", True, "each GPU has joined an NVLink fabric"
    if isinstance(node.text(imex.STAT), str):
        yield "checks.imex.required", True, "the IMEX daemon runs"


def _adapter_values(node: Node) -> Iterator[tuple[str, Any, str]]:
    lanes = {}
    if isinstance(node.host, Host) and not isinstance(node.host.ports, Missing):
        lanes = {f"{p.name}/{p.port}": p.width_lanes for p in node.host.ports}
    for layer, key, words in (("InfiniBand", "infiniband", "InfiniBand"), ("Ethernet", "ethernet", "RoCE")):
        ports = [nic for nic in node.nics if _carries_traffic(nic) and nic.link_layer == layer]
        if not ports:
            continue
        yield f"checks.rdma_ports.{key}_ports", len(ports), f"{len(ports)} active {words} ports"
        rates = [nic.rate_gbps for nic in ports if isinstance(nic.rate_gbps, float)]
        if rates:
            yield f"checks.rdma_ports.{key}_rate_gbps", min(rates), f"the slowest active {words} port has {min(rates):g} Gb/s"
        widths = [n for nic in ports if isinstance(n := lanes.get(f"{nic.name}/{nic.port}"), int)]
        if widths and key == "infiniband":
            yield "checks.rdma_ports.infiniband_width_lanes", min(widths), f"the narrowest active port has {min(widths)} lanes"


def _carries_traffic(nic: Nic) -> bool:
    return nic.rdma and not nic.virtual_function and nic.state == "ACTIVE" and nic.physical_state == "LinkUp"


def _host_values(node: Node, host: Host) -> Iterator[tuple[str, Any, str]]:
    memory = host_memory_bytes(node, host.memory_bytes)
    if isinstance(memory, int):
        least = memory * 98 // 100 // 10**9 * 10**9
        if least:
            yield "checks.cpu_memory.memory_bytes_min", least, f"{memory / 2**30:.0f} GiB of memory, of which 98 % are the least"
    if isinstance(host.cpus_online, int):
        yield "checks.cpu_memory.cpus_expected", host.cpus_online, f"{host.cpus_online} CPUs are online"
    if not isinstance(host.controllers, Missing) and host.controllers:
        count = len(host.controllers)
        yield "checks.memory_errors.controllers_expected", count, f"EDAC watches {count} memory controllers"
