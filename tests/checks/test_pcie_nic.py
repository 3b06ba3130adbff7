"""pcie_nic: the links of RDMA adapters; and no check that is judged at every sweep judges what is read on thorough looks only."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fairlead import checks, config
from fairlead.checks.pcie_nic import Params, check
from fairlead.daemon.judge import judge
from fairlead.model.check import Past
from fairlead.model.facts import Node, PcieLink, unreadable
from fairlead.model.finding import Finding, Level
from fairlead.model.gpu_load import Fabric, Software
from fairlead.model.gpu_state import GpuState
from tests.checks.nodes import GEN5, LOAD, endpoint, gpu, nic, node, port

ADAPTER = "0000:19:00.0"
X8 = replace(GEN5, width_current=8)


def adapter(link: PcieLink, above: PcieLink = GEN5) -> Node:
    device = endpoint(ADAPTER, vendor=0x15B3, class_code=0x020700, link=link)
    return replace(node(), nics=(nic(), nic(name="mlx5_9", port=2)), pci=(*node().pci, port(ADAPTER, above), device))


def judged(machine: Node, **params: Any) -> list[Finding]:
    return list(check.judge(machine, Past(), Params(**params)))


@pytest.mark.parametrize(
    ("machine", "params", "said"),
    [
        (adapter(GEN5), {}, None),
        (adapter(X8), {}, (Level.DRAIN, "is x8, x16 possible")),
        (adapter(X8), {"width": 8}, None),
        (adapter(X8), {"width": 16}, (Level.DRAIN, "is x8, x16 declared")),
        (adapter(X8, replace(GEN5, width_max=8)), {}, None),
        (adapter(replace(GEN5, gen_current=1)), {}, None),
        (adapter(GEN5), {"gen": 6}, (Level.DRAIN, "is generation 5, 6 declared")),
        (adapter(replace(GEN5, gen_current=unreadable("x"))), {"gen": 5}, (Level.UNKNOWN, "has a speed that cannot be read")),
        (adapter(replace(GEN5, width_current=unreadable("x"))), {}, (Level.UNKNOWN, "cannot be read")),
        (replace(node(), nics=(nic(),)), {}, (Level.UNKNOWN, "cannot be read")),
        (replace(adapter(X8), nics=(nic(virtual_function=True), nic(rdma=False, name="eth0"))), {}, None),
    ],
)
def test_the_link_of_an_adapter(machine: Node, params: dict[str, Any], said: tuple[Level, str] | None) -> None:
    told = [(f.level, f.device, f.summary.partition(f"adapter {ADAPTER} ")[2]) for f in judged(machine, **params)]
    assert told == ([] if said is None else [(said[0], ADAPTER, said[1] + (": check_hardware" if told[0][0] is Level.DRAIN else ""))])


GPUS = tuple(gpu(i) for i in range(8))
DARK = unreadable("read on thorough looks only")
#: What is not read at every sweep (``Gatherer``, ``nvml_device``), each spoiled on a node that was well.
LATER: dict[str, dict[str, Any]] = {
    "adapters": {"nics": (nic(state="DOWN", rate_gbps=DARK),)},
    "the link of an adapter": {"pci": adapter(X8).pci, "nics": adapter(X8).nics},
    "links of bridges": {"pci": tuple(replace(d, link=replace(GEN5, width_current=1)) for d in node().pci if d.class_code >> 16 == 6)},
    "the host": {"host": DARK},
    "the driver's software": {"driver": replace(node().driver, software=Software(library_file="535.1.1"))},
    "GPU links": {"gpu_links": ()},
    "AER": {"gpus": tuple(replace(g, aer=DARK, port_aer=DARK) for g in GPUS)},
    "NVLinks": {"gpus": tuple(replace(g, nvlinks=DARK) for g in GPUS)},
    "the fabric": {"gpus": tuple(replace(g, load=replace(LOAD, fabric=Fabric(state=1, status=0, clique=9, cluster="1"))) for g in GPUS)},
    "thresholds and limits": {
        "gpus": tuple(replace(g, load=replace(LOAD, slowdown_celsius=1, shutdown_celsius=1, power_default_watts=9e3)) for g in GPUS)
    },
    "application clocks": {"gpus": tuple(replace(g, state=GpuState()) for g in GPUS)},
    "the InfoROM": {"gpus": tuple(replace(g, inforom_valid=False) for g in GPUS)},
}  # fmt: skip


@pytest.mark.parametrize("what", LATER)
def test_what_is_read_seldom_is_judged_seldom(what: str) -> None:
    """Else one bad reading would be several sweeps of it, and confirm itself."""
    document = config.profile_document("n1", "hgx-h100")
    quick = [name for name, each in checks.load().items() if not each.slow]
    healthy = node()
    spoiled = LATER[what]
    if what == "links of bridges":
        spoiled = {"pci": tuple({d.address: d for d in (*healthy.pci, *spoiled["pci"])}.values())}

    def told(machine: Node) -> list[Finding]:
        return list(judge(document, machine, Past(available=True), quick))

    assert told(replace(healthy, **spoiled)) == told(healthy)
