"""/run that has become read-only: the verdict ages, the prolog does what the site says of an old one, and it all comes back."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.model.verdict import State, parse_line
from tests.alive.conftest import Living, Make
from tests.daemon.conftest import XID79

pytestmark = pytest.mark.root
LATER = ("unshare", "--time", "--boottime", "3600")  # what the prolog's /proc/uptime says: the verdict has expired


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Keeps a mount namespace with a tmpfs at tmp_path."""
    words = ["unshare", "--mount", "--propagation", "private", "sh", "-c", 'mount -t tmpfs none "$1" && echo && cat', "sh"]
    with subprocess.Popen([*words, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as keeper:
        assert keeper.stdin is not None and keeper.stdout is not None and keeper.stdout.readline() == b"\n"
        yield keeper
        keeper.stdin.close()


def test_read_only(living: Make, mounted: subprocess.Popen[bytes], tmp_path: Path) -> None:
    if subprocess.run([*LATER, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no time namespaces here")
    enter = ("nsenter", "--mount", f"--target={mounted.pid}")
    agent = living(agent={"run_dir": str(tmp_path / "run"), "metrics_textfile": str(tmp_path / "run/metrics.prom")})
    agent.before = enter
    seen = Path(f"/proc/{mounted.pid}/root{tmp_path}/run")
    agent.run_dir = seen
    agent.start()

    def prolog(*words: str, on_stale: str = "allow") -> int:
        return asked(agent, mounted, tmp_path, words, on_stale)

    agent.until(lambda: agent.verdict().state is State.OK, "verdict ok")
    assert prolog() == 0
    remount(enter, tmp_path, "ro")
    try:
        agent.kernel(XID79.format(n=1, us=1_000_000))
        told = f'cannot_publish error="{tmp_path}/run/verdict: Read-only file system"'
        agent.until(lambda: told in agent.log.read_text(), "word of it")
        agent.until(lambda: "verdict state=warn" in agent.log.read_text(), "a verdict, if only in the log")
        assert parse_line((seen / "verdict").read_text()).state is State.OK, "the old one lies there"
        assert agent.log.read_text().count(told) == 1
        assert (prolog(*LATER), prolog(*LATER, on_stale="refuse")) == (0, 1)
        agent.end(signal.SIGKILL)
        lines = len(agent.log.read_text())
        agent.start(wait=False)
        agent.until(lambda: "verdict state=warn" in agent.log.read_text()[lines:], "a verdict of the next agent")
        assert prolog(*LATER) == 0, "nor does an agent that starts change it"
    finally:
        remount(enter, tmp_path, "rw")
    agent.says("Xid 79")
    assert prolog(on_stale="refuse") == 0
    assert agent.end() == 0


def remount(enter: tuple[str, ...], folder: Path, how: str) -> None:
    """The kernel refuses "ro" while a program has a file open for writing there, and the agent writes often."""
    command = [*enter, "mount", "-o", f"remount,{how}", str(folder)]
    until = time.monotonic() + 30
    while (done := subprocess.run(command, capture_output=True, timeout=60, check=False)).returncode and time.monotonic() < until:
        time.sleep(0.01)
    done.check_returncode()


def asked(agent: Living, keeper: subprocess.Popen[bytes], folder: Path, words: tuple[str, ...], on_stale: str) -> int:
    """The prolog in the agent's own mount namespace, /run and /etc over it."""
    script = (
        'mount -t tmpfs none /mnt && mkdir /mnt/run && mount --bind "$1/run" /mnt/run && '
        'mount -t tmpfs none /etc && mkdir /etc/fairlead && printf "1\\t%s\\tfull\\t-\\t-\\n" "$2" >/etc/fairlead/hooks && '
        'mount -t tmpfs none /run && mkdir /run/fairlead && mount --bind /mnt/run /run/fairlead && exec "$3"'
    )
    prolog = str(Path(__file__).resolve().parents[2] / "slurm/prolog")
    command = ["nsenter", "--mount", f"--target={keeper.pid}", *words, "unshare", "--mount", "--propagation", "private"]
    command += ["sh", "-c", script, "sh", str(folder), on_stale, prolog]
    job = {"SLURM_JOB_ID": "4711", "SLURM_JOB_UID": "1000", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    return subprocess.run(command, env=job, capture_output=True, timeout=60, check=False).returncode
