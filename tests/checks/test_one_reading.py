"""One reading counts once, and one that failed once drains nothing, with every check enforced.

What is read on thorough looks only is judged on these alone; and a value that cannot be read is a loss when it stays so.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec import Struct
from msgspec.structs import replace

from fairlead import checks, config
from fairlead.judge import judge, policies_of
from fairlead.model.check_definition import Past
from fairlead.model.device import readable_fields
from fairlead.model.facts import Gpu, Node, unreadable
from fairlead.model.finding import Finding, Mode
from fairlead.model.gpu_load import GpuFabric, Software
from fairlead.model.gpu_state import GpuState
from fairlead.policy import Now, Order, PolicyState, Rules, decide
from tests.checks.hosts import WELL
from tests.checks.nodes import BOOT, GEN5, LOAD, endpoint, gpu, nic, node, port

pytestmark = pytest.mark.trees

DOCUMENT = config.profile_document("n1", "hgx-h100")
ENFORCED = {name: replace(policy, mode=Mode.ENFORCE) for name, policy in policies_of(DOCUMENT).items()}
JUDGED = checks.load().keys() - {"rdma_ports"}  # this node has no adapters
ADAPTER = "0000:19:00.0"
NARROW = endpoint(ADAPTER, vendor=0x15B3, class_code=0x020700, link=replace(GEN5, width_current=8))
GPUS = tuple(gpu(i) for i in range(8))
APART = GpuFabric(state=1, status=0, clique=9, cluster="1")
LOW = replace(LOAD, slowdown_celsius=1, shutdown_celsius=1, power_default_watts=9e3)
UNREADABLE = unreadable("read on thorough looks only")
#: What is not read at every sweep (``Gatherer``, ``nvml_device``), each spoiled on a node that was well.
LATER: dict[str, dict[str, Any]] = {
    "adapters": {"nics": (nic(state="DOWN", rate_gbps=UNREADABLE),)},
    "the link of an adapter": {"pci": (*node().pci, port(ADAPTER), NARROW), "nics": (nic(),)},
    "links of bridges": {
        "pci": tuple(replace(d, link=replace(GEN5, width_current=1)) if d.class_code >> 16 == 6 else d for d in node().pci)
    },
    "the host": {"host": UNREADABLE},
    "the driver's software": {"driver": replace(node().driver, software=Software(library_file="535.1.1"))},
    "GPU links": {"gpu_links": ()},
    "AER": {"gpus": tuple(replace(g, aer=UNREADABLE, port_aer=UNREADABLE) for g in GPUS)},
    "NVLinks": {"gpus": tuple(replace(g, nvlinks=UNREADABLE) for g in GPUS)},
    "the fabric": {"gpus": tuple(replace(g, load=replace(LOAD, fabric=APART)) for g in GPUS)},
    "thresholds and limits": {"gpus": tuple(replace(g, load=LOW) for g in GPUS)},
    "application clocks": {"gpus": tuple(replace(g, state=GpuState()) for g in GPUS)},
    "the InfoROM": {"gpus": tuple(replace(g, inforom_valid=False) for g in GPUS)},
}  # fmt: skip


@pytest.mark.parametrize("what", LATER)
def test_what_is_read_seldom_is_judged_seldom(what: str) -> None:
    """Else one bad reading would be several sweeps of it, and confirm itself."""
    quick = [name for name, each in checks.load().items() if not each.slow]
    healthy = node()

    def found(machine: Node) -> list[Finding]:
        return list(judge(DOCUMENT, machine, Past(available=True), quick))

    assert found(replace(healthy, **LATER[what])) == found(healthy)


def unreadable_paths(value: Struct, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every fact of a GPU, and of what it is made of."""
    for name in value.__struct_fields__:
        inner = getattr(value, name)
        yield (*path, name)
        if isinstance(inner, Struct):
            yield from unreadable_paths(inner, (*path, name))


def spoil(value: Any, path: tuple[str, ...]) -> Any:
    why = unreadable("NVML UNKNOWN (999)")
    return replace(value, **{path[0]: spoil(getattr(value, path[0]), path[1:]) if len(path) > 1 else why})


def orders(*machines: Node) -> list[Order]:
    """What is ordered at each of these looks, one after the other."""
    past, state, found = Past(available=True, readable=readable_fields(machines[0])), PolicyState(), []
    for place, machine in enumerate(machines):
        now = Now(boot_seconds=1000.0 + 15 * place, wall_seconds=1e9 + 15 * place, boot_id=BOOT)
        decision = decide(judge(DOCUMENT, machine, past, JUDGED), ENFORCED, state, now, Rules(), ran=JUDGED)
        state = decision.state
        found.append(decision.order)
    return found


#: Its place on the bus and its being lost are no readings; the rest of what a GPU says is.
FACTS = [
    path for path in unreadable_paths(gpu(2)) if path not in {("pci",), ("lost",), ("index",)} and path[:2] != ("load", "seen")
]


def test_a_value_that_could_not_be_read_once_drains_nothing() -> None:
    well = node(host=WELL)
    spoiled = {
        path: replace(well, gpus=tuple(spoil(g, path) if g.pci == gpu(2).pci else g for g in gpus(well))) for path in FACTS
    }
    assert len(spoiled) > 60
    assert [path for path, machine in spoiled.items() if Order.DRAIN in orders(well, well, machine, well)] == []
    stays = [path for path, machine in spoiled.items() if Order.DRAIN in orders(well, machine, machine, machine)]
    assert {("ecc",), ("ecc", "volatile_uncorrected"), ("remap",)} <= set(stays)


def gpus(machine: Node) -> tuple[Gpu, ...]:
    assert isinstance(machine.gpus, tuple)
    return machine.gpus
