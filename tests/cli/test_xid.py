"""fairlead xid decode, run as a person runs it."""

from __future__ import annotations

import csv
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairlead.cli import main
from fairlead.cli.xid import LINE_MAX
from fairlead.cli.xid_text import REMEMBERED

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT.parent / "shared" / "data"
KEYS = ["line", "kind", "code", "pci", "mig", "pid", "process", "action", "service", "caused_by", "blames", "means", "text"]
LOST = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python3, GPU has fallen off the bus."
ARGV = [sys.executable, "-m", "fairlead", "xid", "decode"]
ENV = {**{k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}, "PYTHONPATH": str(ROOT / "agent")}


def decoded(path: Path, capsys: pytest.CaptureFixture[str], code: int = 0) -> list[dict[str, Any]]:
    assert main(["xid", "decode", str(path), "--json"]) == code
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_the_object_is_as_documented(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log"
    log.write_text(
        "[    0.000000] Linux version 6.1.0\n"
        "[   10.5] NVRM: Xid (PCI:0000:4e:00 GPU-I:05 GPU-CI:01): 13, pid=7, name=nvc:[driver], Graphics Exception: ESR 0x1=0x2\n"
        "[   10.6] NVRM: Xid (PCI:0000:4e:00 GPU-I:05): 45, pid=7, name=nvc:[driver], Ch 00000008\n"
        "[   11.0] nvidia-nvswitch0: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 30 LTSSM Fault Up\n"
        "[   12.0] NVRM: GPU 0000:4E:00.0: GPU has fallen off the bus.\n"
    )
    plain: dict[str, Any] = {"mig": None, "pid": None, "process": None, "caused_by": None}
    job = {"pci": "0000:4e:00.0", "pid": 7, "process": "nvc:[driver]", "service": "keep", "blames": "application"}
    expected = [
        {**plain, **job, "line": 2, "kind": "xid", "code": 13, "mig": {"gi": 5, "ci": 1}, "action": "restart_app"},
        {**plain, **job, "line": 3, "kind": "xid", "code": 45, "mig": {"gi": 5, "ci": None}, "action": "follow_cause"},
        {**plain, "line": 4, "kind": "sxid", "code": 20034, "pci": "0000:06:00.0", "action": "check_fabric", "blames": "fabric"},
        {**plain, "line": 5, "kind": "bus_lost", "code": 79, "pci": "0000:4e:00.0", "action": "reboot_node", "blames": "gpu"},
    ]
    expected[0] |= {"text": "Graphics Exception: ESR 0x1=0x2", "means": "graphics engine exception"}
    expected[1] |= {"text": "Ch 00000008", "caused_by": 13, "means": "channel removed after an earlier error"}
    expected[2] |= {"text": "Fatal, Link 30 LTSSM Fault Up", "service": "drain_now", "means": "link training fault, fatal"}
    expected[3] |= {"text": "GPU has fallen off the bus", "service": "drain_now", "means": "fallen off the bus"}
    found = decoded(log, capsys)
    assert found == expected
    assert [list(record) for record in found] == [KEYS] * 4


LOG = (
    LOST,
    "NVRM: Xid (PCI:0001:3b:00 GPU-I:05 GPU-CI:01): 31, pid=5, name=a, Ch 00000008",
    "NVRM: Xid (PCI:0001:3b:00 GPU-I:05): 45, pid=5, name=a, Ch 00000008",
    "nvidia-nvswitch0: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
    "NVRM: GPU 0000:4E:00.0: GPU has fallen off the bus.",
    "NVRM: Xid (PCI:0000:3b:00): 94, pid=7194, name=python3, Contained: SM (0x1). RST: No, D-RST: No",
)


def printed(log: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert main(["xid", "decode", str(log)]) == 0
    return capsys.readouterr().out.splitlines()


def test_each_line_says_what_it_means_by_named_fields(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log"
    log.write_text("\n".join(LOG) + "\n")
    rows = printed(log, capsys)
    assert rows[:5] == [
        "line 1: Xid 79 on GPU 0000:3b:00.0, process 1234 (python3)",
        "  means    fallen off the bus",
        "  do       reboot_node; the node leaves service now (drain_now)",
        "  blames   gpu",
        "  log      GPU has fallen off the bus.",
    ]
    assert "line 2: Xid 31 on GPU 0001:3b:00.0, MIG instance 5/1, process 5 (a)" in rows
    assert rows[rows.index("line 3: Xid 45 on GPU 0001:3b:00.0, MIG instance 5, process 5 (a)") + 4] == "  follows  Xid 31"
    assert "line 4: SXid 20034 on NVSwitch 0000:06:00.0" in rows
    assert "line 5: bus loss on GPU 0000:4e:00.0 (counts as Xid 79)" in rows
    assert "           (drain_after_job)" in rows, "what is too wide goes on below its own column"


def test_a_line_that_says_the_same_again_names_the_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log"
    log.write_text(f"{LOST}\n" * 400 + LOST.replace("off the bus", "away") + "\n")
    rows = printed(log, capsys)
    assert len(rows) == 5 + 399 + 2
    assert rows[5] == "line 2: Xid 79 on GPU 0000:3b:00.0, process 1234 (python3): as line 1"
    assert rows[-2:] == [
        "line 401: Xid 79 on GPU 0000:3b:00.0, process 1234 (python3): as line 1",
        "  log      GPU has fallen away.",
    ]
    assert len(decoded(log, capsys)) == 401, "JSON has each whole"


def test_what_is_remembered_is_bounded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log"
    others = "".join(f"NVRM: Xid (PCI:0000:3b:00): {code}, pid=1, name=a, x\n" for code in range(10_000, 10_000 + REMEMBERED))
    log.write_text(f"{LOST}\n{others}{LOST}\n")
    assert "as line" not in "\n".join(printed(log, capsys)[-5:])


def test_no_line_is_wider_than_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log"
    wide = "NVRM: Xid (PCI:0000:3b:00): 31, pid=5, name=" + "\\x1b" * 200 + "y" * 300 + ", " + "z" * 7000
    log.write_text("\n".join([*LOG, wide]) + "\n")
    rows = printed(log, capsys)
    assert max(map(len, rows)) <= 80
    assert " ".join(" ".join(rows).split()).endswith("... (--json has all)")


def test_nothing_found_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log"
    log.write_text("NVRM: loading NVIDIA UNIX\nusb 1-1: new device\n")
    assert main(["xid", "decode", str(log)]) == 0
    out, err = capsys.readouterr()
    assert out == "" and "no Xid" in err and str(log) in err
    assert decoded(log, capsys) == []


def test_a_process_name_cannot_steer_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"NVRM: Xid (PCI:0000:3b:00): 31, pid=5, name=a\x1b[2J\xc2\x9bK\xe2\x80\xae\x7f, Ch 00000008\n")
    for options in ([], ["--json"]):
        assert main(["xid", "decode", str(log), *options]) == 0
        out = capsys.readouterr().out
        assert not {"\x1b", "\x9b", "\u202e"} & set(out)
        assert "[2J" in out


@pytest.mark.parametrize(("name", "says"), [("no-such-file", "No such file"), (".", "directory"), ("a/b", "No such file")])
def test_missing_input_ends_with_66(name: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["xid", "decode", str(tmp_path / name)]) == 66
    out, err = capsys.readouterr()
    assert out == "" and says in err and err.startswith("fairlead xid:") and len(err.splitlines()) == 1


def test_usage(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in (["xid"], ["xid", "decode"], ["xid", "encode", "x"]):
        assert main(argv) == 64
        assert "usage:" in capsys.readouterr().err


def test_standard_input_is_decoded_as_it_comes() -> None:
    """The object of a line is there while the writer still has the pipe open."""
    with subprocess.Popen([*ARGV, "-", "--json"], env=ENV, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as run:
        assert run.stdin and run.stdout
        for number in (1, 2):
            run.stdin.write(LOST.encode() + b"\n")
            run.stdin.flush()
            assert json.loads(run.stdout.readline())["line"] == number
        run.stdin.close()
        assert run.stdout.read() == b""
        assert run.wait(120) == 0


def test_closed_standard_input_and_output() -> None:
    closed = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", *ARGV, "-"], env=ENV, capture_output=True, timeout=60, check=False
    )
    assert closed.returncode == 66 and b"closed" in closed.stderr
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as out:
        cut = subprocess.run(
            [*ARGV, "-"], env=ENV, input=(LOST + "\n").encode() * 500, stdout=out, stderr=subprocess.PIPE, timeout=60, check=False
        )
    assert b"Traceback" not in cut.stderr


def test_a_terminal_that_knows_ascii_only(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("NVRM: Xid (PCI:0000:3b:00): 31, pid=5, name=pythön, Ch 00000008\n", encoding="utf-8")
    done = subprocess.run(
        [*ARGV, log], env={**ENV, "PYTHONIOENCODING": "ascii"}, capture_output=True, text=True, timeout=60, check=True
    )
    assert "pyth\\xf6n" in done.stdout


def test_long_lines_count_once_and_hide_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log"
    long = b"x" * (3 * LINE_MAX)
    exact = b"y" * LINE_MAX
    log.write_bytes(b"\n".join((long, LOST.encode(), exact, LOST.encode() + b", " + long, b"", LOST.encode())))
    found = decoded(log, capsys)
    assert [r["line"] for r in found] == [2, 4, 6]
    assert len(found[1]["text"]) < LINE_MAX


def test_an_endless_line_takes_no_memory() -> None:
    """128 MiB without a line end, in an address space that could not hold it and Python too."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (96 << 20, 96 << 20))

    with subprocess.Popen(
        [*ARGV, "-", "--json"], env=ENV, stdin=subprocess.PIPE, stdout=subprocess.PIPE, preexec_fn=limit
    ) as run:
        assert run.stdin and run.stdout
        for _ in range(128):
            run.stdin.write(b"NVRM: Xid (PCI:0000:3b:00): 79, " * (1 << 15))
        run.stdin.write(b"\n" + LOST.encode() + b"\n")
        run.stdin.close()
        assert [json.loads(line)["line"] for line in run.stdout.read().splitlines()] == [1, 2]
        assert run.wait(60) == 0


def test_a_log_of_many_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log"
    fault = "NVRM: Xid (PCI:0000:3b:00): 31, pid=5, name=python3, Ch {:08x}, intr 00000000. MMU Fault: ENGINE GRAPHICS"
    log.write_text("".join(f"[{n:5}.000000] {fault.format(n)}\n[{n:5}.5] eth0: link up\n" for n in range(700)))
    found = decoded(log, capsys)
    assert [r["line"] for r in found] == list(range(1, 1401, 2))
    assert {(r["code"], r["service"], r["blames"]) for r in found} == {(31, "keep", "application")}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=150, deadline=None)
@given(
    st.lists(
        st.binary(max_size=60)
        | st.sampled_from(
            [LOST.encode(), b"NVRM: Xid (PCI:0000:3b:00): 45, pid=1, name=", b"4,1,2,-;NVRM: Xid (", b"\\x0a", b"\n"]
        ),
        max_size=30,
    ).map(b"".join)
)
def test_any_bytes_decode(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes) -> None:
    log = tmp_path / "log"
    log.write_bytes(content)
    code = main(["xid", "decode", str(log)])
    assert code in (0, 65)
    capsys.readouterr()
    found = decoded(log, capsys, code)
    assert all(1 <= r["line"] <= content.count(b"\n") + 1 for r in found)
    assert main(["xid", "decode", str(log)]) == code
    heads = [int(row.split()[1].rstrip(":")) for row in capsys.readouterr().out.split("\n") if row.startswith("line ")]
    assert heads == [r["line"] for r in found]  # nothing in a log makes a line of ours


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "not a text file"),
        (b"", "is empty, so nobody knows"),
        (b"root:x:0:0:root:/root:/bin/bash\n" * 3, "no line of it is of a kernel log"),
        (b"[    1.500000] usb 1-1: new\nhost | " + LOST.encode() + b"\n", "the first is line 2"),
        (b"host | " + LOST.encode() + b"\n" + b"host | " + LOST.encode() + b"\n", "2 lines hold an Xid"),
    ],
)
def test_what_cannot_be_read_is_never_none(
    content: bytes | None, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log"
    log.write_bytes(Path(sys.executable).resolve().read_bytes() if content is None else content)
    for options in ([], ["--json"]):
        assert main(["xid", "decode", str(log), *options]) == 65
        out, err = capsys.readouterr()
        assert out == "" and says in err and "no Xid" not in err and "next: " in err


def test_an_error_that_is_decoded_is_printed_also_where_another_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log"
    log.write_text(f"[    1.500000] {LOST}\nhost | {LOST}\n")
    assert [r["line"] for r in decoded(log, capsys, 65)] == [1]


def test_a_log_that_a_power_loss_filled_up_with_zeros_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"Jul 31 23:14:17 n1 kernel: x\n" + b"\0" * 5000 + b"Jul 31 23:14:18 n1 kernel: " + LOST.encode() + b"\n")
    assert [r["code"] for r in decoded(log, capsys)] == [79]
    assert main(["replay", str(log)]) == 0
    assert "1 of them for the checks" in capsys.readouterr().out


@pytest.mark.parametrize("prefix", ["[ 1234.5] ", "Jul 31 23:14:18 host kernel: "])
def test_a_bus_loss_in_one_record_of_three_lines(prefix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = ("The NVIDIA GPU 0000:b3:00.0", "(PCI ID: 10de:2330) installed in this system has", "fallen off the bus and is not")
    log = tmp_path / "log"
    log.write_text(prefix + ("\n" + " " * len(prefix)).join(f"NVRM: {part}" for part in parts) + " responding to commands.\n")
    assert [(r["line"], r["kind"], r["pci"]) for r in decoded(log, capsys)] == [(3, "bus_lost", "0000:b3:00.0")]
    assert main(["replay", str(log)]) == 0
    assert "would have been drained 1 time" in capsys.readouterr().out


def test_replay_never_passes_over_an_error_that_it_cannot_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log"
    log.write_text(f"[    1.500000] usb 1-1: new\nhost | {LOST}\n")
    for options in ([], ["--json"]):
        assert main(["replay", str(log), *options]) == 65
        out, err = capsys.readouterr()
        assert out and "line 2" in err and "next: " in err


def test_recorded_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = DATA / "kmsg" / "kmsg.csv"
    if not path.is_file():
        pytest.skip(f"recorded kernel lines are not here: {path}")
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    log = tmp_path / "log"
    log.write_text("".join(f"4,{n},{n}000,-;{row['line']}\n" for n, row in enumerate(rows)), encoding="utf-8")
    found = {r["line"]: r["code"] for r in decoded(log, capsys)}
    assert found == {
        n: int(row["xid"] or row["sxid"] or 79)
        for n, row in enumerate(rows, 1)
        if row["xid"] or row["sxid"] or row["class"] == "fallen-off"
    }


def test_recorded_logs(capsys: pytest.CaptureFixture[str]) -> None:
    folder = DATA / "dmesg"
    if not folder.is_dir():
        pytest.skip(f"recorded kernel logs are not here: {folder}")
    for path in sorted(folder.iterdir()):
        if path.suffix != ".md":
            content = path.read_bytes()
            assert len(decoded(path, capsys)) == content.count(b"NVRM: Xid (") + content.count(b": SXid ("), path.name


def test_a_journal_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """journalctl -k -o json; a message that is no UTF-8 is a list of bytes there. Only what the kernel said counts."""
    lines = [
        {"__REALTIME_TIMESTAMP": "1700000000000000", "_TRANSPORT": "kernel", "MESSAGE": LOST},
        {"__REALTIME_TIMESTAMP": "1700000000000000", "_TRANSPORT": "syslog", "MESSAGE": LOST},
        {"__REALTIME_TIMESTAMP": "1700000000000000", "_TRANSPORT": "kernel", "MESSAGE": list(LOST.encode() + b"\xff")},
        {"__REALTIME_TIMESTAMP": "9" * 400, "_TRANSPORT": "kernel", "MESSAGE": [300, "x"], "NVRM": 1},
        {"_TRANSPORT": "kernel", "MESSAGE": {"NVRM": []}},
    ]
    log = tmp_path / "log"
    log.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"NVRM\n{}NVRM\n')
    assert [(o["line"], o["code"], o["process"]) for o in decoded(log, capsys)] == [(1, 79, "python3"), (3, 79, "python3")]
    assert main(["replay", str(log)]) == 0
    assert "Xid 79" in capsys.readouterr().out
