"""Remembers for each GPU card its strikes, and which escalation step each of its faults has reached.

The steps have NVIDIA's order (GPU debug guidelines: restart the application, reset the GPU, reboot the node, then hardware and
support). A fault that comes again on the same card after its step was taken wants the next step. A step counts as taken when
the node has gone back into service after a drain for that fault, because the agent or a person resumed it, or when the node
has booted. Nothing else proves a step: neither a drain that slurmctld has lost, nor other words that a person has written over
it. Reboots for faults have a budget of their own: a node that was rebooted too often wants a check of its hardware. Cards are
told apart by serial number. The last serial that was read at an address counts, because a lost GPU cannot say its own any
more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from msgspec.structs import replace

from fairlead.model.finding import Action, Finding, Level
from fairlead.policy.decision_rules import SETTING_PREFIX, CheckPolicy, Rules, enforced
from fairlead.policy.policy_state import EscalationStep, Now, PolicyState, Track, identity
from fairlead.policy.tracks import severity_of

STEPS = (Action.RESTART_APP, Action.RESET_GPU, Action.REBOOT_NODE, Action.CHECK_HARDWARE, Action.CONTACT_SUPPORT)
NODE = "node"  # faults of the node itself are kept under this name
STRIKES_KEPT = 100  # the newest of each card: a fault that comes and goes while a limit delays its drain must not fill the state
COUNTS = frozenset({"gpu_count"})  # these checks report missing GPUs without naming them


def order_of(step: Action) -> int:
    """Return the position of a step in the order, or -1 for an action that is no escalation step."""
    return STEPS.index(step) if step in STEPS else -1


def gpu_serials(before: Mapping[str, str], now: Now) -> dict[str, str]:
    """Return the serial by PCI address, as last read. A card that was seen at another address is no longer listed at its old
    one."""
    moved = set(now.serials.values())
    kept = {pci: serial for pci, serial in before.items() if serial not in moved or pci in now.serials}
    return {**kept, **now.serials}


def names(check: str, device: str, known: Mapping[str, str], now: Now) -> tuple[str, ...]:
    """Return the names that a fault is kept under: the card's serial, or its address where there is none; the missing GPUs
    where a check counts too few; or the node."""
    if device:
        return (known.get(device, device),)
    missing = sorted(known[pci] for pci in known.keys() - now.gpus) if check in COUNTS and now.gpus else []
    return tuple(missing) or (NODE,)


def replaced(name: str, known: Mapping[str, str]) -> bool:
    """Say whether a card has left this node: its serial was known here, and another card is at its address now."""
    return name != NODE and ":" not in name and name not in known.values()


def strikes(
    before: PolicyState, tracks: Mapping[str, Track], policies: dict[str, CheckPolicy], now: Now, rules: Rules
) -> dict[str, tuple[float, ...]]:
    """Return the strikes after this sweep: one more each time that something of a card, or of the node, begins to drain.
    ``before.gpu_serials`` is up to date."""
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
    """Return the times of day of the boots in the window that followed a fault: the node was drained for one, or was to be
    drained. A person's own drain (``fairlead drain``) is no fault."""
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
    """Return the escalation steps after this sweep. ``before``: the state as last saved. ``following``: the state with this
    sweep's tracks, cards and reboots."""
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
    """Return the step of a fault that comes, for the first time or again."""
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
    """Return the steps that are known as this sweep begins. An episode that a boot or the return to service has ended is
    closed."""
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
    """Return every fault that counts now and was seen in this boot: its name, its check, the finding."""
    known = frozenset(state.acknowledged)
    for key, track in state.tracks.items():
        check, _, device = key.partition("/")
        if track.level is not Level.DRAIN or check not in state.ran or not _counts(check):
            continue
        for finding in track.bad:
            if finding in track.found and severity_of(finding) <= track.confirmed and identity(finding) not in known:
                yield name_of(finding, names(check, device, state.gpu_serials, now)), check, finding


def name_of(finding: Finding, of: Collection[str]) -> str:
    """Return the name of a fault: ``CHECK.FAULT/NAME``."""
    return f"{finding.check}{'.' * bool(finding.fault)}{finding.fault}/{'+'.join(of)}"


def _counts(check: str) -> bool:
    return not check.startswith(SETTING_PREFIX)  # drift belongs to no card


def raised(state: PolicyState, now: Now) -> dict[str, EscalationStep]:
    """Return the steps that ask for more than their check does, by ``escalation_key`` of the finding."""
    found = {}
    for name, _, finding in _faults(state, now):
        escalation = state.ladder.get(name)
        if escalation is not None and order_of(escalation.step) > order_of(finding.action) >= 0:
            found[escalation_key(finding)] = escalation
    return found


def escalation_key(finding: Finding) -> str:
    """Return the key under which the raised step of a finding is kept."""
    return f"{finding.key}#{finding.fault}"


def as_escalated(finding: Finding, escalations: Mapping[str, EscalationStep]) -> Finding:
    """Return the finding as people read it: with the escalation step that it has reached, and why."""
    escalation = escalations.get(escalation_key(finding))
    if escalation is None or finding.level is not Level.DRAIN or order_of(escalation.step) <= order_of(finding.action):
        return finding
    words = f": {escalation.step.value} ({escalation.why})" if escalation.why else f": {escalation.step.value}"
    asked = f": {finding.action.value}"
    summary = finding.summary.replace(asked, words, 1) if asked in finding.summary else finding.summary + words
    return replace(finding, action=escalation.step, summary=summary)


def manual_resume_reason(state: PolicyState) -> str:
    """Say why a person has to resume the node by the escalation steps, or ""."""
    for name, escalation in sorted(state.ladder.items()):
        fault, _, of = name.partition("/")
        here = [n for n in of.split("+") if not replaced(n, state.gpu_serials)]
        if escalation.manual_resume and here:
            addresses = [next((pci for pci, serial in state.gpu_serials.items() if serial == n), n) for n in here]
            return f"{fault} on {', '.join(addresses)} {escalation.why or 'again'} wants {escalation.step.value}"
    return ""
