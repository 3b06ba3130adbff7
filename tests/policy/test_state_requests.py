"""What people ask of the policy's state: exactly what they named, once, and nothing from before a repair counts again."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fairlead.errors import DataError
from fairlead.model.check_definition import KernelRecord, Past, Sample
from fairlead.model.finding import Finding, Level, Mode
from fairlead.policy import CheckPolicy, Decision, Now, Order, PolicyState, Rules, Track, decide, identity
from fairlead.policy.policy_state import Repair, remembered_findings
from fairlead.policy.state_requests import Ack, Clear, Undo, apply, decode, encode, since_repair

BOOT = "b1"
PCI, OTHER, SERIAL = "0000:1b:00.0", "0000:43:00.0", "1651223000001"
POLICIES = {"xid": CheckPolicy(mode=Mode.ENFORCE), "ecc": CheckPolicy(mode=Mode.ENFORCE)}


def bad(check: str = "xid", device: str = PCI, evidence: str = f"{BOOT}:7") -> Finding:
    return Finding(check=check, level=Level.DRAIN, device=device, summary=f"{check} on {device}", evidence_id=evidence)


def sweep(state: PolicyState, *findings: Finding, **now: Any) -> Decision:
    moment = {"boot_seconds": 1000.0, "wall_seconds": 5000.0, "boot_id": BOOT, "serials": {PCI: SERIAL}, **now}
    return decide(findings, POLICIES, state, Now(**moment), Rules())


def test_an_ack_covers_what_it_names_and_nothing_newer() -> None:
    seen = sweep(PolicyState(), bad())
    assert seen.order is Order.DRAIN
    known = apply(seen.state, Ack(id="request-1", evidence=(identity(bad()),)))
    after = sweep(known, bad())
    assert (after.order, after.why_suppressed) == (Order.KEEP, ("acknowledged",))
    assert sweep(after.state, bad(), bad(evidence=f"{BOOT}:8")).order is Order.DRAIN
    assert sweep(after.state, bad(), bad(device=OTHER)).order is Order.DRAIN


def test_what_came_between_the_persons_look_and_the_agents_is_not_covered() -> None:
    seen = sweep(PolicyState(), bad())
    newer = sweep(seen.state, bad(evidence=f"{BOOT}:8"))
    assert (
        sweep(apply(newer.state, Ack(id="request-1", evidence=(identity(bad()),))), bad(evidence=f"{BOOT}:8")).order
        is Order.DRAIN
    )


def test_undone_it_drains_again() -> None:
    known = apply(sweep(PolicyState(), bad()).state, Ack(id="request-1", evidence=(identity(bad()),)))
    undone = apply(known, Undo(id="request-2", evidence=(identity(bad()),)))
    assert undone.acknowledged == () and sweep(undone, bad()).order is Order.DRAIN


@pytest.mark.parametrize(
    "again", [Ack(id="request-1", evidence=("xid/x#1",)), Clear(id="request-1", everything=True, boot_id=BOOT)]
)
def test_a_request_read_again_after_a_crash_changes_nothing(again: Ack | Clear) -> None:
    once = apply(PolicyState(), again)
    later = sweep(once, bad()).state
    assert once.requests == ("request-1",) and apply(later, again) is later
    saved = msgspec.json.decode(msgspec.json.encode(later), type=PolicyState)
    assert apply(saved, again) is saved


def clear(*devices: str, sequence: int = 10, **more: Any) -> Clear:
    return Clear(id="request-9", devices=devices, boot_id=BOOT, sequence=sequence, boot_seconds=900.0, **more)


def test_clear_forgets_one_gpu_in_every_table_there_is() -> None:
    """Whatever tables the state has or gets, by serial, by device or by check/device."""
    tables = [n for n in PolicyState.__struct_fields__ if isinstance(getattr(PolicyState(), n), dict)]
    assert {"tracks", "strikes"} <= set(tables)
    keys = (f"xid/{PCI}", f"ecc/{PCI}", PCI, SERIAL, f"xid/{OTHER}", OTHER, "1651223000002")
    full = replace(PolicyState(boot_id=BOOT), **{n: {k: Track() if n == "tracks" else (1.0,) for k in keys} for n in tables})
    full = replace(
        full, acknowledged=(f"xid/{PCI}#{BOOT}:7", f"xid/{OTHER}#{BOOT}:8"), clean_sweeps=5, drained_for=frozenset({f"xid/{PCI}"})
    )
    made = apply(full, clear(PCI, SERIAL))
    for name in tables:
        assert set(getattr(made, name)) == {f"xid/{OTHER}", OTHER, "1651223000002"}, name
    assert made.acknowledged == (f"xid/{OTHER}#{BOOT}:8",) and made.clean_sweeps == 0
    assert made.drained_for == full.drained_for  # what has to be well before the resume is still that
    assert made.repairs == (Repair(boot_id=BOOT, sequence=10, boot_seconds=900.0, devices=(PCI, SERIAL)),)


def test_clear_all_begins_anew_but_for_what_a_resume_needs() -> None:
    full = sweep(PolicyState(strikes={SERIAL: (1.0, 2.0)}), bad(), bad(device=OTHER)).state
    made = apply(full, clear(everything=True))
    fresh = replace(PolicyState(), boot_id=made.boot_id, ran=full.ran, drained_for=full.drained_for)
    assert replace(made, repairs=(), requests=()) == fresh


def test_cleared_and_well_the_agents_drain_is_resumed_after_clean_sweeps() -> None:
    """Too often drained: the agent does not resume by itself, until the GPU is closed as repaired."""
    rules = Rules(strikes_max=1)
    state = PolicyState(drained_for=frozenset({f"xid/{PCI}"}), strikes={SERIAL: (4000.0,)})

    def run(state: PolicyState) -> tuple[PolicyState, list[Order]]:
        orders = []
        for _ in range(4):
            moment = Now(boot_seconds=1000, wall_seconds=5000, boot_id=BOOT, serials={PCI: SERIAL}, drained=True)
            decision = decide((), POLICIES, state, moment, rules)
            state, orders = decision.state, [*orders, decision.order]
        return state, orders

    before, orders = run(state)
    assert set(orders) == {Order.KEEP}
    assert run(apply(before, clear(PCI, SERIAL)))[1] == [Order.KEEP, Order.KEEP, Order.RESUME, Order.RESUME]


def test_a_counter_at_the_time_of_the_repair_is_the_new_zero() -> None:
    seen = sweep(PolicyState(), bad("ecc", evidence="volatile_uncorrected=3"))
    made = apply(seen.state, clear(PCI))
    assert sweep(made, bad("ecc", evidence="volatile_uncorrected=3")).order is Order.KEEP
    assert sweep(made, bad("ecc", evidence="volatile_uncorrected=4")).order is Order.DRAIN


@pytest.mark.parametrize("evidence", ["", "recovery=2", "gone=volatile_uncorrected"])
def test_what_is_still_broken_after_the_repair_drains(evidence: str) -> None:
    seen = sweep(PolicyState(), bad("ecc", evidence=evidence))
    assert sweep(apply(seen.state, clear(PCI)), bad("ecc", evidence=evidence)).order is Order.DRAIN


def test_the_past_before_a_repair_is_closed_for_that_device_only() -> None:
    def xid(sequence: int, pci: str = "0000:1b:00") -> KernelRecord:
        return KernelRecord(
            sequence=sequence, seconds=1.0, priority=3, boot_id=BOOT, text=f"NVRM: Xid (PCI:{pci}): 79, pid='<unknown>', gone"
        )

    def value(device: str, seconds: float) -> Sample:
        return Sample(device=device, name="ecc", seconds=seconds, value=1.0)

    past = Past(
        available=True,
        records=(xid(9), xid(10), xid(11), xid(9, "0000:43:00"), replace(xid(8), text="mlx5_core: x")),
        samples=(value(SERIAL, 900.0), value(SERIAL, 901.0), value("other", 1.0)),
    )
    state = apply(PolicyState(), clear(PCI, SERIAL))
    left = since_repair(past, state.repairs, BOOT)
    assert [(r.sequence, "1b" in r.text) for r in left.records] == [(11, True), (9, False), (8, False)]
    assert left.samples == (value(SERIAL, 901.0), value("other", 1.0))
    assert since_repair(past, state.repairs, "next boot") is past  # its numbers begin anew
    everything = apply(PolicyState(), clear(everything=True))
    assert [r.sequence for r in since_repair(past, everything.repairs, BOOT).records] == [11]


def test_a_repair_covers_messages_in_several_records_and_those_of_pcie() -> None:
    texts = (
        f"NVRM: The NVIDIA GPU {PCI}",
        "NVRM: (PCI ID: 10de:26b5) installed in this system has",
        "NVRM: fallen off the bus and is not responding to commands.",
        f"nvidia {PCI}: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Receiver ID)",
        f"nvidia {OTHER}: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Receiver ID)",
    )
    records = tuple(KernelRecord(sequence=n, seconds=1.0, priority=3, text=t, boot_id=BOOT) for n, t in enumerate(texts))
    past = Past(available=True, records=records)
    left = since_repair(past, (Repair(boot_id=BOOT, sequence=9, boot_seconds=5.0, devices=(PCI,)),), BOOT)
    assert [r.sequence for r in left.records] == [0, 1, 4]
    earlier = since_repair(past, (Repair(boot_id=BOOT, sequence=1, boot_seconds=5.0, devices=(PCI,)),), BOOT)
    assert [r.sequence for r in earlier.records] == [0, 1, 2, 3, 4]


def test_standing_names_each_finding_once() -> None:
    state = sweep(PolicyState(), bad(), bad(evidence=f"{BOOT}:8")).state
    assert [identity(f) for f in remembered_findings(state)] == [f"xid/{PCI}#{BOOT}:7", f"xid/{PCI}#{BOOT}:8"]


# -- the spool's parser --------------------------------------------------------------------------


@given(st.binary(max_size=2000))
def test_any_bytes_give_a_request_or_one_line(data: bytes) -> None:
    try:
        request = decode(data)
    except DataError as e:
        assert "\n" not in str(e)
    else:
        assert decode(encode(request)) == request


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)
FIELDS = [
    "kind",
    "id",
    "schema",
    "who",
    "why",
    "evidence",
    "devices",
    "everything",
    "boot_id",
    "sequence",
    "boot_seconds",
    "more",
]
VALUES = JSON | st.sampled_from(["ack", "undo", "clear", "0" * 12, 1, True, False, 7, ["xid/x#b:1"], [PCI]])


@given(st.dictionaries(st.sampled_from(FIELDS), VALUES))
def test_any_object_gives_a_request_or_one_line_and_what_is_one_can_be_applied(data: dict[str, Any]) -> None:
    try:
        request = decode(msgspec.json.encode(data))
    except DataError as e:
        assert "\n" not in str(e)
        return
    state = sweep(PolicyState(), bad()).state
    made = apply(state, request)
    assert request.id in made.requests and apply(made, request) is made
    assert msgspec.json.decode(msgspec.json.encode(made), type=PolicyState) == made


IDENTITIES = [identity(f) for f in (bad(), bad(evidence=f"{BOOT}:8"), bad(device=OTHER), bad("ecc", evidence="n=1"))]
IDS = st.integers(0, 2**64 - 1).map("{:036d}".format)
SOME = st.lists(st.sampled_from(IDENTITIES), max_size=6).map(tuple)
KINDS = st.one_of(
    st.builds(Ack, id=IDS, evidence=SOME),
    st.builds(Undo, id=IDS, evidence=SOME),
    st.builds(Clear, id=IDS, devices=st.just((PCI, SERIAL)), boot_id=st.just(BOOT)),
)


@given(st.lists(st.tuples(KINDS, st.lists(st.integers(0, 7), max_size=3)), max_size=8, unique_by=lambda each: each[0].id))
def test_replayed_from_any_crash_the_end_is_the_same(taken_again: list[tuple[Ack | Undo | Clear, list[int]]]) -> None:
    """Killed after the state was saved, before the file was removed: any of the taken ones comes again."""
    state = once = sweep(PolicyState(), bad(), bad(device=OTHER)).state
    taken: list[Ack | Undo | Clear] = []
    for request, again in taken_again:
        taken.append(request)
        once = apply(once, request)
        state = apply(state, request)
        for number in again:
            state = apply(msgspec.json.decode(msgspec.json.encode(state), type=PolicyState), taken[number % len(taken)])
    assert state == once


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not a request"),
        (b'{"kind":"ack","id":"0123456789","evidence":["x"],"schema":2}', "schema 2"),
        (b'{"kind":"clear","id":"0123456789"}', "either devices or the whole node"),
        (b'{"kind":"clear","id":"0123456789","devices":["x"],"everything":true}', "either devices or the whole node"),
        (b'{"kind":"ack","id":"../../etc","evidence":["x"]}', "not a request"),
        (b" " * (1 << 20) + b"{}", "the limit is"),
    ],
)
def test_what_is_no_request(data: bytes, words: str) -> None:
    with pytest.raises(DataError, match=words):
        decode(data)


def test_a_repaired_node_whose_history_was_lost_is_resumed() -> None:
    """The drain is for a kernel record that nobody remembers; the repair of the whole node says what became of it."""

    def after(state: PolicyState) -> set[Order]:
        moment = {"boot_seconds": 1000.0, "wall_seconds": 5000.0, "boot_id": BOOT, "drained": True}
        orders = set()
        for _ in range(4):
            decision = decide((), POLICIES, state, Now(**moment, drain_check="xid", drain_since_seconds=4900.0), Rules())  # type: ignore[arg-type]
            state = decision.state
            orders.add(decision.order)
        return orders

    assert after(PolicyState()) == {Order.KEEP}
    assert Order.RESUME not in after(apply(PolicyState(), clear(PCI)))
    assert Order.RESUME in after(apply(PolicyState(), clear(everything=True)))
