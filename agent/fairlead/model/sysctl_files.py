"""Finds out which file sets a sysctl at the next boot: the files of sysctl.d(5), in the order in which systemd-sysctl and
procps read them.

Files are sorted by name, whatever their directory. A file in /etc hides one of the same name in /run and /usr/lib. The last
line about a key counts. A key may be written with dots or slashes. A leading "-" means that a failure is ignored.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from fairlead.model.facts import Missing

DIRECTORIES = ("/etc/sysctl.d/", "/run/sysctl.d/", "/usr/local/lib/sysctl.d/", "/usr/lib/sysctl.d/", "/lib/sysctl.d/")
GLOBS = tuple(f"{d}*.conf" for d in DIRECTORIES)


def proc_path(key: str) -> str:
    """Return the path of a key, such as /proc/sys/vm/swappiness for ``vm.swappiness``. In a key whose first separator is a slash,
    dots are part of a name (sysctl.d(5): net/ipv4/conf/enp3s0.200/forwarding)."""
    first = min((key.find(c) for c in "./" if c in key), default=-1)
    parts = key.split("/") if first >= 0 and key[first] == "/" else [p.replace("/", ".") for p in key.split(".")]
    return "/proc/sys/" + "/".join(parts)


def assignments(text: str) -> Iterator[tuple[str, str]]:
    """Return (path below /proc/sys, value) of each assignment of one file, in order."""
    for line in map(str.strip, text.splitlines()):
        key, sign, value = line.partition("=")
        if sign and not line.startswith(("#", ";")):
            yield proc_path(key.strip().removeprefix("-").strip()), " ".join(value.split())


def unreadable_file(texts: Mapping[str, str | Missing | None]) -> Missing | None:
    """Return the Missing of a file in these directories that exists but cannot be read, or None if all files can be read."""
    return next((t for path, t in sorted(texts.items()) if path.startswith(DIRECTORIES) and isinstance(t, Missing)), None)


def later_writers(texts: Mapping[str, str | Missing | None], ours: str, keys: Collection[str]) -> dict[str, tuple[str, str]]:
    """Return for each key the last file that is read after fairlead's file and sets the key, as (path, value). ``ours``: the path
    of fairlead's file."""
    chosen: dict[str, str] = {}  # file name -> path; the file in the first directory counts
    for directory in DIRECTORIES:
        for path in sorted(texts):
            name = path.removeprefix(directory)
            if path.startswith(directory) and "/" not in name and name.endswith(".conf"):
                chosen.setdefault(name, path)
    wanted = {proc_path(key): key for key in keys}
    last: dict[str, tuple[str, str]] = {}
    for name in sorted(n for n in chosen if n > ours.rpartition("/")[2]):
        text = texts[chosen[name]]
        for path, value in assignments(text) if isinstance(text, str) else ():
            if path in wanted:
                last[wanted[path]] = (chosen[name], value)
    return last
