"""The agent's service record: written at the first sweep, again after a person's request, and continued by the next agent."""

from __future__ import annotations

from collections.abc import Callable

from fairlead.fleet.service_memory import ServiceMemory, remembered
from fairlead.fleet.service_record import DAY_SECONDS, ServiceRecord, VersionSeen, decoded
from tests.daemon.conftest import XID79, Agent


def record(agent: Agent) -> ServiceRecord:
    return decoded((agent.run_dir / "service-record.json").read_bytes())


def test_the_record_names_the_machine_and_what_is_wrong(agents: Callable[..., Agent]) -> None:
    agent = agents().start()
    agent.until((agent.run_dir / "service-record.json").exists, "a service record")
    first = record(agent)
    assert first.node == "n1" and first.node_class == "hgx-h100" and len(first.cards) == 8 and first.versions[0].checks
    assert len(first.watched) == 1 and first.entries == () and first.findings == ()
    assert {"rows.uncorrected", "pcie.lanes", "power.cap_watts"} <= next(iter(first.values.values())).keys()
    agent.kernel(XID79.format(n=1, us=1))
    agent.until(lambda: any(f["check"] == "xid" for f in agent.status()["findings"]), "the finding")
    agent.end()
    agent.start()
    agent.until(lambda: record(agent).written_unix > first.written_unix, "the record of the next agent")
    second = record(agent)
    assert second.watched[0][0] == first.watched[0][0] and second.cards == first.cards and second.versions == first.versions
    assert len(first.details) == 8 and all(d.vbios and d.part_number and d.serial for d in first.details)
    assert [(x.code, x.count) for x in second.xids] == [("79", 1)]
    (finding,) = [f for f in second.findings if f.check == "xid"]
    assert finding.device == "0000:1b:00.0" and finding.enforced and finding.serial


def test_a_clock_that_went_back_a_year_for_a_while_costs_no_time_that_was_watched() -> None:
    memory, now = ServiceMemory(), 1.8e9

    def sweep(unix: float) -> None:
        nonlocal memory
        memory = remembered(memory, unix, VersionSeen(since_unix=unix), {}, iter(()))

    for second in (0, 600, 1200, 20_000, 20_600):
        sweep(now + second)
    before = memory.watched
    assert before == ((now, now + 1200), (now + 20_000, now + 20_600))
    back = now + 20_700 - 365 * DAY_SECONDS
    for second in (0, 600):
        sweep(back + second)
    assert memory.watched == ((back, back + 600), *before), "in order, and what is to come again is kept"
    sweep(now + 22_000)
    assert memory.watched == ((now, now + 1200), (now + 20_000, now + 22_000)), "what is older than a month goes"
