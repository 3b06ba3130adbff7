"""Files around a table of pairs: CSV, the file of leaves, the ports' report, the heat map."""

from __future__ import annotations

import os
import random
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.cli.fabric_report import leaves_at
from fairlead.errors import DataError, SlurmError
from fairlead.measure.fabric_jobs import FabricJobs
from fairlead.measure.pairs import heat_map, leaf_file, pair_csv, port_report
from fairlead.measure.pairs.fabric_verdict import PairLimits
from fairlead.measure.pairs.pair_judgement import judge
from fairlead.measure.pairs.pair_table import LeafSource, Leaves, PairValue, Stage
from fairlead.measure.pairs.port_report import NodePorts
from fairlead.slurm.node_groups import NodeGroup
from fairlead.slurm_config.topology_conf import render_conf, render_yaml
from fairlead.topology.fabric.scalable_units import Block, Blocks, Switch, SwitchTree
from tests.measure.fabric_simulation import CASES, SimulatedFabric
from tests.topology.fabrics import rails

NODES = [f"n{k}" for k in range(1, 7)]

# -- CSV ------------------------------------------------------------------------------------------


VALUES = st.builds(
    PairValue,
    round=st.integers(1, 9999),
    node_a=st.sampled_from(NODES[:3]),
    node_b=st.sampled_from(NODES[3:]),
    rail=st.sampled_from(["", "0", "7", "mlx5_3"]),
    gbps=st.floats(0.001, 1e5).map(lambda x: float(f"{x:.6g}")),
    stage=st.sampled_from([None, *Stage]),
)


@given(st.lists(VALUES, unique_by=lambda v: (v.round, v.pair, v.rail)))
def test_a_table_is_read_as_it_was_written(values: list[PairValue]) -> None:
    if values:
        assert list(pair_csv.parse(pair_csv.render(values), "t.csv")) == values


def test_a_table_without_header_and_stage_and_with_failed_rows() -> None:
    read = pair_csv.parse("# of March\n1,n1,n2,,46.8\n1, n3 ,n4,,failed\n\n", "t.csv")
    assert [(v.gbps, v.failed, v.stage) for v in read] == [(46.8, False, None), (None, True, None)]


BAD = """round,node_a,node_b,rail,gbps
1,n1,n2,,46.8
0,n1,n3,,46.8
1,n2,n1,,40
2,n1,n1,,46.8
2,n1,n2;rm,,46.8
2,n1,n2,,nan
2,n1,n2,,-1
2,n3,n4,,46.8,middle
2,n3
2,n5,n6,,46.8"""
LINES = (3, 4, 5, 6, 7, 8, 9, 10, 11)


def test_all_mistakes_are_named_at_once_with_their_lines() -> None:
    with pytest.raises(DataError) as wrong:
        pair_csv.parse(BAD, "pairs.csv")
    said = str(wrong.value)
    assert said.startswith("pairs.csv: ") and "\n" not in said.split("\n  next", maxsplit=1)[0]
    assert all(f"line {number}: " in said for number in LINES), said
    assert "line 2" not in said.replace("as in line 2", "") and "cut off" in said and "as in line 2" in said
    for text in ("", "round,node_a,node_b,rail,gbps\n", "# nothing\n"):
        with pytest.raises(DataError, match="it has no row"):
            pair_csv.parse(text, "t.csv")


@given(st.text(st.characters(codec="utf-8"), max_size=400))
def test_no_text_does_more_than_raise_one_line(text: str) -> None:
    try:
        pair_csv.parse(text, "t.csv")
    except DataError as e:
        assert [c for c in str(e) if not c.isprintable() and c != "\n"] == [] and len(str(e)) < 6000


# -- the leaves -----------------------------------------------------------------------------------


TREE = SwitchTree(switches=(Switch(name="leaf1", nodes=("n1", "n2", "n3")), Switch(name="leaf2", nodes=("n4", "n5", "n6")),
                            Switch(name="spine", switches=("leaf1", "leaf2"))))  # fmt: skip
