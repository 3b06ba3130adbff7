"""Makes the lines of `fairlead why`: the node's state, who owns the drain, the next step, the evidence and the history.

The reader may never have seen the node before, so the next step comes before the reasons.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fairlead.cli.audit import from_data, line
from fairlead.cli.output import age_text, state_word
from fairlead.cli.same_findings import folded
from fairlead.cli.time_options import local
from fairlead.model.plain_text import aside, word
from fairlead.policy.ownership import MAINTAIN, normalise, parse, strip_suffixes
from fairlead.policy.tracks import EARLIER

if TYPE_CHECKING:
    from fairlead.xid.catalogue import XidEntry

Table = Mapping[str, Any]
SHOWN = 12
_IN_THE_TRAIL = ("drained", "not drained by us", "acknowledged", "acknowledgement undone", "closed as repaired")
OURS, MANUAL, ORPHAN, UNASKED, FOREIGN, DOWN, FREE = "ours", "manual", "orphan", "unasked", "foreign", "down", "free"
GONE = "gone"
#: What a person has to do for each of NVIDIA's actions (model.finding.Action).
#: Sources: nvidia-smi(1) for `nvidia-smi --gpu-reset`, which needs an idle GPU; scontrol(1) for `scontrol reboot`.
_DO = {
    "restart_app": "the job has to be started again; the node is fine",
    "reset_gpu": "when no job is on the GPU: `nvidia-smi --gpu-reset -i {device}`, or reboot the node",
    "reboot_node": "reboot the node, by itself or with `scontrol reboot {node}` where RebootProgram is set",
    "check_fabric": "look at the NVLink fabric: `nvidia-smi nvlink --status`, fabricmanager's log, the switches",
    "check_hardware": "look at the hardware: seating, power, cables; `fairlead topology` shows where {device} sits",
    "update_software": "update the driver or firmware (`fairlead provision`)",
    "contact_support": "open a case with the vendor for {device}; this does not heal by itself",
    "follow_cause": "follow the cause: the other finding of {device}",
    "provision": "run `fairlead provision` for this node: a setting is not what its document says",
}
#: What a person has to do when a drain limit delays a drain (docs/explanation/many-nodes-at-once.md), by kind of drain limit.
LIMITS = {
    "budget": "repair and resume nodes that are out, or raise the budget (policy.budget_*)",
    "common_cause": "if the drains have one cause, remove it and resume the nodes;"
    " if each node is broken, drain this one with `fairlead drain`",
    "suspect_job": "look at the job, which goes on; if this node is broken without it too, drain it with `fairlead drain`",
}


def owner(slurm: Table | None, status: Table | None) -> str:
    """Return who has caused the node's state in Slurm, or "" if neither Slurm nor the agent tells it.

    OURS: the agent has drained the node. MANUAL: `fairlead drain` has drained it. ORPHAN: the drain's reason has fairlead's form,
    but the agent does not know the drain. UNASKED: the reason has fairlead's form, and the agent's status is missing. FOREIGN:
    somebody else has drained the node. DOWN: the node is not drained, but down. GONE: the node is not drained, although the
    agent's last reading showed its own drain. FREE: the node is not drained.
    """
    if not slurm or "error" in slurm:
        last = parse(((status or {}).get("drain") or {}).get("reason", ""))
        return "" if last is None else MANUAL if last.check == "manual" else OURS
    words = normalise(slurm["states"])
    reason = slurm["reason"]
    token = parse(reason)
    if not words & {"DRAIN", "DRAINED", "DRAINING"}:
        if words & {"DOWN", "FAIL", "FAILING"}:
            return DOWN
        return GONE if (status or {}).get("drain") else FREE
    if token is None:
        return FOREIGN
    if token.check == "manual":
        return MANUAL
    if not status:
        return UNASKED
    return OURS if strip_suffixes(reason) == (status.get("drain") or {}).get("reason") else ORPHAN


def why_text(node: str, agent: Table, slurm: Table | None, audit: Sequence[object] = (), *, shown: int = SHOWN) -> list[str]:
    """Return the lines about a node.

    ``agent``: the data of `fairlead status --json`. ``slurm``: a table with states, reason, reason_user and reason_unix, or with
    error, or None if slurmctld was not asked. ``audit``: entries of the audit trail as JSON data. ``shown``: the largest number
    of past events to show.
    """
    status: Table = agent.get("status") or {}
    whose = owner(slurm, status)
    return [
        *_slurm(slurm, whose),
        *_agent(agent, status),
        *(f"next:     {step}" for step in steps(node, agent, slurm, whose)),
        *_holds(status),
        *_findings(status),
        *_known(status),
        *_troubles(status),
        *_past(status, audit, shown),
    ]


def _slurm(slurm: Table | None, whose: str) -> Iterator[str]:
    if slurm is None:
        return
    if "error" in slurm:
        yield f"Slurm:    {slurm['error']}"
        if whose:
            yield "owner:    drained by fairlead when the agent last read slurmctld"
        return
    states, reason = "+".join(slurm["states"]), slurm["reason"]
    if reason and whose == FREE:
        yield f"Slurm:    {states} (its last reason, not in force any more: {reason})"
    else:
        since = f" since {local(slurm['reason_unix'])}" if slurm.get("reason_unix") and reason else ""
        user = f" by {slurm['reason_user']}" if slurm.get("reason_user") and reason else ""
        yield f"Slurm:    {states}{user}{since}" + (f": {reason}" if reason else "")
    yield "owner:    " + {
        OURS: "fairlead's own drain; the agent lifts it when the node is well again",
        MANUAL: "drained by hand with `fairlead drain`; only a person lifts it",
        ORPHAN: "a fairlead drain that this node's agent does not know as its own: it is left alone",
        UNASKED: "a fairlead drain; the node's agent cannot be asked whether it is its own",
        FOREIGN: f"{slurm.get('reason_user') or 'somebody'} drained it, not fairlead: fairlead leaves it alone, whatever happens",
        DOWN: "not drained; Slurm or an admin has it down: fairlead leaves it alone",
        GONE: "not drained any more: fairlead's drain has gone since the agent last read slurmctld; its next reading says how",
        FREE: "nobody drained it; jobs may start",
    }.get(whose, "not known")


def _agent(agent: Table, status: Table) -> Iterator[str]:
    if "error" in agent:
        yield f"agent:    {agent['error']}"
        return
    age = agent.get("age_seconds")
    aged = f", last sweep {age_text(age)} ago" if age is not None else ""
    stopped = (agent.get("expired") and "sequence" in agent) or agent.get("running") is False
    stale = "; the agent has stopped its sweeps" if stopped else ""
    yield f"verdict:  {state_word(agent['state'])}{aged}{stale}" + (f": {agent['text']}" if agent.get("text") else "")


def steps(node: str, agent: Table, slurm: Table | None, whose: str) -> list[str]:
    """Return what to do next, most urgent first. There is always at least one step."""
    status: Table = agent.get("status") or {}
    bad = [f for f in status.get("findings", []) if f.get("level") == "drain" and f.get("id") not in _acknowledged(status)]
    found = [*_unheard(agent, slurm)]
    who = (slurm or {}).get("reason_user") or "somebody"
    if whose == FOREIGN:
        found.append(f"ask whoever drained it ({who}); fairlead changes nothing here until they resume it")
    if whose == ORPHAN and (slurm or {}).get("reason", "").startswith(MAINTAIN):
        found.append("leave it to `fairlead maintain` on the admin host: --list, --resume; without a journal, --take-over")
    elif whose == ORPHAN:
        found.append("look at the node; when it is well: `fairlead resume --adopt` on it")
    if whose == DOWN:
        found.append(
            f"see why: `scontrol show node {word(node, 'NODE')}`, `systemctl status slurmd` on it;"
            " you have to resume it in Slurm yourself"
        )
    if hold := status.get("hold"):
        found.append(f"the agent is on hold ({aside(hold.get('who', '?'))}); when that work is done: `fairlead hold --release`")
    if whose == MANUAL:
        found.append("when the work is done: `fairlead resume` on the node")
    found += dict.fromkeys(_do(node, f) for f in bad)
    if whose == FOREIGN and bad:
        found.append("a resume before that does not last: the agent drains the node for what it has found")
    if whose == OURS:
        found += _way_back(agent, status, bad)
    elif whose == GONE:
        found.append(
            "ask again in a minute: a person's resume acknowledges what was known; after a reboot or a new start of slurmctld"
            " what is still wrong drains again"
        )
    elif bad and whose in (FREE, ""):
        found += _why_not_drained(status)
    if not found and agent.get("state") == "unknown":
        found.append("some values could not be read, which does not mean that they are good: see the findings")
    return found or [_nothing(status)]


def _nothing(status: Table) -> str:
    """Return why there is nothing to do."""
    if not status.get("findings") and not status.get("held"):
        return "nothing to do"
    known = [f for f in status.get("findings", []) if f.get("level") == "drain" and f.get("id") in _acknowledged(status)]
    if not known and any(f.get("why") == EARLIER for f in status.get("held", [])):
        return "nothing now: what was wrong before the reboot has not been seen since; seen again, it drains the node"
    if not known:
        return "nothing now: no finding here is a reason for a drain"
    names = ", ".join(dict.fromkeys(aside(f"{f['check']}{'/' if f.get('device') else ''}{f.get('device') or ''}") for f in known))
    return f"nothing now: {names} is active and acknowledged, so jobs may start; `fairlead ack --undo` takes that back"


def _unheard(agent: Table, slurm: Table | None) -> Iterator[str]:
    """Yield what to do about an agent or a slurmctld that does not answer."""
    if "error" in agent:
        yield "reach the node by console, `ipmitool` or the site's monitoring: nothing is known of its GPUs from here"
    elif agent.get("expired") or agent.get("running") is False:
        yield "the agent is down: `systemctl status fairlead-agent`, `journalctl -u fairlead-agent -n 50`"
        yield "until it is back, nobody watches this node, and no drain of fairlead's is lifted"
    if slurm and slurm.get("away"):
        yield "find out why slurmctld does not answer; drains and resumes wait for it by themselves"
    elif slurm and "error" in slurm and slurm.get("hint"):
        yield slurm["hint"]


def _do(node: str, finding: Table) -> str:
    words = _DO.get(finding.get("action", ""), "see `fairlead explain {check}`")
    device = word(finding["device"], "DEVICE") if finding.get("device") else "the node"
    return words.format(device=device, node=word(node, "NODE"), check=word(finding.get("check", ""), "CHECK"))


def _way_back(agent: Table, status: Table, bad: Sequence[Table]) -> Iterator[str]:
    device = word(next((f["device"] for f in bad if f.get("device")), ""), "DEVICE")
    if bad:
        yield (
            f"after a repair: `fairlead clear {device} --reason TEXT` on the node;"
            " if it may stay so: `fairlead ack --all --reason TEXT`"
        )
    if match := re.search(r"fairlead, ([^;]*): resume by hand", agent.get("text") or ""):
        what = word(match[1].partition(" ")[0], "DEVICE") if "drained too often" in match[1] else "--all"
        yield f"the agent does not resume the node by itself: {aside(match[1])}"
        yield f"after a repair: `fairlead clear {what} --reason TEXT` on the node; without one: `fairlead resume`"
    elif not status.get("hold"):
        yield "the agent resumes the node after its clean sweeps; `fairlead resume` does so now and acknowledges active findings"


def _why_not_drained(status: Table) -> Iterator[str]:
    slurm = status.get("slurm", {})
    if limit := slurm.get("limit"):
        yield f"not drained: {aside(slurm.get('over_budget') or limit['name'])}; {LIMITS.get(limit['kind'], LIMITS['budget'])}"
    elif slurm.get("held"):
        yield f"not drained yet: {aside(slurm['held'])}"


def _acknowledged(status: Table) -> set[str]:
    return set(status.get("acknowledged", []))


def _findings(status: Table) -> Iterator[str]:
    known = _acknowledged(status)
    held = {(f["check"], f["summary"]): f.get("why", "") for f in status.get("held", [])}
    serials = {gpu.get("pci"): gpu.get("serial", "") for gpu in status.get("gpus", [])}
    found = [
        {
            **f,
            "held": held.get((f["check"], f["summary"]), ""),
            "known": f.get("id") in known,
            "serial": serials.get(f.get("device"), ""),
        }
        for f in status.get("findings", [])
    ]
    for same in folded(found, also=("mode", "raised", "held", "known", "serial")):
        f = same.first
        yield f"finding:  {', '.join(same.checks)}: {same.words()}"
        yield from (f"  evidence: {e}" for e in f.get("evidence", []))
        yield from _meaning(f)
        yield from _rule(f)
        yield from _device(f, status)
    if (proof := status.get("return")) and proof.get("outcome"):
        again = (
            f"; the agent tries again at {local(proof['next_unix'])}"
            if proof.get("state") == "failed" and proof.get("next_unix")
            else ""
        )
        said = f": {proof['said']}" if proof.get("said") else ""
        ended = f", {local(proof['ended_unix'])}" if proof.get("ended_unix") else ""
        yield f"return:   the return command{ended}: {proof['outcome']}{said}{again}"
    if reboots := status.get("reboots"):
        yield f"reboots:  {len(reboots)} for faults: {', '.join(map(local, reboots[-4:]))}"


def _rule(f: Table) -> Iterator[str]:
    """Yield the rule by which a finding drains the node or not, and what to do. ``_findings`` adds the keys held and known."""
    mode = {"enforce": "may drain", "observe": "reported only, does not drain"}.get(f.get("mode", ""), "")
    yield f"  rule:     level {f.get('level', '?')}, mode {f.get('mode', '?')}" + (f": {mode}" if mode else "")
    if f["held"] and f["held"] != "acknowledged":
        yield f"  held:     {f['held']}"
    if f["known"]:
        yield "  known:    acknowledged; it does not drain until there is new evidence (`fairlead ack --list`)"
    elif f.get("action", "none") != "none":
        raised = f.get("raised")
        whose = aside(f"{raised['why']}; the check alone says {raised['from']}; ") if raised else _whose_word(f)
        yield f"  do:       {aside(f['action'])} ({whose}`fairlead explain {word(f['check'], 'CHECK')}`)"


def _entry(finding: Table) -> XidEntry | None:
    """Return the catalogue's row of the Xid that a finding names, or None if the finding names none."""
    match = re.match(r"Xid (\d+)", finding.get("summary", ""))
    if finding.get("check") != "xid" or not match:
        return None
    from fairlead.xid import catalogue

    return catalogue.look_up(int(match[1]))


