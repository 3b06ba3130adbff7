"""Keeps one usage record for each job on this node, from the prolog's job record to the epilog's (``jobs.usage_record``).

A record is written when the job begins, each minute, and when the job ends. If the agent is killed, the next agent continues the
record, and the time between the last write and its own start is a gap. A record of another boot ends as ``lost``, and so does a
record of this boot if the job record is gone. The disk may not answer: then the records stay in memory and are written later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping

from fairlead import __version__
from fairlead.config import Document
from fairlead.daemon.jobs.blame import published
from fairlead.daemon.jobs.job_map import OnGpu, wanted_files
from fairlead.daemon.jobs.usage_readings import GpuReadings, node_reading
from fairlead.host import job_cgroup, log, node_counters
from fairlead.host.boot_clock import both_clocks
from fairlead.host.bounded_disk import Storage
from fairlead.host.job_map_files import JobMapFiles
from fairlead.host.job_records import Job, Jobs
from fairlead.host.root import Root
from fairlead.host.usage_files import UsageFiles
from fairlead.jobs import usage_sums
from fairlead.jobs.gpu_usage_sums import GpuReading
from fairlead.jobs.node_usage_sums import NodeCountersReading
from fairlead.jobs.usage_record import BadRecord, JobFinding, UsageRecord, encoded, known_part
from fairlead.jobs.usage_sums import HostReading, OpenUsage
from fairlead.model.facts import Missing, Node
from fairlead.model.finding import Finding, Level

FLUSH_SECONDS = 60.0
LAST_READING_SECONDS = 10.0  # so long an ended record waits for the last reading of the job's GPUs
GROUP_SECONDS = 5.0  # a job's control group is read this often
GROUP_SECONDS_EACH = 0.25  # ... and less often by this time for each job on the node
# A job without a control group for so long is on a node where Slurm makes none. Its group is looked for this often.
NO_GROUP_SECONDS, NO_GROUP_AGAIN_SECONDS = 60.0, 30.0
DONE_MAX = 512  # ended jobs are remembered, in case their job records cannot be removed
WAITING_MAX = 512  # ended records that could not be written yet
MISSED_MAX = 3  # a job is lost after so many readings of the job records without it
SYNCED_MAX = 8  # with more ended records at once, the disk would be too slow to write each of them at once
JOB_MAX = 1 << 32
Key = tuple[int, float]  # the job id and START of its job record


class Kept:
    """Holds the record of one job while the agent keeps it.

    name: of the record's file. ended_at: when the agent noticed the end (CLOCK_BOOTTIME), or None. written_at: when the file was
    last written, or None if it must be written. final: nothing will be added. gone: the job has no slurmstepd here. missed: how
    often in a row the job had no job record.
    """

    def __init__(self, name: str, job: Job, usage: OpenUsage) -> None:
        self.name = name
        self.job = job
        self.usage = usage
        self.ended_at: float | None = None
        self.written_at: float | None = None
        self.group_at = float("-inf")
        self.final = False
        self.gone = False
        self.missed = 0

    @property
    def runs(self) -> bool:
        """Return whether the job has its GPUs now."""
        return self.ended_at is None and not self.gone

    @property
    def waits(self) -> bool:
        """Return whether the record waits for its GPUs, or for their last reading."""
        return self.ended_at is not None or bool(self.job.gpus and not self.usage.record.gpus)


class UsageKeeper:
    """Keeps the usage records of one node. ``now``: returns CLOCK_BOOTTIME and the system clock, both in seconds."""

    def __init__(
        self, document: Document, root: Root, boot_id: str, disk: Storage, now: Callable[[], tuple[float, float]] | None = None
    ) -> None:
        self._now = now or both_clocks
        self._agent_boot = self._now()[0]
        self._root = root
        self._boot_id = boot_id
        self._files = UsageFiles(document.agent.state_dir, disk)
        self._maps = JobMapFiles(document.agent.run_dir)
        self._readings = GpuReadings()
        self._pci_by_index: dict[int, str] = {}
        self._mapped: tuple[object, ...] = ()  # what the files for other exporters were made of
        self._loaded = False
        self._earlier: dict[Key, tuple[str, UsageRecord]] = {}  # open records of an earlier agent in this boot
        self._kept: dict[Key, Kept] = {}
        self._done: deque[Key] = deque(maxlen=DONE_MAX)
        self._heeded = 0
        self.change(document)

    def change(self, document: Document) -> None:
        """Use another document. The folders ``state_dir`` and ``run_dir`` stay."""
        self._options = document.agent
        self._node = document.slurm_node

    @property
    def trouble(self) -> str:
        """Return why a file could not be written, in one line, or ""."""
        return self._files.trouble or self._maps.trouble

    def heed(self, jobs: Jobs) -> None:
        """Begin and end records as the job records say. Call this before the records of ended jobs are removed."""
        if not self._options.usage_records:
            self.close()
            self._kept.clear()
        elif self._loaded or self._load():
            boot, unix = self._now()
            there = {(j.id, j.start): j for j in jobs.known if j.start is not None and 1 <= j.id <= JOB_MAX}
            for key, job in there.items():
                if key not in self._kept and key not in self._done:
                    self._begin(key, job, boot, unix)
            for key, kept in self._kept.items():
                if kept.ended_at is None:
                    self._follow(kept, there.get(key), jobs, boot, unix)
            self._lose_earlier()
            self._write(boot, unix)
        self._publish_map()

    def add(self, node: Node, findings: Iterable[Finding]) -> None:
        """Add the readings of a sweep. ``findings``: all findings on this node now."""
        boot, unix = self._now()
        fresh = self._readings.take(node, boot)
        open_ = [kept for kept in self._kept.values() if not kept.final]
        if open_ and (fresh or any(kept.waits for kept in open_)):
            self._pci_by_index = {index: pci for pci, index in published(self._options.run_dir).order.items()}
            shared = self._shared()
            found = tuple(f for f in findings if f.level is not Level.OK)
            of_node = self._read_node(node, boot) if fresh and any(kept.job.gpus for kept in open_) else None
            for kept in open_:
                self._add_to(kept, found, shared, of_node, boot=boot, unix=unix)
            self._publish_map()
        if self._kept:
            self._write(boot, unix)
            self._files.prune(self._options.usage_days, {kept.name for kept in self._kept.values()})

    def close(self) -> None:
        """Write all records before the agent ends."""
        boot, unix = self._now()
        for kept in self._kept.values():
            kept.written_at = None
        self._write(boot, unix)

    # -- begin and end -------------------------------------------------------------------------------------------------------

    def _load(self) -> bool:
        """Read the records that an earlier agent has not ended. Return False if the disk does not let it."""
        files = self._files.open_files()
        if files is None:
            return False
        self._loaded = True
        for name, data in files.items():
            try:
                record = known_part(data)
            except BadRecord as e:
                log.line(log.WARNING, "a usage record is set aside", file=name, error=str(e))
                self._files.set_aside(name)
                continue
            key = record.job, record.begin_boot
            if record.boot_id == self._boot_id and key not in self._earlier:
                self._earlier[key] = name, record
            else:
                self._write_lost(name, record)
        return True

    def _begin(self, key: Key, job: Job, boot: float, unix: float) -> None:
        """Begin the record of a job, or continue the record that an earlier agent has written."""
        start = min(key[1], boot)
        if (earlier := self._earlier.pop(key, None)) is not None:
            name, record = earlier
            self._kept[key] = Kept(name, job, usage_sums.continued(record, agent_boot=self._agent_boot))
            return
        if job.end is not None and self._is_written(key):
            self._done.append(key)  # an earlier agent was killed before it removed the job record
            return
        begin_unix = max(0.0, unix - (boot - start))
        record = UsageRecord(
            job=job.id,
            node=self._node,
            boot_id=self._boot_id,
            begin_unix=begin_unix,
            begin_boot=start,
            written_unix=begin_unix,
            alloc_seconds=0.0,
            sluid=job.sluid,
            uid=job.uid,
            agent_version=__version__,
        )
        usage = usage_sums.begun(record, agent_boot=self._agent_boot)
        self._kept[key] = Kept(self._files.new_name(job.id, begin_unix), job, usage)

    def _is_written(self, key: Key) -> bool:
        for data in self._files.of_job(key[0]):
            try:
                record = known_part(data)
            except BadRecord:
                continue
            if (record.boot_id, record.begin_boot) == (self._boot_id, key[1]):
                return True
        return False

    def _follow(self, kept: Kept, job: Job | None, jobs: Jobs, boot: float, unix: float) -> None:
        """End the record if the job has ended. ``job``: what the job record says now, or None if it says nothing.

        While the epilog writes the job record, the record is not complete for a moment. So a job is lost only if its record
        stays away, or if the record is already that of a new start. A job that has no slurmstepd here is lost as soon as
        another job has one of its GPUs.
        """
        if job is None:
            kept.missed += 1
            if kept.missed >= MISSED_MAX or any(other.id == kept.job.id for other in jobs.known):
                self._lose(kept, boot)
            return
        kept.missed = 0
        if job.names and not kept.job.names:  # gres.conf lists the MIG devices, and the agent has read it only now
            kept.job = job
        kept.gone = job.end is None and job.id not in jobs.running
        if job.end is not None:
            kept.usage = usage_sums.ended(kept.usage, end_boot=min(job.end, boot), boot=boot, unix=unix)
            kept.ended_at, kept.written_at, kept.final = boot, None, not kept.job.gpus
        elif kept.gone and any(other.gpus & job.gpus for other in jobs.known if other.id in jobs.running):
            self._lose(kept, boot)
        else:
            self._read_group(kept, boot)

    def _lose(self, kept: Kept, boot: float) -> None:
        kept.usage = OpenUsage(record=usage_sums.lost(kept.usage.record))
        kept.ended_at, kept.written_at, kept.final = boot, None, True

    def _lose_earlier(self) -> None:
        """End the records of an earlier agent whose jobs are not there. See ``_follow`` for the delay."""
        self._heeded += 1
        if self._heeded < MISSED_MAX:
            return
        for name, record in self._earlier.values():
            self._write_lost(name, record)
        self._earlier.clear()

    def _write_lost(self, name: str, record: UsageRecord) -> None:
        self._write_files({name: usage_sums.lost(record)}, sync=False)

    def _write_files(self, records: Mapping[str, UsageRecord], *, sync: bool) -> bool:
        """Write records into the files of these names. Only the owner of a job may read its record."""
        readers = {name: record.uid for name, record in records.items() if record.uid}
        return self._files.write({name: encoded(record) for name, record in records.items()}, readers=readers, sync=sync)

    # -- readings ------------------------------------------------------------------------------------------------------------

    def _read_node(self, node: Node, boot: float) -> NodeCountersReading:
        ports = () if isinstance(node.host, Missing) or isinstance(node.host.ports, Missing) else node.host.ports
        return node_reading(node_counters.read(self._root, ports), boot)

    def _add_to(
        self,
        kept: Kept,
        findings: Iterable[Finding],
        shared: frozenset[str],
        of_node: NodeCountersReading | None,
        *,
        boot: float,
        unix: float,
    ) -> None:
        gpus = self._gpus_of(kept.job)
        fresh = [gpu for gpu in gpus if gpu.uuid in self._readings.fresh]
        usage = usage_sums.with_listed(kept.usage, gpus)
        if usage is not kept.usage:
            kept.written_at = None  # the file names the GPUs from the job's beginning
        if fresh:
            usage = usage_sums.with_gpus(usage_sums.passed(usage, boot=boot, unix=unix), fresh, shared=shared)
            usage = usage if of_node is None else usage_sums.with_node(usage, of_node)
        if kept.ended_at is None:
            usage = usage_sums.with_findings(usage, _of_job(findings, gpus, self._readings, unix))
        elif fresh or boot - kept.ended_at >= LAST_READING_SECONDS:
            kept.final, kept.written_at = True, None
        kept.usage = usage

    def _gpus_of(self, job: Job) -> list[GpuReading]:
        return self._readings.of_job(job, self._pci_by_index) if job.gpus else []

    def _shared(self) -> frozenset[str]:
        """Return the UUIDs of the GPUs that more than one running job has."""
        counts: dict[str, int] = {}
        for kept in self._kept.values():
            for gpu in self._gpus_of(kept.job) if kept.runs else ():
                counts[gpu.uuid] = counts.get(gpu.uuid, 0) + 1
        return frozenset(uuid for uuid, count in counts.items() if count > 1)

    def _read_group(self, kept: Kept, boot: float) -> None:
        """Read the job's control group if that is due. It goes away before the epilog ends, so it is read often."""
        record = kept.usage.record
        never = record.host.cpu_seconds is None and boot - record.begin_boot >= NO_GROUP_SECONDS
        if boot - kept.group_at < max(GROUP_SECONDS + GROUP_SECONDS_EACH * len(self._kept), NO_GROUP_AGAIN_SECONDS * never):
            return
        kept.group_at = boot
        group = job_cgroup.read(self._root, kept.job)
        total = None if record.host.memory_total_bytes else job_cgroup.memory_total_bytes(self._root)
        reading = HostReading(
            cpu_seconds=group.cpu_seconds,
            cpus=group.cpus,
            memory_bytes=group.memory_bytes,
            memory_limit_bytes=group.memory_limit_bytes,
            memory_total_bytes=total,
        )
        kept.usage = usage_sums.with_host(kept.usage, reading)

    # -- files ---------------------------------------------------------------------------------------------------------------

    def _publish_map(self) -> None:
        """Write the files for other exporters if anything has changed that they are made of."""
        options = self._options
        wanted = options.gpustat_dir or options.dcgm_job_dir
        running = [kept.job for kept in self._kept.values() if kept.runs] if wanted else []
        made_of = (options.gpustat_dir, options.dcgm_job_dir, running, self._pci_by_index)
        if self._mapped[:-1] == made_of and self._mapped[-1] is self._readings.all and not self._maps.trouble:
            return
        self._mapped = (*made_of, self._readings.all)
        on_gpus = [OnGpu(job.id, job.uid, gpu) for job in running for gpu in self._gpus_of(job)]
        index = self._readings.index
        self._maps.publish(wanted_files(on_gpus, index, gpustat=options.gpustat_dir, dcgm=options.dcgm_job_dir))

    def _write(self, boot: float, unix: float) -> None:
        """Write the records that are new, that have ended, or that were not written for a minute. Forget those that are final and
        written."""
        due = [k for k in self._kept.values() if k.written_at is None or boot - k.written_at >= FLUSH_SECONDS]
        if not due:
            return
        for kept in due:
            if not kept.final:
                kept.usage = usage_sums.passed(kept.usage, boot=boot, unix=unix)
        final = 0 < sum(kept.final for kept in due) <= SYNCED_MAX
        if self._write_files({kept.name: kept.usage.record for kept in due}, sync=final):
            for kept in due:
                kept.written_at = boot
        over = [key for key, kept in self._kept.items() if kept.final]
        for key in [key for key in over if self._kept[key].written_at is not None] or over[:-WAITING_MAX]:
            self._done.append(key)
            del self._kept[key]


def _of_job(findings: Iterable[Finding], gpus: Iterable[GpuReading], readings: GpuReadings, unix: float) -> Iterable[JobFinding]:
    """Return the findings on the job's GPUs and those that are on no GPU."""
    own = {gpu.pci for gpu in gpus}
    for finding in findings:
        pci = finding.device if finding.device in readings.index else ""
        if not pci or pci in own:
            yield JobFinding(check=finding.check, level=finding.level.word, pci=pci, at_unix=unix)
