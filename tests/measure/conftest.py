"""A cluster of five nodes whose jobs find stand-ins of nccl-tests and the rest; `fairlead accept` runs on this machine."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fairlead.cli import main
from tests.lab.cluster import Cluster
from tests.lab.ledger import own_name
from tests.lab.pause import pause
from tests.lab.roots import SUITES

ROOT = Path(__file__).resolve().parents[2]
TOOLS = (
    "all_reduce_perf",
    "all_gather_perf",
    "reduce_scatter_perf",
    "nvbandwidth",
    "gpu_burn",
    "dcgmi",
    "ib_write_bw",
    "nvidia-smi",
)
#: Jobs of partition urgent take the place of others.
PREEMPTION = """PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""
NODES = tuple(f"n{i}" for i in range(1, 6))
RELEASES = ["bookworm", *(pytest.param(suite, marks=pytest.mark.slow) for suite in SUITES if suite != "bookworm")]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that is repeated is repeated with one release of Slurm, and runs once with each of the others. The variable
    FAIRLEAD_REPEAT_ON names another release than bookworm to repeat with."""
    release = os.environ.get("FAIRLEAD_REPEAT_ON", "bookworm")
    params = {item: item.callspec.params for item in items if isinstance(item, pytest.Function) and hasattr(item, "callspec")}
    items[:] = [i for i in items if not (p := params.get(i, {})).get("repeat") or p.get("up", release) == release]


def install(folder: Path, *tools: str) -> Path:
    """The stand-ins in ``folder``/bin, each by its name."""
    bin_dir = folder / "bin"
    bin_dir.mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / "tests/measure/standin.py", folder / "standin.py")
    (folder / "standin.py").chmod(0o755)
    for tool in tools or TOOLS:
        (bin_dir / tool).symlink_to("../standin.py")
    return bin_dir


@dataclass
class Site:
    """The cluster and what the test says of it. ``folder`` is the same inside and outside."""

    slurm: Cluster
    folder: Path

    def mode(self, node: str, tool: str, what: str) -> None:
        place = self.folder / "modes" / node
        place.mkdir(parents=True, exist_ok=True)
        (place / tool).write_text(what)

    def write(self, accept: str = "", nodes: str = "n[1-5]", profile: str = "hgx-h100") -> Path:
        path = self.folder / "site.toml"
        prelude = f"PATH={self.folder}/bin:$PATH\\nexport PATH"
        path.write_text(
            f'schema = 1\n[accept]\nprelude = "{prelude}"\n{accept}\n[classes.h100]\nnodes = "{nodes}"\nprofile = "{profile}"\n'
        )
        return path

    def command(self, *words: str) -> list[str]:
        site = self.folder / "site.toml"
        if not site.exists():
            self.write()
        given = ["--site", str(site), "--store", str(self.folder / "accept.sqlite"), "--folder", str(self.folder / "out")]
        given += ["--bin-dir", str(self.slurm.bin), "--slurm-conf", "/etc/slurm/slurm.conf"]
        return [sys.executable, "-m", "fairlead", "accept", *given, *words]  # what is given twice counts as it stands last

    def start(self, *words: str) -> subprocess.Popen[str]:
        env = {**os.environ, "PYTHONPATH": str(ROOT / "agent")}
        return subprocess.Popen(
            self.command(*words), env=env, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def accept(self, *words: str) -> tuple[int, str, str]:
        """Exit code, output and standard error; in this process, which a command of its own would cost half a second."""
        with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
            code = main(self.command(*words)[3:])
        return code, out.getvalue(), err.getvalue()

    def data(self, *words: str) -> tuple[int, dict[str, dict[str, Any]]]:
        """Exit code, and by node what --json says; "why" of each tool that said something beside it."""
        code, out, err = self.accept(*words, "--json")
        assert out, err
        return code, {node["node"]: node for node in json.loads(out)["nodes"]}

    def jobs(self) -> list[str]:
        """Numbers of the jobs that have not ended."""
        return self.slurm.run(["/usr/bin/squeue", "-h", "-o", "%A"]).stdout.split()

    def wrote(self, node: str, text: str) -> bool:
        """Does this stand in what the node's newest job has written so far?"""
        found = sorted((self.folder / "out").glob(f"*.{node}.out"), key=lambda path: path.stat().st_mtime)
        return bool(found) and text in found[-1].read_text()

    def until(self, true: Callable[[], object], what: str, seconds: float = 120) -> None:
        deadline = time.monotonic() + seconds
        while True:
            began = time.monotonic()
            if true():
                return
            assert began < deadline, what
            pause(began)


@pytest.fixture(scope="module", params=RELEASES)
def up(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    if os.geteuid():
        pytest.skip("needs root: real Slurm runs in namespaces")
    folder = tmp_path_factory.mktemp("accept")
    name = own_name(f"accept-{request.param}")
    cluster = Cluster(request.param, nodes=len(NODES), cores=4, shared=[folder], name=name, extra_conf=PREEMPTION)
    with cluster as slurm:
        hold = slurm._hold
        yield Site(slurm, folder)
    if hold is not None and hold.stdout is not None:
        hold.stdout.close()


@pytest.fixture
def site(up: Site) -> Site:
    """Every node idle, every stand-in well, no result stored."""
    up.slurm.run(["/usr/bin/scancel", "--user=root"], check=False)
    listed = up.slurm.run(["/usr/bin/sinfo", "-h", "-N", "-o", "%N %T"]).stdout.split()
    for node, state in zip(listed[::2], listed[1::2], strict=True):
        if state != "idle":
            up.slurm.scontrol("update", f"nodename={node}", "state=resume", check=False)
    up.slurm.wait_idle()
    for each in up.folder.iterdir():
        shutil.rmtree(each) if each.is_dir() else each.unlink()
    install(up.folder)
    return up


def build_simulated_nccl(folder: Path) -> Path:
    """Put libnccl.so.2 and libcuda.so.1 for machines without a GPU (simulated_nccl.c) into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    command = ["gcc", "-std=gnu11", "-O1", "-Wall", "-Werror", "-Wno-unused-result", "-shared", "-fPIC"]
    subprocess.run([*command, "-o", folder / "libnccl.so.2", ROOT / "tests/measure/simulated_nccl.c"], check=True)
    (folder / "libcuda.so.1").symlink_to("libnccl.so.2")
    return folder


@pytest.fixture(scope="session")
def simulated_nccl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_simulated_nccl(tmp_path_factory.mktemp("simulated-nccl"))
