"""Decides what a run of ``fairlead accept --fabric`` measures: which nodes, with which command, on which leaves."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Mapping, Sequence

from msgspec import Struct

from fairlead.config.accept_options import AcceptOptions
from fairlead.errors import UsageError
from fairlead.measure.job_script import GRACE_SECONDS
from fairlead.measure.pairs.fabric_verdict import PairLimits
from fairlead.measure.pairs.pair_table import Leaves
from fairlead.measure.pairs.round_plan import ROUNDS, PairPlan
from fairlead.measure.results_store import ResultStore

FRESH_DAYS = 7.0  # how old the pass of a node alone may be
NODES_MIN = 3  # with fewer nodes, no node has two partners
PREFIX = "fairlead-fabric-"
COMMAND = 'all_gather_perf -b 8G -e 8G -n 20 -c 1 -g "$GPUS"'
RAIL_COMMAND = 'CUDA_VISIBLE_DEVICES="$RAIL" all_gather_perf -b 1G -e 1G -n 20 -c 1 -g 1'
START_SECONDS = 60  # from the start of srun to the start of its tasks, at most
_PROGRAM = re.compile(r"\b([a-z]+(?:_[a-z]+)*)_perf\b")


class FabricPlan(Struct, frozen=True, kw_only=True):
    """Describes a run. gpus: how many GPUs a node has, or 0 if nobody knows. left_out: the nodes that are not measured, and why.
    mark: the text that begins the lines of the port report. collective: the collective that the command runs. switch_ports: by
    node and device the switch and its port."""

    run: str
    mark: str
    leaves: Leaves
    limits: PairLimits
    command: str
    rail_command: str
    collective: str
    seconds: int
    rails: int
    gpus: int
    prelude: str = ""
    srun: tuple[str, ...] = ()
    sbatch: tuple[str, ...] = ()
    time_minutes: int = 0
    max_wait_seconds: float = 3600.0
    left_out: Mapping[str, str] = {}
    switch_ports: Mapping[str, Mapping[str, str]] = {}

    @property
    def job_name(self) -> str:
        return PREFIX + self.run

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(self.leaves.of)

    @property
    def pairs(self) -> PairPlan:
        return PairPlan(leaves=self.leaves, limits=self.limits, rails=self.rails, seed=self.run)

    @property
    def step_seconds(self) -> int:
        """Return the seconds after which srun itself is ended. The nodes end the command before."""
        return self.seconds + GRACE_SECONDS + START_SECONDS

    @property
    def minutes(self) -> int:
        """Return the time limit of the job: all rounds take as long as they may, and a quarter of an hour for the rest."""
        return self.time_minutes or -(-(sum(ROUNDS.values()) * self.step_seconds + 900) // 60)

    @property
    def begun(self) -> str:
        """Return the line that each node writes to standard error before it starts the command."""
        return f"{self.mark} begun"

    def script(self, rail: str) -> str:
        """Return the shell script that each of the two nodes of a pair runs."""
        count = str(self.gpus) if self.gpus else '$(nvidia-smi -L 2>/dev/null | grep -c "^GPU ")'
        lines = [f"echo '{self.begun}' >&2", *self.prelude.splitlines(), f"GPUS={count} RAIL={rail}", "export GPUS RAIL"]
        command = self.rail_command if rail else self.command
        return "\n".join([*lines, f"exec timeout -k {GRACE_SECONDS} {self.seconds} /bin/sh -c '{_quoted(command)}' </dev/null"])

    def ranks(self, rail: str) -> int | None:
        """Return how many ranks must take part, or None if nobody knows."""
        return 2 if rail else 2 * self.gpus or None


def _quoted(command: str) -> str:
    return command.replace("'", "'\\''")


def make(
    leaves: Leaves,
    options: AcceptOptions,
    *,
    gpus: int,
    rails: int,
    limits: PairLimits,
    sbatch: Sequence[str],
    time_minutes: int,
    max_wait_seconds: float,
    left_out: Mapping[str, str],
    switch_ports: Mapping[str, Mapping[str, str]],
) -> FabricPlan:
    """Return the plan of a run. rails: the number from the command line, or 0. Raises UsageError."""
    command, rail_command = options.pair_command or COMMAND, options.rail_command or RAIL_COMMAND
    collectives = {found[1] for text in (command, rail_command) for found in _PROGRAM.finditer(text)}
    if "all_reduce" in collectives:
        raise UsageError(
            "an all_reduce of two nodes is no test of a fabric: it can exceed the rate of the adapters",
            hint="use all_gather_perf or sendrecv_perf in accept.pair_command and accept.rail_command",
        )
    if len(collectives) > 1:
        raise UsageError(f"pair_command and rail_command run different tests: {', '.join(sorted(collectives))}")
    return FabricPlan(
        run=secrets.token_hex(6),
        mark=f"#fairlead-{secrets.token_hex(8)}",
        leaves=leaves,
        limits=limits,
        command=command,
        rail_command=rail_command,
        collective=next(iter(collectives), "all_gather"),
        seconds=options.pair_seconds,
        rails=rails or options.pair_rails or gpus or 1,
        gpus=gpus,
        prelude=options.prelude,
        srun=options.pair_srun,
        sbatch=tuple(sbatch),
        time_minutes=time_minutes,
        max_wait_seconds=max_wait_seconds,
        left_out=left_out,
        switch_ports=switch_ports,
    )


def fresh(store: ResultStore, nodes: Sequence[str]) -> tuple[list[str], dict[str, str], int]:
    """Return the nodes whose newest result alone is a pass that is young enough, the others with the reason, and how many GPUs
    these nodes have (0 if they have different numbers)."""
    rows = store.read("SELECT node, outcome, at, run FROM node ORDER BY at, run")
    newest = {node: (outcome, at, run) for node, outcome, at, run in rows}
    chosen, left_out = [], {}
    counts: set[int] = set()
    for node in nodes:
        outcome, at, run = newest.get(node, ("", 0.0, ""))
        age = (time.time() - at) / 86400
        if not outcome:
            left_out[node] = "it was never measured alone"
        elif outcome != "pass":
            left_out[node] = f"its newest result alone is {outcome} (run {run})"
        elif not 0 <= age <= FRESH_DAYS:
            left_out[node] = f"its pass alone is {age:.0f} days old (run {run})"
        else:
            chosen.append(node)
            counts.add(int(store.read("SELECT COUNT(*) FROM gpu WHERE run = ? AND node = ?", (run, node))[0][0]))
    return chosen, left_out, counts.pop() if len(counts) == 1 else 0


def kinds(store: ResultStore, nodes: Sequence[str]) -> dict[str, list[str]]:
    """Return the nodes by their kind: the class and the GPUs that the newest result alone of each node says."""
    newest = {node: (name, gpus) for node, name, gpus in store.read("SELECT node, class, kind FROM node ORDER BY at, run")}
    found: dict[str, list[str]] = {}
    for node in nodes:
        words = ", ".join(word for word in newest.get(node, ("", "")) if word)
        found.setdefault(words or "no class", []).append(node)
    return found
