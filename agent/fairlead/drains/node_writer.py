"""Reads one node from slurmctld, and refuses to write to it if the last reading is too old.

slurmctld has no compare-and-swap: a write overwrites every change that somebody has made since the last reading. So the age of
the last reading is limited. The agent, the command line and maintenance all read and write through this file.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from fairlead.errors import SlurmError, SlurmUnavailable
from fairlead.policy.decision_rules import Rules
from fairlead.policy.ownership import Owner, Token, classify
from fairlead.slurm.client import NodeState, SlurmClient

STALE_SECONDS = 2.0  # a reading may be this old when a write relies on it


class NodeWriter:
    """Reads and writes one node, and remembers when the node was last read.

    not_after: is called before each write with the seconds within which the write may still be sent, counted from the answer to
    the last reading. from_request: True if the age of a reading counts from its request, False if it counts from its answer.
    asked_unix, asked: Unix time and ``clock`` just before the last reading, which does not show what slurmctld did after that
    time. window_seconds: the time from before a reading to the end of the write that followed. In this time a change by a
    person may have been overwritten.
    """

    def __init__(
        self,
        client: SlurmClient,
        node: str,
        *,
        not_after: Callable[[float], None] = lambda seconds: None,
        from_request: bool = False,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.client = client
        self.node = node
        self.not_after = not_after
        self.from_request = from_request
        self.wall = wall
        self.clock = clock
        self.asked_unix = 0.0
        self.asked = self._answered = 0.0
        self.window_seconds = 0.0

    def read(self) -> NodeState:
        """Read the node."""
        self.asked_unix, self.asked = self.wall(), self.clock()
        found = self.client.node(self.node)
        self._answered = self.clock()
        return found

    def read_all(self) -> tuple[NodeState, ...]:
        """Read all nodes of the cluster, this one among them."""
        self.asked_unix, self.asked = self.wall(), self.clock()
        listed = self.client.nodes()
        self._answered = self.clock()
        return listed

    def find(self, listed: tuple[NodeState, ...]) -> NodeState:
        """Return this node from a list of all nodes. Raises SlurmError if the list does not have it."""
        for node in listed:
            if node.name == self.node:
                return node
        raise SlurmError(f"slurmctld has no node {self.node} in any partition", hint="slurm.node_name must be its NodeName")

    def age(self) -> float:
        """Return the age of the last reading, in seconds."""
        return self.clock() - (self.asked if self.from_request else self._answered)

    def close_window(self) -> None:
        """Set ``window_seconds``. The caller calls this when a write has just ended."""
        self.window_seconds = self.clock() - self.asked

    def fresh(self) -> bool:
        """Return whether the last reading is young enough for a write."""
        return self.age() <= STALE_SECONDS

    def require_fresh(self, *, also: bool = True) -> None:
        """Raise SlurmUnavailable if the last reading is too old for a write, or if the caller's own condition ``also`` is false.

        The caller then tries again. A reading is too old if the process was stopped or the disk did not answer. Meanwhile people
        may have changed the node.
        """
        age = self.age()
        if age > STALE_SECONDS or not also:
            raise SlurmUnavailable(f"nothing was written: {age:.0f} s went by after the reading of {self.node}")
        self.not_after(STALE_SECONDS - (self.clock() - self._answered))

    def write(self, call: Callable[[], None]) -> None:
        """Write with ``call`` if the last reading is fresh. Raises SlurmUnavailable or SlurmError."""
        self.require_fresh()
        call()


def owner_among(
    state: NodeState, texts: tuple[Token, ...], rules: Rules, *, prolog_refused: bool = False
) -> tuple[Owner, Token | None]:
    """Return who owns the state of a node whose reason may be any of ``texts``, and the text that is its reason, or None.

    prolog_refused: see ``policy.ownership.classify``.
    """
    owners = []
    for token in texts:
        owner = classify(state.states, state.reason, state.reason_user, token, rules, prolog_refused=prolog_refused)
        if owner is Owner.OURS:
            return owner, token
        owners.append(owner)
    if owners:
        return owners[0], None
    return classify(state.states, state.reason, state.reason_user, None, rules, prolog_refused=prolog_refused), None
