"""`fairlead nccl measure` and `use` in jobs of real Slurm on two nodes, with stand-ins whose truth is known (nccl_standin.py).

Each node reads a machine tree of its own, in /run/fairlead/tree. NCCL itself, and libcuda, are simulated_nccl.c.
"""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from fairlead.nccl.measured_result import MeasuredResult, decode
from fairlead.nccl.result_key import PARTS
from tests.lab.cluster import Cluster
from tests.lab.ledger import own_name
from tests.lab.roots import SUITES
from tests.lab.trees import MACHINES
from tests.lab.wheels import wheelhouse
from tests.measure.conftest import build_simulated_nccl
from tests.slurm.conftest import running

pytestmark = [pytest.mark.root, pytest.mark.slurm]
ROOT = Path(__file__).resolve().parents[2]
RELEASES = ["bookworm", *(pytest.param(suite, marks=pytest.mark.slow) for suite in SUITES if suite != "bookworm")]
SETTING, TREE = "NCCL_ALGO=Tree", "/run/fairlead/tree"
ARM = "srun -N2 -n4 $TEST"
PROBE = "srun -N2 -n4 all_reduce_perf -b 8 -e 8"


class Jobs:
    """The cluster, and the folder with the stand-ins, which is the same inside and outside."""

    def __init__(self, slurm: Cluster, folder: Path) -> None:
        self.slurm, self.folder = slurm, folder
        self.env = {
            "PATH": f"{folder}/bin:/usr/bin:/bin",
            "PYTHONPATH": "/run/lab-agent:/run/lab-packages",
            "LD_LIBRARY_PATH": str(folder / "lib"),
            "FAIRLEAD_SIM_NCCL": str(folder),
        }

    def run(self, script: str, *options: str) -> str:
        text = f'#!/bin/sh\nfairlead() {{ /usr/bin/python3 -m fairlead "$@"; }}\ncd {self.folder}\n{script}\n'
        job = self.slurm.submit(text, "-N2", "-n4", "-w", "n1,n2", *options, user="root", env=self.env)
        state = self.slurm.wait_job(job, seconds=280)
        assert state == "COMPLETED", self.slurm.output(job)
        return self.slurm.output(job)

    def tree(self, node: str) -> Path:
        return self.slurm.node_dirs(node).run / "tree"


@pytest.fixture(scope="module", params=RELEASES)
def jobs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    if os.geteuid():
        pytest.skip("needs root: real Slurm runs in namespaces")
    folder = tmp_path_factory.mktemp("nccl")
    (folder / "bin").mkdir()
    shutil.copy(ROOT / "tests/measure/nccl_standin.py", folder)
    for name in ("all_reduce_perf", "gemm_loop"):
        (folder / "bin" / name).symlink_to("../nccl_standin.py")
    build_simulated_nccl(folder / "lib")
    truth = {"noise": 0.003, "seed": 1, "gains": {SETTING: {"131072": 0.15}}, "gemm": {SETTING: 0.0}}
    (folder / "truth.json").write_text(json.dumps(truth))
    packages = tmp_path_factory.mktemp("packages")
    packages.chmod(0o755)
    for wheel in wheelhouse(request.param).glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(packages)
    binds: dict[str | Path, str] = {ROOT / "agent": "/run/lab-agent", packages: "/run/lab-packages"}
    name = own_name(f"nccl-jobs-{request.param}")
    with running(Cluster(request.param, nodes=2, cores=4, shared=[folder], binds=binds, name=name)) as up:
        for node in ("n1", "n2"):
            shutil.copytree(MACHINES / "hgx-h100", up.node_dirs(node).run / "tree", symlinks=True)
        yield Jobs(up, folder)


@pytest.fixture(scope="module")
def result(jobs: Jobs) -> MeasuredResult:
    """One run in a job of two nodes, whose result the other tests apply."""
    test = "--test 'all_reduce_perf -b 8K -e 512M -f 16' --blocks 3"
    said = jobs.run(
        f"fairlead nccl measure --a '{ARM}' --set {SETTING} --skip-versions --beside gemm_loop {test}"
        f" --root {TREE} --folder run 2>&1"
    )
    assert "The result is in" in said, said
    return decode((jobs.folder / "run/result.json").read_bytes(), "result.json")


