"""A log decoded: the object of each record, and what an Xid 45 follows."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.model.finding import Action, Service
from fairlead.xid.catalogue import ENTRIES
from fairlead.xid.decode import REMEMBER, Decoded, Instance, decode
from fairlead.xid.line import XidKind
from fairlead.xid.log_file import message

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
A, B = "NVRM: Xid (PCI:0000:3b:00): ", "NVRM: Xid (PCI:0000:5d:00): "
MIG1, MIG2 = "NVRM: Xid (PCI:0000:3b:00 GPU-I:01): ", "NVRM: Xid (PCI:0000:3b:00 GPU-I:02 GPU-CI:01): "
END = "45, pid=7, name=python3, Ch 00000008"


def last(*texts: str) -> Decoded:
    return list(decode(texts))[-1]


def test_one_object_in_full() -> None:
    text = "NVRM: Xid (PCI:0000:4e:00 GPU-I:05 GPU-CI:01): 94, pid=7194, name=a, b, Contained: SM (0x1). RST: No, D-RST: No"
    assert list(decode(["usb 1-1: new device", text])) == [
        Decoded(
            line=2,
            kind=XidKind.XID,
            code=94,
            pci="0000:4e:00.0",
            mig=Instance(5, 1),
            pid=7194,
            process="a, b",
            action=Action.RESTART_APP,
            service=Service.DRAIN_AFTER_JOB,
            caused_by=None,
            blames="gpu",
            means="contained memory error",
            text="Contained: SM (0x1). RST: No, D-RST: No",
        )
    ]


@pytest.mark.parametrize(
    ("texts", "caused_by", "blames"),
    [
        ([A + END], None, "application"),
        ([A + "48, pid=7, name=x, An uncorrectable", A + END], 48, "gpu"),
        ([A + "79, GPU has fallen off the bus.", A + END], 79, "gpu"),
        (["NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.", A + END], 79, "gpu"),
        ([A + "31, pid=7, name=python3, Ch 00000008", A + END, A + END], 31, "application"),
        # another GPU; a switch
        ([B + "79, GPU has fallen off the bus.", A + END], None, "application"),
        (["nvidia-nvswitch0: SXid (PCI:0000:3b:00.0): 20034, Fatal, Link 30 LTSSM Fault Up", A + END], None, "application"),
        # another application's fault ends that application alone; the GPU's own ends them all
        ([A + "31, pid=6, name=other, Ch 00000008", A + END], None, "application"),
        ([A + "31, pid=7, name=a, Ch 1", A + "13, pid=6, name=b, Ch 2", A + END], 31, "application"),
        ([A + "31, Ch 00000008", A + END], 31, "application"),
        ([A + "119, pid=6, name=nvidia-smi, Timeout after 6s", A + END], 119, "gpu"),
        # what only records a fault is no cause while there is one
        ([A + "48, x", A + "63, Row Remapper: x", A + "154, GPU recovery action changed", A + END], 48, "gpu"),
        ([A + "63, Row Remapper: x", A + END], 63, "gpu"),
        ([A + "48, x", A + "63, Row Remapper: x", A + "94, pid=7, name=a, Contained: x", A + END], 94, "gpu"),
        ([A + "162, power smoothing is back", A + END], None, "application"),
        # what the driver prints wins, seen or not
        ([A + "79, GPU has fallen off the bus.", A + END + " caused by previous Xid 145"], 145, "fabric"),
        # MIG: the same instance, or the whole GPU
        ([MIG1 + "31, pid=7, name=a, Ch 1", MIG2 + END], None, "application"),
        ([MIG2 + "31, pid=7, name=a, Ch 1", MIG2 + END], 31, "application"),
        ([MIG1 + "95, Uncontained: x", A + END], 95, "gpu"),
        ([A + "95, Uncontained: x", MIG1 + END], 95, "gpu"),
        # a boot starts afresh
        ([A + "79, GPU has fallen off the bus.", "Linux version 6.1.0", A + END], None, "application"),
        ([A + "79, GPU has fallen off the bus.", "-- Boot 0a1b --", A + END], None, "application"),
        # an address that is not printed is nobody's
        (["NVRM: Xid (PCI:...): 79, x", f"NVRM: Xid (PCI:...): {END}"], None, "application"),
    ],
)
def test_what_a_45_follows(texts: list[str], caused_by: int | None, blames: str) -> None:
    found = last(*texts)
    assert (found.code, found.caused_by, found.blames) == (45, caused_by, blames)
    assert (found.action, found.service) == (Action.FOLLOW_CAUSE, Service.KEEP)


@pytest.mark.parametrize("code", sorted(set(ENTRIES) - set(range(144, 151)) - {154}))
def test_every_code_has_its_row_s_answer(code: int) -> None:
    found = last(f"{A}{code}, pid=1, name=x, text")
    entry = ENTRIES[code]
    assert (found.code, found.action, found.service, found.blames) == (code, entry.action, entry.service, entry.blames)


@pytest.mark.parametrize("code", range(144, 151))
def test_an_nvlink_line_says_its_own_severity(code: int) -> None:
    for severity, service in (("Fatal", Service.DRAIN_NOW), ("Nonfatal", Service.KEEP)):
        found = last(f"{A}{code}, UNIT {severity} XC0 i0 Link 3 (0x1 0x2)")
        assert (found.action, found.service, found.blames) == (Action.CHECK_FABRIC, service, "fabric")


@pytest.mark.parametrize(("number", "service"), [(0, Service.KEEP), (1, Service.DRAIN_NOW), (4, Service.DRAIN_AFTER_JOB)])
def test_154_counts_by_its_number(number: int, service: Service) -> None:
    assert last(f"{A}154, GPU recovery action changed from 0x9 (a) to 0x{number} (b)").service is service


def test_a_storm_is_told_line_by_line() -> None:
    """Five hundred lines of one fault and its ends: as many objects, all of them the application's."""
    storm = [f"{A}{(13, 45)[n % 2]}, pid={n % 4 // 2}, name=python3, Ch {n:08x}" for n in range(500)]
    found = list(decode(storm))
    assert [r.line for r in found] == list(range(1, 501))
    assert {(r.code, r.caused_by) for r in found} == {(13, None), (45, 13)}
    assert {(r.service, r.blames) for r in found} == {(Service.KEEP, "application")}


