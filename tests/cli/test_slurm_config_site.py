"""`fairlead slurm-config --site`: one tree for each class, what the site declares of MIG, and its partitions."""

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

MEMORY = "/dev/shm"  # thousands of small files: a disk takes seconds
SITE = """
schema = 1
[classes.h100]
nodes = "g[1-3]"
profile = "hgx-h100"
[classes.l40s]
nodes = "l[1-2]"
profile = "l40s-pcie"
[partitions.gpu]
classes = ["h100", "l40s"]
options = { Default = true, MaxTime = 60 }
[partitions.small]
nodes = "g1,login1"
"""
MIG = '[classes.h100.settings.mig]\ngeometry = ["3g.40gb", "1g.10gb", "1g.10gb+me"]\n'
GRES = "CPUs=16 Boards=1 SocketsPerBoard=2 CoresPerSocket=8 ThreadsPerCore=1 RealMemory=2064384"


class Run:
    def __init__(self, capsys: pytest.CaptureFixture[str], folder: Path) -> None:
        self.capsys, self.site = capsys, folder / "site.toml"
        self.site.write_text(SITE)

    def __call__(self, *argv: object) -> tuple[int, str, str]:
        code = main(["slurm-config", *map(str, argv)])
        done = self.capsys.readouterr()
        assert "Traceback" not in done.err
        return code, done.out, done.err


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    return Run(capsys, tmp_path)


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    folder = Path(MEMORY if os.access(MEMORY, os.W_OK) else tmp_path_factory.mktemp("x")) / f"slurm-config-site-{os.getpid()}"
    h100 = write_machine(folder / "h100", "hgx-h100", node="g2", cpus=16)
    l40s = write_machine(folder / "l40s", "l40s-pcie", node="l1", cpus=16)
    yield str(h100), str(l40s)
    shutil.rmtree(folder)


def test_one_tree_describes_a_class(run: Run, trees: tuple[str, str]) -> None:
    h100, l40s = trees
    code, text, notes = run("nodes", "--site", run.site, f"h100={h100}", f"l2={l40s}")
    assert code == 0 and [line.split()[0] for line in text.splitlines()[1:]] == ["NodeName=g[1-3]", "NodeName=l[1-2]"]
    assert text.splitlines()[1].endswith("Gres=gpu:h100:8") and notes == ""
    named = run("nodes", "--site", run.site, f"g2={h100}", f"l1={l40s}")
    assert named[:2] == (code, text), "a tree of one of its nodes does as well"
    assert run("nodes", "--site", run.site, f"g2={h100}", "--without", "l[1-2]")[1].splitlines()[1:] == text.splitlines()[1:2]


def test_a_tree_without_a_name_is_of_the_node_that_it_was_taken_on(run: Run, trees: tuple[str, str]) -> None:
    code, text, _ = run("nodes", "--site", run.site, *(f"{name}={tree}" for name, tree in zip(("g2", "l1"), trees, strict=True)))
    assert run("nodes", "--site", run.site, *trees) == (code, text, "")


def test_what_the_site_declares_of_mig_is_counted_by_type(run: Run, trees: tuple[str, str]) -> None:
    run.site.write_text(SITE + MIG + 'by_gpu = { "0000:1b:00.0" = [] }\n')
    words = ("--site", run.site, f"h100={trees[0]}", "--without", "l[1-2]")
    code, text, notes = run("nodes", *words)
    assert code == 0 and text.splitlines()[1] == f"NodeName=g[1-3] {GRES} Gres=gpu:3g.40gb:7,gpu:1g.10gb:14,gpu:h100:1"
    assert "compare its MIG types with `slurmd -G` there" in notes
    assert "gpu:3g.39gb:7," in run("nodes", *words, "--mig-type", "3g.40gb=3g.39gb")[1]
    assert run("gres", *words)[1].splitlines()[1:] == ["NodeName=g[1-3] AutoDetect=nvml"]
    code, text, _ = run("gres", *words, "--json")
    assert json.loads(text)["gres"][0]["gpus"][1]["instances"] == ["3g.40gb", "1g.10gb", "1g.10gb+me"]
    for wrong in ("3g.40gb", "=x", "3g.40gb=a b"):
        assert run("nodes", *words, "--mig-type", wrong)[0] == ExitCode.USAGE


