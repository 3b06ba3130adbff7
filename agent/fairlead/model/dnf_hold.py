"""Writes and reads the part of dnf's versionlock list that belongs to fairlead.

The list (/etc/dnf/plugins/versionlock.list) has one line for each package that dnf may not move, with the form
``NAME-EPOCH:VERSION-RELEASE.*``. fairlead's lines are between two marks. All other lines belong to other people and stay as they
are. Other people also write lines of other forms (``*nvidia*580*``), and lines with ``!``, which exclude a version.

`dnf versionlock delete` writes the list again without its comments, so it removes fairlead's marks too. If all of fairlead's
lines are still there in one piece, they count as fairlead's again.

Source: dnf versionlock plugin of dnf-plugins-core 4.3, "Notes", and versionlock.py (``sack``: the forms of a line; without its
list the plugin stops every run of dnf); libdnf 0.69, nevra.cpp (which characters a name, a version and the others may have).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase

from fairlead.model.change import Package

LIST = "/etc/dnf/plugins/versionlock.list"
CONF = "/etc/dnf/plugins/versionlock.conf"
BEGIN = "# begin of fairlead's lines (setting driver); changes made here are put back"
END = "# end of fairlead's lines"
#: So many lines in one piece are recognised without marks. One line could be another person's.
RECOGNISED = 2
_ANY = re.compile(r"[^\n]*\n|[^\n]+")
DNF_CONF = "/etc/dnf/dnf.conf"
_OFF = ("0", "no", "false", "off")
_PLUGINS = re.compile(r"^(plugins|pluginconfpath)[ \t]*[=:][ \t]*(.*?)[ \t]*$", re.MULTILINE)
_CONF = re.compile(r"^[ \t]*(enabled|locklist)[ \t]*[=:][ \t]*(\S*)[ \t]*$", re.MULTILINE)
_NAME = r"(?P<name>[^:(/=<> ]+)"
_VERSION = r"(?:(?P<epoch>[0-9]+):)?(?P<version>[^-:(/=<> ]+)"
_RELEASE, _ARCHITECTURE = r"(?P<release>[^-:(/=<> ]+)", r"(?P<architecture>[^-:.(/=<> ]+)"
#: The forms of a line in the order in which dnf tries them.
_FORMS = tuple(
    re.compile(form)
    for form in (
        rf"{_NAME}-{_VERSION}-{_RELEASE}\.{_ARCHITECTURE}",
        rf"{_NAME}-{_VERSION}-{_RELEASE}",
        rf"{_NAME}-{_VERSION}",
        rf"{_NAME}\.{_ARCHITECTURE}",
        _NAME,
    )
)
_LINE = re.compile(r"([A-Za-z0-9][A-Za-z0-9.+_-]*)-([0-9]+:[^-\s]+-[^-\s]+)\.(?:\*|[A-Za-z0-9_]+)")


def lines_of(packages: Iterable[Package]) -> tuple[str, ...]:
    """Return the lines that keep these packages at their versions, each with its end."""
    return tuple(f"{p.name}-{p.version}.*\n" for p in packages)


def with_lines(text: str | None, lines: Sequence[str]) -> str | None:
    """Return the list with these lines as fairlead's. Return None for a list that does not exist and gets no line."""
    lines = list(lines)
    parts = list(_parts(text or ""))
    if lines and len(lines) >= RECOGNISED and not any(mine for mine, _ in parts):
        others = _ANY.findall(text or "")
        starts = (at for at in range(len(others)) if others[at : at + len(lines)] == lines)
        at = next(starts, len(others))
        others[at : at + len(lines)] = []
    else:
        others = [line for mine, line in parts if not mine]
    if not lines:
        return None if text is None else "".join(others)
    if others and not others[-1].endswith("\n"):
        others[-1] += "\n"
    return "".join((*others, f"{BEGIN}\n", *lines, f"{END}\n"))


def fault(conf: str) -> str:
    """Return why dnf does not follow the list though the plugin is installed (its configuration is ``conf``), or ""."""
    said = dict(_CONF.findall(conf))
    if said.get("enabled", "1").lower() in _OFF:
        return "the versionlock plugin is switched off"
    where = said.get("locklist", LIST)
    return f"the versionlock plugin reads {where} instead of {LIST}" if where != LIST else ""