def test_memory_is_bounded() -> None:
    texts = [f"NVRM: Xid (PCI:{n:04x}:00:00): 79, x" for n in range(REMEMBER + 10)]
    texts += [f"NVRM: Xid (PCI:{n:04x}:00:00): 45, x" for n in (0, 9, 10, REMEMBER + 9)]
    assert [r.caused_by for r in list(decode(texts))[-4:]] == [None, None, 79, 79]


def test_it_streams() -> None:
    seen = []

    def texts():  # type: ignore[no-untyped-def]
        for n in range(3):
            seen.append(n)
            yield A + "79, x"

    assert next(decode(texts())).line == 1
    assert seen == [0]


_PARTS = st.sampled_from(
    (A, B, MIG1, MIG2, "NVRM: ", "45", "79", "13, ", "pid=1, name=", "pid='<unknown>', ", ",", "): ", "Ch 00000008", " ", "\\x0a")
) | st.sampled_from(
    (
        "caused by previous Xid ",
        "Linux version ",
        "-- Boot ",
        "nvidia-nvswitch0: SXid (PCI:0000:06:00.0): ",
        "Fatal, Link 1",
        "NVRM: The NVIDIA GPU 0000:3b:00.0",
        "fallen off the bus and is not responding",
        "GPU has fallen off the bus",
        "\x00",
        "\u0663",
    )
)


