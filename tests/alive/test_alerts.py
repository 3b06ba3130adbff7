"""The alert rules about sources that do not answer, on series as the agent writes them (promtool test rules)."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

RULES = Path(__file__).resolve().parents[2] / "templates/usr/share/fairlead/alerts.yml"
FRESH = "0+60x60"  # a moment that goes on with the clock
STOPPED = "0+60x10 600x50"


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
@pytest.mark.parametrize(
    ("series", "expected"),
    [
        ({'fairlead_source_timestamp_seconds{source="nvml"}': FRESH, "fairlead_sweep_timestamp_seconds": FRESH}, ()),
        ({'fairlead_source_timestamp_seconds{source="nvml"}': STOPPED, "fairlead_sweep_timestamp_seconds": FRESH},
         ("FairleadSourceSilent",)),
        ({'fairlead_source_timestamp_seconds{source="nvml"}': STOPPED, "fairlead_sweep_timestamp_seconds": STOPPED}, ()),
        ({"fairlead_kernel_records_lost_total": "0x10 7x50"}, ("FairleadKernelRecordsLost",)),
        ({"fairlead_kernel_records_lost_total": "7x60"}, ()),
        ({"fairlead_history_up": "1x5 0x55"}, ("FairleadHistoryInMemory",)),
        ({"fairlead_history_up": "1x10 0 1x40"}, ()),
    ],
)  # fmt: skip
def test_silent_sources(tmp_path: Path, series: dict[str, str], expected: tuple[str, ...]) -> None:
    rules = ("FairleadSourceSilent", "FairleadKernelRecordsLost", "FairleadHistoryInMemory")
    wanted = [f"count(ALERTS{{alertname='{name}',alertstate='firing'}})" for name in rules]
    probes = [
        {"expr": expr, "eval_time": "25m", "exp_samples": [{"labels": "{}", "value": 1}] if name in expected else []}
        for name, expr in zip(rules, wanted, strict=True)
    ]
    made = [{"series": f"{name[:-1]},instance='n1'}}" if name.endswith("}") else f"{name}{{instance='n1'}}", "values": values}
            for name, values in series.items()]  # fmt: skip
    test = {"rule_files": [str(RULES)], "evaluation_interval": "1m",
            "tests": [{"interval": "1m", "input_series": made, "promql_expr_test": probes}]}  # fmt: skip
    (tmp_path / "test.yml").write_text(json.dumps(test))
    done = subprocess.run(["promtool", "test", "rules", "test.yml"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
