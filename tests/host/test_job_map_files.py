"""Files for other exporters are there while the job has the GPU, and never after."""

from __future__ import annotations

from pathlib import Path

from fairlead.host.job_map_files import LIST, JobMapFiles


def files(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()} if folder.exists() else {}


def test_files_follow_the_jobs(tmp_path: Path) -> None:
    stat, run = tmp_path / "gpustat", tmp_path / "run"
    run.mkdir()
    maps = JobMapFiles(str(run))
    maps.publish({f"{stat}/0": "7 1000\n", f"{stat}/GPU-1": "7 1000\n"})
    assert files(stat) == {"0": "7 1000\n", "GPU-1": "7 1000\n"}
    maps.publish({f"{stat}/0": "8 1000\n"})
    assert files(stat) == {"0": "8 1000\n"}
    maps.publish({})
    assert files(stat) == {}
    assert maps.trouble == ""


def test_what_a_killed_agent_left_is_removed(tmp_path: Path) -> None:
    stat, run = tmp_path / "gpustat", tmp_path / "run"
    run.mkdir()
    JobMapFiles(str(run)).publish({f"{stat}/0": "7 1000\n", f"{stat}/1": "8 1000\n"})
    JobMapFiles(str(run)).publish({f"{stat}/1": "8 1000\n"})
    assert files(stat) == {"1": "8 1000\n"}


def test_what_is_not_fairleads_stays(tmp_path: Path) -> None:
    stat, run = tmp_path / "gpustat", tmp_path / "run"
    run.mkdir()
    maps = JobMapFiles(str(run))
    maps.publish({f"{stat}/0": "7 1000\n"})
    (stat / "0").write_text("9 1001\n")
    (stat / "1").write_text("9 1001\n")
    maps.publish({})
    assert files(stat) == {"0": "9 1001\n", "1": "9 1001\n"}


def test_a_file_that_was_removed_meanwhile_is_written_at_the_next_start(tmp_path: Path) -> None:
    stat, run = tmp_path / "gpustat", tmp_path / "run"
    run.mkdir()
    JobMapFiles(str(run)).publish({f"{stat}/0": "7 1000\n"})
    (stat / "0").unlink()
    JobMapFiles(str(run)).publish({f"{stat}/0": "7 1000\n"})
    assert files(stat) == {"0": "7 1000\n"}


def test_a_folder_that_cannot_be_written_is_reported_until_it_can(tmp_path: Path) -> None:
    (tmp_path / "gpustat").write_text("a file where the folder should be")
    maps = JobMapFiles(str(tmp_path))
    maps.publish({f"{tmp_path}/gpustat/0": "7 1000\n"})
    assert maps.trouble == f"job map files: {tmp_path}/gpustat: File exists"
    (tmp_path / "gpustat").unlink()
    maps.publish({f"{tmp_path}/gpustat/0": "7 1000\n"})
    assert maps.trouble == "" and files(tmp_path / "gpustat") == {"0": "7 1000\n"}


def test_no_list_breaks_the_agent(tmp_path: Path) -> None:
    for data in (b"", b"[]", b'{"a":1}', b"[" * 100_000, b"\xff"):
        (tmp_path / LIST).write_bytes(data)
        JobMapFiles(str(tmp_path)).publish({})
