"""Reads a TOML file as tables, and reports every line that is not TOML. tomllib stops at the first one."""

from __future__ import annotations

import copy
import os
import re
import tomllib
from functools import lru_cache
from pathlib import Path
from typing import Any

from fairlead.errors import ConfigError, InputMissing

BYTES_MAX = 4 << 20  # A site's file with a table for each of a thousand nodes has some hundred thousand bytes.
# A longer text is not read again without its wrong line, because each reading costs as much as the first.
AGAIN_CHARACTERS_MAX = 1 << 17
LINES_MAX = 20  # With more wrong lines than this, the text is probably not TOML.
_WHERE = re.compile(r"\(at line (\d+), column (\d+)\)")
_UNCLOSED = re.compile(r"[^=]*=\s*'[^']*")
_KEY = re.compile(r"\s*([A-Za-z0-9_.-]+)\s*=\s*(.*)")
_WORD = re.compile(r"[A-Za-z@][^\"'#]*")
_REST = "the rest is checked after this is corrected"


def read_text(path: Path, hint: str = "") -> str:
    """Return the text of a file. Raise InputMissing, ConfigError. ``hint``: what the person can do where the file does not
    exist."""
    try:
        with open(path, "rb") as f:
            data = f.read(BYTES_MAX + 1)
    except FileNotFoundError:
        raise InputMissing(f"{path}: no such file", hint=hint) from None
    except (OSError, ValueError) as e:  # ValueError: the name contains NUL
        next_step = "name the file, not its folder" if os.path.isdir(path) else f"see that you may read it: ls -l {path}"
        raise InputMissing(f"{path}: {getattr(e, 'strerror', None) or e}", hint=next_step) from None
    if len(data) > BYTES_MAX:
        raise ConfigError(str(path), "", f"larger than {BYTES_MAX >> 20} MiB", hint="is it the right file?")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as e:
        line = data.count(b"\n", 0, e.start) + 1
        words = f"not UTF-8: byte 0x{data[e.start]:02x} in line {line}"
        raise ConfigError(str(path), "", words, hint="save it as UTF-8; is it the right file?") from None


def read_toml(path: Path) -> dict[str, Any]:
    """Return the tables of a file. Raise InputMissing, ConfigError.

    The last texts are kept as tables, because each node of a site names a profile: to copy tables takes a tenth of the time.
    """
    return copy.deepcopy(_tables(read_text(path), str(path)))


@lru_cache(maxsize=16)
def _tables(text: str, where: str) -> dict[str, Any]:
    data, wrong, _ = toml_tables(text, where)
    if data is None or wrong:
        raise wrong[0]
    return data


def toml_tables(text: str, where: str) -> tuple[dict[str, Any] | None, list[ConfigError], set[str]]:
    """Return the tables of a text, the mistakes of its lines, and the keys of the lines that had to be left out.

    The tables are None where the text cannot be read without a wrong line, such as one with a bracket that is never closed.
    """
    if text.startswith("\ufeff"):
        return None, [ConfigError(where, "", "begins with a byte order mark", hint="save it as UTF-8 without one")], set()
    wrong: list[ConfigError] = []
    unread: set[str] = set()
    lines = text.split("\n")
    while True:
        try:
            return tomllib.loads("\n".join(lines)), wrong, unread
        except tomllib.TOMLDecodeError as e:
            words, number, key = _failing_line(str(e), lines)
            last = key is None or len(wrong) >= LINES_MAX or len(text) > AGAIN_CHARACTERS_MAX
            wrong.append(ConfigError(where, "", f"not TOML: {words}", hint=_hint(words, key, last=last)))
            if last or key is None:
                return None, wrong, unread
            unread.add(key[1].rpartition(".")[2])
            lines[number - 1] = ""
        except (RecursionError, ValueError) as e:  # ValueError: a number has thousands of digits
            words = "nested too deeply" if isinstance(e, RecursionError) else str(e).partition(";")[0]
            return None, [*wrong, ConfigError(where, "", f"not TOML: {words}", hint="is it the right file?")], unread


def _failing_line(words: str, lines: list[str]) -> tuple[str, int, re.Match[str] | None]:
    """Return tomllib's message, the number of the line, and a match of the line's key and value.

    The match is None if the rest of the text cannot be read without the line.
    """
    at = _WHERE.search(words)
    number, column = (int(at[1]), int(at[2])) if at else (0, 0)
    # For a text in single quotes that is not closed, tomllib does not report the line.
    if not at and words.startswith('Expected "\'"'):
        number = next((n for n in range(len(lines), 0, -1) if _UNCLOSED.fullmatch(lines[n - 1])), 0)
        words, column = (f"the text is not closed (at line {number})", len(lines[number - 1]) + 1) if number else (words, 0)
    line = lines[number - 1].rstrip("\r") if 0 < number <= len(lines) else ""
    key = _KEY.fullmatch(line)
    # inside: the line is part of a list that is not closed.
    inside = key is None or column <= line.index("=") or words.startswith("Unclosed")
    return words, number, None if inside else key


def _hint(words: str, key: re.Match[str] | None, *, last: bool) -> str:
    """Return what the person can do about a line that is not TOML."""
    if words.startswith("Cannot declare"):
        return f"declare a table only once: move these keys to its first declaration; {_REST}"
    value = key[2].strip() if key else ""
    if key and _WORD.fullmatch(value) and value not in ("true", "false", "inf", "nan"):
        if value.lower() in ("yes", "on", "no", "off"):
            return f"write {key[1]} = {'true' if value.lower() in ('yes', 'on') else 'false'}"
        return f'put a text in quotes: {key[1]} = "{value}"'
    return _REST if last else ""
