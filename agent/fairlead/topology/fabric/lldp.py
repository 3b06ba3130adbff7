"""Makes a fabric of the neighbours that lldpd sees, from ``lldpctl -f json`` or ``-f json0`` of each node (and switch).

With json, lldpd(8) writes one neighbour as an object, and several neighbours as a list. With json0 it always writes a list
(lldpcli(8), "json0 is easier to parse"). A neighbour counts as a switch if it has the capability Bridge or Router enabled, or if
it reports no capabilities.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from fairlead.errors import DataError
from fairlead.model.json_text import NOT_JSON
from fairlead.topology.fabric.switch_fabric import End, SwitchFabric

_HINT = "take it again on that node: lldpctl -f json > NODE.json"
_FORWARDS = frozenset({"bridge", "router"})


def parse(texts: Mapping[str, str]) -> SwitchFabric:
    """Return the fabric that several systems' outputs describe. ``texts``: the outputs by system name. Ids are names.

    If a switch's own output is among the texts, this switch is the neighbour with the same name. Raises DataError, which names
    the system in one line, for text that is not such an output.
    """
    heard = [(system, *each) for system, text in sorted(texts.items()) for each in _neighbours(system, text)]
    switches = {name: name for _, _, name, _, forwards in heard if forwards}
    adapters: dict[str, str] = {}
    links: set[tuple[End, End]] = set()
    ports: dict[tuple[str, str], int] = {}

    def end(system: str, interface: str) -> End:
        if system in switches:
            return system, ports.setdefault((system, interface), len(ports) + 1)
        adapters[f"{system}/{interface}"] = f"{system} {interface}"
        return f"{system}/{interface}", 1

    for system, interface, name, port, forwards in heard:
        if system in switches or forwards:
            pair = (end(system, interface), end(name, port))
            links.add((min(pair), max(pair)))
    return SwitchFabric(switches=switches, adapters=adapters, links=frozenset(links))


def switch_ports(texts: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return by system and interface the switch and its port, such as ``tor1 port Ethernet1``. Raises DataError."""
    found: dict[str, dict[str, str]] = {}
    for system, text in texts.items():
        for interface, name, port, forwards in _neighbours(system, text):
            if forwards:
                found.setdefault(system, {})[interface] = f"{name} port {port}"
    return found


def _neighbours(system: str, text: str) -> Iterator[tuple[str, str, str, bool]]:
    """Yield for each neighbour: own interface, the neighbour's name, the neighbour's port, and whether the neighbour is a
    switch."""
    try:
        data = msgspec.json.decode(text.encode())
    except NOT_JSON as e:
        raise DataError(f"{system}: not JSON, or cut off: {e}", hint=_HINT) from None
    lldp = _one(data.get("lldp")) if isinstance(data, dict) else None
    if not isinstance(lldp, dict):
        raise DataError(f"{system}: not an output of lldpctl (no lldp in it)", hint=_HINT)
    for name, interface in _named(lldp.get("interface")):
        for chassis_name, chassis in _named(interface.get("chassis")):
            port = _one(interface.get("port"))
            port_id = _one(port.get("id")) if isinstance(port, dict) else None
            where = str(port_id.get("value", "")) if isinstance(port_id, dict) else ""
            identity = _one(chassis.get("id"))
            neighbour = chassis_name or (str(identity.get("value", "")) if isinstance(identity, dict) else "")
            if neighbour:
                yield name, neighbour, where or "?", _forwards(chassis)


def _forwards(chassis: Mapping[str, Any]) -> bool:
    said = chassis.get("capability")
    capabilities = [c for c in (said if isinstance(said, list) else [said]) if isinstance(c, dict)]
    if not capabilities:
        return True
    return any(c.get("enabled") is True and str(c.get("type", "")).lower() in _FORWARDS for c in capabilities)


def _named(value: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield named objects: ``{name: {...}}``, a list of such objects, or json0's ``[{"name": ..., ...}]``. A chassis without a
    name is ``{"id": ...}``."""
    for item in value if isinstance(value, list) else [value]:
        if not isinstance(item, dict):
            continue
        if "name" in item or "id" in item:
            name = _one(item.get("name"))
            yield str(name.get("value", "")) if isinstance(name, dict) else str(name or ""), item
        else:
            yield from ((name, inner) for name, inner in item.items() if isinstance(inner, dict))


def _one(value: Any) -> Any:
    return value[0] if isinstance(value, list) and value else value