def test_a_divided_gpu_of_a_tree_is_counted_only_where_the_site_says_how(
    run: Run, trees: tuple[str, str], tmp_path: Path
) -> None:
    divided = tmp_path / "g2"
    for part in ("sys", "proc"):
        shutil.copytree(Path(trees[0]) / part, divided / part, symlinks=True)
    nvml = read_nvml(Path(trees[0]))
    write_nvml(divided, nvml | {"gpus": [gpu | {"mig_mode": {"current": 1, "pending": 1}} for gpu in nvml["gpus"]]})
    words = ("nodes", "--site", run.site, f"h100={divided}", "--without", "l[1-2]")
    _, text, notes = run(*words)
    assert "Gres=" not in text and "add the Gres that `slurmd -C` prints there" in notes
    run.site.write_text(SITE + "[classes.h100.settings.mig]\ngeometry = []\n")
    assert run(*words)[1].splitlines()[1].endswith("Gres=gpu:h100:8"), "declared as not divided"


@pytest.mark.parametrize(
    ("more", "sources", "code", "words"),
    [
        ("", ("h100={0}",), 65, "class l40s: there is no machine tree of any of l[1-2]"),
        ("", (), 65, "class h100: there is no machine tree of any of g[1-3]"),
        ("", ("x={0}",), 64, "the site has no node and no class 'x'"),
        ("", ("h100={0}", "h100={0}"), 65, "there is already a tree of h100"),
        ("", ("g1={0}", "g2={1}", "l1={1}"), 65, "class h100: the trees of g[1-2] differ, and other nodes of it have none"),
        ("[nodes.l1.checks.gpu_count]\nexpected = 4\n", ("h100={0}", "l40s={1}"), 65, "l1: its tree shows 8 GPUs"),
        (
            '[classes.l40s.settings.mig]\ngeometry = ["1g.10gb"]\n',
            ("h100={0}", "l40s={1}"),
            78,
            "settings.mig: l1: the GPUs of profile l40s-pcie have no MIG",
        ),
        (
            "",
            ("h100={1}", "l40s={1}"),
            78,
            "g1 (class h100): every GPU is 10de:26b9 (8 of them), and the profile hgx-h100 is for",
        ),
        (f'{MIG}by_gpu = {{ "0000:ff:00.0" = [] }}\n', ("h100={0}", "l40s={1}"), 78, "g1 has no GPU there"),
    ],
)
def test_where_site_and_trees_disagree_nothing_is_written(
    run: Run, trees: tuple[str, str], more: str, sources: tuple[str, ...], *, code: int, words: str
) -> None:
    run.site.write_text(SITE + more)
    found, out, said = run("nodes", "--site", run.site, *(source.format(*trees) for source in sources))
    assert (found, out) == (code, "") and words in said and len(said.splitlines()) == 2


def test_all_files_of_a_site_in_one_run(run: Run, trees: tuple[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "slurm"
    words = ("all", "--site", run.site, *trees)
    code, text, notes = run(*words)
    assert code == 0 and [line for line in text.splitlines() if line.startswith("#")] == [
        f"# Made by `fairlead slurm-config {what}`." for what in ("nodes", "gres", "partitions")
    ]
    assert text.splitlines()[-2:] == [
        "PartitionName=gpu Nodes=g[1-3],l[1-2] Default=YES MaxTime=60",
        "PartitionName=small Nodes=g1,login1",
    ]
    assert notes == "note: login1 is in a partition and in no class: write its NodeName line yourself\n"
    assert run(*words, "--write", folder)[0] == ExitCode.NO_INPUT
    folder.mkdir()
    assert "nodes.conf: would be written" in run(*words, "--write", folder, "--dry-run")[1] and not list(folder.iterdir())
    assert run(*words, "--write", folder)[0] == 0
    assert sorted(p.name for p in folder.iterdir()) == ["gres.conf", "nodes.conf", "partitions.conf"]
    assert "".join((folder / f"{name}.conf").read_text() for name in ("nodes", "gres", "partitions")) == text
    assert run(*words, "--write", folder)[1].count(": unchanged") == 3
    assert run(*words, "--diff", folder)[1].count(": no difference") == 3
    assert list(json.loads(run(*words, "--json")[1])) == ["nodes", "gres", "partitions"]


def test_no_file_is_written_where_one_of_them_is_refused(run: Run, trees: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "gres.conf").write_text("NodeName=g[1-3],old Name=gpu File=/dev/nvidia[0-7]\n")
    code, _, said = run("all", "--site", run.site, *trees, "--write", tmp_path)
    assert code == ExitCode.BAD_DATA and "1 node would be lost: old" in said and not (tmp_path / "nodes.conf").exists()


def test_wrong_use(run: Run, trees: tuple[str, str]) -> None:
    for argv in (("partitions",), ("all",), ("topology", "--site", run.site)):
        assert run(*argv)[0] == ExitCode.USAGE
    assert run("partitions", "--site", run.site, "--without", "g1,login1")[0] == ExitCode.BAD_DATA
    run.site.write_text(SITE[: SITE.index("[partitions")])
    assert "partitions" not in run("all", "--site", run.site, *trees)[1]
