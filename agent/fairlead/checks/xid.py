"""Reports faults that the NVIDIA driver logged in this boot: Xid, SXid, and GPUs that have fallen off the bus.

`fairlead.xid.catalogue` has the meaning of each code, the action, and whether the code drains. The catalogue comes from NVIDIA's
Xid catalogue and the driver's nverror.h, and depends on the driver version of the node. The check adds these rules for Xids:

- If Xid 45 names another Xid as its cause, that Xid counts. Otherwise Xid 45 is not reported.
- 13, 31, 43 and similar codes are the job's own fault. They do not drain and are reported for a while.
- 63 and 94 drain when the job ends. The GPU then needs a reset.
- For 154 the number of its recovery action decides, and only the last 154 of a GPU counts.
- 162 cancels an earlier 163.
- An NVLink line (144 to 150) or an SXid drains only if the line itself contains "Fatal".
- Hundreds of lines of one fault become one finding.
- "Fallen off the bus" without an Xid (NVSentinel issue 155) counts as 79.

The check also reads the recovery action from NVML (NVML_FI_DEV_GET_GPU_RECOVERY_ACTION), for which it needs no kernel log.

If jobs of `suspect_users` different users have faults of their own on the same GPU, the GPU is suspect. NVIDIA's workflows for
Xid 13 and 31 also say to test the hardware if these codes repeat on one GPU. A suspect GPU is not certainly faulty. By default it
is therefore only reported, and it drains only if `suspect_service` says so. Xid 43 alone never drains, because every killed CUDA
process may leave an Xid 43. A line with the address of a GPU that this node does not have and never had is a warning and does not
drain. With `services` the site chooses for a code when the node leaves service, and with `actions` what to do next. An Xid is
written as "63", and an SXid as "sxid 12028".
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Annotated

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from fairlead.model.check_definition import Check, CheckParams, KernelRecord, Past
from fairlead.model.device import gpu_addresses, listed_gpus, was_readable
from fairlead.model.facts import Missing, Node, Why
from fairlead.model.finding import OVERRUN, Action, Finding, Level, Mode, Service
from fairlead.model.unread import age_seconds, record_id, unread_log
from fairlead.xid import XidKind, XidLine, parse, read
from fairlead.xid.catalogue import ENTRIES, recovery
from fairlead.xid.line import is_part
from fairlead.xid.meaning import Meaning, meaning

KILLED = 43  # a killed CUDA process may leave this Xid
JOBS_SHOWN = 5


class Params(CheckParams, frozen=True, kw_only=True):
    remember_seconds: Annotated[
        int,
        Meta(ge=0, description="A fault that does not drain (a job's own fault, a corrected fault) is reported for this long."),
    ] = 3600
    services: Annotated[
        dict[str, Service],
        Meta(description='The site\'s own service per code, such as {"63": "keep"}: keep, drain_after_job or drain_now.'),
    ] = field(default_factory=dict)
    actions: Annotated[
        dict[str, Action],
        Meta(description='The site\'s own action per code, such as {"119": "reboot_node", "sxid 20034": "reset_gpu"}.'),
    ] = field(default_factory=dict)
    suspect_users: Annotated[
        int,
        Meta(ge=0, le=1000, description="Jobs of this many users must fault on a GPU before the GPU is suspect. 0: never."),
    ] = 3
    suspect_seconds: Annotated[int, Meta(ge=60, description="The jobs of `suspect_users` must fault within this time.")] = 86400
    suspect_service: Annotated[
        Service, Meta(description="What a suspect GPU means for the node: keep (report), drain_after_job or drain_now.")
    ] = Service.KEEP

    def __post_init__(self) -> None:
        for name, table in (("services", self.services), ("actions", self.actions)):
            for key in table:
                if not site_key(key):
                    raise ValueError(
                        f'{name}: no such code: {key!r} (an Xid is a number from 1 to {max(ENTRIES)}, an SXid "sxid 12028")'
                    )
        for key, action in self.actions.items():
            if action in (Action.PROVISION, Action.FOLLOW_CAUSE):
                raise ValueError(f"actions: {key}: {action.value} is not an action for a fault")


def site_key(key: str) -> bool:
    """Return whether a key of ``services`` or ``actions`` names a code, such as "63" or "sxid 12028"."""
    kind, _, number = key.rpartition(" ")
    if not (number.isascii() and number.isdigit()) or number.startswith("0"):
        return False
    return int(number) in ENTRIES if kind == "" and " " not in key else kind == "sxid" and len(number) == 5


def key_of(line: XidLine) -> str:
    """Return the key of ``services`` and ``actions`` for the code of a line."""
    return f"sxid {line.code}" if line.kind is XidKind.SXID else str(line.code)


_Lines = tuple[tuple[KernelRecord, XidLine], ...]


class _Fault(Struct, frozen=True):
    """Holds one fault on one device: the first line of the highest weight, the first and last record, and the number of lines."""

    line: XidLine
    first: KernelRecord
    last: KernelRecord
    count: int = 1
    hint: str = ""
    jobs: frozenset[int] = frozenset()


def judge(node: Node, past: Past, params: Params) -> Iterator[Finding]:
    if not past.available and not past.records:
        yield Finding(level=Level.OK, summary="needs the kernel log of this boot", needs_history=True)
    yield from unread_log(past)
    records = tuple(sorted((r for r in past.records if _this_boot(r, node)), key=lambda r: r.sequence))
    ours = gpu_addresses(node, past)
    known = tuple((records[index], line) for index, line in read(r.text for r in records))
    lines = tuple((record, line) for record, line in known if _is_ours(line, ours))
    yield from _at_unknown_address({line.pci: (record, line) for record, line in known if not _is_ours(line, ours)}, node, params)
    driver = _driver(node)
    drained: dict[str, list[Finding]] = {}
    suspects = {finding.device: finding for finding in _suspects(lines, node, params, driver)}
    for fault in _faults(lines, driver):
        finding = _finding(fault, node, params, driver)
        if finding is None:
            continue
        if finding.level is Level.DRAIN:
            drained.setdefault(fault.line.pci, []).append(finding)
        elif finding.device in suspects and _of_a_job(fault.line, driver):
            continue  # the finding of the suspect GPU covers this fault
        yield finding
    yield from suspects.values()
    yield from _by_nvml(node, past, drained)
    if past.overrun and (reported := _lost_records(node, past, params)):
        yield reported


def _is_ours(line: XidLine, ours: frozenset[str] | None) -> bool:
    """Return whether a line is about a GPU of this node. Return True for lines without an address and for lines of NVSwitches."""
    return ours is None or line.kind is XidKind.SXID or not line.pci or line.pci in ours


def _at_unknown_address(last: dict[str, tuple[KernelRecord, XidLine]], node: Node, params: Params) -> Iterator[Finding]:
    """Yield a finding for each address at which this node has no GPU. Its evidence is the last line of this address."""
    for pci, (record, line) in last.items():
        if age_seconds(record, node) <= params.remember_seconds:
            yield Finding(
                level=Level.WARN,
                device=pci,
                summary=f"Xid {line.code} on {pci}, where this node has no GPU: it does not count",
                evidence=_evidence(_Fault(replace(line, text=""), record, record)),
                evidence_id=record_id(record, node),
                fault="elsewhere",
            )


def _lost_records(node: Node, past: Past, params: Params) -> Finding | None:
    """Return a finding if kernel records were overwritten before the agent read them, or None.

    The text of these records is lost, because the agent has already read the ring buffer from its oldest record on. The check
    then uses the recovery action that the driver gives for each GPU, since a fatal Xid changes this value. If the driver gives it
    for every GPU, the loss is reported for `remember_seconds`, like other faults that do not drain. Otherwise the loss is
    reported until a person acknowledges it.
    """
    gpus = listed_gpus(node)
    silent = [g.pci for g in gpus if isinstance(g.recovery_action, Missing)]
    advised = bool(gpus) and not silent
    age = 0.0 if isinstance(node.uptime_seconds, Missing) else node.uptime_seconds - past.overrun_seconds
    if advised and age > params.remember_seconds:
        return None
    boot = node.boot_id if isinstance(node.boot_id, str) else ""
    instead = "the driver asks for nothing on any GPU" if advised and not any(g.recovery_action for g in gpus) else ""
    return Finding(
        level=Level.WARN,
        summary=f"{past.overrun} kernel records were lost to a ring buffer overrun: an Xid may have been missed",
        evidence=(instead or (f"no advice of the driver on {', '.join(silent)}" if silent else "no GPU answers"),),
        evidence_id=f"{boot}:overrun={past.overrun}",
        fault=OVERRUN,
    )


def _this_boot(record: KernelRecord, node: Node) -> bool:
    return not record.boot_id or isinstance(node.boot_id, Missing) or record.boot_id == node.boot_id


def _driver(node: Node) -> str:
    """Return the version of the loaded driver module, which wrote this boot's log. Return "" if it cannot be read."""
    known = (node.driver.module_version, node.driver.library_version)
    return next((version for version in known if isinstance(version, str)), "")


