"""`fairlead selftest` for real: on this machine, without root, with a driver library that hangs, crashes and lies, with a hook
that hangs, and on a machine where every name is a secret."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fairlead import config
from fairlead.selftest import claims
from fairlead.selftest.fact_sources import FILES, NVML, SOURCES
from fairlead.selftest.selftest_report import REPORT_MAX_BYTES
from tests import printed_json
from tests.host.conftest import faults, library  # noqa: F401  (fixtures)
from tests.host.users_fuse import fuse, needs_fuse
from tests.lab.faults import Faults
from tests.selftest.reports import PROJECT, row, run

pytestmark = [pytest.mark.root, pytest.mark.heavy]
NOBODY = (
    "setpriv",
    "--reuid=65534",
    "--regid=65534",
    "--clear-groups",
    "--inh-caps=+dac_read_search",
    "--ambient-caps=+dac_read_search",
)
OURS = ("/etc/fairlead", "/run/fairlead", "/var/lib/fairlead", "/etc/nccl.conf")


def report(*words: str, **how: Any) -> dict[str, Any]:
    done = run("--json", *words, **how)
    assert done.returncode in (0, 1) and "Traceback" not in done.stderr, done
    found: dict[str, Any] = printed_json.hold("selftest", done.stdout)
    return found


@pytest.fixture(scope="module")
def here() -> dict[str, Any]:
    """The report of this machine."""
    if os.geteuid():
        pytest.skip("needs root: the hooks run in a private mount namespace")
    return report()


def state_of_ours() -> list[tuple[str, int, int]]:
    paths = [path for top in OURS for path in ([Path(top), *Path(top).rglob("*")] if Path(top).exists() else [])]
    return sorted((str(path), path.lstat().st_mtime_ns, path.lstat().st_ino) for path in paths)


def mounts_of_ours() -> set[str]:
    """Without those of labs, which other tests start and end."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return {line for line in lines if "fairlead" in line and "fairlead-lab" not in line}


def test_every_part_has_a_row(here: dict[str, Any]) -> None:
    assert {r["name"] for r in here["sources"]} == {source.name for source in (*SOURCES, FILES, NVML)}
    assert {r["name"] for r in here["hooks"]} == {*claims.HOOKS}
    assert not [
        r for kind in ("sources", "checks", "settings") for r in here[kind] if r["state"] in ("failed", "crashed", "not_run")
    ]
    assert here["machine"]["distribution"] == "debian" and here["seconds"] > 0


def test_the_hooks_say_what_the_claims_say(here: dict[str, Any]) -> None:
    """When a hook's words change, claims.py gets the new digest: it is the one that this test shows."""
    wanted = {name: ("run", claim.status, claim.digest) for name, claim in claims.HOOKS.items()}
    if not {0, 1} <= os.sched_getaffinity(0):
        wanted |= dict.fromkeys(("task-prolog", "bind-plan"), ("not_run", 0, ""))
    assert {r["name"]: (r["state"], r["status"], r["digest"]) for r in here["hooks"]} == wanted


def test_nothing_is_changed_and_nothing_is_left(here: dict[str, Any]) -> None:
    before, mounts = state_of_ours(), mounts_of_ours()
    assert report()["untouched"]["processes_left"] == [] == here["untouched"]["processes_left"]
    assert state_of_ours() == before
    assert mounts_of_ours() <= mounts


def test_checks_that_need_a_gpu_are_those_of_the_claims(here: dict[str, Any]) -> None:
    """On a machine without a GPU, every other check judges."""
    if here["machine"]["gpus_on_bus"]:
        pytest.skip("this machine has a GPU")
    assert {r["name"] for r in here["checks"] if r["state"] == "lacks"} <= claims.CHECKS_OF_GPUS


