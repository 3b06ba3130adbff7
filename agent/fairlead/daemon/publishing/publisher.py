"""Writes all files that the agent publishes under /run/fairlead: verdict, status, topology, plans, environment, metrics.

The agent reports a full or read-only disk once, and tries again. Such a disk never ends the agent.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from fairlead.config import Document
from fairlead.errors import DataError, HostError
from fairlead.host import log
from fairlead.host.atomic_file import write_atomic, write_if_changed
from fairlead.host.boot_clock import boottime
from fairlead.host.bounded_disk import Direct, Storage
from fairlead.model.facts import Gpu, Missing, Node
from fairlead.model.verdict import State, Verdict, parse_line

if TYPE_CHECKING:
    from fairlead.daemon.jobs.job_tables import JobTables
    from fairlead.daemon.publishing.metrics import Metrics, MetricsInput
    from fairlead.topology.binding.published_files import ListedDevices

# The text file of metrics is written with each thorough sweep, and otherwise again after this time, because Prometheus scrapes
# about every 15 s.
TEXTFILE_SECONDS = 14.0


class Publisher:
    """Writes the run directory of one agent."""

    def __init__(self, document: Document, disk: Storage | None = None) -> None:
        self._disk = disk or Direct()
        self.trouble: dict[str, str] = {}
        self.sequence = 0
        self._lock = threading.Lock()  # guards the verdict: the loop writes it, or the loop watchdog while the loop is blocked
        self.verdict: Verdict | None = None
        self._facts: object = None
        self._metrics: Metrics | None = None
        self._textfile_at = 0.0
        self._status_at = 0.0
        self._listening = ""
        self._folder_id: tuple[int, int] | None = None
        self.change(document)
        earlier = self._read_earlier()
        self.sequence = earlier.sequence if earlier is not None else 0

    def change(self, document: Document) -> None:
        """Use another document, and make the run directory and its folders."""
        self.document = document
        self.run_dir = document.agent.run_dir
        for sub, mode in (("", 0o755), ("/plans", 0o755), ("/presets", 0o755), ("/jobs", 0o711)):
            folder = self.run_dir + sub
            try:
                os.makedirs(folder, mode=mode, exist_ok=True)
                os.chmod(folder, mode)
            except OSError as e:
                self._report_trouble(folder, e)
        self._folder_id = self._find_folder()
        self._facts = None
        self._tables: JobTables | None = None

    def _find_folder(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self.run_dir)
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _keep_folder(self) -> None:
        """Make the run directory again if somebody has removed it. Raises HostError if the agent cannot make it.

        The agent cannot make it in the unit's sandbox, where systemd mounts this directory and the rest of /run is read-only.
        The HostError then ends the agent. systemd makes the directory when it starts the agent again.
        """
        if self._find_folder() == self._folder_id is not None:
            return
        self.change(self.document)
        if not os.access(self.run_dir, os.W_OK) and "NOTIFY_SOCKET" in os.environ:
            raise HostError(f"{self.run_dir} was removed, and cannot be made inside the unit; systemd makes it at the next start")

    def _read_earlier(self) -> Verdict | None:
        """Return the verdict in the run directory, which an earlier agent wrote, or None if it cannot be read."""
        try:
            with open(f"{self.run_dir}/verdict", encoding="ascii", errors="replace") as f:
                return parse_line(f.read(4096))
        except (OSError, DataError):
            return None

    def publish_verdict(self, state: State, text: str) -> bool:
        """Write a verdict that is valid from now for ``ttl_seconds``. Return whether it differs from the verdict before."""
        self._keep_folder()
        before = self.verdict
        with self._lock:
            verdict = self._write_verdict(state, text)
        return before is None or (before.state, before.text) != (verdict.state, verdict.text)

    def _write_verdict(self, state: State, text: str) -> Verdict:
        self.sequence += 1
        verdict = Verdict(state=state, expires=int(boottime()) + self.ttl_seconds, sequence=self.sequence, text=text)
        self._write("verdict", verdict.to_line().encode("utf-8", "replace"))
        self.verdict = verdict
        return verdict

    def publish_unknown(self, text: str, late: Callable[[], bool]) -> None:
        """Publish ``unknown`` in place of a verdict other than ``drain``, if ``late()`` is true. The thread of the loop
        watchdog calls this."""
        with self._lock:
            last = self.verdict or self._read_earlier()
            if late() and (last is None or last.state is not State.DRAIN):
                self._write_verdict(State.UNKNOWN, text)

    @property
    def ttl_seconds(self) -> int:
        """Return for how long a verdict is valid."""
        options = self.document.agent
        return max(options.verdict_ttl_seconds, int(3 * options.interval_seconds))

    def publish_node(self, node: Node, listed: ListedDevices | None = None) -> None:
        """Write the files that the task prolog reads (topology, plans, environment) if their content has changed. ``listed``:
        which device each GRES index means, where gres.conf lists MIG devices.

        While NVML cannot list the NVIDIA GPUs of the node, the files stay as they are. A node with only AMD GPUs does not need
        NVML here.
        """
        gpus: tuple[object, ...]
        if isinstance(node.gpus, Missing):
            from fairlead.topology.distances import accelerators

            gpus = tuple(g.pci for g in accelerators.for_jobs(node))
            if not gpus:
                return
        else:
            gpus = tuple((g.pci, g.uuid, g.minor, g.mig_current, _mig_devices(g)) for g in node.gpus)
        if self._tables is None:
            from fairlead.daemon.jobs.job_tables import JobTables

            self._tables = JobTables(self.document)
        of_jobs = self._tables.facts(node)
        facts = (node.cpus, node.numa, gpus, tuple((n.name, n.pci, n.numa) for n in node.nics), of_jobs, listed)
        if facts == self._facts:
            return
        from fairlead.topology.binding import published_files as topology

        files = {"topology": topology.render_topology(node, listed=listed or topology.NOT_LISTED)}
        files |= {f"plans/{name}": text for name, text in topology.plan_files(node).items()}
        written = [self._write_if_changed(f"{self.run_dir}/{name}", text.encode()) for name, text in files.items()]
        written += [self._remove(f"plans/{name}") for name in self._names("plans") if f"plans/{name}" not in files]
        if self._environment(self._tables, *of_jobs) and all(written):
            self._facts = facts

    def _names(self, sub: str) -> list[str]:
        try:
            return os.listdir(f"{self.run_dir}/{sub}")
        except OSError:
            return []

    def _remove(self, name: str) -> bool:
        try:
            os.unlink(f"{self.run_dir}/{name}")
        except FileNotFoundError:
            return True
        except OSError as e:
            self._report_trouble(f"{self.run_dir}/{name}", e)
            return False
        return True

    def _remove_folder(self, name: str) -> None:
        try:
            os.rmdir(f"{self.run_dir}/{name}")
        except OSError:
            pass  # the folder does not exist, or it is not empty and the agent tries again later

    def _environment(self, tables: JobTables, interface: str, scratch: str) -> bool:
        try:
            files = tables.texts(interface, scratch)
        except DataError as e:
            self._report_trouble("env", e)
            return False
        if tables.trouble:
            self._report_trouble("jobenv.scratch", DataError(tables.trouble))
        else:
            self.trouble.pop("jobenv.scratch", None)
        written = [self._write_if_changed(f"{self.run_dir}/{name}", text.encode()) for name, text in files.items()]
        written += [self._remove(f"presets/{name}") for name in self._names("presets") if f"presets/{name}" not in files]
        if not self.document.jobenv.scratch:
            written += [self._remove(name) for name in ("scratch", *(f"ended/{n}" for n in self._names("ended")))]
            self._remove_folder("ended")  # the epilog writes into this folder only if it exists
        return all(written)

    def publish_status(self, data: bytes) -> None:
        """Write status.json."""
        self._write("status.json", data)

    def metrics_due(self) -> bool:
        """Return whether the text file of metrics is due."""
        return time.monotonic() >= self._textfile_at

    def write_metrics_soon(self) -> None:
        """Write the text file of metrics with the next sweep."""
        self._textfile_at = 0.0

    def publish_metrics(self, view: MetricsInput) -> None:
        """Update the input of the next scrape, and write the text file."""
        if self._metrics is None:
            from fairlead.daemon.publishing.metrics import Metrics

            self._metrics = Metrics(view)
        self._metrics.view = view
        options = self.document.agent
        if options.metrics_listen and self._listening != options.metrics_listen:
            self._listening = options.metrics_listen
            try:
                self._metrics.listen(options.metrics_listen)
            except (OSError, ValueError) as e:
                self._report_trouble(f"metrics_listen {options.metrics_listen}", e)
        self._textfile_at = time.monotonic() + TEXTFILE_SECONDS
        if options.metrics_textfile:
            data = self._metrics.render()
            # the run directory is in memory, so a write there does not hang
            beside = os.path.dirname(options.metrics_textfile) == self.run_dir
            disk = Direct() if beside else self._disk
            try:
                disk.do(lambda: write_atomic(options.metrics_textfile, data))
            except OSError as e:
                self._report_trouble(options.metrics_textfile, _with_advice(e))
            else:
                self.trouble.pop(options.metrics_textfile, None)

    def _write(self, name: str, data: bytes) -> None:
        path = f"{self.run_dir}/{name}"
        try:
            write_atomic(path, data)
        except OSError as e:
            self._report_trouble(path, e)
        else:
            self.trouble.pop(path, None)

    def _write_if_changed(self, path: str, data: bytes) -> bool:
        try:
            write_if_changed(path, data)
        except OSError as e:
            self._report_trouble(path, e)
            return False
        self.trouble.pop(path, None)
        return True

    def _report_trouble(self, what: str, error: Exception) -> None:
        text = f"{what}: {getattr(error, 'strerror', None) or error}"
        if self.trouble.get(what) != text:
            self.trouble[what] = text
            log.line(log.ERROR, "cannot publish", error=text)


def _mig_devices(gpu: Gpu) -> tuple[tuple[object, ...], ...]:
    """Return what is published of the GPU's MIG devices."""
    devices = () if isinstance(gpu.mig_devices, Missing) else gpu.mig_devices
    return tuple((device.uuid, device.gi, device.ci, device.profile) for device in devices)


def _with_advice(error: OSError) -> Exception:
    """Return the error with advice for the case that the unit's sandbox prevents the write."""
    if error.errno != errno.EROFS:
        return error
    advice = "the unit may write there after `fairlead provision` and a restart of fairlead-agent"
    return DataError(f"{error.strerror}; if only the agent gets this error, {advice}")
