"""Takes the steps of one change to a node in Slurm: read, decide, write on that reading, read back.

slurmctld has no compare-and-swap, so this order is the same for every program. The programs differ in the rule that decides,
and in where they save the intent before the first step: ``protocol`` has a ledger on the node, maintenance has a journal on
the admin host. Each function is a generator that yields the name of its next step *before* it takes it. ``outcome.finish``
runs it to its end.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from typing import Generic, NamedTuple, TypeVar

from fairlead.drains.node_writer import NodeWriter
from fairlead.errors import SlurmError, SlurmUnavailable
from fairlead.slurm.client import NodeState

T = TypeVar("T")


class WriteDecision(NamedTuple, Generic[T]):
    """Says whether a reading allows the write. ``otherwise``: the result of the change when nothing is written."""

    write: bool
    otherwise: T


@dataclass(frozen=True)
class NodeChange(Generic[T]):
    """Describes one change to a node by the rule of the program that makes it.

    decide: judges the reading. write: sends the change; it gets the reading that has allowed it. judge: reads the node again
    and returns the result of the change. refused: returns the result when slurmctld has answered the write with an error.
    None: the error is raised.
    """

    decide: Callable[[NodeState], WriteDecision[T]]
    write: Callable[[NodeState], None]
    judge: Callable[[], T]
    refused: Callable[[SlurmError], T] | None = None


def change_node(writer: NodeWriter, change: NodeChange[T]) -> Generator[str, None, T]:
    """Change a node by the rule of ``change`` and return the result. Nothing is written on a reading that has become too old;
    the caller then tries again.

    Raises SlurmUnavailable, SlurmError.
    """
    yield "read"
    state = writer.read()
    decision = change.decide(state)
    if not decision.write or not writer.fresh():
        return decision.otherwise
    write = partial(writer.write, partial(change.write, state))
    return (yield from write_and_read_back(writer, write, change.judge, change.refused))


def write_and_read_back(
    writer: NodeWriter, write: Callable[[], None], read: Callable[[], T], refused: Callable[[SlurmError], T] | None = None
) -> Generator[str, None, T]:
    """Call ``write``, which must require a fresh reading, then ``read``, and return what ``read`` returns. ``refused``: see
    ``NodeChange``. The writer's ``window_seconds`` then say in which time another person's change may have been overwritten."""
    yield "write"
    try:
        write()
    except SlurmUnavailable:
        raise
    except SlurmError as e:
        if refused is None:
            raise
        return refused(e)
    writer.close_window()
    yield "read back"
    return read()
