"""What a person reads before the first try: --help within 80 columns, without a word of argparse's own workings."""

from __future__ import annotations

import pytest

from fairlead.cli import COMMANDS, command_parser, main
from fairlead.cli.help_text import HelpFormatter, wrapped


@pytest.mark.parametrize("columns", ["80", "200"])
@pytest.mark.parametrize("words", [("--help",), *((name, "--help") for name in COMMANDS)], ids=lambda words: words[0])
def test_help_is_within_80_columns(
    words: tuple[str, ...], columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert main(words) == 0
    said = capsys.readouterr().out
    assert not [line for line in said.splitlines() if len(line) > 80]
    assert "SUPPRESS" not in said and "%(" not in said and "(default )" not in said


@pytest.mark.parametrize("name", COMMANDS)
def test_every_argument_says_what_it_is(name: str) -> None:
    parser = command_parser(name)
    unsaid = [action.dest for action in parser._actions if not HelpFormatter(parser.prog).help_of(action)]
    assert not unsaid, "an argument without help"


def test_sentences_are_filled_and_examples_stay_lines() -> None:
    text = "One sentence that is\nlong.\n\n  fairlead x FILE    says it twice over\nnext FILE    ends"
    assert wrapped(text, 30) == [
        "One sentence that is long.",
        "",
        "  fairlead x FILE    says it",
        "                     twice",
        "                     over",
        "next FILE    ends",
    ]
