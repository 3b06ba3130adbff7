"""Makes the text of `fairlead config show`: values as site.toml writes them, those that differ from the defaults, and origins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from fairlead import config, settings
from fairlead.cli.value_text import value_lines, value_text
from fairlead.config import Document
from fairlead.errors import FairleadError

Path = tuple[str, ...]
Values = dict[Path, Any]
_HEAD = ("schema", "generation", "hash", "node", "profile")
DEFAULT = "default"
VALUE_WIDTH = 24  # most values fit; a longer one moves its origin further right


def flat(data: Mapping[str, Any], above: Path = ()) -> Values:
    """Return every value of a tree by its path. An empty table counts as a value."""
    found: Values = {}
    for key, value in data.items():
        inner = flat(value, (*above, key)) if isinstance(value, Mapping) and value else {}
        found |= inner or {(*above, key): value}
    return found


def tree(values: Values) -> dict[str, Any]:
    """Return the tree that has these values."""
    made: dict[str, Any] = {}
    for path, value in values.items():
        table = made
        for part in path[:-1]:
            table = table.setdefault(part, {})
        table[path[-1]] = value
    return made


def dotted(path: Path) -> str:
    """Return a path as a key of a document is written: its parts with dots between them."""
    return ".".join(path)


def changed(document: Document, origins: Mapping[str, str]) -> Values:
    """Return what differs from the defaults. ``origins``: the origin of each key.

    A declared setting always differs, because it is declared. If all its values are defaults, the keys that the declaration
    names are returned, or else ``managed``.
    """
    default, _ = config.resolve_layers(document.node, [])
    usual = flat(config.to_data(default))
    for name in document.settings:
        usual |= flat({"settings": {name: _defaults(name)}})
    found: Values = {}
    for path, value in flat(config.to_data(document)).items():
        given = path[0] == "settings" and dotted(path) in origins
        if path[0] not in _HEAD and (given or path not in usual or usual[path] != value):
            found[path] = value
    for name, want in document.settings.items():
        if not any(path[:2] == ("settings", name) for path in found):
            found["settings", name, "managed"] = want.managed
    return found


def _defaults(setting: str) -> dict[str, Any]:
    """Return the values of a setting that is declared without any key, or {} if the setting requires a key."""
    try:
        made: dict[str, Any] = msgspec.to_builtins(settings.load()[setting].want())
    except TypeError:
        return {}
    return made


def origins_of(document: Document) -> dict[str, str]:
    """Return the origin of each value of a document that was resolved elsewhere.

    The origin is the document's profile if the profile has the same value, else the document.
    """
    from fairlead.config.site import profile_layer

    values = flat(config.to_data(document))
    try:
        of_profile = flat(profile_layer(config.load_profile(document.profile))) if document.profile else {}
    except FairleadError:
        of_profile = {}
    found = {
        dotted(path): f"profile {document.profile}"
        for path, value in of_profile.items()
        if path in values and value_text(values[path]) == value_text(value)
    }
    for path in changed(document, found):
        found.setdefault(dotted(path), "the document")
    return found


def origin(path: Path, document: Document, origins: Mapping[str, str]) -> str:
    """Return where a value comes from, or "" for a key that every document has. A declared setting may set checks' parameters."""
    if path[0] in _HEAD:
        return ""
    for name, want in document.settings.items():
        if want.managed and path[0] == "checks" and path[-1] in settings.load()[name].instead_of.get(path[1], {}):
            return f"the declared setting {name}"
    key = dotted(path)
    if key in origins:
        return origins[key]
    declared = [by for given, by in origins.items() if given.startswith(f"{dotted(path[:2])}.")]
    return declared[-1] if declared and path[0] == "settings" and path[-1] == "managed" else DEFAULT


def all_lines(document: Document, values: Values, origins: Mapping[str, str] | None) -> list[str]:
    """Return a line for each value, with its origin where ``origins`` is given."""
    width = max(map(len, map(dotted, values)))
    lines = []
    for path, value in values.items():
        first, *more = value_lines(value)
        by = f"  {origin(path, document, origins)}" if origins is not None else ""
        lines += [f"{dotted(path):{width}}  {first:{VALUE_WIDTH if by else 0}}{by}".rstrip(), *more]
    return lines


def changed_lines(document: Document, values: Values, origins: Mapping[str, str]) -> list[str]:
    """Return what differs from the defaults, grouped by origin."""
    by_origin: dict[str, list[str]] = {}
    for path, value in values.items():
        first, *more = value_lines(value)
        said = by_origin.setdefault(origin(path, document, origins), [])
        said += [f"  {dotted(path)} = {first}", *(f"  {line}" for line in more)]
    profile = f"profile {document.profile}" if document.profile else "no profile"
    lines = [f"{document.node}: {profile}, generation {document.generation}; what differs from the defaults:"]
    for said_by in sorted(by_origin, key=_rank):
        lines += ["", said_by, *by_origin[said_by]]
    return lines if by_origin else [*lines, "  nothing"]


def _rank(said_by: str) -> tuple[int, str]:
    """Return the sort key of an origin, in the order of the layers: profile, fabric, the whole site, its classes, its nodes,
    the rest."""
    marks: Iterable[tuple[int, bool]] = (
        (0, said_by.startswith("profile ")),
        (1, said_by.startswith("fabric ")),
        (3, " classes." in said_by),
        (4, " nodes." in said_by),
        (5, said_by.startswith("the declared setting ")),
    )
    return next((rank for rank, fits in marks if fits), 2), said_by
