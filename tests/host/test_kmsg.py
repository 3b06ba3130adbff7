"""The kernel log follower: /dev/kmsg itself, FIFOs and files in its form."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import tty
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.host.hung_trace import is_ours
from fairlead.host.kmsg import BATCH_RECORDS, Follower, parse
from fairlead.model.check_definition import KernelRecord


def texts(records: list[KernelRecord]) -> list[str]:
    return [r.text for r in records]


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    path = tmp_path / "kmsg"
    os.mkfifo(path)
    return path


def write(path: Path, data: bytes) -> None:
    with open(path, "wb", buffering=0) as f:
        f.write(data)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"6,339,5140900,-;NET: Registered", (339, 5.1409, 6, "NET: Registered")),
        (b"3,1,2,-;NVRM: Xid (PCI:0000:1b:00): 79, pid=1, GPU has fallen off the bus.\n SUBSYSTEM=pci\n",
         (1, 2e-06, 3, "NVRM: Xid (PCI:0000:1b:00): 79, pid=1, GPU has fallen off the bus.")),
        (b"6,5,7,-,caller=T1,future;x", (5, 7e-06, 6, "x")),
        (b"4,5,7,-;a;b;c", (5, 7e-06, 4, "a;b;c")),
        (b"4,5,7,-;", (5, 7e-06, 4, "")),
        (rb"4,5,7,-;tab\x09new\x0aline \xc3\xa4 back\x5cslash \xff", (5, 7e-06, 4, "tab new line ä back\\slash �")),
    ],
)  # fmt: skip
def test_record(line: bytes, expected: tuple[int, float, int, str]) -> None:
    record = parse(line)
    assert record is not None
    assert (record.sequence, record.seconds, record.priority, record.text) == expected


@pytest.mark.parametrize(
    "line",
    [b"", b"x", b"6,1;a", b"6,1,2,-", b"30,1,2,-;systemd[1]: NVRM: Xid", b"12,1,2,-;NVRM: Xid", b"-1,2,3;x", b"6,5,7,c;part"],
)
def test_no_record_of_the_kernel(line: bytes) -> None:
    assert parse(line) is None


@given(st.binary(max_size=300))
def test_parse_never_raises(line: bytes) -> None:
    record = parse(line)
    assert record is None or record.text.isprintable()


@given(st.binary(max_size=200).map(lambda b: b"4,1,2,-;" + b))
def test_text_is_one_printable_line(line: bytes) -> None:
    record = parse(line)
    assert record is not None
    assert record.text.isprintable()


def test_fifo_records_in_pieces(fifo: Path) -> None:
    follower = Follower(os.fspath(fifo), "boot")
    assert follower.state is None
    assert follower.read() == []
    write(fifo, b"6,1,2,-;one\n6,2,3,-;tw")
    assert texts(follower.read()) == ["one"]
    write(fifo, b"o\n continuation=1\n30,3,4,-;from user space\n6,1,5,-;sequences start again\nnonsense\n")
    records = follower.read()
    assert texts(records) == ["two", "sequences start again"]
    assert {r.boot_id for r in records} == {"boot"}
    follower.close()


def test_fifo_survives_its_removal_and_return(fifo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlead.host.kmsg._RETRY_SECONDS", 0.0)
    follower = Follower(os.fspath(fifo))
    fifo.unlink()
    assert follower.read() == []
    assert follower.state is not None
    assert "No such file" in follower.state.detail
    assert follower.fileno() == -1
    os.mkfifo(fifo)
    assert follower.read() == []
    assert follower.state is None
    write(fifo, b"6,1,2,-;back\n")
    assert texts(follower.read()) == ["back"]
    other = fifo.with_name("other")
    os.mkfifo(other)
    os.replace(other, fifo)
    follower.read()
    write(fifo, b"6,1,2,-;replaced\n")
    assert texts(follower.read()) == ["replaced"]
    follower.close()


def test_endless_line_is_dropped(fifo: Path) -> None:
    follower = Follower(os.fspath(fifo))
    for _ in range(4):
        write(fifo, b"6,1,2,-;" + b"x" * 10000)
        assert follower.read() == []
    write(fifo, b"\n6,1,2,-;next\n")
    assert texts(follower.read()) == ["next"]
    follower.close()


def test_flood_loses_nothing_and_is_taken_in_batches(fifo: Path) -> None:
    follower = Follower(os.fspath(fifo))
    total = 30000
    lines = [b"6,%d,%d,-;record %d\n" % (i, i, i) for i in range(total)]

    def flood() -> None:
        with open(fifo, "wb") as f:
            f.writelines(lines)

    writer = threading.Thread(target=flood)
    writer.start()
    got: list[int] = []
    while len(got) < total:
        batch = follower.read()
        assert len(batch) <= BATCH_RECORDS + 65536 // 16
        got += [r.sequence for r in batch]
    writer.join()
    assert got == list(range(total))
    follower.close()


def test_recorded_file_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_bytes(b"6,1,2,-;one\n6,2,3,-;two")
    follower = Follower(os.fspath(path))
    assert texts(follower.read()) == ["one", "two"]
    assert follower.read() == []
    assert follower.fileno() == -1
    follower.close()


@pytest.mark.parametrize("make", [lambda p: None, lambda p: p.mkdir()])
def test_no_source_is_a_state_not_an_error(tmp_path: Path, make: object) -> None:
    path = tmp_path / "kmsg"
    make(path)  # type: ignore[operator]
    follower = Follower(os.fspath(path))
    assert follower.read() == []
    assert follower.state is not None
    assert follower.state.detail.startswith(os.fspath(path))
    follower.close()


@pytest.mark.root
@pytest.mark.skipif(not os.access("/dev/kmsg", os.R_OK), reason="/dev/kmsg cannot be read here")
def test_cursor_on_the_real_device() -> None:
    first = Follower("/dev/kmsg", "boot")
    seen: list[KernelRecord] = []
    while batch := first.read():
        seen += (record for record in batch if not is_ours(record))  # ours has the number of the one that it follows
    first.close()
    assert seen, "the kernel has said nothing"
    numbers = [r.sequence for r in seen]
    assert numbers == sorted(set(numbers))
    middle = seen[len(seen) // 2].sequence
    second = Follower("/dev/kmsg", "boot", cursor=middle)
    rest: list[KernelRecord] = []
    while batch := second.read():
        rest += (record for record in batch if not is_ours(record))
    second.close()
    assert [r.sequence for r in rest][: len(seen)] == [n for n in numbers if n > middle][: len(rest)]
    assert second.overruns == 0


CRASH = "import ctypes, sys; ctypes.CDLL(None).prctl(15, sys.argv[1].encode(), 0, 0, 0); ctypes.string_at(0)"


@pytest.mark.root
@pytest.mark.skipif(not os.access("/dev/kmsg", os.R_OK), reason="/dev/kmsg cannot be read here")
def test_no_process_that_crashes_writes_a_record_that_the_agent_sees() -> None:
    """On this machine's kernel: names that begin like a driver's message, and one that begins with printk's own marks."""
    fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    os.lseek(fd, 0, os.SEEK_END)
    crashed = []
    for name in ("EDAC MC0: 1 UE ", "XFS (sda1): x", "\x01cNVRM: Xid\n(P", "INFO: task x:1 "):
        crashed.append(process := subprocess.Popen([sys.executable, "-c", CRASH, name]))
        process.wait(timeout=60)
    numbers = [f"[{process.pid}]: segfault at".encode() for process in crashed]
    raw: list[bytes] = []
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline and not all(any(n in line for line in raw) for n in numbers):
        try:
            raw.append(os.read(fd, 8192))
        except BlockingIOError:
            time.sleep(0.02)
    os.close(fd)
    told = [line for line in raw if any(n in line for n in numbers)]
    if not told:
        pytest.skip("this kernel does not report crashes (debug.exception-trace), or has reported too many")
    assert [parse(line, names_devices=True) for line in told] == [None] * len(told)


