"""Makes the answer of `fairlead explain xid` and `fairlead explain sxid`: the meaning, the action and the reason of a code, what
other health systems do, and the site's own choice."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

import msgspec

from fairlead.cli.wrapped_text import fields, wrap
from fairlead.errors import InputMissing, UsageError
from fairlead.model.finding import Action, Service
from fairlead.xid import elsewhere, nvlink5, nvlink5_rules, versions
from fairlead.xid.catalogue import ENTRIES, RECOVERY, look_up
from fairlead.xid.sxids import MEANS, SOURCE, sxid

if TYPE_CHECKING:
    from fairlead.checks.xid import Params

DOCUMENT = "/etc/fairlead/node.json"
_OF_UNIT = {"action": "action", "why down": "reason", "look into": "look"}  # title and key


class OtherDriver(TypedDict):
    """What a code means with other drivers."""

    drivers: str
    name: str
    description: str
    action: str
    service: str
    why: str
    source: str


class ChangedAction(TypedDict):
    """A number that Xid 154 prints, and the action that it stands for."""

    number: int
    words: str
    action: str
    service: str


#: A row of NVIDIA's table of NVLink 5 errors.
UnitRow = TypedDict(  # noqa: UP013 (a key is no name of ours)
    "UnitRow",
    {
        "unit": str,
        "error_status": str,
        "reason": str,
        "severity": str,
        "action": str,
        "look": str,
        "effect": str,
    },
)


class OtherSystem(TypedDict):
    """What another health system does for a code by default."""

    system: str
    does: str
    note: str
    source: str


class SiteChoice(TypedDict):
    """The site's own choice for a code, and the document that has it."""

    document: str
    service: NotRequired[str]
    action: NotRequired[str]


class ExplainedSxid(TypedDict):
    """An SXid. site: null if the site has chosen nothing. text: what the command prints without --json."""

    kind: str
    code: int
    name: str
    weight: str
    action: str
    service: str
    blames: str
    why: str
    source: str
    site: SiteChoice | None
    text: str


class ExplainedXid(TypedDict):
    """An Xid. numbers: of Xid 154. units: of Xids 144 to 150. others: what other health systems do. See XidEntry."""

    kind: str
    code: int
    name: str
    description: str
    action: str
    service: str
    blames: str
    why: str
    source: str
    since: str
    note: str
    other_drivers: list[OtherDriver]
    numbers: NotRequired[list[ChangedAction]]
    units: NotRequired[list[UnitRow]]
    others: list[OtherSystem]
    site: SiteChoice | None
    text: str


def explain(kind: str, word: str, document: str = "") -> dict[str, Any]:
    """Return the data of one code, with the printed text as ``text``. Raise UsageError, ConfigError, InputMissing for an
    unknown code.

    ``kind``: xid or sxid. ``document``: a node's document; "" for this node's own document, if it has one.
    """
    if not (word.isascii() and word.isdigit()) or len(word) > 7:
        raise UsageError(f"{word!r} is not an {kind.upper() if kind == 'sxid' else 'Xid'} code", hint="a number, such as 94")
    code = int(word)
    data = _xid(code) if kind == "xid" else _sxid(code)
    data["site"] = _site(f"sxid {code}" if kind == "sxid" else str(code), document)
    return {**data, "text": "\n".join(_lines(data))}


def _xid(code: int) -> dict[str, Any]:
    if code not in ENTRIES:
        raise InputMissing(
            f"Xid {code} is not in the catalogue",
            hint="if a newer driver prints it, fairlead reports it and does not drain for it; see NVIDIA's catalogue",
        )
    data: dict[str, Any] = {"kind": "xid", **msgspec.to_builtins(look_up(code))}
    data["since"] = versions.SINCE.get(code, "")
    data["note"] = versions.NOTES.get(code, "")
    data["other_drivers"] = [_change(change) for change in versions.CHANGES if change.code == code]
    if code == 154:
        data["numbers"] = [
            {"number": n, "words": words, "action": action.value, "service": service.value}
            for n, (words, action, service) in RECOVERY.items()
        ]
    if code in nvlink5.CODES:
        data["units"] = _units(code)
    data["others"] = [
        {"system": s.name, "does": elsewhere.reaction(s, code).value, "note": s.note, "source": s.source}
        for s in elsewhere.SYSTEMS
    ]
    return data


def _change(change: versions.VersionChange) -> dict[str, str]:
    upto = f" to below {_dotted(change.before)}" if change.before else " and newer"
    return {
        "drivers": f"{_dotted(change.first)}{upto}",
        "name": change.name,
        "description": change.description,
        "action": change.action.value,
        "service": change.service.value,
        "why": change.why,
        "source": change.source,
    }


def _dotted(version: versions.Version) -> str:
    return ".".join(f"{part:02}" for part in version)


