"""What an agent asks of Slurm, written down from outside: programs in place of scontrol, sinfo and squeue.

Each call leaves its words, what the node was just before a write, what was answered, and when. ``slow`` makes calls slow:
the seconds before the question is sent, and the seconds before the answer is passed on.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tests.lab.clients import NodeState, parse_node
from tests.lab.roots import LabError

CLIENTS = ("scontrol", "sinfo", "squeue")
_PROGRAM = """#!/bin/bash
at=$EPOCHREALTIME call={calls}/$EPOCHREALTIME.$$ before=0 after=0
printf '%s\\n' {client} "${{@//$'\\n'/ }}" > $call.words
[ ! -e {slow} ] || read -r before after < {slow}
[ $before = 0 ] || sleep $before
if [ "$1" = update ]; then {real}/scontrol -o show node {node} > $call.before 2>/dev/null; fi
{real}/{client} "$@" > $call.said 2> $call.error
code=$?
[ $after = 0 ] || sleep $after
echo "$at $EPOCHREALTIME $code" > $call.part
mv $call.part $call.end
cat $call.said
cat $call.error >&2
exit $code
"""


@dataclass(frozen=True)
class Call:
    """One call of a command of Slurm by the agent. ``ended`` is 0 and ``code`` -1 where it was killed before its end.

    before    the node just before a write reached slurmctld; None where this is no write or slurmctld did not answer
    sent      when that was; 0 where nothing was sent
    """

    began: float
    ended: float
    code: int
    words: tuple[str, ...]
    said: str
    before: NodeState | None
    sent: float = 0.0

    @property
    def update(self) -> dict[str, str]:
        """What a write asks for, such as {"state": "DRAIN", "reason": ...}; {} for a question."""
        if self.words[:2] != ("scontrol", "update"):
            return {}
        return {key.lower(): value for key, _, value in (word.partition("=") for word in self.words[2:])}

    @property
    def drains(self) -> bool:
        """Whether it drains the node, or writes another reason on it."""
        return bool(self.update) and not self.lifts

    @property
    def lifts(self) -> bool:
        """Whether it takes a drain away."""
        return self.update.get("state", "").upper() in ("RESUME", "UNDRAIN", "IDLE")

    def __str__(self) -> str:
        was = f", on {node_text(self.before)}" if self.before else ""
        if not self.ended:
            return f"{' '.join(self.words)!r} is killed, {'sent already' if self.sent else 'nothing was sent'}{was}"
        words = " ".join(self.words if self.update else self.words[:4])
        return f"{words!r} ends with {self.code} after {self.ended - self.began:.2f} s{was}"


def node_text(node: NodeState) -> str:
    """A node's state in a few words."""
    return "+".join(node.states) + (f" {node.reason!r}" if node.reason else "")


class Wire:
    """The programs of one node's agent in ``folder/bin``, and what they have written down."""

    def __init__(self, folder: Path, node: str, real: Path) -> None:
        self.bin, self.calls, self._slow = folder / "bin", folder / "calls", folder / "slow"
        for each in (self.bin, self.calls):
            each.mkdir(parents=True, exist_ok=True)
        for client in CLIENTS:
            program = self.bin / client
            program.write_text(_PROGRAM.format(calls=self.calls, slow=self._slow, real=real, client=client, node=node))
            program.chmod(0o755)

    def slow(self, before: float = 0, after: float = 0) -> None:
        """From now on each call takes so long."""
        self._slow.unlink(missing_ok=True)
        if before or after:
            self._slow.write_text(f"{before:g} {after:g}\n")

    def read(self) -> list[Call]:
        """Every call so far that has ended or that nobody waits for any more, in the order of their beginning."""
        return sorted((_call(path) for path in self.calls.glob("*.words")), key=lambda call: call.began)


def _call(path: Path) -> Call:
    base = path.with_suffix("")
    texts = {}
    for name in ("before", "said", "end"):
        file = base.with_name(f"{base.name}.{name}")
        texts[name] = file.read_text(errors="replace") if file.exists() else ""
    began, ended, code = texts["end"].split() or (re.sub(r"\.\d+$", "", base.name), "0", "-1")
    try:
        before = parse_node(texts["before"]) if texts["before"] else None
    except LabError:
        before = None
    file = base.with_name(f"{base.name}.before")
    sent = file.stat().st_mtime if file.exists() else 0.0
    return Call(float(began), float(ended), int(code), tuple(path.read_text().splitlines()), texts["said"], before, sent)
