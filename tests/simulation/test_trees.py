"""The committed machine trees: they are what the generator writes, and PCI tools read and write them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.lab import trees
from tests.lab.faultytrees import EDITS, committed
from tests.lab.machines import gres_conf, read_nvml, slurm_node, write_machine
from tests.lab.trees import MACHINES

HEALTHY = ("hgx-h100", "hgx-a100", "l40s-pcie")
pci_tools = pytest.mark.skipif(not shutil.which("lspci"), reason="needs lspci and setpci (pciutils)")


def contents(tree: Path) -> dict[str, object]:
    """Every file's bytes and every link's target by path; directories as None."""
    found: dict[str, object] = {}
    for directory, folders, files in os.walk(tree):
        for name in [*folders, *files]:
            path = Path(directory, name)
            key = str(path.relative_to(tree))
            found[key] = str(path.readlink()) if path.is_symlink() else None if path.is_dir() else path.read_bytes()
    return found


def differing(a: Path, b: Path) -> set[str]:
    left, right = contents(a), contents(b)
    return {key for key in left.keys() | right.keys() if left.get(key, "absent") != right.get(key, "absent")}


def lspci(tree: Path, *words: str) -> str:
    command = ["lspci", "-A", "linux-sysfs", "-O", f"sysfs.path={tree}/sys/bus/pci", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def setpci(tree: Path, *words: str) -> str:
    command = ["setpci", "-A", "linux-sysfs", "-O", f"sysfs.path={tree}/sys/bus/pci", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


@pytest.mark.parametrize("name", sorted(committed()))
def test_the_committed_tree_is_what_the_generator_writes(name, tmp_path):
    committed()[name](tmp_path / name)
    assert differing(MACHINES / name, tmp_path / name) == set(), "run: python -m tests.lab.machines"


def test_no_tree_is_there_that_nobody_writes():
    readme = {path.parent.name: path.read_text() for path in MACHINES.glob("*/README.md")}
    assert {path.name for path in MACHINES.iterdir() if path.is_dir()} == readme.keys() == set(trees.names())
    assert {name for name, text in readme.items() if "written by hand" in text} == set(committed())
    assert all(f"`{name}`" in (trees.SOURCES / "README.md").read_text() for name in committed())


@pytest.mark.parametrize("name", sorted(EDITS))
def test_a_faulty_tree_is_the_tuned_one_but_for_its_fault(name):
    changed = differing(MACHINES / "hgx-h100.tuned", MACHINES / name)
    assert changed - {"README.md", "nvml.json", "dev/kmsg"} == {
        key for key in changed
        if re.search(r"/(config|current_link_(width|speed)|numa_node|local_cpulist)$", key)
    }  # fmt: skip
    assert "nvml.json" in changed and name.partition(".")[2] in (MACHINES / name / "README.md").read_text()


def test_the_faults_are_where_their_readme_says():
    gpu = {name: read_nvml(MACHINES / name)["gpus"] for name in EDITS}
    assert gpu["hgx-h100.xid79"][3]["name"] == {"error": 15} and gpu["hgx-h100.xid79"][3]["pci"] == "0000:61:00.0"
    assert "Xid (PCI:0000:61:00): 79," in (MACHINES / "hgx-h100.xid79/dev/kmsg").read_text()
    assert gpu["hgx-h100.row-remap-failed"][5]["remap"]["failed"] == 1
    assert gpu["hgx-h100.width-x8"][2]["pcie"]["width_current"] == 8
    assert (MACHINES / "hgx-h100.width-x8/sys/bus/pci/devices/0000:52:00.0/current_link_width").read_text() == "8\n"
    assert set(map(json.dumps, gpu["hgx-h100.ecc-unreadable"][6]["ecc"].values())) == {'{"error": 999}'}
    devices = (MACHINES / "hgx-h100.numa-minus-1/sys/bus/pci/devices").iterdir()
    assert {(device / "numa_node").read_text() for device in devices} == {"-1\n"}


@pytest.mark.parametrize("name", sorted(committed()))
def test_every_link_ends_inside_its_tree(name):
    tree = MACHINES / name
    links = [path for path in tree.rglob("*") if path.is_symlink()]
    assert links
    for link in links:
        assert not link.readlink().is_absolute()
        assert link.resolve(strict=True).is_relative_to(tree.resolve())


@pytest.mark.parametrize(
    ("name", "gpus", "nics", "gpu"),
    [("hgx-h100", 8, 10, "10de:2330"), ("hgx-a100", 8, 9, "10de:20b2"), ("l40s-pcie", 8, 2, "10de:26b9")],
)
@pci_tools
def test_lspci_reads_the_tree(name, gpus, nics, gpu):
    tree = MACHINES / name
    listed = lspci(tree, "-n", "-D").splitlines()
    assert len(listed) == len(list((tree / "sys/bus/pci/devices").iterdir()))
    assert sum(f"0302: {gpu}" in line for line in listed) == gpus
    assert sum(": 15b3:" in line for line in listed) == nics
    everything = lspci(tree, "-vvv", "-D")
    ports = len(re.findall(r"^\S+ PCI bridge", everything, re.MULTILINE))
    upstream = everything.count("Upstream Port")
    assert everything.count("Access Control Services") == ports - upstream  # root ports and downstream ports have it
    assert everything.count("ACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-") == (
        ports - upstream
    )
    assert "Unknown" not in re.sub(r"(AttnInd|PwrInd) Unknown", "", everything)


@pci_tools
def test_setpci_writes_the_tree(tmp_path):
    tree = write_machine(tmp_path / "node", "hgx-h100", cpus=2)
    assert setpci(tree, "-s", "17:02.0", "ECAP_ACS+6.w") == "001d"
    setpci(tree, "-s", "17:02.0", "ECAP_ACS+6.w=0000")
    assert setpci(tree, "-s", "17:02.0", "ECAP_ACS+6.w") == "0000"
    assert setpci(tree, "-s", "17:00.0", "ECAP_ACS+6.w") == "001d"
    assert setpci(tree, "-s", "1b:00.0", "CAP_EXP+8.w")[0] == "2"  # MaxReadReq 512
    written = (tree / "sys/bus/pci/devices/0000:17:02.0").resolve().relative_to(tree.resolve()) / "config"
    assert differing(tree, write_machine(tmp_path / "untouched", "hgx-h100", cpus=2)) == {str(written)}


def test_each_h100_shares_its_switch_with_one_infiniband_hca():
    devices = MACHINES / "hgx-h100/sys/bus/pci/devices"
    beside = {}
    for gpu in read_nvml(MACHINES / "hgx-h100")["gpus"]:
        upstream = (devices / gpu["pci"]).resolve().parent.parent
        beside[gpu["index"]] = [hca.name for hca in sorted(upstream.glob("*/*/infiniband/*"))]
    assert beside == {n: [f"mlx5_{m}"] for n, m in enumerate((0, 2, 3, 4, 5, 7, 8, 9))}  # 1 and 6 are storage NICs


def test_nvml_sysfs_and_proc_name_the_same_gpus():
    for name in HEALTHY:
        tree = MACHINES / name
        for gpu in read_nvml(tree)["gpus"]:
            device = tree / "sys/bus/pci/devices" / gpu["pci"]
            assert (device / "local_cpulist").read_text().strip() == gpu["cpu_affinity"]
            assert int((device / "numa_node").read_text()) == gpu["numa"]
            assert (device / "driver").readlink().name == "nvidia"
            assert gpu["uuid"] in (tree / "proc/driver/nvidia/gpus" / gpu["pci"] / "information").read_text()


def test_gres_conf_and_the_node_line():
    lines = gres_conf(MACHINES / "hgx-h100").splitlines()
    assert lines[0] == "Name=gpu Type=h100 File=/dev/nvidia0 Cores=0-55"
    assert lines[7] == "Name=gpu Type=h100 File=/dev/nvidia7 Cores=56-111"
    assert gres_conf(MACHINES / "hgx-a100", "/lab").splitlines()[0] == "Name=gpu Type=a100 File=/lab/nvidia0 Cores=48-63"
    assert slurm_node(MACHINES / "hgx-a100").line("n1", State="UNKNOWN") == (
        "NodeName=n1 Sockets=2 CoresPerSocket=64 ThreadsPerCore=2 RealMemory=1024000 Gres=gpu:a100:8 State=UNKNOWN"
    )


@pytest.mark.parametrize("cpus", [2, 3, 8])
def test_the_small_variant_has_the_same_devices_on_fewer_cpus(cpus, tmp_path):
    for model in HEALTHY:
        tree = write_machine(tmp_path / f"{model}-{cpus}", model, cpus=cpus)
        full, small = (sorted(p.name for p in (t / "sys/bus/pci/devices").iterdir()) for t in (MACHINES / model, tree))
        assert full == small
        nodes = {(tree / f"sys/devices/system/node/node{n}/cpulist").read_text().strip() for n in (0, 1)}
        assert {gpu["cpu_affinity"] for gpu in read_nvml(tree)["gpus"]} == nodes
        assert {line.rpartition("=")[2] for line in gres_conf(tree).splitlines()} == nodes


def test_two_nodes_differ_in_what_identifies_them_and_in_nothing_else(tmp_path):
    a = write_machine(tmp_path / "a", "hgx-h100", node="gpu1", cpus=2)
    b = write_machine(tmp_path / "b", "hgx-h100", node="gpu2", cpus=2)
    c = write_machine(tmp_path / "c", "hgx-h100", node="gpu1", cpus=2, seed=1)
    kinds = r"nvml\.json|boot_id|information|node_guid|node_desc|address|gids/[0-3]"
    for other in (b, c):
        changed = differing(a, other)
        assert changed and all(re.search(rf"(^|/)({kinds})$", key) for key in changed)
        assert not {g["uuid"] for g in read_nvml(a)["gpus"]} & {g["uuid"] for g in read_nvml(other)["gpus"]}


def test_what_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(ValueError, match="hgx-b100: no such machine model; there are hgx-a100, hgx-h100, l40s-pcie"):
        write_machine(tmp_path / "x", "hgx-b100")
    with pytest.raises(ValueError, match="at least 2 CPUs"):
        write_machine(tmp_path / "x", "hgx-h100", cpus=1)
    write_machine(tmp_path / "x", "l40s-pcie", cpus=2)
    with pytest.raises(FileExistsError):
        write_machine(tmp_path / "x", "l40s-pcie", cpus=2)