def _of_a_job(line: XidLine, driver: str) -> bool:
    return line.kind is XidKind.XID and line.code != 45 and meaning(line, driver).blames == "application"


def _faults(lines: _Lines, driver: str) -> list[_Fault]:
    """Return the faults that the lines report. A cause is listed before the faults that follow from it."""
    faults: dict[tuple[str, str, int, int | None], _Fault] = {}
    for record, line in lines:
        if line.follows:
            continue
        if line.code == 45 and line.kind is XidKind.XID:
            if line.caused_by is not None and line.caused_by != 45:
                _note(faults, replace(line, code=line.caused_by), record, driver, hint="named by an Xid 45")
            continue
        if line.code == 162:
            faults.pop(("xid", line.pci, 163, None), None)
        _note(faults, line, record, driver)
    return sorted(faults.values(), key=lambda f: (f.line.code not in (79, 119, 120), f.line.code == 154, f.first.sequence))


def _note(
    faults: dict[tuple[str, str, int, int | None], _Fault], line: XidLine, record: KernelRecord, driver: str, *, hint: str = ""
) -> None:
    """Add a line to its fault. A line with a lower weight than the known line (a link's Nonfatal after its Fatal) changes only
    the count and the jobs."""
    group = "sxid" if line.kind is XidKind.SXID else "xid"
    key = (group, line.pci, line.code, line.link if line.fatal is not None else None)
    known = faults.get(key)
    jobs = frozenset(record.jobs)
    if known is None:
        faults[key] = _Fault(line, record, record, 1, hint, jobs)
        return
    if hint:
        return  # a line of the cause itself is already known
    jobs, count = known.jobs | jobs, known.count + 1
    if line.code == 154 or known.hint or _weight(line, driver) > _weight(known.line, driver):
        faults[key] = _Fault(line, known.first, record, count, "", jobs)
    elif _weight(line, driver) < _weight(known.line, driver):
        faults[key] = replace(known, count=count, jobs=jobs)
    else:
        faults[key] = replace(known, last=record, count=count, jobs=jobs)


