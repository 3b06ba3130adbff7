"""What each node's agent says of itself, fetched over ssh: its verdict, and its status from /run/fairlead.

One `head` on each node, by as many ssh processes at once (ClusterShell), bounded in time as a whole: what has not answered by
then is told as not reached. No port is opened for it, and nothing is started on a node but its login shell, which becomes head.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from fairlead.errors import DataError
from fairlead.model.json_text import NOT_JSON
from fairlead.model.verdict import State, one_line, parse_line
from fairlead.policy.rules import SETTING_PREFIX

ANSWER_MAX_BYTES = 4 << 20
_PARTS = ("/run/fairlead/verdict", "/proc/uptime", "/run/fairlead/status.json")
_END = "/dev/null"  # the last file that is named: what comes before it is whole
_HEADING = re.compile(rb"^==> (/\S+) <==\n", re.MULTILINE)


def reading(files: Iterable[str]) -> str:
    """The command that shows these files of a node as ``parts_of`` reads them. Every login shell understands it; GNU head heads
    each file that there is with ``==> its name <==`` (coreutils manual, head)."""
    return f"exec head -v -c {ANSWER_MAX_BYTES} {' '.join(files)} {_END}"


def parts_of(answer: bytes) -> dict[str, bytes] | None:
    """The files in what ``reading`` printed, without a shell's greetings before them; None for an answer that is cut short."""
    _, *pieces = _HEADING.split(answer[:ANSWER_MAX_BYTES] + b"\n")
    parts = {name.decode("ascii", "replace"): content for name, content in zip(pieces[::2], pieces[1::2], strict=True)}
    return parts if _END in parts else None


COMMAND = reading(_PARTS)


class Account(Struct, frozen=True, kw_only=True):
    """One agent's account. ``reached``: the node was; else ``trouble`` says why not, in one line. node: whose it says it is.

    verdict: the word that may be relied on now: ok, warn, drain or unknown; stale: it has expired; none: there is none.
    age_seconds: since the last look at the node. drift: settings that are not as declared. drained_since: Unix time of the
    drain that the agent knows as fairlead's, 0 for none.
    """

    reached: bool
    node: str = ""
    trouble: str = ""
    verdict: str = "none"
    text: str = ""
    age_seconds: float | None = None
    agent: str = ""
    driver: str = ""
    profile: str = ""
    generation: int = 0
    drift: tuple[str, ...] = ()
    findings: int = 0
    hold: str = ""
    drained_since: float = 0.0


class Source(Protocol):
    """Where accounts come from."""

    def fetch(self, addresses: Mapping[str, str]) -> dict[str, Account]:
        """One account for each node, by node name; ``addresses``: where each node is found."""


def parse_account(answer: bytes) -> Account:
    """The account in what ``COMMAND``, or a ``reading`` of more files, printed."""
    parts = parts_of(answer)
    if parts is None:
        return Account(reached=False, trouble="its answer is cut short")
    status = _status(parts.get(_PARTS[2], b""))
    if not parts.get(_PARTS[0], b"").strip():
        return Account(reached=True, trouble="no verdict: is fairlead-agent.service running?", **_told(status, None))
    try:
        verdict = parse_line(parts[_PARTS[0]].decode("utf-8", "replace").rstrip("\n") + "\n")
        now = _uptime(parts.get(_PARTS[1], b""))
    except DataError as e:
        return Account(reached=True, trouble=f"its verdict cannot be read: {one_line(str(e))}", **_told(status, None))
    expired = now > verdict.expires and verdict.state is not State.DRAIN
    word = "stale" if expired else verdict.state.value
    trouble = f"its verdict expired {now - verdict.expires:.0f} s ago: the agent has stopped looking" if expired else ""
    return Account(reached=True, trouble=trouble, verdict=word, text=verdict.text, **_told(status, now))


def _uptime(content: bytes) -> float:
    """Seconds since the boot, of /proc/uptime: the clock that a verdict's end is given in. Raises DataError."""
    try:
        return float(content.split()[0])
    except (ValueError, IndexError):
        raise DataError("the answer has no /proc/uptime") from None


