"""What dnf prints, recorded from dnf 4.14 on the lab's node: the rows of its table, and what of them is refused."""

from __future__ import annotations

import pytest

from fairlead.errors import HostError
from fairlead.host.change.dnf_transaction import refuse_more, steps
from fairlead.model.change import Package, Packages

TABLE = """\
Dependencies resolved.
======================================================================================
 Package                                 Arch    Version           Repository     Size
======================================================================================
Installing:
 kmod-nvidia-580.82.07-5.14.0-503.11.1   x86_64  3:580.82.07-3.el9 @commandline  7.0 k
 nvidia-imex                             x86_64  580.82.07-1       @commandline   17 k
     replacing  nvidia-imex-575.x86_64 575.57.08-1
Upgrading:
 libnvidia-ml                            x86_64  3:580.82.07-1.el9 @commandline  6.5 k
Removing dependent packages:
 kmod-nvidia-open-dkms                   noarch  3:575.57.08-1.el9 @nvidia       343
 site-monitor                            noarch  575.57.08-1       @nvidia         0

Transaction Summary
======================================================================================
Install  2 Packages
"""
ROWS = [
    ("install", "kmod-nvidia-580.82.07-5.14.0-503.11.1", "3:580.82.07-3.el9"),
    ("replace", "nvidia-imex-575", "0:575.57.08-1"),
    ("install", "nvidia-imex", "0:580.82.07-1"),
    ("install", "libnvidia-ml", "3:580.82.07-1.el9"),
    ("remove", "kmod-nvidia-open-dkms", "3:575.57.08-1.el9"),
    ("remove", "site-monitor", "0:575.57.08-1"),
]


def rpm(name: str, version: str) -> Package:
    return Package(name=name, version=version, architecture="x86_64", sha256="0" * 64, size=1, format="rpm")


SET = tuple(rpm(name, version) for verb, name, version in ROWS if verb == "install")


def change(*remove: str, packages: tuple[Package, ...] = SET) -> Packages:
    return Packages(setting="driver", why="", install=packages, allowed=packages, remove=remove)


def test_the_rows_of_the_table() -> None:
    assert sorted(steps(TABLE)) == sorted(ROWS)
    # on a narrow terminal a long name has a line for itself
    name = "kmod-nvidia-580.82.07-5.14.0-503.11.1"
    narrow = TABLE.replace(f" {name}   x86_64", f" {name}\n                          x86_64")
    assert narrow != TABLE and sorted(steps(narrow)) == sorted(ROWS)
    assert list(steps("Dependencies resolved.\nNothing to do.\nComplete!\n")) == []


def test_a_removal_that_is_not_declared_is_refused_by_name() -> None:
    with pytest.raises(HostError, match=r"remove kmod-nvidia-open-dkms 3:575\.57\.08-1\.el9; remove site-monitor 0:575"):
        refuse_more(change(), TABLE)
    with pytest.raises(HostError, match=r"dnf would also remove site-monitor 0:575\.57\.08-1: not in the declared set"):
        refuse_more(change("kmod-nvidia-open-dkms"), TABLE)
    refuse_more(change("kmod-nvidia-open-dkms", "site-monitor"), TABLE)
    refuse_more(change("kmod-nvidia-open-dkms"), TABLE, also=["site-monitor"])


def test_another_version_or_package_is_refused() -> None:
    removed = ("kmod-nvidia-open-dkms", "site-monitor")
    with pytest.raises(HostError, match=r"install libnvidia-ml 3:580\.82\.07-1\.el9"):
        refuse_more(change(*removed, packages=(*SET[:2], rpm("libnvidia-ml", "0:580.82.07-1.el9"))), TABLE)
    with pytest.raises(HostError, match=r"install nvidia-imex 0:580\.82\.07-1"):
        refuse_more(change(*removed, packages=(SET[0], SET[2])), TABLE)
