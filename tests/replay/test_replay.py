"""fairlead replay: logs of every form through the checks and the policy; two policies; what is no log is one clear line."""

from __future__ import annotations

import io
import json
import os
import random
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead import config
from fairlead.cli import main
from fairlead.errors import DataError, ExitCode
from fairlead.replay.recording import read_log
from fairlead.replay.simulation import Replayed, prefixes, replay
from tests.host.test_hung_trace import ANSWER, NFS, report

LOST = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python3, GPU has fallen off the bus."
DBE = "NVRM: Xid (PCI:0000:3b:00): 48, pid=7, name=train, An uncorrectable double bit error (DBE) has been detected"
FAULT = "NVRM: Xid (PCI:0000:3b:00): 31, pid=7, name=train, Ch 00000008, MMU Fault: ENGINE GRAPHICS"
REMAP = "NVRM: Xid (PCI:0000:3b:00): 63, pid=7, name=train, Row Remapper: New row marked for remapping"
KERNEL = "Linux version 6.1.0-18-amd64 (debian-kernel@lists.debian.org)"
DEFAULTS = config.profile_document("replay")


def played(*lines: str, **sections: dict[str, Any]) -> Replayed:
    document = config.resolve_layers("replay", [("test", sections)])[0] if sections else DEFAULTS
    source = io.BytesIO("".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape"))
    return replay(read_log(source, "log", prefixes()), document)


def kinds(replayed: Replayed) -> list[str]:
    return [e.kind for e in replayed.events]


FORMS = [
    ("[  110.500000] {}", "110.5 s"),
    ("[  110.500000][  T123] {}", "110.5 s"),
    ("3,4711,110500000,-;{}", "110.5 s"),
    ("<3>[  110.500000] {}", "110.5 s"),
    ("[  110.500000] gpu1 kernel: {}", "110.5 s"),
    ("[Sun Feb 23 16:24:18 2025] {}", "2025-02-23 16:24:18"),
    ("2025-02-23T16:24:18,283302+00:00 {}", "2025-02-23 16:24:18"),
    ("kern  :err   : 2025-02-23T16:24:18,283302+00:00 {}", "2025-02-23 16:24:18"),
    ("2025-02-23T17:24:18+0100 gpu1 kernel: {}", "2025-02-23 16:24:18"),
    ("2025-02-23T16:24:18.283302Z gpu1 kernel: [  110.5] {}", "2025-02-23 16:24:18"),
    ("Feb 23 16:24:18 gpu1 kernel: {}", "Feb 23 16:24:18"),
    ("Feb 23 16:24:18 gpu1 kernel: [  110.500000] {}", "Feb 23 16:24:18"),
    ("Sun 2025-02-23 16:24:18 UTC gpu1 kernel: {}", "2025-02-23 16:24:18"),
    ("1740327858.283302 gpu1 kernel: {}", "2025-02-23 16:24:18"),
    ("{}", ""),
]


@pytest.mark.parametrize(("form", "at"), FORMS)
def test_every_form_of_a_log(form: str, at: str) -> None:
    found = played(form.format("usb 1-1: new device"), form.format(LOST))
    (drain,) = found.drains
    assert (drain.at, drain.line, drain.check, drain.device, drain.action) == (at, 2, "xid", "0000:3b:00.0", "reboot_node")
    assert drain.text == "xid: Xid 79 on GPU 0000:3b:00.0 (fallen off the bus): reboot_node" and found.drained


def test_a_journal_as_json_knows_its_boots() -> None:
    def entry(boot: str, seconds: int, text: str, transport: str = "kernel") -> str:
        fields = {"__REALTIME_TIMESTAMP": str(seconds * 1000000), "_BOOT_ID": boot, "_TRANSPORT": transport, "MESSAGE": text}
        return json.dumps(fields)

    found = played(
        entry("a", 1740327858, "hello"),
        entry("a", 1740327860, LOST, transport="stdout"),
        entry("a", 1740327868, LOST),
        entry("b", 1740328000, KERNEL),
        entry("b", 1740328300, "end"),
        '{"MESSAGE": null}',
        "{",
    )
    assert [(e.kind, e.boot, e.at) for e in found.events] == [
        ("drain", 1, "2025-02-23 16:24:28"),
        ("resume", 2, "2025-02-23 16:27:10"),
    ]


def test_what_another_facility_or_a_user_wrote_is_none_of_it() -> None:
    assert played("14,1,1000,-;" + LOST, "user  :warn  : 2025-02-23T16:24:18,0+00:00 " + LOST, "[ 1.0] x: " + LOST).events == ()


def test_hundreds_of_lines_of_one_fault_of_a_job_are_one_event_and_no_drain() -> None:
    found = played(*(f"[{100 + i / 10:12.6f}] {FAULT}" for i in range(800)))
    assert (kinds(found), found.records) == (["warn"], 800)


def test_a_fault_stands_until_the_next_boot_and_then_it_is_resumed() -> None:
    found = played(
        f"[    0.000000] {KERNEL}",
        f"[  500.000000] {LOST}",
        "[ 9000.000000] still up",
        f"[    0.000000] {KERNEL}",
        "[  900.000000] usb 1-1: new device",
    )
    assert [(e.kind, e.boot, e.at) for e in found.events] == [("drain", 1, "500.0 s"), ("resume", 2, "30.0 s")]
    assert (found.boots, found.drained) == (2, False)


def test_the_same_fault_after_a_reboot_is_for_a_person() -> None:
    boots = [[f"[    0.000000] {KERNEL}", f"[  500.000000] {LOST}", "[ 900.000000] x"] for _ in range(3)]
    found = played(*(line for boot in boots for line in boot))
    assert [e.kind for e in found.events] == ["drain", "resume", "drain", "by_hand"]
    assert found.drains[1].action == "check_hardware" and "again after reboot_node" in found.drains[1].text
    assert "wants check_hardware: resume by hand" in found.events[-1].text


def test_journalctl_s_mark_and_the_kernel_s_first_line_are_one_boot() -> None:
    found = played(
        f"Feb 23 16:24:18 gpu1 kernel: {LOST}",
        "-- Boot 0123456789abcdef0123456789abcdef --",
        f"Feb 23 16:30:00 gpu1 kernel: {KERNEL}",
        "Feb 23 16:50:00 gpu1 kernel: x",
    )
    assert (found.boots, kinds(found)) == (2, ["drain", "resume"])


def test_a_stamp_that_falls_back_is_another_boot_and_one_that_stumbles_is_not() -> None:
    assert played(f"[ 500.0] {LOST}", f"[ 499.0] {LOST}").boots == 1
    assert played(f"[ 500.0] {LOST}", f"[ 10.0] {LOST}").boots == 2


def test_the_turn_of_the_year_in_a_log_without_years() -> None:
    found = played(f"Dec 31 23:59:59 gpu1 kernel: {FAULT}", f"Jan  1 00:00:05 gpu1 kernel: {LOST}")
    assert (found.boots, found.drains[0].at) == (1, "Jan 01 00:00:05")
    assert 0 < found.drains[0].seconds - found.events[0].seconds < 10


def test_what_waits_for_the_job_is_told_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(f"[ 110.5] {REMAP}\n[ 200.0] {LOST}\n")
    assert main(["replay", str(log), "--policy", str(policy(tmp_path, ""))]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told == [
        f"{log}: 1 boot, 2 lines, 2 of them for the checks",
        "  110.5 s  drain    xid: Xid 63 on GPU 0000:3b:00.0 (row remap recorded): reset_gpu (once the job has ended)",
        "      line 1",
        "  200.0 s  also     xid: Xid 79 on GPU 0000:3b:00.0 (fallen off the bus): reboot_node",
        "      line 2",
        "  would have been drained 1 time; drained at the end",
    ]


def policy(folder: Path, text: str, name: str = "policy.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_confirmation_is_simulated() -> None:
    found = played(f"[ 110.5] {LOST}", "[ 300.0] x", checks={"xid": {"confirm": 3, "confirm_of": 3}})
    # swept at 120 s too, where a boot grace ends
    assert [(e.kind, e.at) for e in found.events] == [("held", "110.5 s"), ("drain", "135.0 s")]
    assert found.events[0].why == "not confirmed: 1 of 3"


def test_two_policies_and_their_difference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log"
    log.write_text(f"[ 110.5] {DBE}\n[ 8000.0] {LOST}\n")
    soft = policy(tmp_path, '[checks.xid]\nservices = {"48" = "keep"}\n', "soft.toml")
    site = policy(tmp_path, '{"policy": {"mode": "observe"}}', "observe.json")
    plain = policy(tmp_path, "", "plain.toml")
    assert main(["replay", str(log), "--policy", str(plain), "--against", str(soft), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [(log["drains"], log["drained"]) for log in (*data["logs"], *data["against"])] == [(1, True), (1, True)]
    (first, second) = data["differences"]
    assert (first["only"], first["policy"]["text"].partition(" on")[0], first["what"]) == (
        "policy",
        "xid: Xid 48",
        "only a warning",
    )
    assert (second["only"], second["against"]["at"], second["what"]) == ("against", "8000.0 s", "drained already")
    assert main(["replay", str(log), "--policy", str(plain), "--against", str(site)]) == 0
    told = capsys.readouterr().out
    assert f"{plain} drains for xid: Xid 48" in told and f"{site}: held: observed only" in told
    assert "at the end drained and in service" in told
    assert main(["replay", str(log), "--policy", str(soft), "--against", str(soft)]) == 0
    assert capsys.readouterr().out.endswith("  none\n")


def test_a_nodes_whole_document_is_a_policy_and_may_be_edited(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = config.encode_document(config.profile_document("gpu1", "hgx-h100")).replace(
        b'"mode": "enforce"', b'"mode": "observe"'
    )
    (tmp_path / "node.json").write_bytes(document)
    (tmp_path / "log").write_text(f"[ 110.5] {LOST}\n")
    assert main(["replay", str(tmp_path / "log"), "--policy", str(tmp_path / "node.json"), "--json"]) == 0
    (log,) = json.loads(capsys.readouterr().out)["logs"]
    assert (log["drains"], log["events"][0]["kind"], log["events"][0]["why"]) == (0, "held", "observed only: policy.mode")


BAD = pytest.mark.parametrize(
    ("log", "rules", "code", "said"),
    [
        (None, "", ExitCode.NO_INPUT, "No such file"),
        (b"", "", ExitCode.BAD_DATA, "no line of it is of a kernel log"),
        (b"hello\nworld\n", "", ExitCode.BAD_DATA, "no line of it is of a kernel log"),
        (b"\x7fELF\0\0\0", "", ExitCode.BAD_DATA, "line 1: not a text file"),
        (b"SQLite format 3\0" + b"\xff" * 500, "", ExitCode.BAD_DATA, "not a history of the agent's"),
        (b"[ 1.0] x\n", None, ExitCode.NO_INPUT, "No such file"),
        (b"[ 1.0] x\n", "{", ExitCode.BAD_DATA, "neither TOML nor JSON"),
        (b"[ 1.0] x\n", "mode = observe", ExitCode.BAD_DATA, "neither TOML nor JSON"),
        (b"[ 1.0] x\n", "[police]\n", ExitCode.CONFIG, "police: unknown key"),
        (b"[ 1.0] x\n", "policy = 3\n", ExitCode.CONFIG, "policy: must be a table"),
        (b"[ 1.0] x\n", "[policy]\nreboots_max = -1\n", ExitCode.CONFIG, "policy.reboots_max"),
    ],
)


@BAD
def test_bad_input_is_one_line(
    log: bytes | None,
    rules: str | None,
    code: ExitCode,
    said: str,
    *,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if log is not None:
        (tmp_path / "log").write_bytes(log)
    if rules is not None:
        policy(tmp_path, rules)
    assert main(["replay", str(tmp_path / "log"), "--policy", str(tmp_path / "policy.toml")]) == code
    out, err = capsys.readouterr()
    first, *more = err.splitlines()
    assert out == "" and said in first and str(tmp_path) in first and all(line.startswith("  next: ") for line in more)


def test_a_folder_is_no_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(tmp_path)]) == ExitCode.NO_INPUT
    assert "Is a directory" in capsys.readouterr().err


def test_standard_input_and_several_logs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "log").write_text(f"[ 110.5] {FAULT}\n")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(f"[ 1.5] {LOST}\n".encode())))
    assert main(["replay", "-", str(tmp_path / "log"), "--json"]) == 0
    logs = json.loads(capsys.readouterr().out)["logs"]
    assert [(log["name"], log["drains"]) for log in logs] == [("standard input", 1), (str(tmp_path / "log"), 0)]
    assert main(["replay", "-", "-"]) == ExitCode.USAGE


def test_text_that_steers_a_terminal_is_not_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log").write_text("3,1,110500000,-;NVRM: Xid (PCI:0000:3b:00): 79, \\x1b[2J gone \\x07\n")
    assert main(["replay", str(tmp_path / "log")]) == 0
    assert "\x1b" not in (out := capsys.readouterr().out) and "\x07" not in out and "gone" in out


def test_progress_is_shown_to_a_terminal_that_waits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fairlead.cli import replay as command

    (tmp_path / "log").write_text("[ 1.0] x\n" * 20000 + f"[ 1.5] {LOST}\n")
    monkeypatch.setattr(command, "PATIENCE_SECONDS", 0.0)
    assert main(["replay", str(tmp_path / "log")]) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert main(["replay", str(tmp_path / "log")]) == 0
    assert re.search(r"\rlog|\r.*: +\d+% ", capsys.readouterr().err)


def test_the_same_log_gives_the_same_answer() -> None:
    rng = random.Random(7)
    lines = [f"[{100 + i * 40:12.6f}] {rng.choice([LOST, FAULT, DBE, REMAP, KERNEL, 'x'])}" for i in range(60)]
    assert played(*lines) == played(*lines)


def test_a_boot_grace_ends_when_it_ends() -> None:
    found = played(f"[    0.000000] {KERNEL}", f"[ 10.0] {LOST}", "[ 90000.0] x", checks={"xid": {"boot_grace_seconds": 3000}})
    assert [(e.kind, e.at, e.why) for e in found.events] == [("held", "10.0 s", "boot grace"), ("drain", "3000.0 s", "")]


def test_a_long_quiet_log_costs_little() -> None:
    """Half a year of one boot: decisions are made where something happens, and now and then."""
    found = played(f"2025-01-01T00:00:00+00:00 {FAULT}", f"2025-06-30T00:00:00+00:00 {LOST}")
    assert kinds(found) == ["warn", "drain"]


# Robustness -------------------------------------------------------------------------------------------------------------

PIECES = st.sampled_from(
    [LOST, FAULT, KERNEL, "-- Boot x --", "-- Reboot --", "[ 1.0] ", "[99999999999.9] ", "3,1,5,-;", "Feb 30 10:00:00 h kernel: ",
     "2025-02-23T16:24:18+00:00 ", "[Sun Feb 29 16:24:18 2025] ", "{", '{"__REALTIME_TIMESTAMP": "1e400"}', "\x1b[2J", "é", ""]
)  # fmt: skip


@settings(max_examples=150)
@given(st.lists(st.lists(PIECES | st.text(max_size=20), max_size=4).map("".join), max_size=12))
def test_any_text_is_a_log_or_one_clear_error(lines: list[str]) -> None:
    try:
        found = played(*(line.replace("\0", "") for line in lines))
    except DataError as e:
        assert "\n" not in str(e)
    else:
        assert [e.seconds for e in found.events] == sorted(e.seconds for e in found.events)


def test_an_endless_line_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with open(path, "wb") as f:
        f.write(f"[ 1.0] {LOST}\n[ 2.0] ".encode())
        f.truncate(50 << 20)
    assert main(["replay", str(path)]) == ExitCode.BAD_DATA
    with open(path, "wb") as f:
        f.write(f"[ 1.0] {LOST}\n".encode() + b"[ 2.0] x" + b"y" * (5 << 20) + f"\n[ 3.0] {LOST}".encode())
    assert os.path.getsize(path) > 5 << 20
    assert main(["replay", str(path)]) == 0


@pytest.mark.parametrize(
    "form",
    [
        "[  110.500000] {}",
        "3,{n},110500000,-;{}",
        "2025-02-23T17:24:18+0100 gpu1 kernel: {}",
        "Feb 23 16:24:18 gpu1 kernel: {}",
        "{}",
        '{{"__REALTIME_TIMESTAMP": "1740327858000000", "_BOOT_ID": "a", "_TRANSPORT": "kernel", "MESSAGE": "{}"}}',
    ],
)
def test_a_hung_tasks_trace_is_read_as_by_the_agent(form: str) -> None:
    """A user's process that waits for the user's own FUSE server is no hang; one that waits for NFS is."""
    patterns = {"kernel_log": {"mode": "enforce", "patterns": [{"name": "hung", "regex": "INFO: task .*"}]}}
    for frames, forged, hangs in ((ANSWER, False, 0), (NFS, False, 1), (NFS, True, 1)):
        texts = report(4711, frames)
        texts += ["INFO: task waits for FUSE: record 1, process 4711"] * forged
        texts = [text.replace('"', "'") for text in texts] if form.startswith("{{") else texts
        found = played(*(form.format(text, n=n) for n, text in enumerate(texts, 1)), checks=patterns)
        told = [e.evidence for e in found.events if e.check == "kernel_log"]
        assert [t[0].rpartition(" lines")[0] for t in told] == ["1"] * hangs
