"""Reads a site's declaration (site.toml) and hardware profiles on the admin host, and makes a node's document from both.

schema = 1
generation = 7                      # counts the site's changes; each node shows the generation that it runs
[agent]                             # any section of the document, for every node
interval_seconds = 15
[classes.h100]                      # a class of equal nodes
nodes = "gpu[001-412]"              # Slurm nodelist
profile = "hgx-h100"
fabric = "infiniband"               # what NCCL needs on this network
[classes.h100.settings.nccl]
[nodes.gpu017.checks.xid]           # one node
mode = "observe"
[partitions.gpu]                    # what `fairlead slurm-config` writes for Slurm
classes = ["h100"]
[ansible]
user = "root"
[accept]                            # how `fairlead accept` measures; [classes.h100.accept] has what differs for a class
prelude = "module load nccl-tests"
[usage]                             # prices and factors of `fairlead usage`; [advice] and [idle] are thresholds and switches
gpu_hour_price = 2.0
[events]                            # where `fairlead events` sends what happens to nodes
command = ["/etc/fairlead/event-mail", "admins@example.org"]
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from fairlead import assets
from fairlead.config.accept_options import AcceptOptions, accept_options
from fairlead.config.document import SCHEMA, SECTION_NAMES, Document, node_schema, resolve_layers
from fairlead.config.driver_lock_file import lock_layer
from fairlead.config.fabric import fabric_layer, load_fabric
from fairlead.config.mig_declared import mig_mistakes_of_profile
from fairlead.config.partitions import Partition, partitions_of
from fairlead.config.toml_text import read_text, read_toml, toml_tables
from fairlead.errors import ConfigError, InputMissing
from fairlead.fleet.event_options import EventsOptions
from fairlead.jobs.advice import AdviceOptions
from fairlead.jobs.cost_and_energy import UsageOptions
from fairlead.jobs.idle_rule import IdleOptions
from fairlead.model.another_gpu import KnownProfile
from fairlead.model.nodelist import expand
from fairlead.model.plain_text import one_line
from fairlead.model.profile_files import Profile

Options = TypeVar("Options", bound=Struct)
#: What a site's file has beside the sections of the document.
TABLES = ("schema", "generation", "classes", "nodes", "partitions", "ansible", "accept", "usage", "advice", "idle", "events")
#: The hint of the error that there is no site file.
NO_SITE = (
    "name yours (--site FILE), or write one: schema = 1, then for each kind of node"
    ' [classes.NAME] with nodes = "gpu[001-004]" and profile = "hgx-h100"'
)


class AnsibleOptions(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Says how the admin host reaches the nodes. For an empty value Ansible and ssh use their own default."""

    # Each value is written to a line of Ansible's inventory, so it must not contain characters with a meaning there.
    user: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.@-]*\Z",
            description="The user that logs in. A user other than root must be allowed to sudo without a password.",
        ),
    ] = "root"
    private_key: Annotated[
        str,
        Meta(pattern=r"^[^\n{}]*\Z", description="File of the private key. Empty: ssh finds one (agent, ~/.ssh/config)."),
    ] = ""
    ssh_args: Annotated[
        str,
        Meta(pattern=r"^[^\n]*\Z", description='More ssh options, such as "-p 2222" or "-F FILE". ssh also reads ~/.ssh/config.'),
    ] = ""
    python: Annotated[
        str,
        Meta(
            pattern=r"^(/[A-Za-z0-9_./+-]*)?\Z",
            description="Path of a Python 3.11 or newer on the nodes. fairlead makes its own Python environment from it."
            " Empty: fairlead searches for one on each node.",
        ),
    ] = ""
    package: Annotated[
        bool,
        Meta(description="Every node has to have fairlead's RPM or .deb. Without this, a node that has none gets wheels."),
    ] = False
    forks: Annotated[int, Meta(ge=1, le=1000, description="How many nodes Ansible works on at a time.")] = 50
    hosts: Annotated[
        dict[str, Annotated[str, Meta(pattern=r"^[A-Za-z0-9:][A-Za-z0-9._:%-]*\Z")]],
        Meta(description="Address by NodeName (no port), where DNS does not have it."),
    ] = msgspec.field(default_factory=dict)


