"""The alert rules, on series as the agent and Slurm write them (promtool test rules)."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from fairlead.xid.catalogue import ENTRIES

RULES = Path(__file__).resolve().parents[2] / "templates/usr/share/fairlead/alerts.yml"
FRESH = "0+60x60"  # a moment that goes on with the clock
STOPPED = "0+60x10 600x50"


promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")


@promtool
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


def fires(folder: Path, rule: str, series: dict[str, str], labels: list[str]) -> None:
    """Hold what an alert fires for, as its labels, 25 minutes into the series."""
    (folder / "test.yml").write_text(json.dumps({
        "rule_files": [str(RULES)], "evaluation_interval": "1m",
        "tests": [{
            "interval": "1m",
            "input_series": [{"series": name, "values": values} for name, values in series.items()],
            "promql_expr_test": [{
                "expr": f"sum by (instance, node, xid, pci) (ALERTS{{alertname='{rule}',alertstate='firing'}})",
                "eval_time": "25m",
                "exp_samples": [{"labels": f"{{{each}}}", "value": 1} for each in labels],
            }],
        }],
    }))  # fmt: skip
    done = subprocess.run(["promtool", "test", "rules", "test.yml"], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


TARGET = 'up{{fairlead="expected",job="{job}",instance="{instance}"}}'
BUILT = 'fairlead_build_info{{version="1",job="{job}",instance="{instance}"}}'


@promtool
@pytest.mark.parametrize(
    ("job", "up"),
    [
        ("node", "1x60"),  # node_exporter answers, and has no file of an agent's
        ("fairlead", "0x60"),  # nothing listens at the agent's port
    ],
)
def test_an_agent_that_never_starts_is_missed_by_the_scrapes_list(tmp_path: Path, job: str, up: str) -> None:
    series = {
        TARGET.format(job=job, instance="n1"): up,
        TARGET.format(job=job, instance="n2"): "1x60",
        BUILT.format(job=job, instance="n2"): "1x60",
        'up{job="node",instance="login1"}': "1x60",  # no agent is expected there
        TARGET.format(job=job, instance="n3"): "1x60",
        BUILT.format(job=job, instance="n3"): "1x20 _x40",  # gone, not yet for 10 minutes
    }
    fires(tmp_path, "FairleadAgentMissing", series, ['instance="n1"'])


@promtool
def test_an_agent_that_never_starts_is_missed_by_slurms_list(tmp_path: Path) -> None:
    slurm = 'slurm_node_gpus{{node="{}",instance="ctl:6817"}}'
    series = {
        slurm.format("gpu1"): "8x60",
        slurm.format("gpu2"): "8x60",
        slurm.format("cpu1"): "0x60",
        'fairlead_node_info{node="gpu2",instance="gpu2:9100"}': "1x60",
    }
    fires(tmp_path, "FairleadAgentMissingInSlurm", series, ['instance="ctl:6817", node="gpu1"'])


@promtool
@pytest.mark.parametrize(
    ("values", "fired"),
    [
        ("_x20 1x39", True),  # the first one of its code: its series begins with it
        ("3x20 4x39", True),
        ("4x60", False),  # long ago
        ("9x20 1x39", True),  # after a reboot, where the count begins anew
        ("_x5 2x54", False),  # more than 15 minutes ago
    ],
)
def test_a_new_xid_is_told_also_the_first_of_its_code(tmp_path: Path, values: str, fired: bool) -> None:
    name = 'pci="0000:1b:00.0",index="0",uuid="GPU-a",instance="n1"'
    series = {f'fairlead_xids_total{{{name},xid="79"}}': values, f'fairlead_xids_total{{{name},xid="31"}}': "0x20 50x39"}
    fires(tmp_path, "FairleadXid", series, ['instance="n1", xid="79", pci="0000:1b:00.0"'] if fired else [])


def test_the_alert_leaves_out_the_xids_of_jobs_and_no_other() -> None:
    rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    (expr,) = [rule["expr"] for rule in rules if rule.get("alert") == "FairleadXid"]
    (said,) = re.findall(r'new15m\{xid!~"([0-9|]+)"\}', expr)
    assert {int(code) for code in said.split("|")} == {c for c, entry in ENTRIES.items() if entry.blames == "application"}


NOW = "0+60x60"  # a time stamp that goes on with the clock
BROKEN = {
    "FairleadVerdictExpired": {"fairlead_verdict_expires_timestamp_seconds": "300x60", "fairlead_sweep_timestamp_seconds": NOW},
    "FairleadSweepSlow": {"fairlead_sweep_duration_seconds": "75x60"},
    "FairleadNvmlStuck": {"fairlead_nvml_worker_stuck": "1x60"},
    "FairleadNvmlWorkerCrashes": {"fairlead_nvml_worker_crashes_total": "0+1x60"},
    "FairleadSlurmctldSilent": {"fairlead_slurm_up": "0x60"},
}
WELL = {
    "FairleadVerdictExpired": {
        "fairlead_verdict_expires_timestamp_seconds": "300+60x60",
        "fairlead_sweep_timestamp_seconds": NOW,
    },
    "FairleadSweepSlow": {"fairlead_sweep_duration_seconds": "75x3 1x56"},
    "FairleadNvmlStuck": {"fairlead_nvml_worker_stuck": "1x5 0x54"},
    "FairleadNvmlWorkerCrashes": {"fairlead_nvml_worker_crashes_total": "5x10 6x49"},
    "FairleadSlurmctldSilent": {"fairlead_slurm_up": "0x5 1x54"},
}


@promtool
@pytest.mark.parametrize("rule", BROKEN)
def test_a_broken_promise_of_the_agent_is_told_and_its_twin_is_not(tmp_path: Path, rule: str) -> None:
    fires(tmp_path, rule, {f'{name}{{instance="n1"}}': values for name, values in BROKEN[rule].items()}, ['instance="n1"'])
    fires(tmp_path, rule, {f'{name}{{instance="n1"}}': values for name, values in WELL[rule].items()}, [])


@promtool
@pytest.mark.heavy  # promtool computes a day in steps of a minute
def test_alerts_that_wait_for_an_hour_or_a_day(tmp_path: Path) -> None:
    series = {
        'fairlead_nvml_released{instance="n1"}': "1x1500",
        'fairlead_findings{instance="n1",check="ecc",level="unknown",device="0000:1b:00.0"}': "1x1500",
        'fairlead_findings{instance="n2",check="setting.sysctl",level="warn",device=""}': "1x1500",
        'fairlead_findings{instance="n3",check="setting.sysctl",level="warn",device=""}': "1x1000 _x500",
        'fairlead_document_generation{instance="n1",profile="h100"}': "6x1500",
        'fairlead_document_generation{instance="n2",profile="h100"}': "7x1500",
        'fairlead_document_generation{instance="n3",profile="a100"}': "2x1500",
    }
    wanted = {
        "FairleadNvmlReleased": ["n1"],
        "FairleadUnreadable": ["n1"],
        "FairleadDrift": ["n2"],
        "FairleadDocumentBehind": ["n1"],
    }
    test = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [{
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [{
            "expr": f"sum by (instance) (ALERTS{{alertname='{rule}',alertstate='firing'}})", "eval_time": "1460m",
            "exp_samples": [{"labels": f'{{instance="{name}"}}', "value": 1} for name in names],
        } for rule, names in wanted.items()],
    }]}  # fmt: skip
    (tmp_path / "test.yml").write_text(json.dumps(test))
    done = subprocess.run(["promtool", "test", "rules", "test.yml"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_a_runbook_and_each_runbook_an_alert() -> None:
    """A runbook is the section of docs/how-to/alerts.md with the alert's name. The table of severities is that of the rules."""
    page = (RULES.parents[4] / "docs/how-to/alerts.md").read_text()
    rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"] if "alert" in rule]
    names = [rule["alert"] for rule in rules]
    assert [r["annotations"]["runbook"] for r in rules] == [f"docs/how-to/alerts.md#{name.lower()}" for name in names]
    sections = dict(re.findall(r"^## (Fairlead\w+)\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))
    assert list(sections) == sorted(names)
    for name, text in sections.items():
        assert all(f"**{part}:**" in text for part in ("What to look at", "What to do")), name
    listed = {name: word for word, row in re.findall(r"^\| (\w+) \| (\[.*) \|$", page, re.MULTILINE)
              for name in re.findall(r"\[(\w+)\]", row)}  # fmt: skip
    assert listed == {rule["alert"]: rule["labels"]["severity"] for rule in rules}