def _meaning(finding: Table) -> Iterator[str]:
    """Yield the catalogue's explanation of the Xid that a finding names."""
    if entry := _entry(finding):
        yield f"  meaning:  {entry.name}: {entry.why} (`fairlead explain xid {entry.code}`)"


def _whose_word(finding: Table) -> str:
    """Return "NVIDIA's word; " if NVIDIA has published this action for the Xid, else ""."""
    entry = _entry(finding)
    published = entry is not None and entry.source.startswith("NVIDIA") and entry.action.value == finding["action"]
    return "NVIDIA's word; " if published else ""


def _device(finding: Table, status: Table) -> Iterator[str]:
    """Yield the serial number of the finding's GPU, and how often this GPU has had the node drained before."""
    device = finding.get("device")
    serial = next((g.get("serial", "") for g in status.get("gpus", []) if g.get("pci") == device), "")
    if not device or not serial:
        return
    strikes = status.get("strikes", {})
    times = sorted({*strikes.get(serial, []), *strikes.get(device, [])})
    counted = (
        f"{len(times)} strike{'s' * (len(times) != 1)}: {', '.join(map(local, times[-4:]))}" if times else "no strike so far"
    )
    yield f"  GPU:      serial {serial}, {counted}"


def _known(status: Table) -> Iterator[str]:
    shown = {(f["check"], f["summary"]) for f in status.get("findings", [])}
    for f in status.get("held", []):
        if (f["check"], f["summary"]) not in shown:
            yield f"held:     {f['check']}: {f['summary']} ({f.get('why', '')})"


