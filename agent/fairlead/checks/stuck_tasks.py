"""Reports tasks that stay in uninterruptible sleep: on a dead file system, in a hung driver, in a step that cannot end.

Such a task is in state D and has not been scheduled for the whole window. The kernel's hung-task detector (kernel/hung_task.c)
reports such a task after 120 s: "INFO: task ... blocked for more than ... seconds". A short time in state D is normal for every
disk read. If SIGKILL is pending for such a task (proc_pid_status(5), SigPnd and ShdPnd), the task cannot end. Its Slurm step is
then unkillable, and only a reboot helps. No process name is shown, because users choose these names.

Users can bring their own processes into state D. Three kinds of such tasks do not count:

- A task that waits for a FUSE server, as /proc shows now (`StuckTask.fuse`) or as the trace in the kernel log shows
  (`model.hung_tasks`). A site declares its own FUSE mounts to `hung_mounts`.
- A task that waits for another task of the same process or user, while that other task waits for a FUSE server. This happens
  with a core dump, with the lock of the process's memory, and with the lock of a folder (`host.waits_for_others`). If the other
  task waits for a disk, the check reports the other task.
- A parent that waits for its child of vfork(2). SIGKILL ends this wait.

By default the kernel logs ten hung tasks in a boot and then no more (kernel.hung_task_warnings; -1 means all). A user's own tasks
may use up these ten. The agent also watches /proc, so it still finds stuck tasks. If the kernel logs no more hung tasks, the
check reports this with level ok, because this is no fault of the node and a user can cause it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta

from fairlead.model.check_definition import Check, CheckParams, Past
from fairlead.model.facts import Missing, Node
from fairlead.model.finding import Action, Finding, Level, Mode, Service
from fairlead.model.host_facts import Host, StuckTask, Tasks
from fairlead.model.hung_tasks import HUNG, WAITS, waiting_for_fuse
from fairlead.model.unread import age_seconds, host_of, unread, unread_log


class Params(CheckParams, frozen=True, kw_only=True):
    window_seconds: Annotated[int, Meta(ge=15, le=7200, description="A task that has slept for this long counts.")] = 300
    killed_seconds: Annotated[
        int, Meta(ge=15, le=7200, description="A task with SIGKILL pending that has slept for this long counts.")
    ] = 120
    tasks_max: Annotated[
        int, Meta(ge=0, description="This many stuck tasks are accepted. Tasks with SIGKILL pending are not included.")
    ] = 0
    kernel_threads: Annotated[bool, Meta(description="Kernel threads count too.")] = True
    log_seconds: Annotated[
        int, Meta(ge=0, description="A kernel record about a hung task is reported for this long. 0: never.")
    ] = 3600


def judge(node: Node, past: Past, params: Params) -> Iterator[Finding]:
    yield from unread_log(past)
    waits = waiting_for_fuse(node, past)
    hung = [
        r for r in past.records if HUNG.match(r.text) and age_seconds(r, node) <= params.log_seconds and r.sequence not in waits
    ]
    pids = sorted({int(m[1]) for r in hung if (m := HUNG.match(r.text))} - _waiting_for_fuse(node))
    if pids and params.log_seconds:
        yield _finding(
            Level.WARN, "the kernel log tells of tasks that hang", f"process {', '.join(map(str, pids[:8]))}; {len(hung)} lines",
            fault="log",
        )  # fmt: skip
    for host in host_of(node):
        if isinstance(host, Finding):
            yield host
            continue
        if host.hung_task_warnings == 0:
            yield Finding(level=Level.OK, summary="the kernel logs no more hung tasks: kernel.hung_task_warnings is 0")
        if isinstance(host.tasks, Missing):
            yield unread("the processes", host.tasks)
        else:
            stuck = tuple(t for t in host.tasks.stuck if not (t.fuse or t.vfork))
            yield from _unkillable([t for t in stuck if t.killed and t.seconds >= params.killed_seconds])
            asleep = [t for t in stuck if not t.killed and t.seconds >= params.window_seconds]
            asleep = [t for t in asleep if params.kernel_threads or not t.kernel]
            if len(asleep) > params.tasks_max:
                longest = max(t.seconds for t in asleep)
                said = f"{len(asleep)} tasks sleep uninterruptibly for up to {longest:.0f} s"
                yield _finding(Level.WARN, said, _named(asleep), fault="asleep")
            if stuck and not past.available and all(t.seconds < params.killed_seconds for t in stuck):
                yield Finding(
                    level=Level.OK,
                    summary=f"{len(stuck)} tasks sleep uninterruptibly now: for how long needs a second sweep",
                    needs_history=True,
                )


def _waiting_for_fuse(node: Node) -> set[int]:
    tasks = node.host.tasks if isinstance(node.host, Host) else None
    return {t.pid for t in tasks.stuck if t.fuse} if isinstance(tasks, Tasks) else set()


def _unkillable(tasks: list[StuckTask]) -> Iterator[Finding]:
    if not tasks:
        return
    jobs = sorted({t.job for t in tasks if t.job})
    whose = f" of job{'s' if len(jobs) > 1 else ''} {', '.join(map(str, jobs[:4]))}" if jobs else ""
    yield Finding(
        level=Level.DRAIN,
        summary=f"{len(tasks)} tasks{whose} cannot be killed: reboot_node",
        evidence=(_named(tasks),),
        action=Action.REBOOT_NODE,
        evidence_id=f"pids={','.join(str(t.pid) for t in sorted(tasks, key=lambda t: t.pid)[:8])}",
        fault="killed",
    )


def _named(tasks: list[StuckTask]) -> str:
    """Return the process ids as text, each with its Slurm step or "kernel"."""
    words = []
    for task in sorted(tasks, key=lambda t: t.pid)[:8]:
        step = f" (job {task.job}" + (f" step {task.step})" if task.step else ")") if task.job else ""
        words.append(f"{task.pid}{step}{' (kernel)' if task.kernel else ''}")
    return "process " + ", ".join(words)


def _finding(level: Level, summary: str, evidence: str, *, fault: str) -> Finding:
    return Finding(level=level, summary=summary, evidence=(evidence,), service=Service.KEEP, fault=fault)


def kind(text: str) -> str:
    """Return "hung" for khungtaskd's records and "fuse" for their traces. As two kinds, both stay in the history equally long."""
    return "hung" if HUNG.match(text) else "fuse" if WAITS.match(text) else ""


check = Check(
    summary="Tasks that sleep uninterruptibly and do not wake, and steps that cannot be killed",
    params=Params,
    judge=judge,
    mode=Mode.OBSERVE,
    recover=2,
    kind=kind,
    wakes_on=("INFO: task ",),
    slow=True,
)