def test_a_result_is_measured_in_a_job(result: MeasuredResult) -> None:
    (found,) = result.candidates
    assert found.judgement == "gain" and "not for use" not in found.why, found.why
    assert [d.name for d in found.alone if d.effect == "gain"] == ["up to 1 MiB"]
    assert found.sums is not None and found.sums.right and found.sums.ranks == 4
    assert set(result.key) == set(PARTS) and "" not in result.key.values(), result.key
    expected = {
        "nccl": "2.29.3",
        "cuda": "13.1",
        "net": "IB",
        "driver": "570.172.08",
        "nodes": "2",
        "ranks": "4",
        "leaves": "not declared",
    }
    assert expected.items() <= result.key.items()


def test_variables_are_refused_without_versions_of_this_key(jobs: Jobs, result: MeasuredResult) -> None:
    """A result of versions of another cluster, of other ranks, and none. A is launched once, and NCCL says what it is."""
    b = msgspec.structs.replace(result.candidates[0], name="B", variables={}, key={})
    cases = {
        "elsewhere": ({**result.key, "cluster": "elsewhere"}, "does not hold here: the Slurm cluster was elsewhere and is lab"),
        "ranks": ({**result.key, "ranks": "8"}, "does not hold here: the number of ranks was 8 and is 4"),
        "unknown": ({**result.key, "driver": ""}, "does not hold here: the NVIDIA driver is not known of the result"),
    }
    script = ""
    for name, (key, _) in cases.items():
        file = changed(jobs, result, f"versions-{name}.json", mode="versions", key=key, candidates=(b,))
        measure = f"fairlead nccl measure --a '{ARM}' --set {SETTING} --root {TREE} --blocks 3 -q"
        script += f"echo '--- {name}'; {measure} --versions {file} --folder run-{name} 2>&1; echo code $?\n"
    script += f"echo '--- none'; {measure} --folder run-none 2>&1; echo code $?\n"
    parts = dict(part.split("\n", 1) for part in jobs.run(script).split("--- ")[1:])
    for name, (_, said) in {**cases, "none": ({}, "variables are measured after versions")}.items():
        assert said in parts[name] and "code 64" in parts[name] and "next: " in parts[name], parts[name]
        assert not (jobs.folder / f"run-{name}/result.json").exists()


def use(jobs: Jobs, file: str, before: str = "", probe: str = PROBE) -> str:
    """What a job script that applies the result prints, and the variables that its ranks have."""
    return jobs.run(f"""{before}
        eval "$(fairlead nccl use {file} --probe '{probe}' --root {TREE} 2>said)"
        cat said; srun -N2 -n2 --ntasks-per-node=1 sh -c 'echo "rank on $SLURMD_NODENAME: ${{NCCL_ALGO-unset}}"'""")


def test_every_rank_gets_the_variable_if_all_nodes_agree(jobs: Jobs, result: MeasuredResult) -> None:
    said = use(jobs, "run/result.json")
    assert "run/result.json (" in said and "is applied: NCCL_ALGO=Tree" in said
    assert "rank on n1: Tree" in said and "rank on n2: Tree" in said
    by_variable = jobs.run(f"""export FAIRLEAD_NCCL_RESULT=$PWD/run/result.json FAIRLEAD_NCCL_PROBE='{PROBE}'
        eval "$(fairlead nccl use --root {TREE})"; fairlead env explain""")
    assert "NCCL_ALGO=Tree" in by_variable and "from: measured result" in by_variable


def changed(jobs: Jobs, result: MeasuredResult, name: str, **what: object) -> str:
    """A copy of the result with changes, as its path in the job."""
    (jobs.folder / name).write_bytes(msgspec.json.encode(msgspec.structs.replace(result, **what)))
    return name