BLOCKS = Blocks(blocks=(Block(name="b1", nodes=("n1", "n2", "n3")), Block(name="b2", nodes=("n4", "n5", "n6"))), sizes=(3, 6))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (render_conf(TREE), ("leaf1", "leaf2")),
        (render_conf(BLOCKS), ("b1", "b2")),
        (render_yaml({"fabric": TREE}), ("leaf1", "leaf2")),
        (render_yaml({"nvlink": BLOCKS}), ("b1", "b2")),
        ("# ours\nleaf1: n[1-3]\nleaf2 n[4-6]\n", ("leaf1", "leaf2")),
        ("leaf1: n[1-3]\nleaf2: n4\nleaf2: n[5-6]\n", ("leaf1", "leaf2")),
        (
            "".join(
                f"n{k}: CliqueId : 1\nn{k}: ClusterUUID : {'a' if k < 4 else 'b'}{'0' * 7}-0000-0000-0000-000000000001\n"
                for k in range(1, 7)
            ),
            ("nvl-a0000000-1", "nvl-b0000000-1"),
        ),
    ],
    ids=["conf", "blocks", "yaml", "yaml blocks", "lines", "lines twice", "NVLink domains"],
)
def test_leaves_are_read_from_any_of_these_files(text: str, names: tuple[str, str]) -> None:
    found = leaf_file.read(text, "FILE", NODES)
    assert found.of == {f"n{k}": names[0] if k < 4 else names[1] for k in range(1, 7)}
    assert found.source is LeafSource.DECLARED


def test_leaves_come_from_a_dump_of_a_rail_optimised_fabric() -> None:
    """The group of nodes with the same leaf switches is one leaf."""
    made = rails(units=2, nodes=3)
    found = leaf_file.read(made.dump(), "ib.txt", NODES)
    assert found.of == {f"n{k}": "su-leaf1-1" if k < 4 else "su-leaf2-1" for k in range(1, 7)}
    ports = leaf_file.switch_ports(made.dump(), "ib.txt", NODES)
    assert ports["n5"]["mlx5_3"] == "leaf2-4 port 2" and len(ports["n5"]) == 4
    assert leaf_file.switch_ports("leaf1: n[1-6]\n", "t", NODES) == {}
    with pytest.raises(DataError, match="cut off"):
        leaf_file.read(made.dump()[:-300], "ib.txt", NODES)


def test_leaves_come_from_lldp_of_every_node() -> None:
    def heard(switch: str) -> str:
        port = {"id": {"type": "ifname", "value": "Ethernet1"}}
        chassis = {switch: {"id": {"type": "mac", "value": "00:01"}, "capability": [{"type": "Bridge", "enabled": True}]}}
        return msgspec.json.encode({"lldp": {"interface": {"eth0": {"chassis": chassis, "port": port}}}}).decode()

    texts = {f"n{k}": heard("tor1" if k < 4 else "tor2") for k in range(1, 7)}
    assert leaf_file.switch_ports_by_lldp(texts, NODES[3:])["n4"] == {"eth0": "tor2 port Ethernet1"}
    assert leaf_file.read_lldp(texts, "lldp", NODES).of == {f"n{k}": "tor1" if k < 4 else "tor2" for k in range(1, 7)}


class TopologyReported:
    """slurmctld's answer to `scontrol show topology`, or that it gives none."""

    def __init__(self, groups: dict[str, tuple[str, ...]] | None) -> None:
        self.groups = groups

    def topology(self) -> tuple[NodeGroup, ...]:
        if self.groups is None:
            raise SlurmError("scontrol: no answer")
        return tuple(NodeGroup("switch", name, frozenset(nodes)) for name, nodes in self.groups.items())


