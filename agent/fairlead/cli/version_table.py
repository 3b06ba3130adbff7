"""Makes the output of `fairlead version --fleet`: who runs which release, with equal nodes in one row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NotRequired, TypedDict

from fairlead.cli.output import columns
from fairlead.controller.controller_release import ControllerRelease
from fairlead.model.nodelist import fold
from fairlead.provision.node_versions import NONE, NodeVersions

HEAD = ("NODES", "INSTALLED", "AGENT", "HOOKS", "")


class ListedVersions(TypedDict):
    """What runs on a node, or the trouble in asking it. hooks: a digest. hooks_missing: those that are not complete."""

    node: str
    trouble: NotRequired[str]
    installed: NotRequired[str]
    agent: NotRequired[str]
    hooks: NotRequired[str]
    hooks_missing: NotRequired[list[str]]
    restart_due: NotRequired[bool]


class HereVersion(TypedDict):
    """This program's release, and the digest of its hooks."""

    release: str
    hooks: str


class FleetVersions(TypedDict):
    """Who runs which release. controller: the note of the controller's programs, or null for none."""

    here: HereVersion
    controller: ControllerRelease | None
    nodes: list[ListedVersions]


def data(found: Mapping[str, NodeVersions], *, ours: str, hooks: str, controller: ControllerRelease | None) -> FleetVersions:
    """Return the data for --json. ours: this program's release. hooks: the digest of its hooks."""
    nodes: list[ListedVersions] = [
        {"node": node, "trouble": each.trouble}
        if each.trouble
        else {
            "node": node,
            "installed": each.installed,
            "agent": each.agent,
            "hooks": each.hooks,
            "hooks_missing": list(each.incomplete),
            "restart_due": each.restart_due,
        }
        for node, each in found.items()
    ]
    return {"here": {"release": ours, "hooks": hooks}, "controller": controller, "nodes": nodes}


def text(found: Mapping[str, NodeVersions], *, ours: str, hooks: str, controller: str) -> str:
    """Return the table, with a line about this host above it and the nodes without an answer below it."""
    groups: dict[NodeVersions, list[str]] = {}
    for node, each in found.items():
        groups.setdefault(each, []).append(node)
    known = sorted(((each, nodes) for each, nodes in groups.items() if not each.trouble), key=lambda row: -len(row[1]))
    rows = [
        (fold(nodes), each.installed, each.agent, _hooks(each, hooks), "restart due" if each.restart_due else "")
        for each, nodes in known
    ]
    out = [f"here: {ours}, hooks {hooks}; controller programs: {controller}"]
    out += [columns(rows, HEAD)] if rows else []
    for each, nodes in groups.items():
        if each.trouble:
            out.append(f"{fold(nodes)}: not known: {each.trouble}")
    answered = sum(len(nodes) for _, nodes in known)
    same = {each.installed for each, _ in known}
    out.append(
        f"{len(found)} nodes: {answered} answered, {len(found) - answered} did not"
        + (f"; {len(same)} releases installed" if len(same) > 1 else "")
    )
    return "\n".join(out)


def _hooks(each: NodeVersions, ours: str) -> str:
    if each.hooks == NONE:
        return NONE
    names = ", ".join(path.rpartition("/")[2] for path in each.incomplete)
    return f"{each.hooks}{' (as here)' if each.hooks == ours else ''}{f' (without {names})' if names else ''}"
