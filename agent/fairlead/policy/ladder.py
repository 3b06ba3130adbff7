"""What is remembered of each board: strikes, and how far each of its faults has come on the ladder.

The ladder is NVIDIA's order of steps (GPU debug guidelines: restart the application, reset the GPU, reboot the node, then
hardware and support). A fault that comes again on the same board after its step was taken wants the next one. A step counts
as taken when the node has gone back into service after a drain for that fault (the agent or a person resumed it), or has
booted; nothing else proves one: not a drain that slurmctld has lost, nor a person's words over it.
Reboots for faults have a budget of their own: a node that was rebooted so often wants its hardware looked at.
Boards are told apart by serial number, the last one that was read at an address: a lost GPU cannot say its own any more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from msgspec.structs import replace

from fairlead.model.finding import Action, Finding, Level
from fairlead.policy.decision_rules import SETTING_PREFIX, CheckPolicy, Rules, enforced
from fairlead.policy.policy_state import Now, PolicyState, Rung, Track, identity
from fairlead.policy.tracks import severity_of

STEPS = (Action.RESTART_APP, Action.RESET_GPU, Action.REBOOT_NODE, Action.CHECK_HARDWARE, Action.CONTACT_SUPPORT)
NODE = "node"  # the name that faults of the node itself are kept under
STRIKES_KEPT = 100  # of a board, the newest: a fault that flickers while its drain is held must not fill the state
COUNTS = frozenset({"gpu_count"})  # checks that miss GPUs without naming them


def order_of(step: Action) -> int:
    """How far up a step is; -1 for an action that is no step of the ladder."""
    return STEPS.index(step) if step in STEPS else -1


def gpu_serials(before: Mapping[str, str], now: Now) -> dict[str, str]:
    """Serial by PCI address, as last read; a board that was seen to move has left its old place."""
    moved = set(now.serials.values())
    kept = {pci: serial for pci, serial in before.items() if serial not in moved or pci in now.serials}
    return {**kept, **now.serials}


def names(check: str, device: str, known: Mapping[str, str], now: Now) -> tuple[str, ...]:
    """What a fault is kept under: serial, else address; the GPUs that are missing, where a count misses them; or the node."""
    if device:
        return (known.get(device, device),)
    missing = sorted(known[pci] for pci in known.keys() - now.gpus) if check in COUNTS and now.gpus else []
    return tuple(missing) or (NODE,)


def left(name: str, known: Mapping[str, str]) -> bool:
    """Whether a board has left this node: its serial was known here and another one sits in its place."""
    return name != NODE and ":" not in name and name not in known.values()


def strikes(
    before: PolicyState, tracks: Mapping[str, Track], policies: dict[str, CheckPolicy], now: Now, rules: Rules
) -> dict[str, tuple[float, ...]]:
    """One strike each time something of a board, or of the node, comes to drain. ``before.boards`` is up to date."""
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
    """The times of day of boots in the window that followed a fault: of a node that was drained for one, or was to be. A
    person's own drain (``fairlead drain``) is no fault."""
    kept = tuple(t for t in before.reboots if t > now.wall_seconds - rules.reboots_window_seconds)
    if not before.boot_id or before.boot_id == now.boot_id:
        return kept
    faulty = any(t.level is Level.DRAIN and enforced(k.partition("/")[0], policies, rules) for k, t in before.tracks.items())
    return (*kept, now.wall_seconds - now.boot_seconds) if faulty or before.drained_for else kept


def climb(
    before: PolicyState,
    following: PolicyState,
    policies: dict[str, CheckPolicy],
    now: Now,
    rules: Rules,
) -> dict[str, Rung]:
    """The ladder after this sweep. ``before``: as last saved; ``following``: with this sweep's tracks, boards and reboots."""
    rungs = dict(_kept(before, now, rules))
    if not rules.ladder_window_seconds:
        return {}
    for name, check, finding in _faults(following, now):
        rung = rungs.get(name)
        if order_of(finding.action) < 0:
            continue
        if rung is not None and rung.open:
            if order_of(finding.action) > order_of(rung.step):
                rungs[name] = replace(rung, step=finding.action, why="")
            continue
        rungs[name] = _begin(rung, finding, len(following.reboots), now, rules, tie=enforced(check, policies, rules))
    return rungs


