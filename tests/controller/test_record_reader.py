"""What nodes send is read in a process that can do nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.controller.record_reader import FRAME_MAX, RecordReader, records_in
from fairlead.jobs.usage_record import encoded
from tests.jobs.job_reports import record_of

AGENT = Path(__file__).resolve().parents[2] / "agent"
#: Tried by a sealed process. Each line has to fail with PermissionError.
ATTEMPTS = {
    "read a file": "open('/etc/passwd')",
    "write a file": "os.open('/tmp/x', os.O_CREAT | os.O_WRONLY)",
    "reach munge": "socket.socket(socket.AF_UNIX)",
    "reach slurmctld": "socket.socket(socket.AF_INET)",
    "start a program": "os.execv('/bin/true', ['true'])",
    "fork": "os.fork()",
    "kill": "os.kill(os.getppid(), 0)",
    "look at files": "os.stat('/')",
    "trace": "ctypes.get_errno() if libc.ptrace(16, os.getppid(), 0, 0) == 0 else refused()",
}


@pytest.mark.parametrize("what", ATTEMPTS)
def test_a_sealed_process_cannot(what: str) -> None:
    program = f"""
import ctypes, os, socket, sys
from fairlead.controller.sealed import seal
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace
def refused():
    raise PermissionError
seal()
try:
    {ATTEMPTS[what]}
except PermissionError:
    sys.stdout.write("refused"); sys.stdout.flush(); os._exit(0)
sys.stdout.write("done"); sys.stdout.flush(); os._exit(1)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": str(AGENT)}, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.returncode) == ("refused", 0), done.stderr


def test_records_come_back_and_what_is_none_is_named() -> None:
    text = (
        b"==> /var/lib/fairlead/usage/17-1.json <==\n" + encoded(record_of()) + b"\n" + b"{torn\n" + encoded(record_of("gpu002"))
    )
    with RecordReader() as reader:
        found = reader.read(text)
        assert [record.node for record in found.records] == ["gpu001", "gpu002"]
        assert found.records[0] == record_of()
        assert found.troubles == ("record 2 is torn: its end is missing",)
        assert reader.read(b"").records == ()


def test_an_answer_that_is_too_long_is_not_read() -> None:
    with RecordReader() as reader:
        assert reader.read(b"x" * (FRAME_MAX + 1)).troubles == ("it is too long",)
        assert reader.read(encoded(record_of())).records


def test_a_reader_that_was_killed_is_started_again() -> None:
    with RecordReader() as reader:
        assert reader.read(encoded(record_of())).records
        assert reader._process is not None
        reader._process.kill()
        reader._process.wait()
        assert reader.read(encoded(record_of())).troubles
        assert reader.read(encoded(record_of())).records


@given(st.binary(max_size=500))
@settings(max_examples=200)
def test_no_text_breaks_the_reader(text: bytes) -> None:
    found = records_in(text)
    assert not found.records and len(found.troubles) <= 20
