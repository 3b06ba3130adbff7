"""Keeps the order of an upgrade: the controller's programs first, the nodes after them (docs/how-to/upgrade.md)."""

from __future__ import annotations

import sys

from fairlead import __version__
from fairlead.cli.controller_paths import STORE
from fairlead.controller.controller_release import UNKNOWN, older, read_note
from fairlead.errors import HostError, ProvisionError

OPTION = "--nodes-first"


def refuse_nodes_first(store: str = STORE) -> None:
    """Raise ProvisionError if the controller's programs on this machine are older than the release that the nodes would get.

    Only a machine with the store of `fairlead collect` knows that. Elsewhere nothing is refused. Where the store does not say its
    release, that is printed, and nothing is refused either.
    """
    try:
        found = read_note(store)
    except HostError as e:
        print(f"fairlead: the release of the controller's programs is not known: {e}", file=sys.stderr)
        return
    if found is not None and found.version == UNKNOWN:
        print(f"fairlead: {store} does not say which release of `fairlead collect` wrote it", file=sys.stderr)
    if found is None or not older(found):
        return
    raise ProvisionError(
        f"the nodes would get fairlead {__version__}, and `fairlead collect` here is {found.words}: an older controller refuses"
        " newer records",
        hint="update the controller's programs, let `fairlead collect` run once (systemctl start fairlead-collect), and run this"
        f" again; or give {OPTION}: the records wait on the nodes",
    )
