"""Draft a hardware profile from a good node.

draft TREE          write NAME.toml from a snapshot (`fairlead snapshot DIR`), or from this machine without TREE

The draft declares what NVML and the PCI bus prove, what every profile of fairlead
declares, and what a profile of fairlead for the same hardware declares. Every other
value that was found is a comment ("# ? "), because a person has to confirm it:
expectations are declared, never learned. A sick node is refused: its faults must not
become the expectation. Exit codes: 0 the file is written, 64 it exists already, 65 the
node is sick, 66 there is no such tree.
"""

from __future__ import annotations

import argparse
import os
import re
from typing import TYPE_CHECKING, TypedDict

from fairlead.cli.new_file import refuse_existing, write_new
from fairlead.cli.output import print_json
from fairlead.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from fairlead.cli.drafted_profile import DraftedProfile

_NAME = re.compile(r"[a-z][a-z0-9-]{0,39}")
SLOW = "reading the machine"  # patience.py says it


class DraftedFile(TypedDict):
    """A drafted profile. file: where it was written, or null with --dry-run. like: the shipped profile that it resembles, or "".
    declared, to_confirm: keys. text: the file's content."""

    file: str | None
    name: str
    like: str
    declared: list[str]
    to_confirm: list[str]
    text: str


def register(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("what", choices=["draft"], help="what to do (see above)")
    add("tree", nargs="?", default="", metavar="TREE", help="the machine tree of a good node (default: this machine)")
    add("--root", default="", metavar="TREE", help="the same as TREE")
    add("--name", default="", metavar="NAME", help="the profile's name (default: made of the GPU's name and number)")
    add("--out", metavar="FILE", default="", help="the file to write (default NAME.toml); it must not exist")
    add("-n", "--dry-run", action="store_true", help="print the draft, write nothing")
    add("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> ExitCode:
    from fairlead.cli.drafted_profile import draft_of
    from fairlead.cli.profile_text import profile_text

    if args.tree and args.root:
        raise UsageError("TREE and --root TREE name the same thing", hint="name the tree once")
    if args.name and not _NAME.fullmatch(args.name):
        raise UsageError(f"--name {args.name!r} is not a profile's name", hint="lower-case letters, digits and dashes: dgx-h100")
    if args.out and not args.dry_run:
        refuse_existing(args.out)
    draft = draft_of(args.root or args.tree or "/", args.name)
    file = args.out or f"{draft.name}.toml"
    text = profile_text(draft, file=file)
    if not args.dry_run:
        refuse_existing(file)
        write_new(file, text)
    _report(args, draft, file, text)
    return ExitCode.OK


def _report(args: argparse.Namespace, draft: DraftedProfile, file: str, text: str) -> None:
    if args.json:
        declared, to_confirm = ([v.key for v in values] for values in (draft.declared, draft.to_confirm))
        print_json(
            DraftedFile(
                file=None if args.dry_run else file,
                name=draft.name,
                like=draft.like,
                declared=declared,
                to_confirm=to_confirm,
                text=text,
            )
        )
    elif args.dry_run:
        print(text, end="")
    else:
        like = f", as profile {draft.like} has them" if draft.like else ""
        print(f"{file}: {len(draft.declared)} values are declared{like}; {len(draft.to_confirm)} are to be confirmed")
        print(f'confirm them, then name the file in a class of site.toml: profile = "{os.path.abspath(file)}"')


def json_types() -> dict[str, object]:
    """Return the type of what --json prints (json_schema.py)."""
    return {"": DraftedFile}
