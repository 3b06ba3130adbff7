"""What each GPU did, as the agent adds it up over sweeps of the real worker on the simulated library."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.host import gpu
from fairlead.host.activity_sums import ActivitySums
from fairlead.host.gather import gather
from fairlead.host.nvml import Worker
from fairlead.host.root import Root
from fairlead.host.tree_snapshot import snapshot
from fairlead.model.facts import Gpu, Missing
from fairlead.model.gpu_activity import GpuActivity
from tests.host.conftest import simulate
from tests.lab.faults import Faults
from tests.lab.machines import read_nvml
from tests.lab.trees import MACHINES

FIRST = "0000:1b:00.0"


class Agent:
    """The worker and the sums, as the agent has them."""

    def __init__(self) -> None:
        self.worker = Worker(20)
        self.sums = ActivitySums()
        self.raw: Any = None
        self.sweeps: list[tuple[float, float]] = []  # when each began and ended: a busy machine may stop it anywhere between

    def sweep(self, *, closely: bool = True) -> tuple[Gpu, ...]:
        began = time.monotonic()
        self.worker.start_sweep(closely=closely)
        while (result := self.worker.poll()) is None:
            select.select([fd for fd in [self.worker.fileno()] if fd >= 0], [], [], 0.02)
        self.raw = result.raw
        self.sweeps.append((began, time.monotonic()))
        found = gpu.gpus(result.raw)
        assert isinstance(found, tuple), found
        return self.sums.add(found, result.raw, time.monotonic())

    def activities(self) -> list[GpuActivity]:
        found = [g.activity for g in self.sweep()]
        assert all(isinstance(a, GpuActivity) for a in found)
        return found  # type: ignore[return-value]

    def is_sum(self, value: object, rate: float, slack: float = 0.0) -> bool:
        """Whether it is the sum of ``rate`` per second from some moment of the first sweep to some moment of the last one.
        ``slack``: so much may be missing or too much at either end."""
        (began, ended), (last_began, last_ended) = self.sweeps[0], self.sweeps[-1]
        assert isinstance(value, float | int), value
        least, most = 0.98 * rate * (last_began - ended), 1.02 * rate * (last_ended - began)
        return least - slack <= value <= most + slack


@pytest.fixture
def agent(faults: Faults) -> Iterator[Agent]:
    agent = Agent()
    yield agent
    agent.worker.close()


@pytest.fixture
def agent_of(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], tuple[Agent, Faults]]]:
    made: list[Agent] = []

    def make(tree: str) -> tuple[Agent, Faults]:
        faults = simulate(tree, library, tmp_path, monkeypatch)
        made.append(Agent())
        return made[-1], faults

    yield make
    for agent in made:
        agent.worker.close()


def percent_of(activity: GpuActivity, name: str) -> float:
    """The sum ``name`` in percent of the time that it covers."""
    value = getattr(activity, f"{name}_seconds")
    assert isinstance(value, float), value
    return 100 * value / (activity.measured_seconds if name == "busy" else activity.gpm_seconds)


def test_busy_sm_tensor_memory_energy_and_bytes_of_real_and_of_faked_work(agent: Agent, faults: Faults) -> None:
    faults.work(0, "busy")
    faults.work(1, "fake")
    faults.work(2, "busy", 500, 1000)
    time.sleep(0.3)
    agent.sweep()
    for _ in range(2):
        time.sleep(2)
        agent.sweep(closely=False)
    real, fake, half, idle, *_ = agent.activities()
    for activity, busy, sm, tensor, dram in (
        (real, 100, 80, 40, 50),
        (fake, 100, 1, 0, 0),
        (half, 50, 40, 20, 25),
        (idle, 0, 0, 0, 0),
    ):
        found = [percent_of(activity, n) for n in ("busy", "sm_active", "tensor_active", "dram_active")]
        assert found == pytest.approx([busy, sm, tensor, dram], abs=12 if activity is half else 1)
        assert activity.measured_seconds > 3 and agent.is_sum(activity.gpm_seconds, 1) and activity.spot_seconds == 0
    assert agent.is_sum(real.energy_joules, 600)
    assert idle.energy_joules == 0, "the simulated counter of a GPU without a load stands still"
    for name, rate in (("pcie_transmit", 1e9), ("pcie_receive", 1e9), ("nvlink_transmit", 1e11), ("nvlink_receive", 1e11)):
        assert agent.is_sum(getattr(real, f"{name}_bytes"), rate)
        assert getattr(fake, f"{name}_bytes") == 0


def test_the_worker_sends_sums_and_only_in_close_sweeps(agent: Agent, faults: Faults) -> None:
    agent.sweep()
    close = agent.raw["gpus"][0]["activity"]
    time.sleep(0.4)
    agent.sweep(closely=False)
    assert agent.raw["gpus"][0]["activity"] is close
    assert all(isinstance(v, int) or v.keys() == {"error"} for v in close.values())


def test_a_gpu_before_hopper_has_no_gpm_and_that_is_not_0(agent_of: Callable[[str], tuple[Agent, Faults]]) -> None:
    agent, faults = agent_of("hgx-a100")
    faults.work(0, "busy")
    agent.sweep()
    time.sleep(1)
    found = agent.activities()[0]
    assert percent_of(found, "busy") > 90 and found.gpm_seconds == 0
    for value in (found.sm_active_seconds, found.tensor_active_seconds, found.dram_active_seconds):
        assert isinstance(value, Missing) and "NOT_SUPPORTED" in value.detail


def test_without_nvlinks_there_are_no_bytes_of_them(agent_of: Callable[[str], tuple[Agent, Faults]]) -> None:
    agent, _ = agent_of("l40s-pcie")
    found = agent.activities()[0]
    assert isinstance(found.nvlink_transmit_bytes, Missing) and found.pcie_transmit_bytes == 0


def test_nvlink_5_counts_each_link(agent: Agent, faults: Faults) -> None:
    for link in range(18):
        faults.set(0, f"nvlink.{link}.version", 5)
    faults.work(0, "busy")
    before = agent.activities()[0]
    time.sleep(1)
    after = agent.activities()[0]
    assert before.nvlink_transmit_bytes == 0
    assert agent.is_sum(after.nvlink_receive_bytes, 1e11)


def test_a_driver_without_samples_leaves_the_spot_value_and_marks_it(agent: Agent, faults: Faults) -> None:
    faults.work(0, "busy")
    faults.error(0, "nvmlDeviceGetSamples", 3)
    time.sleep(0.3)
    agent.sweep()
    for _ in range(3):
        time.sleep(0.3)
        agent.sweep(closely=False)
    found = agent.activities()[0]
    assert percent_of(found, "busy") == 100 and found.spot_seconds == found.measured_seconds > 0.8


def test_a_utilisation_that_nobody_tells_is_a_gap(agent: Agent, faults: Faults) -> None:
    faults.error(0, "nvmlDeviceGetSamples", 3)
    faults.error(0, "nvmlDeviceGetUtilizationRates", 3)
    agent.sweep()
    time.sleep(0.5)
    found = agent.activities()[0]
    assert isinstance(found.busy_seconds, Missing) and found.measured_seconds == 0 and found.gap_seconds > 0.4


def test_lost_samples_are_a_gap_and_then_each_sweep_reads_them(agent: Agent, faults: Faults) -> None:
    faults.set(0, "samples.entries", 6)  # one second
    faults.work(0, "busy")
    agent.sweep()
    time.sleep(4.5)
    lost = agent.activities()[0]
    assert lost.gap_seconds > 3 and lost.measured_seconds < 1.5
    assert agent.is_sum(lost.gap_seconds + lost.measured_seconds, 1, slack=1 / 6), "the newest sample is up to 1/6 s old"
    faults.set(0, "samples.entries", 24)  # four seconds: the last sweep alone does not find all
    lost = agent.activities()[0]  # on a busy machine, more was lost before the buffer grew
    begun = time.monotonic()
    while time.monotonic() < begun + 4.6:
        time.sleep(0.4)
        agent.sweep(closely=False)
    found = agent.activities()[0]
    assert found.gap_seconds == lost.gap_seconds and found.measured_seconds - lost.measured_seconds > 4.2


def test_a_reload_of_the_driver_is_a_gap_in_the_energy_and_no_fall(agent: Agent, faults: Faults) -> None:
    faults.set(0, "power.energy_millijoules", 9_000_000)
    faults.work(0, "busy")
    agent.sweep()
    time.sleep(0.5)
    before = agent.activities()[0]
    faults.reload()
    time.sleep(0.5)
    after, again = agent.activities()[0], agent.activities()[0]
    assert after.energy_joules == before.energy_joules and after.energy_gap_seconds > 0.4  # type: ignore[operator]
    assert after.energy_counter_joules < 8000 < before.energy_counter_joules  # type: ignore[operator]
    assert again.energy_joules > after.energy_joules and again.energy_gap_seconds == after.energy_gap_seconds  # type: ignore[operator]
    assert after.pcie_transmit_bytes == before.pcie_transmit_bytes


def test_the_sums_go_on_over_a_worker_that_was_killed(agent: Agent, faults: Faults) -> None:
    faults.work(0, "busy")
    agent.sweep()
    time.sleep(1.5)
    before = agent.activities()[0]
    assert agent.worker.pid is not None
    os.kill(agent.worker.pid, signal.SIGKILL)
    while True:
        agent.worker.hurry()
        agent.worker.start_sweep(closely=True)
        while (result := agent.worker.poll()) is None:
            time.sleep(0.02)
        if isinstance(result.raw, dict):
            break
    time.sleep(1.5)
    after = agent.activities()[0]
    assert after.measured_seconds > before.measured_seconds > 1 and percent_of(after, "busy") > 99
    assert after.gap_seconds > before.gap_seconds == 0
    assert agent.is_sum(after.energy_joules, 600)
    assert after.energy_gap_seconds == 0


def test_a_lost_gpu_keeps_its_sums_and_its_gap_grows(agent: Agent, faults: Faults) -> None:
    faults.work(3, "busy")
    agent.sweep()
    time.sleep(1)
    before = agent.activities()[3]
    faults.lost(3)
    time.sleep(0.5)
    first, second = agent.activities()[3], agent.activities()[3]
    assert first.busy_seconds == second.busy_seconds == before.busy_seconds
    assert second.gap_seconds > first.gap_seconds > before.gap_seconds
    assert first.energy_joules == before.energy_joules


def test_a_call_for_samples_or_gpm_that_hangs_is_named(agent: Agent, faults: Faults) -> None:
    agent.sweep()
    for call in ("nvmlDeviceGetSamples", "nvmlGpmSampleGet", "nvmlGpmMetricsGet"):
        time.sleep(0.2)
        faults.hang(call, None if call == "nvmlGpmMetricsGet" else 5)
        agent.worker.deadline_seconds = 1.0
        until = time.monotonic() + 60
        while (result := agent.worker.sweep()).stuck is None or result.stuck.call != call:  # it is on its way there
            assert time.monotonic() < until, result
        faults.lift()
        assert isinstance(result.raw, Missing)
        assert call == "nvmlGpmMetricsGet" or result.stuck.gpu == gpu.gpus(agent.raw)[5].pci  # type: ignore
        agent.worker.deadline_seconds = 20.0
        while isinstance(agent.worker.sweep().raw, Missing):
            time.sleep(0.02)


def test_each_instance_has_its_own_gpm_sums_and_no_other(agent: Agent, faults: Faults) -> None:
    agent.worker.set(FIRST, "mig", "3g.40gb,1g.10gb")
    faults.work(0, "busy", 0, 0, 1)
    agent.sweep()
    time.sleep(1)
    found = agent.sweep()[0]
    assert isinstance(found.mig_devices, tuple)
    large, small = (device.activity for device in found.mig_devices)
    assert isinstance(large, GpuActivity) and isinstance(small, GpuActivity)
    assert [percent_of(a, "sm_active") for a in (large, small)] == pytest.approx([80, 0], abs=1)
    for value in (large.busy_seconds, large.energy_joules, large.pcie_transmit_bytes):
        assert isinstance(value, Missing)
    assert isinstance(found.activity, GpuActivity) and isinstance(found.activity.busy_seconds, Missing)
    assert found.activity.gap_seconds > 0.8, "NVML gives no utilisation of a GPU that is divided"


def test_an_instance_that_was_made_again_has_the_sums_of_its_own_instance(agent: Agent, faults: Faults) -> None:
    """It may have the UUID of the instance before, as here, and is another GPU instance."""
    agent.worker.set(FIRST, "mig", "3g.40gb@0,1g.10gb@4")
    before = agent.sweep()[0].mig_devices
    changed = time.monotonic()
    agent.worker.set(FIRST, "mig", "3g.40gb@0,2g.20gb@4")
    after = agent.sweep()[0].mig_devices
    assert isinstance(before, tuple) and isinstance(after, tuple)
    assert before[1].uuid == after[1].uuid and (before[1].gi, after[1].gi) == (11, 5)
    faults.work(0, "busy", 0, 0, 5)
    agent.sweep()
    time.sleep(1)
    found = agent.sweep()[0].mig_devices
    assert isinstance(found, tuple)
    activity = found[1].activity
    assert isinstance(activity, GpuActivity) and activity.gpm_seconds < time.monotonic() - changed
    assert isinstance(activity.sm_active_seconds, float) and activity.sm_active_seconds > 0.5


def test_a_machine_tree_has_no_activity() -> None:
    root = Root(str(MACHINES / "hgx-h100"))
    node = gather(root, read_nvml(MACHINES / "hgx-h100"))
    assert isinstance(node.gpus, tuple) and all(isinstance(g.activity, Missing) for g in node.gpus)


def test_a_metric_without_a_number_is_absent_and_a_pair_without_all_numbers_does_not_count(agent: Agent, faults: Faults) -> None:
    for number in (0, 1):
        faults.work(number, "busy")
    faults.set(0, "gpm.nan", 5)
    agent.sweep()
    time.sleep(0.4)
    never, before = agent.activities()[:2]
    assert isinstance(never.tensor_active_seconds, Missing) and percent_of(never, "sm_active") == pytest.approx(80, abs=1)
    faults.set(1, "gpm.nan", 10)
    time.sleep(0.4)
    without = agent.activities()[1]
    assert (without.gpm_seconds, without.sm_active_seconds) == (before.gpm_seconds, before.sm_active_seconds) != (0, 0)
    faults.set(1, "gpm.nan", 0)
    time.sleep(0.4)
    again = agent.activities()[1]
    assert again.gpm_seconds > before.gpm_seconds and percent_of(again, "dram_active") == pytest.approx(50, abs=1)


def test_a_snapshot_has_no_sums_of_this_process(agent: Agent, faults: Faults, tmp_path: Path) -> None:
    agent.worker.set(FIRST, "mig", "3g.40gb")
    agent.sweep()
    assert "activity" in agent.raw["gpus"][0] and "activity" in agent.raw["gpus"][0]["mig_devices"][0]
    snapshot(Root(str(MACHINES / "hgx-h100")), agent.raw, tmp_path / "tree", redact=True)
    assert '"activity"' not in (tmp_path / "tree/nvml.json").read_text()
    assert '"mig_devices"' in (tmp_path / "tree/nvml.json").read_text()
