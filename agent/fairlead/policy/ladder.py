"""Stores the strikes of each GPU card, and the escalation step that each of its faults has reached.

The escalation steps have NVIDIA's order (GPU debug guidelines): restart the application, reset the GPU, reboot the node, check
the hardware, contact the support. If a fault comes again on the same card after its step was taken, it needs the next step. A
step counts as taken in two cases. Either the agent or a person has resumed the node after a drain for that fault, or the node
has booted. If slurmctld has lost the drain, or a person has changed its reason, the step does not count as taken.

Reboots for faults have a limit of their own. A node that was rebooted too often needs a check of its hardware. Cards are
distinguished by their serial numbers. A lost GPU gives no serial number, so the last serial that was read at its address counts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from msgspec.structs import replace

from fairlead.model.finding import Action, Finding, Level
from fairlead.policy.decision_rules import SETTING_PREFIX, CheckPolicy, Rules, enforced
from fairlead.policy.policy_state import EscalationStep, Now, PolicyState, Track, identity
from fairlead.policy.tracks import severity_of

STEPS = (Action.RESTART_APP, Action.RESET_GPU, Action.REBOOT_NODE, Action.CHECK_HARDWARE, Action.CONTACT_SUPPORT)
NODE = "node"  # name under which faults of the node itself are stored
# The newest strikes of each card that are stored. A fault may come and go while a limit delays its drain, and its strikes must
# not fill the state.
STRIKES_KEPT = 100
COUNTS = frozenset({"gpu_count"})  # these checks report missing GPUs without naming them


def order_of(step: Action) -> int:
    """Return the position of a step in the order, or -1 for an action that is no escalation step."""
    return STEPS.index(step) if step in STEPS else -1


def gpu_serials(before: Mapping[str, str], now: Now) -> dict[str, str]:
    """Return the serial number that was last read at each PCI address. A card that is now at another address is removed from its
    old address."""
    moved = set(now.serials.values())
    kept = {pci: serial for pci, serial in before.items() if serial not in moved or pci in now.serials}
    return {**kept, **now.serials}


def names(check: str, device: str, known: Mapping[str, str], now: Now) -> tuple[str, ...]:
    """Return the names under which a fault is stored. For a fault of a GPU this is the serial of the card, or its address without
    a serial. For a check in ``COUNTS`` that finds too few GPUs, these are the serials of the missing GPUs. Otherwise it is
    ``NODE``."""
    if device:
        return (known.get(device, device),)
    missing = sorted(known[pci] for pci in known.keys() - now.gpus) if check in COUNTS and now.gpus else []
    return tuple(missing) or (NODE,)


def replaced(name: str, known: Mapping[str, str]) -> bool:
    """Return whether the card with this serial is no longer in this node, because another card is at its address now."""
    return name != NODE and ":" not in name and name not in known.values()


def strikes(
    before: PolicyState, tracks: Mapping[str, Track], policies: dict[str, CheckPolicy], now: Now, rules: Rules
) -> dict[str, tuple[float, ...]]:
    """Return the strikes after this sweep: times of day by name (see ``names``). Each card, or the node, gets one more strike if
    a finding of it begins to drain in this sweep. ``before.gpu_serials`` must be up to date."""
    kept = {
        device: times
        for device, all_times in before.strikes.items()
        if (times := tuple(t for t in all_times if t > now.wall_seconds - rules.strikes_window_seconds))
    }
    struck: set[str] = set()
    for key, track in tracks.items():
        check, _, device = key.partition("/")
        was = before.tracks.get(key, Track()).level
        if track.level is Level.DRAIN and was is not Level.DRAIN and _counts(check) and enforced(check, policies, rules):
            struck.update(names(check, device, before.gpu_serials, now))
    newest = max(STRIKES_KEPT, rules.strikes_max)
    return {**kept, **{device: (*kept.get(device, ()), now.wall_seconds)[-newest:] for device in struck}}


def reboots(before: PolicyState, policies: dict[str, CheckPolicy], now: Now, rules: Rules) -> tuple[float, ...]:
    """Return the times of day of the boots in the window that followed a fault. A boot followed a fault if the node was drained
    for a finding, or was to be drained. A person's own drain (``fairlead drain``) is no fault."""
    kept = tuple(t for t in before.reboots if t > now.wall_seconds - rules.reboots_window_seconds)
    if not before.boot_id or before.boot_id == now.boot_id:
        return kept
    faulty = any(t.level is Level.DRAIN and enforced(k.partition("/")[0], policies, rules) for k, t in before.tracks.items())
    return (*kept, now.wall_seconds - now.boot_seconds) if faulty or before.drained_for else kept


def escalate(
    before: PolicyState,
    following: PolicyState,
    policies: dict[str, CheckPolicy],
    now: Now,
    rules: Rules,
) -> dict[str, EscalationStep]:
    """Return the escalation steps after this sweep, by name of the fault. ``before`` is the state as last saved. ``following`` is
    the state with this sweep's tracks, cards and reboots."""
    escalations = dict(_kept(before, now, rules))
    if not rules.ladder_window_seconds:
        return {}
    for name, check, finding in _faults(following, now):
        escalation = escalations.get(name)
        if order_of(finding.action) < 0:
            continue
        if escalation is not None and escalation.open:
            if order_of(finding.action) > order_of(escalation.step):
                escalations[name] = replace(escalation, step=finding.action, why="")
            continue
        escalations[name] = _begin(
            escalation, finding, len(following.reboots), now, rules, may_need_person=enforced(check, policies, rules)
        )
    return escalations


