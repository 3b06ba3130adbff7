"""What fairlead promises about a node's state in Slurm, judged from a record alone. Written from the contract, section 3 of the
design ("the decision, the drain and its reason"); whoever changes it asks what an admin would expect, not what the agent does.

Evidence (a fault) is *due* from its beginning: the node must be drained for it. A person's resume makes *known* what the agent
had seen before it: that must not drain again. Where the contract leaves it open, evidence is *open*: either is right.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tests.lab.clients import NodeState
from tests.slurm.record import KNOWN, RELEASES, Act, Fault, Record, Span
from tests.slurm.wire import Call, node_text

#: From an answer to the sending of the write that rests on it: 2 s as documented, and half a second for a busy machine.
WINDOW_SECONDS = 2.5
#: An agent that runs has seen a fault after so long.
SEEN_SECONDS = 3.0
#: From a fault, or from the next look at a drain that vanished, to the drain (documented: 0.5 s; many run on two cores here).
DRAIN_SECONDS = 5.0
#: After slurmctld was away a failed write is tried again within this.
RETRY_SECONDS = 20.0
OWN = "fairlead:"


@dataclass(frozen=True)
class Broken:
    """A promise that was broken, when, and how."""

    promise: str
    at: float
    how: str


def judge(record: Record) -> list[Broken]:
    """Every broken promise, the first first; what is told again and again counts once."""
    found = [*_writes(record), *_out_of_service(record), *_persons_drain_stays(record), *_reported(record)]
    return list({(each.promise, each.how): each for each in sorted(found, key=lambda broken: -broken.at)}.values())[::-1]


# -- evidence ---------------------------------------------------------------------------------------------


def status(record: Record, fault: Fault, at: float) -> str:
    """``due``, ``known``, ``open``, or ``gone`` (also: not yet there) at that time."""
    if not fault.at <= at < fault.ended:
        return "gone"
    if any(act.what in (*RELEASES, *KNOWN) and act.began <= at < act.ended for act in record.acts):
        return "open"
    now = "due"
    happened: list[tuple[float, Act | Span | float]] = [(act.ended, act) for act in record.acts if act.ended <= at]
    happened += [(span.ended, span) for span in record.spans if span.what == "reboot" and span.began <= at]
    happened += [(when, when) for when in record.emptied if when <= at]
    for when, what in sorted(happened, key=lambda each: each[0]):
        if when < fault.at and not (isinstance(what, Act) and what.ended > fault.at):
            continue
        if isinstance(what, Act):
            now = _after_act(record, fault, what, now)
        elif now == "known":
            now = "open"  # a reboot, or an agent that has forgotten all
    return now


def _after_act(record: Record, fault: Fault, act: Act, now: str) -> str:
    if not act.ok:  # 22.05 lifts the drain of a node that has not registered yet, and calls it an error
        tried = act.what in RELEASES and (act.before is None or "DRAIN" in act.before.states)
        return "open" if tried else now
    if act.what in RELEASES:
        ours = act.before is not None and act.before.reason.startswith(OWN) and _person_words(record, act.before) == ""
        return "known" if now == "known" or (ours and _seen_before(record, fault, act) and _heard(record, act, fault)) else "open"
    if act.what == "fairlead ack":
        return "known" if now == "known" or _seen_before(record, fault, act) else "open"
    if act.what == "fairlead clear":
        if fault.kind == "xid":
            return "known" if fault.at < act.began - SEEN_SECONDS * record.busy else "open"
        return "due" if now == "due" else "open"
    return now


def _seen_before(record: Record, fault: Fault, act: Act) -> bool:
    """The agent had time to see the fault before the person acted."""
    since = max([fault.at, *(s.ended for s in record.spans if s.what in ("no agent", "reboot") and s.began < act.began)])
    return since + SEEN_SECONDS * record.busy < act.began


def _heard(record: Record, act: Act, fault: Fault) -> bool:
    """Nothing that loses what slurmctld or the agent know, and no reboot, came between the agent's looks before and after. Nor,
    for what is still wrong, a slurmctld that was reconfigured: what came before that cannot be told."""
    after = act.ended
    for span in sorted(record.spans, key=lambda each: each.began):
        if span.what in ("no agent", "no slurmctld", "slow") and span.began <= after + record.reconcile_seconds + DRAIN_SECONDS:
            after = max(after, span.ended)
    first, last = act.began - record.reconcile_seconds - DRAIN_SECONDS, after + record.reconcile_seconds + DRAIN_SECONDS
    if any(first <= when <= last for when in record.emptied):
        return False
    unknown = ("reboot",) if fault.kind == "xid" else ("reboot", "reconfigure")
    disturbing = [span for span in record.spans if span.loses or span.what in unknown]
    return not any(span.began <= last and first <= span.ended for span in disturbing)


# -- what the agent writes --------------------------------------------------------------------------------


def _person_words(record: Record, node: NodeState) -> str:
    """The words of a person that stand in the node's reason."""
    return next((act.words for act in record.acts if act.words and act.words in node.reason), "")


