"""Where the agent cannot write its metrics, the plan says so in one line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fairlead.apply.metrics_folder import HIDDEN, trouble
from fairlead.host.root import Root


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("", ""),
        ("/run/fairlead/metrics.prom", ""),
        ("/run/fairlead/metrics.txt", ""),  # a name that its reader knows
        ("/var/lib/prometheus/node-exporter/fairlead.prom", ""),
        ("/var/lib/prometheus/node-exporter/fairlead.txt", "only files whose name ends in .prom"),
        ("/var/lib/node_exporter/fairlead.prom", "/var/lib/node_exporter: no such folder"),
        ("/tmp/fairlead.prom", "the agent's unit does not see"),
        ("/home/monitor/fairlead.prom", "the agent's unit does not see"),
        ("/homes/fairlead.prom", "/homes: no such folder"),
    ],
)
def test_what_stands_in_the_way_is_said(tmp_path: Path, path: str, words: str) -> None:
    (tmp_path / "var/lib/prometheus/node-exporter").mkdir(parents=True)
    said = trouble(path, "/run/fairlead", Root(str(tmp_path)))
    assert "\n" not in said and bool(said) is bool(words)
    assert words in said


def test_a_read_only_file_system_is_said() -> None:
    mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    fixed = [m for m in mounts if os.path.isdir(m) and os.statvfs(m).f_flag & os.ST_RDONLY and not m.startswith(HIDDEN)]
    if not fixed:
        pytest.skip("no file system is mounted read-only here")
    assert "on a read-only file system" in trouble(f"{fixed[0]}/fairlead.prom", "/run/fairlead", Root("/"))
