"""`fairlead slurm-config` as a person calls it: files in place or refused, one clear line for bad input."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.cli import main
from fairlead.errors import ExitCode
from tests.lab.machines import read_nvml, write_machine, write_nvml
from tests.lab.trees import MACHINES
from tests.topology.fabrics import Made, rails

MEMORY = "/dev/shm"  # thousands of small files: a disk takes seconds
TREE = "# Made by `fairlead slurm-config topology`.\nSwitchName=su-leaf1-1 Nodes=n[1-4]\nSwitchName=su-leaf2-1 Nodes=n[5-8]\n"


class Run:
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *argv: object) -> tuple[int, str, str]:
        code = main(["slurm-config", *map(str, argv)])
        done = self.capsys.readouterr()
        assert "Traceback" not in done.err
        return code, done.out, done.err


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return Run(capsys)


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    path = tmp_path / "fabric"
    path.write_text(rails().dump())
    return path


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = Path(MEMORY if os.access(MEMORY, os.W_OK) else tmp_path_factory.mktemp("x")) / f"slurm-config-{os.getpid()}"
    yield write_machine(folder / "g1", "hgx-h100", cpus=16)
    shutil.rmtree(folder)


def test_topology_is_written_when_it_changed(run: Run, dump: Path, tmp_path: Path) -> None:
    topology = ("topology", "--ibnetdiscover", dump)
    conf = tmp_path / "topology.conf"
    code, text, notes = run(*topology)
    assert (code, text) == (0, f"{TREE}SwitchName=fabric Switches=su-leaf1-1,su-leaf2-1\n")
    assert "every host on the fabric counts as a node" in notes
    code, said, _ = run(*topology, "--write", conf, "--dry-run")
    assert code == 0 and not conf.exists() and f"{conf}: would be written" in said and "+SwitchName=fabric" in said
    code, said, _ = run(*topology, "--write", conf)
    assert code == 0 and conf.read_text() == text and f"{conf}: written" in said
    assert [p.name for p in tmp_path.iterdir() if "fairlead-new" in p.name] == []
    conf.chmod(0o640)
    before = conf.stat()
    code, said, _ = run(*topology, "--write", conf)
    assert (code, said) == (0, f"{conf}: unchanged\n") and conf.stat().st_mtime_ns == before.st_mtime_ns
    conf.write_text(text.replace("n[1-4]", "n[1-3]"))
    code, said, _ = run(*topology, "--diff", conf)
    assert code == 0 and "-SwitchName=su-leaf1-1 Nodes=n[1-3]\n+SwitchName=su-leaf1-1 Nodes=n[1-4]\n" in said
    assert "n[1-3]" in conf.read_text()
    link = tmp_path / "link"
    link.symlink_to(conf)
    assert run(*topology, "--write", link)[0] == 0
    assert link.is_symlink() and conf.read_text() == text and conf.stat().st_mode & 0o777 == 0o640
    assert run(*topology, "--diff", conf)[1] == f"{conf}: no difference\n"


def test_a_node_is_never_lost_in_silence(run: Run, dump: Path, tmp_path: Path) -> None:
    topology = ("topology", "--ibnetdiscover", dump)
    code, text, said = run(*topology, "--nodes", "n[1-10]")
    assert (code, text) == (ExitCode.BAD_DATA, "")
    assert said.startswith("fairlead slurm-config: 2 nodes would be lost: n[9-10]\n  next: --without n[9-10] ")
    code, text, _ = run(*topology, "--nodes", "n[1-10]", "--without", "n[9-10]")
    assert code == 0 and "n9" not in text
    conf = tmp_path / "topology.conf"
    conf.write_text("SwitchName=old Nodes=n[1-8],n11\n")
    code, _, said = run(*topology, "--write", conf)
    assert code == ExitCode.BAD_DATA and "1 node would be lost: n11" in said and "old" in conf.read_text()
    code, _, said = run(*topology, "--write", conf, "--without", "n11")
    assert code == 0 and "note: no longer named: n11" in said and "old" not in conf.read_text()
    yaml = tmp_path / "topology.yaml"
    yaml.write_text("[]\n")
    assert f"{yaml} and ignore topology.conf" in run(*topology, "--write", conf)[2]
    yaml.write_text('- topology: a\n  tree: {switches: [{switch: s, nodes: "n[1-9]"}]}\n')
    code, _, said = run(*topology, "--format", "yaml", "--write", yaml)
    assert code == ExitCode.BAD_DATA and "n9" in said
    slurm_conf = tmp_path / "slurm.conf"
    slurm_conf.write_text("ClusterName=x\nNodeName=DEFAULT CPUs=4\nNodeName=n[1-4],login1 State=UNKNOWN\n")
    code, _, said = run(*topology, "--write", slurm_conf)
    assert code == ExitCode.USAGE and "is a whole slurm.conf" in said and slurm_conf.read_text().startswith("ClusterName=x\n")
    code, _, said = run(*topology, "--slurm-conf", slurm_conf)
    assert code == ExitCode.BAD_DATA and "1 node would be lost: login1" in said
    code, text, said = run(*topology, "--slurm-conf", slurm_conf, "--without", "login1")
    assert code == 0 and "n[1-4]" in text and "n5" not in text
    assert "note: on the fabric, but not nodes of the cluster: n[5-8]" in said


def test_adapters_that_name_no_host_are_named_when_nodes_are_lost(run: Run, tmp_path: Path) -> None:
    made = Made()
    leaf = made.switch("MF0;leaf1:X/U1")
    made.link(leaf, made.adapter("n1 mlx5_0"))
    unset = made.adapter("MT4129 ConnectX7   Mellanox Technologies")
    made.link(leaf, unset)
    dump = tmp_path / "fabric"
    dump.write_text(made.dump())
    code, _, said = run("topology", "--ibnetdiscover", dump, "--nodes", "n[1-2]")
    assert code == ExitCode.BAD_DATA and "would be lost: n2 (1 adapters name no host: 'MT4129 ConnectX7" in said
    rename = tmp_path / "rename"
    rename.write_text(f"# the new node\n0x{unset} n2\n")
    code, text, _ = run("topology", "--ibnetdiscover", dump, "--nodes", "n[1-2]", "--rename", rename)
    assert code == 0 and text.endswith("SwitchName=leaf1 Nodes=n[1-2]\n")
    for wrong in ("0x12\n", 'a "b\n', "a b c\n", "a b/c\n"):
        rename.write_text(wrong)
        code, _, said = run("topology", "--ibnetdiscover", dump, "--rename", rename)
        assert code == ExitCode.BAD_DATA and f"{rename}: line 1" in said


@pytest.mark.parametrize("cut", [0.1, 0.5, 0.9])
def test_a_dump_cut_in_half_is_one_clear_line(run: Run, dump: Path, cut: float) -> None:
    text = dump.read_text()
    dump.write_text(text[: int(len(text) * cut)])
    code, out, said = run("topology", "--ibnetdiscover", dump)
    assert (code, out) == (ExitCode.BAD_DATA, "")
    assert said.startswith(f"fairlead slurm-config: {dump}: cut off") and len(said.splitlines()) == 2


@pytest.mark.parametrize(
    ("content", "option", "code", "words"),
    [
        ("", "--ibnetdiscover", ExitCode.BAD_DATA, "empty"),
        ("hello\n", "--ibnetdiscover", ExitCode.BAD_DATA, "line 1 is not from ibnetdiscover: 'hello'"),
        ("{", "--lldp", ExitCode.BAD_DATA, "not JSON, or cut off"),
        ("[1]", "--lldp", ExitCode.BAD_DATA, "not an output of lldpctl"),
        ("hello\n", "--cliques", ExitCode.BAD_DATA, "no line such as"),
        (None, "--ibnetdiscover", ExitCode.NO_INPUT, "No such file"),
        (None, "--lldp", ExitCode.NO_INPUT, "No such file"),
        (None, "--cliques", ExitCode.NO_INPUT, "No such file"),
    ],
)
def test_bad_input(run: Run, dump: Path, content: str | None, option: str, *, code: ExitCode, words: str) -> None:
    path = dump.with_name("input")
    if content is not None:
        path.write_text(content)
    found, out, said = run("topology", option, path)
    assert (found, out) == (code, "") and words in said and len(said.splitlines()) <= 2


def test_wrong_use(run: Run, dump: Path, tmp_path: Path) -> None:
    topology = ("topology", "--ibnetdiscover", dump)
    for argv in (
        ("topology",),
        (*topology, "--ports", "["),
        (*topology, "--block-sizes", "x"),
        (*topology, "--kind", "block", "--block-sizes", "5"),
        (*topology, "--dry-run"),
        ("topology", dump),
        ("nothing",),
    ):
        assert run(*argv)[0] == ExitCode.USAGE, argv
    assert run(*topology, "--nodes", "n[1-")[0] == ExitCode.BAD_DATA
    assert run(*topology, "--slurm-conf", tmp_path / "none")[0] == ExitCode.NO_INPUT
    assert run(*topology, "--ports", "HCA-9")[0] == ExitCode.BAD_DATA
    assert run(*topology, "--write", tmp_path)[0] == ExitCode.NO_INPUT


def test_both_formats_of_a_dump_and_blocks(run: Run, dump: Path, tmp_path: Path) -> None:
    ports = tmp_path / "ports"
    ports.write_text(rails().ports())
    assert run("topology", "--ibnetdiscover", ports)[1] == run("topology", "--ibnetdiscover", dump)[1]
    assert run("topology", "--ibnetdiscover", dump, "--kind", "block", "--block-sizes", "2,4")[1].endswith("BlockSizes=2,4\n")


def test_topology_as_json(run: Run, dump: Path) -> None:
    code, text, _ = run("topology", "--ibnetdiscover", dump, "--nodes", "n[1-8]", "--json")
    shown = json.loads(text)
    assert code == 0 and list(shown) == ["text", "nodes", "topology", "notes"] and shown["nodes"] == "n[1-8]"
    assert shown["topology"]["fabric"]["switches"][0]["real"] == [f"leaf1-{rail}" for rail in (1, 2, 3, 4)]


def test_nvlink_domains_of_machine_trees(run: Run, small: Path, tmp_path: Path) -> None:
    nvml = read_nvml(small)
    trees = []
    for name, uuid in (("g1", "a" * 32), ("g2", "a" * 32), ("g3", "b" * 32)):
        for gpu in nvml["gpus"]:
            gpu["fabric"] |= {"cluster_uuid": uuid, "clique_id": 7}
        (tmp_path / name).mkdir()
        write_nvml(tmp_path / name, nvml)
        trees += ["--cliques", f"{name}={tmp_path / name}"]
    code, text, _ = run("topology", *trees)
    assert code == 0
    assert text.splitlines()[1:] == [
        "BlockName=nvl-aaaaaaaa-7 Nodes=g[1-2]",
        "BlockName=nvl-bbbbbbbb-7 Nodes=g3",
        "BlockSizes=1,2",
    ]
    code, _, said = run("topology", "--cliques", MACHINES / "hgx-h100")
    assert code == ExitCode.BAD_DATA and "no node is in an NVLink domain" in said


def test_lldp_of_a_folder(run: Run, tmp_path: Path) -> None:
    for name, leaf in (("n1", "leaf1"), ("n2", "leaf1"), ("n3", "leaf2")):
        neighbour = {leaf: {"id": {"type": "mac", "value": "aa"}, "capability": [{"type": "Bridge", "enabled": True}]}}
        port = {"id": {"type": "ifname", "value": f"swp-{name}"}}
        heard = {"lldp": {"interface": {"ens1": {"chassis": neighbour, "port": port}}}}
        (tmp_path / f"{name}.json").write_text(json.dumps(heard))
    (tmp_path / "empty").mkdir()
    assert run("topology", "--lldp", tmp_path / "empty")[0] == ExitCode.NO_INPUT
    code, text, said = run("topology", "--lldp", tmp_path)
    assert code == 0 and "no link between switches" in said
    assert text.splitlines()[1:] == [
        "SwitchName=leaf1 Nodes=n[1-2]",
        "SwitchName=leaf2 Nodes=n3",
        "SwitchName=fabric Switches=leaf[1-2]",
    ]


# -- gres and nodes -----------------------------------------------------------------------------------


def test_gres_and_nodes_of_trees(run: Run, small: Path) -> None:
    code, text, _ = run("gres", f"g1={small}", f"g2={small}")
    assert code == 0 and text.splitlines()[1:] == [
        "NodeName=g[1-2] Name=gpu Type=h100 File=/dev/nvidia[0-3] Cores=0-7",
        "NodeName=g[1-2] Name=gpu Type=h100 File=/dev/nvidia[4-7] Cores=8-15",
    ]
    code, text, _ = run("nodes", f"g1={small}", "--type", "hopper")
    assert text.splitlines()[1].startswith(
        "NodeName=g1 CPUs=16 Boards=1 SocketsPerBoard=2 CoresPerSocket=8 ThreadsPerCore=1 RealM"
    )
    assert text.splitlines()[1].endswith("Gres=gpu:hopper:8")
    code, text, _ = run("gres", "--root", small, "--json")
    assert json.loads(text)["gres"][0]["gpus"][4]["cores"] == list(range(8, 16))
    assert run("gres", f"g1={small}", f"g1={small}")[0] == ExitCode.BAD_DATA
    assert run("gres", "/nowhere")[0] == ExitCode.NO_INPUT
    assert run("gres", f"a/b={small}")[0] == ExitCode.BAD_DATA


def test_a_lost_gpu_never_shrinks_gres_conf(run: Run, small: Path, tmp_path: Path) -> None:
    conf = tmp_path / "gres.conf"
    assert run("gres", f"g1={small}", f"g2={small}", "--write", conf)[0] == 0
    seven = tmp_path / "g2"
    for part in ("sys", "proc"):
        shutil.copytree(small / part, seven / part, symlinks=True)
    nvml = read_nvml(small)
    write_nvml(seven, nvml | {"gpus": nvml["gpus"][:7]})
    code, _, said = run("gres", f"g1={small}", "--write", conf)
    assert code == ExitCode.BAD_DATA and "1 node would be lost: g2" in said
    before = conf.read_text()
    # The driver names seven GPUs, the bus shows eight, and /proc/driver/nvidia still has the eighth's minor number.
    assert run("gres", f"g1={small}", f"g2={seven}", "--diff", conf)[1] == f"{conf}: no difference\n"
    shutil.rmtree(seven / "proc/driver")
    code, _, said = run("gres", f"g1={small}", f"g2={seven}", "--write", conf)
    assert code == ExitCode.BAD_DATA and "the device file of GPU" in said and conf.read_text() == before
    running = before.replace("/dev/nvidia[4-7]", "/dev/nvidia[4-8]")
    conf.write_text(running)
    code, _, said = run("gres", f"g1={small}", f"g2={small}", "--write", conf)
    assert code == ExitCode.BAD_DATA and "g1 has 8, the running file 9" in said and conf.read_text() == running
    assert run("gres", f"g1={small}", f"g2={small}", "--write", conf, "--without", "g[1-2]")[0] == 0
    assert conf.read_text() == before


def test_published_topology_files(run: Run, small: Path, tmp_path: Path) -> None:
    from fairlead.cli.machine_tree import recorded_nvml
    from fairlead.host.gather import gather
    from fairlead.host.root import Root
    from fairlead.topology.binding.published_files import render_topology

    file = tmp_path / "g1"
    file.write_text(render_topology(gather(Root(str(small)), recorded_nvml(str(small)))))
    code, text, _ = run("gres", f"g1={file}", "--type", "h100")
    assert code == 0 and text == run("gres", f"g1={small}")[1]
    assert run("nodes", file)[0] == ExitCode.USAGE
    file.write_text(file.read_text()[:100])
    code, _, said = run("gres", file)
    assert code == ExitCode.BAD_DATA and f"{file}: topology file" in said