class NodeClass(Struct, frozen=True, kw_only=True):
    """Describes a class of equal nodes: a Slurm nodelist, a hardware profile, a fabric profile, and a layer of the document."""

    name: str
    nodes: str
    profile: str
    layer: dict[str, Any]
    fabric: str = ""
    accept: AcceptOptions = AcceptOptions()


class Site(Struct, frozen=True, kw_only=True):
    file: str
    generation: int
    layer: dict[str, Any]
    classes: tuple[NodeClass, ...]
    nodes: dict[str, dict[str, Any]]
    ansible: AnsibleOptions
    accept: AcceptOptions = AcceptOptions()
    partitions: dict[str, Partition] = {}
    usage: UsageOptions = UsageOptions()
    advice: AdviceOptions = AdviceOptions()
    idle: IdleOptions = IdleOptions()
    events: EventsOptions = EventsOptions()

    def nodes_with_agent(self) -> frozenset[str] | None:
        """Return the nodes of all classes. None if no class is declared: then any node may have an agent."""
        return frozenset(node for each in self.classes for node in expand(each.nodes)) if self.classes else None


def profile_names() -> tuple[str, ...]:
    """Return the names of the hardware profiles that this installation contains."""
    return tuple(sorted(p.stem for p in assets.profile_directory().glob("*.toml")))


def known_profiles() -> tuple[KnownProfile, ...]:
    """Return the GPUs of the hardware profiles that this installation contains."""
    profiles = [load_profile(name) for name in profile_names()]
    return tuple(KnownProfile(p.name, p.match.gpus, p.match.gpu_count) for p in profiles if p.match)


def load_profile(name: str) -> Profile:
    """Return a hardware profile. ``name`` is its name, or the path of a site's own file. Raises InputMissing, ConfigError."""
    path = Path(name) if "/" in name else assets.profile_directory() / f"{name}.toml"
    if not os.path.isfile(path):
        from fairlead.config import schema_keys

        hint = f"{schema_keys.meant(name, profile_names())} known profiles: {', '.join(profile_names()) or 'none'}".strip()
        raise InputMissing(f"profile {name!r}: no such profile", hint=hint)
    try:
        return msgspec.convert(read_toml(path), Profile)
    except msgspec.ValidationError as e:
        raise ConfigError(str(path), "", str(e)) from None


def profile_layer(profile: Profile) -> dict[str, Any]:
    """Return the values of a profile as a layer of the document. The layer also has the PCI IDs of the profile's GPU, so that the
    agent notices a profile for another GPU. Raises ConfigError for a key that is declared twice."""
    layer: dict[str, Any] = {}
    if profile.unsupported:
        layer["unsupported"] = profile.unsupported
    for value in profile.values:
        table = layer
        *parents, last = value.key.split(".")
        for part in parents:
            table = table.setdefault(part, {})
        if last in table:
            raise ConfigError(f"profile {profile.name}", value.key, "declared twice")
        table[last] = value.value
    if profile.match is not None:
        layer.setdefault("checks", {}).setdefault("gpu_count", {}).setdefault("pci_ids", profile.match.gpus)
    return layer


def load_site(path: str) -> Site:
    """Return a site's declaration. Raise InputMissing for a missing file, and ConfigError with file and key for the first
    mistake."""
    site, wrong = read_site(path)
    if site is None or wrong:
        raise wrong[0]
    return site


