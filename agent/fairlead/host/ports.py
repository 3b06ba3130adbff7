"""Reads error counters and width of RDMA ports, and how often their interfaces lost carrier.

Attributes: Documentation/ABI/stable/sysfs-class-infiniband (counters, hw_counters), Documentation/ABI/testing/sysfs-class-net
(carrier_down_count, since Linux 4.16).
"""

from __future__ import annotations

import re

from fairlead.host.root import Root
from fairlead.model.facts import Missing, Nic, unreadable
from fairlead.model.host_facts import PORT_COUNTER_BITS, RdmaPort

_IB = "/sys/class/infiniband"
_WIDTH = re.compile(r"\((\d+)X ")
#: The hw_counters of mlx5 that count lost or damaged packets (NVIDIA, "Understanding mlx5 Linux counters and status
#: parameters"). Other drivers have other counters.
MLX5_COUNTERS = ("local_ack_timeout_err", "packet_seq_err", "rx_icrc_encapsulated")


def ports(root: Root, nics: tuple[Nic, ...]) -> tuple[RdmaPort, ...] | Missing:
    """Return every RDMA port of ``nics`` except the ports of virtual functions, which have no link of their own."""
    listed = root.list(_IB)
    if isinstance(listed, Missing):
        return listed
    return tuple(_port(root, nic) for nic in nics if nic.rdma and not nic.virtual_function)


def _port(root: Root, nic: Nic) -> RdmaPort:
    folder = f"{_IB}/{nic.name}/ports/{nic.port}"
    counters: dict[str, int | Missing] = {}
    if nic.link_layer == "InfiniBand" or root.exists(f"{folder}/counters"):
        counters = {name: root.number(f"{folder}/counters/{name}") for name in PORT_COUNTER_BITS}
    driver = root.readlink(f"{_IB}/{nic.name}/device/driver")
    if isinstance(driver, str) and driver.endswith("/mlx5_core"):
        counters.update({name: root.number(f"{folder}/hw_counters/{name}") for name in MLX5_COUNTERS})
    rate = root.value(f"{folder}/rate")
    width: int | Missing
    if isinstance(rate, Missing):
        width = rate
    else:
        match = _WIDTH.search(rate)
        width = int(match[1]) if match else unreadable(f"{folder}/rate: no width in {rate[:40]!r}")
    return RdmaPort(
        name=nic.name,
        port=nic.port,
        pci=nic.pci,
        width_lanes=width,
        counters=counters,
        carrier_downs={name: root.number(f"/sys/class/net/{name}/carrier_down_count") for name in nic.interfaces},
    )
