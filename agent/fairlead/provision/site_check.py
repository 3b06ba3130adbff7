"""Finds everything that is wrong with a site's declaration, and the nodes of each class, for `config check`.

A run stops at the first mistake and touches nothing. But a person who corrects the file wants to see all mistakes. Therefore
this module goes on after a mistake, and reports every mistake that it can still find.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from fairlead import config
from fairlead.config import Site
from fairlead.config.driver_lock_file import lock_layer
from fairlead.config.mig_declared import mig_mistakes_of_profile
from fairlead.config.mistakes import layer_mistakes, together_mistakes
from fairlead.config.site import own_layers, profile_layer
from fairlead.errors import ConfigError, ExitCode, FairleadError, InputMissing
from fairlead.model.nodelist import expand as nodelist_names
from fairlead.model.nodelist import fold
from fairlead.provision.inventory import UNDECLARED, address_mistakes, expand, nodelist_hint, targets

Layers = list[tuple[str, Mapping[str, Any]]]
_IN_MEMORY = ("/run/", "/var/run/", "/dev/shm/", "/tmp/")  # /tmp: systemd.special(7), and the agent's unit has one of its own
_ANY = "\0"  # encloses the nodes in a mistake's text; it also replaces them there, to find equal mistakes of several groups
_NODES = re.compile(f"{_ANY}([^{_ANY}]*){_ANY}")


class Mistake(Struct, frozen=True, kw_only=True):
    """Describes one thing to correct. ``key``: the dotted key in the file, or "" for the whole file. ``missing``: the mistake is
    that a named file does not exist."""

    file: str
    key: str
    reason: str
    hint: str = ""
    missing: bool = False

    @property
    def text(self) -> str:
        where = f"{self.file}: {self.key}" if self.key else self.file
        return " ".join(f"{where}: {self.reason}".split())


class SiteCheck(Struct, frozen=True, kw_only=True):
    """Holds the result of a check. ``classes``: the nodes of each class whose nodelist can be read. ``notes``: what is allowed
    and has a price, in one line each."""

    mistakes: tuple[Mistake, ...]
    classes: Mapping[str, tuple[str, ...]]
    nodes: tuple[str, ...]
    generation: int
    notes: tuple[str, ...] = ()

    @property
    def exit_code(self) -> ExitCode:
        if not self.mistakes:
            return ExitCode.OK
        return ExitCode.NO_INPUT if all(m.missing for m in self.mistakes) else ExitCode.CONFIG


def check_site(path: str) -> SiteCheck:
    """Return every mistake of a site. Raises InputMissing, and ConfigError for a file that is not text."""
    site, wrong = config.read_site(path)
    if site is None:
        return SiteCheck(mistakes=_each_once(path, wrong), classes={}, nodes=(), generation=0)
    found: list[FairleadError] = [*wrong]
    classes = _members(site, found)
    nodes = tuple(dict.fromkeys([*(n for names in classes.values() for n in names), *site.nodes]))
    complete = len(classes) == len(site.classes) and not any(w.key in ("", "classes") for w in wrong)
    if complete:
        found += _outside(site, classes)
    found += [m for m in address_mistakes(site, nodes, {}) if complete or m.reason != UNDECLARED]
    by_layer = _layer_mistakes(site)
    of_nodes = [*_resolved(site, classes, nodes, right=not by_layer)]
    precise = {(e.file, e.key) for e in of_nodes if isinstance(e, ConfigError)}  # they know the nodes' GPUs, which MIG depends on
    found += [e for e in by_layer if not isinstance(e, ConfigError) or (e.file, e.key) not in precise]
    found += of_nodes
    if not found:
        try:
            targets(site)
        except FairleadError as e:
            found.append(e)
    return SiteCheck(
        mistakes=_each_once(path, found), classes=classes, nodes=nodes, generation=site.generation, notes=_lost_state(site)
    )


def _lost_state(site: Site) -> tuple[str, ...]:
    """Return a note for each declared state folder that is in memory on every Linux machine. Only the node knows about others."""
    layers = [("agent", site.layer)]
    layers += [(f"classes.{each.name}.agent", each.layer) for each in site.classes]
    layers += [(f"nodes.{node}.agent", layer) for node, layer in site.nodes.items()]
    found = []
    for where, layer in layers:
        agent = layer.get("agent")
        folder = agent.get("state_dir") if isinstance(agent, Mapping) else None
        if isinstance(folder, str) and f"{folder}/".startswith(_IN_MEMORY):
            found.append(
                f"{where}.state_dir = {folder}: a reboot loses this folder, with the ledger, strikes and history of the node"
                " (docs/how-to/stateless.md)"
            )
    return tuple(found)


def _members(site: Site, found: list[FairleadError]) -> dict[str, tuple[str, ...]]:
    """Return the nodes of each class whose nodelist can be read. The mistakes of the other nodelists are added to ``found``."""
    classes = {}
    for entry in site.classes:
        if not entry.nodes:
            continue  # the missing nodelist is reported already, as a mistake of the site's structure
        try:
            classes[entry.name] = expand(entry.nodes)
        except ValueError as e:
            key = f"classes.{entry.name}.nodes"
            found.append(ConfigError(site.file, key, str(e), hint=nodelist_hint(entry.nodes)))
    for name, partition in site.partitions.items():
        try:
            expand(partition.nodes)
        except ValueError as e:
            found.append(ConfigError(site.file, f"partitions.{name}.nodes", str(e), hint=nodelist_hint(partition.nodes)))
    return classes


def _outside(site: Site, classes: Mapping[str, tuple[str, ...]]) -> Iterator[ConfigError]:
    """Yield an error for each node that has a table of its own and is in no class."""
    inside = {node for names in classes.values() for node in names}
    for node in site.nodes:
        if node not in inside:
            hint = "add it to the nodes of a class, or correct its name"
            if classes:
                hint += f"; the classes have {'; '.join(f'{name}: {fold(names)}' for name, names in classes.items())}"
            yield ConfigError(site.file, f"nodes.{node}", "this node is in no class", hint=hint)


def _layer_mistakes(site: Site) -> list[FairleadError]:
    """Return what is wrong in each layer alone (site, class, node), and in the profiles and fabrics that the classes name."""
    wrong: list[FairleadError] = [*layer_mistakes(site.file, site.layer)]
    named: dict[tuple[str, str], str] = {}
    for entry in site.classes:
        wrong += layer_mistakes(f"{site.file} classes.{entry.name}", entry.layer)
        for kind in ("profile", "fabric"):
            if name := getattr(entry, kind):
                named.setdefault((kind, name), f"classes.{entry.name}.{kind}")
    for node, layer in site.nodes.items():
        wrong += layer_mistakes(f"{site.file} nodes.{node}", layer)
    for (kind, name), key in named.items():
        try:
            layer = _of_profile(name) if kind == "profile" else config.fabric_layer(config.load_fabric(name))
        except InputMissing as e:
            wrong.append(InputMissing(f"{site.file}: {key}: {e.message}", hint=e.hint))
        except ConfigError as e:
            wrong.append(e)
        else:
            wrong += layer_mistakes(f"{kind} {name}", layer)
    return wrong


def _of_profile(name: str) -> dict[str, Any]:
    return profile_layer(config.load_profile(name))


def _resolved(
    site: Site, classes: Mapping[str, tuple[str, ...]], nodes: tuple[str, ...], *, right: bool
) -> Iterator[FairleadError]:
    """Yield what is wrong with the documents of nodes although each layer alone may be right: two classes with different
    profiles, MIG that does not fit the profile's GPUs, and the lock. ``right``: all layers are right alone, so that mistakes in
    their combination are searched too."""
    for group, names in _alike(site, classes, nodes).items():
        try:
            layers, profile = config.layers_of(site, names[0], group[0])
        except (ConfigError, InputMissing) as e:
            layers, profile = own_layers(site, names[0], group[0]), ""
            if isinstance(e, ConfigError):  # a missing profile is reported as a mistake of its layer already
                yield e
        for origin, layer in layers:
            yield from mig_mistakes_of_profile(origin, layer, profile)
        if right:
            yield from together_mistakes(layers)
        try:
            lock_layer(site.file, _ANY + fold(names) + _ANY, layers, profile)
        except (ConfigError, InputMissing) as e:
            yield e


def _alike(
    site: Site, classes: Mapping[str, tuple[str, ...]], nodes: tuple[str, ...]
) -> dict[tuple[tuple[str, ...], str], list[str]]:
    """Return the nodes in groups. The nodes of a group have the same classes and no table of their own, so their documents
    differ only in the name. A node with its own table is a group by itself."""
    of_node: dict[str, list[str]] = {node: [] for node in nodes}
    for name, members in classes.items():
        for node in members:
            of_node[node].append(name)
    found: dict[tuple[tuple[str, ...], str], list[str]] = {}
    for node, names in of_node.items():
        found.setdefault((tuple(names), node if node in site.nodes else ""), []).append(node)
    return found


def _each_once(path: str, found: Iterable[FairleadError]) -> tuple[Mistake, ...]:
    """Return each mistake once, with the key in the site's file. If several nodes have the same mistake, it names all of them."""
    nodes: dict[Mistake, list[str]] = {}
    for error in found:
        mistake = _mistake(path, error)
        names = _NODES.search(f"{mistake.key} {mistake.reason}")
        if names:
            mistake = replace(mistake, key=_NODES.sub(_ANY, mistake.key), reason=_NODES.sub(_ANY, mistake.reason))
        nodes.setdefault(mistake, []).extend(names.groups() if names else ())
    folded = {m: fold(name for nodelist in names for name in nodelist_names(nodelist)) for m, names in nodes.items()}
    return tuple(replace(m, key=m.key.replace(_ANY, text), reason=m.reason.replace(_ANY, text)) for m, text in folded.items())


def _mistake(path: str, error: FairleadError) -> Mistake:
    if not isinstance(error, ConfigError):
        reason = str(error).removeprefix(f"{path}: ")
        key, colon, rest = reason.partition(": ")
        missing = isinstance(error, InputMissing)
        return Mistake(file=path, key=key if colon else "", reason=rest if colon else reason, hint=error.hint, missing=missing)
    file, key = error.file, error.key
    if file.startswith(f"{path} "):  # ``file`` is the origin of a layer: the site's file and the table in it
        file, key = path, f"{file[len(path) + 1 :]}.{key}".strip(".")
    return Mistake(file=file, key=key, reason=error.reason, hint=error.hint)
