"""Usage errors never look like a verdict; every command says what it is."""

from __future__ import annotations

import pytest

from fairlead.cli import COMMANDS, command_parser, main


@pytest.mark.parametrize("name", COMMANDS)
def test_unknown_option_ends_with_64(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--no-such-option"]) == 64
    assert "usage:" in capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str) -> None:
    assert len(command_parser(name).format_help()) > 80


READING = {
    "audit",
    "ack",
    "check",
    "status",
    "why",
    "explain",
    "topology",
    "config",
    "doctor",
    "selftest",
    "version",
    "env",
    "plan",
    "provision",
    "render",
    "apply",
    "xid",
    "accept",
    "maintain",
    "lock",
    "bundle",
}
CHANGING = {
    "run",
    "apply",
    "provision",
    "render",
    "drain",
    "resume",
    "hold",
    "ack",
    "clear",
    "accept",
    "maintain",
    "bundle",
    "lock",
}


@pytest.mark.parametrize("name", sorted(READING))
def test_reading_commands_have_json(name: str) -> None:
    assert "--json" in command_parser(name).format_help()


@pytest.mark.parametrize("name", sorted(CHANGING))
def test_changing_commands_have_dry_run(name: str) -> None:
    assert "--dry-run" in command_parser(name).format_help()


def test_unknown_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chekc"]) == 64
    assert "did you mean check" in capsys.readouterr().err


def test_no_command_is_a_usage_error() -> None:
    assert main([]) == 64
