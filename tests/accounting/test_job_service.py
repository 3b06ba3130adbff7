"""``fairlead job`` asks for ended jobs with a real munge credential: users get their own jobs, and operators get all."""

from __future__ import annotations

import contextlib
import json
import shlex
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fairlead.controller.job_store import JobStore
from tests.jobs.job_reports import record_of, run_of
from tests.lab.accounting import OPERATOR, STRANGER
from tests.lab.cluster import Cluster
from tests.lab.enter import enter_command
from tests.lab.roots import USER

pytestmark = [pytest.mark.root, pytest.mark.slurm, pytest.mark.slow]
ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Service:
    """The service of one store. As systemd does, a process is started for each connection."""

    slurm: Cluster
    folder: Path
    listener: socket.socket

    def words(self, user: str) -> dict[str, str]:
        """The environment in which ``munge`` and ``unmunge`` run inside the cluster, as ``user``."""
        folder = self.folder / f"bin-{user or 'root'}"
        if not folder.is_dir():
            folder.mkdir()
            become = ["/usr/bin/setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"] if user else []
            for name in ("munge", "unmunge"):
                words = shlex.join([*enter_command(self.slurm.pid), *become, f"/usr/bin/{name}"])
                (folder / name).write_text(f'#!/bin/sh\nexec {words} "$@"\n')
                (folder / name).chmod(0o755)
        return {"PATH": f"{folder}:/usr/bin:/bin", "PYTHONPATH": str(ROOT / "agent"), "LC_ALL": "C.UTF-8"}

    def serve(self) -> None:
        command = [sys.executable, "-m", "fairlead", "job", "--serve", "--store", str(self.folder / "store")]
        command += ["--bin-dir", str(self.slurm.bin), "--slurm-conf", "/etc/slurm/slurm.conf"]
        command += ["--site", str(self.folder / "site.toml")]
        with contextlib.suppress(OSError):
            while True:
                link, _ = self.listener.accept()
                with link:
                    subprocess.run(command, stdin=link, stdout=link, stderr=subprocess.DEVNULL, env=self.words(""), check=False)

    def ask(self, user: str, *options: str) -> subprocess.CompletedProcess[str]:
        port = self.listener.getsockname()[1]
        words = [sys.executable, "-m", "fairlead", "job", f"--controller=127.0.0.1:{port}", *options]
        words += ["--bin-dir", str(self.slurm.bin), "--slurm-conf", "/etc/slurm/slurm.conf"]
        return subprocess.run(words, env=self.words(user), capture_output=True, text=True, timeout=60, check=False)

    def uid(self, user: str) -> int:
        return int(self.slurm.run(["/usr/bin/id", "-u", user]).stdout)


def answer(link: socket.socket) -> bytes:
    with link.makefile("rb") as source:
        try:
            return source.read()
        except ConnectionResetError:
            return b""


@pytest.fixture
def service(slurm: Cluster, tmp_path: Path) -> Iterator[Service]:
    (tmp_path / "site.toml").write_text('schema = 1\n[usage]\ncurrency = "EUR"\ngpu_hour_price = 2.0\n')
    with socket.create_server(("127.0.0.1", 0)) as listener:
        service = Service(slurm, tmp_path, listener)
        uid = service.uid(USER)
        with JobStore(str(tmp_path / "store"), write=True) as store:
            runs = [run_of(2, uid=uid), run_of(2, job=23, label="20_3", uid=uid), run_of(job=30, label="30", uid=uid + 77)]
            store.add_runs(runs, 100)
            for run in runs:
                store.put_records(run, [record_of(node, 3600.0, job=run.job, uid=run.uid) for node in run.nodes], [])
        thread = threading.Thread(target=service.serve, daemon=True)
        thread.start()
        yield service
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(10)


def test_a_user_sees_their_own_job(service: Service) -> None:
    said = service.ask(USER, "17")
    assert said.returncode == 0, said.stderr
    assert said.stdout.startswith("job 17  COMPLETED  2 nodes, 16 x NVIDIA H100")
    assert json.loads(service.ask(USER, "20_3", "--json").stdout)["jobs"][0]["run"]["job"] == 23
    assert "20_3" in service.ask(USER, "--array", "20").stdout
    assert service.ask(USER, "--user").stdout.count("COMPLETED") == 2
    assert service.ask(USER, "--last").stdout.startswith("job ")


def test_advice_and_cost_follow_the_site_of_the_controller(service: Service) -> None:
    out = service.ask(USER, "17").stdout
    assert "  cost 32 EUR (16.0 GPU-hours x 2)" in out
    assert "left out: price of this energy: usage.kwh_price is not set in site.toml" in out
    assert json.loads(service.ask(USER, "17", "--json").stdout)["jobs"][0]["costs"][0]["low"] == 32.0
    (service.folder / "site.toml").write_text("schema = 1\n[usage]\npue = 0\n")
    said = service.ask(USER, "17")
    assert said.returncode == 0 and "left out: advice and cost: the controller's" in said.stdout


def test_a_job_of_somebody_else_is_as_one_that_does_not_exist(service: Service) -> None:
    theirs, none = service.ask(STRANGER, "17"), service.ask(STRANGER, "18")
    assert (theirs.returncode, theirs.stdout) == (none.returncode, none.stdout) == (66, "")
    assert theirs.stderr == none.stderr.replace("18", "17")
    assert service.ask(STRANGER, "--user").returncode == 66
    assert service.ask(STRANGER, "--array", "20").returncode == 66


def test_an_operator_sees_all(service: Service) -> None:
    assert service.ask(OPERATOR, "17").returncode == 0
    assert service.ask(OPERATOR, "30").returncode == 0
    assert service.ask("", "30").returncode == 0


def test_what_is_no_credential_gets_no_answer(service: Service) -> None:
    port = service.listener.getsockname()[1]
    for text in (b"", b"MUNGE:AAAA:\n", b'{"kind":"job","word":"17"}\n', b"x" * 100_000 + b"\n"):
        with socket.create_connection(("127.0.0.1", port)) as link:
            link.sendall(text)
            link.shutdown(socket.SHUT_WR)
            assert answer(link) == b""


def test_a_credential_is_good_for_one_answer(service: Service) -> None:
    port = service.listener.getsockname()[1]
    credential = service.slurm.run(["/usr/bin/munge", "-s", '{"kind":"job","word":"17"}'], user=USER).stdout.encode()
    answers = []
    for _ in range(2):
        with socket.create_connection(("127.0.0.1", port)) as link:
            link.sendall(credential)
            answers.append(answer(link))
    assert answers[0].startswith(b"MUNGE:") and answers[1] == b""
    other = service.slurm.run(["/usr/bin/unmunge"], user=STRANGER, stdin=answers[0].decode(), check=False)
    assert other.returncode != 0 and "Unauthorized" in other.stderr


def test_an_ended_job_is_answered_soon(service: Service) -> None:
    """The budget is 0.5 s on an idle machine; what it took here is printed."""
    began = time.monotonic()
    assert service.ask(USER, "17").returncode == 0
    print(f"fairlead job of an ended job: {time.monotonic() - began:.2f} s")
