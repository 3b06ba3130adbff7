"""The command lines that README and the pages of docs show, and the output that they show below them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(p for p in (ROOT / "docs").rglob("*.md") if "decisions" not in p.parts),
]
_FENCE = re.compile(r" *```(\w*)$")


@dataclass(frozen=True)
class Shown:
    """A line of a page that a reader types. ``output``: the lines that the page shows as its answer, where it shows any."""

    page: str
    number: int
    line: str
    output: tuple[str, ...] = ()

    @property
    def commands(self) -> list[list[str]]:
        """The words of each ``fairlead`` in the line, without the name itself."""
        lexer = shlex.shlex(self.line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        found: list[list[str]] = []
        inside = False
        for word in lexer:
            if word in ("fairlead", ".venv/bin/fairlead") or word.endswith("/bin/fairlead"):
                found.append([])
                inside = True
            elif set(word) <= set("();<>|&"):
                inside = False
            elif inside and word != "...":
                found[-1].append(word)
        return [words for words in found if words]


def blocks(text: str) -> Iterator[tuple[int, list[str], str]]:
    """Each block of code: the number of its first line, its lines, and its language."""
    lines: list[str] = []
    fence: str | None = None
    before = ""
    for number, line in enumerate([*text.splitlines(), ""], 1):
        marks = _FENCE.match(line)
        if fence is None and marks is None and line.startswith("    ") and (lines or not before.strip()):
            lines.append(line[4:])
        elif marks and fence is None:
            fence, lines = marks[1], []
        elif marks:
            yield number - len(lines), lines, fence or ""
            fence, lines = None, []
        elif fence is not None:
            lines.append(line)
        elif lines:
            yield number - len(lines), lines, ""
            lines = []
        before = line


def shown() -> list[Shown]:
    """Return every line with a ``fairlead`` command on the pages."""
    found = []
    for page in PAGES:
        name = str(page.relative_to(ROOT))
        for first, lines, language in blocks(page.read_text()):
            if language in ("", "sh"):
                found += [one for one in of_block(name, first, lines) if has_command(one)]
    return found


def of_block(page: str, first: int, lines: list[str]) -> Iterator[Shown]:
    """Yield the lines of one block that a person types: those after a prompt, or all where there is no prompt."""
    joined = [(first + at, line) for at, line in enumerate(lines)]
    prompted = any(re.match(r"[$#] \S*fairlead ", line.strip()) for _, line in joined)
    at = 0
    while at < len(joined):
        number, line = joined[at]
        at += 1
        while line.endswith("\\") and at < len(joined):
            line = line[:-1] + joined[at][1].strip()
            at += 1
        text = line.strip()
        if not prompted:
            yield Shown(page, number, text)
        elif match := re.match(r"[$#] (.*)", text):
            answer = []
            while at < len(joined) and not re.match(r"[$#] \S", joined[at][1].strip()):
                answer.append(joined[at][1].rstrip())
                at += 1
            yield Shown(page, number, match[1], tuple(answer))


def has_command(one: Shown) -> bool:
    """Say whether a line calls ``fairlead`` with a command. Output of fairlead has a colon after it."""
    try:
        return any(re.fullmatch(r"[a-z-]+", words[0]) for words in one.commands)
    except ValueError:  # an apostrophe in a text: no line of a shell
        return False


def inline() -> list[Shown]:
    """Return every `fairlead ...` in the text of the pages."""
    found = []
    for page in PAGES:
        text = page.read_text()
        for match in re.finditer(r"`(fairlead [a-z][^`]*)`", text):
            found.append(Shown(str(page.relative_to(ROOT)), text[: match.start()].count("\n") + 1, " ".join(match[1].split())))
    return found