def read_site(path: str) -> tuple[Site | None, list[ConfigError]]:
    """Return a site's declaration and every mistake of its structure. The values of its layers are not checked. A class that
    declares no nodes has the nodes "". For a file that is not TOML the declaration is None. Raise InputMissing for a missing
    file, and ConfigError for a file that is not text."""
    data, of_lines, unread = toml_tables(read_text(Path(path), NO_SITE), path)
    if data is None:
        return None, of_lines
    wrong: list[ConfigError] = []
    if data.get("schema") != SCHEMA:
        words = f"must be {SCHEMA}" if "schema" in data else f"missing: must be {SCHEMA}"
        wrong.append(ConfigError(path, "schema", words, hint=f"begin the file with: schema = {SCHEMA}"))
    generation = data.get("generation", 0)
    if not isinstance(generation, int) or generation < 0:
        wrong.append(ConfigError(path, "generation", "must be a whole number"))
    layer = _layer_of(data, path, "", TABLES, wrong)
    accept = _table(data, "accept", path, "", wrong)
    _tables_of_type(accept, AcceptOptions, path, "accept", wrong)
    classes = []
    for name, table in _tables(data, "classes", path, wrong):
        classes.append(_class(name, table, path, accept, wrong))
    nodes = {name: _layer_of(t, path, f"nodes.{name}.", (), wrong) for name, t in _tables(data, "nodes", path, wrong)}
    ansible = _tables_of_type(data.get("ansible", {}), AnsibleOptions, path, "ansible", wrong)
    usage = _tables_of_type(data.get("usage", {}), UsageOptions, path, "usage", wrong)
    advice = _tables_of_type(data.get("advice", {}), AdviceOptions, path, "advice", wrong)
    idle = _tables_of_type(data.get("idle", {}), IdleOptions, path, "idle", wrong)
    events = _tables_of_type(data.get("events", {}), EventsOptions, path, "events", wrong)
    partitions = partitions_of(dict(_tables(data, "partitions", path, wrong)), path, [c.name for c in classes], wrong)
    site = Site(
        file=path,
        generation=generation if isinstance(generation, int) else 0,
        layer=layer,
        classes=tuple(classes),
        nodes=nodes,
        ansible=ansible,
        accept=AcceptOptions() if wrong else accept_options(accept, {}, path),
        partitions=partitions,
        usage=usage,
        advice=advice,
        idle=idle,
        events=events,
    )
    # A key in a line that is not TOML is not reported as missing.
    return site, of_lines + [w for w in wrong if not of_lines or w.key.rpartition(".")[2] not in unread]


def _class(name: str, table: Mapping[str, Any], path: str, accept: Mapping[str, Any], wrong: list[ConfigError]) -> NodeClass:
    """Return a class. Where its nodes are not declared, they are "". Its mistakes are added to ``wrong``."""
    nodes = table.get("nodes")
    if not isinstance(nodes, str) or not nodes:
        wrong.append(_nodes_mistake(f"classes.{name}.nodes", nodes, path))
    named = {}
    for kind, words in (("profile", "a profile's name"), ("fabric", "a fabric profile's name")):
        value = table.get(kind, "")
        if not isinstance(value, str):
            wrong.append(ConfigError(path, f"classes.{name}.{kind}", f"must be {words}"))
        named[kind] = value if isinstance(value, str) else ""
    own = _layer_of(table, path, f"classes.{name}.", ("nodes", "profile", "fabric", "accept"), wrong)
    of_class = _table(table, "accept", path, f"classes.{name}.", wrong)
    _tables_of_type(of_class, AcceptOptions, path, f"classes.{name}.accept", wrong)
    options = AcceptOptions() if wrong else accept_options(dict(accept), of_class, path, name)
    return NodeClass(name=name, nodes=nodes if isinstance(nodes, str) else "", layer=own, accept=options, **named)


def _nodes_mistake(key: str, nodes: object, path: str) -> ConfigError:
    if isinstance(nodes, list):
        names = [n for n in nodes if isinstance(n, str)]
        example = ",".join(names) if names and len(names) == len(nodes) else "gpu[001-004]"
        return ConfigError(path, key, "is a list; a Slurm nodelist is one text", hint=f'write nodes = "{example}"')
    if nodes is None or nodes == "":
        return ConfigError(path, key, 'missing: a Slurm nodelist such as "gpu[001-004]"')
    return ConfigError(path, key, 'must be a text: a Slurm nodelist such as "gpu[001-004]"')


