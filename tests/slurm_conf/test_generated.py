"""What `fairlead slurm-config` makes, read by real Slurm: slurmctld's topology and nodes, slurmd's cores and GPUs."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.cli import main
from fairlead.model.cpulist import format_cpulist
from fairlead.slurm.node_groups import NodeGroup, parse_topology
from tests.lab import roots
from tests.lab.cluster import Cluster
from tests.lab.machines import expand
from tests.lab.nvml.library import build, write_conf
from tests.lab.slurmd import detect, divide, put_nvml
from tests.lab.trees import MACHINES
from tests.topology.fabrics import rails

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: real Slurm runs in namespaces"),
]

NODES = 4
TREE = MACHINES / "hgx-a100"


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """fabric: two units of two nodes on four rails. cliques: the same nodes in two NVLink domains."""
    folder = tmp_path_factory.mktemp("fabric")
    (folder / "fabric").write_text(rails(nodes=2).dump())
    lines = []
    for number in range(1, NODES + 1):
        uuid = f"{'ab'[number > 2] * 8}-0000-4000-8000-000000000000"
        lines += [f"n{number}:  CliqueId : 1\n", f"n{number}:  ClusterUUID : {uuid}\n"]
    (folder / "cliques").write_text("".join(lines))
    return folder


def made(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(["slurm-config", *map(str, argv)]) == 0
    return capsys.readouterr().out


def topology(cluster: Cluster, *name: str) -> set[NodeGroup]:
    """As slurmctld has it, once it answers."""
    deadline = time.monotonic() + 90
    while not (found := set(parse_topology(cluster.scontrol("show", "topology", *name, check=False)))):
        assert time.monotonic() < deadline, cluster.logs()
        time.sleep(0.05)
    return found


def reload(cluster: Cluster, files: dict[str, str], extra_conf: str) -> None:
    """These files beside slurm.conf, and slurmctld anew: a change of plug-in needs that (slurm.conf(5), TopologyPlugin)."""
    cluster.stop_slurmctld()
    for name in ("topology.conf", "topology.yaml"):
        (cluster.folder / "etc" / name).unlink(missing_ok=True)
    cluster.write_conf(extra_conf=extra_conf, topology="")
    for name, text in files.items():
        (cluster.folder / "etc" / name).write_text(text)
    cluster.start_slurmctld()


def groups(kind: str, *names: str) -> set[NodeGroup]:
    halves = (range(1, 3), range(3, 5))
    return {NodeGroup(kind, name, frozenset(f"n{n}" for n in half)) for name, half in zip(names, halves, strict=True)}


@pytest.mark.parametrize("suite", list(roots.SUITES))
def test_slurmctld_reads_what_we_made(suite: str, dumps: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fabric = ("topology", "--ibnetdiscover", str(dumps / "fabric"), "--nodes", "n[1-4]")
    tree = made(capsys, *fabric)
    leaves = groups("switch", "su-leaf1-1", "su-leaf2-1")
    with Cluster(suite, nodes=NODES, extra_conf="TopologyPlugin=topology/tree", topology=tree) as cluster:
        shown = cluster.scontrol("show", "topology")
        assert set(parse_topology(shown)) == leaves
        top = next(line for line in shown.splitlines() if "SwitchName=fabric" in line)
        assert re.search(r"Nodes=n\[1-4\]", top) and "Switches=su-leaf1-1,su-leaf2-1" in top
        spread = cluster.run(["/usr/bin/srun", "-N2", "--switches=1", "hostname"], user="root").stdout
        assert spread.split() == ["lab"] * 2
        if roots.SUITES[suite] != "22.05":  # topology/block came with 23.11
            block = made(capsys, *fabric, "--kind", "block")
            reload(cluster, {"topology.conf": block}, "TopologyPlugin=topology/block")
            assert topology(cluster) == groups("block", "su-leaf1-1", "su-leaf2-1")
        if roots.SUITES[suite] >= "25.05":
            both = made(capsys, *fabric, "--cliques", str(dumps / "cliques"), "--format", "yaml")
            reload(cluster, {"topology.yaml": both}, "")
            assert topology(cluster, "fabric") == leaves
            assert topology(cluster, "nvlink") == groups("block", "nvl-aaaaaaaa-1", "nvl-bbbbbbbb-1")
        _nodes_and_gres(cluster, capsys)


def _nodes_and_gres(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    """The same cluster by our NodeName lines and our gres.conf: n1 is an hgx-h100, and its slurmd registers so."""
    trees = [f"n{n}={MACHINES / 'hgx-h100'}" for n in range(1, NODES + 1)]
    lines = made(capsys, "nodes", *trees)
    gres = made(capsys, "gres", *trees)
    assert [line.split()[0] for line in lines.splitlines()[1:]] == ["NodeName=n[1-4]"]
    ours = f"{lines.splitlines()[1]} NodeHostname=lab NodeAddr=127.0.0.1 Port=[6901-6904] State=UNKNOWN"
    cluster.stop_slurmctld()
    cluster.stop_slurmd("n1")
    cluster.write_conf(extra_conf="", topology="")
    for name in ("topology.conf", "topology.yaml"):
        (cluster.folder / "etc" / name).unlink(missing_ok=True)
    conf = cluster.folder / "etc/slurm.conf"
    kept = [line for line in conf.read_text().splitlines() if not line.startswith("NodeName=")]
    conf.write_text("\n".join([*kept, ours]) + "\n")
    (cluster.folder / "etc/gres.conf").write_text(gres)
    cluster.start_slurmctld()
    cluster.start_slurmd("n1")
    cluster.wait_idle()
    shown = cluster.scontrol("-o", "show", "node", "n1")
    for word in (
        "CPUTot=112",
        "Sockets=2",
        "CoresPerSocket=56",
        "ThreadsPerCore=1",
        "RealMemory=2064384",
        "Gres=gpu:h100:8(S:0-1)",
    ):
        assert f"{word} " in shown, word


# -- slurmd on a machine's own sysfs ------------------------------------------------------------------

#: hwloc reads the machine's tree (hwloc's documentation, "Environment Variables"), and takes it for a foreign one, so it binds
#: nothing.
HWLOC = ("HWLOC_FSROOT=/tree", "HWLOC_THISSYSTEM=0")
MASKS = {"core_cpus_list": "core_cpus", "thread_siblings_list": "thread_siblings", "shared_cpu_list": "shared_cpu_map"}


def _mask(cpus: list[int]) -> str:
    digits = f"{sum(1 << cpu for cpu in cpus):x}"
    digits = digits.zfill(-(-len(digits) // 8) * 8)
    return ",".join(digits[i : i + 8] for i in range(0, len(digits), 8)) + "\n"


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with tree/: the CPUs of an hgx-a100 (2 packages, 8 NUMA nodes, 32 L3 caches, 2 threads a core) as hwloc
    wants them, which reads masks where our trees have lists only."""
    folder = tmp_path_factory.mktemp("machine")
    source, system = TREE, folder / "tree/sys/devices/system"
    shutil.copytree(source / "sys/devices/system", system, symlinks=True)
    shutil.copytree(source / "proc", folder / "tree/proc", symlinks=True)
    packages: dict[str, list[int]] = {}
    for path in system.glob("cpu/cpu[0-9]*"):
        packages.setdefault((path / "topology/physical_package_id").read_text(), []).append(int(path.name[3:]))
    for path in system.glob("cpu/cpu[0-9]*"):
        own = packages[(path / "topology/physical_package_id").read_text()]
        (path / "topology/package_cpus").write_text(_mask(own))
        (path / "topology/core_siblings").write_text(_mask(own))
        for listed in (*path.glob("topology/*_list"), *path.glob("cache/*/*_list")):
            listed.with_name(MASKS[listed.name]).write_text(_mask(expand(listed.read_text().strip())))
    for listed in system.glob("node/node*/cpulist"):
        listed.with_name("cpumap").write_text(_mask(expand(listed.read_text().strip())))
    yield folder
    shutil.rmtree(folder)