def _writes(record: Record) -> Iterator[Broken]:
    for call in record.calls:
        if not call.update or call.code not in (0, -1):
            continue
        yield from _of_others(record, call)
        if _by_command(record, call):
            continue
        for span in record.spans:
            if span.what == "hold" and span.began < (call.sent or call.began) < span.ended - 0.5:
                yield Broken("while there is a hold, the agent changes nothing", call.began, str(call))
        if call.code == 0 and call.drains:
            yield from _wrong_drain(record, call)
        elif call.code == 0 and call.lifts:
            yield from _wrong_resume(record, call)


def _by_command(record: Record, call: Call, option: str = "") -> bool:
    """`fairlead resume` wrote it for a person, by the same programs as the agent; with this option, if there is one."""
    return any(
        act.what.startswith("fairlead resume") and option in act.what and act.began <= call.began <= act.ended
        for act in record.acts
    )


def _of_others(record: Record, call: Call) -> Iterator[Broken]:
    """Whose state the write changed, and whether the agent could know."""
    node = call.before
    if node is None or not {"DRAIN", "DOWN", "FAIL"} & set(node.states):
        return
    words = _person_words(record, node)
    if words and words in call.update.get("reason", ""):
        return  # it puts a person's words back
    own = {each.update["reason"] for each in record.calls if each.drains and each.began <= call.began and "reason" in each.update}
    if not words and (any(node.reason.startswith(text) for text in own) or node.reason in ("", "Prolog error")):
        return
    if not words and re.match(r"fairlead:[a-z0-9_.]+:[0-9a-z]+ ", node.reason) and _by_command(record, call, "--adopt"):
        return  # a drain of an agent's, which slurmctld has brought back with an old state: a person takes it over
    whose = words or node.reason
    asked = [each for each in record.calls if not each.update and 0 < each.ended <= call.began and each.said]
    if not asked:
        yield Broken("the agent reads before it writes", call.began, str(call))
    elif _shows_drained_by(whose, asked[-1].said, record.node):
        yield Broken("the agent changes nothing that it has seen to be another's", call.began, f"it had read {whose!r}: {call}")
    elif words and (took := call.sent - asked[-1].ended) > WINDOW_SECONDS * record.busy:
        how = f"{took:.1f} s after the answer the agent writes over {words!r}: {call}"
        yield Broken(f"a write rests on an answer of at most {WINDOW_SECONDS:g} s ago", call.began, how)


def _shows_drained_by(whose: str, said: str, node: str) -> bool:
    """Whether Slurm's answer shows this node out of service with these words. An answer may be about all nodes, a line each,
    and Slurm keeps the reason of a drain that is over."""
    rows = [row for row in said.splitlines() if re.match(rf"(NodeName=)?{re.escape(node)}\b", row) and whose in row]
    return any(word in row.replace(whose, "").upper() for row in rows for word in ("DRAIN", "DOWN", "FAIL"))


def _wrong_drain(record: Record, call: Call) -> Iterator[Broken]:
    if _person_words(record, NodeState((), call.update.get("reason", ""))):
        return
    asked = [each.began for each in record.calls if not each.update and 0 < each.ended <= call.began]
    states = []
    for fault in record.faults:
        by_boot = any(span.what == "reboot" and span.began <= fault.ended <= span.ended for span in record.spans)
        stale = not by_boot and call.began - SEEN_SECONDS * record.busy < fault.ended <= call.ended
        times = (*asked[-1:], fault.ended - 0.01 if stale else call.began, call.began, call.ended)
        states += [(str(fault), status(record, fault, at)) for at in times]
    if any(now in ("due", "open") for _, now in states):
        return
    known = sorted({name for name, now in states if now == "known"})
    if known:
        yield Broken("what a person has acknowledged does not drain again", call.began, f"{', '.join(known)}: {call}")
    else:
        yield Broken("nothing drains without evidence", call.began, str(call))


