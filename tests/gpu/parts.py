"""The parts of the proof. Each takes the proof and returns what it has found; none changes a setting except ``settings``."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairlead.host.gpu_reader import RETURN_NAMES, return_text
from fairlead.host.nvml import Worker
from tests.gpu import changed_settings, children, clients, matrix_product, tree_differences, worker_faults
from tests.gpu.agent_process import AgentFailed, AgentProcess, Phase
from tests.gpu.report import Part, Result
from tests.gpu.target import Target
from tests.lab import trees

#: Answers that say nothing bad: NOT_SUPPORTED, FUNCTION_NOT_FOUND (an older driver), and how a list ends (no such link, no room).
USUAL_ANSWERS = {0, 2, 3, 7, 13}
SLOW_SECONDS = 0.02  # reference/nvml.md: no call of 20 ms belongs in a sweep
CPU_BUDGET_PERCENT, PSS_BUDGET_MIB = 0.5, 48
BUDGET_SECONDS = 60.0  # a shorter phase says little: a thorough sweep comes every 14 s
JOURNAL = "changed-settings.json"
WARM_UP_SECONDS = 60.0  # until the first product: a context, the compiler of the driver, the matrices


@dataclass(frozen=True)
class Proof:
    """What a part needs. ``folder``: for the report and its files. ``root``: / or a machine tree. ``size``: of the matrices."""

    target: Target
    folder: Path
    root: str = "/"
    idle_seconds: float = 90.0
    load_seconds: float = 90.0
    sessions: int = 3
    counter_seconds: float = 2.0
    size: int = matrix_product.SIZE
    smi: str = "nvidia-smi"
    locked_clocks: str = "off"
    interval_seconds: float = 1.0

    @property
    def journal(self) -> changed_settings.Journal:
        """The list of the settings that are changed now."""
        return changed_settings.Journal(self.folder / JOURNAL)


def calls(proof: Proof, part: Part, *, seconds: float = 60.0, sessions: int = 0) -> None:
    """Time each NVML call that the agent makes, and list the answers that are not a value."""
    command = children.python("tests.gpu.calls", sessions or proof.sessions, 10)
    found = _json(children.ended(command, seconds), part, "the measurement")
    if not found:
        return
    part.data = found
    for kind, times in found["sweeps"].items():
        part.lines.append(
            f"{kind} sweep: median {1000 * _median(times):.2f} ms, longest {1000 * max(times):.2f} ms of {len(times)}"
        )
    for name, codes in found["calls"].items():
        for code, took in codes.items():
            said = "value" if code == "0" else return_text(int(code))
            slow = took["median"] > SLOW_SECONDS and not name.startswith(("nvmlInit", "nvmlShutdown"))
            if "NvLink" not in name or name.endswith("(0)"):  # the other links are in report.json
                times = f"median {1e6 * took['median']:10.1f} us, longest {1e6 * took['longest']:10.1f} us"
                part.lines.append(f"{name:46} {times}, {took['count']:4} times: {said}{'  SLOW' if slow else ''}")
            if int(code) not in USUAL_ANSWERS:
                part.differs(f"{name} answers {said}")
            if slow:
                part.differs(f"{name} takes {1000 * took['median']:.0f} ms")
    refused = sorted({int(field.partition("/")[0]) for field, code in found["fields"].items() if code})
    part.lines.append(f"fields of nvmlDeviceGetFieldValues without a value: {', '.join(map(str, refused)) or 'none'}")
    part.why = part.why or f"{len(found['calls'])} calls; a first sweep takes {1000 * _median(found['sweeps']['first']):.1f} ms"


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


def outside(proof: Proof, part: Part) -> None:
    """Compare the agent's metrics with nvidia-smi and nvitop."""
    agent = AgentProcess(proof.folder / "once", proof.root, 1.0)
    address = proof.target.pci
    words = [value.nvitop for value in clients.VALUES if value.nvitop]
    query = ",".join(clients.smi_query())
    programs: dict[str, tuple[list[str], Callable[[str], dict[str, Any]], Callable[[clients.Value], tuple[str, float]]]] = {
        "nvidia-smi": (
            [proof.smi, "-i", address, f"--query-gpu={query}", "--format=csv,noheader,nounits"],
            clients.smi_values,
            lambda value: (value.smi, value.smi_factor),
        ),
        "nvitop": (
            [sys.executable, "-c", clients.NVITOP, str(proof.target.values["uuid"]), *words],
            clients.nvitop_values,
            lambda value: (value.nvitop, value.nvitop_factor),
        ),
    }
    compared = 0
    for program, (command, values, which) in programs.items():
        try:
            before = clients.metrics_of(agent.once(60.0), address)
            ended = children.ended(command, 30.0)
            after = clients.metrics_of(agent.once(60.0), address)
            if ended.code:
                raise ValueError(f"{program} {ended.how}")
            rows = clients.compare(before, after, values(ended.output), which)
        except (FileNotFoundError, ValueError) as e:
            part.lines.append(f"{program}: not compared: {e}")
            part.data[program] = {"not_compared": str(e)}
            continue
        part.data[program] = rows
        compared += sum(row["agrees"] is not None for row in rows)
        for row in rows:
            word = {True: "agrees", False: "DIFFERS", None: "no value"}[row["agrees"]]
            part.lines.append(f"{program} {word:8} {row['metric']:42} {row['ours']}, {row['name']} says {row['theirs']}")
            if row["agrees"] is False:
                part.differs(f"{program} says {row['theirs']} for {row['metric']}, the agent {row['ours']}")
    if not compared and part.result is Result.AGREES:
        part.result, part.why = Result.NOT_RUN, "neither nvidia-smi nor nvitop could be compared"
    part.why = part.why or f"{compared} values of {' and '.join(n for n, rows in part.data.items() if isinstance(rows, list))}"


