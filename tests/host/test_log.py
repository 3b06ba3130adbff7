"""The lines of the log."""

from __future__ import annotations

import pytest

from fairlead.host import log


def test_log_lines(capsys: pytest.CaptureFixture[str]) -> None:
    log.line(4, "drain requested", node="n1", text='two "words"\nand=more', empty="", none=None, zero=0)
    assert capsys.readouterr().err == '<4>drain_requested node=n1 text="two \\"words\\" and=more" zero=0\n'
