"""Finds the agent's state folder for commands: the folder that was named, else ``agent.state_dir`` of the node's document."""

from __future__ import annotations

import argparse

import msgspec
from msgspec import Struct

from fairlead.model.json_text import NOT_JSON

DEFAULT = "/var/lib/fairlead"
DOCUMENT = "/etc/fairlead/node.json"


class _AgentPart(Struct, frozen=True):
    state_dir: str = DEFAULT


class _DocumentPart(Struct, frozen=True):
    agent: _AgentPart = _AgentPart()


def add_state_dir(parser: argparse.ArgumentParser, *, shown: bool = True) -> None:
    """Add the option --state-dir. Without it, ``state_folder`` reads the document."""
    words = f"the agent's state (agent.state_dir of {DOCUMENT}, else {DEFAULT})" if shown else argparse.SUPPRESS
    parser.add_argument("--state-dir", metavar="DIR", default="", help=words)


def state_folder(named: str, document: str = DOCUMENT) -> str:
    """Return the folder ``named``, or the agent's folder if it is "". The rest of the document is not read, so that `fairlead
    hold` works with a document that is wrong elsewhere."""
    if named:
        return named
    try:
        with open(document, "rb") as f:
            return msgspec.json.decode(f.read(8 << 20), type=_DocumentPart).agent.state_dir or DEFAULT
    except (*NOT_JSON, OSError):
        return DEFAULT
