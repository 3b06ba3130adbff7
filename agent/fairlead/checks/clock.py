"""Checks that something sets the clock, that the clock is nearly right, and that it did not jump.

The kernel says whether any program sets the clock (STA_UNSYNC) and how wrong the clock may be (maxerror); see adjtimex(2). The
kernel gives both values in the same way for chronyd, ntpd, timesyncd and PTP. While no program sets the clock, maxerror grows by
500 ppm. When maxerror reaches 16 s, the kernel calls the clock unsynchronised (kernel/time/ntp.c). A wrong clock breaks munge
(credentials are valid for 300 s), leases and logs. To find a jump, the check compares the time of day with CLOCK_BOOTTIME,
because no program can set CLOCK_BOOTTIME.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Annotated

from msgspec import Meta

from fairlead.model.check_definition import Check, CheckParams, Past
from fairlead.model.facts import Missing, Node
from fairlead.model.finding import Action, Finding, Level, Mode
from fairlead.model.trend import series
from fairlead.model.unread import host_of, unread

# The slew that is accepted, as a fraction of the time between two samples. adjtimex slews by at most 500 ppm, and chrony slews by
# more for a short time.
_SLEW = 1e-3


class Params(CheckParams, frozen=True, kw_only=True):
    synchronised: Annotated[bool, Meta(description="A program has to set the clock.")] = True
    maximum_error_seconds_max: Annotated[
        float, Meta(ge=0, description="The check warns when the possible error of the clock is above this. 0 means never.")
    ] = 5.0
    step_seconds_max: Annotated[
        float, Meta(ge=0, description="The check warns about a jump of the clock above this. 0 means never.")
    ] = 2.0
    step_remember_seconds: Annotated[int, Meta(ge=0, le=7200, description="A jump is reported for this long.")] = 3600


def _finding(summary: str, fault: str, *evidence: str) -> Finding:
    return Finding(level=Level.WARN, summary=summary, evidence=evidence, action=Action.PROVISION, fault=fault)


def judge(node: Node, past: Past, params: Params) -> Iterator[Finding]:
    for host in host_of(node):
        if isinstance(host, Finding):
            yield host
            return
        clock = host.clock
        if isinstance(clock, Missing):
            yield unread("the state of the clock", clock)
            return
        worst = f"possible error {clock.maximum_error_seconds:.3f} s, estimated {clock.estimated_error_seconds:.6f} s"
        if not clock.synchronised:
            if params.synchronised:
                yield _finding("nothing sets the clock (chronyd, ntpd or timesyncd)", "unsynchronised", worst)
        elif 0 < params.maximum_error_seconds_max < clock.maximum_error_seconds:
            yield _finding(f"the clock may be {clock.maximum_error_seconds:.1f} s wrong", "error", worst)
        if isinstance(node.uptime_seconds, Missing):  # without the uptime, the age of a sample is unknown
            yield unread("the time since boot", node.uptime_seconds)
        elif params.step_seconds_max:
            yield from _steps(node.uptime_seconds, clock.offset_seconds, past, params)


def _steps(now: float, offset: float, past: Past, params: Params) -> Iterator[Finding]:
    known = [(s.seconds, s.value) for s in series(past).get(("clock", "offset_seconds"), ()) if s.seconds < now]
    points = [p for p in known if now - p[0] <= params.step_remember_seconds] + [(now, offset)]
    steps = [
        (b[1] - a[1], b[0]) for a, b in pairwise(points)
        if abs(b[1] - a[1]) > params.step_seconds_max + _SLEW * (b[0] - a[0])
    ]  # fmt: skip
    if steps:
        step, at = max(steps, key=lambda s: abs(s[0]))
        yield _finding(f"the clock jumped by {step:+.1f} s", "step", f"at {at:.0f} s since boot; {len(steps)} jumps")


def samples(node: Node) -> Iterator[tuple[str, str, float]]:
    """Yield the time of day minus CLOCK_BOOTTIME, in seconds."""
    if not isinstance(node.host, Missing) and not isinstance(node.host.clock, Missing):
        yield "clock", "offset_seconds", node.host.clock.offset_seconds


check = Check(
    summary="The clock is set by something, is near the truth, and did not jump",
    params=Params,
    judge=judge,
    mode=Mode.OBSERVE,
    confirm=2,
    confirm_of=3,
    boot_grace_seconds=600,
    samples=samples,
    slow=True,
)
