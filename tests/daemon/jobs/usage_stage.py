"""A node with eight GPUs whose loads are scripted, a clock that the test moves, and the keeper of usage records on real files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from fairlead import config
from fairlead.config import Document
from fairlead.daemon.jobs.usage_keeper import UsageKeeper
from fairlead.host import job_records
from fairlead.host.bounded_disk import Direct, Storage
from fairlead.host.root import Root
from fairlead.jobs.usage_record import UsageRecord, decoded
from fairlead.model.facts import Gpu, Node, unreadable
from fairlead.model.finding import Finding
from fairlead.model.gpu_activity import GpuActivity
from fairlead.topology.binding import published_files
from tests.checks import nodes

UNIX = 1_790_000_000.0
SECOND_BOOT = "5f0c7a3e-0000-4000-8000-000000000002"
TICK = 2.0
CLOSE = 14.0


class Stage:
    """``busy``: the share of time in which each GPU works. ``step``: what somebody added to the system clock, in seconds."""

    def __init__(self, folder: Path, **options: object) -> None:
        self.folder = folder
        self.run_dir, self.state_dir = folder / "run", folder / "state"
        (self.run_dir / "jobs").mkdir(parents=True, exist_ok=True)
        self.state_dir.mkdir(exist_ok=True)
        self.options = options
        self.boot, self.step = 1000.0, 0.0
        self.boot_id = str(nodes.BOOT)
        self.busy = [1.0] * 8
        self.sums: list[dict[str, float]] = []
        self.answers = True
        self.facts = self.node()
        (self.run_dir / "topology").write_text(published_files.render_topology(self.facts))
        self.start()

    def document(self) -> Document:
        document = config.profile_document("gpu01", "hgx-h100")
        agent = replace(document.agent, run_dir=str(self.run_dir), state_dir=str(self.state_dir), **self.options)
        return replace(document, agent=agent)

    def start(self, disk: Storage | None = None) -> None:
        """Start an agent, as if the one before had been killed. Its sums begin at 0."""
        self.sums = [{"measured_seconds": 0.0, "gap_seconds": 0.0, "busy_seconds": 0.0, "energy_joules": 0.0} for _ in range(8)]
        root = Root(str(self.folder / "root"))
        self.keeper = UsageKeeper(self.document(), root, self.boot_id, disk or Direct(), self.clocks)
        self.close_at = self.boot
        self.facts = self.node()

    def clocks(self) -> tuple[float, float]:
        return self.boot, UNIX + self.boot + self.step

    def node(self) -> Node:
        gpus = [self.gpu(i) for i in range(8)]
        return nodes.node(*gpus)

    def gpu(self, number: int) -> Gpu:
        activity = GpuActivity(**self.sums[number]) if self.sums else GpuActivity()
        return nodes.gpu(number, activity=activity, memory_used_bytes=(number + 1) << 30)

    def record(
        self, job: int, state: str = "running", gpus: str = "0", start: float | None = None, end: float | None = None
    ) -> None:
        """Write a job record as the hooks do."""
        begin = self.boot if start is None else start
        last = "-" if end is None else f"{end}"
        (self.run_dir / "jobs" / str(job)).write_text(f"1\t{state}\t1000\t{gpus}\t{begin}\t{last}\t-\t.\n")

    def tick(self, findings: Sequence[Finding] = (), *, close: bool = False) -> None:
        """What the loop does at a tick: read the job records, sweep, and forget the records of ended jobs. NVML is asked closely
        every 14 s, or if the loop wants to: when a job has begun or ended."""
        jobs = job_records.scan(str(self.run_dir / "jobs"))
        self.keeper.heed(jobs)
        job_records.forget(str(self.run_dir / "jobs"), jobs.ended)
        if self.answers and (close or jobs.ended or self.boot - self.close_at >= CLOSE):
            self.close_at = self.boot
            self.facts = self.node()
        facts = self.facts if self.answers else replace(self.facts, gpus=unreadable("NVML does not answer"))
        self.keeper.add(facts, findings)

    def run(self, seconds: float, findings: Sequence[Finding] = ()) -> None:
        """Let time pass, with a tick every two seconds."""
        until = self.boot + seconds
        while self.boot < until:
            passed = min(TICK, until - self.boot)
            self.boot += passed
            for sums, busy in zip(self.sums, self.busy, strict=True):
                sums["measured_seconds" if self.answers else "gap_seconds"] += passed
                sums["busy_seconds"] += passed * busy if self.answers else 0.0
                sums["energy_joules"] += passed * 100
            self.tick(findings)

    def begin(self, job: int, gpus: str = "0") -> None:
        self.record(job, gpus=gpus)
        self.tick(close=True)

    def end(self, job: int, gpus: str = "0", start: float = 1000.0) -> None:
        self.record(job, "ended", gpus, start, self.boot)
        self.tick()

    def records(self) -> list[UsageRecord]:
        """All records on the disk, in the order of their begin."""
        found = [decoded(path.read_bytes()) for path in (self.state_dir / "usage").glob("*.json")]
        return sorted(found, key=lambda record: (record.begin_boot, record.job))

    def only(self) -> UsageRecord:
        (record,) = self.records()
        return record
