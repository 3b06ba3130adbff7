"""Defines the schema of a node's document and of a site. The schema of a document is composed of what the checks, the settings
and the policy declare.

A node needs only the modules for documents. The modules for sites are imported when a caller uses one of their names.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fairlead.config.document import (
    SCHEMA,
    SECTION_NAMES,
    AgentOptions,
    Document,
    HookOptions,
    JobEnvOptions,
    SlurmOptions,
    content_hash,
    decode_document,
    encode_document,
    hooks_line,
    json_schema,
    load_document,
    resolve_layers,
    to_data,
)

if TYPE_CHECKING:
    from fairlead.config.accept_options import AcceptOptions
    from fairlead.config.fabric import fabric_layer, fabric_names, load_fabric
    from fairlead.config.site import (
        AnsibleOptions,
        NodeClass,
        Site,
        known_profiles,
        layers_of,
        load_profile,
        load_site,
        profile_document,
        profile_names,
        read_site,
        resolve,
    )

_FABRIC = ("fabric_layer", "fabric_names", "load_fabric")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "accept_options" if name == "AcceptOptions" else "fabric" if name in _FABRIC else "site"
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)


__all__ = [
    "SCHEMA",
    "SECTION_NAMES",
    "AcceptOptions",
    "AgentOptions",
    "AnsibleOptions",
    "Document",
    "HookOptions",
    "JobEnvOptions",
    "NodeClass",
    "Site",
    "SlurmOptions",
    "content_hash",
    "decode_document",
    "encode_document",
    "fabric_layer",
    "fabric_names",
    "hooks_line",
    "json_schema",
    "known_profiles",
    "layers_of",
    "load_document",
    "load_fabric",
    "load_profile",
    "load_site",
    "profile_document",
    "profile_names",
    "read_site",
    "resolve",
    "resolve_layers",
    "to_data",
]
