"""Reads the status of a node's agent (written by status_json.py) on another host, and validates it.

A node's root may be hostile. Therefore `fleet`, `maintain` and `why` read a node's status through this module alone. Unknown
keys are left out, and every text is made printable. If a known value has a wrong type or an impossible size, the whole status
is refused.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Required, TypedDict, TypeVar

import msgspec
from msgspec import Meta

from fairlead.errors import DataError
from fairlead.model.json_text import NOT_JSON
from fairlead.model.plain_text import one_line
from fairlead.provision.node_answer import SAID, TEXT_MAX

MANY = 5000
Unix = Annotated[float, Meta(ge=0, le=1e11)]  # Unix seconds; a few fields have seconds since the boot
Count = Annotated[int, Meta(ge=0, lt=1 << 53)]
Texts = Annotated[list[str], Meta(max_length=MANY)]
Times = Annotated[list[Unix], Meta(max_length=MANY)]

Raised = TypedDict("Raised", {"from": str, "why": str})


class _Drain(TypedDict, total=False):
    reason: str
    since_unix: Unix


class _Hold(TypedDict, total=False):
    who: str
    when: str
    until: str
    reason: str


class _Limit(TypedDict):
    kind: str
    name: str


class _Stuck(TypedDict):
    call: str
    gpu: str
    seconds: Unix


class _Suppressed(TypedDict):
    check: str
    summary: str
    why: str


class _Event(TypedDict, total=False):
    event: str
    text: str
    unix_seconds: Unix


class _Gpu(TypedDict, total=False):
    pci: str
    serial: str
    uuid: str


class _Document(TypedDict, total=False):
    generation: Count
    profile: str
    hash: str


class _StateFolder(TypedDict, total=False):
    path: str
    lost_at_reboot: str


class _Sweep(TypedDict, total=False):
    boot_seconds: Unix | None


class _Worker(TypedDict, total=False):
    stuck: _Stuck | None


class _Return(TypedDict, total=False):
    state: str
    outcome: str
    said: str
    ended_unix: Unix
    next_unix: Unix


_Slurm = TypedDict(  # noqa: UP013 (the agent's key "held" is no name of ours)
    "_Slurm",
    {"error": str, "held": str, "over_budget": str, "limit": _Limit | None, "topology": str},
    total=False,
)


class _Finding(TypedDict, total=False):
    check: Required[str]
    summary: Required[str]
    level: str
    device: str
    evidence: Texts
    action: str
    mode: str
    id: str
    raised: Raised | None


Status = TypedDict(
    "Status",
    {
        "agent_version": str,
        "agent_release": str,
        "state_folder": _StateFolder,
        "driver": str,
        "node": str,
        "slurm_node": str,
        "boot_id": str,
        "document": _Document,
        "sweep": _Sweep,
        "findings": Annotated[list[_Finding], Meta(max_length=MANY)],
        "acknowledged": Texts,
        "held": Annotated[list[_Suppressed], Meta(max_length=MANY)],
        "drain": _Drain | None,
        "hold": _Hold | None,
        "return": _Return | None,
        "reboots": Times,
        "gpus": Annotated[list[_Gpu], Meta(max_length=MANY)],
        "strikes": Annotated[dict[str, Times], Meta(max_length=MANY)],
        "slurm": _Slurm,
        "worker": _Worker,
        "trouble": Texts,
        "history": Annotated[list[_Event], Meta(max_length=MANY)],
    },
    total=False,
)


class _Agent(TypedDict, total=False):
    """Describes the value of "agent" in the output of `fairlead why --json`."""

    state: Required[Literal["ok", "warn", "drain", "unknown"]]
    text: str
    sequence: Count
    expired: bool
    running: bool
    age_seconds: Annotated[float, Meta(ge=-1e11, le=1e11)] | None
    status: Status


class _Entry(TypedDict, total=False):
    """Describes one entry of the audit trail (daemon/requests/audit_trail.py)."""

    unix: Required[Unix]
    id: Required[str]
    what: Required[str]
    who: Required[str]
    uid: Count
    tty: str
    client: str
    args: Annotated[dict[str, str], Meta(max_length=100)]
    why: str
    outcome: str
    detail: str


class WhyAnswer(TypedDict, total=False):
    """Describes the output of `fairlead why --json` on the node itself."""

    agent: Required[_Agent]
    audit: Annotated[list[_Entry], Meta(max_length=1_000_000)]


T = TypeVar("T")
# Both are made here, when one thread imports this module. If several threads decode a type for the first time at the same time,
# msgspec 0.22 crashes the whole program, and `fairlead maintain` reads nodes in threads.
_STATUS = msgspec.json.Decoder(Status)
_WHY = msgspec.json.Decoder(WhyAnswer)


def status_of(content: bytes) -> Status:
    """Return the content of a status.json, or {} if it is empty. Raises DataError."""
    return _read(content, _STATUS) if content.strip() else {}


def account_of(content: bytes) -> WhyAnswer:
    """Return the parsed output of `fairlead why --json`. Raises DataError."""
    return _read(content, _WHY)


def _read(content: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    try:
        found: T = _printable(decoder.decode(content))
    except NOT_JSON as e:
        raise DataError(f"{SAID}: {one_line(str(e), 200)}") from None
    return found


def _printable(value: Any) -> Any:
    """Return the value with every text on one line, also the keys of tables."""
    if isinstance(value, str):
        return one_line(value, TEXT_MAX)
    if isinstance(value, list):
        return [_printable(each) for each in value]
    if isinstance(value, dict):
        return {_printable(key): _printable(each) for key, each in value.items()}
    return value
