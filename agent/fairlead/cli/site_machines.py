"""Reads the machines that `fairlead slurm-config --site` describes: every node of every class, from one machine tree per
class.

The nodes of a class are equal, so the tree of one of them describes them all. A node that has a tree of its own is described
by that tree. The MIG instances are those that the site declares, even if the GPUs of a tree are divided in another way.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from msgspec.structs import replace

from fairlead.cli import machine_input
from fairlead.config import Document, Site, known_profiles, resolve_layers
from fairlead.errors import ConfigError, DataError, UsageError, WrongProfile
from fairlead.model.another_gpu import Declared, is_another_gpu, refusal
from fairlead.model.nodelist import expand, fold, in_order
from fairlead.settings.mig import MigWant
from fairlead.slurm_config.gres_conf import node_line
from fairlead.slurm_config.slurm_node import SlurmNode


def read(args: argparse.Namespace, site: Site) -> list[SlurmNode]:
    """Return the nodes of all classes but those of --without, in order. Raise DataError for a class without a tree."""
    from fairlead.provision.inventory import members

    by_class = members(site)
    left_out = frozenset(expand(args.without)) if args.without else frozenset()
    own, of_class = _sources(args, by_class)
    found: dict[str, SlurmNode] = {}
    for name, nodes in by_class.items():
        wanted = [node for node in nodes if node not in left_out]
        lacking = [node for node in wanted if node not in own]
        shared = of_class.get(name) or _one_of(name, [own[node] for node in wanted if node in own]) if lacking else None
        if lacking and shared is None:
            hint = (
                f"name one: {name}=TREE; `fairlead snapshot` on {lacking[0]} writes it; --without {fold(nodes)} leaves them out"
            )
            raise DataError(f"class {name}: there is no machine tree of any of {fold(nodes)}", hint=hint)
        for node in wanted:
            machine = own.get(node) or shared
            if machine is not None:
                found[node] = _as_declared(site, replace(machine, name=node), node, by_class)
    return [found[name] for name in in_order(found)]


def _sources(
    args: argparse.Namespace, by_class: Mapping[str, tuple[str, ...]]
) -> tuple[dict[str, SlurmNode], dict[str, SlurmNode]]:
    """Return two tables of the machines on the command line: by node, and by class.

    A tree without a name belongs to the node that it was taken on.
    """
    known = {node for nodes in by_class.values() for node in nodes}
    own: dict[str, SlurmNode] = {}
    of_class: dict[str, SlurmNode] = {}
    for source in args.source or ([args.root] if args.root != "/" else []):
        made = machine_input.read_source(source, args)
        into = own if made.name in known else of_class
        if made.name not in known and made.name not in by_class:
            words = f"{source}: the site has no node and no class {made.name!r}"
            raise UsageError(words, hint=f"name it: CLASS=TREE, of {', '.join(by_class) or 'no class'}")
        if made.name in into:
            raise DataError(f"{source}: there is already a tree of {made.name}", hint="name one of them")
        into[made.name] = made
    return own, of_class


def _one_of(name: str, machines: list[SlurmNode]) -> SlurmNode | None:
    """Return the machine that describes those nodes of a class that have no tree of their own. Raise DataError if the trees of
    the class differ."""
    lines = {node_line(replace(m, memory_mib=None), ["n"]) for m in machines}
    if len(lines) > 1:
        words = f"class {name}: the trees of {fold(m.name for m in machines)} differ, and other nodes of it have none"
        raise DataError(words, hint=f"say which tree describes them: {name}=TREE")
    return min(machines, key=lambda m: m.memory_mib or 0, default=None)


def _as_declared(site: Site, machine: SlurmNode, node: str, by_class: Mapping[str, tuple[str, ...]]) -> SlurmNode:
    """Return the machine with the GPU instances that the site declares. Raise ConfigError, DataError and
    WrongProfile if the tree disagrees."""
    from fairlead.config.site import layers_of

    own = [name for name, nodes in by_class.items() if node in nodes]
    layers, profile = layers_of(site, node, own)
    document = resolve_layers(node, layers, profile=profile, generation=site.generation)[0]
    if is_another_gpu(machine.gpu_kinds, document.gpu_pci_ids):
        declared = Declared(node, profile, document.gpu_pci_ids, own)
        words, hint = refusal(declared, machine.gpu_kinds, known_profiles())
        raise WrongProfile(words, hint=hint)
    _refuse_fewer(site, document, machine)
    want = document.settings.get("mig")
    if not isinstance(want, MigWant) or not want.managed:
        return machine
    absent = sorted(set(want.by_gpu) - {gpu.pci for gpu in machine.gpus})
    if absent:
        here = ", ".join(gpu.pci for gpu in machine.gpus) or "none"
        raise ConfigError(site.file, f"settings.mig.by_gpu.{absent[0]}", f"{node} has no GPU there", hint=f"it has {here}")
    geometry = {gpu.pci: want.by_gpu.get(gpu.pci, want.geometry) for gpu in machine.gpus}
    if any(geometry.values()) and "mig_current" in document.unsupported:
        raise ConfigError(site.file, "settings.mig", f"{node}: the GPUs of profile {profile} have no MIG", hint="leave it out")
    gpus = tuple(replace(gpu, mig=bool(geometry[gpu.pci]), instances=geometry[gpu.pci]) for gpu in machine.gpus)
    return replace(machine, gpus=gpus)


def _refuse_fewer(site: Site, document: Document, machine: SlurmNode) -> None:
    expected = getattr(document.checks.get("gpu_count"), "expected", None)
    if expected is not None and len(machine.gpus) != expected:
        words = f"{document.node}: its tree shows {len(machine.gpus)} GPUs, {site.file} and its profile declare {expected}"
        raise DataError(words, hint="take the tree of a whole node, or declare checks.gpu_count.expected")
