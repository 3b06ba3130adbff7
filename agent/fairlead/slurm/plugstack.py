"""Reads plugstack.conf, the list of SPANK plugins, with the files that it includes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator

from fairlead.slurm.slurm_conf import SlurmConf


def plugstack_path(conf: SlurmConf) -> str:
    """Return the path of plugstack.conf: PlugStackConfig of slurm.conf, or the folder of slurm.conf (slurm.conf(5))."""
    return conf.get("PlugStackConfig") or os.path.join(os.path.dirname(conf.path), "plugstack.conf")


def plugstack_text(path: str, read: Callable[[str], str | None], matching: Callable[[str], Iterable[str]]) -> str:
    """Return the text of plugstack.conf, in which the text of each included file is in place of its ``include`` line.

    ``read``: returns a file's text, or None if there is no such file. ``matching``: returns the paths that match a pattern. A
    relative pattern is looked up in the folder of the file that has the line (spank(8); src/common/spank.c, _spank_conf_include).
    A file is read once, so that files which include each other end.
    """
    return "\n".join(_lines(path, read, matching, {path}))


def _lines(
    path: str, read: Callable[[str], str | None], matching: Callable[[str], Iterable[str]], seen: set[str]
) -> Iterator[str]:
    for line in (read(path) or "").splitlines():
        words = line.partition("#")[0].split(None, 1)
        if len(words) < 2 or words[0] != "include":
            yield line
            continue
        for included in sorted(matching(os.path.join(os.path.dirname(path), words[1].strip()))):
            if included not in seen:
                seen.add(included)
                yield from _lines(included, read, matching, seen)
