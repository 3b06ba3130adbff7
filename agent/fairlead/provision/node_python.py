"""Finds the Python on a node that fairlead's environment is made from. If there is none, it names the package to install.

A node may have only Python 3.6 or 3.9, or no Python at all. So a shell on the node looks for a Python before fairlead's program
is sent. This needs no further round trip. The shell skips a Python that is too old, or that lacks parts of the standard library
(a minimal package).

This module imports the standard library and wheel_tags.py only. The bundle has a copy of both for Ansible's action plugin,
because the Python that runs Ansible need not have fairlead.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from fairlead.provision.wheel_tags import has_wheels

MARK = "FAIRLEAD-REPLY "
OLDEST = (3, 11)
MINORS = (13, 12, 11)
UNVERSIONED = "/usr/bin/python3"

#: A program that exits with 0 if fairlead runs on this Python. Any Python 3 can run it, and 2.7 already refuses the option -I.
PROBE = f"import sys,json,sqlite3,zipfile,ctypes;sys.exit(sys.version_info<{OLDEST})"
VERSION = 'import sys;print("%d.%d"%sys.version_info[:2])'
# This code imports fairlead's program from a zip archive in memory, so nothing is written on the node.
START = """import os,sys
b=sys.stdin.buffer
f=os.memfd_create("on_node")
os.write(f,b.read(int(b.readline())))
sys.path.insert(0,"/proc/self/fd/%d"%f)
from on_node.program import main
main()
"""
# If a release is installed, its own Python runs the program, which then calls `fairlead apply` in the same process. If there is
# no Python, the shell prints values of os-release(5), but only those without special characters. Then it reads its input to the
# end, so that ssh gets no broken pipe.
FIND = """p=@OURS@; f=$p
try() { f=; for p in "$@"; do "$p" -I -c @PROBE@ </dev/null >/dev/null 2>&1 && f=$p && break; done; }
[ -x "$p" ] || try @WANTED@
if [ -z "$f" ]; then
 has=$(@FIRST@ -c @VERSION@ </dev/null 2>/dev/null); i=; n=; l=
 case $has in [23].[0-9]|[23].[0-9][0-9]) ;; *) has=;; esac
 [ ! -r @RELEASE@ ] || while IFS= read -r x || [ -n "$x" ]; do
  v=${x#*=}; v=${v#[\\"\\']}; v=${v%[\\"\\']}
  case $x in ID=*) i=$v;; VERSION_ID=*) n=$v;; ID_LIKE=*) l=$v;; esac
 done <@RELEASE@
 LC_ALL=C
 case $i$n$l in *[!A-Za-z0-9\\ ._-]*) i=; n=; l=;; esac
 try @OTHERS@
 printf '\\n%s{"no_python":{"id":"%s","version":"%s","like":"%s","has":"%s","other":"%s"}}\\n' @MARK@ "$i" "$n" "$l" "$has" "$f"
 cat >/dev/null; exit 0