def test_a_report_is_written_beside_what_differs(tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    done = run("--out", str(out))
    assert f"{out}: the redacted report; read it, then send it" in done.stdout
    assert out.stat().st_size < REPORT_MAX_BYTES // 10 and json.loads(out.read_text())["schema"] == 1
    compared = run("--compare", str(out))
    assert compared.returncode == done.returncode, "both say the same of the same report"
    again = run("--out", str(out))
    assert again.returncode == 64 and "exists already" in again.stderr and "  next: " in again.stderr


def test_the_default_name_names_no_machine(tmp_path: Path) -> None:
    done = run(before=("env", "-C", str(tmp_path)))
    (made,) = tmp_path.iterdir()
    assert made.name.startswith("fairlead-selftest-debian-") and os.uname().nodename not in made.name
    assert str(made) in done.stdout


def test_without_root_the_rest_is_read_and_the_hooks_are_said_not_to_run() -> None:
    said = report(before=NOBODY)
    assert said["root"] is False
    assert {(r["state"], *r["reasons"]) for r in said["hooks"]} == {("not_run", "this needs root")}
    assert row(said, "sources", "cpus")["state"] == "read" and len(said["checks"]) > 30


def test_where_no_mounts_are_permitted_the_hooks_are_said_not_to_run() -> None:
    """As in a container: root without CAP_SYS_ADMIN."""
    said = report(before=("setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"))
    assert said["root"] is True
    assert {(r["state"], *r["reasons"]) for r in said["hooks"]} == {("not_run", "no private mount namespace is permitted here")}
    assert row(said, "sources", "cpus")["state"] == "read"


@pytest.mark.parametrize(
    ("call", "crash", "state", "says"),
    [
        ("nvmlInit", True, "crashed", r"the worker died in nvmlInit"),
        ("nvmlDeviceGetMemoryInfo", True, "crashed", "the worker died in nvmlDeviceGetMemoryInfo"),
        ("nvmlDeviceGetMemoryInfo", False, "hung", r"nvmlDeviceGetMemoryInfo_v2 of \S+ did not return within 5 s"),
    ],
)
def test_a_driver_library_that_crashes_or_hangs(  # noqa: PLR0917
    faults: Faults,  # noqa: F811
    call: str,
    crash: bool,
    state: str,
    says: str,
    tmp_path: Path,
) -> None:
    (faults.crash if crash else faults.hang)(call, None)
    before = state_of_ours()
    done = run("--out", str(tmp_path / "report.json"))
    assert done.returncode == 1 and "Traceback" not in done.stderr
    lines = done.stdout.splitlines()
    (at,) = (n for n, line in enumerate(lines) if re.match(f"  source nvml: {state}: {says}", line))
    assert lines[at + 1].startswith("    next: run `nvidia-smi`")
    assert state_of_ours() == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_no_file_and_no_process(faults: Faults, number: signal.Signals, tmp_path: Path) -> None:  # noqa: F811
    faults.hang("nvmlInit")
    environment = {**os.environ, "PYTHONPATH": str(PROJECT / "agent"), "MARK_OF_THIS_RUN": str(tmp_path)}
    command = [sys.executable, "-m", "fairlead", "selftest", "--out", str(tmp_path / "report.json")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as running:
        assert running.stderr is not None and running.stderr.readline().startswith("fairlead selftest: nvml: 2 s")
        running.send_signal(number)
        assert running.wait(timeout=30) == 130 and "interrupted" in running.stderr.read()
    assert list(tmp_path.glob("report.json")) == [] and marked(str(tmp_path)) == []


def marked(word: str) -> list[str]:
    """Processes whose environment has this word."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if f"MARK_OF_THIS_RUN={word}".encode() in path.read_bytes():
                found.append(path.parent.name)
    return found


def test_a_driver_library_that_lies(faults: Faults) -> None:  # noqa: F811
    """GPUs that are not on the bus, and texts with escape sequences and without end: a difference, and a printable report."""
    faults.system("driver_version", "\x1b]0;x\x07" + "9" * 70)
    faults.set(0, "serial", "1650123000123")
    said = report()
    assert (said["machine"]["gpus_on_bus"], said["machine"]["gpus_of_nvml"]) == (0, 8)
    text = json.dumps(said)
    assert "1650123000123" not in text and "\\u001b" not in text and "9" * 50 not in text


def test_a_hook_that_hangs_is_killed_and_named(tmp_path: Path) -> None:
    """An installation whose prolog never ends."""
    for name in ("agent", "slurm", "playbooks", "templates"):
        shutil.copytree(PROJECT / name, tmp_path / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "slurm/prolog").write_text("#!/bin/sh\nwhile :; do :; done\n")
    tmp_path.chmod(0o755)
    said = report(agent=tmp_path / "agent", env={"PYTHONDONTWRITEBYTECODE": ""})
    assert [row(said, "hooks", name)["state"] for name in ("prolog", "prolog-drain", "epilog")] == ["hung", "not_run", "run"]
    left = subprocess.run(["pgrep", "-f", str(tmp_path / "slurm/prolog")], capture_output=True, text=True, check=False).stdout
    assert left == ""


@needs_fuse
@pytest.mark.parametrize("unkillable", [False, True])
def test_a_file_system_that_never_answers_stops_only_what_reads_it(unkillable: bool) -> None:
    """/home of a dead server. If not even SIGKILL ends a wait for it, the report names the process, and nobody waits for it."""
    with fuse(Path("/"), ("fuse.x", "server:/home", "home"), user=0, reads=unkillable) as sees:
        said = report(before=("nsenter", "--mount", f"--target={sees}"))
    assert [r["name"] for r in said["sources"] if r["state"] in ("hung", "crashed", "not_run")] == []
    assert said["untouched"]["processes_left"] == (["a process in state D"] if unkillable else [])
    assert {r["state"] for r in said["hooks"]} <= {"run", "not_run"} and len(said["checks"]) > 30


HOSTILE = r"""
set -e
hostname gpu07secret
mount -t tmpfs tmpfs /mnt
cp -a /etc/passwd /etc/hosts /mnt
echo 'alicesecret:x:1001:1001:Alice Liddellsecret:/home/alicesecret:/bin/sh' >> /mnt/passwd
echo '10.1.2.3 loginsecret.cluster.example.org loginsecret' >> /mnt/hosts
echo 0123456789abcdef0123456789abc5ec > /mnt/machine-id
printf 'ID=idsecret\nVERSION_ID=12secret\nPRETTY_NAME=prettysecret\nVERSION_CODENAME=codesecret\n' > /mnt/os-release
for file in passwd hosts machine-id os-release; do mount --bind /mnt/$file "$(readlink -f /etc/$file)"; done
exec "$@"
"""


def test_no_name_of_the_machine_is_in_the_report(here: dict[str, Any], tmp_path: Path) -> None:
    """Every name of a private machine ends in "secret", and the twin says the same without one: nothing else is lost."""
    words = ("unshare", "--mount", "--uts", "--propagation", "private", "sh", "-c", HOSTILE, "sh")
    paths = ["/scratch/gpu07secret/x", "/home/alicesecret", "/proc/sys/gpu07secret", "/proc/sys/usersecret/10.1.2.3"]
    layers = [("test", {"checks": {"fs_space": {"paths": paths}}})]
    document = tmp_path / "node.json"
    document.write_bytes(config.encode_document(config.resolve_layers("gpu07secret", layers)[0]))
    users = ("env", "USER=usersecret", "SUDO_USER=sudosecret")
    said = report("--document", str(document), before=(*words, *users))
    assert row(said, "sources", "spaces")["missing"] and row(said, "checks", "fs_space")["state"] == "lacks"
    text = json.dumps(said)
    assert "secret" not in text.lower() and "0123456789abc5ec" not in text and "10.1.2.3" not in text
    assert said["machine"]["distribution"] == "other"
    names = {kind: [r["name"] for r in here[kind]] for kind in ("sources", "checks", "settings", "hooks")}
    assert {kind: [r["name"] for r in said[kind]] for kind in names} == names
    assert said["machine"] | {"distribution": "", "version": ""} == here["machine"] | {"distribution": "", "version": ""}