def plugins_fault(conf: str) -> str:
    """Return why dnf loads no plugin, or reads no configuration of plugins below /etc/dnf/plugins, or "".

    ``conf``: the text of dnf's own configuration (dnf.conf(5), plugins and pluginconfpath).
    """
    said = dict(_PLUGINS.findall(conf))
    if said.get("plugins", "1").lower() in _OFF:
        return "dnf loads no plugins, and so not versionlock"
    folders = [folder.rstrip("/") for folder in re.split(r"[\s,]+", said.get("pluginconfpath", "/etc/dnf/plugins"))]
    if "/etc/dnf/plugins" not in folders:
        return f"dnf reads the configuration of its plugins in {folders[0]}, and so not {CONF}"
    return ""


def ours(text: str | None) -> dict[str, str]:
    """Return the versions in fairlead's lines, by package name."""
    found = (_LINE.fullmatch(line.rstrip("\r\n")) for mine, line in _parts(text or "") if mine)
    return {match[1]: match[2] for match in found if match}


def against(text: str | None, name: str, have: str, wanted: str, architecture: str) -> str:
    """Return the line by which somebody else keeps a package from the version ``wanted``, or "".

    ``have``: the installed version, or "". A line with ``!`` keeps the package from each version that the line names, whatever
    other lines say. Any other line with the name of the package keeps it from each version that no line allows. A line that
    dnf does not understand in this way (``*nvidia*575*``) counts too, if it names the installed version and not ``wanted``.
    """
    found, allowed = "", False
    for mine, line in _parts(text or ""):
        pattern = line.strip()
        if mine or not pattern or pattern.startswith("#"):
            continue
        keeps, allows = _keeps(pattern.removeprefix("!"), name, have, wanted, architecture)
        if pattern.startswith("!"):
            if allows:
                return pattern
            continue
        allowed = allowed or allows
        means = have and _is_like(pattern, name, have, architecture) and not _is_like(pattern, name, wanted, architecture)
        if keeps or means:
            found = found or pattern
    return "" if allowed else found


def _keeps(pattern: str, name: str, have: str, wanted: str, architecture: str) -> tuple[bool, bool]:
    """Say whether a line keeps this package at certain versions, and whether ``wanted`` is one of them.

    dnf reads a line in several forms, and the first form that any package has is the last one that counts.
    """
    keeps = False
    for form in _FORMS:
        if (match := form.fullmatch(pattern)) is None:
            continue
        parts = match.groupdict()
        keeps = keeps or fnmatchcase(name, parts["name"])
        if _has_form(parts, name, wanted, architecture):
            return keeps, True
        if have and _has_form(parts, name, have, architecture):
            break
    return keeps, False


def _has_form(parts: dict[str, str | None], name: str, evr: str, architecture: str) -> bool:
    """Say whether the parts of a line, as far as the line has them, are those of this package."""
    epoch, _, rest = evr.partition(":")
    version, _, release = rest.partition("-")
    own = {"name": name, "epoch": epoch, "version": version, "release": release, "architecture": architecture}
    return all(part is None or fnmatchcase(own[key], part) for key, part in parts.items())


def _is_like(pattern: str, name: str, version: str, architecture: str) -> bool:
    """Say whether the pattern is like this package's name and version, as a person would write them."""
    bare, number = version.partition(":")[2], version.rpartition("-")[0]
    words = [f"{name}-{form}{end}" for form in (version, bare) for end in ("", f".{architecture}")]
    words += [f"{name}-{number}", f"{name}-{number.partition(':')[2]}", f"{name}.{architecture}", name]
    return any(fnmatchcase(word, pattern) for word in words)


def _parts(text: str) -> Iterator[tuple[bool, str]]:
    """Yield each line of the list with its end, and whether it is fairlead's: a mark, or a lock between the marks.

    Where the second mark is missing, fairlead's part ends before the first line that cannot be fairlead's.
    """
    lines = _ANY.findall(text)
    bare = [line.rstrip("\r\n") for line in lines]
    inside = open_ended = False
    for at, (line, word) in enumerate(zip(lines, bare, strict=True)):
        if word in (BEGIN, END):
            inside = word == BEGIN
            open_ended = inside and END not in bare[at:]
            yield True, line
            continue
        lock = _LINE.fullmatch(word) is not None
        inside = inside and (lock or not open_ended)
        yield inside and lock, line