def _units(code: int) -> list[dict[str, str]]:
    """Return NVIDIA's table of one of the codes 144 to 150, row by row."""
    rows = [(unit, "", rule) for unit, rules in nvlink5_rules.UNITS if unit.code == code for rule in rules]
    if code == nvlink5_rules.LINK_UNIT.code:
        rows += [(nvlink5_rules.LINK_UNIT, reason, rule) for reason, rule in nvlink5_rules.LINK_REASONS.values()]
    return [
        {
            "unit": unit.v1_name if unit.v1_name == unit.v2_name else f"{unit.v1_name}/{unit.v2_name}",
            "error_status": "any" if rule.status == nvlink5_rules.ANY else f"0x{rule.status:x}",
            "reason": reason,
            "severity": rule.severity,
            "action": rule.action.value + (f", promoted: {rule.promoted.value}" if rule.promoted else ""),
            "look": rule.investigate,
            "effect": rule.effect,
        }
        for unit, reason, rule in rows
    ]


def _sxid(code: int) -> dict[str, Any]:
    known = sxid(code)
    if known is None:
        raise InputMissing(
            f"SXid {code} is not in the Fabric Manager guide",
            hint="the line itself says Fatal or Non-fatal; only Fatal drains",
        )
    return {
        "kind": "sxid",
        "code": code,
        "name": known.words,
        "weight": known.weight.value,
        "action": f"{Action.CHECK_FABRIC.value} when the line says Fatal, else {Action.NONE.value}",
        "service": f"{Service.DRAIN_NOW.value} when the line says Fatal, else {Service.KEEP.value}",
        "blames": "fabric",
        "why": MEANS[known.weight],
        "source": SOURCE,
    }


def _site(key: str, document: str) -> dict[str, str] | None:
    """Return the site's own service and action for a code, read from a document, or None if the document has none.

    ``key``: the code as the parameters of ``checks.xid`` write it.
    """
    if not document and not os.path.exists(DOCUMENT):
        return None
    from fairlead.config import load_document

    path = document or DOCUMENT
    params: Params = load_document(path).checks["xid"]  # type: ignore[assignment]
    own = {"service": params.services.get(key), "action": params.actions.get(key)}
    chosen = {name: value.value for name, value in own.items() if value is not None}
    return {"document": path, **chosen} if chosen else None


def _lines(data: dict[str, Any]) -> list[str]:
    head = "Xid" if data["kind"] == "xid" else "SXid"
    shown = ("description", "action", "service", "blames", "weight", "why", "since", "note", "source")
    titles = {"description": "meaning", "since": "drivers from"}
    rows = [(titles.get(key, key), str(data[key])) for key in shown if data.get(key)]
    if data["service"] == Service.DRAIN_AFTER_JOB.value and data["action"] in (Action.NONE.value, Action.RESTART_APP.value):
        rows.insert(
            rows.index(("service", data["service"])) + 1, ("then", f"{Action.RESET_GPU.value}, what the finding asks for")
        )
    if own := ", ".join(f"{name} {value}" for name, value in (data["site"] or {}).items() if name != "document"):
        rows.append(("this site", f"{own} ({data['site']['document']}, checks.xid)"))
    lines = [f"{head} {data['code']}: {data['name']}", "", *fields(rows)]
    for change in data.get("other_drivers", ()):
        lines += ["", f"Drivers {change['drivers']}: {change['name']}", ""]
        lines += wrap(f"{change['description']}: {change['action']}, {change['service']} ({change['source']})", "  ", "  ")
        lines += wrap(change["why"], "  ", "  ")
    return lines + _tables(data)


def _tables(data: dict[str, Any]) -> list[str]:
    lines: list[str] = []
    if "numbers" in data:
        lines += ["", "The action it changed to", ""]
        lines += fields((f"0x{r['number']:x}", f"{r['action']}, {r['service']}: {r['words']}") for r in data["numbers"])
    if "units" in data:
        lines += ["", *wrap("Units, each with its error status (the line's own Fatal or Nonfatal says whether it drains)")]
        for said, statuses in _units_that_say_the_same(data["units"]).items():
            unit, severity, *rest = said
            lines += ["", *wrap(f"{unit}, status {', '.join(statuses)}: {severity}", "  ", "    ")]
            lines += fields([(title, value) for title, value in zip(_OF_UNIT, rest, strict=True) if value], "    ")
    if "others" in data:
        lines += ["", "What others do by default", ""]
        names = {w.value: [row["system"] for row in data["others"] if row["does"] == w.value] for w in elsewhere.Reaction}
        lines += fields((word, ", ".join(systems)) for word, systems in names.items() if systems)
    return lines


def _units_that_say_the_same(rows: list[dict[str, str]]) -> dict[tuple[str, ...], list[str]]:
    """Return the error statuses of each unit, grouped by what NVIDIA's table says of them."""
    found: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        said = (row["unit"], row["severity"], *(row[key] for key in _OF_UNIT.values()))
        found.setdefault(said, []).append(row["error_status"])
    return found