def _wrong_resume(record: Record, call: Call) -> Iterator[Broken]:
    early = call.began - 2 * SEEN_SECONDS * record.busy
    for fault in record.faults:
        due = all(status(record, fault, at) == "due" for at in (early, call.began, call.ended))
        if due and fault.at < early and _seen_before(record, fault, Act(call.began, call.ended, "")):
            yield Broken("the agent resumes only what is well or acknowledged", call.began, f"{fault}: {call}")


# -- in and out of service --------------------------------------------------------------------------------


def _in_service(record: Record) -> Iterator[tuple[float, float]]:
    """The times in which Slurm gave jobs to the node."""
    began = 0.0
    for seen in record.seen:
        if not seen.out:
            began = began or seen.at
        elif began:
            yield began, seen.at
            began = 0.0
    if began:
        yield began, record.ended


def _out_of_service(record: Record) -> Iterator[Broken]:
    """A node with evidence that is due is drained, within the bound, whatever took its drain away."""
    for began, ended in _in_service(record):
        for fault in record.faults:
            if not fault.at < ended or fault.ended <= began:
                continue
            since = _could_drain_since(record, max(began, fault.at), fault)
            reconcile_seconds = 0 if fault.at > began else record.reconcile_seconds  # new evidence waits for no look
            late = since + reconcile_seconds + DRAIN_SECONDS * record.busy
            until = min(ended, fault.ended)
            if late < until and all(status(record, fault, at) == "due" for at in (since, late, until - 0.01)):
                jobs = [job for at, job in record.jobs if late < at < until]
                how = f"{fault}: in service from {began - record.began:.1f} to {until - record.began:.1f}"
                how += f", and {len(jobs)} jobs start there late: {' '.join(jobs[:3])}" if jobs else ""
                yield Broken("a fault that nobody has acknowledged keeps the node drained", late, how)


def _could_drain_since(record: Record, at: float, fault: Fault) -> float:
    """From when on nothing kept the agent from draining: not its own absence, slurmctld's, a hold, slowness; and not a
    maintenance reservation where it is a state of the driver's, which such work may explain."""
    for span in sorted(record.spans, key=lambda each: each.began):
        more = (RETRY_SECONDS if span.what == "no slurmctld" else SEEN_SECONDS) * record.busy
        if span.what == "maintenance":
            more = record.reconcile_seconds if fault.kind != "xid" else at - span.ended
        if span.began < at + record.reconcile_seconds + DRAIN_SECONDS * record.busy:
            at = max(at, span.ended + more)
    return at


def _persons_drain_stays(record: Record) -> Iterator[Broken]:
    """The last thing that a person asked for was a drain, and Slurm has not taken it away: so it stands at the end."""
    said = [act for act in record.acts if act.what in RELEASES or (act.ok and act.words)]
    if not said or not said[-1].words or not record.seen:
        return
    act, last = said[-1], record.seen[-1].node
    taken = any(span.ended > act.began and (span.what == "reboot" or span.loses) for span in record.spans)
    rebooted = any("REBOOT" in word for seen in record.seen if seen.at > act.began for word in seen.node.states)
    over = any(call.before and act.words in call.before.reason for call in record.calls if call.update)  # judged as a write
    was = act.before is not None and bool({"DRAIN", "DOWN"} & set(act.before.states)) if act.what == "reason" else True
    if was and not (taken or rebooted or over) and (act.words not in last.reason or "DRAIN" not in last.states):
        yield Broken("a person's drain stays", record.ended, f"{act.what} {act.words!r}, at the end {node_text(last)}")


# -- what is told -----------------------------------------------------------------------------------------

_NOTHING = ("nothing to do", "no finding here is a reason for a drain")
_PERSON = ("resumed by", "counts as acknowledged", "(acknowledged)", "known:    acknowledged")


def _reported(record: Record) -> Iterator[Broken]:
    """Nobody is said to have done what nobody did; and of a GPU that is lost nobody says that nothing drains."""
    touched = [act.began for act in record.acts if act.what in (*RELEASES, *KNOWN)]
    for at, where, text in record.reported:
        if not any(when <= at for when in touched):
            for words in _PERSON:
                if words in text.lower():
                    line = next(line for line in text.splitlines() if words in line.lower())
                    yield Broken("nobody is said to have resumed or acknowledged what nobody did", at, f"{where}: {line.strip()}")
                    break
        lost = [fault for fault in record.faults if fault.kind == "lost" and status(record, fault, at) == "due"]
        if any(words in text for words in _NOTHING) and any(_seen_before(record, fault, Act(at, at, "why")) for fault in lost):
            yield Broken("of a lost GPU nobody says that nothing drains", at, f"{where}: {text.strip()}")
