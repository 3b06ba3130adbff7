"""Fabrics: what ibnetdiscover and lldpd print becomes the same graph, the same tree of units, and no node is lost."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest
from ClusterShell.NodeSet import NodeSet
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from fairlead.errors import DataError
from fairlead.model.nodelist import expand, fold, in_order
from fairlead.slurm_config.topology_conf import named_nodes, render_conf, render_yaml
from fairlead.topology.fabric import lldp, nvlink_domains
from fairlead.topology.fabric.ibnetdiscover import parse, refuse_cut
from fairlead.topology.fabric.scalable_units import SwitchTree, blocks, switch_tree, unit_blocks
from fairlead.topology.fabric.switch_fabric import AdapterRule, SwitchFabric, attach, switch_names
from tests.topology.fabrics import Made, rails

DATA = Path(__file__).resolve().parents[3] / "shared/data/ibnetdiscover"
SAMPLES = sorted(p.name for p in DATA.glob("*.ibnetdiscover")) or ["no dumps"]
LEAF = "MF0;{}:MQM9700/U1"

FEW = settings(max_examples=25, deadline=None)
names = st.builds("{}{}".format, st.sampled_from(["a", "b", "n", "gpu-", "r1-n"]), st.integers(0, 12))


def expected(made: Made) -> SwitchFabric:
    links = frozenset((min(pair), max(pair)) for pair in made.links)
    return SwitchFabric(switches=dict(sorted(made.switches.items())), adapters=dict(sorted(made.adapters.items())), links=links)


@st.composite
def fabrics(draw: st.DrawFn) -> Made:
    """Any fabric of a few switches and hosts; every adapter is linked, switches may have one name."""
    made = Made()
    words = st.one_of(names.map(LEAF.format), st.just("Quantum Mellanox Technologies"), names)
    switches = [made.switch(draw(words)) for _ in range(draw(st.integers(1, 6)))]
    for host in draw(st.lists(names, min_size=1, max_size=8, unique=True)):
        for at, switch in enumerate(draw(st.lists(st.sampled_from(switches), min_size=1, max_size=4))):
            made.link(switch, made.adapter(f"{host} {draw(st.sampled_from(['HCA-', 'mlx5_']))}{at}"))
    for a, b in draw(st.lists(st.tuples(st.sampled_from(switches), st.sampled_from(switches)), max_size=8)):
        if a != b:
            made.link(a, b)
    return made


@FEW
@given(fabrics(), st.randoms(use_true_random=False))
def test_a_dump_becomes_the_same_fabric_in_either_format(made: Made, shuffle: random.Random) -> None:
    linked = {guid for link in made.links for guid, _ in link}
    assert parse(made.dump(shuffle)) == expected(made)
    assume(linked >= made.switches.keys())  # -p tells of a switch by its ports only
    assert parse(made.ports(shuffle, unlinked=True)) == expected(made)


@FEW
@given(fabrics(), st.randoms(use_true_random=False))
def test_no_node_is_lost_and_the_order_of_lines_does_not_matter(made: Made, shuffle: random.Random) -> None:
    first, second = (parse(text) for text in (made.dump(), made.dump(shuffle)))
    attached = attach(first, AdapterRule())
    hosts = {words.split()[0] for words in made.adapters.values()}
    assert set(attached.nodes) == hosts
    shown = switch_tree(first, attached)
    at_leaves = [node for switch in shown.switches for node in switch.nodes]
    assert sorted(at_leaves) == sorted(hosts)
    below = [name for switch in shown.switches for name in switch.switches]
    assert len(below) == len(set(below))
    named = [switch.name for switch in shown.switches]
    assert len(named) == len(set(named)) and set(below) <= set(named) and all(len(name) <= 64 for name in named)
    assert named_nodes(render_conf(shown)) == hosts == named_nodes(render_yaml({"fabric": shown}))
    assert render_conf(switch_tree(second, attach(second, AdapterRule()))) == render_conf(shown)
    made_blocks = unit_blocks(first, attached)
    assert made_blocks.nodes() == hosts and min(len(b.nodes) for b in made_blocks.blocks) == made_blocks.sizes[0]
    assert render_conf(unit_blocks(second, attach(second, AdapterRule()))) == render_conf(made_blocks)


@FEW
@given(fabrics())
def test_what_the_fabric_joins_the_tree_joins_and_nothing_else(made: Made) -> None:
    fabric = parse(made.dump())
    pairs = fabric.between_switches()
    assume(pairs)
    shown = switch_tree(fabric, attach(fabric, AdapterRule()))
    parent = {child: switch.name for switch in shown.switches for child in switch.switches}

    def root(name: str) -> str:
        return root(parent[name]) if name in parent else name

    leaf_of = {node: switch.name for switch in shown.switches for node in switch.nodes}
    reach = {switch: {switch} for switch in fabric.switches}
    hung = attach(fabric, AdapterRule()).nodes
    for a, b in [*pairs, *((min(s), other) for s in hung.values() for other in s)]:  # a node joins its leaves
        both = reach[a] | reach[b]
        reach.update(dict.fromkeys(both, both))
    for a in hung:
        for b in hung:
            assert (root(leaf_of[a]) == root(leaf_of[b])) == (min(hung[a]) in reach[min(hung[b])])


def test_rails_collapse_into_units_and_aggregation_nodes_are_no_hosts() -> None:
    fabric = parse(rails().dump())
    shown = switch_tree(fabric, attach(fabric, AdapterRule()))
    assert render_conf(shown) == (
        "SwitchName=su-leaf1-1 Nodes=n[1-4]\nSwitchName=su-leaf2-1 Nodes=n[5-8]\nSwitchName=fabric Switches=su-leaf[1-2]-1\n"
    ).replace("su-leaf[1-2]-1", "su-leaf1-1,su-leaf2-1")
    assert shown.notes == ()
    assert shown.switches[0].real == tuple(f"leaf1-{rail}" for rail in range(1, 5))
    assert render_conf(unit_blocks(fabric, attach(fabric, AdapterRule()))) == (
        "BlockName=su-leaf1-1 Nodes=n[1-4]\nBlockName=su-leaf2-1 Nodes=n[5-8]\nBlockSizes=4,8\n"
    )
    assert render_yaml({"fabric": shown}) == (
        "- topology: fabric\n  cluster_default: true\n  tree:\n    switches:\n"
        '      - switch: su-leaf1-1\n        nodes: "n[1-4]"\n      - switch: su-leaf2-1\n        nodes: "n[5-8]"\n'
        '      - switch: fabric\n        children: "su-leaf1-1,su-leaf2-1"\n'
    )


def test_a_node_with_a_dead_or_a_wrong_rail_stays_in_its_unit_and_is_named() -> None:
    made = rails()
    dead = next(guid for guid, words in made.adapters.items() if words == "n2 mlx5_3")
    wrong = next(guid for guid, words in made.adapters.items() if words == "n6 mlx5_0")
    leaf = next(guid for guid, words in made.switches.items() if "leaf1-1" in words)
    made.links = [link for link in made.links if dead not in (link[0][0], link[1][0]) and wrong not in (link[0][0], link[1][0])]
    made.link(leaf, wrong)
    fabric = parse(made.dump())
    shown = switch_tree(fabric, attach(fabric, AdapterRule()))
    assert [switch.nodes for switch in shown.switches[:2]] == [("n1", "n2", "n3", "n4"), ("n5", "n6", "n7", "n8")]
    assert set(shown.notes) == {
        "n2 lacks 1 of the 4 leaves of its unit",
        "n6 lacks 1 of the 4 leaves and is connected to 1 other of its unit",
    }


def test_shared_storage_leaves_do_not_merge_the_units() -> None:
    made = rails(units=3)
    storage = made.switch(LEAF.format("storage1"))
    for number in range(1, 13):
        made.link(storage, made.adapter(f"n{number} mlx5_9"))
    made.link(storage, next(iter(made.switches)))
    fabric = parse(made.dump())
    assert [s.nodes for s in switch_tree(fabric, attach(fabric, AdapterRule())).switches if s.nodes] == [
        tuple(f"n{n}" for n in range(first, first + 4)) for first in (1, 5, 9)
    ]
    one_rail = attach(fabric, AdapterRule(ports=re.compile("mlx5_[0-3]")))
    assert all(len(leaves) == 4 for leaves in one_rail.nodes.values())


def test_pods_get_a_level_of_their_own_and_separate_fabrics_stay_apart() -> None:
    made = Made()
    cores = [made.switch(LEAF.format(f"core{n}")) for n in (1, 2)]
    for pod in ("a", "b"):
        spines = [made.switch(LEAF.format(f"{pod}-spine{n}")) for n in (1, 2)]
        for number in (1, 2):
            leaf = made.switch(LEAF.format(f"{pod}-leaf{number}"))
            made.link(leaf, made.adapter(f"{pod}{number} mlx5_0"))
            for spine in spines:
                made.link(leaf, spine)
        for spine in spines:
            for core in cores:
                made.link(spine, core)
    fabric = parse(made.dump())
    shown = switch_tree(fabric, attach(fabric, AdapterRule()))
    assert render_conf(shown).splitlines()[4:] == [
        "SwitchName=pod-a-leaf1 Switches=a-leaf[1-2]",
        "SwitchName=pod-b-leaf1 Switches=b-leaf[1-2]",
        "SwitchName=fabric Switches=pod-a-leaf1,pod-b-leaf1",
    ]
    made.links = [link for link in made.links if not {link[0][0], link[1][0]} & set(cores)]
    fabric = parse(made.dump())
    isolated = switch_tree(fabric, attach(fabric, AdapterRule()))
    assert "fabric" not in render_conf(isolated)
    assert isolated.notes == ("2 parts of the fabric are not joined: no job can span them (pod-a-leaf1, pod-b-leaf1)",)


def test_switches_of_one_name_or_none_are_named_by_guid() -> None:
    made = Made()
    guids = [made.switch(words) for words in ("Quantum Mellanox Technologies", "MF0;twin:X/U1", "MF0;twin:X/U2", "leaf 1, left")]
    found = switch_names(parse(made.dump()))
    assert [found[guid] for guid in guids] == [f"ib-{guids[0]}", f"twin-{guids[1]}", f"twin-{guids[2]}", "leaf-1-left"]


def test_which_hosts_are_nodes() -> None:
    made = Made()
    leaf = made.switch(LEAF.format("leaf1"))
    for words in (
        "n1.site.example HCA-1",
        "n2 mlx5_0",
        "ufm1 HCA-1",
        "localhost HCA-1",
        "MT4129 ConnectX7   Mellanox Technologies",
    ):
        made.link(leaf, made.adapter(words))
    fabric = parse(made.dump())
    unset = next(guid for guid, words in made.adapters.items() if words.startswith("localhost"))
    rule = AdapterRule(
        known=frozenset({"n1", "n2", "n3", "n4"}), rename={unset: "n3", "MT4129 ConnectX7   Mellanox Technologies": "n4"}
    )
    found = attach(fabric, rule)
    assert set(found.nodes) == {"n1", "n2", "n3", "n4"} and found.others == ("ufm1",) and found.unnamed == {}
    free = attach(fabric, AdapterRule(running=frozenset({"n1"})))
    assert set(free.nodes) == {"n1", "n2", "ufm1"}
    assert free.unnamed == {"MT4129 ConnectX7   Mellanox Technologies": 1, "localhost HCA-1": 1}


# -- dumps that are not whole, and text that is none --------------------------------------------------


def refused_or_whole(text: str, whole: SwitchFabric) -> bool:
    """Whether the text is refused, in one line; if not, it says the same of every link."""
    try:
        found = parse(text)
        refuse_cut(found)
    except DataError as e:
        assert "\n" not in str(e)
        return True
    assert found.links == whole.links and found.switches == whole.switches
    return False


@pytest.mark.parametrize("form", ["dump", "ports"])
def test_a_dump_cut_after_any_line_is_refused(form: str) -> None:
    text: str = getattr(rails(units=1, nodes=2, each=2), form)()
    lines = text.splitlines(keepends=True)
    whole = parse(text)
    refuse_cut(whole)
    refused = [refused_or_whole("".join(lines[:kept]), whole) for kept in range(len(lines))]
    assert all(refused[: len(lines) * 2 // 3])  # the blocks of aggregation nodes may be the last


@FEW
@given(st.integers(0, 10**6))
def test_a_dump_cut_anywhere_is_refused(at: int) -> None:
    text = rails(units=1, nodes=2, each=2).dump()
    refused_or_whole(text[: at % (len(text) - 1)], parse(text))


@FEW
@given(st.text(max_size=200), st.integers(0, 10**6))
@example('[1]\t"S-0000000000000000"[1]\t\t# "" lid 1 4xNDR\n', 0)
def test_text_in_the_middle_of_a_dump_is_refused_or_read(text: str, at: int) -> None:
    whole = rails(units=1, nodes=1, each=1).dump()
    for sample in (text, whole[: at % len(whole)] + text + whole[at % len(whole) :]):
        try:
            parse(sample)
        except DataError as e:
            assert "\n" not in str(e)


AGGREGATION = "Mellanox Technologies Aggregation Node"


def test_a_dump_in_which_only_an_aggregation_node_lacks_its_block_is_whole() -> None:
    path = DATA / "topograph_example.ibnetdiscover"
    if not path.is_file():
        pytest.skip(f"recorded dumps are not here: {path}")
    whole = path.read_text()
    blocks = whole.split("\n\n")
    without = [
        b
        for b in blocks
        if not (
            AGGREGATION in b.split('"')[3:4] or (b.lstrip().startswith("vendid") and f'# "{AGGREGATION}"' in b and "\nCa" in b)
        )
    ]
    assert len(without) < len(blocks)
    fabric = parse("\n\n".join(without))
    refuse_cut(fabric)
    assert fabric.links == parse(whole).links and fabric.one_sided == ()
    host = next(i for i, b in enumerate(without) if "\nCa" in b)
    with pytest.raises(DataError, match="reported by one end only"):
        refuse_cut(parse("\n\n".join(without[:host] + without[host + 1 :])))


@pytest.mark.parametrize("name", SAMPLES)
def test_real_dumps_parse(name: str) -> None:
    if not (DATA / name).exists():
        pytest.skip(f"{DATA}: no InfiniBand dumps here")
    fabric = parse((DATA / name).read_text(), name)
    attached = attach(fabric, AdapterRule())
    assert not any("Aggregation" in node for node in attached.nodes)
    assert switch_tree(fabric, attached).nodes() == frozenset(attached.nodes)
    assert fabric.switches or not fabric.links


def test_a_real_rail_fabric_becomes_its_units() -> None:
    if not (DATA / "topograph_example.ibnetdiscover").exists():
        pytest.skip(f"{DATA}: no InfiniBand dumps here")
    fabric = parse((DATA / "topograph_example.ibnetdiscover").read_text())
    refuse_cut(fabric)
    shown = switch_tree(fabric, attach(fabric, AdapterRule()))
    assert [len(s.nodes) for s in shown.switches] == [10, 11, 18, 17, 18, 15, 16, 15, 0]
    assert all(len({node.rsplit("-", 1)[0] for node in s.nodes if "dgx" in node}) == 1 for s in shown.switches[:-1])
    assert shown.switches[-1].real == tuple(f"{row}10-P1-IBSPINE-{n:02}" for row, n in [*(("A", n) for n in (1, 2, 3, 4)),
        *(("B", n) for n in (5, 6, 7, 8, 9))])  # fmt: skip


# -- nodelists ----------------------------------------------------------------------------------------


@FEW
@given(st.sets(st.from_regex(r"[ab]-?[0-9]{0,3}", fullmatch=True), max_size=20))
@example({"n9", "n09", "n10", "n010", "n", "n8"})
def test_folded_names_are_the_same_names(found: set[str]) -> None:
    found = {name for name in found if not name.endswith("-")}
    text = fold(found)
    assert text == fold(sorted(found, reverse=True))
    if found:
        assert sorted(expand(text)) == sorted(found)
        assert set(NodeSet(text)) == found


def test_nodelists_are_short_and_in_order() -> None:
    assert fold(f"gpu{n:02}" for n in range(1, 17)) == "gpu[01-16]"
    assert fold(f"n{n}" for n in (*range(1, 13), 15)) == "n[1-12,15]"
    assert fold(["login", "n1-ib", "n2-ib", "a007"]) == "a007,login,n1-ib,n2-ib"
    assert in_order(["n10", "n9", "n9"]) == ["n9", "n10"]


# -- LLDP and NVLink domains --------------------------------------------------------------------------


def heard(interface: str, switch: str, port: str, *kinds: str) -> dict[str, object]:
    said = [{"type": kind, "enabled": True} for kind in kinds]
    return {interface: {"via": "LLDP", "chassis": {switch: {"id": {"type": "mac", "value": "aa"}, "capability": said}},
                        "port": {"id": {"type": "ifname", "value": port}}}}  # fmt: skip


def test_lldp_of_nodes_and_switches() -> None:
    one = json.dumps({"lldp": {"interface": heard("ens1", "leaf1", "swp1", "Bridge", "Router")}})  # one neighbour: no list
    two = json.dumps(
        {"lldp": {"interface": [heard("ens1", "leaf1", "swp2", "Bridge"), heard("ens2", "leaf2", "swp2", "Bridge")]}}
    )
    json0 = json.dumps({"lldp": [{"interface": [{"name": "ens1", "chassis": [{"id": [{"type": "mac", "value": "aa"}],
        "name": [{"value": "leaf3"}], "capability": [{"type": "Bridge", "enabled": True}]}],
        "port": [{"id": [{"type": "ifname", "value": "swp9"}]}]}]}]})  # fmt: skip
    leaf = json.dumps(
        {"lldp": {"interface": [heard("swp1", "n1", "ens1", "Station"), heard("swp50", "spine1", "swp1", "Bridge")]}}
    )
    nodes_only = lldp.parse({"n1": one, "n2": two, "n3": json0})
    assert attach(nodes_only, AdapterRule()).nodes == {
        "n1": frozenset({"leaf1"}),
        "n2": frozenset({"leaf1", "leaf2"}),
        "n3": frozenset({"leaf3"}),
    }
    shown = switch_tree(nodes_only, attach(nodes_only, AdapterRule()))
    assert shown.nodes() == {"n1", "n2", "n3"} and "no link between switches" in shown.notes[-1]
    assert len({s.name for s in shown.switches if s.switches}) == 1
    up = json.dumps({"lldp": {"interface": heard("swp50", "spine1", "swp2", "Bridge")}})
    to_leaf2 = json.dumps({"lldp": {"interface": heard("ens1", "leaf2", "swp1", "Bridge")}})
    more = lldp.parse({"n1": one, "leaf1": leaf, "leaf2": up, "n2": to_leaf2})
    assert render_conf(switch_tree(more, attach(more, AdapterRule()))) == (
        "SwitchName=leaf1 Nodes=n1\nSwitchName=leaf2 Nodes=n2\nSwitchName=spine1 Switches=leaf[1-2]\n"
    )


words = st.sampled_from(["lldp", "interface", "chassis", "port", "id", "name", "eth0"])
values = st.none() | st.booleans() | st.text(max_size=5)


@FEW
@given(st.recursive(values, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=4), max_leaves=12))
def test_any_json_is_lldp_or_refused(data: object) -> None:
    for text in (json.dumps(data), json.dumps({"lldp": data})):
        try:
            lldp.parse({"n1": text})
        except DataError as e:
            assert "\n" not in str(e)
    with pytest.raises(DataError, match="n1: not JSON, or cut off"):
        lldp.parse({"n1": '{"lldp": {"interface": '})


NVSMI = """\
{node}: Fabric
{node}:         State                             : Completed
{node}:         Status                            : Success
{node}:         CliqueId                          : {clique}
{node}:         ClusterUUID                       : {uuid}
"""
RACKS = ("3fbfc98b-7f95-4749-ab11-bd351a2aab3e", "8a1c77d0-2a0f-4a0e-9e3c-04f0c1d2e3f4")


def test_cliques_become_blocks() -> None:
    text = "".join(NVSMI.format(node=f"gb{n:02}", clique=1, uuid=RACKS[n > 18]) for n in range(1, 36)) + NVSMI.format(
        node="h1", clique=0, uuid="00000000-0000-0000-0000-000000000000"
    )
    groups, outside = nvlink_domains.groups(nvlink_domains.parse_nvsmi(text, "cliques"))
    assert outside == ("h1",)
    assert render_conf(blocks(groups)) == (
        "BlockName=nvl-3fbfc98b-1 Nodes=gb[01-18]\nBlockName=nvl-8a1c77d0-1 Nodes=gb[19-35]\nBlockSizes=17,34\n"
    )
    with pytest.raises(ValueError, match=r"fewer nodes are in nvl-8a1c77d0-1 \(17\)"):
        blocks(groups, (18,))
    with pytest.raises(ValueError, match="power of two"):
        blocks(groups, (17, 51))
    with pytest.raises(DataError, match="cut off"):
        nvlink_domains.parse_nvsmi(text[: text.rindex("h1:")], "cliques")
    both = {"gb01": frozenset({(RACKS[0].replace("-", ""), 1), (RACKS[1].replace("-", ""), 1)})}
    with pytest.raises(DataError, match="gb01: its GPUs are in 2 NVLink domains"):
        nvlink_domains.groups(both)


def test_a_tree_without_nodes_is_none() -> None:
    assert isinstance(switch_tree(expected(Made()), attach(expected(Made()), AdapterRule())), SwitchTree)


def test_a_real_nvidia_smi_of_a_node_without_such_a_domain() -> None:
    sample = DATA.parent / "nvsmi/linux-x86_64__nvidia-h100-80gb-hbm3__590.48.01.txt"
    if not sample.exists():
        pytest.skip(f"{sample}: no sample of nvidia-smi -q here")
    lines = "".join(f"h1: {line}\n" for line in sample.read_text(errors="replace").splitlines())
    assert nvlink_domains.parse_nvsmi(lines, "sample") == {"h1": frozenset()}
    assert nvlink_domains.groups({"h1": frozenset()}) == ({}, ("h1",))