def counters(proof: Proof, part: Part) -> None:
    """Read GPM, the sample buffer and the energy counter once."""
    command = children.python("tests.gpu.counters", proof.target.pci, proof.counter_seconds)
    if not (found := _json(children.ended(command, 30.0 + 3 * proof.counter_seconds), part, "the reading")):
        return
    part.data = found
    gpm, energy = found["gpm"], found["energy"]
    part.lines.append(f"GPM: {_said(gpm)}")
    part.lines.append(f"energy: {_said(energy)}")
    part.lines += [f"samples of {kind}: {_said(said)}" for kind, said in found["samples"].items()]
    unknown = {
        name: said["error"] for name, said in {"GPM": gpm, "energy": energy, **found["samples"]}.items() if "error" in said
    }
    for name, code in unknown.items():
        if code not in USUAL_ANSWERS | {6}:  # NOT_FOUND: the buffer is empty
            part.differs(f"{name} answers {return_text(code)}")
    part.why = part.why or f"without an answer: {', '.join(unknown) or 'none'}"


def agent(proof: Proof, part: Part) -> None:
    """Run the agent while the GPU is idle."""
    with AgentProcess(proof.folder / "agent", proof.root, proof.interval_seconds) as process:
        time.sleep(min(5.0, proof.idle_seconds))  # what the start costs is paid once
        _tell(process.measure(proof.idle_seconds), part)


def load(proof: Proof, part: Part) -> None:
    """Run the agent, the timed calls and the counters while the GPU multiplies matrices."""
    wanted = proof.load_seconds + WARM_UP_SECONDS + 60
    command = children.python("tests.gpu.matrix_product", proof.target.pci, wanted, proof.size)
    with children.started(command) as product:
        assert product.stdout is not None
        with _late(WARM_UP_SECONDS, product.kill):
            line = product.stdout.readline()
        if not line:
            ended = children.after(product, 5.0)
            missing = ended.code == matrix_product.UNAVAILABLE
            part.result, part.why = Result.NOT_RUN if missing else Result.FAILED, f"the matrix product {ended.how}"
            return
        with AgentProcess(proof.folder / "agent-load", proof.root, proof.interval_seconds) as process:
            time.sleep(min(5.0, proof.load_seconds))
            _tell(process.measure(proof.load_seconds), part)
        for name, measure in (
            ("calls", lambda inner: calls(proof, inner, sessions=1)),
            ("counters", lambda i: counters(proof, i)),
        ):
            inner = Part(name)
            measure(inner)
            part.lines += [f"{name} under load: {inner.why}", *(f"  {line}" for line in inner.lines)]
            part.data[name] = inner.data
            if inner.result is not Result.AGREES:
                part.differs(f"{name} under load: {inner.why}")
        product.terminate()
        found = _json(children.after(product, 20.0), part, "the matrix product")
    if found:
        part.data["product"] = found
        rate = f"{found['products']} products of {proof.size} x {proof.size}, {found['flops_per_second'] / 1e12:.4g} TFLOP/s"
        part.lines.insert(0, rate)
        part.why = f"{part.why}; {rate}" if part.result is Result.AGREES else part.why


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
        part.lines.append(f"{name}: {_said(found)}")
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
            part.lines.append(f"{trial.what}: {said}; {'NOT PUT BACK' if alarms else f'it is {trial.before} again'}")
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


