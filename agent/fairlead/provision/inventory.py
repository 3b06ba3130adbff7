"""Finds the nodes of a site and the nodes that a run is for. Nodes come from Slurm nodelists (read by ClusterShell), or from
slurmctld."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping

from ClusterShell.NodeSet import NodeSet, NodeSetException
from msgspec import Struct

from fairlead import config
from fairlead.config import Document, Site
from fairlead.errors import ConfigError, InputMissing, SlurmError, UsageError
from fairlead.model.plain_text import one_line
from fairlead.slurm.scontrol import Scontrol, rows

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_ADDRESS = re.compile(r"[A-Za-z0-9_:\[][A-Za-z0-9._:%\[\]-]*")
_GROUP = re.compile(r"@[^\s,&!^\[\]]+")
#: The groups of the sample configuration that ClusterShell ships (groups.d/local.cfg and cluster.yaml.example, read in 1.10.1).
#: pip installs the sample beside Python, and ClusterShell uses it until the site has a configuration of its own.
_SAMPLE_GROUPS = frozenset({
    "adm", "oss", "mds", "io", "compute", "gpu", "all", "*",
    "rack1", "rack2", "rack3", "rack4", "rack5", "old", "new", "ivy", "hsw",
})  # fmt: skip
UNDECLARED = "no such node is declared"
_SAMPLE_NODE = re.compile(r"example[0-9]{1,3}")


class Target(Struct, frozen=True, kw_only=True):
    """Describes one node of a run. ``address``: the address that ssh uses. ``origin``: the file that declares each value of the
    document. ``classes``: the node's classes."""

    node: str
    address: str
    document: Document
    origin: Mapping[str, str] = {}
    classes: tuple[str, ...] = ()


def is_address(text: str) -> bool:
    """Return whether a text can be an address for ssh, and no option of ssh."""
    return bool(_ADDRESS.fullmatch(text))


def expand(nodelist: str) -> tuple[str, ...]:
    """Return the names of a Slurm nodelist, each once, in the order of the list. The list may have groups of ClusterShell
    (@gpu). Raises ValueError."""
    try:
        for group in _GROUP.findall(nodelist):  # ClusterShell treats an unknown group as an empty one
            nodes = NodeSet(group)
            if not nodes:
                raise ValueError(f"{group}: no such group, or nobody in it (ClusterShell's groups.conf)")
            if _is_sample(group, nodes):
                raise ValueError(f"{group}: is {nodes}, a group of the sample configuration that ClusterShell comes with")
        return tuple(str(n) for n in NodeSet(nodelist))
    except NodeSetException as e:
        raise ValueError(str(e)) from None


def _is_sample(group: str, nodes: NodeSet) -> bool:
    """Say whether a group belongs to ClusterShell's sample configuration, and is not the site's own."""
    name = group.removeprefix("@").rpartition(":")[2]
    return name in _SAMPLE_GROUPS and all(_SAMPLE_NODE.fullmatch(str(node)) for node in nodes)


def nodelist_hint(nodelist: str) -> str:
    """Return what to do about a text that is not a nodelist."""
    if "@" in nodelist:
        return 'write the nodes, such as "gpu[001-004]", or the group into /etc/clustershell/groups.d; `nodeset -LL` lists groups'
    return 'a Slurm nodelist: "gpu[001-004]"'


def fold(nodes: tuple[str, ...] | list[str]) -> str:
    """Return names as a nodelist: gpu1 gpu2 gpu3 becomes gpu[1-3]."""
    return str(NodeSet.fromlist(list(nodes)))


def members(site: Site) -> dict[str, tuple[str, ...]]:
    """Return the nodes of each class. Raises ConfigError."""
    found = {}
    for entry in site.classes:
        try:
            found[entry.name] = expand(entry.nodes)
        except ValueError as e:
            raise ConfigError(site.file, f"classes.{entry.name}.nodes", str(e), hint=nodelist_hint(entry.nodes)) from None
    return found


def classes_of(site: Site, node: str) -> tuple[str, ...]:
    """Return the names of the classes that the node is in. Raises ConfigError."""
    return tuple(name for name, nodes in members(site).items() if node in nodes)


def all_nodes(site: Site) -> tuple[str, ...]:
    """Return every node that the site declares: first the nodes of the classes, then other nodes with a table of their own.
    Raises ConfigError."""
    named = [n for nodes in members(site).values() for n in nodes]
    return tuple(dict.fromkeys([*named, *site.nodes]))


