"""Writes the manual: a page for each command from its parser, and fairlead.1, which lists them."""

from __future__ import annotations

import argparse

from fairlead import __version__
from fairlead.cli import COMMANDS, command_parser
from fairlead.cli.help_text import HelpFormatter, is_example, wrapped
from fairlead.errors import ExitCode

#: What an exit code of 64 and more means, for every command.
MEANS = {
    ExitCode.USAGE: "the command line is wrong",
    ExitCode.BAD_DATA: "a file or a machine tree is malformed",
    ExitCode.NO_INPUT: "a named file, tree or node does not exist or cannot be read",
    ExitCode.NO_HOST: "a node was not reached",
    ExitCode.UNAVAILABLE: "this machine, Slurm or a repository could not be read or changed, or the output could not be written",
    ExitCode.BUG: "a bug of fairlead; please report what it printed",
    ExitCode.TRY_AGAIN: "not now: try again later",
    ExitCode.NEEDS_ROOT: "only root may do this",
    ExitCode.CONFIG: "a configuration value is wrong",
    ExitCode.INTERRUPTED: "interrupted",
    ExitCode.READER_GONE: "the reader of the output has gone (a broken pipe)",
}
FILES = [
    ("/etc/fairlead/node.json", "the node's document: its only input, written by fairlead provision"),
    ("/etc/fairlead/hooks", "the one line of it that the shell hooks read"),
    ("/etc/fairlead/disabled", "while it exists, every hook and every drain is stopped on this node"),
    ("/run/fairlead/verdict", "the verdict: version, state, expiry (CLOCK_BOOTTIME seconds), sequence, text; TAB separated"),
    ("/run/fairlead/status.json", "findings, what is held back, and the drain ledger, for status and why"),
    ("/run/fairlead/topology, /run/fairlead/plans/", "what the task prolog binds by"),
    (
        "/run/fairlead/nvml-release",
        "while it is there and not expired, the agent has let go of NVML: 1, pid, expiry; TAB separated",
    ),
    ("/var/cache/fairlead/packages/", "the driver's package files: this set, and the one before it for the way back"),
    ("/var/lib/fairlead/audit.jsonl", "the audit trail: one JSON object a line; fairlead audit reads it"),
    ("/var/lib/fairlead/", "ledger, history, undo records, the hold, requests that the agent has not taken up yet"),
]
EXAMPLE_WIDTH = 68  # a line of a manual page begins at column 7


def roff(text: str) -> str:
    """Return text whose signs troff does not read as its own."""
    lines = [ln.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga") for ln in text.splitlines()]
    return "\n".join("\\&" + ln if ln.startswith((".", "'")) else ln for ln in lines)


def head(title: str, name: str, summary: str) -> list[str]:
    """Return the lines that a page begins with."""
    return [f'.TH {title} 1 "" "fairlead {__version__}" "User Commands"', ".SH NAME", f"{roff(name)} \\- {roff(summary)}"]


def exit_codes() -> list[str]:
    """Return the section on exit codes that are the same for every command."""
    lines = [".SH EXIT STATUS", "A command that says nothing else above ends with 0 when it has done what it was asked for."]
    for code in ExitCode:
        if code >= 64:
            lines += [".TP", f"\\fB{code.value}\\fR", roff(MEANS[code])]
    return lines


def description(text: str) -> list[str]:
    """Return a command's docstring: sentences as paragraphs, examples and tables line by line."""
    lines, examples = [], False
    for paragraph in text.strip().split("\n\n"):
        lines.append(".PP")
        for line in paragraph.splitlines():
            if is_example(line) != examples:
                examples = not examples
                lines += [".nf"] if examples else [".fi"]
            lines += [roff(part) for part in wrapped(line, EXAMPLE_WIDTH)] if examples else [roff(line)]
        lines += [".fi"] if examples else []
        examples = False
    return lines


def option_lines(name: str, action: argparse.Action) -> list[str]:
    """Return one option or argument with its help."""
    label = str(action.metavar or action.dest).upper()
    if not action.option_strings:
        words = roff("|".join(map(str, action.choices)) if action.choices else label)
        head_line = f"\\fI{words}\\fR"
    else:
        value = "" if action.nargs == 0 else roff("|".join(map(str, action.choices)) if action.choices else label)
        value = f" [\\fI{value}\\fR]" if value and action.nargs == "?" else f" \\fI{value}\\fR" if value else ""
        head_line = ", ".join(f"\\fB{roff(spelling)}\\fR" for spelling in action.option_strings) + value
    text = " ".join(HelpFormatter(f"fairlead {name}").help_of(action).split())
    return [".TP", head_line, roff(text) or "\\&"]


def command_page(name: str) -> str:
    """Return the page of one command."""
    parser = command_parser(name)
    usage = " ".join(parser.format_usage().removeprefix("usage: ").split())
    actions = [action for action in parser._actions if action.help != argparse.SUPPRESS]
    out = [*head(f"FAIRLEAD\\-{name.upper().replace('-', chr(92) + '-')}", f"fairlead-{name}", COMMANDS[name])]
    out += [".SH SYNOPSIS", roff(usage), ".SH DESCRIPTION", *description(parser.description or "")]
    positional, options = ([a for a in actions if bool(a.option_strings) is kind] for kind in (False, True))
    for title, group in (("ARGUMENTS", positional), ("OPTIONS", options)):
        if group:
            out += [f".SH {title}", *(line for action in group for line in option_lines(name, action))]
    out += [*exit_codes(), ".SH SEE ALSO", ".BR fairlead (1)"]
    return "\n".join(out) + "\n"


def main_page() -> str:
    """Return fairlead.1."""
    out = head("FAIRLEAD", "fairlead", "keep the GPU nodes of a Slurm cluster tuned, and jobs off the broken ones")
    out += [".SH SYNOPSIS", ".B fairlead", ".I COMMAND", "[options]", ".SH DESCRIPTION"]
    out += [
        roff("fairlead judges a node's GPUs, drives its Slurm state, sets what the node should be, and binds tasks to the CPUs")
    ]
    out += ["next to their GPUs.", ".SH COMMANDS"]
    for name, summary in COMMANDS.items():
        out += [".TP", f"\\fBfairlead {roff(name)}\\fR", f"{roff(summary)}; see \\fBfairlead\\-{roff(name)}\\fR(1)"]
    out += exit_codes()
    out += [
        ".TP",
        "\\fB0 1 2 3\\fR",
        "check, status: ok, warn, drain, unknown (the order of monitoring plugins); what is only observed is warn",
        ".SH FILES",
    ]
    for path, text in FILES:
        out += [".TP", f"\\fI{roff(path)}\\fR", roff(text)]
    return "\n".join(out) + "\n"
