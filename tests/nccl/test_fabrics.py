"""Fabric profiles: every value with why, source and date; what they make of a node; clouds by their published files."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest

from fairlead import config
from fairlead.cli import main
from fairlead.errors import ConfigError, InputMissing
from fairlead.jobenv.environment_text import render
from fairlead.jobenv.never import NEVER
from fairlead.jobenv.variable_table import assemble
from fairlead.nccl import topology_file
from fairlead.nccl.nccl_conf import RANK_CONSISTENT, fault, parse
from tests.lab.trees import MACHINES

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"sample data not found at {DATA}")
NAMES = config.fabric_names()


def test_the_kinds_of_network_are_there() -> None:
    assert {"infiniband", "roce", "nvlink", "pcie", "tcp", "azure-nd-h100", "oci-bm-h100", "aws-efa", "gcp"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_value_says_why_who_and_when(name: str) -> None:
    fabric = config.load_fabric(name)
    assert fabric.name == name and fabric.summary
    for item in (*fabric.values, *fabric.variables, *fabric.left_out):
        assert len(item.why) > 10 and len(item.source) > 5, item
    for v in fabric.variables:
        assert v.name not in NEVER and v.nccl
        assert v.where == "job" or not fault(v.name, v.value)
    if fabric.owner:
        assert fabric.variables == ()
    document = config.profile_document("n1", "", name)
    text = render(assemble(fabric=document.jobenv.fabric))
    assert not RANK_CONSISTENT & {line.split("\t")[0] for line in text.splitlines()} - {"NCCL_NET", "NCCL_CROSS_NIC"}
    if name in ("nvlink", "pcie", "tcp") or fabric.owner:
        assert not any(line.startswith(("NCCL_NET", "NCCL_IB", "GLOO")) for line in text.splitlines())


def test_one_layer_below_the_site_and_one_fabric_a_node(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_text(
        'schema = 1\n[classes.h]\nnodes = "n[1-2]"\nprofile = "hgx-h100"\nfabric = "oci-bm-h100"\n'
        '[classes.h.settings.nccl]\nhcas = 8\n[classes.x]\nnodes = "n2"\nfabric = "roce"\n'
        '[classes.y]\nnodes = "n3"\nfabric = "no"\n'
    )
    site = config.load_site(str(path))
    document, origins = config.resolve(site, "n1", ["h"])
    want = msgspec.to_builtins(document.settings["nccl"])
    assert want["hcas"] == 8 and origins["settings.nccl.hcas"].endswith("classes.h")
    assert [v["name"] for v in want["variables"]] == ["NCCL_IB_TC", "NCCL_IB_TIMEOUT", "NCCL_IGNORE_CPU_AFFINITY"]
    assert origins["settings.nccl.variables"] == "fabric oci-bm-h100"
    assert [r.name for r in document.jobenv.fabric] == ["NCCL_NET"]
    with pytest.raises(ConfigError, match="different fabrics"):
        config.resolve(site, "n2", ["h", "x"])
    with pytest.raises(InputMissing, match=r"classes.y.fabric: fabric 'no': no such profile"):
        config.resolve(site, "n3", ["y"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ('owner = "plugin"\n', "plugin owns the variables"),
        ("", "NCCL_PROTO: must be equal on all ranks"),
        ("odd = 1\n", "unknown field"),
        ("summary = ", "Invalid value|Cannot"),
    ],
)
def test_a_sites_own_profile_is_checked(change: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(
        f'name = "own"\nsummary = "x"\n{change}[[variables]]\n'
        'name = "NCCL_PROTO"\nvalue = "Simple"\nwhere = "node"\nnccl = "any"\nwhy = "w"\nsource = "s"\nreviewed = "2026-11-21"\n'
    )
    with pytest.raises(ConfigError, match=words):
        config.load_fabric(str(path))


def unpack(name: str, folder: Path) -> Path:
    subprocess.run(["tar", "xzf", str(DATA / f"sysroots/{name}.tar.gz"), "-C", str(folder)], check=True)
    tree = folder / name
    (tree / "proc/net").mkdir(exist_ok=True)
    (tree / "proc/net/route").write_text(
        "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\nenp0\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\n"
    )
    return tree


def complete(tree: Path, layer: str, rate: str) -> None:
    """Trees made from topology files have no port attributes but the state."""
    for device in (tree / "sys/class/infiniband").iterdir():
        port = device / "ports/1"
        for name, text in (("link_layer", layer), ("rate", rate), ("phys_state", "5: LinkUp"), ("state", "4: ACTIVE")):
            (port / name).write_text(text + "\n")


def virtual(tree: Path) -> None:
    (tree / "proc/cpuinfo").write_text("processor\t: 0\nflags\t\t: fpu hypervisor\n\n")


@needs_data
def test_azure_nd_h100_by_its_own_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = unpack("d_nccl_azure_ndv5-topo", tmp_path)
    complete(tree, "InfiniBand", "400 Gb/sec (4X NDR)")
    virtual(tree)
    vendor = tree / "opt/microsoft/ndv5/topo.xml"
    vendor.parent.mkdir(parents=True)
    shutil.copy(DATA / "nccl_xml/azure_ndv5-topo.xml", vendor)
    argv = ["nccl", "conf", "--root", str(tree), "--profile", "azure-nd-h100"]
    assert main(argv) == 0
    said = capsys.readouterr().out
    assert parse(said) == {  # their own three lines, and the interface; no list, since NCCL takes exactly these eight
        "NCCL_SOCKET_IFNAME": "=enp0",
        "NCCL_TOPO_FILE": "/opt/microsoft/ndv5/topo.xml",
        "NCCL_IB_PCI_RELAXED_ORDERING": "1",
        "NCCL_IGNORE_CPU_AFFINITY": "1",
    }
    assert said.count("\n# ") == 4  # a reason above each
    shutil.copy(DATA / "nccl_xml/azure_ncv4-topo.xml", vendor)
    assert main(argv) == 78
    assert "devices that are not here" in capsys.readouterr().err
    (next((tree / "sys/class/infiniband").iterdir()) / "ports/1/state").write_text("1: DOWN\n")
    assert main(argv) == 78
    assert "8 compute ports expected, 7 usable" in capsys.readouterr().err


@needs_data
def test_oci_a100_by_its_topology(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Their file of a B4 lists 8 of the ports; the profile of the 16-port shape says so, its variables fit."""
    tree = unpack("d_nccl_oci_topo-flattened-b4", tmp_path)
    complete(tree, "Ethernet", "100 Gb/sec (2X HDR)")
    argv = ["nccl", "conf", "--root", str(tree), "--profile", "oci-bm-a100", "--json"]
    assert main(argv) == 78
    assert "16 compute ports expected, 8 usable" in capsys.readouterr().out
    site = tmp_path / "site.toml"
    site.write_text('schema = 1\n[classes.b]\nnodes = "n1"\nfabric = "oci-bm-a100"\n[classes.b.settings.nccl]\nhcas = 8\n')
    document, _ = config.resolve(config.load_site(str(site)), "n1", ["b"])
    (tmp_path / "node.json").write_bytes(config.encode_document(document))
    assert main(["nccl", "conf", "--root", str(tree), "--document", str(tmp_path / "node.json"), "--json"]) == 0
    said = msgspec.json.decode(capsys.readouterr().out)
    assert {x["name"]: x["value"] for x in said["lines"]} == {
        "NCCL_SOCKET_IFNAME": "=enp0",
        "NCCL_IB_TC": "41",
        "NCCL_IB_TIMEOUT": "22",
        "NCCL_IGNORE_CPU_AFFINITY": "1",
        "NCCL_IB_QPS_PER_CONNECTION": "4",
    }
    assert said["now"] == "absent" and all(x["why"] for x in said["lines"])