def in_slurm(client: Scontrol) -> dict[str, str]:
    """Return every node that is in a partition, with its address in slurmctld (`sinfo`). Raises SlurmError, and InputMissing if
    there is no node."""
    # `scontrol show nodes` is not used, because it prints unchanged what a slurmd reports about its machine (Arch, OS). Such a
    # text may look like another field or another node. sinfo prints two fields that come from slurm.conf alone, each followed
    # by a random mark.
    mark = f"@{secrets.token_hex(12)}@"
    found: dict[str, str] = {}
    for name, address in rows(client.ask(["sinfo", "-h", "-a", "-N", "-O", f"NodeList:{mark},NodeAddr:{mark}"]), mark, 2):
        if found.get(name, address) != address or not _NAME.fullmatch(name) or not is_address(address):
            words = f"sinfo: {one_line(name, 60)!r} at {one_line(address, 60)!r} is no node, or is listed twice"
            raise SlurmError(words, hint="see `scontrol show nodes`, or run without --inventory slurm")
        found[name] = address
    if not found:
        raise InputMissing("sinfo: no node", hint="is this the intended cluster? name its slurm.conf")
    return found


def address_mistakes(site: Site, nodes: tuple[str, ...], slurm: Mapping[str, str]) -> Iterator[ConfigError]:
    """Yield an error for each name or address by which ssh could reach another machine than the intended one."""
    for node in nodes:
        if not _NAME.fullmatch(node) or node in {"all", "ungrouped"}:
            yield ConfigError(site.file, f"nodes.{node}", "no name of a node", hint="a Slurm NodeName: letters, digits, . _ -")
    for node in sorted(site.ansible.hosts.keys() - set(nodes)):
        yield ConfigError(site.file, f"ansible.hosts.{node}", UNDECLARED, hint="correct the name, or take it out")
    for node, address in site.ansible.hosts.items():
        if address.count(":") == 1:
            hint = 'ssh_args = "-p PORT", or `Port` in ~/.ssh/config'
            yield ConfigError(site.file, f"ansible.hosts.{node}", f"{address}: an address has no port", hint=hint)
    for address, same in _by_address(site, nodes, slurm).items():
        if len(same) > 1:
            words = f"{fold(same)} have one address, {address}"
            yield ConfigError(site.file, "ansible.hosts", words, hint="each node has its own")


def _by_address(site: Site, nodes: tuple[str, ...], slurm: Mapping[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for node in nodes:
        found.setdefault(site.ansible.hosts.get(node) or slurm.get(node, node), []).append(node)
    return found


def _addresses(site: Site, nodes: tuple[str, ...], slurm: Mapping[str, str]) -> dict[str, str]:
    """Return the address that ssh uses for each node. Raises ConfigError for the first mistake in an address."""
    for mistake in address_mistakes(site, nodes, slurm):
        raise mistake
    return {node: address for address, (node,) in _by_address(site, nodes, slurm).items()}


def targets(site: Site, nodelist: str = "", slurm: Mapping[str, str] | None = None) -> tuple[Target, ...]:
    """Return the nodes of a run with their documents. ``slurm``: the addresses from ``in_slurm``, or None. If it is given, only
    nodes in it are taken, and a node without an address in the site has its address from it. Raises ConfigError, and UsageError
    for a node that the site does not declare or that Slurm does not have."""
    by_class = members(site)
    classes: dict[str, list[str]] = {}
    for name, nodes in by_class.items():
        for node in nodes:
            classes.setdefault(node, []).append(name)
    known = all_nodes(site)
    addresses = _addresses(site, known, slurm or {})
    try:
        wanted = expand(nodelist) if nodelist else tuple(n for n in known if slurm is None or n in slurm)
    except ValueError as e:
        raise UsageError(f"-l {nodelist}: {e}") from None
    unknown = [n for n in wanted if n not in addresses]
    if unknown:
        hint = f"declared there: {fold(known) or 'none'}; or add it to a class"
        raise UsageError(f"{fold(unknown)}: not declared in {site.file}", hint=hint)
    strange = [n for n in wanted if slurm is not None and n not in slurm]
    if strange:
        raise UsageError(
            f"{fold(strange)}: Slurm has no such node", hint="correct the nodelist, or run without --inventory slurm"
        )
    if not wanted and nodelist:
        raise UsageError(f"-l {nodelist}: names no node")
    if not wanted and known:
        raise ConfigError(site.file, "classes", f"Slurm has none of {fold(known)}", hint="declare its nodes' names here")
    if not wanted:
        raise ConfigError(site.file, "classes", "no nodes are declared", hint='[classes.NAME] nodes = "gpu[1-4]"')
    found = []
    for node in wanted:
        own = classes.get(node, [])
        document, origin = config.resolve(site, node, own)
        found.append(Target(node=node, address=addresses[node], document=document, origin=origin, classes=tuple(own)))
    return tuple(found)