def _begin(
    escalation: EscalationStep | None, finding: Finding, booted: int, now: Now, rules: Rules, *, may_need_person: bool
) -> EscalationStep:
    """Return the escalation step of a fault that begins, for the first time or again."""
    step, taken, why = finding.action, 0, ""
    if escalation is not None and order_of(escalation.step) >= order_of(step):
        step, taken = escalation.step, escalation.taken + 1
        if taken >= rules.ladder_repeats:
            why = f"again after {step.value}"
            step, taken = STEPS[min(order_of(step) + 1, len(STEPS) - 1)], 0
        elif order_of(step) > order_of(finding.action):
            why = escalation.why
    if step is Action.REBOOT_NODE and rules.reboots_max and booted >= rules.reboots_max:
        step, taken, why = Action.CHECK_HARDWARE, 0, f"rebooted {booted} times for faults"
    raised = order_of(step) > order_of(finding.action)
    needs_person = may_need_person and raised and order_of(step) >= order_of(Action.CHECK_HARDWARE)
    return EscalationStep(
        key=finding.key,
        step=step,
        taken=taken,
        since_seconds=now.wall_seconds,
        why=why,
        manual_resume=needs_person or bool(escalation and escalation.manual_resume),
    )


def _kept(before: PolicyState, now: Now, rules: Rules) -> Iterator[tuple[str, EscalationStep]]:
    """Yield the escalation steps with which this sweep begins. If a boot or the return to service has ended the episode of a
    fault, its step is no longer ``open``."""
    booted = bool(before.boot_id) and before.boot_id != now.boot_id
    for name, known in before.ladder.items():
        escalation = replace(known, drained=True) if known.open and known.key in before.drained_for else known
        if booted and escalation.open:
            least = escalation.step if order_of(escalation.step) >= order_of(Action.REBOOT_NODE) else Action.REBOOT_NODE
            escalation = replace(
                escalation,
                open=False,
                drained=False,
                step=least,
                since_seconds=now.wall_seconds,
                taken=escalation.taken * (least is escalation.step),
            )
        elif now.returned and escalation.open and escalation.drained:
            escalation = replace(escalation, open=False, drained=False, since_seconds=now.wall_seconds)
        if now.returned:
            escalation = replace(escalation, manual_resume=False)
        unfinished = escalation.manual_resume or (escalation.open and now.drained)
        if unfinished or escalation.since_seconds > now.wall_seconds - rules.ladder_window_seconds:
            yield name, escalation


def _faults(state: PolicyState, now: Now) -> Iterator[tuple[str, str, Finding]]:
    """Yield (name, check, finding) for every fault that counts now and was seen in this boot."""
    known = frozenset(state.acknowledged)
    for key, track in state.tracks.items():
        check, _, device = key.partition("/")
        if track.level is not Level.DRAIN or check not in state.ran or not _counts(check):
            continue
        for finding in track.bad:
            if finding in track.found and severity_of(finding) <= track.confirmed and identity(finding) not in known:
                yield name_of(finding, names(check, device, state.gpu_serials, now)), check, finding


def name_of(finding: Finding, of: Collection[str]) -> str:
    """Return the name of a fault: ``CHECK.FAULT/NAME``, where NAME is the card or the node."""
    return f"{finding.check}{'.' * bool(finding.fault)}{finding.fault}/{'+'.join(of)}"


def _counts(check: str) -> bool:
    return not check.startswith(SETTING_PREFIX)  # drift of a setting is a fault of no card


def raised(state: PolicyState, now: Now) -> dict[str, EscalationStep]:
    """Return the escalation steps that are higher than the action of their check, by ``escalation_key`` of the finding."""
    found = {}
    for name, _, finding in _faults(state, now):
        escalation = state.ladder.get(name)
        if escalation is not None and order_of(escalation.step) > order_of(finding.action) >= 0:
            found[escalation_key(finding)] = escalation
    return found


def escalation_key(finding: Finding) -> str:
    """Return the key of a finding in the result of ``raised``."""
    return f"{finding.key}#{finding.fault}"


def as_escalated(finding: Finding, escalations: Mapping[str, EscalationStep]) -> Finding:
    """Return the finding with the escalation step that it has reached as its action, and with the step and its reason in the
    summary."""
    escalation = escalations.get(escalation_key(finding))
    if escalation is None or finding.level is not Level.DRAIN or order_of(escalation.step) <= order_of(finding.action):
        return finding
    words = f": {escalation.step.value} ({escalation.why})" if escalation.why else f": {escalation.step.value}"
    asked = f": {finding.action.value}"
    summary = finding.summary.replace(asked, words, 1) if asked in finding.summary else finding.summary + words
    return replace(finding, action=escalation.step, summary=summary)


def manual_resume_reason(state: PolicyState) -> str:
    """Return why the escalation steps require that a person resumes the node, or ""."""
    for name, escalation in sorted(state.ladder.items()):
        fault, _, of = name.partition("/")
        here = [n for n in of.split("+") if not replaced(n, state.gpu_serials)]
        if escalation.manual_resume and here:
            addresses = [next((pci for pci, serial in state.gpu_serials.items() if serial == n), n) for n in here]
            return f"{fault} on {', '.join(addresses)} {escalation.why or 'again'} wants {escalation.step.value}"
    return ""
