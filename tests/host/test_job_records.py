"""The prolog's records of jobs: whatever is in them."""

from __future__ import annotations

import os
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from fairlead.host import job_records


def test_job_records(tmp_path: Path) -> None:
    lines = {
        "1": "1\trunning\t5\t0,1\t7\t-\t-\t.\n",
        "2": "1\tended\t5\t-\t7\t9\toff\t.\n",
        "3": "1\trefused\t5\t-\t7\t-\t-\t.\n",
        "4": "1\trunning\t5\t0",
        "5": "",
        "x": "1\trunning\t5\t0,1\t7\t-\t-\t.\n",
        "6": "2\trunning\t5\t0,1\t7\t-\t-\t.\n",
    }
    for name, text in lines.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "7").symlink_to(tmp_path / "1")
    os.mkfifo(tmp_path / "8")
    found = job_records.scan(str(tmp_path))
    assert (found.running, found.ended, found.refused) == ({1}, {2}, {3})
    job_records.forget(str(tmp_path), found.ended | {99})
    assert not (tmp_path / "2").exists()
    assert job_records.scan(str(tmp_path / "nowhere")) == job_records.Jobs()


@given(st.binary(max_size=300))
def test_any_job_record(data: bytes) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "9").write_bytes(data)
        assert job_records.scan(folder).ended <= {9}
