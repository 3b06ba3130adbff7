"""Fetches over ssh what each node's agent reports: the verdict and the status in /run/fairlead.

ClusterShell runs many ssh processes at once, and each runs one `head` on its node. All nodes together have one time limit. A
node that has not answered by then is reported as not reached. No port is opened on a node. Nothing is started on it except the
login shell, which becomes `head`. A node's root may be hostile. Therefore the length of an answer is limited, and only
``agent_status`` reads the status in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Protocol

from msgspec import Struct

from fairlead.errors import DataError
from fairlead.model.isolated import isolated
from fairlead.model.plain_text import one_line
from fairlead.model.verdict import State, parse_line
from fairlead.policy.decision_rules import SETTING_PREFIX
from fairlead.provision.agent_status import Status, status_of
from fairlead.provision.node_answer import SAID, TEXT_MAX
from fairlead.provision.ssh import ANSWER_MAX_BYTES

TEXT = 200  # the longest name or version that is kept, in characters
_PARTS = ("/run/fairlead/verdict", "/proc/uptime", "/run/fairlead/status.json")
_END = "/dev/null"  # the last file that head prints: an answer with its heading is complete
_HEADING = re.compile(rb"^==> (/\S+) <==\n", re.MULTILINE)


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


COMMAND = reading(_PARTS)


class AgentAccount(Struct, frozen=True, kw_only=True):
    """Holds what one agent reports. reached: whether ssh has reached the node and its answer can be read. trouble: in one line,
    why the node was not reached or has no valid verdict, or "". node: the node that the agent says it runs on.

    verdict: ok, warn, drain or unknown; stale if the verdict has expired; none if there is no verdict. age_seconds: the time
    since the last sweep. drift: the settings that are not as declared. drained_since: when fairlead drained the node, as the
    agent reports it, in Unix seconds; 0 if there is no such drain.
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


class AccountSource(Protocol):
    """Fetches what the agents of nodes report, as one ``AgentAccount`` for each node."""

    def fetch(self, addresses: Mapping[str, str]) -> dict[str, AgentAccount]:
        """Return one account for each node, by node name. ``addresses``: the address of each node, by node name."""


def parse_account(answer: bytes) -> AgentAccount:
    """Return the account from the output of ``COMMAND`` or of a ``reading`` command for more files."""
    parts = parts_of(answer)
    if parts is None:
        return AgentAccount(reached=False, trouble="its answer is cut short")
    try:
        status = status_of(parts.get(_PARTS[2], b""))
    except DataError as e:
        return AgentAccount(reached=False, trouble=str(e))
    if not parts.get(_PARTS[0], b"").strip():
        return AgentAccount(
            reached=True, trouble="no verdict: is fairlead-agent.service running?", **_status_fields(status, None)
        )
    try:
        verdict = parse_line(parts[_PARTS[0]].decode("utf-8", "replace").rstrip("\n") + "\n")
        now = _uptime(parts.get(_PARTS[1], b""))
    except DataError as e:
        return AgentAccount(
            reached=True, trouble=f"its verdict cannot be read: {one_line(str(e), 200)}", **_status_fields(status, None)
        )
    expired = now > verdict.expires and verdict.state is not State.DRAIN
    word = "stale" if expired else verdict.state.value
    trouble = f"its verdict expired {now - verdict.expires:.0f} s ago: the agent has stopped its sweeps" if expired else ""
    return AgentAccount(
        reached=True, trouble=trouble, verdict=word, text=one_line(verdict.text, TEXT_MAX), **_status_fields(status, now)
    )


def _uptime(content: bytes) -> float:
    """Return the seconds since the boot from the content of /proc/uptime. The verdict has the time of its expiry on the same
    clock. Raises DataError."""
    found = re.match(rb"[0-9]{1,12}\.[0-9]{1,9}\s", content)
    if not found:
        raise DataError("the answer has no /proc/uptime")
    return float(found[0])


def _status_fields(status: Status, now: float | None) -> dict[str, Any]:
    """Return the fields of an account that come from status.json."""
    document, hold, drain = status.get("document") or {}, status.get("hold"), status.get("drain") or {}
    findings = status.get("findings", [])
    swept = status.get("sweep", {}).get("boot_seconds")
    checks = {f["check"] for f in findings}
    return {
        "node": status.get("slurm_node", "")[:TEXT],
        "age_seconds": max(0.0, now - swept) if now is not None and swept is not None else None,
        "agent": status.get("agent_version", "")[:TEXT],
        "driver": status.get("driver", "")[:TEXT],
        "profile": document.get("profile", "")[:TEXT],
        "generation": document.get("generation", 0),
        "drift": tuple(sorted(c.removeprefix(SETTING_PREFIX)[:TEXT] for c in checks if c.startswith(SETTING_PREFIX))),
        "findings": len(findings),
        "hold": one_line(f"{hold.get('who', '')}: {hold.get('reason', '')}") if hold else "",
        "drained_since": drain.get("since_unix", 0.0),
    }


class SshAccounts:
    """Fetches accounts over ssh. program: the ssh command. options: the site's ssh options and others, as one line. user: the
    login name, or "" to let ssh choose it.

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

    def fetch(self, addresses: Mapping[str, str]) -> dict[str, AgentAccount]:
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

        worker = Workers(wanted, Counting(), self._seconds, command=COMMAND, stderr=True)
        task.schedule(worker)
        with suppress(LateError):
            task.resume(self._seconds)
        codes = {str(key): code for code, keys in worker.iter_retcodes() for key in keys}
        long = AgentAccount(reached=False, trouble=f"{SAID}: it does not end")

        def account(node: str, address: str) -> AgentAccount:
            said = bytes(answers.get(address, b"")), bytes(errors.get(address, b""))
            return isolated(
                lambda: long if address in endless else self._account(node, address, *said, codes.get(address)),
                lambda why: AgentAccount(reached=False, trouble=why),
            )

        return {node: account(node, address) for node, address in addresses.items()}

    def _account(self, node: str, address: str, answer: bytes, error: bytes, code: int | None) -> AgentAccount:
        if code == 0 or (code == 1 and parts_of(answer)):  # head exits with 1 if a file does not exist
            found = parse_account(answer)
            if found.node in ("", node):
                return found
            return AgentAccount(reached=False, trouble=f"ssh {address} leads to {found.node}")
        if code is None:
            return AgentAccount(reached=False, trouble=f"no answer in {self._seconds:g} s")
        said = error.decode("utf-8", "replace").strip().splitlines()
        return AgentAccount(reached=False, trouble=one_line(said[-1])[:200] if said else f"ssh ended with {code}")
