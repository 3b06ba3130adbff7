"""A guilty rail with both ends: from recorded facts of the nodes, and a recorded topology (`accept --judge`)."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import msgspec
import pytest

from fairlead.cli import main
from fairlead.host.gather import gather
from fairlead.host.root import Root
from fairlead.measure.pairs.pair_table import PairValue
from fairlead.measure.pairs.rail_ends import NodeRails, RailEnd, rail_ends, rail_text
from fairlead.topology.binding.published_files import render_topology
from tests.lab.trees import MACHINES
from tests.topology.fabrics import rails

NODES = [f"n{k}" for k in range(1, 9)]
TREE = MACHINES / "hgx-h100"


def pairs(slow_rail: str, rail_names: list[str]) -> str:
    """Four rounds in two leaves of four nodes, in which n2 has one slow rail."""
    rows, at = [], 0
    for leaf in (NODES[:4], NODES[4:]):
        for i, a in enumerate(leaf):
            for b in leaf[i + 1 :]:
                at += 1
                rows.append(f"{at},{a},{b},,{24.0 if 'n2' in (a, b) else 47.0},leaf")
    for other in ("n1", "n3"):
        at += 1
        rows += [f"{at},{other},n2,{rail},{2.9 if rail == slow_rail else 5.9},rail" for rail in rail_names]
    return "".join(f"{row}\n" for row in rows)


def judged(*words: str) -> tuple[int, str, str]:
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        code = main(["accept", "--judge", *words])
    return code, out.getvalue(), err.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pairs.csv").write_text(pairs("3", [str(k) for k in range(8)]))
    (tmp_path / "ib.txt").write_text(rails(units=2, nodes=4, each=8).dump())
    (tmp_path / "facts").mkdir()
    return tmp_path


@pytest.mark.trees
def test_a_rail_is_told_with_its_adapter_its_switch_and_its_port(folder: Path) -> None:
    """The same from a machine tree of the node, and from a copy of what its agent has published."""
    inputs = (str(folder / "pairs.csv"), f"--topology={folder}/ib.txt", f"--facts={folder}/facts")
    (folder / "facts/n2").symlink_to(TREE)
    node = gather(Root(str(TREE)), msgspec.json.decode((TREE / "nvml.json").read_bytes()))
    text = render_topology(node)
    hca = next(line.split("\t")[7] for number, line in enumerate(text.splitlines()) if number == 4)  # GPU 3 by PCI address
    where = f"leaf1-{int(hca[-1]) + 1} port 2" if hca[:-1] == "mlx5_" and int(hca[-1]) < 8 else ""
    code, out, err = judged(*inputs)
    said = f"n2: fail: rail 3 ({', '.join(filter(None, (hca, where)))}) 2.9 GB/s with 2 of 2 partners, other rails 5.9"
    assert code == 2 and out.splitlines()[0] == said and where, out + err
    (part,) = json.loads(judged(*inputs, "--json")[1])["guilty"]
    assert part["ends"] == {"3": [{"hca": hca, "switch_port": where, "cable": ""}]}
    (folder / "facts/n2").unlink()
    (folder / "facts/topology.n2").write_text(text)
    assert judged(*inputs)[1].splitlines()[0] == said
    code, _, err = judged(*inputs[:2], f"--facts={folder}/none")
    assert code == 66 and "no such folder" in err
    (folder / "facts/topology.n2").write_text(text[:-40])
    code, _, err = judged(*inputs)
    assert code == 65 and "topology.n2: topology file: not complete" in err and "copy /run/fairlead/topology" in err


def test_without_facts_a_rail_keeps_its_number_and_a_named_one_has_its_port(folder: Path) -> None:
    topology = f"--topology={folder}/ib.txt"
    assert "n2: fail: rail 3 2.9 GB/s with" in judged(str(folder / "pairs.csv"), topology)[1]
    (folder / "pairs.csv").write_text(pairs("mlx5_3", ["mlx5_2", "mlx5_3"]))
    assert "n2: fail: rail mlx5_3 (mlx5_3, leaf1-4 port 2) 2.9 GB/s with" in judged(str(folder / "pairs.csv"), topology)[1]


def test_switch_ports_of_lldp_belong_to_the_interface_of_an_adapter() -> None:
    own = NodeRails(hcas=("mlx5_0", "mlx5_1,mlx5_2"), interfaces={"mlx5_1": "ens3"}, cables={"mlx5_1/1": "MT1", "mlx5_10/1": "X"})
    values = [PairValue(round=1, node_a="a", node_b="b", rail=rail, gbps=1.0) for rail in ("0", "1", "7", "ens3")]
    found = rail_ends(values, {"a": own}, {"a": {"ens3": "tor1 port 4"}})["a"]
    assert rail_text("1", found["1"]) == "1 (mlx5_1, tor1 port 4, cable MT1; mlx5_2)"
    assert found["0"] == (RailEnd(hca="mlx5_0"),) and found["7"] == ()
    assert rail_text("ens3", found["ens3"]) == "ens3 (ens3, tor1 port 4)"