@given(st.lists(st.lists(_PARTS | st.text(max_size=20), max_size=8).map("".join), max_size=40))
def test_any_log_decodes(texts: list[str]) -> None:
    found = list(decode(texts))
    assert [r.line for r in found] == sorted({r.line for r in found})
    for record in found:
        assert 1 <= record.line <= len(texts)
        assert record.caused_by is None or record.kind is XidKind.XID
        assert record.blames in {"application", "gpu", "node", "fabric", "driver"}
    assert list(decode(texts)) == found


TEXT = A + "79, pid=7, name=a b, GPU has fallen off the bus."


@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "4,339,5140900,-;",
        "4,339,5140900,-,caller=T1234;",
        "4,339,5140900;",
        "<4>[  201.650687] ",
        "<4>",
        "[  201.650687] ",
        "[    0.000000][    T1] ",
        "[  201.650687 <    0.000012>] ",
        "[Sun Feb 23 16:24:18 2025] ",
        "[Feb23 16:24] ",
        "[  +0.000003] ",
        "kern  :warn  : [  201.650687] ",
        "kern  :warn  : [Sun Feb 23 16:24:18 2025] ",
        "kern  :err   : 2025-02-10T16:28:06,502716+00:00 ",
        "2024-11-15T05:39:15,491363+00:00 ",
        "2025-01-02T15:20:12+0800 gpu-01 kernel: ",
        "2025-01-02T15:20:12.123456+08:00 gpu-01.site kernel: [  201.650687] ",
        "Aug 17 00:00:24 gpu-01 kernel: ",
        "Aug  7 00:00:24 gpu-01 kernel: [  201.650687] ",
        "Aug 17 00:00:24.123456 gpu-01 kernel: ",
        "Thu 2025-01-02 15:20:12 CST gpu-01 kernel: ",
        "Thu 2025-01-02 15:20:12.123456 UTC gpu-01 kernel: ",
        "[  201.650687] gpu-01 kernel: ",
        "1735802412.123456 gpu-01 kernel: ",
    ],
)
def test_every_stamp_comes_off(prefix: str) -> None:
    assert message(prefix + TEXT + "\r\n") == TEXT


@pytest.mark.parametrize(
    "line",
    [
        "12,339,5140900,-;" + TEXT,  # facility 1: written to /dev/kmsg by a program
        "<12>[  201.650687] " + TEXT,
        "user  :warn  : [  201.650687] " + TEXT,
        "daemon:err   : 2025-02-10T16:28:06,502716+00:00 " + TEXT,
        "Aug 17 00:00:24 gpu-01 alice[4711]: " + TEXT,
        "2025-01-02T15:20:12+0800 gpu-01 alice: " + TEXT,
        "[  201.650687] gpu-01 alice: " + TEXT,
        "Aug 17 00:00:24 gpu-01 alice: kernel: " + TEXT,
    ],
)
def test_what_a_program_wrote_is_not_the_kernel_s(line: str) -> None:
    assert not list(decode([message(line)]))


def test_escapes_of_dev_kmsg_are_undone() -> None:
    found = last(message(f"4,1,2,-;{A}31, pid=7, name=a\\xe2\\x82\\xac\\x5cx, Ch 00000008"))
    assert found.process == "a€\\x"
    assert last(message(f"[ 1.0] {A}31, pid=7, name=a\\x41, Ch 00000008")).process == "a\\x41"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("Aug 17 00:00:24 gpu-01 kernel: message repeated 3 times: [ " + TEXT + "]", TEXT),
        ("Aug 17 00:00:24 gpu-01 kernel: [  201.650687] message repeated 12 times: [" + TEXT + "]", TEXT),
        ("Aug 17 00:00:24 gpu-01 kernel: message repeated 3 times: [ " + TEXT, "message repeated 3 times: [ " + TEXT),
    ],
)
def test_messages_that_syslog_counted_instead_of_writing_them(line: str, expected: str) -> None:
    assert message(line) == expected


