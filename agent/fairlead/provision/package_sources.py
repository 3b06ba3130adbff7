"""Decides from the words of the command line whether a lock is for apt nodes or for EL nodes, and opens its package sources.

One run of `fairlead lock` is for one kind of nodes. A site with both kinds declares two sets, and locks each of them with --set.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from fairlead.errors import InputMissing, UsageError
from fairlead.model.plain_text import one_line
from fairlead.provision import node_rpms
from fairlead.provision.dnf_repository import is_apt_line, parse_line
from fairlead.provision.driver_lock import AptArchive, Archive, PackageSources
from fairlead.provision.rpm_archive import RpmArchive

DPKG_STATUS = "/var/lib/dpkg/status"
RPM_DATABASES = ("/var/lib/rpm/rpmdb.sqlite", "/usr/lib/sysimage/rpm/rpmdb.sqlite")
_NAMES = {"deb": "apt", "rpm": "dnf"}


def open_archive(
    repositories: tuple[str, ...], *, debs: str, rpms: str, status: str, warn: Callable[[str], None] = lambda text: None
) -> Archive:
    """Return the archive that resolves drivers from these sources. The arguments are those of the command line. Raises UsageError
    if they are of both kinds, and what the archives raise."""
    kind = _kind(repositories, debs, rpms)
    for line in repositories if kind == "rpm" else ():
        parse_line(line)  # a mistake in the words is named before any file is read
    database = node_rpms.kind_of(status) if status else ""
    if database and kind and database != kind:
        words = f"--status {one_line(status, 200)} is a database of {'dpkg' if database == 'deb' else 'rpm'}"
        raise UsageError(f"{words}, and the repositories are for {_NAMES[kind]}", hint="give the database of a node of that kind")
    if not kind and database == "rpm":
        hint = "name the node's repositories with --repository, or a folder with --rpms"
        raise UsageError(f"--status {one_line(status, 200)} is a database of rpm, and no dnf repository is named", hint=hint)
    if kind != "rpm":
        return AptArchive(PackageSources(repositories=repositories, debs=debs, status=status or DPKG_STATUS))
    status = status or next((path for path in RPM_DATABASES if os.path.exists(path)), "")
    if not status:
        hint = f"--status FILE, a copy of a node's {RPM_DATABASES[0]}; on EL8 the text of: {node_rpms.ASK}"
        raise InputMissing("this host has no rpmdb.sqlite, and --status names no node's", hint=hint)
    return RpmArchive(PackageSources(repositories=repositories, rpms=rpms, status=status), warn)


def _kind(repositories: tuple[str, ...], debs: str, rpms: str) -> str:
    """Return "deb", "rpm", or "" where nothing says which. Raises UsageError for both."""
    apt = [f"--repository {line}" for line in repositories if is_apt_line(line)] + ([f"--debs {debs}"] if debs else [])
    dnf = [f"--repository {line}" for line in repositories if not is_apt_line(line)] + ([f"--rpms {rpms}"] if rpms else [])
    if apt and dnf:
        words = f"{one_line(apt[0], 100)} is for apt, and {one_line(dnf[0], 100)} for dnf"
        raise UsageError(words, hint="lock one kind of nodes at a time: a set of their own, and --set NAME")
    return "deb" if apt else "rpm" if dnf else ""
