"""Finds nodes that fail in the same way: their failures are equal except for each node's own name and address."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

K = TypeVar("K", bound=Hashable)
_NAME_WORD = r"(?<![\w.-]){}(?:\.[\w-]+)*(?![\w-])"
#: Finds the node's address in an error message of ssh(1) or of Ansible's ssh connection.
_ADDRESS = re.compile(
    r"(?<=\bhost )[\w.:%-]+(?= port\b)|(?<=\bhost \")[\w.:%-]+|(?<=\bhostname )[\w.:%-]+(?=: )|(?<=\bby )[\w.:%-]+(?= port\b)"
    r"|(?<=@)[\w.:%-]+(?=:)|\b\d{1,3}(?:\.\d{1,3}){3}\b"
)


def of_any_node(text: str, node: str, *, from_ssh: bool = False) -> str:
    """Return the text with NODE in place of the node's own name. With ``from_ssh``, also put ADDRESS in place of its address."""
    if from_ssh:
        text = _ADDRESS.sub(lambda found: "NODE" if found[0] == node else "ADDRESS", text)
    return re.sub(_NAME_WORD.format(re.escape(node)), "NODE", text)


def shown_texts(texts: Sequence[Sequence[str]], common: Sequence[str]) -> tuple[str, ...]:
    """Return the texts that are shown for several nodes: the nodes' own texts if they are all equal, else ``common``."""
    return tuple(texts[0]) if all(tuple(each) == tuple(texts[0]) for each in texts) else tuple(common)


def of_several(groups: Iterable[tuple[K | None, Sequence[str]]]) -> Mapping[K, list[str]]:
    """Return the failures that more than one group of nodes has, with the nodes of all these groups."""
    known = [(failure, nodes) for failure, nodes in groups if failure is not None]
    counts = Counter(failure for failure, _ in known)
    found: dict[K, list[str]] = {}
    for failure, nodes in known:
        if counts[failure] > 1:
            found.setdefault(failure, []).extend(nodes)
    return found
