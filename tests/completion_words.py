"""Which words complete each argument of each command, read from the parsers; tests/completion_scripts.py writes the scripts."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from functools import cache

from fairlead import checks, config, settings
from fairlead.cli import COMMANDS, command_parser
from fairlead.cli.help_text import HelpFormatter
from fairlead.measure import tools
from fairlead.xid.catalogue import ENTRIES
from fairlead.xid.sxids import SXIDS

FILES = "files"
#: What an argument of such a metavar is: a path, or a text that nothing is known about (a name of the site's, a number, a time).
PATHS = {"FILE", "DIR", "TREE", "[NODE=]TREE", "PROGRAM", "LOG", "TARGET", "SOURCE"}
FREE = {
    *(
        "TEXT",
        "NAME",
        "NODE",
        "NODELIST",
        "LIST",
        "N",
        "K",
        "N|P%",
        "PARTITION=N|P%",
        "N,...",
        "RUN",
        "ID",
        "WHEN",
        "SPAN",
        "TIME",
        "SECONDS",
        "PERIOD",
    ),
    *(
        "PROFILE=TYPE",
        "COMMAND",
        "NAME=VALUE",
        "PERCENT",
        "MINUTES",
        "[BEGIN/]END",
        "VERSION",
        "X.Y",
        "ARCH",
        "LINE",
        "OPTION",
        "REGEX",
        "DEVICE|SERIAL",
        "GPU",
        "UID",
        "HOST[:PORT]",
        "JOBS",
        "FRACTION",
        "GB/S",
    ),
}


@dataclass(frozen=True)
class Argument:
    """An option, or a positional argument without ``names``.

    ``words``: what completes it; ``paths``: names of files do; ``listed``: it is a list with commas between the words.
    """

    names: tuple[str, ...]
    takes_value: bool
    help: str
    label: str
    words: tuple[str, ...] = ()
    paths: bool = False
    listed: bool = False
    again: bool = False


@dataclass(frozen=True)
class CommandWords:
    """``after``: the positional words that a word before them calls for: {"xid": its codes}."""

    summary: str
    options: tuple[Argument, ...]
    first: Argument | None
    rest: Argument | None
    after: dict[str, Argument]


@cache
def words_of_lists() -> dict[str, tuple[str, ...]]:
    """Return the words of each kind that fairlead brings along."""
    profiles, fabrics = tuple(config.profile_names()), tuple(config.fabric_names())
    every_check, every_setting = tuple(checks.load()), tuple(settings.load())
    return {
        "profiles": profiles,
        "fabrics": fabrics,
        "checks": every_check,
        "check parts": (*every_check, *(f"setting.{name}" for name in every_setting)),
        "setting lists": tuple(sorted({*every_setting, *settings.groups()})),
        "topics": ("xid", "sxid", "setting", "list", *every_check, *every_setting),
        "settings": every_setting,
        "xids": tuple(map(str, sorted(ENTRIES))),
        "sxids": tuple(map(str, sorted(SXIDS))),
        "tools": tuple(tools.load()),
    }


#: What completes an argument that has no choices of its own, by command and destination; "" stands for every command.
LISTS = {
    ("", "profile"): "profiles",
    ("nccl", "profile"): "profiles fabrics",
    ("check", "only"): "check parts",
    ("apply", "only"): "setting lists",
    ("", "tags"): "setting lists",
    ("accept", "tools"): "tools",
    ("accept", "raw"): "tools",
    ("ack", "what"): "checks",
    ("explain", "what"): "topics",
}
LISTED = {("apply", "only"), ("provision", "tags"), ("plan", "tags"), ("render", "tags"), ("accept", "tools")}


def argument(command: str, action: argparse.Action) -> Argument:
    """Return what is known of one argument. Raises SystemExit for an unknown metavar: it belongs into a table above."""
    names, label = tuple(action.option_strings), str(action.metavar or action.dest).upper()
    text = " ".join(HelpFormatter(f"fairlead {command}").help_of(action).split())
    again = action.nargs in ("*", "+", argparse.REMAINDER) or isinstance(action, argparse._AppendAction)
    made = {"names": names, "takes_value": action.nargs != 0, "help": text, "label": label, "again": again}
    if action.nargs == 0:
        return Argument(**made)
    kind = LISTS.get((command, action.dest)) or LISTS.get(("", action.dest))
    if action.choices:
        return Argument(**made, words=tuple(map(str, action.choices)))
    if kind:
        known = words_of_lists()
        words = known[kind] if kind in known else tuple(word for part in kind.split() for word in known[part])
        return Argument(**made, words=words, listed=(command, action.dest) in LISTED)
    if label not in PATHS | FREE and action.nargs != argparse.REMAINDER:
        raise SystemExit(f"{command} {'/'.join(names) or action.dest}: tests/completion_words.py does not know what a {label} is")
    return Argument(**made, paths=label in PATHS or action.nargs == argparse.REMAINDER)


def after(command: str) -> dict[str, Argument]:
    """Return what a positional word of a command calls for as the next one."""
    none = {"names": (), "takes_value": True, "help": ""}
    known = words_of_lists()
    if command == "explain":
        codes = {"xid": known["xids"], "sxid": known["sxids"], "setting": known["settings"]}
        return {word: Argument(**none, label="WHAT", words=words) for word, words in codes.items()}  # type: ignore[arg-type]
    if command == "config":
        return {"profiles": Argument(**none, label="PROFILE", words=known["profiles"])}  # type: ignore[arg-type]
    return {}


@cache
def commands() -> dict[str, CommandWords]:
    """Return every command with its arguments, in the order of ``fairlead --help``."""
    found = {}
    for name, summary in COMMANDS.items():
        actions = [a for a in command_parser(name)._actions if a.help != argparse.SUPPRESS]
        made = [argument(name, action) for action in actions]
        positional = [a for a in made if not a.names]
        first = positional[0] if positional else None
        rest = positional[1] if len(positional) > 1 else first if first is not None and first.again else None
        found[name] = CommandWords(summary, tuple(a for a in made if a.names), first, rest, after(name))
    return found
