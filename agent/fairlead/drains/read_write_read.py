"""Makes one change to a node in Slurm in fixed steps: read, decide, write while the reading is fresh, read back.

slurmctld has no compare-and-swap, so every program uses this order. The programs differ in the rule that decides, and in where
they save the intent before the first step. ``protocol`` saves it in the ledger on the node. Maintenance saves it in the journal
on the admin host.
Each function is a generator that yields the name of its next step *before* that step. ``outcome.finish`` runs the generator to
its end.
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
    """Holds whether a reading allows the write. ``otherwise``: the result of the change if nothing is written."""

    write: bool
    otherwise: T


@dataclass(frozen=True)
class NodeChange(Generic[T]):
    """Describes one change to a node by the rule of the program that makes it.

    decide: judges the reading. write: sends the change, and its argument is the reading that has allowed the change. judge:
    reads the node again and returns the result of the change. refused: returns the result if slurmctld has answered the write
    with an error. If it is None, the error is raised.
    """

    decide: Callable[[NodeState], WriteDecision[T]]
    write: Callable[[NodeState], None]
    judge: Callable[[], T]
    refused: Callable[[SlurmError], T] | None = None


def change_node(writer: NodeWriter, change: NodeChange[T]) -> Generator[str, None, T]:
    """Change a node by the rule of ``change`` and return the result. If the reading has become too old, nothing is written, and
    the caller tries again.

    Raises SlurmUnavailable or SlurmError.
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
    """Call ``write``, then call ``read`` and return its result. ``write`` must require a fresh reading. ``refused``: see
    ``NodeChange``. This sets the writer's ``window_seconds``, the time in which a change by a person may have been
    overwritten."""
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
