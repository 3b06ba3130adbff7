"""``fairlead collect --from DIR`` merges recorded records without Slurm, and names each file that it does not merge."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fairlead.cli import main
from fairlead.jobs.job_run import SACCT_COLUMNS
from fairlead.jobs.jobstats_payload import decoded
from fairlead.jobs.usage_record import encoded
from tests.jobs.job_reports import BEGIN, record_of

ROW = f"17|17|1001|alice|research|gpu|normal|COMPLETED|{BEGIN}|{BEGIN + 3600}|120|128|cpu=128,gres/gpu=16|gpu[001-002]"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "jobs.psv").write_text("|".join(SACCT_COLUMNS) + "\n" + ROW + "\n")
    for node in ("gpu001", "gpu002"):
        (tmp_path / node).mkdir()
        (tmp_path / node / f"17-{BEGIN}.json").write_bytes(encoded(record_of(node)))
    return tmp_path


def test_what_would_be_written_is_printed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["collect", "--from", str(folder)]) == 0
    label, text = capsys.readouterr().out.split()
    data = decoded(text)
    assert label == "17" and data is not None and data["nodes"].keys() == {"gpu001", "gpu002"}


def test_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "gpu002" / f"17-{BEGIN}.json").unlink()
    assert main(["collect", "--from", str(folder), "--json"]) == 0
    (job,) = json.loads(capsys.readouterr().out)["jobs"]
    assert job["missing"] == ["gpu002"] and job["coverage_percent"] == pytest.approx(50)
    assert job["complete"] is False and job["admin_comment"].startswith("JS1:H4s")
    assert job["totals"]["energy_joules"] == {"value": pytest.approx(8 * 1.8e6), "gpus": 8}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (encoded(record_of())[:-20], "is torn"),
        (encoded(record_of()).replace(b"job-record/1", b"job-record/9"), 'has the schema "job-record/9"'),
        (encoded(record_of(written_unix=4e9)), "is from the future: it is set aside"),
        (encoded(record_of(job=99)), "is of a job that Slurm does not know: it is set aside"),
        (encoded(record_of("gpu009")), "is of a node that the job did not have: it is set aside"),
        (encoded(record_of(uid=7)), "is of another user: it is set aside"),
        (b"\x00" * 400_000, "is longer than"),
        (b"[" * 200_000, "is torn"),
    ],
)
def test_a_record_that_is_bad_is_named_and_never_merged_as_zero(
    folder: Path, text: bytes, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "gpu001" / f"17-{BEGIN}.json").write_bytes(text)
    assert main(["collect", "--from", str(folder), "--json"]) == 65
    found = json.loads(capsys.readouterr().out)
    assert len(found["troubles"]) == 1 and f"gpu001/17-{BEGIN}.json: " in found["troubles"][0] and why in found["troubles"][0]
    assert found["jobs"][0]["missing"] == ["gpu001"]


def test_a_folder_without_rows_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["collect", "--from", str(tmp_path)]) == 66
    assert "jobs.psv: No such file" in capsys.readouterr().err


def test_a_pipe_is_no_record(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import os

    os.mkfifo(folder / "pipe.json")
    assert main(["collect", "--from", str(folder)]) == 65
    assert "pipe.json: is no regular file" in capsys.readouterr().err
