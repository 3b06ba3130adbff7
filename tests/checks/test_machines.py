"""All checks over every machine tree: the healthy are silent, the broken are named, and nothing raises."""

from __future__ import annotations

import ast
import json
from functools import cache
from pathlib import Path

import pytest

from fairlead import checks, config
from fairlead.config import schema_keys
from fairlead.config.document import node_schema
from fairlead.host.gather import gather
from fairlead.host.root import Root
from fairlead.judge import reads, wanted
from fairlead.model.check_definition import Past
from fairlead.model.facts import Missing, Why
from fairlead.model.finding import Finding, Level
from tests.lab.described import document_of
from tests.lab.trees import MACHINES

TREES = MACHINES
BROKEN = {
    "hgx-h100.ecc-unreadable": ("ecc", Level.UNKNOWN),
    "hgx-h100.row-remap-failed": ("row_remap", Level.DRAIN),
    "hgx-h100.width-x8": ("pcie_link", Level.DRAIN),
    "hgx-h100.xid79": ("gpu_count", Level.DRAIN),
}

#: For a person whose new check has findings of healthy machines.
UNKNOWN_FILE = (
    "The machine trees have the files that checks and settings read so far. If a check reads another one, either it says nothing"
    " where node.text() returns None, or tests/lab/kernelfacts.py writes the file: then run `python -m tests.lab.machines`"
)
#: Checks that go over the GPUs and still judge something where NVML lists none: the kernel log, a file of the driver, MemTotal.
JUDGE_WITHOUT_NVML = {"xid", "driver_library", "cpu_memory"}


@cache
def names_in(check: str) -> frozenset[str]:
    """Every name and attribute that the check's file uses: what facts it reads."""
    nodes = list(ast.walk(ast.parse(Path(checks.__file__).with_name(f"{check}.py").read_text())))
    return frozenset([n.attr for n in nodes if isinstance(n, ast.Attribute)] + [n.id for n in nodes if isinstance(n, ast.Name)])


def goes_over_gpus(check: str) -> bool:
    return bool(names_in(check) & {"gpus", "listed_gpus", "readable_gpus"})


def reads_the_host(check: str) -> bool:
    return bool(names_in(check) & {"host", "host_of"})


def judged(tree: Path, raw: object = None, *only: str) -> list[Finding]:
    cards = len(json.loads((tree / "nvml.json").read_text())["gpus"])
    document = document_of(tree.name.partition(".")[0], cards)
    answer = json.loads((tree / "nvml.json").read_text()) if raw is None else raw
    node = gather(Root(str(tree)), answer, reads=reads(document), unsupported=document.unsupported, wanted=wanted(document))
    known = {name: check for name, check in checks.load().items() if not only or name in only}
    return [f for name, check in known.items() for f in check.findings(node, Past(available=True), document.checks[name])]


@pytest.mark.parametrize("tree", sorted(p for p in TREES.iterdir() if p.is_dir()), ids=lambda p: p.name)
def test_every_tree_says_what_is_wrong_with_it(tree: Path) -> None:
    found = judged(tree)
    assert found == judged(tree)
    check, level = BROKEN.get(tree.name, ("", Level.OK))
    if check:
        assert any(f.check == check and f.level is level for f in found)
    assert not [str(f) for f in found if f.check != check], UNKNOWN_FILE


@pytest.mark.parametrize("name", checks.load())
def test_no_answer_from_the_driver_is_never_ok(name: str) -> None:
    missing = Missing(Why.UNREADABLE, "no answer within 5 s")
    levels = {f.level for f in judged(TREES / "hgx-h100", missing, name)}
    if goes_over_gpus(name) and name not in JUDGE_WITHOUT_NVML:
        assert levels, f"checks/{name}.py is silent where NVML lists no GPUs: begin with `yield from unlisted(node)`"
        assert levels <= {Level.UNKNOWN, Level.DRAIN}, f"{name} says {levels} of GPUs that it cannot see"
    else:
        assert not levels, f"{name} says {levels} where only NVML does not answer. {UNKNOWN_FILE}"
    assert name != "nvml_responsive" or Level.DRAIN in levels


#: The usual keys of a profile. Each profile declares them, or lists them as undeclared with the reason.
USUAL_KEYS = {
    "checks.gpu_count.expected", "checks.pcie_link.gpu_width", "checks.pcie_link.gpu_gen", "checks.nvlink.links",
    "checks.ecc.required", "checks.fabric_manager.required", "checks.gpu_fabric.required", "checks.gpu_direct_rdma.required",
    "checks.rdma_ports.infiniband_ports", "checks.rdma_ports.ethernet_ports", "checks.cpu_memory.memory_bytes_min",
    "checks.cpu_memory.cpus_expected", "checks.memory_errors.controllers_expected", "settings.power_limit.watts",
    "settings.pcie_acs.switch_downstream", "settings.pcie_acs.switch_upstream", "settings.pcie_acs.root_port",
}  # fmt: skip


@pytest.mark.parametrize("name", config.profile_names())
def test_every_profile_value_says_why_and_who(name: str) -> None:
    profile = config.load_profile(name)
    assert profile.name == name and profile.summary and profile.match is not None
    assert not profile.unsupported or profile.unsupported_why
    for value in profile.values:
        assert len(value.why) > 20 and len(value.source) > 10
    document = config.profile_document("n1", name)
    assert document.checks["gpu_count"].expected in (profile.match.gpu_count, 8)  # type: ignore[attr-defined]
    every = {"persistence", "numa_balancing", "pcie_acs", "nccl", "cpu_governor", "memlock", "sysctl", "kernel_modules"}
    left = {u.key.split(".")[1] for u in profile.undeclared}
    assert every - left <= set(document.settings) <= every  # of a GPU's state persistence alone: docs/decisions/0027
    assert document.checks["ecc"].required and document.checks["ecc"].judge_mode  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", config.profile_names())
def test_every_profile_lists_what_it_does_not_declare(name: str) -> None:
    profile = config.load_profile(name)
    declared, left = {v.key for v in profile.values}, {u.key for u in profile.undeclared}
    assert declared | left >= USUAL_KEYS and not declared & left
    assert all(len(u.why) > 20 for u in profile.undeclared)
    for key in left:
        table = node_schema()
        for word in key.split("."):
            assert word in schema_keys.fields(table), f"{key}: the document has no such key"
            table = schema_keys.at(table, word)
