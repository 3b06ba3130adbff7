"""The same network on all nodes of a class, or one line for each group that is unlike."""

from __future__ import annotations

from msgspec.structs import replace

from fairlead.nccl.compute_ports import Port, compare, ports
from fairlead.provision.provision_report import ClassDifference
from tests.checks.nodes import node
from tests.nccl.test_nccl import machine, port

RAILS = tuple(
    Port(name=f"mlx5_{i}", up=True, link_layer="Ethernet", rate_gbps=400, mtu_bytes=9000, gpus=(i,), network=f"10.{i}.0.0/16")
    for i in range(4)
)


def said(nodes: dict[str, tuple[Port, ...]]) -> list[str]:
    return [ClassDifference(name="h", difference=d).text() for d in compare(nodes)]


def test_equal_nodes_have_nothing_to_say_whatever_their_ports_are_called() -> None:
    renamed = tuple(replace(p, name=f"ibp{i}") for i, p in enumerate(RAILS))
    assert said({"n1": RAILS, "n2": renamed, "n3": RAILS}) == [] == said({}) == said({"n1": RAILS})


def test_each_group_is_one_line_with_its_names() -> None:
    down = (*RAILS[:2], replace(RAILS[2], up=False), RAILS[3])
    slow = (*RAILS[:3], replace(RAILS[3], rate_gbps=200))
    small = tuple(replace(p, mtu_bytes=1500) for p in RAILS)
    crossed = (
        replace(RAILS[0], network="10.1.0.0/16"), replace(RAILS[1], network="10.0.0.0/16"), *RAILS[2:],
    )  # fmt: skip
    moved = (replace(RAILS[0], gpus=()), *RAILS[1:])
    whole = {f"n{i}": RAILS for i in range(10, 20)}
    found = said({"n1": down, "n2": down, "n3": RAILS[:3], "n4": slow, "n5": small, "n6": crossed, "n7": moved, **whole})
    assert found == [
        "class h: n[1-2]: ports: 3 Ethernet up, mlx5_2 down; the other 14 have 4 Ethernet up",
        "class h: n3: ports: 3 Ethernet up; the other 14 have 4 Ethernet up",
        "class h: n4: rate: 200 Gb/s on rail 3; the other 13 have 400 Gb/s",
        "class h: n5: MTU: 1500 on rail 0, 1500 on rail 1, 1500 on rail 2, 1500 on rail 3; the other 13 have 9000",
        "class h: n6: rails: beside GPU 0 on 10.1.0.0/16 on rail 0, beside GPU 1 on 10.0.0.0/16 on rail 1; "
        "the other 12 have beside GPU 0 on 10.0.0.0/16, beside GPU 1 on 10.1.0.0/16",
        "class h: n7: rails: beside no GPU on 10.0.0.0/16 on rail 0; the other 12 have beside GPU 0 on 10.0.0.0/16",
    ]


def test_of_two_nodes_the_first_is_the_usual_one() -> None:
    assert said({"n1": RAILS, "n2": RAILS[:3]}) == ["class h: n2: ports: 3 Ethernet up; the other one has 4 Ethernet up"]


def test_a_nodes_own_ports_in_the_order_of_their_addresses() -> None:
    nics, pci = machine()
    swapped = tuple(port(n.name, n.pci, state="DOWN") if n.name == "mlx5_1" else n for n in reversed(nics))
    found = ports(replace(node(), nics=swapped, pci=pci))
    assert [(p.name, p.up, p.gpus) for p in found] == [
        ("mlx5_0", True, (0,)), ("mlx5_1", False, (1,)), ("mlx5_2", True, (2,)), ("mlx5_3", True, (3,)),
    ]  # fmt: skip
