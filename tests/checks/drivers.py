"""A node's driver and the software beside it, with one thing changed."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from fairlead.model.check_definition import Past
from fairlead.model.facts import Node
from fairlead.model.finding import Finding
from tests.checks.nodes import node


def of_driver(**changes: Any) -> Node:
    return node(driver=replace(node().driver, **changes))


def with_software(**changes: Any) -> Node:
    return of_driver(software=replace(node().driver.software, **changes))


def judged(module: Any, facts: Node, **params: Any) -> list[Finding]:
    return list(module.check.findings(facts, Past(available=True), module.Params(**params)))
