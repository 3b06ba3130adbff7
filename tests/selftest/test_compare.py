"""What a report differs in, and reports that are no reports: every mistake of a file at once, and nothing for a terminal."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairlead.cli import main
from fairlead.selftest import claims, report_file
from fairlead.selftest.selftest_report import REPORT_MAX_BYTES
from tests.selftest.reports import good, row

Change = Callable[[dict[str, Any]], object]


def written(folder: Path, data: Any, name: str = "report.json") -> str:
    path = folder / name
    path.write_bytes(data if isinstance(data, bytes) else json.dumps(data).encode())
    return str(path)


def test_a_report_as_claimed_differs_in_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, good())
    assert main(["selftest", "--compare", path]) == 0
    assert "nothing differs from what the documentation claims" in capsys.readouterr().out
    assert main(["selftest", "--compare", path, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["schema"] == 1 and [r["differences"] for r in said["reports"]] == [[]]


#: What changes in a report, the part that then differs, and what is said of it.
DIFFERS: dict[str, tuple[Change, str, str]] = {
    "another distribution": (lambda d: d["machine"].update(distribution="rocky", version="9.4"), "distribution", "rocky 9.4"),
    "another kernel": (lambda d: d["machine"].update(kernel="4.18.0-553.el8"), "kernel", "4.18.0-553.el8"),
    "another cgroup version": (lambda d: d["machine"].update(cgroup="1"), "cgroup", "1"),
    "another Slurm": (lambda d: d["machine"].update(slurm="23.11.4"), "Slurm", "23.11"),
    "another Python": (lambda d: d["machine"].update(python="3.12.3"), "Python", "3.12"),
    "no systemd": (lambda d: d["machine"].update(init="other"), "init", "other"),
    "NVML lists fewer GPUs": (lambda d: d["machine"].update(gpus_of_nvml=7), "GPUs", "8 on the bus, 7 of NVML"),
    "a source": (lambda d: row(d, "sources", "numa").update(state="missing", reasons=["EIO"]), "source numa", "missing: EIO"),
    "NVML hangs": (lambda d: row(d, "sources", "nvml").update(state="hung", reasons=["Init"]), "source nvml", "hung: Init"),
    "a check": (lambda d: row(d, "checks", "ecc").update(state="lacks", reasons=["no ECC"]), "check ecc", "lacks: no ECC"),
    "a check fails": (lambda d: row(d, "checks", "xid").update(state="failed"), "check xid", "failed"),
    "a setting": (lambda d: row(d, "settings", "sysctl").update(state="missing"), "setting sysctl", "missing"),
    "no row": (lambda d: d["settings"].pop(), "setting tuned", "not in the report"),
    "a hook's status": (lambda d: row(d, "hooks", "prolog").update(status=1), "hook prolog", "status 1"),
    "a hook's words": (lambda d: row(d, "hooks", "epilog").update(digest="0" * 16), "hook epilog", "0" * 16),
    "a slow hook": (lambda d: row(d, "hooks", "prolog").update(over_empty_milliseconds=1.2), "hook prolog", "1.2 ms"),
    "a hook that hangs": (lambda d: row(d, "hooks", "prolog").update(state="hung"), "hook prolog", "hung"),
    "a change": (lambda d: d["untouched"].update(changed=["/run/fairlead/x is new"]), "machine", "/run/fairlead/x is new"),
    "a process": (lambda d: d["untouched"].update(processes_left=["a process in state D"]), "machine", "a process in state D"),
    "another fairlead": (lambda d: d.update(fairlead="9.9"), "fairlead", "version 9.9"),
    "a document that was refused": (lambda d: d.update(document="refused"), "document", "it was refused"),
}  # fmt: skip


@pytest.mark.parametrize("name", DIFFERS)
def test_what_differs_is_named(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change, part, found = DIFFERS[name]
    data = good()
    change(data)
    assert main(["selftest", "--compare", written(tmp_path, data), "--json"]) == 1
    differences = json.loads(capsys.readouterr().out)["reports"][0]["differences"]
    assert [(d["part"], d["found"]) for d in differences] == [(part, found)]


#: What is different, and no difference to a claim.
FINE: dict[str, Change] = {
    "no Slurm": lambda d: d["machine"].update(slurm=""),
    "a part of a source": lambda d: row(d, "sources", "pci").update(state="partly", missing=3, reasons=["numa_node is -1"]),
    "a plan": lambda d: row(d, "settings", "sysctl").update(changes=4),
    "no hardware": lambda d: row(d, "settings", "cpu_governor").update(state="absent"),
    "a finding": lambda d: row(d, "checks", "clock").update(drain=1),
    "a check that is off": lambda d: row(d, "checks", "clock").update(state="off"),
    "within the budget": lambda d: row(d, "hooks", "prolog").update(over_empty_milliseconds=0.9),
}


@pytest.mark.parametrize("name", FINE)
def test_what_is_no_difference(name: str, tmp_path: Path) -> None:
    data = good()
    FINE[name](data)
    assert main(["selftest", "--compare", written(tmp_path, data)]) == 0


def test_a_machine_without_a_gpu_lacks_only_what_needs_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = good()
    data["machine"] |= {"gpus_on_bus": 0, "gpus_of_nvml": 0}
    for kind, names, state in (
        ("sources", claims.SOURCES_OF_GPUS, "missing"),
        ("checks", claims.CHECKS_OF_GPUS, "lacks"),
        ("settings", claims.settings_of_gpus(), "missing"),
    ):
        for name in names:
            row(data, kind, name)["state"] = state
    assert main(["selftest", "--compare", written(tmp_path, data)]) == 0
    row(data, "checks", "clock")["state"] = "lacks"
    row(data, "sources", "nvml")["state"] = "crashed"
    capsys.readouterr()
    assert main(["selftest", "--compare", written(tmp_path, data)]) == 1
    said = capsys.readouterr().out
    assert "2 differences" in said and "check clock" in said and "source nvml: crashed" in said and "nvidia-smi" in said


def test_several_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = good()
    other["machine"]["distribution"] = "sles"
    paths = [written(tmp_path, good(), "a.json"), written(tmp_path, other, "b.json")]
    assert main(["selftest", "--compare", *paths]) == 1
    said = capsys.readouterr().out
    assert f"{paths[0]}: debian 12" in said and f"{paths[1]}: sles 12" in said


#: A file, and every word that the one line about it has.
NO_REPORTS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "another document": ({"schema": 7}, ("not a report of schema 1",)),
    "true is no number": ({"schema": True}, ("not a report of schema 1",)),
    "a list": ([1], ("not a report of schema 1",)),
    "no JSON": (b"\xff\xfe", ("not JSON",)),
    "too large": (b" " * (REPORT_MAX_BYTES + 1), ("more than 1024 KiB",)),
    "nested": (b'{"schema": 1, "sources": ' + b"[" * 50_000, ("not JSON",)),
    "all mistakes": (
        {"schema": 1, "root": "yes", "extra": 1, "machine": {"kernel": 7}, "hooks": [{"name": "x", "state": "well"}]},
        ("root", "extra: unknown key", "machine.kernel", "hooks[0].state"),
    ),
    "a long text": ({"schema": 1, "machine": {"kernel": "x" * 1000}}, ("machine.kernel",)),
    "a name with an escape": ({"schema": 1, "checks": [{"name": "\x1b[2J", "state": "judged"}]}, ("checks[0].name",)),
    "too many rows": ({"schema": 1, "checks": [{"name": "x", "state": "off"}] * 500}, ("checks",)),
    "a time that is none": (b'{"schema": 1, "seconds": 1e300}', ("seconds",)),
}


@pytest.mark.parametrize("name", NO_REPORTS)
def test_no_report(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content, words = NO_REPORTS[name]
    path = written(tmp_path, content)
    assert main(["selftest", "--compare", path]) == 65
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 and lines[0].startswith(f"fairlead selftest: {path}: ") and lines[1].startswith("  next: ")
    assert all(word in lines[0] for word in words), lines[0]
    assert len(lines[0]) < 4000


def test_thousands_of_mistakes_take_no_time_and_no_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at, mistakes = [], report_file._mistakes
    monkeypatch.setattr(report_file, "_mistakes", lambda *words: (looked_at.append(each) or each for each in mistakes(*words)))
    path = written(tmp_path, {"schema": 1} | {f"key{n}" * 3: n for n in range(30_000)})
    assert main(["selftest", "--compare", path]) == 65
    said = capsys.readouterr().err
    assert "; and more" in said and len(said) < 6000 and 1 < len(looked_at) < 100


def test_the_mistakes_of_all_files_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [written(tmp_path, {"schema": n}, f"{n}.json") for n in (2, 3)]
    assert main(["selftest", "--compare", written(tmp_path, good(), "good.json"), *paths]) == 65
    said = capsys.readouterr()
    assert all(path in said.err for path in paths) and "good.json" not in said.err and not said.out


def test_no_escape_sequence_of_a_report_reaches_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = good()
    data["untouched"]["changed"] = ["\x1b]0;title\x07\u202e"]
    data["machine"]["kernel"] = "6.1\x1b[2J"
    for words in ((), ("--json",)):
        assert main(["selftest", "--compare", written(tmp_path, data), *words]) == 1
        said = capsys.readouterr().out
        assert "\x1b" not in said and "\x07" not in said and "\u202e" not in said