def _status(content: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(content)
    except NOT_JSON:
        return {}
    return found if isinstance(found, dict) else {}


def _told(status: dict[str, Any], now: float | None) -> dict[str, Any]:
    """The fields that come from status.json; what is not there, or is of another kind, is left out."""
    document, sweep, hold, drain = (_table(status, key) for key in ("document", "sweep", "hold", "drain"))
    findings = [f for f in status.get("findings") or () if isinstance(f, dict)]
    checks = [str(f.get("check", "")) for f in findings]
    swept = sweep.get("boot_seconds")
    generation, since = document.get("generation"), drain.get("since_unix")
    return {
        "node": _text(status, "slurm_node"),
        "age_seconds": max(0.0, now - swept) if now is not None and isinstance(swept, int | float) else None,
        "agent": _text(status, "agent_version"),
        "driver": _text(status, "driver"),
        "profile": _text(document, "profile"),
        "generation": generation if isinstance(generation, int) else 0,
        "drift": tuple(sorted({c.removeprefix(SETTING_PREFIX) for c in checks if c.startswith(SETTING_PREFIX)})),
        "findings": len(findings),
        "hold": one_line(f"{_text(hold, 'who')}: {_text(hold, 'reason')}") if hold else "",
        "drained_since": float(since) if isinstance(since, int | float) else 0.0,
    }


def _table(status: dict[str, Any], key: str) -> dict[str, Any]:
    found = status.get(key)
    return found if isinstance(found, dict) else {}


def _text(table: dict[str, Any], key: str) -> str:
    found = table.get(key)
    return one_line(found)[:200] if isinstance(found, str) else ""


class OverSsh:
    """Source over ssh. program: the ssh command; options: the site's own and others, as one line; user: "" is ssh's own.

    seconds: for all nodes together. fanout: how many ssh processes at once. told: called with how many of how many nodes have
    answered, or failed to, each time one does.
    """

    def __init__(
        self,
        *,
        program: str = "ssh",
        options: str = "",
        user: str = "",
        seconds: float = 10.0,
        fanout: int = 128,
        told: Callable[[int, int], None] | None = None,
    ) -> None:
        self._program = program
        self._options = options
        self._user = user
        self._seconds = seconds
        self._fanout = fanout
        self._told = told or (lambda done, total: None)

    def fetch(self, addresses: Mapping[str, str]) -> dict[str, Account]:
        from ClusterShell.Event import EventHandler
        from ClusterShell.NodeSet import NodeSet
        from ClusterShell.Task import TimeoutError as LateError
        from ClusterShell.Task import task_self
        from ClusterShell.Worker.Ssh import WorkerSsh

        if not addresses:
            return {}
        task = task_self()
        settings = {"fanout": self._fanout, "ssh_path": self._program, "ssh_options": self._options, "ssh_user": self._user}
        for key, value in {**settings, "connect_timeout": max(1, min(10, int(self._seconds)))}.items():
            task.set_info(key, value)
        told, wanted = self._told, NodeSet.fromlist(list(addresses.values()))

        class Counting(EventHandler):  # type: ignore[misc]
            ended = 0

            def ev_hup(self, worker: object, node: str, rc: int) -> None:
                self.ended += 1
                told(self.ended, len(wanted))

        worker = WorkerSsh(wanted, Counting(), self._seconds, command=COMMAND, stderr=True)
        task.schedule(worker)
        with suppress(LateError):
            task.resume(self._seconds)
        answers = {str(key): bytes(buffer) for buffer, keys in worker.iter_buffers() for key in keys}
        errors = {str(key): bytes(buffer) for buffer, keys in worker.iter_errors() for key in keys}
        codes = {str(key): code for code, keys in worker.iter_retcodes() for key in keys}
        return {n: self._account(n, a, answers.get(a, b""), errors.get(a, b""), codes.get(a)) for n, a in addresses.items()}

    def _account(self, node: str, address: str, answer: bytes, error: bytes, code: int | None) -> Account:
        if code == 0 or (code == 1 and parts_of(answer)):  # head ends with 1 where a file is not there
            found = parse_account(answer)
            if found.node in ("", node):
                return found
            return Account(reached=False, trouble=f"ssh {address} leads to {found.node}")
        if code is None:
            return Account(reached=False, trouble=f"no answer in {self._seconds:g} s")
        said = error.decode("utf-8", "replace").strip().splitlines()
        return Account(reached=False, trouble=one_line(said[-1])[:200] if said else f"ssh ended with {code}")