@pytest.mark.parametrize(
    ("groups", "source", "said"),
    [
        ({"s1": ("n1", "n2", "n3"), "s2": ("n4", "n5", "n6"), "s3": ("n7",)}, LeafSource.DISCOVERED, ""),
        ({}, LeafSource.UNKNOWN, ""),
        (None, LeafSource.UNKNOWN, "slurmctld's topology cannot be used: scontrol: no answer"),
        ({"s1": ("n1", "n2")}, LeafSource.UNKNOWN, "slurmctld's topology cannot be used: slurmctld: no leaf for n[3-6]"),
    ],
)
def test_without_a_file_slurmctld_is_asked_for_the_leaves(
    groups: dict[str, tuple[str, ...]] | None, source: LeafSource, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = leaves_at("", NODES, cast("FabricJobs", TopologyReported(groups)))
    assert found.source is source and said in capsys.readouterr().err
    if source is LeafSource.DISCOVERED:
        assert found.of == {"n1": "s1", "n2": "s1", "n3": "s1", "n4": "s2", "n5": "s2", "n6": "s2"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("leaf1: n[1-3]\n", "no leaf for n[4-6]"),
        ("leaf1: n[1-6]\nleaf2: n6\n", "n6 on more than one leaf"),
        ("leaf1: n[1-\nwhat is this\n", "line 1: nodelist"),
        ("", "names no leaf"),
        ("SwitchName=spine Switches=leaf[1-2]\n", "names no leaf"),
        ("\x1b[2Jleaf: n1\n", "line 1"),
    ],
)
def test_a_wrong_file_of_leaves_is_refused_in_one_line(text: str, said: str) -> None:
    with pytest.raises(DataError) as wrong:
        leaf_file.read(text, "FILE", NODES)
    assert said in str(wrong.value) and "\x1b" not in str(wrong.value)


# -- ports ----------------------------------------------------------------------------------------


MARK = "#fairlead-00ff"


def machine(folder: Path, *, errors: int = 0) -> Path:
    for device in ("mlx5_0", "mlx5_1"):
        port = folder / "class/infiniband" / device / "ports/1"
        for name, value in (("symbol_error", errors if device == "mlx5_1" else 0), ("port_xmit_data", 10**12)):
            (port / "counters").mkdir(parents=True, exist_ok=True)
            (port / "counters" / name).write_text(f"{value}\n")
        (port / "hw_counters").mkdir(exist_ok=True)
        (port / "hw_counters/out_of_sequence").write_text("7\n")
        (port / "state").write_text("4: ACTIVE\n")
    return folder


def report(folder: Path, node: str) -> str:
    """What the script of a node prints, as srun --label passes it on."""
    run = os.environ.get("FAIRLEAD_RUN", "/nowhere")
    env = {"PATH": "/usr/bin:/bin", "SLURMD_NODENAME": node, "FAIRLEAD_SYS": str(folder), "FAIRLEAD_RUN": run}
    done = subprocess.run(
        ["/bin/sh", "-c", port_report.script(MARK)], env=env, capture_output=True, text=True, timeout=30, check=True
    )
    return "".join(f"{node[1:]}: {line}\n" for line in done.stdout.splitlines())


def test_the_script_reads_the_ports_and_their_counters(tmp_path: Path) -> None:
    before = port_report.parse(MARK, report(machine(tmp_path), "n1"))
    assert set(before["n1"].counters) == {"mlx5_0/1", "mlx5_1/1"}
    assert before["n1"].counters["mlx5_1/1"] == {"symbol_error": 0, "port_xmit_data": 10**12, "out_of_sequence": 7}
    after = port_report.parse(MARK, report(machine(tmp_path, errors=1204), "n1"))
    assert port_report.rises(before["n1"], after["n1"]) == {"mlx5_1/1": {"symbol_error": 1204}}
    rises = {"n1": port_report.rises(before["n1"], after["n1"]), "n2": {"mlx5_0/1": {"symbol_error": 3}}}
    said = port_report.evidence("n1", rises, {"mlx5_1/1": "MT2301VS01234"}, {"mlx5_1": "leaf1-2 port 4"})
    ends = "mlx5_1/1 (at leaf1-2 port 4, cable MT2301VS01234)"
    assert said == f"{ends} symbol_error +1204 in the run, median of the other ports +3"
    assert port_report.evidence("n2", rises, {}, {}) == "", "others rose more"
    assert port_report.rises(after["n1"], before["n1"]) == {}, "somebody has cleared the counters"
    assert port_report.parse(MARK, report(tmp_path / "no-such-folder", "n2")) == {"n2": NodePorts(counters={})}


PUBLISHED = """1\tnode\tn1\t3\t0-7\t8\t1
gpu\t1\t1\tGPU-a\t0000:1b:00.0\t0\t0-3\tmlx5_0\tF
gpu\t0\t0\tGPU-b\t0000:43:00.0\t0\t0-3\tmlx5_1,mlx5_2\tF
gpu\t2\t2\tGPU-c\t0000:9b:00.0\t1\t4-7\t-\tF0
"""