def _layer_of(
    table: Mapping[str, Any], where: str, prefix: str, extra: Sequence[str], wrong: list[ConfigError]
) -> dict[str, Any]:
    """Return those entries of a table that are sections of the document. The table's mistakes are added to ``wrong``."""
    layer = {}
    for key, value in table.items():
        if key in extra:
            continue
        if key not in SECTION_NAMES:
            wrong.append(_unknown(where, prefix, key, extra))
        elif not isinstance(value, dict):
            wrong.append(ConfigError(where, f"{prefix}{key}", "must be a table", hint=f"write [{prefix}{key}], then its keys"))
        else:
            layer[key] = value
    return layer


def _unknown(where: str, prefix: str, key: str, extra: Sequence[str]) -> ConfigError:
    """Return the error for a key that a table of the site does not have."""
    from fairlead.config import schema_keys

    known = [*SECTION_NAMES, *extra]
    question = schema_keys.meant(key, known, node_schema()).replace("did you mean `", f"did you mean `{prefix}")
    if prefix.startswith("nodes.") and key in ("nodes", "profile", "fabric", "accept"):
        question = f"`{key}` belongs to a class: [classes.NAME], then {key} = ...;"
    return ConfigError(where, f"{prefix}{key}", "unknown key", hint=f"{question} known here: {', '.join(known)}".strip())


def _tables_of_type(value: object, schema: type[Options], where: str, table: str, wrong: list[ConfigError]) -> Options:
    """Return the options of a table without the wrong ones. Each mistake is added to ``wrong``."""
    try:
        return msgspec.convert(value, schema)
    except msgspec.ValidationError:
        from fairlead.config.mistakes import mistakes

        found = [*mistakes(value, schema, where, table)]
        wrong += found
        left_out = {m.key.removeprefix(f"{table}.").partition(".")[0].partition("[")[0] for m in found}
        right = {k: v for k, v in value.items() if k not in left_out} if isinstance(value, dict) else {}
        return msgspec.convert(right, schema)


def _table(data: Mapping[str, Any], key: str, path: str, prefix: str, wrong: list[ConfigError]) -> dict[str, Any]:
    table = data.get(key, {})
    if isinstance(table, dict):
        return table
    wrong.append(ConfigError(path, f"{prefix}{key}", "must be a table", hint=f"write [{prefix}{key}], then its keys"))
    return {}


def _tables(data: Mapping[str, Any], key: str, path: str, wrong: list[ConfigError]) -> Iterator[tuple[str, dict[str, Any]]]:
    table = data.get(key, {})
    if not isinstance(table, dict):
        words = 'nodes of one kind are a class: [classes.NAME], then nodes = "gpu[001-004]"'
        hint = words if key == "nodes" else f"write [{key}.NAME], then its keys"
        wrong.append(ConfigError(path, key, "must be a table of tables", hint=hint))
        return
    for name, inner in table.items():
        if isinstance(inner, dict):
            yield name, inner
        else:
            words = f"must be a table: [{key}] holds one table for each name"
            wrong.append(ConfigError(path, f"{key}.{name}", words, hint=f"write [{key}.NAME], then {name} = ..."))


def _hardware(name: str) -> dict[str, Any]:
    return profile_layer(load_profile(name))


def _fabric(name: str) -> dict[str, Any]:
    return fabric_layer(load_fabric(name))


