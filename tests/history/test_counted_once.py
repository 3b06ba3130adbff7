"""Nothing counts twice: the kernel log read again, before this boot, after an acknowledgement, and from NVML as well."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from fairlead.checks.xid import Params, check
from fairlead.history.memory import History
from fairlead.model.check_definition import KernelRecord
from fairlead.model.facts import Node
from fairlead.model.finding import Finding, Level
from fairlead.policy import CheckPolicy, Decision, Now, Order, PolicyState, Rules, acknowledge, decide
from fairlead.policy.policy_state import remembered_findings
from tests.checks.nodes import gpu, node

WHERE = "NVRM: Xid (PCI:0000:1b:00): "
POLICIES = {"xid": CheckPolicy.of(check, Params())}


class Machine:
    """A node's history and policy from boot to boot, as the agent drives them."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)
        self.boot = "11111111-2222-3333-4444-555555555555"
        self.state = PolicyState()
        self.sweeps = 0
        self.node: Node = node()
        self.history = History(self.folder, self.boot)

    def start(self, boot: str = "") -> None:
        """The agent starts again; with ``boot``, after a reboot."""
        self.history.save_state(self.state)
        self.history.close()
        self.boot = boot or self.boot
        self.node = replace(self.node, boot_id=self.boot)
        self.history = History(self.folder, self.boot)
        self.state = self.history.load_state()

    def say(self, *texts: str, first: int = 100) -> int:
        made = [
            KernelRecord(sequence=first + n, seconds=9990.0, priority=3, text=WHERE + text, boot_id=self.boot)
            for n, text in enumerate(texts)
        ]
        return self.history.add_records(made)

    def found(self) -> list[Finding]:
        return list(check.findings(self.node, self.history.past(), Params()))

    def sweep(self, **changes: object) -> Decision:
        self.sweeps += 1
        moment = Now(boot_seconds=10000.0 + 15 * self.sweeps, wall_seconds=1e9 + 15 * self.sweeps, boot_id=self.boot)
        decision = decide(self.found(), POLICIES, self.state, replace(moment, **changes), Rules())
        self.state = decision.state
        return decision


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


FAULTS = ("79, GPU has fallen off the bus.", "95, Uncontained", "149, NETIR Fatal XC0 i0 Link 3 (0x6 0x0)")


@pytest.mark.parametrize("fault", FAULTS)
def test_the_same_records_read_again_are_no_news(machine: Machine, fault: str) -> None:
    assert machine.say(fault, fault) == 2
    before = machine.found()
    assert machine.sweep().order is Order.DRAIN
    machine.state = acknowledge(machine.state, remembered_findings(machine.state))
    assert machine.sweep(drained=False).order is Order.KEEP
    for _ in range(2):
        assert machine.say(fault, fault) == 0  # the log is read from its start, as after a lost cursor
        assert machine.found() == before
        assert machine.sweep().order is Order.KEEP
        machine.start()
        assert machine.found() == before
        assert machine.sweep().order is Order.KEEP
    machine.say(fault, first=200)
    assert machine.sweep().order is Order.DRAIN


def test_what_came_before_this_boot_counts_for_nothing(machine: Machine) -> None:
    machine.say(*FAULTS)
    assert machine.sweep().order is Order.DRAIN
    machine.start("22222222-2222-3333-4444-555555555555")
    assert machine.found() == []
    assert machine.sweep().order is Order.KEEP
    machine.say(FAULTS[0], first=7)  # a new boot numbers its records anew
    assert machine.sweep().order is Order.DRAIN


def test_an_acknowledged_repair_covers_what_the_driver_says_of_it_twice(machine: Machine) -> None:
    """Xid 95, its 154 and NVML's recovery action are one fault; the reset takes the last two back."""
    machine.say("95, Uncontained", "154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)")
    machine.node = replace(node(gpu(0, recovery_action=1)), boot_id=machine.boot)
    assert [f.summary[:7] for f in machine.found() if f.level is Level.DRAIN] == ["Xid 95 ", "Xid 154"]
    assert machine.sweep().order is Order.DRAIN
    machine.state = acknowledge(machine.state, remembered_findings(machine.state))
    machine.say("154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)", first=150)
    assert machine.sweep().order is Order.KEEP  # NVML is asked once a sweep: it may still say 1 here
    machine.node = replace(node(), boot_id=machine.boot)
    assert machine.sweep().order is Order.KEEP
    assert [f.summary[:7] for f in machine.found()] == ["Xid 95 "]  # still told, as acknowledged
    machine.node = replace(node(gpu(0, recovery_action=1)), boot_id=machine.boot)
    machine.say("95, Uncontained", first=160)
    assert machine.sweep().order is Order.DRAIN


def test_good_news_later_takes_back_a_163_and_a_154(machine: Machine) -> None:
    machine.say("163, off", "154, GPU recovery action changed from 0x0 (None) to 0x1 (x)")
    assert len(machine.found()) == 2
    machine.say("162, on", "154, GPU recovery action changed from 0x1 (x) to 0x0 (None)", first=110)
    machine.start()
    assert machine.found() == []


def test_a_job_s_own_faults_never_drain_however_many(machine: Machine) -> None:
    for part in range(5):
        machine.say(*["31, pid=7, name=train, Ch 00000008", "45, pid=7, name=train, Ch 9"] * 100, first=1000 * part + 1)
        assert machine.sweep().order is Order.KEEP
        assert len(machine.found()) == 1
    assert not machine.state.strikes