def _begin(rung: Rung | None, finding: Finding, booted: int, now: Now, rules: Rules, *, tie: bool) -> Rung:
    """A fault comes, for the first time or again."""
    step, taken, why = finding.action, 0, ""
    if rung is not None and order_of(rung.step) >= order_of(step):
        step, taken = rung.step, rung.taken + 1
        if taken >= rules.ladder_repeats:
            why = f"again after {step.value}"
            step, taken = STEPS[min(order_of(step) + 1, len(STEPS) - 1)], 0
        elif order_of(step) > order_of(finding.action):
            why = rung.why
    if step is Action.REBOOT_NODE and rules.reboots_max and booted >= rules.reboots_max:
        step, taken, why = Action.CHECK_HARDWARE, 0, f"rebooted {booted} times for faults"
    raised = order_of(step) > order_of(finding.action)
    tied = tie and raised and order_of(step) >= order_of(Action.CHECK_HARDWARE)
    return Rung(
        key=finding.key,
        step=step,
        taken=taken,
        since_seconds=now.wall_seconds,
        why=why,
        tied=tied or bool(rung and rung.tied),
    )


def _kept(before: PolicyState, now: Now, rules: Rules) -> Iterator[tuple[str, Rung]]:
    """What the ladder holds as this sweep begins: episodes that a boot or the return to service has ended are closed."""
    booted = bool(before.boot_id) and before.boot_id != now.boot_id
    for name, known in before.ladder.items():
        rung = replace(known, drained=True) if known.open and known.key in before.drained_for else known
        if booted and rung.open:
            least = rung.step if order_of(rung.step) >= order_of(Action.REBOOT_NODE) else Action.REBOOT_NODE
            rung = replace(
                rung,
                open=False,
                drained=False,
                step=least,
                since_seconds=now.wall_seconds,
                taken=rung.taken * (least is rung.step),
            )
        elif now.returned and rung.open and rung.drained:
            rung = replace(rung, open=False, drained=False, since_seconds=now.wall_seconds)
        if now.returned:
            rung = replace(rung, tied=False)
        stands = rung.tied or (rung.open and now.drained)
        if stands or rung.since_seconds > now.wall_seconds - rules.ladder_window_seconds:
            yield name, rung


def _faults(state: PolicyState, now: Now) -> Iterator[tuple[str, str, Finding]]:
    """Every fault that counts now, seen in this boot: its name on the ladder, its check, the finding."""
    known = frozenset(state.acknowledged)
    for key, track in state.tracks.items():
        check, _, device = key.partition("/")
        if track.level is not Level.DRAIN or check not in state.ran or not _counts(check):
            continue
        for finding in track.bad:
            if finding in track.found and severity_of(finding) <= track.confirmed and identity(finding) not in known:
                yield name_of(finding, names(check, device, state.gpu_serials, now)), check, finding


def name_of(finding: Finding, of: Collection[str]) -> str:
    """``CHECK.FAULT/NAME``."""
    return f"{finding.check}{'.' * bool(finding.fault)}{finding.fault}/{'+'.join(of)}"


def _counts(check: str) -> bool:
    return not check.startswith(SETTING_PREFIX)  # drift is nobody's board


def raised(state: PolicyState, now: Now) -> dict[str, Rung]:
    """The rungs that ask for more than their check does, by ``told_by`` of the finding."""
    found = {}
    for name, _, finding in _faults(state, now):
        rung = state.ladder.get(name)
        if rung is not None and order_of(rung.step) > order_of(finding.action) >= 0:
            found[told_by(finding)] = rung
    return found


def told_by(finding: Finding) -> str:
    """What a raised rung is looked up by."""
    return f"{finding.key}#{finding.fault}"


def told(finding: Finding, rungs: Mapping[str, Rung]) -> Finding:
    """The finding as people read it: with the step that the ladder has come to, and why."""
    rung = rungs.get(told_by(finding))
    if rung is None or finding.level is not Level.DRAIN or order_of(rung.step) <= order_of(finding.action):
        return finding
    words = f": {rung.step.value} ({rung.why})" if rung.why else f": {rung.step.value}"
    asked = f": {finding.action.value}"
    summary = finding.summary.replace(asked, words, 1) if asked in finding.summary else finding.summary + words
    return replace(finding, action=rung.step, summary=summary)


def tie(state: PolicyState) -> str:
    """Why the ladder leaves the resume to a person, or ""."""
    for name, rung in sorted(state.ladder.items()):
        fault, _, of = name.partition("/")
        here = [n for n in of.split("+") if not left(n, state.gpu_serials)]
        if rung.tied and here:
            places = [next((pci for pci, serial in state.gpu_serials.items() if serial == n), n) for n in here]
            return f"{fault} on {', '.join(places)} {rung.why or 'again'} wants {rung.step.value}"
    return ""
