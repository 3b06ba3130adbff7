"""The rules for choosing HCAs, addresses, interfaces and topology files, one test each, on trees and on single facts.

Numbers are those of docs/explanation/nccl-conf.md.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from fairlead.errors import ConfigError
from fairlead.host.gather import gather
from fairlead.host.root import Root
from fairlead.model.facts import Gid, Missing, Nic, unreadable
from fairlead.nccl import hca, nccl_conf, nccl_version, roce, route, socket
from fairlead.settings import nccl
from tests.nccl.test_nccl import machine, port

ROUTES = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"


def ip(text: str) -> str:
    """A dotted quad as /proc/net/route has it."""
    return "".join(f"{int(p):02X}" for p in reversed(text.split(".")))


def routes(*lines: tuple[str, str, str, str]) -> str:
    """(interface, destination, mask, gateway) lines."""
    return ROUTES + "".join(
        f"{i}\t{ip(d)}\t{ip(g)}\t{'0003' if g != '0.0.0.0' else '0001'}\t0\t0\t0\t{ip(m)}\t0\t0\t0\n" for i, d, m, g in lines
    )


def seen(nics: tuple[Nic, ...], **more: object) -> nccl.Observed:
    values = {"file": None, "nics": nics, "pci": (), "routes": ROUTES, "mounts": "", "virtual": False, "topologies": {}}
    return nccl.Observed(**{**values, **more})  # type: ignore[arg-type]


def values(want: dict[str, object], what: nccl.Observed) -> dict[str, str]:
    made = nccl.draft(nccl.NcclWant(**want), what)  # type: ignore[arg-type]
    assert not made.problems, made.problems
    return {x.name: x.value for x in made.lines}


# -- 1: a port that is down is a failure, not a shorter list ---------------------------------------------------------------


def test_rule_1_a_port_that_comes_and_goes_changes_no_file() -> None:
    nics, pci = machine()
    whole = values({}, seen(nics, pci=pci))
    assert whole == {"NCCL_IB_HCA": "^=mlx5_9"}
    for broken in ("mlx5_2", "mlx5_9"):
        some = tuple(replace(n, state="DOWN") if n.name == broken else n for n in nics)
        made = nccl.draft(nccl.NcclWant(), seen(some, pci=pci))
        assert {x.name: x.value for x in made.lines} == whole
        assert any("mlx5_2 is DOWN" in note for note in made.notes) is (broken == "mlx5_2")


# -- 2: virtual functions, bonds, members of bonds and bridges -------------------------------------------------------------


def test_rule_2_a_member_of_a_bond_is_left_out_unless_there_is_nothing_else() -> None:
    nics = (port("mlx5_0", link_layer="Ethernet", master="bond0"), port("mlx5_1", link_layer="Ethernet"))
    choice = hca.choose(nics, (), expected=1)
    assert (choice.compute, choice.left_out) == (("mlx5_1",), {"mlx5_0": "part of bond0"})
    assert hca.choose((replace(nics[0]), replace(nics[1], master="bond0")), (), expected=2).compute == ("mlx5_0", "mlx5_1")


# -- 3: storage, management, the nodes' own addresses ----------------------------------------------------------------------


def test_rule_3_storage_default_route_and_node_addresses_are_left_out() -> None:
    nics = tuple(port(f"mlx5_{i}", link_layer="Ethernet", interfaces=(f"e{i}",)) for i in range(4))
    table = routes(("e0", "0.0.0.0", "0.0.0.0", "10.0.0.1"), ("e1", "192.168.0.0", "255.255.0.0", "0.0.0.0"),
                   ("e2", "10.9.0.0", "255.255.0.0", "0.0.0.0"))  # fmt: skip
    mounts = "192.168.7.9:/home /home nfs4 rw,addr=192.168.7.9 0 0\n"
    made = values({"hcas": 1, "socket_interface": "10.9.0.0/16"}, seen(nics, routes=table, mounts=mounts))
    assert made == {"NCCL_IB_HCA": "=mlx5_3", "NCCL_SOCKET_IFNAME": "=e2"}


# -- 4, 5: one link layer and rate; the declared number --------------------------------------------------------------------


def test_rule_4_link_layers_and_rates_are_never_mixed() -> None:
    nics = (port("a"), port("b"), port("c", link_layer="Ethernet", rate_gbps=400.0), port("d", rate_gbps=100.0))
    assert hca.choose(nics, (), expected=2).compute == ("a", "b")


def test_rule_5_more_ports_than_declared_is_a_problem_too() -> None:
    nics, pci = machine()
    assert hca.choose(nics, pci, expected=3).problems == ("3 compute ports expected, 4 usable",)


# -- 6: exact names, only when needed. 7, never by rank: tests/hooks/test_task_prolog_env.py ---------------------------------


def test_rule_6_no_list_where_nccl_takes_exactly_these() -> None:
    nics = tuple(port(f"mlx5_{i}") for i in (1, 2, 10))
    assert values({"hcas": 3}, seen(nics)) == {}
    extra = (*nics, port("mlx5_11", rate_gbps=25.0))
    assert values({"hcas": 3}, seen(extra)) == {"NCCL_IB_HCA": "=mlx5_1,mlx5_2,mlx5_10"}


# -- 8: RoCE addresses ------------------------------------------------------------------------------------------------------


def gids(*texts: str) -> tuple[Gid, ...]:
    """Each address twice, as RoCE v1 and v2, after the two link-local ones."""
    whole = ["fe80:0000:0000:0000:b83f:d203:0011:2233", *texts]
    return tuple(Gid(2 * i + v - 1, text, v) for i, text in enumerate(whole) for v in (1, 2))


def rail(number: int, *texts: str) -> Nic:
    return port(f"mlx5_{number}", f"0000:{number:02x}:00.0", link_layer="Ethernet", gids=gids(*texts))


def four(a: int, b: int, c: int, d: int) -> str:
    return f"0000:0000:0000:0000:0000:ffff:{a:02x}{b:02x}:{c:02x}{d:02x}"


ONE = tuple(rail(i, four(10, i, 0, 5)) for i in range(4))
TWO = tuple(rail(i, four(192, 168, i, 5), four(10, i, 0, 5)) for i in range(4))


def test_rule_8_one_address_for_each_port_needs_no_word() -> None:
    assert values({}, seen(ONE)) == {}
    assert values({"roce_subnet": "10.0.0.0/8"}, seen(ONE)) == {}


def test_rule_8_several_addresses_take_the_declared_network() -> None:
    assert values({"roce_subnet": "10.0.0.0/8"}, seen(TWO)) == {"NCCL_IB_ADDR_RANGE": "10.0.0.0/8"}
    made = nccl.draft(nccl.NcclWant(), seen(TWO))
    assert made.lines == () and "mlx5_0 has several RoCE v2 addresses (192.168.0.5, 10.0.0.5)" in made.notes[0]
    stray = (*TWO[:3], rail(3, four(192, 168, 3, 5)))
    assert (
        "mlx5_3 without an address in 10.0.0.0/8"
        in nccl.draft(nccl.NcclWant(roce_subnet="10.0.0.0/8"), seen(stray)).problems[0].reason
    )


def test_rule_8_addresses_of_ipv6_only() -> None:
    six = tuple(rail(i, f"fd02:0000:0000:000{i}:0000:0000:0000:0005") for i in range(2))
    assert values({}, seen(six)) == {"NCCL_IB_ADDR_FAMILY": "AF_INET6"}
    mixed = (six[0], ONE[1])
    assert "mlx5_0 without a RoCE v2 address of the kind that" in nccl.draft(nccl.NcclWant(), seen(mixed)).problems[0].reason


def test_rule_8_an_index_only_before_2_21_and_only_where_it_is_right_on_every_port() -> None:
    made = nccl.draft(nccl.NcclWant(gid_index=3), seen(ONE))
    assert made.problems[0].reason == "NCCL 2.21 and later finds the address itself"
    assert values({"gid_index": 3, "nccl_version": "2.18.3"}, seen(ONE)) == {"NCCL_IB_GID_INDEX": "3"}
    one_is_v1 = (
        *ONE[:3],
        replace(ONE[3], gids=tuple(replace(g, version=1) if g.index == 3 else g for g in gids(four(10, 3, 0, 5)))),
    )
    wrong = nccl.draft(nccl.NcclWant(gid_index=3, nccl_version="2.18"), seen(one_is_v1))
    assert wrong.problems[0].reason == "index 3 is not a RoCE v2 address of IPv4 on mlx5_3"
    undeclared = nccl.draft(nccl.NcclWant(nccl_version="2.18"), seen(ONE))
    assert undeclared.lines == () and "index 3 is RoCE v2 on all ports here" in undeclared.notes[0]


def test_rule_8_addresses_that_cannot_be_read_are_not_judged() -> None:
    hidden = (*ONE[:3], replace(ONE[3], gids=unreadable("Permission denied")))
    made = nccl.draft(nccl.NcclWant(roce_subnet="10.0.0.0/8"), seen(hidden))
    assert made.lines == () == made.problems and "mlx5_3: its addresses cannot be read" in made.notes[0]


@pytest.mark.parametrize("text", ["", "zero", "0000:0000:0000:0000:0000:0000:0000:0000", "fe80::1"])
def test_rule_8_no_address(text: str) -> None:
    assert roce.address(Gid(0, text, 2)) is None


# -- 9: the interface of NCCL's sockets -------------------------------------------------------------------------------------


def plain(name: str, state: str = "UP", **more: object) -> Nic:
    return port(name, rdma=False, link_layer="Ethernet", state=state, **more)


DOCKER = (plain("docker0"), plain("br-9f3a"), plain("veth1"), plain("cni0"), plain("eth1", state="DOWN"))


def interface(wish: str, nics: tuple[Nic, ...], table: str = ROUTES, addresses6: str = "", routes6: str = "") -> nccl_conf.Draft:
    return socket.draft(wish, socket.Network(nics=nics, routes=table, addresses6=addresses6, routes6=routes6))


def test_rule_9_the_default_route_never_a_container_interface() -> None:
    table = routes(("eth0", "0.0.0.0", "0.0.0.0", "10.0.0.1"), ("docker0", "172.17.0.0", "255.255.0.0", "0.0.0.0"))
    assert interface("auto", (*DOCKER, plain("eth0")), table).lines[0].value == "=eth0"
    assert interface("auto", (*DOCKER, plain("eth0"))).lines[0].value == "=eth0"  # no route: the only one that is up
    over_docker = routes(("docker0", "0.0.0.0", "0.0.0.0", "172.17.0.1"))
    for made in (interface("auto", DOCKER), interface("auto", DOCKER, over_docker), interface("auto", (plain("a"), plain("b")))):
        assert made.lines == () == made.problems and "NCCL chooses itself" in made.notes[0]
    assert interface("none", (plain("eth0"),), table) == nccl_conf.Draft()


def test_rule_9_by_network_whatever_the_name() -> None:
    table = routes(("ib0", "10.1.0.0", "255.255.0.0", "0.0.0.0"), ("eth0", "10.2.0.0", "255.255.0.0", "0.0.0.0"),
                   ("eth0", "10.1.0.0", "255.255.0.0", "10.2.0.1"))  # fmt: skip
    assert interface("10.1.0.0/16", (plain("ib0"),), table).lines[0].value == "=ib0"
    for wish, words in (("10.3.0.0/16", "no interface with an address in 10.3.0.0/16"), ("10.0.0.0/8", "ib0, eth0 are all in")):
        assert words in interface(wish, (plain("ib0"),), table).problems[0].reason
    assert interface("10.1.0.0/16", (plain("ib0", "DOWN"),), table).problems[0].reason == "interface ib0 is DOWN"


def test_rule_9_ipv6_only() -> None:
    default = f"{'0' * 32} 00 {'0' * 32} 00 fe800000000000000000000000000001 00000400 00000001 00000000 00000003     eth0\n"
    reject = default.replace("00000003     eth0", "00200200       lo")
    own = "fd0200000000000000000000000000a5 02 40 00 80     eth0\nfe8000000000000000000000000000a5 02 40 20 80     eth0\n"
    made = interface("auto", (plain("eth0"), plain("eth1")), ROUTES, own, reject + default)
    assert [(x.name, x.value) for x in made.lines] == [("NCCL_SOCKET_IFNAME", "=eth0"), ("NCCL_SOCKET_FAMILY", "AF_INET6")]
    by_network = interface("fd02::/16", (plain("eth0"),), ROUTES, own)
    assert [x.value for x in by_network.lines] == ["=eth0", "AF_INET6"]
    assert interface("auto", (plain("eth0"), plain("eth1")), ROUTES, "", reject).lines == ()
    assert route.parse_addresses6("short\n" + own)[0][0] == "eth0" and len(route.parse_addresses6(own)) == 1


@pytest.mark.parametrize("text", ["", "x y z", "0" * 32 + " 00", "g" * 32 + " 00 0 0 0 0 0 0 1 eth0"])
def test_rule_9_any_text_of_the_kernel(text: str) -> None:
    assert route.default_interface6(text) == "" and route.parse_addresses6(text) == ()


# -- 10: topology files (tests/nccl/test_nccl.py, tests/nccl/test_fabrics.py), bare metal ------------------------------------


def test_rule_10_never_on_bare_metal() -> None:
    made = nccl.draft(nccl.NcclWant(topology_file="/etc/nccl/t.xml"), seen((), topologies={"/etc/nccl/t.xml": "<system/>"}))
    assert made.lines == () == made.problems and any("not for bare metal" in n for n in made.notes)


# -- 12: names may differ; what must not differ is refused; no network where there is none to use ---------------------------


def test_rule_12_nothing_where_nodes_compute_alone_and_nothing_that_ranks_must_share() -> None:
    nics, pci = machine()
    assert values({"network": False}, seen(nics, pci=pci)) == {}
    stated = nccl.Stated(name="NCCL_PROTO", value="Simple", why="x")
    with pytest.raises(ConfigError, match=r"settings.nccl.variables.NCCL_PROTO: must be equal on all ranks"):
        nccl.draft(nccl.NcclWant(variables=(stated,)), seen(nics))


def test_variables_of_a_profile_keep_to_their_nccl_and_give_way_to_the_site() -> None:
    old = nccl.Stated(name="NCCL_X", value="1", why="because", source="vendor", nccl=">=2.10,<2.20")
    assert values({"variables": (old,)}, seen(())) == {}
    assert values({"variables": (old,), "nccl_version": "2.19.3"}, seen(())) == {"NCCL_X": "1"}
    always = replace(old, nccl="")
    made = nccl.draft(nccl.NcclWant(variables=(always,)), seen(()))
    assert made.lines == (nccl_conf.ConfLine("NCCL_X", "1", "because [vendor]"),)
    assert values({"variables": (always,), "extra": {"NCCL_X": "2"}}, seen(())) == {"NCCL_X": "2"}


def test_versions() -> None:
    assert (
        nccl_version.within((2, 21), ">=2.21")
        and not nccl_version.within((2, 20, 5), ">=2.21")
        and nccl_version.within((2, 30), "")
    )
    with pytest.raises(ValueError, match="not a range"):
        nccl_version.within((2, 21), "=2.21")


# -- the facts behind them, from sysfs --------------------------------------------------------------------------------------


def test_facts_of_a_roce_port_are_read(tmp_path: Path) -> None:
    """GIDs with a free place between them (EINVAL is an empty or absent file in a tree), MTU, and the bond above an interface."""
    function = tmp_path / "sys/devices/pci0000:a0/0000:aa:00.0"
    folder, net, bond = function / "infiniband/mlx5_6/ports/1", function / "net/eth6", tmp_path / "sys/devices/virtual/net/bond0"
    for made in (folder, net, bond):
        made.mkdir(parents=True)
    for link, target in (
        ("sys/class/infiniband/mlx5_6", folder.parents[1]),
        ("sys/class/net/eth6", net),
        ("sys/devices/pci0000:a0/0000:aa:00.0/infiniband/mlx5_6/device", function),
        ("sys/devices/pci0000:a0/0000:aa:00.0/net/eth6/master", bond),
    ):
        at = tmp_path / link
        at.parent.mkdir(parents=True, exist_ok=True)
        at.symlink_to(os.path.relpath(target, at.parent))
    (net / "mtu").write_text("9000\n")
    (folder / "link_layer").write_text("Ethernet\n")
    known = {0: ("fe80::1", "IB/RoCE v1"), 1: ("fe80::1", "RoCE v2"), 5: (four(10, 0, 0, 9), "RoCE v2")}
    for index, (text, kind) in known.items():
        for sub, word in (("gids", text), ("gid_attrs/types", kind)):
            (folder / sub).mkdir(parents=True, exist_ok=True)
            (folder / sub / str(index)).write_text(word + "\n")
    found = next(n for n in gather(Root(str(tmp_path)), unreadable("no")).nics if n.name == "mlx5_6")
    assert (found.mtu_bytes, found.master) == (9000, "bond0")
    assert not isinstance(found.gids, Missing)
    assert [(g.index, g.version) for g in found.gids] == [(0, 1), (1, 2), (5, 2)]
    assert [str(a) for a in roce.addresses(found)] == ["10.0.0.9"]
    (folder / "gid_attrs/types/1").unlink()
    (folder / "gid_attrs/types/1").symlink_to("1")  # as unreadable as a file without permission
    found = next(n for n in gather(Root(str(tmp_path)), unreadable("no")).nics if n.name == "mlx5_6")
    assert isinstance(found.gids, Missing)
