"""What one guest said, stage by stage: apply's items by setting, what programs of others print, and what the agent finds."""

from __future__ import annotations

import json
import re
from typing import Any

from msgspec import Struct

from tests.vm.cases import CASES
from tests.vm.guest_node import FAIRLEAD, Node, wait


class Stages(Struct, frozen=True):
    """``first`` and ``second`` are the results of two runs of `fairlead provision`. After them the settings were ``tampered``
    with by hand and ``repaired`` by `fairlead apply` on the node. ``shown`` and ``found`` have what was seen after each."""

    first: dict[str, Any]
    second: dict[str, Any]
    shown: dict[str, str]
    found_clean: set[str]
    found_tampered: set[str]
    shown_tampered: dict[str, str]
    repaired: dict[str, Any]
    shown_repaired: dict[str, str]


def items(result: dict[str, Any]) -> dict[str, Any]:
    """Return the items of a node's result by setting."""
    assert result.get("apply"), result
    return {item["setting"]: item for item in result["apply"]["items"]}


def applied(node: Node, *words: str) -> dict[str, Any]:
    """Return the items of an apply on the node itself."""
    said = node.guest.run(f"{FAIRLEAD} apply --json {' '.join(words)}", check=False, timeout=300).stdout
    return {item["setting"]: item for item in json.loads(said)["items"]}


def shows(node: Node) -> dict[str, str]:
    """Return what each case's program prints. One shell runs them all, each in a subshell, after a line with its number."""
    script = "".join(
        f"echo '@@@ {number}'\n({case.shows}\n) 2>/dev/null </dev/null\n" for number, case in enumerate(CASES.values())
    )
    said = node.guest.run("sh -s", check=False, stdin=script, timeout=300).stdout
    printed = re.split(r"^@@@ \d+\n", said, flags=re.MULTILINE)[1:]
    return dict(zip(CASES, printed, strict=True))


def drift(node: Node, awaited: frozenset[str] = frozenset()) -> set[str]:
    """Return the settings that the running agent has a finding of. Waits up to a minute until it names the ``awaited`` ones."""
    found: set[str] = set()

    def named() -> bool:
        nonlocal found
        found = {name.removeprefix("setting.") for name in node.findings() if name.startswith("setting.")}
        return found >= awaited

    node.after_sweeps(1)
    try:
        wait(named, 60)
    except AssertionError:
        pass  # the tests say by name what is missing
    return found


def run_stages(node: Node) -> Stages:
    """Provision the fresh guest twice, tamper with every setting, and repair it."""
    node.guest.ssh("mkdir -m 1777 /local; systemctl start tuned irqbalance", timeout=300)  # under load a start may take too long
    node.write_site()
    first = node.provision()
    node.use_hooks()
    second = node.provision()
    shown, found_clean = shows(node), drift(node)
    node.guest.ssh(f"{FAIRLEAD} hold --reason 'a person tries something'")  # else the agent would take back some of it
    script = "".join(f"(\n{case.tamper}\n) </dev/null\n" for name, case in CASES.items() if name != "pcie_acs")
    node.guest.ssh("sh -es", stdin=script, timeout=300)  # ACS comes after the reboot
    shown_tampered = shows(node)
    found_tampered = drift(node, frozenset(CASES) - {"pcie_acs"})
    repaired = applied(node)
    shown_repaired = shows(node)
    node.guest.ssh(f"{FAIRLEAD} hold --release")
    return Stages(
        first=first, second=second, shown=shown, found_clean=found_clean, found_tampered=found_tampered,
        shown_tampered=shown_tampered, repaired=repaired, shown_repaired=shown_repaired,
    )  # fmt: skip