def _weight(line: XidLine, driver: str) -> tuple[bool, bool, int]:
    """Return the weight of a line, which compares lines of one code on one device. A line without a severity has the lowest
    weight."""
    if line.fatal is None:
        return (False, False, 0)
    means = meaning(line, driver)
    light = (Action.NONE, Action.RESTART_APP)
    return (bool(line.fatal), not means.harmless, light.index(means.action) if means.action in light else len(light))


def _finding(fault: _Fault, node: Node, params: Params, driver: str) -> Finding | None:
    means = _counts_as(fault, params, driver)
    if means is None:
        return None
    action, service = means.action, means.service
    if service is Service.KEEP and age_seconds(fault.last, node) > params.remember_seconds:
        return None
    line = fault.line
    name = "SXid" if line.kind is XidKind.SXID else "Xid"
    where = f"{'NVSwitch' if line.kind is XidKind.SXID else 'GPU'} {line.pci}" if line.pci else "an unnamed GPU"
    link = ", all links" if line.link == -1 else f", link {line.link}" if line.link is not None else ""
    follow_up = "" if action is Action.NONE else f": {action.value}"
    blame = _whose(fault.jobs) if means.blames == "application" else ""
    return Finding(
        level=Level.WARN if service is Service.KEEP else Level.DRAIN,
        device=line.pci,
        summary=f"{name} {line.code} on {where} ({means.words}{link}){follow_up}{blame}",
        evidence=_evidence(fault),
        action=action,
        service=service,
        evidence_id=record_id(fault.last, node),
        fault=f"{name.lower()}{line.code}",
        jobs=fault.last.jobs if fault.last.attributed or fault.last.jobs else None,
    )


def _whose(jobs: frozenset[int]) -> str:
    if not jobs:
        return ", the job's own fault"
    return f", the fault of {_jobs(jobs)}"


def _jobs(jobs: Collection[int]) -> str:
    """Return the jobs as text. If there are many jobs, only the newest are named."""
    shown = ", ".join(str(job) for job in sorted(jobs)[-JOBS_SHOWN:])
    more = f" and {len(jobs) - JOBS_SHOWN} more" if len(jobs) > JOBS_SHOWN else ""
    return f"job{'s' if len(jobs) > 1 else ''} {shown}{more}"


def _counts_as(fault: _Fault, params: Params, driver: str) -> Meaning | None:
    """Return the meaning of a fault with the site's choice of service and action. Return None if the fault is not reported."""
    means = meaning(fault.line, driver)
    key = key_of(fault.line)
    service = params.services.get(key, means.service)
    own = params.actions.get(key)
    if service is Service.KEEP and means.harmless and own in (None, Action.NONE):
        return None
    needs_reset = service is Service.DRAIN_AFTER_JOB and means.action in (Action.NONE, Action.RESTART_APP)
    return replace(means, service=service, action=own or (Action.RESET_GPU if needs_reset else means.action))