def _tell(phase: Phase, part: Part) -> None:
    """Say what a phase of the agent has shown. A finding differs: a person has to say whether it is true."""
    sweeps = sorted(phase.sweep_seconds)
    part.data |= {"seconds": phase.seconds, "cpu_percent": phase.cpu_percent, "pss_kib": phase.pss_kib, "sweeps": phase.sweeps}
    part.data |= {"sweep_seconds": sweeps, "findings": list(phase.findings.values()), "verdicts": phase.verdicts}
    cost = f"{phase.cpu_percent:.2f} % of a core, {phase.pss_kib / 1024:.1f} MiB"
    budget = f"(budget {CPU_BUDGET_PERCENT:g} %, {PSS_BUDGET_MIB} MiB with its worker)"
    part.lines.append(f"agent: {cost} {budget}, {phase.seconds:.0f} s, verdicts {phase.verdicts}")
    if sweeps:
        middle, longest = 1000 * sweeps[len(sweeps) // 2], 1000 * sweeps[-1]
        part.lines.append(f"sweeps: {phase.sweeps}; {len(sweeps)} of them: median {middle:.1f} ms, longest {longest:.1f} ms")
    for finding in phase.findings.values():
        where = f" {finding['device']}" if finding["device"] else ""
        part.lines.append(
            f"finding {finding['check']} {finding['level']}{where}: {finding['summary']}; evidence {finding['evidence']}"
        )
    if phase.findings:
        names = ", ".join(sorted({finding["check"] for finding in phase.findings.values()}))
        part.differs(f"findings, for a person to judge: {names}")
    over = phase.cpu_percent > CPU_BUDGET_PERCENT or phase.pss_kib > 1024 * PSS_BUDGET_MIB
    if over and phase.seconds >= BUDGET_SECONDS:
        part.differs(f"over the budget: {cost}")
    part.why = part.why or f"no finding; {cost}"


def _json(ended: children.Ended, part: Part, what: str) -> dict[str, Any]:
    """Return the last line of a program's output as JSON; where it failed, {} and the part says how."""
    try:
        if ended.code == 0:
            found: dict[str, Any] = json.loads(ended.output.strip().splitlines()[-1])
            return found
    except (ValueError, IndexError):
        pass
    part.result, part.why = Result.FAILED, f"{what} {ended.how}"
    return {}


@contextlib.contextmanager
def _late(seconds: float, act: Callable[[], object]) -> Iterator[None]:
    """Call ``act`` if the body takes longer than this."""
    import threading

    timer = threading.Timer(seconds, act)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _median(numbers: list[float]) -> float:
    return sorted(numbers)[len(numbers) // 2]


def _said(value: Any) -> str:
    """Return an answer in one line: an error by its name, numbers with three decimals."""
    if isinstance(value, dict) and value.keys() == {"error"}:
        return f"NVML {RETURN_NAMES.get(value['error'], 'ERROR')} ({value['error']})"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_said(below)}" for key, below in value.items())
    return f"{value:.3f}" if isinstance(value, float) else str(value)


__all__ = ["AgentFailed", "Proof", "agent", "calls", "counters", "load", "outside", "settings", "snapshot", "worker"]
