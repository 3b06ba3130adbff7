"""Keeps what a program has answered, until what the answer depends on has changed.

An answer that could not be read is kept for ``AGAIN_SECONDS`` only: a program that did not answer in time once (systemctl, while
systemd reads its unit files) answers the next time. Without any pause each sweep would wait for a program that never answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from fairlead.model.facts import Missing

AGAIN_SECONDS = 60.0
Answer = str | Missing | None


class KeptAnswers:
    """Holds the answers of one program by key. ``ask``: runs the program for a key."""

    def __init__(self, ask: Callable[[str], Answer]) -> None:
        self._ask = ask
        self._kept: dict[str, tuple[object, Answer, float]] = {}

    def answer(self, key: str, stamp: object) -> Answer:
        """Return the answer for the key. ``stamp``: what the answer depends on, or None if that is not known."""
        now = time.monotonic()
        kept = self._kept.get(key)
        if kept is None or stamp is None or kept[0] != stamp or (isinstance(kept[1], Missing) and now >= kept[2]):
            found = self._ask(key)
            self._kept[key] = kept = (stamp, found, time.monotonic() + AGAIN_SECONDS)
        return kept[1]