def _one_of(site: Site, node: str, chosen: Sequence[NodeClass], kind: str) -> str:
    """Return the profile that the node's classes name, or "" for none. Raises ConfigError if they name several.

    ``kind``: profile (a hardware profile) or fabric.
    """
    named = {getattr(c, kind) for c in chosen if getattr(c, kind)}
    if len(named) > 1:
        names = ", ".join(f"{c.name} ({getattr(c, kind)})" for c in chosen if getattr(c, kind))
        hint = f"keep the node in one of them, or name the same {kind} in each"
        raise ConfigError(site.file, "classes", f"node {node} is in {names} with different {kind}s", hint=hint)
    return named.pop() if named else ""


def _refuse_other_values(site: Site, node: str, chosen: Sequence[NodeClass]) -> None:
    """Raise ConfigError if the node's classes declare different values of one key and the node declares none. Otherwise the order
    of the classes would decide."""
    if len(chosen) < 2:
        return
    own = dict(_leaves(site.nodes.get(node, {})))
    declared: dict[str, tuple[str, Any]] = {}
    for each in chosen:
        for key, value in _leaves(each.layer):
            name, other = declared.setdefault(key, (each.name, value))
            if other != value and key not in own:
                shown = " and ".join(one_line(json.dumps(v, default=str), 60) for v in (other, value))
                words = f"node {node} is in {name} and {each.name}, which declare {shown}"
                hint = f"declare one value in both, keep the node in one of them, or declare it in nodes.{node}"
                raise ConfigError(site.file, f"classes.{each.name}.{key}", words, hint=hint)


def _leaves(layer: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted key and the value of each value of a layer."""
    for key, value in layer.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def resolve(site: Site, node: str, classes: Sequence[str]) -> tuple[Document, dict[str, str]]:
    """Return a node's document, and the origin of each declared value.

    ``classes``: the names of the classes that contain the node. The caller has compared their nodelists with the node. Raises
    ConfigError if two classes name different profiles or declare different values, if a MIG geometry does not fit the hardware
    profile, or if fairlead.lock does not agree with the declared driver.
    """
    layers, name = layers_of(site, node, classes)
    for origin, layer in layers:
        for mistake in mig_mistakes_of_profile(origin, layer, name):
            raise mistake
    locked = lock_layer(site.file, node, layers, name)
    return resolve_layers(node, [*layers, *([locked] if locked else [])], profile=name, generation=site.generation)


def layers_of(site: Site, node: str, classes: Sequence[str]) -> tuple[list[tuple[str, Mapping[str, Any]]], str]:
    """Return the layers of a node's document (origin, tree) without that of fairlead.lock, and the hardware profile's name."""
    chosen = [c for c in site.classes if c.name in classes]
    name = _one_of(site, node, chosen, "profile")
    _refuse_other_values(site, node, chosen)
    layers: list[tuple[str, Mapping[str, Any]]] = []
    for kind, named, layer_of in (("profile", name, _hardware), ("fabric", _one_of(site, node, chosen, "fabric"), _fabric)):
        if named:
            try:
                layers.append((f"{kind} {named}", layer_of(named)))
            except InputMissing as e:
                key = next(f"classes.{c.name}.{kind}" for c in chosen if getattr(c, kind))
                raise InputMissing(f"{site.file}: {key}: {e.message}", hint=e.hint) from None
    return [*layers, *own_layers(site, node, classes)], name


def own_layers(site: Site, node: str, classes: Sequence[str]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return those layers of a node's document that the site's file declares."""
    layers: list[tuple[str, Mapping[str, Any]]] = [(site.file, site.layer)]
    layers += [(f"{site.file} classes.{c.name}", c.layer) for c in site.classes if c.name in classes]
    if node in site.nodes:
        layers.append((f"{site.file} nodes.{node}", site.nodes[node]))
    return layers


def profile_document(node: str, profile: str = "", fabric: str = "") -> Document:
    """Return a document made from the defaults and these profiles, for commands that read a machine without a site."""
    layers = [(f"profile {profile}", _hardware(profile))] if profile else []
    layers += [(f"fabric {fabric}", _fabric(fabric))] if fabric else []
    return resolve_layers(node, layers, profile=profile)[0]
