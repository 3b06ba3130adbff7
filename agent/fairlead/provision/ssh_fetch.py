"""Reads files of many nodes at once over ssh.

ClusterShell runs many ssh processes at once, and each runs one `head` on its node. All nodes together have one time limit. No
port is opened on a node. Nothing is started on it except the login shell, which becomes `head`. A node's root may be hostile.
Therefore the length of an answer is limited.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from msgspec import Struct

from fairlead.model.plain_text import one_line
from fairlead.provision.node_answer import SAID
from fairlead.provision.ssh import ANSWER_MAX_BYTES

_END = "/dev/null"  # the last file that head prints: an answer with its heading is complete
_HEADING = re.compile(rb"^==> (/\S+) <==\n", re.MULTILINE)


#: The time limit for the answers of all nodes is ALL_SECONDS plus EACH_SECONDS for each node, because a new ssh connection takes
#: the admin host 0.07 s of CPU time (docs/how-to/fleet.md).
ALL_SECONDS, EACH_SECONDS = 10.0, 0.1


def deadline_seconds(nodes: int) -> float:
    """Return the time limit for the answers of so many nodes together."""
    return ALL_SECONDS + EACH_SECONDS * nodes


def reading(files: Iterable[str]) -> str:
    """Return the command that prints these files of a node in the form that ``parts_of`` reads. Every login shell can run this
    command. GNU head writes ``==> NAME <==`` above each file that exists (coreutils manual, head)."""
    return f"exec head -v -c {ANSWER_MAX_BYTES // 2} {' '.join(files)} {_END}"


def parts_of(answer: bytes) -> dict[str, bytes] | None:
    """Return the content of each file by its path, from the output of a ``reading`` command. Return None if the output is cut
    short. What a login shell printed before the first file is left out."""
    _, *pieces = _HEADING.split(answer[:ANSWER_MAX_BYTES] + b"\n")
    parts = {name.decode("ascii", "replace"): content for name, content in zip(pieces[::2], pieces[1::2], strict=True)}
    return parts if _END in parts else None


class NodeAnswer(Struct, frozen=True, kw_only=True):
    """Holds what one node has sent. trouble: in one line, why there is no complete answer, or ""."""

    out: bytes = b""
    trouble: str = ""


class SshFetch:
    """Runs one command on many nodes over ssh. program: the ssh command. options: the site's ssh options and others, as one line.
    user: the login name, or "" to let ssh choose it.

    seconds: the time limit for all nodes together. fanout: how many ssh processes run at once. on_answer: called with (answered,
    total) each time a node has answered or failed.
    """

    def __init__(
        self,
        *,
        program: str = "ssh",
        options: str = "",
        user: str = "",
        seconds: float = 10.0,
        fanout: int = 128,
        on_answer: Callable[[int, int], None] | None = None,
    ) -> None:
        self._program = program
        self._options = options
        self._user = user
        self._seconds = seconds
        self._fanout = fanout
        self._on_answer = on_answer or (lambda done, total: None)

    def fetch(self, addresses: Mapping[str, str], command: str) -> dict[str, NodeAnswer]:
        """Return the answer of each node. ``addresses``: the address of each node, by node name. ``command``: a command made by
        ``reading``."""
        from ClusterShell.Event import EventHandler
        from ClusterShell.NodeSet import NodeSet
        from ClusterShell.Task import TimeoutError as LateError
        from ClusterShell.Task import task_self
        from ClusterShell.Worker.EngineClient import EngineClientEOF
        from ClusterShell.Worker.Ssh import SshClient, WorkerSsh

        if not addresses:
            return {}
        task = task_self()
        settings = {"fanout": self._fanout, "ssh_path": self._program, "ssh_options": self._options, "ssh_user": self._user}
        for key, value in {**settings, "connect_timeout": max(1, min(10, int(self._seconds)))}.items():
            task.set_info(key, value)
        on_answer, wanted = self._on_answer, NodeSet.fromlist(list(addresses.values()))

        class Counting(EventHandler):  # type: ignore[misc]
            ended = 0

            def ev_hup(self, worker: object, node: str, rc: int) -> None:
                self.ended += 1
                on_answer(self.ended, len(wanted))

        answers: dict[str, bytearray] = {}
        errors: dict[str, bytearray] = {}
        endless: set[str] = set()

        class Bounded(SshClient):  # type: ignore[misc]
            """Runs ssh to one node, and kills ssh when the node has sent more than ANSWER_MAX_BYTES."""

            def _handle_read(self, sname: str) -> None:
                """Collect the data in blocks. ClusterShell itself reads line by line, and a node may send millions of lines."""
                said = (answers if sname == self.worker.SNAME_STDOUT else errors).setdefault(str(self.key), bytearray())
                said += self._read(sname)
                if len(said) > ANSWER_MAX_BYTES:
                    endless.add(str(self.key))
                    self.popen.kill()
                    raise EngineClientEOF

        class Workers(WorkerSsh):  # type: ignore[misc]
            SHELL_CLASS = Bounded

        worker = Workers(wanted, Counting(), self._seconds, command=command, stderr=True)
        task.schedule(worker)
        with suppress(LateError):
            task.resume(self._seconds)
        codes = {str(key): code for code, keys in worker.iter_retcodes() for key in keys}

        def answer(address: str) -> NodeAnswer:
            if address in endless:
                return NodeAnswer(trouble=f"{SAID}: it does not end")
            return self._answer(bytes(answers.get(address, b"")), bytes(errors.get(address, b"")), codes.get(address))

        return {node: answer(address) for node, address in addresses.items()}

    def _answer(self, out: bytes, error: bytes, code: int | None) -> NodeAnswer:
        if code in (0, 1) and parts_of(out) is not None:  # head exits with 1 if a file does not exist
            return NodeAnswer(out=out)
        if code == 0:
            return NodeAnswer(trouble="its answer is cut short")
        if code is None:
            return NodeAnswer(trouble=f"no answer in {self._seconds:g} s")
        said = error.decode("utf-8", "replace").strip().splitlines()
        return NodeAnswer(trouble=one_line(said[-1])[:200] if said else f"ssh ended with {code}")
