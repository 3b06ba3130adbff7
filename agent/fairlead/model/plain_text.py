"""Makes text from others safe to show. On a node such text may come from a user, on the admin host it may come from a node.

Only characters of certain general categories of Unicode are shown (The Unicode Standard, table 4-4): letters, numbers,
punctuation, symbols and the space, and a few marks above or below a letter. Characters of these categories are not shown if
they draw nothing or cover the character beside them.

This file uses only the standard library and no other code of fairlead, because the bundle copies it to where Ansible runs.
"""

import re
from functools import lru_cache
from unicodedata import category

MARKS_MAX = 2  # the most marks on one letter, as in Vietnamese and Thai
#: Characters of the categories above that are not shown: those with Default_Ignorable_Code_Point (DerivedCoreProperties.txt),
#: blanks of a visible category, and vowels and finals of Hangul that are drawn over the letter before them. A Hangul syllable in
#: one character is shown.
_UNSEEN = re.compile(
    "[\u034f\u115f-\u11ff\u17b4\u17b5\u180b-\u180f\u2800\u3164\ud7b0-\ud7ff\ufe00-\ufe0f\uffa0\ufffc"
    "\U00013441\U00013442\U00016fe4\U0001d159\U000e0000-\U000e0fff]"
)

_WORD = re.compile(r"[A-Za-z0-9/][A-Za-z0-9_.:/-]{0,63}")


@lru_cache(maxsize=4096)
def _kind(c: str) -> str:
    """Return "mark" for a mark, "" for a character that is not shown, and "seen" for every other character."""
    if _UNSEEN.match(c):
        return ""
    major = category(c)[0]
    return "mark" if major == "M" else "" if major in "CZ" and c != " " else "seen"


def shown(text: str, other: str, *, kept: str = "") -> str:
    """Return the text with ``other`` in place of each character that is not shown. Characters in ``kept`` stay."""
    if text.isascii() and (text if not kept else text.translate({ord(c): None for c in kept})).isprintable():
        return text
    found, marks = [], MARKS_MAX  # a mark needs a letter before it
    for c in text:
        kind = "kept" if c in kept else _kind(c)
        marks = marks + 1 if kind == "mark" else 0 if kind == "seen" and c != " " else MARKS_MAX
        found.append(other if not kind or (kind == "mark" and marks > MARKS_MAX) else c)
    return "".join(found)


def printable(text: str) -> str:
    """Return the text with a space in place of each character that is not shown: characters that control a terminal, change
    the direction of writing, or draw nothing."""
    return shown(text, " ")


def one_line(text: str, limit: int = 0) -> str:
    """Return the text as one printable line, in which a run of white space becomes one space. ``limit``: the largest number of
    characters, or 0 for no limit."""
    if limit and len(text) > 4 * limit:
        text = text[: 4 * limit]
    line = " ".join(printable(text).split())
    return line if not limit or len(line) <= limit else line[: limit - 3] + "..."


def word(text: str, otherwise: str) -> str:
    """Return ``text`` if it may be part of a command that is offered for copying, else ``otherwise``. The text must be one plain
    word for a shell, and a program must not read it as an option."""
    return text if _WORD.fullmatch(text) else otherwise


def aside(text: str) -> str:
    """Return text for printing beside a command that is offered for copying. Backquotes are replaced, so that the text cannot
    look like a command itself."""
    return text.replace("`", "'")


def page(text: str, limit: int = 0) -> str:
    """Return text of several printable lines. Tabs stay. Every other character that is not shown becomes a question mark."""
    if limit and len(text) > limit:
        text = text[:limit] + "\n..."
    return shown(text.replace("\r\n", "\n"), "?", kept="\n\t")
