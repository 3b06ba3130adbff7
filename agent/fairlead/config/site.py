"""A site's declaration (site.toml) on the admin host, hardware profiles, and a node's document made from both.

schema = 1
generation = 7                      # counts the site's changes; the nodes show which one they run
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
[accept]                            # how `fairlead accept` measures; [classes.h100.accept] for what differs
prelude = "module load nccl-tests"
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from fairlead import assets
from fairlead.config.accept_options import AcceptOptions, accept_options
from fairlead.config.document import SCHEMA, SECTION_NAMES, Document, config_error, resolve_layers
from fairlead.config.driver_lock_file import lock_layer
from fairlead.config.fabric import fabric_layer, load_fabric
from fairlead.config.partitions import Partition, partitions_of
from fairlead.errors import ConfigError, InputMissing
from fairlead.model.profile import Profile


class AnsibleOptions(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How the admin host reaches the nodes. Empty values are left to Ansible and ssh."""

    # Each value stands in a line of Ansible's inventory: nothing that would say more there than itself.
    user: Annotated[
        str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.@-]*\Z", description="Who logs in; not root: may sudo without a password.")
    ] = "root"
    private_key: Annotated[
        str, Meta(pattern=r"^[^\n{}]*\Z", description="File of the key; empty: as ssh finds one (agent, ~/.ssh/config).")
    ] = ""
    ssh_args: Annotated[
        str,
        Meta(pattern=r"^[^\n]*\Z", description='More options of ssh, such as "-p 2222" or "-F FILE"; ~/.ssh/config counts too.'),
    ] = ""
    python: Annotated[
        str,
        Meta(
            pattern=r"^(/[A-Za-z0-9_./+-]*)?\Z",
            description="Python 3.11 or newer on the nodes, which fairlead's own is made from; empty: one is looked for there.",
        ),
    ] = ""
    forks: Annotated[int, Meta(ge=1, le=1000, description="Nodes at a time.")] = 50
    hosts: Annotated[
        dict[str, Annotated[str, Meta(pattern=r"^[A-Za-z0-9:][A-Za-z0-9._:%-]*\Z")]],
        Meta(description="NodeName to address (no port), where DNS does not say it."),
    ] = msgspec.field(default_factory=dict)


