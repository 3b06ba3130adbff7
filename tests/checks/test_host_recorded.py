"""The host's checks on machines and kernel records that others recorded: nothing false, and nothing of another check's."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from fairlead import checks
from fairlead.host.gather import gather
from fairlead.host.root import Root
from fairlead.model.check_definition import Past
from fairlead.model.finding import Level
from fairlead.model.host_facts import Wanted
from tests.checks.hosts import host_node
from tests.checks.nodes import log
from tests.checks.test_machines import reads_the_host
from tests.host.conftest import write
from tests.lab.unpack import unpack

pytestmark = pytest.mark.trees

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
OF_THE_HOST = [name for name in checks.load() if reads_the_host(name)]
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"sample data not found at {DATA}")
#: What a machine that was not recorded by `fairlead snapshot` cannot say.
UNRECORDED = {"clock", "fs_errors", "stuck_tasks"}


@needs_data
@pytest.mark.parametrize(
    "archive",
    ["d_nccl_azure_ndv5-topo", "d_nccl_aws_p4d-24xl-topo", "d_hwloc_cts1-pascal", "hwloc_dgx_gb10", "s_gh200_quad_36numa"],
)
def test_recorded_machines_are_quiet(archive: str, tmp_path: Path) -> None:
    unpack(DATA / f"sysroots/{archive}.tar.gz", tmp_path, keep="fully_trusted")
    node = gather(Root(str(next(tmp_path.iterdir()))), None, wanted=Wanted())
    found = [f for n in OF_THE_HOST for f in checks.load()[n].findings(node, Past(available=True), checks.load()[n].params())]
    assert [f for f in found if f.level in (Level.WARN, Level.DRAIN)] == []
    assert {f.check for f in found if f.level is Level.UNKNOWN} <= UNRECORDED | {"rdma_flaps", "rdma_errors", "rdma_ports"}


@needs_data
def test_the_recorded_ports_of_a_healthy_h100_are_quiet(tmp_path: Path) -> None:
    recorded = DATA / "sysfs/sys-class-infiniband-h100.0"
    for name in sorted(p.relative_to(recorded) for p in recorded.rglob("*") if p.is_file()):
        write(tmp_path, f"/sys/class/infiniband/{name}", (recorded / name).read_bytes())
    node = gather(Root(str(tmp_path)), None, wanted=Wanted())
    want = {
        "rdma_ports": {"infiniband_ports": 8, "infiniband_rate_gbps": 400.0, "infiniband_width_lanes": 4, "ethernet_ports": 1},
        "rdma_flaps": {},
        "rdma_errors": {},
    }
    found = [
        f for n, p in want.items() for f in checks.load()[n].findings(node, Past(available=True), checks.load()[n].params(**p))
    ]
    assert [(f.check, f.level, f.device) for f in found] == [("rdma_flaps", Level.OK, "mlx5_1/1")], "one of its counters is full"


#: Records of kmsg.csv that are the host's, by how they begin, and the check that says so. Everything else is nobody's here.
OURS = {
    "EDAC MC0: 1 UE": "memory_errors",
    "EXT4-fs (md0): Remounting": "fs_errors",
    "EXT4-fs (sda1): Remounting": "fs_errors",
    "nvme nvme0: I/O timeout": "disks",
    "nvme nvme4: I/O tag 22": "disks",
    "md/raid1:md1: Disk failure": "disks",
    "md/raid0md0: Disk failure": "disks",
    "md/raid10:md2: Disk failure": "disks",
}


@needs_data
def test_recorded_kernel_records() -> None:
    with (DATA / "kmsg/kmsg.csv").open(encoding="utf-8", newline="") as file:
        lines = [row["line"] for row in csv.DictReader(file)]
    told: dict[str, set[str]] = {}
    for line in lines:
        for name in OF_THE_HOST:
            check = checks.load()[name]
            said = [f for f in check.findings(host_node(), log(line), check.params()) if f.level is not Level.OK]
            if said:
                told.setdefault(line, set()).add(name)
                assert line.startswith(check.wakes_on), "what it says, wakes it"
            if check.kind is not None:
                assert check.heeds(line) is bool(said), "what is not heeded is not remembered"
    expected = {line: {name} for line in lines for start, name in OURS.items() if line.startswith(start)}
    assert told == expected, "a check says something of a recorded line: name it in OURS if the line is its own"
    assert len(expected) >= len(OURS)
