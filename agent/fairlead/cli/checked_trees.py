"""Compares the GPUs of machine trees with the hardware profiles that a site or a document declares, for `config check --root`."""

from __future__ import annotations

import os
from collections.abc import Sequence

from fairlead import config
from fairlead.apply.refused_profile import another_gpu
from fairlead.cli.machine_tree import machine, recorded_nvml
from fairlead.config import Document
from fairlead.errors import ConfigError, UsageError
from fairlead.host import kernel
from fairlead.host.gather import gather
from fairlead.provision.inventory import all_nodes, fold, targets
from fairlead.provision.site_check import Mistake


def wrong_profiles(path: str, sources: Sequence[str]) -> tuple[Mistake, ...]:
    """Return a mistake for each tree whose node has a hardware profile for another GPU. ``path``: a site without other mistakes.
    ``sources``: [NODE=]TREE. Raise UsageError for a node that the site does not declare."""
    site = config.load_site(path)
    known, found = all_nodes(site), []
    for source in sources:
        node, tree = _named(source)
        name = node or kernel.node_name(machine(tree))
        if name not in known:
            hint = f"say which node the tree is of: --root NODE={tree}; declared there: {fold(known) or 'none'}"
            raise UsageError(f"--root {source}: {name} is not declared in {path}", hint=hint)
        (target,) = targets(site, name)
        if refused := _refused(target.document, tree, target.classes):
            key = next((f"classes.{c.name}.profile" for c in site.classes if c.name in target.classes and c.profile), "")
            found.append(Mistake(file=path, key=key, reason=refused[0], hint=refused[1]))
    return tuple(found)


def wrong_profile(path: str, source: str) -> ConfigError | None:
    """Return a mistake if the document's hardware profile is for another GPU than the tree has, else None."""
    refused = _refused(config.load_document(path), _named(source)[1])
    return ConfigError(path, "profile", refused[0], hint=refused[1]) if refused else None


def _named(source: str) -> tuple[str, str]:
    """Return the node's name, or "", and the tree of [NODE=]TREE."""
    node, equals, tree = source.partition("=")
    return ("", source) if not equals or os.path.exists(source) else (node, tree)


def _refused(document: Document, tree: str, classes: Sequence[str] = ()) -> tuple[str, str] | None:
    node = gather(machine(tree), recorded_nvml(tree), unsupported=document.unsupported)
    return another_gpu(document, node, classes)
