"""Print a page of the documentation that belongs to this release, as it is in the installed package.

fairlead docs                        the pages, with the title of each
fairlead docs driver                 one page
fairlead docs docs/how-to/driver.md  the same, as messages name a page
fairlead docs --search MIG           the pages that have this text, with the first line that has it
"""

from __future__ import annotations

import argparse
import difflib
import sys
from pathlib import Path
from typing import TypedDict

from fairlead.assets import doc_pages
from fairlead.cli.output import columns, print_json
from fairlead.errors import ExitCode, InputMissing, UsageError


class FoundPage(TypedDict):
    """A page, and its title or the first line with the text that was searched."""

    page: str
    line: str


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "page", nargs="?", default="", metavar="NAME", help="the page: driver, how-to/driver, docs/how-to/driver.md"
    )
    parser.add_argument("--search", default="", metavar="TEXT", help="list the pages that have this text, in capitals or not")
    parser.add_argument("--json", action="store_true", help="print the list as JSON")


def run(args: argparse.Namespace) -> ExitCode:
    if args.page and (args.search or args.json):
        raise UsageError("a page is printed as it is", hint="--search and --json are for the list of pages")
    pages = doc_pages()
    if args.page:
        sys.stdout.write(_text(pages[_found(args.page, list(pages))]))
        return ExitCode.OK
    rows = [(name, line) for name, path in pages.items() if (line := _line(_text(path), args.search))]
    if not rows and args.search:
        raise InputMissing(f"{args.search[:80]!r}: no page has this text", hint="fairlead docs lists the pages")
    if args.json:
        print_json([FoundPage(page=name, line=line) for name, line in rows])
    else:
        print(columns(rows))
    return ExitCode.OK


def _found(asked: str, names: list[str]) -> str:
    """Return the name of the page that a person asks for by its name or by its path. Raises InputMissing."""
    wanted = asked.partition("#")[0].removeprefix("docs/").removesuffix(".md")
    found = [name for name in names if wanted in (name, name.rpartition("/")[2])]
    if len(found) == 1:
        return found[0]
    if found:
        raise InputMissing(f"{wanted}: {len(found)} pages have this name", hint=f"name one of {', '.join(found)}")
    near = difflib.get_close_matches(wanted[:80].rpartition("/")[2], [name.rpartition("/")[2] for name in names], n=1)
    raise InputMissing(
        f"{wanted[:80]!r}: no such page", hint=f"did you mean {near[0]}?" if near else "fairlead docs lists the pages"
    )


def _line(text: str, searched: str) -> str:
    """Return the first line with the text ``searched``, or for "" the title."""
    lines = (line.strip() for line in text.splitlines())
    return next((line for line in lines if line and searched.casefold() in line.casefold()), "").lstrip("# ")[:160]


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def json_types() -> dict[str, object]:
    """Return the type of what --json prints (json_schema.py)."""
    return {"": list[FoundPage]}