def _shape(text: str) -> list[str]:
    return re.findall(r"(?:CPUs|Boards|SocketsPerBoard|CoresPerSocket|ThreadsPerCore)=\d+", text)


@pytest.mark.parametrize("suite", list(roots.SUITES))
def test_slurmd_counts_the_sockets_and_cores_that_we_do(
    suite: str, machine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = str(TREE)
    modes = {"package": ()}
    if roots.SUITES[suite] >= "25":  # slurmd -C --parameters is of 25.05
        modes |= {"numa": ("--parameters=numa_node_as_socket",), "l3": ("--parameters=l3cache_as_socket",)}  # type: ignore[dict-item]
    for kind, argv in modes.items():
        theirs = detect(suite, machine, tmp_path / "layer", "-C", *argv, env=HWLOC)
        assert _shape(theirs) == _shape(made(capsys, "nodes", tree, "--socket", kind))


def test_memory_is_counted_as_slurmd_does(machine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    theirs = re.search(r"RealMemory=(\d+)", detect("trixie", machine, tmp_path / "layer", "-C", env=HWLOC))
    ours = re.search(r"RealMemory=(\d+)", made(capsys, "nodes"))  # this machine, which slurmd sees too
    assert theirs and ours and theirs[1] == ours[1]


@pytest.mark.parametrize("suite", ["bookworm", "trixie"])
def test_slurmd_detects_the_cores_and_links_that_we_write(
    suite: str, machine: Path, tmp_path: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    """AutoDetect=nvml alone, then with our lines beside it, which slurmd checks against what it found."""
    tree = str(TREE)
    host = socket.gethostname()
    content = tmp_path / "content"
    shutil.copytree(machine / "tree", content / "tree", symlinks=True)
    put_nvml(content, suite, build(Path(request.config.cache.mkdir("simulated-nvml"))))
    write_conf(TREE, content / "etc/fairlead-sim/nvml.conf")
    etc = content / "etc/slurm"
    etc.mkdir()
    own_key = "" if roots.SUITES[suite] == "22.05" else "AuthType=auth/slurm\nCredType=cred/slurm\n"  # no munged runs here
    (etc / "slurm.key").write_bytes(os.urandom(1024))
    (etc / "slurm.key").chmod(0o600)
    line = made(capsys, "nodes", f"{host}={tree}").splitlines()[1]
    (etc / "slurm.conf").write_text(
        f"ClusterName=lab\nSlurmctldHost={host}\nSlurmUser=slurm\n{own_key}GresTypes=gpu\n"
        f"SlurmdParameters=config_overrides\n{line}\nPartitionName=all Nodes={host}\n"
    )
    ours = ("gres", f"{host}={tree}", "--socket", "numa")  # a GPU's own NUMA node, as it is detected
    gpus = json.loads(made(capsys, *ours, "--json"))["gres"][0]["gpus"]
    expected = [(g["type"], g["file"], format_cpulist(tuple(g["cores"])), ",".join(map(str, g["links"]))) for g in gpus]
    assert len(expected) == 8
    checked = made(capsys, *ours, "--autodetect", "nvml")
    for text in (f"NodeName={host} AutoDetect=nvml\n", checked):
        (etc / "gres.conf").write_text(text)
        output = detect(suite, content, tmp_path / "layer", "-G", "-f", "/etc/slurm/slurm.conf", env=HWLOC)
        found = re.findall(
            r"Gres Name=gpu Type=(\S+) Count=1 Index=\d+ ID=\d+ File=(\S+) Cores=(\S+) CoreCnt=\d+ Links=(\S+)", output
        )
        assert found == expected and "mismatch" not in output, output
    # The check is one: another socket's cores are noticed.
    (etc / "gres.conf").write_text(checked.replace("Cores=48-63", "Cores=64-79"))
    assert "mismatching Cores" in detect(suite, content, tmp_path / "layer", "-G", "-f", "/etc/slurm/slurm.conf", env=HWLOC)


# -- a site: classes, MIG and partitions ---------------------------------------------------------------

SITE = """
schema = 1
[classes.divided]
nodes = "{divided}"
profile = "hgx-h100"
[classes.divided.settings.mig]
geometry = ["3g.40gb", "2g.20gb", "1g.10gb", "1g.10gb"]
by_gpu = {{ "0000:1b:00.0" = [] }}
[classes.whole]
nodes = "n[3-4]"
profile = "hgx-h100"
[partitions.small]
classes = ["divided"]
options = {{ MaxTime = 60, Default = true }}
[partitions.all]
classes = ["divided", "whole"]
options = {{ MaxTime = "2-00:00:00", State = "UP" }}
"""


@pytest.mark.parametrize("suite", list(roots.SUITES))
def test_slurmctld_reads_the_files_of_a_site(suite: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = tmp_path / "site.toml"
    site.write_text(SITE.format(divided="n[1-2]"))
    trees = [f"{name}={MACHINES / 'hgx-h100'}" for name in ("divided", "whole")]
    with Cluster(suite, nodes=NODES) as cluster:
        cluster.stop_slurmctld()
        for number in range(1, NODES + 1):
            cluster.stop_slurmd(f"n{number}")  # what it finds on this machine would take the place of the Gres that we wrote
        etc = cluster.folder / "etc"
        made(capsys, "all", "--site", str(site), *trees, "--write", str(etc))
        # Nodes of one machine need a port each.
        nodes = (etc / "nodes.conf").read_text()
        for first, last, ports in ((1, 2, "6901-6902"), (3, 4, "6903-6904")):
            more = f"NodeHostname=lab NodeAddr=127.0.0.1 Port=[{ports}] State=UNKNOWN"
            nodes = re.sub(rf"(NodeName=n\[{first}-{last}\] .*)", rf"\1 {more}", nodes)
        (etc / "nodes.conf").write_text(nodes)
        conf = etc / "slurm.conf"
        kept = [line for line in conf.read_text().splitlines() if not line.startswith(("NodeName=", "PartitionName="))]
        conf.write_text("\n".join([*kept, "Include nodes.conf", "Include partitions.conf"]) + "\n")
        cluster.start_slurmctld("-c")  # 24.11 and newer would take the Gres of the nodes from the saved state
        deadline = time.monotonic() + 90
        while "NodeName=n4" not in (shown := cluster.scontrol("-o", "show", "node", check=False)):
            assert time.monotonic() < deadline, cluster.logs()
            time.sleep(0.05)
        divided, whole = (next(x for x in shown.splitlines() if x.startswith(f"NodeName={n} ")) for n in ("n1", "n3"))
        assert "Gres=gpu:3g.40gb:7,gpu:2g.20gb:7,gpu:1g.10gb:14,gpu:h100:1 " in divided
        assert "Gres=gpu:h100:8 " in whole and "CPUTot=112 " in whole
        partitions = cluster.scontrol("-o", "show", "partition").splitlines()
        small, everything = (next(x for x in partitions if x.startswith(f"PartitionName={n} ")) for n in ("small", "all"))
        assert " Nodes=n[1-2] " in small and " Default=YES " in small and " MaxTime=01:00:00 " in small
        assert " Nodes=n[1-4] " in everything and " Default=NO " in everything and " MaxTime=2-00:00:00 " in everything


@pytest.mark.parametrize("suite", ["bookworm", "trixie"])
def test_slurmd_finds_the_instances_that_the_site_declares(
    suite: str, machine: Path, tmp_path: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    """Seven GPUs are divided and one is whole: slurmd counts each type as our NodeName line does, and discards nothing.

    Slurm 22.05 makes 3g.39gb of 39936 MiB, as on a real A100 with 80 GB, where the profile is called 3g.40gb: --mig-type says so.
    Slurm 24.11 takes the type from NVML's name of the instance.
    """
    by_memory = roots.SUITES[suite] == "22.05"
    host, content = socket.gethostname(), tmp_path / "content"
    site = tmp_path / "site.toml"
    site.write_text(SITE.format(divided=host).replace("hgx-h100", "hgx-a100").replace("0000:1b:00.0", "0000:07:00.0"))
    shutil.copytree(machine / "tree", content / "tree", symlinks=True)
    put_nvml(content, suite, build(Path(request.config.cache.mkdir("simulated-nvml"))))
    write_conf(TREE, content / "etc/fairlead-sim/nvml.conf")
    divide(content, range(1, 8), [(4, 0), (3, 4), (0, 6), (0, 7)])  # 3g.40gb, 2g.20gb and twice 1g.10gb; GPU 0 stays whole
    etc = content / "etc/slurm"
    etc.mkdir(parents=True)
    own_key = "" if roots.SUITES[suite] == "22.05" else "AuthType=auth/slurm\nCredType=cred/slurm\n"  # no munged runs here
    (etc / "slurm.key").write_bytes(os.urandom(1024))
    (etc / "slurm.key").chmod(0o600)
    words = ("--site", str(site), f"divided={TREE}", "--without", "n[3-4]")
    (etc / "gres.conf").write_text(made(capsys, "gres", *words))
    for renamed, found in (((), "3g.40gb"), (("--mig-type", "3g.40gb=3g.39gb"), "3g.39gb")):
        line = made(capsys, "nodes", *words, *renamed).splitlines()[1]
        (etc / "slurm.conf").write_text(
            f"ClusterName=lab\nSlurmctldHost={host}\nSlurmUser=slurm\n{own_key}GresTypes=gpu\n"
            f"SlurmdParameters=config_overrides\n{line}\nPartitionName=all Nodes={host}\n"
        )
        output = detect(suite, content, tmp_path / "layer", "-G", "-f", "/etc/slurm/slurm.conf", env=HWLOC)
        types = re.findall(r"Gres Name=gpu Type=(\S+) Count=1 ", output)
        counts = {kind: types.count(kind) for kind in types}
        rest = {"2g.20gb": 7, "1g.10gb": 14, "a100": 1}
        if found == ("3g.40gb" if by_memory else "3g.39gb"):
            assert f"Type:{found}" in output and "Discarding the following config-only GPU" in output, output
        else:
            assert counts == {found: 7, **rest} and "Discarding" not in output and "mismatch" not in output, output