def _suspects(lines: _Lines, node: Node, params: Params, driver: str) -> Iterator[Finding]:
    """Yield findings for GPUs on which the jobs of several users faulted. A record counts for no user if two users were on its
    GPU."""
    if not params.suspect_users:
        return
    found: dict[str, dict[int, list[tuple[int, KernelRecord]]]] = {}
    for record, line in lines:
        alone = len(record.uids) == 1 and line.pci and _of_a_job(line, driver)
        if alone and age_seconds(record, node) <= params.suspect_seconds:
            found.setdefault(line.pci, {}).setdefault(record.uids[0], []).append((line.code, record))
    for pci, users in found.items():
        if len(users) < params.suspect_users:
            continue
        faulted = sum(any(code != KILLED for code, _ in reported) for reported in users.values())
        drains = params.suspect_service is not Service.KEEP and faulted >= params.suspect_users
        codes = ", ".join(str(code) for code in sorted({code for reported in users.values() for code, _ in reported}))
        newest = max((reported[0][1] for reported in users.values()), key=lambda record: record.sequence)
        yield Finding(
            level=Level.DRAIN if drains else Level.WARN,
            device=pci,
            summary=f"GPU {pci} is suspect: jobs of {len(users)} users faulted on it (Xid {codes}): check_hardware",
            evidence=(_jobs({job for reported in users.values() for _, record in reported for job in record.jobs}),),
            action=Action.CHECK_HARDWARE,
            service=params.suspect_service if drains else Service.KEEP,
            evidence_id=f"{record_id(newest, node)}:users",
            fault="users",
            jobs=(),  # no job is to blame
        )


def _evidence(fault: _Fault) -> tuple[str, ...]:
    """Return the kernel records and hints of a fault, without the name of any process."""
    line = fault.line
    said = f": {line.public_text[:160]}" if line.public_text else ""
    times = f", {fault.count} lines" if fault.count > 1 else ""
    hint = f" ({fault.hint})" if fault.hint else ""
    mig = "".join(f" {n}:{v}" for n, v in (("GPU-I", line.gi), ("GPU-CI", line.ci)) if v is not None)
    jobs = f", {_jobs(fault.jobs)}" if fault.jobs else ""
    return (f"kernel log at {fault.last.seconds:.1f} s, record {fault.last.sequence}{mig}{hint}{times}{jobs}{said}",)


def _by_nvml(node: Node, past: Past, drained: dict[str, list[Finding]]) -> Iterator[Finding]:
    """Yield findings for the recovery actions that the driver gives through NVML.

    An older driver, which never gave a recovery action, yields nothing, because the log then has the fault. A recovery action
    that can no longer be read is UNKNOWN. ``drained`` has the draining findings from the log for each GPU. If one of these
    already covers the recovery action, it is the same fault and yields nothing.
    """
    for gpu in listed_gpus(node):
        number = gpu.recovery_action
        if isinstance(number, Missing):
            known = was_readable(gpu, "recovery_action", past)
            if known and number.why is Why.UNREADABLE and not gpu.lost:
                yield Finding(
                    level=Level.UNKNOWN,
                    device=gpu.pci,
                    summary=f"the driver's advice on GPU {gpu.pci} cannot be read any more",
                    evidence=(number.detail,) if number.detail else (),
                )
            continue
        if number == 0:
            continue
        words, action, service = recovery(number)
        if any(_covers(reported, action, service) for reported in drained.get(gpu.pci, ())):
            continue
        yield Finding(
            level=Level.DRAIN,
            device=gpu.pci,
            summary=f"GPU {gpu.pci}: {words}: {action.value}",
            evidence=(f"NVML recovery action {number}",),
            action=action,
            service=service,
            evidence_id=f"recovery={number}",
        )


def _covers(reported: Finding, action: Action, service: Service) -> bool:
    """Return whether a finding from the log covers this action and service. A reboot also resets the GPU."""
    enough = reported.action is action or (reported.action, action) == (Action.REBOOT_NODE, Action.RESET_GPU)
    return enough and reported.service in (Service.DRAIN_NOW, service)


def kind(text: str) -> str:
    """Return "fault" for a line in which the driver reports a fault. Return "part" and the beginning of the line if the fault has
    three lines. Return "" for any other record."""
    return "fault" if parse(text) is not None else f"part {text[:40]}" if is_part(text) else ""


check = Check(
    summary="Faults the NVIDIA driver reported in the kernel log (Xid, SXid, fallen off the bus)",
    params=Params,
    judge=judge,
    mode=Mode.ENFORCE,
    kind=kind,
    wakes_on=(
        "NVRM: Xid",
        "NVRM: GPU",
        "NVRM: The NVIDIA GPU",
        "NVRM: fallen off the bus",
        "NVRM: installed in this ",
        "NVRM: (PCI ID: ",
        "NVRM: system has fallen off the bus",
        "fallen off the bus",
        "nvidia-nvswitch",
    ),
)