class Device:
    """A character device that gives records as /dev/kmsg does, one to each read: a terminal without any processing."""

    def __init__(self) -> None:
        self._kernel, agent = os.openpty()
        tty.setraw(agent)
        self.follower = Follower(os.ttyname(agent), "boot")
        os.close(agent)
        self._sequence = 0

    def says(self, text: str, *more: str, flag: str = "-") -> list[str]:
        self._sequence += 1
        os.write(self._kernel, "\n".join([f"4,{self._sequence},7,{flag};{text}", *more, ""]).encode())
        return texts(self.follower.read())

    def close(self) -> None:
        self.follower.close()
        os.close(self._kernel)


@pytest.mark.parametrize(
    ("text", "device"),
    [
        ("nvme nvme0: controller is down; will reset: CSTS=0xffffffff", "c237:0"),
        ("nvme nvme0: Removing after probe failure status: -19", "c237:0"),
        ("pcieport 0000:15:01.0: AER: Uncorrected (Fatal) error received: 0000:1b:00.0", "+pci:0000:15:01.0"),
        ("nvidia 0000:1b:00.0: AER: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer", "+pci:0000:1b:00.0"),
        ("pcieport 0000:15:01.0: DPC: containment event, status:0x1f01 source:0x0000", "+pci:0000:15:01.0"),
        ("mlx5_core 0000:5e:00.0 ibp94s0: Link down", "+pci:0000:5e:00.0"),
    ],
)
def test_what_a_driver_says_of_its_device_comes_with_the_device(text: str, device: str, fifo: Path) -> None:
    """The kernel names the device of what dev_printk() prints; nothing that a user makes it print has one."""
    kernel = Device()
    assert kernel.says(text, " SUBSYSTEM=x", f" DEVICE={device}") == [text]
    assert kernel.says(text) == [], "no device: not the driver's"
    assert kernel.says(text, " SUBSYSTEM=x") == []
    assert kernel.says("NVRM: Xid (PCI:0000:1b:00): 79, x") == ["NVRM: Xid (PCI:0000:1b:00): 79, x"], "printed without a device"
    kernel.close()
    follower = Follower(os.fspath(fifo), "boot")
    write(fifo, f"4,1,7,-;{text}\n SUBSYSTEM=x\n DEVICE={device}\n4,2,7,-;{text}\n".encode())
    assert texts(follower.read()) == [text, text], "a FIFO's writer may hand no devices on: nothing is lost for that"
    follower.close()


def test_what_is_dropped_counts_as_read(fifo: Path) -> None:
    kernel = Device()
    assert kernel.says("evil[1]: segfault at 0 ip 0 sp 0 error 4 in x[1+2]") == []
    assert kernel.says("a part", flag="c") == []
    assert kernel.says("true") == ["true"]
    assert (kernel.follower.overruns, kernel.follower.cursor) == (0, 3)
    kernel.close()