@needs_data
def test_a_recorded_h100_node_with_a_bond(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its class tree has no links to PCI devices: eight InfiniBand ports by their rate, and a bond on Ethernet left out."""
    shutil.copytree(DATA / "sysfs/sys-class-infiniband-h100.0", tmp_path / "sys/class/infiniband")
    (tmp_path / "proc/net").mkdir(parents=True)
    (tmp_path / "proc/net/route").write_text("Iface\n")
    (tmp_path / "proc/mounts").write_text("")
    path = tmp_path / "node.json"
    want = {"settings": {"nccl": {"hcas": 8}}}
    path.write_bytes(config.encode_document(config.resolve_layers("n1", [("test", want)])[0]))
    assert main(["nccl", "conf", "--root", str(tmp_path), "--document", str(path)]) == 0
    found = parse(capsys.readouterr().out)
    assert found == {"NCCL_IB_HCA": "=mlx5_0,mlx5_1,mlx5_4,mlx5_5,mlx5_6,mlx5_7,mlx5_8,mlx5_9"}


@needs_data
def test_published_topology_files_are_read() -> None:
    counts = {}
    for path in sorted((DATA / "nccl_xml").glob("*.xml")):
        if not path.name.startswith("rccl"):
            named = topology_file.named(path.read_text(errors="replace"))
            counts[path.stem] = (list(named.values()).count("GPU"), list(named.values()).count("NIC"))
    assert counts["azure_ndv5-topo"] == (8, 8) and counts["oci_topo-flattened-b4"] == (8, 8)
    assert counts["azure_ncv4-graph"] == (0, 0)


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["nccl", "conf", "x"], 64),
        (["nccl", "parse"], 64),
        (["nccl", "conf", "--root", "/nonexistent"], 66),
        (["nccl", "conf", "--root", str(MACHINES / "l40s-pcie"), "--profile", "nosuch"], 66),
        (["nccl", "conf", "--root", str(MACHINES / "l40s-pcie"), "--profile", "tcp", "--profile", "roce"], 64),
    ],
)
def test_wrong_words(argv: list[str], code: int) -> None:
    assert main(argv) == code


def test_a_review_that_is_long_ago_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "own.toml"
    path.write_text(
        'name = "own"\nsummary = "x"\n[[variables]]\nname = "NCCL_IB_TC"\nvalue = "96"\nwhere = "node"\nnccl = "any"\n'
        'why = "our switches"\nsource = "network team"\nreviewed = "2020-01-01"\n'
    )
    assert main(["nccl", "conf", "--root", str(MACHINES / "l40s-pcie"), "--profile", str(path)]) == 0
    said = capsys.readouterr()
    assert "last reviewed over a year ago: NCCL_IB_TC" in said.err
    assert "# our switches [network team]\nNCCL_IB_TC=96\n" in said.out


def test_a_vendors_platform_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nccl", "conf", "--root", str(MACHINES / "l40s-pcie"), "--profile", "aws-efa"]) == 0
    assert "is not fairlead's here" in capsys.readouterr().out
    assert main(["nccl", "conf", "--root", str(MACHINES / "l40s-pcie"), "--profile", "gcp", "--json"]) == 0
    assert msgspec.json.decode(capsys.readouterr().out)["lines"] == []


@pytest.mark.parametrize("name", ["infiniband", "roce", "tcp", "azure-nd-h100", "oci-bm-h100"])
def test_what_is_written_is_nothing_that_lint_warns_of(name: str, tmp_path: Path) -> None:
    from fairlead.jobenv.batch_script import read
    from fairlead.jobenv.script_lint import LintLevel, lint
    from fairlead.nccl.nccl_conf import ConfLine, render

    lines = tuple(ConfLine(v.name, v.value, v.why) for v in config.load_fabric(name).variables if v.where == "node")
    text = render((*lines, ConfLine("NCCL_IB_HCA", "=mlx5_1,mlx5_10", "w"), ConfLine("NCCL_SOCKET_IFNAME", "=eth0", "w"))) or ""
    found = [f for f in lint(read(text, conf=True)) if f.level is not LintLevel.INFO]
    assert [f.message for f in found] == []