def test_the_script_says_which_adapters_are_nearest_to_each_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From what the node's agent has published, in the order of the GPUs' PCI addresses."""
    (tmp_path / "topology").write_text(PUBLISHED)
    monkeypatch.setenv("FAIRLEAD_RUN", str(tmp_path))
    folder = machine(tmp_path / "sys")
    net = folder / "class/infiniband/mlx5_1/device/net/ens3np0"
    net.mkdir(parents=True)
    found = port_report.parse(MARK, report(folder, "n1"))["n1"]
    assert found.hcas == ("mlx5_0", "mlx5_1,mlx5_2", "") and found.interfaces == {"mlx5_1": "ens3np0"}
    words = ("node n3", "gpu x mlx5_0", "gpu 0000:1b:00.0 a;b", "interface mlx5_0/1 ../x", "done")
    rude = "".join(f"3: {MARK} {each}\n" for each in words)
    assert port_report.parse(MARK, rude)["n3"] == NodePorts(counters={})


def test_no_node_reports_for_another(tmp_path: Path) -> None:
    honest = report(machine(tmp_path), "n1")
    lie = f"2: {MARK} node n1\n2: {MARK} count mlx5_0/1 symbol_error 999999\n2: {MARK} done\n"
    assert port_report.parse(MARK, honest + lie) == {}, "two tasks say that they are n1: neither is believed"
    twice = f"2: {MARK} node n2\n2: {MARK} node n3\n2: {MARK} done\n"
    assert set(port_report.parse(MARK, honest + twice)) == {"n1"}
    cut = honest.rpartition("1: ")[0]
    assert port_report.parse(MARK, cut) == {}, "its end is missing"
    words = ("node n3", "cable mlx5_0/1 \x1b[2Jx\u202e", "count ../x y 1", f"count mlx5_0/1 a {9**40}", "done")
    rude = "".join(f"3: {MARK} {each}\n" for each in words)
    found = port_report.parse(MARK, rude)["n3"]
    assert found.counters == {} and all(c.isprintable() for c in found.cables["mlx5_0/1"])


@given(st.text(max_size=300))
def test_no_report_raises(text: str) -> None:
    port_report.parse(MARK, f"1: {MARK} {text}\n")


# -- the heat map ---------------------------------------------------------------------------------


@pytest.mark.parametrize("words", ["all healthy", "3 nodes slow by 15 %, one uplink at 0.80", "1,024 nodes, all healthy"])
def test_the_map_is_whole_xml_with_two_cells_for_each_pair(words: str) -> None:
    fabric = SimulatedFabric(next(case for case in CASES if case.words == words), random.Random(1))
    plan, values = fabric.run("1")
    verdict = judge(values, plan.leaves, plan.limits)
    drawn = heat_map.draw(values, plan.leaves, verdict, plan.limits, "a title")
    root = ET.fromstring(drawn)
    colours = {heat_map.FAST, heat_map.SLOW, heat_map.BAD, heat_map.FAILED}
    cells = [r for r in root.iter("{http://www.w3.org/2000/svg}rect") if r.get("fill") in colours and r.get("height") != "12"]
    assert len(cells) == 2 * len(values)
    assert len(drawn) < 3_000_000


def test_names_in_the_map_and_in_the_page_are_escaped() -> None:
    name = 'l<script>"&\x1b[2J'
    leaves = Leaves(source=LeafSource.DECLARED, of={"n1": name, "n2": name, "n3": "other"}, detail="<b>")
    values = (PairValue(round=1, node_a="n1", node_b="n2", gbps=1.0), PairValue(round=2, node_a="n1", node_b="n3", failed=True))
    verdict = judge(values, leaves, PairLimits())
    drawn = heat_map.draw(values, leaves, verdict, PairLimits(), "<title>")
    page = heat_map.page(values, leaves, verdict, PairLimits(), "<title>")
    assert ET.fromstring(drawn) is not None
    for text in (drawn, page):
        assert "<script" not in text and "\x1b" not in text and "&lt;script&gt;" in text
    assert "default-src 'none'" in page
