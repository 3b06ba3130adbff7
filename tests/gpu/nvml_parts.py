"""The parts of the proof that ask NVML itself, and the one that records a machine tree. Only ``settings`` changes anything."""

from __future__ import annotations

import shutil

from fairlead.host.gpu_reader import return_text
from fairlead.host.nvml import Worker
from tests.gpu import changed_settings, children, tree_differences, worker_faults
from tests.gpu.calls import median
from tests.gpu.proof import Proof, answer_of, in_words
from tests.gpu.report import Part, Result
from tests.lab import trees

#: Answers that say nothing bad: NOT_SUPPORTED, FUNCTION_NOT_FOUND (an older driver), and how a list ends (no such link, no room).
USUAL_ANSWERS = {0, 2, 3, 7, 13}
SWEEPS, CALLS_SECONDS = 10, 60.0
NOT_FOUND = 6  # the driver's buffer has no samples, or none since the last call (nvml.h, nvmlDeviceGetSamples)
SLOW_SECONDS = 0.02  # nvml.h: nvmlDeviceGetPcieThroughput, which no sweep may call, takes this long


def calls(proof: Proof, part: Part) -> None:
    """Time each NVML call that the agent makes, and list the answers that are not a value."""
    command = children.python("tests.gpu.calls", proof.sessions, SWEEPS)
    if not (found := answer_of(children.ended(command, CALLS_SECONDS), part, "the measurement")):
        return
    part.data = found
    for kind, times in found["sweeps"].items():
        part.lines.append(
            f"{kind} sweep: median {1000 * median(times):.2f} ms, longest {1000 * max(times):.2f} ms of {len(times)}"
        )
    for name, codes in found["calls"].items():
        for code, took in codes.items():
            said = "value" if code == "0" else return_text(int(code))
            slow = took["median"] > SLOW_SECONDS and not name.startswith(("nvmlInit", "nvmlShutdown"))
            if "NvLink" not in name or name.endswith("(0)"):  # the other links are in report.json
                times = f"median {1e6 * took['median']:10.1f} us, longest {1e6 * took['longest']:10.1f} us"
                part.lines.append(f"{name:46} {times}, {took['count']:4} times: {said}{'  SLOW' if slow else ''}")
            if int(code) not in USUAL_ANSWERS | ({NOT_FOUND} if name.startswith("nvmlDeviceGetSamples") else set()):
                part.differs(f"{name} answers {said}")
            if slow:
                part.differs(f"{name} takes {1000 * took['median']:.0f} ms")
    refused = sorted({int(field.partition("/")[0]) for field, code in found["fields"].items() if code})
    part.lines.append(f"fields of nvmlDeviceGetFieldValues without a value: {', '.join(map(str, refused)) or 'none'}")
    part.why = part.why or f"{len(found['calls'])} calls; a first sweep takes {1000 * median(found['sweeps']['first']):.1f} ms"


def snapshot(proof: Proof, part: Part) -> None:
    """Write a redacted machine tree, and list how it differs from the nearest hand-written one."""
    tree = proof.folder / "machine"
    shutil.rmtree(tree, ignore_errors=True)
    at = ["--root", proof.root] if proof.root != "/" else []
    ended = children.ended(children.python("fairlead", "snapshot", "--redact", *at, tree), 60.0)
    if ended.code:
        part.result, part.why = Result.FAILED, f"fairlead snapshot {ended.how}"
        return
    near = tree_differences.nearest(proof.target.values, trees.ensure())
    part.lines = tree_differences.differences(tree, near)
    secrets = [value for key in ("uuid", "serial") if isinstance(value := proof.target.values[key], str) and len(value) > 5]
    if leaked := tree_differences.readable_names(tree, secrets):
        part.differs(f"the GPU's UUID or serial is still in {', '.join(leaked[:3])}")
    (proof.folder / "machine.tar.gz").write_bytes(trees.archived(tree))
    shutil.rmtree(tree)
    part.data = {"compared_with": near.name, "differences": part.lines}
    part.why = part.why or f"machine.tar.gz; {len(part.lines)} differences from {near.name}, for a person to read"


def counters(proof: Proof, part: Part) -> None:
    """Read GPM, the sample buffer and the energy counter once."""
    command = children.python("tests.gpu.counters", proof.target.pci, proof.counter_seconds)
    if not (found := answer_of(children.ended(command, 30.0 + 3 * proof.counter_seconds), part, "the reading")):
        return
    part.data = found
    gpm, energy = found["gpm"], found["energy"]
    part.lines.append(f"GPM: {in_words(gpm)}")
    part.lines.append(f"energy: {in_words(energy)}")
    part.lines += [f"samples of {kind}: {in_words(said)}" for kind, said in found["samples"].items()]
    unknown = {
        name: said["error"] for name, said in {"GPM": gpm, "energy": energy, **found["samples"]}.items() if "error" in said
    }
    for name, code in unknown.items():
        if code not in USUAL_ANSWERS | {NOT_FOUND}:
            part.differs(f"{name} answers {return_text(code)}")
    part.why = part.why or f"without an answer: {', '.join(unknown) or 'none'}"


def worker(proof: Proof, part: Part) -> None:
    """Kill and stop the worker, and see the parent answer in time and heal."""
    del proof
    for name, fault in (("killed", worker_faults.killed), ("stopped", worker_faults.stopped)):
        made = Worker(deadline_seconds=worker_faults.READY_SECONDS)
        try:
            found = part.data[name] = fault(made)
        except (TimeoutError, AssertionError) as e:
            part.differs(f"a worker that is {name}: {e}")
            continue
        finally:
            made.close()
        part.lines.append(f"{name}: {in_words(found)}")
        if not found["new_worker"]:
            part.differs(f"no new worker after one was {name}")
        late = found["answered_seconds"] > worker_faults.DEADLINE_SECONDS + worker_faults.LATE_SECONDS
        if name == "stopped" and late:
            part.differs(f"an answer took {found['answered_seconds']:.1f} s at a deadline of {found['deadline_seconds']:g} s")
    part.why = part.why or "the parent answered at its deadline, and a new worker answered"


def settings(proof: Proof, part: Part) -> None:
    """Change persistence, power limit and clocks for a moment, and put each of them back before the next one is changed."""
    made = Worker(deadline_seconds=worker_faults.READY_SECONDS)
    alarms: list[str] = []
    try:
        for trial in changed_settings.trials(proof.target.values, proof.locked_clocks):
            said = changed_settings.attempt(made, proof.journal, trial)
            alarms = changed_settings.put_back(made, proof.journal)
            back = (
                "NOT PUT BACK"
                if alarms
                else f"it is {trial.before} again"
                if not said.startswith("not ")
                else "it was not changed"
            )
            part.lines.append(f"{trial.what}: {said}; {back}")
            part.data[trial.what] = {"before": trial.before, "tried": trial.value, "said": said, "put_back": not alarms}
            if "but reads" in said or said.startswith("refused"):
                part.differs(f"{trial.what} was {said}")
            if alarms:
                break
    finally:
        made.close()
    if alarms:
        part.result, part.why = Result.FAILED, alarms[0]
    elif not any(found["said"].startswith("set to") for found in part.data.values()):
        part.result = Result.NOT_RUN
    part.why = part.why or "; ".join(f"{what} {found['said']}" for what, found in part.data.items())
