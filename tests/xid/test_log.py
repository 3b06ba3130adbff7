"""Messages out of the forms in which people have kernel logs: known prefixes, and what cannot be told from them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.xid.log import Messages, classify

XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=a, GPU has fallen off the bus."
BUS = (
    "NVRM: The NVIDIA GPU 0000:b3:00.0",
    "NVRM: (PCI ID: 10de:2330) installed in this system has",
    "NVRM: fallen off the bus and",
)

KERNELS = [
    "",
    "kernel: ",
    "kernel: [   12.345678] ",
    "kernel[0]: ",
    "2024-07-31 23:14:18 host kernel: ",
    "2024-07-31 23:14:18.123 +0200 host kernel: ",
    "<6>1 2024-07-31T23:14:18.1Z host kernel - - - ",
    '<6>1 2024-07-31T23:14:18.1+02:00 host kernel - - [meta sequenceId="1"] [   12.3] ',
    "Mai 31 23:14:18 host kernel: [   12.3] ",
    "31. Juli 23:14:18 host kernel: ",
    "7月 31 23:14:18 host kernel: ",
    "juil. 31 23:14:18 host kernel: ",
    "/var/log/kern.log:Jul 31 23:14:18 host kernel: ",
    "/var/log/kern.log:17:Jul 31 23:14:18 host kernel: ",
    "my-kern.log-17-[   12.5] ",
    "n12.dmesg:[   12.5] ",
    "    [   12.5] ",
    "\x1b[32m[   12.5] \x1b[0m\x1b[31m",
    "Wed 2024-07-31 23:14:18 CEST host kernel: ",
]
PROGRAMS = [
    "<14>1 2024-07-31T23:14:18.1Z host kernel - - - ",
    "Jul 31 23:14:18 host dcgm: ",
    "Jul 31 23:14:18 host dcgm[77]: ",
    "Jul 31 23:14:18 host logger[77]: kernel: ",
    "2024-07-31T23:14:18+0200 host logger[77]: kernel: ",
    "2024-07-31 23:14:18 host logger[77]: kernel: ",
]
UNKNOWN = ["{odd} ", "2024/07/31 23:14:18 ", "   ", "host12 | ", "prog:", "a: b: "]


@pytest.mark.parametrize("prefix", KERNELS)
def test_the_kernels_message_behind_a_prefix(prefix: str) -> None:
    found = classify(prefix + XID + "\n")
    assert (found.text, found.hides_an_error) == (XID, False)


@pytest.mark.parametrize("prefix", PROGRAMS)
def test_what_a_program_says_is_neither_decoded_nor_missed(prefix: str) -> None:
    found = classify(prefix + XID)
    assert not found.text.startswith("NVRM") and not found.hides_an_error


@pytest.mark.parametrize("prefix", UNKNOWN)
@pytest.mark.parametrize(
    "error",
    [XID, "nvidia-nvswitch0: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 30", f"NVRM: GPU 0000:3b:00.0: GPU has {BUS[2][6:]}"],
)
def test_an_error_behind_a_prefix_that_is_not_known_is_never_none(prefix: str, error: str) -> None:
    assert classify(prefix + error).hides_an_error


@pytest.mark.parametrize("indent", ["          ", "\t", " " * 40])
@pytest.mark.parametrize("prefix", ["[ 1234.5] ", "Jul 31 23:14:18 host kernel: "])
def test_lines_of_one_record_go_on_with_it(prefix: str, indent: str) -> None:
    log = Messages()
    lines = [prefix + BUS[0], indent + BUS[1], indent + BUS[2]]
    assert [log.of(n, line).text for n, line in enumerate(lines, 1)] == list(BUS)


def test_indented_lines_of_another_record_are_nobodys() -> None:
    """A name with a line break in it begins such a line."""
    log = Messages()
    lines = ["[ 1.5] " + BUS[0], "[ 1.6] usb 1-1: new", "   " + BUS[1], "[ 1.7] a", "          " + XID]
    found = [log.of(n, line) for n, line in enumerate(lines, 1)]
    assert not found[2].known and found[4].hides_an_error and not found[4].known


@given(st.text(max_size=600))
def test_any_line_is_read(line: str) -> None:
    found = classify(line)
    assert found.known or found.text in ("", line.rstrip("\r\n"))