fi
exec "$p" -I -c @START@"""
RELEASE = "/etc/os-release"


def candidates(wheels: Iterable[str]) -> tuple[str, ...]:
    """Return the Pythons to try on a node, the best first. The best are those for which ``wheels`` has all dependencies."""
    names = list(wheels)
    ready = [minor for minor in MINORS if has_wheels(names, f"3.{minor}")] or list(MINORS)
    rest = [minor for minor in MINORS if minor not in ready]
    return (*_paths(ready), UNVERSIONED, *_paths(rest))


def _paths(minors: Sequence[int]) -> tuple[str, ...]:
    return tuple(f"{UNVERSIONED}.{minor}" for minor in minors)


def command(ours: str, named: str, wheels: Iterable[str], *, start: str = START, release: str = RELEASE) -> str:
    """Return the shell command that starts fairlead's program on the node. If the node has no Python for it, the command prints
    one marked line that says so.

    ours: the path of the installed release's own Python. named: [ansible] python of the site, or "" to search for a Python.
    """
    found = candidates(wheels)
    words = {
        "OURS": [ours],
        "WANTED": [named] if named else found,
        "OTHERS": found if named else (),
        "FIRST": [named or UNVERSIONED],
        "PROBE": [PROBE],
        "VERSION": [VERSION],
        "RELEASE": [release],
        "MARK": [MARK],
        "START": [start],
    }
    return re.sub("@([A-Z]+)@", lambda m: shlex.join(words[m[1]]), FIND)


class PythonPackage(NamedTuple):
    """Describes the package with Python 3.11 or newer in a distribution, from the distribution's version ``since`` on.

    family: the ID of os-release(5), or a word of its ID_LIKE. install: the command, or "" if there is no such package.
    """

    family: str
    since: tuple[int, int]
    label: str
    install: str
    source: str


_RED_HAT = "Red Hat, Installing and using dynamic programming languages, RHEL {}, table of Python versions"
_DEBIAN = "packages.debian.org, python3 and python3.11 of bookworm"
_UBUNTU = "packages.ubuntu.com, python3 of noble and python3.11 of jammy (universe); eclipse-ecal/ecal issue 945"
_SUSE = "SUSE, Modules and Extensions Quick Start (Python 3 Module); SUSE:SLE-15-SP4:Update python311"
_AMAZON = "Amazon Linux 2023 user guide, Python in AL2023"
PACKAGES = (
    PythonPackage("rhel", (0, 0), "EL before 8.8", "", _RED_HAT.format(8)),
    PythonPackage("rhel", (8, 8), "EL 8", "dnf install python3.11", _RED_HAT.format(8)),
    PythonPackage("rhel", (8, 10), "EL 8", "dnf install python3.12", _RED_HAT.format(8)),
    PythonPackage("rhel", (9, 0), "EL 9 before 9.2", "", _RED_HAT.format(9)),
    PythonPackage("rhel", (9, 2), "EL 9", "dnf install python3.11", _RED_HAT.format(9)),
    PythonPackage("rhel", (9, 4), "EL 9", "dnf install python3.12", _RED_HAT.format(9)),
    PythonPackage("rhel", (10, 0), "EL 10", "dnf install python3", _RED_HAT.format(10)),
    PythonPackage("debian", (0, 0), "Debian before 12", "", _DEBIAN),
    PythonPackage("debian", (12, 0), "Debian", "apt-get install python3", _DEBIAN),
    PythonPackage("ubuntu", (0, 0), "Ubuntu before 22.04", "", _UBUNTU),
    PythonPackage("ubuntu", (22, 4), "Ubuntu 22.04", "apt-get install python3.11 (universe)", _UBUNTU),
    PythonPackage("ubuntu", (24, 4), "Ubuntu", "apt-get install python3", _UBUNTU),
    PythonPackage("suse", (0, 0), "SLES before 15 SP4", "", _SUSE),
    PythonPackage("suse", (15, 4), "SLES 15", "zypper install python311 (module Python 3)", _SUSE),
    PythonPackage("amzn", (0, 0), "Amazon Linux 2", "", _AMAZON),
    PythonPackage("amzn", (2023, 0), "Amazon Linux 2023", "dnf install python3.12", _AMAZON),
)
#: The family of an ID of os-release(5) whose ID_LIKE need not name the family.
_SAME = {"ol": "rhel", "centos": "rhel", "sles": "suse"}
_LAST_KNOWN = {"suse": 15}  # the packages of newer versions are not known


def package(name: str, version: str, like: str) -> PythonPackage | None:
    """Return the package with Python in a node's distribution, or None if it is not known. ``name``, ``version``, ``like``: ID,
    VERSION_ID and ID_LIKE of the node's os-release(5)."""
    families = [_SAME.get(name, name), *like.split()]
    family = next((f for f in families if any(p.family == f for p in PACKAGES)), "")
    numbers = re.match(r"(\d{1,5})(?:\.(\d{1,5}))?", version)
    if not family or not numbers:
        return None
    have = (int(numbers[1]), 999 if numbers[2] is None else int(numbers[2]))  # CentOS Stream and Debian give no minor version
    if have[0] > _LAST_KNOWN.get(family, have[0]):
        return None
    return [p for p in PACKAGES if p.family == family and p.since <= have][-1]


def failure(said: Mapping[str, str], named: str) -> dict[str, object]:
    """Return the result for a node without a Python for fairlead. The message is one line that is the same on all equal nodes.

    said: what the shell has found (node_answer.py). named: [ansible] python of the site, or "".
    """
    where = named or UNVERSIONED
    has = said["has"]
    old = tuple(map(int, has.split("."))) < OLDEST if has else False
    state = f"is Python {has}" + ("" if old else ", and lacks parts of its standard library") if has else "is not there"
    words = f"fairlead needs Python 3.11 or newer, and {where} {state}"
    if said["other"]:
        return _failed(f"{words}; {said['other']} would do: take `python` out of the site's [ansible]")
    found = package(said["id"], said["version"], said["like"])
    if found is None:
        system = f" {said['id']} {said['version']}".rstrip() if said["id"] else ""
        return _failed(f"{words}; install one (its package on{system or ' this system'} is not known here)")
    if not found.install:
        return _failed(f"{words}; {found.label} has no package of it: install one, and name it in the site's [ansible] python")
    return _failed(f"{words}; {found.label}: {found.install}")


def _failed(words: str) -> dict[str, object]:
    return {"failed": True, "msg": words, "hint": ""}
