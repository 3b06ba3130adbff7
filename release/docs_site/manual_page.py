"""Turns a page of the manual, as tests/man_pages.py writes it, into Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator

_SIGNS = {"\\-": "-", "\\(aq": "'", "\\(ga": "`", "\\e": "\\", "\\&": ""}
_SPECIAL = re.compile(r"([\\*_<>\[\]#|`~])")


def plain(text: str) -> str:
    """Return roff text without roff's own signs and fonts."""
    text = re.sub(r"\\f[BIR]", "", text)
    return re.sub(r"\\-|\\\(aq|\\\(ga|\\e|\\&", lambda found: _SIGNS[found[0]], text)


def _prose(text: str) -> str:
    """Return roff text as Markdown that shows it letter by letter, except for words in `...`, which are code."""
    parts = re.split(r"(`[^`]+`)", plain(text))
    return "".join(part if n % 2 else _SPECIAL.sub(r"\\\1", part) for n, part in enumerate(parts))


def as_markdown(roff: str) -> str:
    """Return a page as Markdown. Raises ValueError for a request that such a page does not have so far."""
    return "\n".join(_lines(iter(roff.splitlines()))) + "\n"


def _lines(lines: Iterator[str]) -> Iterator[str]:
    as_it_is, section = False, ""
    for line in lines:
        request, _, words = line.partition(" ")
        if line in {".nf", ".fi"}:
            as_it_is = line == ".nf"
            yield "```text" if as_it_is else "```"
        elif as_it_is:
            yield plain(line)
        elif request == ".TH":
            yield f"# {plain(words.split()[0]).lower().replace('fairlead-', 'fairlead ')}"
        elif request == ".SH":
            section = words
            yield f"\n## {words.capitalize()}\n"
        elif request == ".PP":
            yield ""
        elif request == ".TP":
            yield f"\n- `{plain(next(lines)).replace('`', '')}`  "
            yield f"  {_prose(next(lines))}"
        elif request in (".B", ".I", ".BR"):
            yield f"`{plain(words).replace(' (1)', '(1)')}`"
        elif section == "SYNOPSIS":
            yield f"`{plain(line)}`"
        elif line.startswith("."):
            raise ValueError(f"{line[:40]!r}: release/docs_site/manual_page.py does not know this request")
        else:
            yield _prose(line)