class NodeClass(Struct, frozen=True, kw_only=True):
    """A class of equal nodes: a Slurm nodelist, a hardware and a fabric profile, and a layer of the document."""

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


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        hint = "it declares the nodes: docs/how-to/roll-out.md; --site names another"
        raise InputMissing(f"{path}: no such file", hint=hint) from None
    except OSError as e:
        raise InputMissing(f"{path}: {e.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise ConfigError(str(path), "", f"not TOML: {e}") from None


def profile_names() -> tuple[str, ...]:
    """The hardware profiles that this installation carries."""
    return tuple(sorted(p.stem for p in assets.profile_directory().glob("*.toml")))


def load_profile(name: str) -> Profile:
    """A hardware profile by name, or by the path of a site's own file. Raises InputMissing, ConfigError."""
    path = Path(name) if "/" in name else assets.profile_directory() / f"{name}.toml"
    if not path.is_file():
        raise InputMissing(f"profile {name!r}: no such profile", hint=f"known profiles: {', '.join(profile_names()) or 'none'}")
    try:
        return msgspec.convert(_read_toml(path), Profile)
    except msgspec.ValidationError as e:
        raise ConfigError(str(path), "", str(e)) from None


def profile_layer(profile: Profile) -> dict[str, Any]:
    """The values of a profile as a layer of the document. Raises ConfigError for a key that is given twice."""
    layer: dict[str, Any] = {}
    if profile.unsupported:
        layer["unsupported"] = profile.unsupported
    for value in profile.values:
        table = layer
        *parents, last = value.key.split(".")
        for part in parents:
            table = table.setdefault(part, {})
        if last in table:
            raise ConfigError(f"profile {profile.name}", value.key, "given twice")
        table[last] = value.value
    return layer


def _layer_of(table: Mapping[str, Any], where: str, prefix: str, extra: Sequence[str]) -> dict[str, Any]:
    layer = {}
    for key, value in table.items():
        if key in extra:
            continue
        if key not in SECTION_NAMES:
            known = ", ".join([*SECTION_NAMES, *extra])
            raise ConfigError(where, f"{prefix}{key}", "unknown key", hint=f"known here: {known}")
        if not isinstance(value, dict):
            raise ConfigError(where, f"{prefix}{key}", "must be a table")
        layer[key] = value
    return layer


def load_site(path: str) -> Site:
    """A site's declaration. Raises InputMissing, ConfigError with file and key."""
    data = _read_toml(Path(path))
    if data.get("schema") != SCHEMA:
        raise ConfigError(path, "schema", f"must be {SCHEMA}")
    generation = data.get("generation", 0)
    if not isinstance(generation, int) or generation < 0:
        raise ConfigError(path, "generation", "must be a whole number")
    layer = _layer_of(data, path, "", ("schema", "generation", "classes", "nodes", "partitions", "ansible", "accept"))
    accept = _table(data, "accept", path)
    classes = []
    for name, table in _tables(data, "classes", path):
        nodes, profile, fabric = table.get("nodes"), table.get("profile", ""), table.get("fabric", "")
        if not isinstance(nodes, str) or not nodes:
            raise ConfigError(path, f"classes.{name}.nodes", 'missing: a Slurm nodelist such as "gpu[001-004]"')
        if not isinstance(profile, str):
            raise ConfigError(path, f"classes.{name}.profile", "must be a profile's name")
        if not isinstance(fabric, str):
            raise ConfigError(path, f"classes.{name}.fabric", "must be a fabric profile's name")
        own = _layer_of(table, path, f"classes.{name}.", ("nodes", "profile", "fabric", "accept"))
        options = accept_options(accept, _table(table, "accept", path, f"classes.{name}."), path, name)
        classes.append(NodeClass(name=name, nodes=nodes, profile=profile, layer=own, fabric=fabric, accept=options))
    nodes = {name: _layer_of(table, path, f"nodes.{name}.", ()) for name, table in _tables(data, "nodes", path)}
    try:
        ansible = msgspec.convert(data.get("ansible", {}), AnsibleOptions)
    except msgspec.ValidationError as e:
        raise config_error(path, e, "ansible", known=AnsibleOptions.__struct_fields__) from None
    return Site(
        file=path,
        generation=generation,
        layer=layer,
        classes=tuple(classes),
        nodes=nodes,
        ansible=ansible,
        accept=accept_options(accept, {}, path),
        partitions=partitions_of(dict(_tables(data, "partitions", path)), path, [c.name for c in classes]),
    )


def _table(data: Mapping[str, Any], key: str, path: str, prefix: str = "") -> dict[str, Any]:
    table = data.get(key, {})
    if not isinstance(table, dict):
        raise ConfigError(path, f"{prefix}{key}", "must be a table")
    return table


def _tables(data: Mapping[str, Any], key: str, path: str) -> list[tuple[str, dict[str, Any]]]:
    table = data.get(key, {})
    if not isinstance(table, dict) or not all(isinstance(v, dict) for v in table.values()):
        raise ConfigError(path, key, "must be a table of tables")
    return list(table.items())


def _hardware(name: str) -> dict[str, Any]:
    return profile_layer(load_profile(name))


def _fabric(name: str) -> dict[str, Any]:
    return fabric_layer(load_fabric(name))


def _one_of(site: Site, node: str, chosen: Sequence[NodeClass], kind: str) -> str:
    """The profile of this kind that the node's classes name, "" for none."""
    named = {getattr(c, kind) for c in chosen if getattr(c, kind)}
    if len(named) > 1:
        names = ", ".join(c.name for c in chosen)
        raise ConfigError(site.file, "classes", f"node {node} is in {names} with different {kind}s")
    return named.pop() if named else ""


def resolve(site: Site, node: str, classes: Sequence[str]) -> tuple[Document, dict[str, str]]:
    """A node's document and the origin of each given value. ``classes``: the names of the classes that hold the node
    (the caller knows nodelists). Raises ConfigError when two classes name different profiles, or the lock does not fit."""
    layers, name = layers_of(site, node, classes)
    locked = lock_layer(site.file, node, layers, name)
    return resolve_layers(node, [*layers, *([locked] if locked else [])], profile=name, generation=site.generation)


def layers_of(site: Site, node: str, classes: Sequence[str]) -> tuple[list[tuple[str, Mapping[str, Any]]], str]:
    """The layers of a node's document (origin, tree) but for the lock, and its hardware profile's name."""
    chosen = [c for c in site.classes if c.name in classes]
    name = _one_of(site, node, chosen, "profile")
    layers: list[tuple[str, Mapping[str, Any]]] = []
    for kind, named, layer_of in (("profile", name, _hardware), ("fabric", _one_of(site, node, chosen, "fabric"), _fabric)):
        if named:
            try:
                layers.append((f"{kind} {named}", layer_of(named)))
            except InputMissing as e:
                key = next(f"classes.{c.name}.{kind}" for c in chosen if getattr(c, kind))
                raise InputMissing(f"{site.file}: {key}: {e.message}", hint=e.hint) from None
    layers.append((site.file, site.layer))
    layers += [(f"{site.file} classes.{c.name}", c.layer) for c in chosen]
    if node in site.nodes:
        layers.append((f"{site.file} nodes.{node}", site.nodes[node]))
    return layers, name


def profile_document(node: str, profile: str = "", fabric: str = "") -> Document:
    """A document of profiles (or nothing) and the defaults: for a look at a machine without a site."""
    layers = [(f"profile {profile}", _hardware(profile))] if profile else []
    layers += [(f"fabric {fabric}", _fabric(fabric))] if fabric else []
    return resolve_layers(node, layers, profile=profile)[0]
