"""Evidence: what an admin's resume acknowledges, and what it does not."""

from __future__ import annotations

from fairlead.daemon.evidence import Evidence
from fairlead.model.finding import Finding, Level
from fairlead.policy.state import PolicyState, Track


def test_a_resume_acknowledges_what_stood_and_nothing_newer() -> None:
    def known(*ids: str) -> PolicyState:
        found = tuple(Finding(check="xid", level=Level.DRAIN, device=f"gpu{i}", summary="x", evidence_id=f"b:{i}") for i in ids)
        return PolicyState(tracks={f.key: Track(level=Level.DRAIN, bad=(f,), found=(f,)) for f in found})

    evidence = Evidence()
    assert not evidence.is_new(known("1"))
    evidence.stands(known("1"))
    assert not evidence.is_new(known("1"))
    assert evidence.is_new(known("1", "2")) and not evidence.is_new(known("1", "2"))  # not at once again
    after = evidence.acknowledge(known("1", "2"))
    assert after.acknowledged == ("xid/gpu1#b:1",)
    assert (after.tracks["xid/gpu1"].level, after.tracks["xid/gpu2"].level) == (Level.WARN, Level.DRAIN)
    assert len(evidence.acknowledge(known("1", "2")).acknowledged) == 2  # never seen standing: all that is known


def test_what_came_while_the_agent_was_away_is_not_acknowledged_by_a_resume_in_that_time() -> None:
    before = Finding(check="xid", level=Level.DRAIN, device="gpu1", summary="x", evidence_id="b:1")
    after = Finding(check="xid", level=Level.DRAIN, device="gpu2", summary="x", evidence_id="b:2")
    tracks = {f.key: Track(level=Level.DRAIN, bad=(f,), found=(f,)) for f in (before, after)}
    saved = PolicyState(boot_id="b", tracks={before.key: tracks[before.key]})
    found = PolicyState(boot_id="b", tracks=tracks)  # after the first sweep, before slurmctld has answered
    assert Evidence(saved, drained=True).acknowledge(found).acknowledged == ("xid/gpu1#b:1",)
    assert len(Evidence(PolicyState(), drained=True).acknowledge(found).acknowledged) == 2, "the history was lost"
