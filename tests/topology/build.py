"""Nodes made in code for topology tests: sockets, cores, hardware threads, NUMA nodes, GPUs and NICs behind switches."""

from __future__ import annotations

from fairlead.model.facts import (
    Cpu,
    Driver,
    Gpu,
    Missing,
    Nic,
    Node,
    NumaNode,
    NvLink,
    PciDevice,
    PcieLink,
    Why,
)

NOT = Missing(Why.UNREADABLE, "not in this test")


def link(gen: int = 5, width: int = 16, width_max: int = 16) -> PcieLink:
    return PcieLink(gen_current=gen, gen_max=gen, width_current=width, width_max=width_max)


def gpu(index: int, pci: str, minor: int | None = None, nvlinks: int = 18) -> Gpu:
    return Gpu(
        pci=pci,
        index=index,
        uuid=f"GPU-{index:08d}",
        serial=f"165{index:08d}",
        minor=index if minor is None else minor,
        name="NVIDIA H100 80GB HBM3",
        persistence=True,
        mig_current=False,
        mig_pending=False,
        ecc=NOT,
        remap=NOT,
        pcie=link(),
        nvlinks=tuple(NvLink(link=i, active=True, remote="switch") for i in range(nvlinks)),
        memory_total_bytes=NOT,
        memory_used_bytes=NOT,
        temperature_celsius=NOT,
        power_draw_watts=NOT,
        power_limit_watts=NOT,
        clock_sm_hertz=NOT,
        throttle_reasons=NOT,
        utilization_percent=NOT,
        performance_state=NOT,
        recovery_action=NOT,
        processes=NOT,
    )


def cpus(sockets: int, cores: int, threads: int, numa_per_socket: int = 1) -> tuple[Cpu, ...]:
    """Cores numbered through, hardware thread t of core c is CPU t * all cores + c, as Linux does on x86."""
    total = sockets * cores
    found = []
    for t in range(threads):
        for c in range(total):
            package = c // cores
            numa = package * numa_per_socket + (c % cores) * numa_per_socket // cores
            siblings = tuple(c + k * total for k in range(threads))
            found.append(Cpu(id=t * total + c, package=package, core=c % cores, numa=numa, l3=package * cores, siblings=siblings))
    return tuple(found)


def numa_nodes(all_cpus: tuple[Cpu, ...]) -> tuple[NumaNode, ...]:
    ids = sorted({c.numa for c in all_cpus})
    return tuple(
        NumaNode(
            id=n,
            cpus=tuple(c.id for c in all_cpus if c.numa == n),
            memory_bytes=1 << 40,
            distances=tuple(10 if n == m else 21 for m in ids),
        )
        for n in ids
    )


def hgx(
    *, sockets: int = 2, cores: int = 56, threads: int = 1, gpus: int = 8, numa_per_socket: int = 1, numa: list[int] | None = None
) -> Node:
    """GPUs assigned evenly over NUMA nodes (or as ``numa`` says), each with its NIC behind one switch on its own host bridge."""
    all_cpus = cpus(sockets, cores, threads, numa_per_socket)
    nodes = numa_nodes(all_cpus)
    places = numa if numa is not None else [i * len(nodes) // gpus for i in range(gpus)]
    pci: list[PciDevice] = []
    nics = []
    cards = []
    for i, position in enumerate(places):
        bus = 0x10 + i * 8
        host = f"pci0000:{bus:02x}"
        root, up = f"0000:{bus:02x}:01.0", f"0000:{bus + 1:02x}:00.0"
        downs = (f"0000:{bus + 2:02x}:00.0", f"0000:{bus + 2:02x}:01.0")
        card, hca = f"0000:{bus + 3:02x}:00.0", f"0000:{bus + 4:02x}:00.0"

        def device(address: str, path: tuple[str, ...], role: str, class_code: int, position: int = position) -> PciDevice:
            return PciDevice(
                address=address,
                vendor=0x10DE,
                device=0x2330,
                class_code=class_code,
                path=path,
                numa=position,
                link=link(),
                bridge_role=role,
                acs_capability=0x1F if role else None,
                acs_control=0 if role else None,
            )

        pci += [
            device(root, (host, root), "root_port", 0x060400),
            device(up, (host, root, up), "switch_upstream", 0x060400),
            device(downs[0], (host, root, up, downs[0]), "switch_downstream", 0x060400),
            device(downs[1], (host, root, up, downs[1]), "switch_downstream", 0x060400),
            device(card, (host, root, up, downs[0], card), "", 0x030200),
            device(hca, (host, root, up, downs[1], hca), "", 0x020700),
        ]
        cards.append(gpu(i, card))
        nics.append(
            Nic(
                name=f"mlx5_{i}",
                pci=hca,
                rdma=True,
                port=1,
                link_layer="InfiniBand",
                state="ACTIVE",
                physical_state="LinkUp",
                rate_gbps=400.0,
            )
        )
    return Node(
        name="n1",
        boot_id="b",
        uptime_seconds=1000.0,
        virtual=False,
        cpus=all_cpus,
        numa=nodes,
        pci=tuple(pci),
        nics=tuple(nics),
        driver=Driver(module_version="570", library_version="570", nvml_version="12", cuda_version=12080),
        gpus=tuple(cards),
    )
