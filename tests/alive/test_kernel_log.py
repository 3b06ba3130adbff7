"""The kernel log under load: ten thousand lines in a second, records lost to the ring buffer, a source that goes away."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.model.verdict import State
from tests.alive.conftest import Living, Make
from tests.daemon.conftest import PROJECT
from tests.lab import kernel

pytestmark = pytest.mark.root
XID79 = "NVRM: Xid (PCI:0000:{pci}:00): 79, pid=1234, name=python3, GPU has fallen off the bus."
XID13 = "NVRM: Xid (PCI:0000:1b:00): 13, pid={n}, name=python3, Graphics SM Warp Exception on (GPC 1, TPC 2, SM 1)"


@pytest.fixture
def log(tmp_path: Path) -> Iterator[kernel.KernelLog]:
    made = kernel.KernelLog(tmp_path / "ring")
    yield made
    made.close()


def reading(living: Make, preload: Path, log: kernel.KernelLog, **options: dict[str, object]) -> Living:
    """An agent whose kernel log is that ring."""
    agent = living(agent={"kmsg_path": str(log.path), **options.pop("agent", {})}, **options)
    agent.environment |= kernel.environment(preload, log=log)
    return agent


def test_lost_records_are_said_until_somebody_knows(living: Make, preload: Path, log: kernel.KernelLog) -> None:
    """The agent is stopped while the ring is overwritten. It reads on from the oldest record left: nothing in there is lost."""
    log.say("Linux version 6.1")
    agent = reading(living, preload, log).start()
    assert agent.verdict().state is State.OK
    agent.send(signal.SIGSTOP)
    log.flood(3 * kernel.SLOTS)
    agent.send(signal.SIGCONT)
    lost = 2 * kernel.SLOTS
    agent.says(f"{lost} kernel records were lost")
    agent.render()
    assert agent.metric("fairlead_kernel_records_lost_total") == lost
    assert agent.prolog().rc == 0
    agent.again()  # it does not forget, and does not count the same loss again
    agent.says(f"{lost} kernel records were lost")
    done = command(agent, "ack", "xid", "--reason", "looked at the journal")
    assert done.returncode == 0 and "kernel records were lost" in done.stdout, done
    agent.well()
    agent.again()
    agent.well()  # acknowledged for good
    agent.send(signal.SIGSTOP)
    log.flood(kernel.SLOTS)
    log.say(XID79.format(pci="52"))
    agent.send(signal.SIGCONT)
    agent.says("Xid 79 on GPU 0000:52:00.0")
    agent.until(lambda: f"{lost + 1} kernel records were lost" in str(agent.status()["findings"]), "word of another loss")


def command(agent: Living, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fairlead", *words, "--document", str(agent.document)],
        env={**os.environ, "PYTHONPATH": str(PROJECT / "agent")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_lost_records_fade_where_the_driver_speaks_for_them(
    living: Make, preload: Path, log: kernel.KernelLog, tmp_path: Path
) -> None:
    """Its own advice on every GPU stands in for what was in them; for a while it is reported all the same."""
    agent = reading(living, preload, log, checks={"xid": {"remember_seconds": 2}})
    uptime = tmp_path / "uptime"
    uptime.write_text("5000.00 4000.00\n")
    over = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'
    agent.before = ("unshare", "--mount", "sh", "-c", over, "sh", str(uptime), str(agent.tree / "proc/uptime"))
    log.say("Linux version 6.1")
    agent.start()
    agent.send(signal.SIGSTOP)
    log.flood(2 * kernel.SLOTS)
    agent.send(signal.SIGCONT)
    agent.says("kernel records were lost")
    agent.until(lambda: "the driver asks for nothing on any GPU" in str(agent.status()["findings"]), "the driver's word")
    uptime.write_text("5003.00 4000.00\n")
    agent.well()
    agent.faults.error(2, "nvmlDeviceGetFieldValues", 999)
    agent.says("driver's advice")
    agent.until(lambda: "no advice of the driver on 0000:52:00.0" in str(agent.status()["findings"]), "word of the loss again")


def test_ten_thousand_lines_in_a_second(living: Make) -> None:
    """Through a FIFO, which holds its writer up: every line is read, and of the fault among them the verdict speaks."""
    agent = living(agent={"interval_seconds": 1.0}).start()
    before = agent.sequence()
    used = cpu_seconds(agent)
    with open(agent.fifo, "w") as out:
        for n in range(10_000):
            text = XID79.format(pci="52") if n == 7_777 else f"mce: harmless chatter of a driver, number {n}"
            out.write(f"6,{n},{n * 100},-;{text}\n")
    agent.says("Xid 79 on GPU 0000:52:00.0")
    took = cpu_seconds(agent) - used
    assert agent.prolog().rc == 0
    agent.until(lambda: agent.sequence() > before + 1, "sweeps go on")
    assert took < 5, f"{took} s of CPU for 10,000 lines"  # 0.1 s here; of CPU, not of time


def test_a_job_that_floods_the_log_with_its_own_faults(living: Make, preload: Path, log: kernel.KernelLog) -> None:
    """Ten thousand Xid 13 around one Xid 79 of another GPU, in a ring that holds a tenth of them."""
    agent = reading(living, preload, log).start()
    used = cpu_seconds(agent)
    for start in range(0, 10_000, 500):
        log.say(*(XID13.format(n=n) for n in range(start, start + 499)), XID79.format(pci="52") if start == 5000 else "x")
        agent.until(lambda n=start: agent_has_read(log), "reading")  # type: ignore[misc]
    agent.says("Xid 79 on GPU 0000:52:00.0")
    assert agent.prolog().rc == 0
    took = cpu_seconds(agent) - used
    assert took < 20, f"{took} s of CPU for 10,000 faults"


def agent_has_read(log: kernel.KernelLog) -> bool:
    """No word of news is left in the FIFO."""
    import fcntl
    import termios

    left = fcntl.ioctl(log._news, termios.FIONREAD, b"\0\0\0\0")
    return left == b"\0\0\0\0"


def cpu_seconds(agent: Living) -> float:
    assert agent.process is not None
    fields = Path(f"/proc/{agent.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_log_that_goes_away_ages(living: Make) -> None:
    agent = living().start()
    age = 'fairlead_source_timestamp_seconds{source="kernel_log"}'
    agent.fifo.unlink()
    agent.says("the kernel log cannot be read")
    agent.render()
    before = agent.metric(age)
    sequence = agent.sequence()
    agent.until(lambda: agent.sequence() > sequence + 5, "verdicts")
    agent.render()
    assert agent.metric(age) == pytest.approx(before, abs=0.5) and before < time.time()
    refused = agent.prolog(on_stale="refuse")
    assert refused.rc == 1 and agent.prolog().rc == 0
    os.mkfifo(agent.fifo)
    agent.well()
