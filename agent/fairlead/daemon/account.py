"""The agent's account of itself, for status.json."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.daemon import status
from fairlead.host.clock import boottime
from fairlead.policy import Decision

if TYPE_CHECKING:
    from fairlead.daemon.loop import Loop


def account_of(loop: Loop, decision: Decision) -> bytes:
    """What status.json says of this agent now."""
    agent = loop.document.agent
    return status.render(
        loop.document,
        decision,
        loop.findings,
        loop.standing,
        modes={name: policy.mode.value for name, policy in loop.policies.items()},
        sweep={"boot_seconds": boottime(), "seconds": loop.sweep_seconds, "count": loop.sweeps},
        node=loop.node,
        hold=loop.hold.read(agent.state_dir, agent.run_dir),
        history=loop.history.events(),
        proof=loop.proving.account(),
        topology=loop.courier.topology if loop.courier is not None else "",
        trouble=[*troubles_of(loop), *loop.board.trouble.values()],
    )


def troubles_of(loop: Loop) -> tuple[str, ...]:
    """What keeps the agent from writing what it remembers, one line each. What it cannot publish is the board's to say."""
    return tuple(trouble for trouble in (loop.history.trouble, loop.ledger.trouble, loop.trail.trouble) if trouble)
