"""The service's answer has notes and options. An older program on either side is understood, or refused in one line."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import msgspec
import pytest
from msgspec import Struct

from fairlead.cli import main
from fairlead.controller.job_service import JobAnswer, JobQuestion, asked, with_notes
from fairlead.controller.job_store import JobStore
from fairlead.errors import HostError
from fairlead.jobs.advice import AdviceOptions
from fairlead.jobs.cost_and_energy import UsageOptions
from fairlead.jobs.job_notes import ReportOptions
from fairlead.jobs.usage_merge import JobReport, merged
from fairlead.slurm.scontrol import Scontrol
from tests.jobs.job_reports import BEGIN, record_of, run_of

REPORT = merged(run_of(), [record_of()], BEGIN + 4000.0)[0]
OPTIONS = ReportOptions(usage=UsageOptions(gpu_hour_price=2.0), advice=AdviceOptions(off=("precision",)))
NOBODY = Scontrol(bin_dir="/no/such/folder")


class EarlierAnswer(Struct, frozen=True, kw_only=True):
    """What a fairlead before notes and options decodes."""

    reports: tuple[JobReport, ...] = ()
    short: bool = False
    trouble: str = ""


def answer() -> JobAnswer:
    return with_notes((REPORT,), OPTIONS, NOBODY)


def test_an_older_client_understands_the_answer() -> None:
    found = msgspec.json.decode(msgspec.json.encode(answer()), type=EarlierAnswer)
    assert found.reports == (REPORT,)


def test_the_answer_comes_back() -> None:
    found = msgspec.json.decode(msgspec.json.encode(answer()), type=JobAnswer)
    assert (found.reports, found.notes, found.site_options()) == ((REPORT,), answer().notes, OPTIONS)
    assert found.notes_on(0).costs[0].low == 16.0


def test_an_older_service_gives_no_notes_and_that_is_said() -> None:
    found = msgspec.json.decode(msgspec.json.encode(EarlierAnswer(reports=(REPORT,))), type=JobAnswer)
    assert found.notes_on(0).left_out == ("advice and cost: the fairlead of the controller is older than this one",)
    assert isinstance(found.site_options(), str)


def test_a_newer_service_has_options_that_this_program_does_not_know() -> None:
    data = msgspec.to_builtins(answer())
    data["options"]["advice"]["new_threshold"] = 1
    found = msgspec.convert(data, JobAnswer)
    assert "another version" in str(found.site_options())
    assert found.notes_on(0).costs, "the notes on an ended job are computed by the service"


def test_a_site_that_cannot_be_read_takes_no_report_away() -> None:
    found = with_notes((REPORT,), "the controller's site.toml cannot be used: x", NOBODY)
    assert found.reports and found.notes_on(0).left_out == ("advice and cost: the controller's site.toml cannot be used: x",)


@pytest.fixture
def store(tmp_path: Path) -> str:
    with JobStore(str(tmp_path / "store"), write=True) as made:
        run = run_of(limit_seconds=86400)
        made.add_runs([run], 100)
        made.put_records(run, [record_of()], [])
    return str(tmp_path / "store")


def site(folder: Path, text: str) -> str:
    path = folder / "site.toml"
    path.write_text(f"schema = 1\n{text}\n")
    return str(path)


def test_the_command_prints_advice_and_cost(store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["job", "17", "--store", store, "--bin-dir", "/no/such/folder"]
    named = site(tmp_path, '[usage]\ncurrency = "EUR"\ngpu_hour_price = 2.0')
    assert main([*words, "--site", named]) == 0
    out = capsys.readouterr().out
    assert "  cost 16 EUR (8.0 GPU-hours x 2)" in out
    assert "advice: the job ran 1.0 h, and its limit was 24.0 h (time_limit: " in out
    assert "left out: price of this energy: usage.kwh_price is not set in site.toml" in out
    assert main([*words, "--site", site(tmp_path, '[advice]\noff = ["time_limit"]'), "--json"]) == 0
    (job,) = msgspec.json.decode(capsys.readouterr().out)["jobs"]
    assert job["advice"] == [] and {line["name"] for line in job["costs"]} >= {"cost", "carbon"}


def test_a_site_with_a_mistake_takes_no_report_away(store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    named = site(tmp_path, "[usage]\npue = 0.1")
    assert main(["job", "17", "--store", store, "--bin-dir", "/no/such/folder", "--site", named]) == 0
    out = capsys.readouterr().out
    assert out.startswith("job 17  COMPLETED") and "left out: advice and cost: the controller's" in out


def refused(folder: Path, monkeypatch: pytest.MonkeyPatch, uid: int) -> HostError:
    """Ask a service whose answer is a credential of the user ``uid``."""
    for name, said in (("munge", "echo MUNGE:AAAA:"), ("unmunge", f"printf 'UID:          fairlead ({uid})\\n\\n'")):
        (folder / name).write_text(f"#!/bin/sh\ncat >/dev/null\n{said}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            link, _ = listener.accept()
            with link:
                link.recv(100)
                link.sendall(b"MUNGE:AAAA:\n")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        with pytest.raises(HostError) as raised:
            asked(JobQuestion(kind="last"), "127.0.0.1", listener.getsockname()[1], {"root": 0, "fairlead": 990})
        thread.join(10)
    return raised.value


def test_an_answer_of_another_number_says_what_to_do_about_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = refused(tmp_path, monkeypatch, 999)
    assert str(error).endswith(": the answer is of the user 999, and only root (0) and fairlead (990) are trusted here")
    assert "the same number here as on the controller" in error.hint
