"""The program over simulated fleets: nobody innocent is told, and a program that is killed anywhere skips and repeats nothing."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from inspect import signature
from pathlib import Path

import pytest
from msgspec.structs import replace

from fairlead.controller.idle_journal import IdleJournal
from fairlead.controller.idle_program import SWITCHES, IdleProgram
from fairlead.errors import HostError, SlurmUnavailable
from fairlead.jobs.idle_rule import IdleOptions, RunningJob
from fairlead.jobs.idle_stages import STEPS, IdleEvent
from tests.controller.played_idle import ACT, POLL_SECONDS, Deadly, FileChannel, Killed, files, poll
from tests.jobs.idle_fleet import BEGIN, Played, a_run, fleet, idle_batch, training

NOTIFY = IdleOptions(mode="notify", signed_off="2026-11-01", notices_per_hour=100)
IDLE = Played(a_run(1), idle_batch, False)
TIMES = range(1200, 6 * 3600, POLL_SECONDS)


def steps(got: list[str]) -> list[str]:
    return [message.rpartition("-")[2] for message in got]


def test_with_notify_on_nobody_innocent_is_told(tmp_path: Path) -> None:
    channel = FileChannel(tmp_path)
    whole = fleet()
    for seconds in TIMES:
        found = poll(tmp_path, whole, seconds, channel, options=NOTIFY)
        assert found.doubts == ()
    told = {int(message.split("-")[1]) for message in channel.got()}
    assert told == {each.job.job for each in whole if not each.innocent}
    assert Counter(steps(channel.got())) == {"notify_1": len(told), "notify_2": len(told)}


def test_observe_tells_nobody_and_lists_each_idle_job_once_a_day(tmp_path: Path) -> None:
    channel = FileChannel(tmp_path)
    for seconds in TIMES:
        poll(tmp_path, [IDLE, Played(a_run(2), training, True)], seconds, channel, options=IdleOptions())
    events = IdleJournal(str(tmp_path / "state")).read()
    assert channel.got() == []
    assert {event.kind for event in events} == {"observed"}
    assert len(events) == len({int(event.at_unix // 86400) for event in events})
    assert "could not be excluded: not_begun" in events[0].detail


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    channel = FileChannel(tmp_path)
    for seconds in (3600, 7200):
        poll(tmp_path, [IDLE], seconds, channel)
    before, got = {f: Path(f).read_bytes() for f in files(tmp_path)}, channel.got()
    found = poll(tmp_path, [IDLE], 12000, channel, dry_run=True)
    assert found.rows[0].decision.step == "notify_2"
    assert {f: Path(f).read_bytes() for f in files(tmp_path)} == before
    assert channel.got() == got == ["fairlead-1-1790000000-0-notify_1"]


@pytest.mark.parametrize("knows", [True, False], ids=["channel knows", "channel does not know"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("at", range(10))
def test_a_program_that_is_killed_between_any_two_steps(tmp_path: Path, at: int, when: str, knows: bool) -> None:
    channel = FileChannel(tmp_path, knows=knows)
    for i, seconds in enumerate(range(1200, 8 * 3600, POLL_SECONDS)):
        journal = Deadly(str(tmp_path / "state"), at, when) if i < 24 else None
        if journal is not None and len(IdleJournal(journal.folder).read()) > at:
            journal = None  # it was killed once
        with suppress(Killed):
            poll(tmp_path, [IDLE], seconds, channel, journal=journal)
        if journal is not None:
            at = journal.to_come
            if at < 0:
                at = 10**6
    got = steps(channel.got())
    assert max(Counter(got).values(), default=1) == 1, got
    assert got == list(STEPS[: len(got)])
    if knows and "act" not in got:
        pytest.fail(f"the steps stop at {got}")


@pytest.mark.parametrize(("knows", "expected"), [(True, list(STEPS)), (False, ["notify_1"])])
def test_every_reply_is_lost(tmp_path: Path, knows: bool, expected: list[str]) -> None:
    channel = FileChannel(tmp_path, "lost", knows=knows)
    for seconds in range(1200, 10 * 3600, POLL_SECONDS):
        poll(tmp_path, [IDLE], seconds, channel)
    assert steps(channel.got()) == expected


def test_a_channel_that_does_not_say_accepted_never_leads_to_an_act(tmp_path: Path) -> None:
    channel = FileChannel(tmp_path, "sent")
    for seconds in range(1200, 10 * 3600, POLL_SECONDS):
        poll(tmp_path, [IDLE], seconds, channel)
    assert steps(channel.got()) == ["notify_1", "notify_2", "ask"]


def test_the_kill_switch_stops_everything(tmp_path: Path) -> None:
    channel, switch = FileChannel(tmp_path), tmp_path / "off"
    switch.touch()
    for seconds in range(1200, 7 * 3600, POLL_SECONDS):
        found = poll(tmp_path, [IDLE], seconds, channel, switches=[str(switch)])
    assert channel.got() == []
    assert found.doubts == ("it is switched off",)


def test_a_clock_that_was_set_stops_one_run(tmp_path: Path) -> None:
    channel = FileChannel(tmp_path)
    poll(tmp_path, [IDLE], 3600, channel)
    clock = tmp_path / "state/clock.json"
    clock.write_text(clock.read_text().replace(f'"unix":{BEGIN + 3600}', f'"unix":{BEGIN + 3500}'))
    assert "the clock was set by +100 s" in poll(tmp_path, [IDLE], 7200, channel).doubts
    assert channel.got() == []
    assert poll(tmp_path, [IDLE], 8400, channel).doubts == ()


def test_a_comment_that_keeps_the_job(tmp_path: Path) -> None:
    channel = FileChannel(tmp_path)
    for seconds in range(1200, 5 * 3600, POLL_SECONDS):
        poll(tmp_path, [replace(IDLE, job=replace(IDLE.job, keep=True))], seconds, channel)
    assert channel.got() == []


def test_a_torn_last_line_of_the_journal_is_no_step(tmp_path: Path) -> None:
    channel = FileChannel(tmp_path)
    for seconds in (3600, 7200):
        poll(tmp_path, [IDLE], seconds, channel)
    (path,) = (tmp_path / "state").glob("idle-*.jsonl")
    with path.open("ab") as file:
        file.write(b'{"kind":"intent","at_unix":17900')
    journal = IdleJournal(str(tmp_path / "state"))
    before = journal.read()
    journal.append(IdleEvent(kind="keep", at_unix=BEGIN + 7300, case="1@1790000000", user="user1"))
    assert [event.kind for event in journal.read()] == [*(event.kind for event in before), "keep"]
    assert journal.unread == 1


def test_two_runs_at_once_are_refused(tmp_path: Path) -> None:
    class Asks(FileChannel):
        def deliver(self, message, job, text):  # type: ignore[no-untyped-def]
            with pytest.raises(HostError, match="another run"):
                poll(tmp_path, [IDLE], 7200, channel)
            return super().deliver(message, job, text)

    channel = Asks(tmp_path)
    for seconds in (3600, 7200):
        poll(tmp_path, [IDLE], seconds, channel)
    assert steps(channel.got()) == ["notify_1"]


def test_limits_over_a_fleet(tmp_path: Path) -> None:
    channel = FileChannel(tmp_path)
    many = [Played(replace(a_run(n), user="one" if n < 8 else f"user{n}"), idle_batch, False) for n in range(1, 12)]
    counts = []
    for seconds in range(1200, 9000, POLL_SECONDS):
        poll(tmp_path, many, seconds, channel, options=replace(ACT, notices_per_hour=3))
        counts.append(len(channel.got()))
    assert max(b - a for a, b in zip(counts, counts[3:], strict=False)) <= 3


TWO = [IDLE, Played(a_run(2), idle_batch, False)]


def test_a_kill_switch_that_appears_during_a_run_stops_the_jobs_that_are_left(tmp_path: Path) -> None:
    switch = tmp_path / "off"

    class Throws(FileChannel):
        def deliver(self, message, job, text):  # type: ignore[no-untyped-def]
            switch.touch()
            return super().deliver(message, job, text)

    channel = Throws(tmp_path)
    for seconds in (3600, 7200):
        poll(tmp_path, TWO, seconds, channel, switches=[str(switch)])
    assert channel.got() == ["fairlead-1-1790000000-0-notify_1"]
    assert [event.kind for event in IdleJournal(str(tmp_path / "state")).read() if event.step] == ["intent", "accepted"]


def test_the_program_heeds_the_switch_of_everything_and_its_own() -> None:
    assert SWITCHES == ("/etc/fairlead/disabled", "/etc/fairlead/idle-disabled")
    assert signature(IdleProgram).parameters["switches"].default is SWITCHES


def test_the_line_of_a_step_is_on_the_disk_before_the_step(tmp_path: Path) -> None:
    """Also that of an act. The line names the job, its user, the step, the message and the evidence."""
    seen = []

    class Reads(FileChannel):
        def deliver(self, message, job, text):  # type: ignore[no-untyped-def]
            last = IdleJournal(str(tmp_path / "state")).read()[-1]
            assert (last.kind, last.message, last.user) == ("intent", message, job.user) and "GPU-hours" in last.detail
            seen.append(last.step)
            return super().deliver(message, job, text)

    channel = Reads(tmp_path)
    for seconds in range(1200, 7 * 3600, POLL_SECONDS):
        poll(tmp_path, [IDLE], seconds, channel)
    assert seen == list(STEPS)


def test_without_a_line_there_is_no_step(tmp_path: Path) -> None:
    """The disk is full: the intent cannot be written, so nobody is told and nothing acts."""

    class Full(IdleJournal):
        def append(self, event: IdleEvent) -> None:
            if event.kind == "intent":
                raise HostError("no space left on device")
            super().append(event)

    channel = FileChannel(tmp_path)
    poll(tmp_path, [IDLE], 3600, channel)
    with pytest.raises(HostError):
        poll(tmp_path, [IDLE], 7200, channel, journal=Full(str(tmp_path / "state")))
    assert channel.got() == []


def silent_slurmctld() -> list[RunningJob]:
    raise SlurmUnavailable("slurmctld does not answer")


def test_no_act_while_slurmctld_is_silent(tmp_path: Path) -> None:
    """Neither at the begin of a run, nor when the program asks once more before the act."""
    channel = FileChannel(tmp_path)
    for seconds in range(1200, 13200, POLL_SECONDS):
        poll(tmp_path, [IDLE], seconds, channel)
    assert steps(channel.got()) == list(STEPS[:3])
    found = poll(tmp_path, [IDLE], 13200, channel, running=silent_slurmctld)
    assert found.doubts == ("slurmctld does not answer",)
    answers = iter([[IDLE.job]])
    found = poll(tmp_path, [IDLE], 13200, channel, running=lambda: next(answers, None) or silent_slurmctld())
    assert (found.rows[0].decision.step, found.rows[0].done) == ("act", "")
    assert steps(channel.got()) == list(STEPS[:3])
    assert not [event for event in IdleJournal(str(tmp_path / "state")).read() if event.step == "act"]
    poll(tmp_path, [IDLE], 14400, channel)
    assert steps(channel.got()) == list(STEPS)


def test_nodes_that_tell_nothing_stop_the_program(tmp_path: Path) -> None:
    """Two of three nodes gave a record: also the idle job whose records are whole is not told."""
    channel = FileChannel(tmp_path)
    jobs = [*TWO, Played(a_run(3), idle_batch, False)]
    for seconds in range(1200, 3 * 3600, POLL_SECONDS):
        found = poll(tmp_path, jobs, seconds, channel, records=[each.record(seconds) for each in TWO])
    assert found.doubts == ("only 2 of 3 nodes with GPU jobs gave a fresh record",)
    assert channel.got() == []


def test_answers_of_owners_who_worked_stop_the_program(tmp_path: Path) -> None:
    channel = FileChannel(tmp_path)
    many = [Played(a_run(n), idle_batch, False) for n in range(1, 7)]
    for seconds in (3600, 7200):
        poll(tmp_path, many, seconds, channel)
    assert len(channel.got()) == 6
    worked = [replace(each, job=replace(each.job, work=True)) if each.job.job == 1 else each for each in many]
    answered = [replace(each, job=replace(each.job, idle=True)) if 1 < each.job.job < 6 else each for each in worked]
    for seconds in (11400, 12600, 13800):
        found = poll(tmp_path, answered, seconds, channel)
        assert found.doubts == ("1 of 5 answers say that the job worked",)
    assert len(channel.got()) == 6, "job 6 has not answered, and would be told again by now"
