"""Fetches over ssh what each node's agent reports: the verdict and the status in /run/fairlead.

A node that has not answered in time is reported as not reached. A node's root may be hostile. Therefore ``ssh_fetch`` limits the
length of an answer, and only ``agent_status`` reads the status in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from msgspec import Struct

from fairlead.errors import DataError
from fairlead.model.isolated import isolated
from fairlead.model.plain_text import one_line
from fairlead.model.verdict import State, parse_line
from fairlead.policy.decision_rules import SETTING_PREFIX
from fairlead.provision.agent_status import Status, status_of
from fairlead.provision.node_answer import TEXT_MAX
from fairlead.provision.ssh_fetch import NodeAnswer, SshFetch, parts_of, reading

TEXT = 200  # the longest name or version that is kept, in characters
FILES = ("/run/fairlead/verdict", "/proc/uptime", "/run/fairlead/status.json")
COMMAND = reading(FILES)


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
        status = status_of(parts.get(FILES[2], b""))
    except DataError as e:
        return AgentAccount(reached=False, trouble=str(e))
    if not parts.get(FILES[0], b"").strip():
        return AgentAccount(
            reached=True, trouble="no verdict: is fairlead-agent.service running?", **_status_fields(status, None)
        )
    try:
        verdict = parse_line(parts[FILES[0]].decode("utf-8", "replace").rstrip("\n") + "\n")
        now = _uptime(parts.get(FILES[1], b""))
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
    """Fetches accounts over ssh. ``command``: COMMAND, or a ``reading`` command for more files too. ``on_whole``: called with the
    node and the whole answer of each node whose account could be read. The other arguments are those of ``SshFetch``."""

    def __init__(self, *, command: str = COMMAND, on_whole: Callable[[str, bytes], None] | None = None, **ssh: Any) -> None:
        self._ssh = SshFetch(**ssh)
        self._command, self._on_whole = command, on_whole or (lambda node, answer: None)

    def fetch(self, addresses: Mapping[str, str]) -> dict[str, AgentAccount]:
        answers = self._ssh.fetch(addresses, self._command)

        def account(node: str) -> AgentAccount:
            return isolated(
                lambda: self._account(node, addresses[node], answers[node]), lambda why: AgentAccount(reached=False, trouble=why)
            )

        return {node: account(node) for node in addresses}

    def _account(self, node: str, address: str, answer: NodeAnswer) -> AgentAccount:
        if answer.trouble:
            return AgentAccount(reached=False, trouble=answer.trouble)
        found = parse_account(answer.out)
        if found.node in ("", node):
            if found.reached:
                self._on_whole(node, answer.out)
            return found
        return AgentAccount(reached=False, trouble=f"ssh {address} leads to {found.node}")