def test_lines_of_fabric_managers_own_log() -> None:
    start = "[Dec 19 2024 19:17:49] [ERROR] [tid 1374] detected NVSwitch"
    rest = "on fid 0 on NVSwitch pci bus id 00000000:83:00.0 physical id 0 port 34"
    for word, service in (("fatal", Service.DRAIN_NOW), ("non-fatal", Service.KEEP)):
        found = last(message(f"{start} {word} error 12028 {rest}\n"))
        assert (found.kind, found.code, found.pci, found.service) == (XidKind.SXID, 12028, "0000:83:00.0", service)
    for other in (f"x{start} fatal error 12028 {rest}", f"{start} fatal error 12028 {rest} and more", f"{start} fatal error"):
        assert not list(decode([message(other)]))


def test_the_recorded_fabric_manager_log() -> None:
    path = DATA / "fabricmanager" / "fabric-manager.0.log"
    if not path.is_file():
        pytest.skip(f"the recorded log is not here: {path}")
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    found = list(decode(map(message, lines)))
    assert [r.line for r in found] == [n for n, line in enumerate(lines, 1) if "NVSwitch non-fatal error" in line]
    assert len(found) == 18 and {(r.code, r.service) for r in found} == {(12028, Service.KEEP)}


def _rows() -> list[dict[str, str]]:
    path = DATA / "kmsg" / "kmsg.csv"
    if not path.is_file():
        pytest.skip(f"recorded kernel lines are not here: {path}")
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("prefix", ["", "[  201.650687] ", "Aug 17 00:00:24 gpu-01 kernel: ", "kern  :warn  : [    1.0] "])
def test_every_recorded_line_alone(prefix: str) -> None:
    """Every recorded Xid and SXid line gives its object, and every other line gives none."""
    rows = _rows()
    for row in rows:
        found = list(decode([message(prefix + row["line"])]))
        expected = row["xid"] or row["sxid"] or ("79" if row["class"] == "fallen-off" else "")
        assert [str(r.code) for r in found] == ([expected] if expected else []), row["line"]
        for record in found:
            assert record.kind is (XidKind.XID if row["xid"] else XidKind.SXID if row["sxid"] else XidKind.BUS_LOST)
            assert record.pci or "PCI:..." in row["line"], row["line"]
            assert (record.mig is not None) == ("GPU-I:" in row["line"].partition(")")[0]), row["line"]
            assert record.pid is None or f"pid={record.pid}" in row["line"]
            assert record.process is None or f"name={record.process}" in row["line"]
    assert sum(1 for r in rows if r["xid"]) >= 90


def test_every_recorded_line_as_one_log() -> None:
    rows = _rows()
    found = list(decode(row["line"] for row in rows))
    told = [n for n, row in enumerate(rows, 1) if row["xid"] or row["sxid"] or row["class"] == "fallen-off"]
    assert [r.line for r in found] == told
    named = {r.caused_by for r in found if "caused by previous Xid 145" in r.text}
    assert named == {145}


def test_recorded_logs() -> None:
    folder = DATA / "dmesg"
    if not folder.is_dir():
        pytest.skip(f"recorded kernel logs are not here: {folder}")
    for path in sorted(folder.iterdir()):
        if path.suffix == ".md":
            continue
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
        expected = [n for n, line in enumerate(lines, 1) if "NVRM: Xid (" in line or ": SXid (" in line]
        assert [r.line for r in decode(map(message, lines))] == expected, path.name


def test_the_blame_of_a_cause_is_by_the_driver_too() -> None:
    """144 was a key rotation error before 555, NVLink's since: told by the line or found, it is the same cause."""
    found = list(decode([A + "144, x", A + END], "550.90.07"))[-1]
    told = list(decode([A + END + " caused by previous Xid 144"], "550.90.07"))[-1]
    assert (found.caused_by, found.blames) == (told.caused_by, told.blames) == (144, "driver")
