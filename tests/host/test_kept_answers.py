"""A program that did not answer once: what it says later counts. The programs are scripts in a folder at the head of PATH."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fairlead.host import kept_answers, modinfo, unit_state
from fairlead.host.root import Root
from fairlead.model.missing import Missing, unreadable

READERS = {
    "systemctl": (unit_state.text, f"{unit_state.PREFIX}no-such-unit-of-anybody.service"),
    "modinfo": (modinfo.text, f"{modinfo.PREFIX}no_such_module_of_anybody"),
}


@pytest.mark.parametrize("program", READERS)
def test_what_could_not_be_read_once_is_read_later(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While systemd reads its unit files again, systemctl may not answer in time. The node must not stay `unknown` for it."""
    script = tmp_path / program
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(kept_answers, "AGAIN_SECONDS", 0.0)
    text, path = READERS[program]
    for line, said in (("echo 'Connection timed out' >&2; exit 1", None), ("echo LoadState=loaded", "LoadState=loaded\n")):
        script.write_text(f"#!/bin/sh\n{line}\n")
        script.chmod(0o755)
        found = text(Root("/"), path)
        assert found == said or (said is None and isinstance(found, Missing))


def test_a_program_that_never_answers_does_not_hold_up_every_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    unread = unreadable("no answer")

    def ask(key: str) -> Missing:
        asked.append(key)
        return unread

    kept = kept_answers.KeptAnswers(ask)
    assert [kept.answer("x", 1) for _ in range(3)] == [unread] * 3 and asked == ["x"]
    assert kept.answer("x", 2) is unread and asked == ["x", "x"], "what it depends on has changed"
