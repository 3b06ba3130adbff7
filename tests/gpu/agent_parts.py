"""The parts of the proof that run the agent: on the idle GPU, and under a matrix product."""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.gpu import children, matrix_product
from tests.gpu.agent_process import AgentProcess, Phase
from tests.gpu.nvml_parts import calls, counters
from tests.gpu.proof import Proof, answer_of
from tests.gpu.report import Part, Result

CPU_BUDGET_PERCENT, PSS_BUDGET_MIB = 0.5, 48
BUDGET_SECONDS = 60.0  # a shorter phase says little: a thorough sweep comes every 14 s
START_SECONDS = 5.0  # what the agent's start costs is paid once, and is not measured
WARM_UP_SECONDS = 60.0  # until the first product: a context, the compiler of the driver, the matrices


def agent(proof: Proof, part: Part) -> None:
    """Run the agent while the GPU is idle."""
    _run_agent(proof, part, proof.idle_seconds)


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
        _run_agent(proof, part, proof.load_seconds)
        for inner, measure in ((Part("calls"), calls), (Part("counters"), counters)):
            measure(proof, inner)
            part.lines += [f"{inner.name} under load: {inner.why}", *(f"  {line}" for line in inner.lines)]
            part.data[inner.name] = inner.data
            if inner.result is not Result.AGREES:
                part.differs(f"{inner.name} under load: {inner.why}")
        product.terminate()
        found = answer_of(children.after(product, 20.0), part, "the matrix product")
    if found:
        part.data["product"] = found
        rate = f"{found['products']} products of {proof.size} x {proof.size}, {found['flops_per_second'] / 1e12:.4g} TFLOP/s"
        part.lines.insert(0, rate)
        part.why = f"{part.why}; {rate}" if part.result is Result.AGREES else part.why


def _run_agent(proof: Proof, part: Part, seconds: float) -> None:
    """Run the agent for this time and a start, and say what it has shown."""
    with tempfile.TemporaryDirectory() as folder, AgentProcess(Path(folder), proof.root, proof.interval_seconds) as process:
        time.sleep(min(START_SECONDS, seconds))
        _add_phase(process.measure(seconds), part)
        part.data["log"] = process.last_lines()


def _add_phase(phase: Phase, part: Part) -> None:
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


@contextlib.contextmanager
def _late(seconds: float, act: Callable[[], object]) -> Iterator[None]:
    """Call ``act`` if the body takes longer than this."""
    timer = threading.Timer(seconds, act)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
