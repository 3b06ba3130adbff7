"""What one node said ends no run: whatever reading it raises is that node's failure, and the others have their results."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.config.site import AnsibleOptions, NodeClass, Site
from fairlead.errors import DataError, FairleadError
from fairlead.model.isolated import isolated
from fairlead.provision import networks, planned_changes
from fairlead.provision.agent_accounts import AgentAccount, SshAccounts
from fairlead.provision.provision_progress import SilentProgress
from fairlead.provision.provision_report import NodeResult
from fairlead.provision.provision_run import _add_result
from fairlead.provision.ssh_fetch import NodeAnswer

SITE = Site(
    file="site.toml",
    generation=1,
    layer={},
    classes=(NodeClass(name="a", nodes="gpu[1-3]", profile="hgx-h100", layer={}),),
    nodes={},
    ansible=AnsibleOptions(),
)


def every(kind: type[Exception]) -> Iterator[type[Exception]]:
    """Exceptions of Python itself: whatever a decoder can raise."""
    if kind.__module__ == "builtins" and not issubclass(kind, Warning):
        yield kind
    for below in kind.__subclasses__():
        yield from every(below)


ODD = {UnicodeDecodeError: ("utf-8", b"x", 0, 1, "y"), UnicodeEncodeError: ("utf-8", "x", 0, 1, "y")}
ODD |= {UnicodeTranslateError: ("x", 0, 1, "y"), ExceptionGroup: ("x", [ValueError()])}
KINDS = sorted(set(every(Exception)), key=lambda kind: kind.__name__)


class Trap(dict[str, Any]):
    """What a node said, as something that cannot be looked at."""

    def __init__(self, error: Exception) -> None:
        super().__init__(trap=1)
        self.error = error

    def _spring(self, *_: object) -> Any:
        raise self.error

    get = __getitem__ = __contains__ = __iter__ = keys = items = _spring


@pytest.mark.parametrize("kind", [*KINDS, DataError], ids=lambda kind: kind.__name__)
def test_any_error_in_one_nodes_result_is_its_failure_alone(kind: type[Exception]) -> None:
    error = kind(*ODD.get(kind, ("x\x1b[2J",)))
    results = {f"gpu{n}": NodeResult(node=f"gpu{n}", state="unfinished") for n in (1, 2, 3)}
    for node, res in (("gpu1", {"changes": []}), ("gpu2", Trap(error)), ("gpu3", {"changes": []})):
        event = {"event": "runner_on_ok", "event_data": {"host": node, "task": "t", "res": res}}
        _add_result(event, results, SilentProgress(), {node: {} for node in results})
    assert {n: r.state for n, r in results.items()} == {"gpu1": "same", "gpu2": "failed", "gpu3": "same"}
    assert "\n" not in results["gpu2"].message and results["gpu2"].message


@pytest.mark.parametrize("kind", [RecursionError, MemoryError, UnicodeError, OverflowError])
def test_readers_of_a_report_go_on_without_a_node_that_none_of_them_can_read(kind: type[Exception]) -> None:
    bad = NodeResult(node="gpu2", state="changed", apply=Trap(kind()))
    good = [NodeResult(node=n, state="same", apply={"items": ()}) for n in ("gpu1", "gpu3")]
    assert [planned_changes.of_one(r).state for r in (good[0], bad, good[1])] == ["same", "failed", "same"]
    assert networks.differences(SITE, (*good, bad)) == ()


class Falls(SshAccounts):
    """A reader with a fault that only one node's answer meets."""

    def _account(self, node: str, address: str, answer: NodeAnswer) -> AgentAccount:
        if node == "gpu2":
            raise KeyError("boot_seconds")
        return super()._account(node, address, answer)


def test_a_fault_of_a_reader_costs_one_account(tmp_path: Any) -> None:
    program = tmp_path / "ssh"
    program.write_text("#!/bin/sh\nexit 3\n")
    program.chmod(0o755)
    found = Falls(program=str(program), seconds=60).fetch({f"gpu{n}": f"gpu{n}" for n in (1, 2, 3)})
    assert [found[f"gpu{n}"].trouble for n in (1, 3)] == ["ssh ended with 3"] * 2
    assert "KeyError" in found["gpu2"].trouble and not found["gpu2"].reached


def test_what_ends_the_program_itself_is_not_kept_from_it() -> None:
    for kind in (KeyboardInterrupt, SystemExit, GeneratorExit):
        with pytest.raises(kind):
            isolated(lambda k=kind: (_ for _ in ()).throw(k()), str)
    assert isolated(lambda: (_ for _ in ()).throw(FairleadError("ours")), str) == "ours"


#: Who collects from many nodes, and what of it reads one of them.
COLLECT = {
    "fairlead.provision.provision_run": ("node_result",),
    "fairlead.provision.agent_accounts": ("self._account",),
    "fairlead.cli.init": ("parse_hardware",),
    "fairlead.provision.maintain.node_access": ("parse_reading", "apply_outcome"),
    "fairlead.provision.planned_changes": ("of_result",),
    "fairlead.provision.networks": ("_ports",),
    "fairlead.measure.job_output": ("_said",),
}


@pytest.mark.parametrize("name", COLLECT)
def test_every_collector_reads_each_node_apart(name: str) -> None:
    """A reader that is called beside ``isolated`` would take all nodes with it."""
    module = importlib.import_module(name)
    tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
    guarded: set[int] = set()
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "isolated":
            guarded |= {id(inner) for inner in ast.walk(call)}
    local = {f.name: f for f in ast.walk(tree) if isinstance(f, ast.FunctionDef)}
    for call in list(ast.walk(tree)):  # a function that is handed to it
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "isolated" and isinstance(call.args[0], ast.Name):
            guarded |= {id(inner) for inner in ast.walk(local[call.args[0].id])}
    for reader in COLLECT[name]:
        calls = [
            c
            for c in ast.walk(tree)
            if isinstance(c, ast.Call) and (ast.unparse(c.func) == reader or ast.unparse(c).startswith(f"partial({reader},"))
        ]
        assert calls and all(id(c) in guarded for c in calls), reader
