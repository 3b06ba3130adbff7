"""What the checks of GPUs under load have in common: load that cannot be read, one look, no list of GPUs."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.checks import gpu_clocks, gpu_fabric, gpu_leftovers, gpu_power_brake, gpu_power_limit, gpu_temperature, gpu_throttle
from fairlead.history.memory import History
from fairlead.host.gpu_load_reader import LoadSums
from fairlead.model.check_definition import Past
from fairlead.model.facts import Node, unreadable
from fairlead.model.finding import Level
from tests.checks.loaded import BRAKED, HW_HOT, IDLE, LOW, STEP_SECONDS, judged
from tests.checks.nodes import BOOT, gpu, node


def test_one_look_says_that_it_needs_history() -> None:
    for module, state in ((gpu_throttle, HW_HOT), (gpu_power_brake, BRAKED), (gpu_clocks, LOW)):
        (finding,) = judged(module, gpu(3, **state), past=Past())
        assert finding.needs_history and finding.level is Level.OK
        assert judged(module, gpu(3, **IDLE), past=Past()) == []


def test_what_was_not_watched_is_not_counted() -> None:
    """A machine that slept, or an agent that was stopped: nobody knows what the clocks did."""
    seen = LoadSums()
    hot = tuple(gpu(i, **HW_HOT) for i in range(8))
    for seconds in (0.0, 10.0, 4000.0, 4010.0):
        gpus = seen.add(hot, seconds)
    assert gpus[0].load.seen.busy_seconds == 20.0
    (lost,) = seen.add((gpu(0, lost=True, **HW_HOT),), 4020.0)
    assert lost.load.seen.busy_seconds == 20.0


def test_a_restarted_agent_begins_its_sums_anew() -> None:
    history = History("", BOOT)
    for start in (0.0, 900.0):  # two agents
        seen = LoadSums()
        for number in range(30):
            now = start + number * STEP_SECONDS
            gpus = seen.add(tuple(gpu(i, **(HW_HOT if i == 3 else IDLE)) for i in range(8)), now)
            facts = node(gpus=gpus, uptime_seconds=10000.0 + now)
            history.add_samples(facts.uptime_seconds, gpu_throttle.samples(facts))
    (finding,) = gpu_throttle.check.findings(facts, history.past(), gpu_throttle.Params())
    assert finding.evidence[0].startswith("100 % of ")


def all_missing() -> Node:
    return node(gpus=unreadable("no answer"))


@pytest.mark.parametrize(
    "module", [gpu_throttle, gpu_power_brake, gpu_clocks, gpu_temperature, gpu_power_limit, gpu_fabric, gpu_leftovers]
)
def test_no_gpus_at_all_is_unknown(module: Any) -> None:
    assert [f.level for f in module.check.findings(all_missing(), Past(available=True), module.Params())] == [Level.UNKNOWN]