def _holds(status: Table) -> Iterator[str]:
    if hold := status.get("hold"):
        until = f" until {hold['until']}" if hold.get("until") else ""
        yield f"hold:     {hold.get('who', '?')} since {hold.get('when', '?')}{until}: {hold.get('reason', '')}"


def _troubles(status: Table) -> Iterator[str]:
    if stuck := status.get("worker", {}).get("stuck"):
        where = stuck["gpu"] or "the system"
        yield f"driver:   {stuck['call']} on {where} has not answered for {age_text(stuck['seconds'])}"
    if error := status.get("slurm", {}).get("error"):
        yield f"waiting:  slurmctld: {error}; the agent tries again by itself"
    yield from (f"trouble:  {text}" for text in status.get("trouble", []))


def _past(status: Table, audit: Sequence[object], shown: int) -> Iterator[str]:
    """Yield what people and the agent did, and how the verdict changed, in order of time."""
    entries = [e for e in map(from_data, audit) if e is not None]
    past = [(e.unix, line(e)) for e in entries]
    for event in status.get("history", []):
        name, unix = event.get("event", ""), event.get("unix_seconds", 0)
        if not entries or name not in _IN_THE_TRAIL:
            past.append((unix, f"{local(unix)}  {name} {event.get('text', '')}".rstrip()))
    yield from (f"past:     {text}" for _, text in sorted(past)[max(0, len(past) - shown) :])
