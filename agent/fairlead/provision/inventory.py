"""Which nodes a site has, and which of them a run is for: Slurm nodelists by ClusterShell."""

from __future__ import annotations

from ClusterShell.NodeSet import NodeSet, NodeSetException
from msgspec import Struct

from fairlead import config
from fairlead.config import Document, Site
from fairlead.errors import ConfigError, UsageError


class Target(Struct, frozen=True, kw_only=True):
    """One node of a run. ``address``: where ssh finds it."""

    node: str
    address: str
    document: Document


def expand(nodelist: str) -> tuple[str, ...]:
    """The names of a Slurm nodelist, each once, in its order. Raises ValueError."""
    try:
        return tuple(str(n) for n in NodeSet(nodelist))
    except NodeSetException as e:
        raise ValueError(str(e)) from None


def fold(nodes: tuple[str, ...] | list[str]) -> str:
    """Names as a nodelist: gpu1 gpu2 gpu3 becomes gpu[1-3]."""
    return str(NodeSet.fromlist(list(nodes)))


def _members(site: Site) -> dict[str, tuple[str, ...]]:
    found = {}
    for entry in site.classes:
        try:
            found[entry.name] = expand(entry.nodes)
        except ValueError as e:
            raise ConfigError(site.file, f"classes.{entry.name}.nodes", str(e), hint='a Slurm nodelist: "gpu[001-004]"') from None
    return found


def classes_of(site: Site, node: str) -> tuple[str, ...]:
    """The names of the classes that hold the node."""
    return tuple(name for name, nodes in _members(site).items() if node in nodes)


def all_nodes(site: Site) -> tuple[str, ...]:
    """Every node that the site declares, by class, then those with a table of their own."""
    named = [n for nodes in _members(site).values() for n in nodes]
    return tuple(dict.fromkeys([*named, *site.nodes]))


def targets(site: Site, nodelist: str = "") -> tuple[Target, ...]:
    """The nodes of a run with their documents. Raises UsageError for a node that the site does not declare."""
    members = _members(site)
    classes: dict[str, list[str]] = {}
    for name, nodes in members.items():
        for node in nodes:
            classes.setdefault(node, []).append(name)
    known = all_nodes(site)
    try:
        wanted = expand(nodelist) if nodelist else known
    except ValueError as e:
        raise UsageError(f"-l {nodelist}: {e}") from None
    unknown = [n for n in wanted if n not in set(known)]
    if unknown:
        raise UsageError(f"{fold(unknown)}: not declared in {site.file}", hint="add it to a class there")
    if not wanted:
        raise ConfigError(site.file, "classes", "no nodes are declared", hint='[classes.NAME] nodes = "gpu[1-4]"')
    return tuple(
        Target(
            node=node,
            address=site.ansible.hosts.get(node, node),
            document=config.resolve(site, node, classes.get(node, []))[0],
        )
        for node in wanted
    )
