"""The parser: every form a driver prints, and no text whatever that upsets it."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fairlead.xid import XidKind, XidLine, parse, read
from fairlead.xid.line import NAME_MAX, address
from fairlead.xid.log_file import message
from fairlead.xid.nvlink5 import Registers

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python3, GPU has fallen off the bus.",
            XidLine(
                kind=XidKind.XID, code=79, pci="0000:3b:00.0", pid=1234, process="python3", text="GPU has fallen off the bus."
            ),
        ),
        ("NVRM: Xid (PCI:0000:3F:00): 46", XidLine(kind=XidKind.XID, code=46, pci="0000:3f:00.0")),
        ("NVRM: Xid (PCI:0000:3f:00): 64, ", XidLine(kind=XidKind.XID, code=64, pci="0000:3f:00.0")),
        ("NVRM: Xid (PCI:00000000:3f:00): 64,", XidLine(kind=XidKind.XID, code=64, pci="0000:3f:00.0")),
        ("NVRM: Xid (PCI:00010000:3f:00): 64,", XidLine(kind=XidKind.XID, code=64, pci="10000:3f:00.0")),
        ("NVRM: Xid (PCI:000d:00:00.1): 64,", XidLine(kind=XidKind.XID, code=64, pci="000d:00:00.1")),
        ("NVRM: Xid (PCI:...): 145, x", XidLine(kind=XidKind.XID, code=145, pci="", text="x")),
        (
            "NVRM: Xid (0000:03:00): 14, Channel 00000001",
            XidLine(kind=XidKind.XID, code=14, pci="0000:03:00.0", text="Channel 00000001"),
        ),
        (
            "NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel (0x9). RST: No, D-RST: No",
            XidLine(
                kind=XidKind.XID,
                code=94,
                pci="0000:01:00.0",
                gi=5,
                pid=7194,
                text="Contained: CE User Channel (0x9). RST: No, D-RST: No",
            ),
        ),
        (
            "NVRM: Xid (PCI:0000:01:00 GPU-I:05 GPU-CI:01): 13, pid=7, name=a b, Graphics Exception: ESR 0x1=0x2",
            XidLine(
                kind=XidKind.XID,
                code=13,
                pci="0000:01:00.0",
                gi=5,
                ci=1,
                pid=7,
                process="a b",
                text="Graphics Exception: ESR 0x1=0x2",
            ),
        ),
        (
            "NVRM: Xid (PCI:0000:19:00): 48, pid='<unknown>', name=<unknown>, An uncorrectable double bit error",
            XidLine(kind=XidKind.XID, code=48, pci="0000:19:00.0", text="An uncorrectable double bit error"),
        ),
        (
            "NVRM: Xid (PCI:0000:ba:00): 45, pid=1818989, name=python3, Ch 00000002 caused by previous Xid 145",
            XidLine(
                kind=XidKind.XID,
                code=45,
                pci="0000:ba:00.0",
                pid=1818989,
                process="python3",
                text="Ch 00000002 caused by previous Xid 145",
                caused_by=145,
            ),
        ),
        (
            "NVRM: Xid (PCI:0008:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 14 (0x0215c5c6 0x0)",
            XidLine(
                kind=XidKind.XID,
                code=149,
                pci="0008:01:00.0",
                text="NETIR_LINK_EVT  Fatal   XC0 i0 Link 14 (0x0215c5c6 0x0)",
                fatal=True,
                unit="NETIR_LINK_EVT",
                link=14,
                registers=Registers(0x0215C5C6, 0),
            ),
        ),
        (
            "NVRM: Xid (PCI:0019:01:00): 145, pid=876766, name=ray::WorkerDict, RLW_RXPIPE Nonfatal XC0 i0 Link 12 (0x04)",
            XidLine(
                kind=XidKind.XID,
                code=145,
                pci="0019:01:00.0",
                pid=876766,
                process="ray::WorkerDict",
                text="RLW_RXPIPE Nonfatal XC0 i0 Link 12 (0x04)",
                fatal=False,
                unit="RLW_RXPIPE",
                link=12,
            ),
        ),
        (
            "NVRM: Xid (PCI:0018:01:00): 154, GPU recovery action changed from 0x4 (Drain and Reset) to 0x1 (PF FLR)",
            XidLine(
                kind=XidKind.XID,
                code=154,
                pci="0018:01:00.0",
                text="GPU recovery action changed from 0x4 (Drain and Reset) to 0x1 (PF FLR)",
                recovery=1,
            ),
        ),
        (
            "nvidia-nvswitch0: SXid (PCI:0000:06:00.0): 20009, Non-fatal, Link 04 RX Short Error Rate",
            XidLine(
                kind=XidKind.SXID,
                code=20009,
                pci="0000:06:00.0",
                text="Non-fatal, Link 04 RX Short Error Rate",
                fatal=False,
                link=4,
            ),
        ),
        (
            "nvidia-nvswitch1: SXid (PCI:0000:84:00.0): 12028, Data {0x000001c0, 0x00bd5c8a}",
            XidLine(kind=XidKind.SXID, code=12028, pci="0000:84:00.0", text="Data {0x000001c0, 0x00bd5c8a}", follows=True),
        ),
        (
            "NVRM: GPU at 0000:01:00.0 has fallen off the bus.",
            XidLine(kind=XidKind.BUS_LOST, code=79, pci="0000:01:00.0", text="GPU has fallen off the bus"),
        ),
        (
            "NVRM: The NVIDIA GPU 0000:b3:00.0\\x0aNVRM: (PCI ID: 10de:26b5) installed in this system has"
            "\\x0aNVRM: fallen off the bus and is not responding to commands.",
            XidLine(kind=XidKind.BUS_LOST, code=79, pci="0000:b3:00.0", text="GPU has fallen off the bus"),
        ),
    ],
)
def test_forms(text: str, expected: XidLine) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("KMS thread", "Ch 00000008"),
        ("nvc:[driver]", "channel 0x0000001b, errorString CTX SWITCH TIMEOUT, Info 0x5c01a"),
        ("a, b, c", "Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS"),
        ("a,b", "Timeout after 6s of waiting for RPC response from GPU4 GSP!"),
        ("x): 79, y", "Ch 00000008"),
        ("(PCI:0000:1b:0", "Ch 00000008"),
        ("[kworker/0:1]", "Graphics Exception: ESR 0x504648=0x114000e"),
    ],
)
def test_names_with_commas_colons_and_brackets(name: str, text: str) -> None:
    line = parse(f"NVRM: Xid (PCI:0000:3b:00): 31, pid=5, name={name}, {text}")
    assert line is not None and (line.code, line.pid, line.process, line.text) == (31, 5, name, text)
    assert line.public_text == ""
    bare = parse(f"NVRM: Xid (PCI:0000:3b:00): 31, pid=5, name={name}")
    assert bare is not None and bare.code == 31


@pytest.mark.parametrize(
    "text",
    [
        "",
        "NVRM: Xid",
        "NVRM: Xid (PCI:0000:3b:00)",
        "NVRM: Xid (PCI:0000:3b:00): ",
        "NVRM: Xid (PCI:0000:3b:00): abc",
        "NVRM: Xid (PCI:0000:3b:00): 79abc",
        "NVRM: Xid (PCI:0000:3b:00): 79.5",
        "NVRM: Xid (PCI:0000:3b:00 GPU-X:05): 79, x",
        "kernel: NVRM: Xid (PCI:0000:3b:00): 79, x",
        "NVRM: xid (PCI:0000:3b:00): 79, x",
        "NVRM: GPU 0000:zz:00.0: GPU has fallen off the bus.",
        "NVRM: The NVIDIA GPU 0000:b3:00.0",
        "nvidia-nvswitch: SXid (PCI:0000:06:00.0): 20009, Fatal",
        "a\nNVRM: Xid (PCI:0000:3b:00): 79, x",
    ],
)
def test_what_is_not_a_line(text: str) -> None:
    assert parse(text) is None


def test_a_user_s_process_name_decides_nothing() -> None:
    for name in ("SAW Fatal XC0 i", "caused by prev", "to 0x2 (x)", "Fatal, Link 1"):
        for code in (145, 45, 154):
            line = parse(f"NVRM: Xid (PCI:0000:3b:00): {code}, pid=5, name={name}, Ch 00000008")
            assert line is not None and (line.fatal, line.caused_by, line.recovery) == (None, None, None)


MESSAGES = (
    (149, "NETIR_LINK_EVT  Fatal   XC0 i0 Link 14 (0x0215c5c6 0x00000000)"),
    (145, "RLW_RXPIPE Nonfatal XC0 i0 Link 12 (0x040980c2 0x00000008)"),
    (154, "GPU recovery action changed from 0x0 (None) to 0x2 (OS Reboot)"),
    (45, "Ch 00000002 caused by previous Xid 145"),
)


@given(
    st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=NAME_MAX)
    | st.sampled_from(
        ("x, GPU y", "a, Ch 1", ", channel 2", "A Fatal XC0 i0", "x, RLW Nonfatal", ", GSP ", "x,", "79, ", "), 45, ")
    )
)
@example("x, GPU y")
@example("x, RLW Fatal XC")
def test_no_process_name_hides_or_makes_what_the_line_says(name: str) -> None:
    """What decides over the node is read the same whoever it was that ran: severity, registers, number, cause."""
    for code, text in MESSAGES:
        plain, named = (parse(f"NVRM: Xid (PCI:0000:3b:00): {code}, {who}{text}") for who in ("", f"pid=5, name={name}, "))
        assert plain is not None and named is not None
        for field in ("kind", "code", "pci", "fatal", "link", "unit", "registers", "recovery", "caused_by"):
            assert getattr(named, field) == getattr(plain, field), (code, field)


@pytest.mark.parametrize(
    "text",
    [
        "nvidia: 37 callbacks suppressed",
        "__ratelimit: 12 callbacks suppressed",
        "nvswitch_service_interrupts: 5 callbacks suppressed",
        "NVRM: 5 callbacks suppressed",
    ],
)
def test_what_the_kernel_says_of_lines_it_left_out(text: str) -> None:
    """lib/ratelimit.c: says how many were left out, of what function; never which."""
    first, last = "NVRM: The NVIDIA GPU 0000:b3:00.0", "NVRM: fallen off the bus and is not responding to commands."
    assert parse(text) is None
    assert [line.pci for _, line in read([first, text, last])] == ["0000:b3:00.0"]


def test_a_record_cut_anywhere_is_read_as_far_as_it_goes_or_not_at_all() -> None:
    whole = "NVRM: Xid (PCI:0000:3b:00 GPU-I:05 GPU-CI:01): 149, pid=5, name=a, b, NETIR Fatal XC0 i0 Link 14 (0x6 0x0 0x1)"
    for end in range(len(whole)):
        line = parse(whole[:end])
        if line is not None:
            assert (line.pci, line.gi, line.ci) == ("0000:3b:00.0", 5, 1) and line.code in {1, 14, 149}
            assert line.fatal in {True, None}
    assert line is not None and line.fatal


def test_split_messages_are_joined_only_when_they_end_as_a_loss() -> None:
    first, second, last = (
        "NVRM: The NVIDIA GPU 0000:b3:00.0",
        "NVRM: (PCI ID: 10de:26b5) installed in this system has",
        "NVRM: fallen off the bus and is not responding to commands.",
    )
    assert [(place, line.pci) for place, line in read([first, second, last])] == [(2, "0000:b3:00.0")]
    assert [place for place, _ in read([first, "usb 1-1: new device", second, "x", last])] == [4]
    assert not list(read([first, "NVRM: (PCI ID: 10de:26b5) installed in this system is", "NVRM: not supported by open"]))
    assert not list(read([first, *(["x"] * 20), last]))
    assert not list(read([last, first]))


@pytest.mark.parametrize(
    "rest",
    [
        ("NVRM: (PCI ID: 10de:26b5) installed in this system has", "NVRM: fallen off the bus and is not responding to commands."),
        ("NVRM: installed in this system has", "NVRM: fallen off the bus and is not responding to commands."),
        ("NVRM: installed in this system has fallen off the bus and is not", "NVRM: responding to commands."),
        ("NVRM: system has fallen off the bus and is not responding to commands.",),
    ],
)
def test_split_messages_as_drivers_have_cut_them_over_the_years(rest: tuple[str, ...]) -> None:
    for first in ("NVRM: The NVIDIA GPU 0000:b3:00.0", "NVRM: The NVIDIA GPU 0000:b3:00.0 (PCI ID: 10de:1e07) installed in this"):
        assert [line.pci for _, line in read([first, *rest])] == ["0000:b3:00.0"]


def test_split_messages_of_two_gpus_at_once() -> None:
    a, b = "NVRM: The NVIDIA GPU 0000:b3:00.0", "NVRM: The NVIDIA GPU 0000:4e:00.0"
    has = "NVRM: (PCI ID: 10de:26b5) installed in this system has"
    last = "NVRM: fallen off the bus and is not responding to commands."
    assert [line.pci for _, line in read([a, b, has, has, last, last])] == ["0000:b3:00.0", "0000:4e:00.0"]
    assert [line.pci for _, line in read([a, has, b, last, has, last])] == ["0000:b3:00.0", "0000:4e:00.0"]
    other = "NVRM: (PCI ID: 10de:26b5) installed in this system is not supported by the NVIDIA driver."
    assert [line.pci for _, line in read([a, other, b, has, last])] == ["0000:4e:00.0"]
    assert not list(read([*[a] * 1000, *["x"] * 20, last]))


@given(st.text(max_size=300))
@example("NVRM: Xid (PCI:" + "0" * 5000)
def test_any_text_parses_or_not(text: str) -> None:
    for prefix in (
        "",
        "NVRM: Xid ",
        "NVRM: Xid (PCI:0000:3b:00): ",
        "NVRM: Xid (PCI:0000:3b:00): 31, pid=1, name=",
        "NVRM: GPU ",
    ):
        line = parse(prefix + text)
        assert line is None or (line.code >= 0 and (line.pci == "" or address(line.pci) == line.pci))
    for prefix in ("nvidia-nvswitch0: SXid ", "NVRM: The NVIDIA GPU ", "nvidia-nvswitch0: SXid (PCI:0000:06:00.0): 1, "):
        parse(prefix + text)
    assert message(text) is not None


@given(
    st.tuples(st.integers(0, 0xFFFF), st.integers(0, 255), st.integers(0, 31)),
    st.integers(1, 999),
    st.none() | st.tuples(st.integers(0, 14), st.none() | st.integers(0, 7)),
    st.none()
    | st.tuples(
        st.integers(0, 2**22),
        st.text(st.characters(min_codepoint=32, max_codepoint=126, exclude_characters=","), min_size=1, max_size=15),
    ),
)
def test_what_the_driver_prints_is_read_back(
    where: tuple[int, int, int], code: int, mig: tuple[int, int | None] | None, who: tuple[int, str] | None
) -> None:
    domain, bus, device = where
    instance = "" if mig is None else f" GPU-I:{mig[0]:02d}" + ("" if mig[1] is None else f" GPU-CI:{mig[1]:02d}")
    process = "" if who is None else f"pid={who[0]}, name={who[1]}, "
    line = parse(f"NVRM: Xid (PCI:{domain:04x}:{bus:02x}:{device:02x}{instance}): {code}, {process}Ch 00000008")
    assert line is not None
    assert (line.pci, line.code, line.text) == (f"{domain:04x}:{bus:02x}:{device:02x}.0", code, "Ch 00000008")
    assert (line.gi, line.ci) == (mig or (None, None))
    if who is not None and who[1] != "<unknown>":
        assert (line.pid, line.process) == who


def _data(folder: str) -> Path:
    path = DATA / folder
    if not path.is_dir():
        pytest.skip(f"recorded kernel logs are not here: {path}")
    return path


def test_every_recorded_xid_and_sxid_line_decodes_and_nothing_else_does() -> None:
    with (_data("kmsg") / "kmsg.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        line = parse(row["line"])
        if row["xid"] or row["sxid"]:
            assert line is not None, row["line"]
            assert line.code == int(row["xid"] or row["sxid"]), row["line"]
            assert line.kind is (XidKind.XID if row["xid"] else XidKind.SXID)
        elif row["class"] == "fallen-off":
            assert line is not None and line.kind is XidKind.BUS_LOST, row["line"]
        else:
            assert line is None, row["line"]
    assert sum(1 for r in rows if r["xid"]) >= 90


def test_whole_recorded_logs() -> None:
    folder = _data("dmesg")
    codes: dict[str, list[int]] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix != ".md":
            text = path.read_text(encoding="utf-8", errors="replace")
            codes[path.name] = [line.code for _, line in read(message(t) for t in text.splitlines())]
            assert len(codes[path.name]) == text.count("NVRM: Xid (") + text.count(": SXid ("), path.name
    assert codes["components-accelerator_dmesg-with-xid-119.log"] == [119] * 5
    assert codes["pkg-dmesg_dmesg-time-format-iso.log"][:3] == [48, 63, 94]