def test_nothing_is_applied_where_something_differs(jobs: Jobs, result: MeasuredResult) -> None:
    """One line says why and what to do, and no rank has the variable. All in one job, because each case is a few steps."""
    other = changed(jobs, result, "cluster.json", key={**result.key, "cluster": "elsewhere"})
    old = changed(jobs, result, "old.json", measured=result.measured - 91 * 86400)
    unknown = changed(jobs, result, "unknown.json", key={**result.key, "firmware": ""})
    evil = msgspec.structs.replace(result.candidates[0], variables={"LD_PRELOAD": "/tmp/x.so"})
    forged = changed(jobs, result, "forged.json", candidates=(evil,))
    (jobs.folder / "cut.json").write_bytes((jobs.folder / "run/result.json").read_bytes()[:-300])
    for node in ("n1", "n2"):
        shutil.copy(jobs.folder / "run/result.json", jobs.slurm.node_dirs(node).run / "both.json")
    shutil.copy(jobs.folder / "run/result.json", jobs.slurm.node_dirs("n1").run / "one.json")
    (jobs.slurm.node_dirs("n2").run / "both.json").write_bytes(b"{}")
    cases = {
        "users": (
            "run/result.json",
            "export NCCL_ALGO=Ring",
            PROBE,
            "NCCL_ALGO is set in your environment, and your own value wins",
        ),
        "another": ("run/result.json", "export NCCL_NTHREADS=64", PROBE, "NCCL_NTHREADS is set in your environment"),
        "cluster": (other, "", PROBE, "it was measured on cluster elsewhere, and this is lab"),
        "old": (old, "", PROBE, "it is 91 days old, and a result counts for 90 days"),
        "unknown": (unknown, "", PROBE, "the firmware of the adapters is not known of the result"),
        "forged": (forged, "", PROBE, "LD_PRELOAD: fairlead does not measure this variable"),
        "cut": ("cut.json", "", PROBE, "no whole result of fairlead nccl measure"),
        "none": ("none.json", "", PROBE, "No such file or directory"),
        "one node": ("/run/fairlead/one.json", "", PROBE, "not all nodes see the same /run/fairlead/one.json: n2 cannot read it"),
        "unlike": ("/run/fairlead/both.json", "", PROBE, "n2 reads another one"),
        "ranks": ("run/result.json", "", PROBE.replace("-n4", "-n2"), "the number of ranks was 4 and is 2"),
        "probe": ("run/result.json", "", "srun -N2 -n4 /bin/false", "the command of --probe ended with 1"),
        "no probe": ("run/result.json", "", "", "the NCCL of the job is not known"),
        "silent": ("run/result.json", "", "true", "the version of NCCL is not known here"),
        "version": ("run/result.json", "export OURS=new", PROBE, "the version of NCCL was 2.29.3 and is 2.30.7"),
    }
    truth = json.loads((jobs.folder / "truth.json").read_text()) | {"version_of": {"OURS=new": "2.30.7+cuda13.1"}}
    (jobs.folder / "truth.json").write_text(json.dumps(truth))
    script = "\n".join(
        f"""(echo "--- {name}"; {before or "true"}
        err=$(fairlead nccl use {file} --probe '{probe}' --root {TREE} 2>&1 >stdout)
        echo "code $? out $(wc -c <stdout)"; echo "$err")"""
        for name, (file, before, probe, _) in cases.items()
    )
    parts = dict(part.split("\n", 1) for part in jobs.run(script).split("--- ")[1:])
    assert parts.keys() == cases.keys()
    for name, (_, _, _, expected) in cases.items():
        head, *said = parts[name].strip().splitlines()
        assert head == "code 1 out 0", (name, parts[name])
        assert len(said) == 1 and said[0].startswith("fairlead nccl: nothing is applied: ") and expected in said[0], (name, said)
    said = use(jobs, "run/result.json", "export NCCL_ALGO=Ring")
    assert "rank on n1: Ring" in said and "rank on n2: Ring" in said


def test_a_node_that_changed_ends_the_result(jobs: Jobs, result: MeasuredResult) -> None:
    version = jobs.tree("n2") / "sys/module/nvidia/version"
    before = version.read_text()
    version.write_text("580.95.05\n")
    try:
        said = use(jobs, "run/result.json")
    finally:
        version.write_text(before)
    assert "the NVIDIA driver was 570.172.08 and is 570.172.08, 580.95.05" in said and "measure again" in said
    assert "rank on n1: unset" in said and "rank on n2: unset" in said
