"""A node without the hardware of one setting gets all other settings, and a warning that names what is missing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from fairlead.apply import apply
from fairlead.config.document import Document, resolve_layers
from fairlead.errors import ExitCode
from fairlead.host.gather import gather
from fairlead.host.root import Root
from fairlead.judge import judge, reads
from fairlead.model.check_definition import Past
from fairlead.model.facts import unreadable
from fairlead.model.finding import Level
from fairlead.provision import planned_changes
from fairlead.provision.provision_report import ProvisionReport, node_result, text
from tests.lab.trees import MACHINES

pytestmark = pytest.mark.trees

MACHINE = MACHINES / "hgx-h100"
CPUS = "sys/devices/system/cpu/cpu[0-9]*"
#: setting -> (what is missing: a pattern of paths, what the warning names, what the profile says to allow it)
ABSENT = {
    "cpu_governor": (f"{CPUS}/cpufreq", "no CPU has cpufreq", "cpufreq"),
    "cpu_idle": (f"{CPUS}/cpuidle", "no CPU has idle states", "cpuidle"),
    "energy_performance": (f"{CPUS}/cpufreq", "no CPU has energy_performance_preference", "energy_performance"),
    "pcie_aspm": ("sys/module/pcie_aspm", "this kernel has no ASPM policy", "pcie_aspm"),
}


def without(tree: Path, pattern: str) -> Root:
    for path in tree.glob(pattern):
        path.unlink() if path.is_symlink() else shutil.rmtree(path)
    return Root(str(tree))


def document(name: str, **more: Any) -> Document:
    want = {"policy": "powersave"} if name == "pcie_aspm" else {}
    settings = {name: {"mode": "enforce", **want}, "numa_balancing": {}, "transparent_hugepage": {}}
    return resolve_layers("gpu1", [("test", {"settings": settings, **more})])[0]


@pytest.fixture
def tree(memory: Path) -> Path:
    return shutil.copytree(MACHINE, memory / "tree", symlinks=True)


@pytest.mark.parametrize("name", ABSENT)
def test_other_settings_are_made_and_the_run_ends_with_a_warning(name: str, tree: Path) -> None:
    missing, words, _ = ABSENT[name]
    root = without(tree, missing)
    (tree / "proc/sys/kernel/numa_balancing").write_text("1\n")
    report = apply(document(name), root)
    items = {item.setting: item for item in report.items}
    assert items[name].state == "absent" and words in items[name].message
    assert "profile" in items[name].hint, "the next step says how a site allows it"
    assert items["numa_balancing"].state == "changed"
    assert (tree / "proc/sys/kernel/numa_balancing").read_text().strip() == "0"
    assert (report.exit_code, report.failed) == (ExitCode.WARN, 0)


@pytest.mark.parametrize("name", ABSENT)
def test_the_agent_warns_and_never_drains_for_it(name: str, tree: Path) -> None:
    missing, words, _ = ABSENT[name]
    wanted = document(name)
    node = gather(without(tree, missing), unreadable("not asked"), reads=reads(wanted))
    (found,) = judge(wanted, node, Past(available=True), {f"setting.{name}"})
    assert found.level is Level.WARN and words in found.summary


@pytest.mark.parametrize("name", ABSENT)
def test_where_the_profile_allows_it_nothing_is_said(name: str, tree: Path) -> None:
    missing, _, fact = ABSENT[name]
    root = without(tree, missing)
    wanted = document(name, unsupported=[fact])
    node = gather(root, unreadable("not asked"), reads=reads(wanted))
    assert judge(wanted, node, Past(available=True), {f"setting.{name}"}) == ()
    report = apply(wanted, root)
    assert next(i for i in report.items if i.setting == name).state == "not_applicable"
    assert report.exit_code is ExitCode.OK


def test_a_value_that_is_there_on_some_cpus_only_stays_unreadable(tree: Path) -> None:
    root = without(tree, "sys/devices/system/cpu/cpu0/cpufreq")
    (item,) = (i for i in apply(document("cpu_governor", unsupported=["cpufreq"]), root).items if i.setting == "cpu_governor")
    assert item.state == "unreadable", "hardware that some CPUs have is broken, not absent"


def test_provision_and_plan_name_the_setting_and_do_not_call_the_node_failed(tree: Path) -> None:
    import msgspec

    root = without(tree, ABSENT["cpu_governor"][0])
    said = json.loads(msgspec.json.encode(apply(document("cpu_governor"), root)))
    result = node_result("gpu1", "runner_on_ok", "node", {"changes": [], "apply": said})
    report = ProvisionReport(site="test", generation=1, check=False, seconds=1.0, nodes=(result,))
    assert result.state != "failed"
    assert report.exit_code is ExitCode.WARN
    assert "warning: cpu_governor: no CPU has cpufreq" in text(report)
    made = planned_changes.of_result(result)
    assert made.state != "failed" and "warning: cpu_governor" in planned_changes.text([made])


def test_the_admin_host_takes_such_an_answer(tree: Path) -> None:
    import msgspec

    from fairlead.provision import node_answer

    for more in ({}, {"unsupported": ["cpufreq"]}):
        wanted = document("cpu_governor", **more)
        applied = json.loads(msgspec.json.encode(apply(wanted, without(tree, ABSENT["cpu_governor"][0]))))
        line = json.dumps({"changed": True, "changes": [], "apply": applied})
        given = [{"path": "/etc/fairlead/node.json", "content": json.dumps({"node": applied["node"]})}]
        assert node_answer.read(line, given)["apply"]["items"]


def test_a_diff_that_a_node_chose_costs_no_time_and_needs_no_former_text() -> None:
    lines = [f"{n % 120:02x}" for n in range(20_000)]
    for change in ({"after": "x"}, {"before": "\n".join(lines), "after": "\n".join(reversed(lines))}):
        result = node_result("gpu1", "runner_on_ok", "node", {"changes": [{"what": "a", "why": "b"} | change]})
        assert result.state == "changed"
