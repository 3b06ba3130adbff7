"""Equal failures of many nodes are told once, in `plan` and in `provision`, and no report gets wider than a screen."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

pytest.importorskip("ClusterShell")

from hypothesis import given
from hypothesis import strategies as st

from fairlead.provision import planned_changes, provision_report
from fairlead.provision.inventory import expand
from fairlead.provision.planned_changes import of_one
from fairlead.provision.provision_report import NodeResult, ProvisionReport, data, node_result, text
from fairlead.provision.report_width import WIDTH, counted, names, within
from fairlead.provision.same_failures import of_any_node

SSH = (
    "Failed to connect to the host via ssh: ssh: connect to host {} port 22: Connection refused",
    "Failed to connect to the host via ssh: ssh: Could not resolve hostname {}: Name or service not known",
    "Failed to connect to the host via ssh: root@{}: Permission denied (publickey).",
    "Failed to connect to the host via ssh: Connection closed by {} port 22",
    'Data could not be sent to remote host "{}". Make sure this host can be reached over ssh',
)
REFUSED = "the limit is out of reach: systemd has no CAP_SYS_RESOURCE"


def away(node: str, words: str) -> NodeResult:
    return node_result(node, "runner_on_unreachable", "reach the node", {"msg": words})


def refused(node: str, *changed: str) -> NodeResult:
    """A node on which one setting cannot be made so, and others would change."""
    items: list[dict[str, Any]] = [
        {"setting": "memlock", "state": "refused", "message": REFUSED, "hint": "raise the limit of the container", "steps": []}
    ]
    steps = [{"target": name, "why": f"{name} is 1, wanted 0", "disruption": "none", "diff": ""} for name in changed]
    items += (
        [{"setting": "sysctl", "state": "would_change", "message": " ".join(changed), "hint": "", "steps": steps}]
        if steps
        else []
    )
    return node_result(node, "runner_on_ok", "apply", {"changes": [], "apply": {"items": items}})


def report(results: Sequence[NodeResult]) -> ProvisionReport:
    return ProvisionReport(site="site.toml", generation=1, check=True, seconds=1.0, nodes=tuple(results))


def both(results: Sequence[NodeResult]) -> tuple[str, str]:
    return planned_changes.text([of_one(r) for r in results]), text(report(results))


@pytest.mark.parametrize("words", SSH)
@pytest.mark.parametrize("address", ["10.1.0.{}", "gpu{}", "gpu{}.mgmt.example", "fd00::{}"])
def test_nodes_that_are_not_reached_for_one_reason_are_one_paragraph(words: str, address: str) -> None:
    results = [away(f"gpu{n}", words.format(address.format(n))) for n in range(1, 65)]
    for told in both(results):
        assert told.startswith("gpu[1-64] (64 nodes): unreachable\n")
        assert len([line for line in told.splitlines() if "ssh" in line and "next" not in line]) == 1, told
        assert "gpu1." not in told and "10.1.0." not in told and "fd00" not in told
    assert len({n["message"] for n in data(report(results), report(results).exit_code)["nodes"]}) == 64, "JSON has each whole"


def test_one_node_keeps_its_own_words_and_so_do_nodes_that_say_the_same() -> None:
    for told in both([away("gpu1", SSH[0].format("10.1.0.1"))]):
        assert "connect to host 10.1.0.1 port 22" in told
    for told in both([away(f"gpu{n}", SSH[0].format("10.1.0.1")) for n in (1, 2)]):
        assert "connect to host 10.1.0.1 port 22" in told and "gpu[1-2]" in told


def test_other_reasons_stay_apart() -> None:
    for told in both([away("gpu1", SSH[0].format("10.1.0.1")), away("gpu2", SSH[1].format("gpu2"))]):
        assert "gpu1 (1 node)" in told and "gpu2 (1 node)" in told


def test_nodes_that_differ_otherwise_and_fail_alike_are_told_once() -> None:
    results = [refused("gpu1", "a"), refused("gpu2", "a"), refused("gpu3", "b"), refused("gpu4")]
    for told in both(results):
        assert told.count(REFUSED) == 1 and told.count("raise the limit of the container") == 1
        (line,) = [line for line in told.splitlines() if line.endswith(" alike")]
        assert line.startswith("gpu[1-4] (4 nodes): all of them ")
        assert told.index("gpu3 (1 node)") < told.index(line), "what each group would change comes first"
        assert told.count("shown below") == 3
    assert {n.failures for n in results} == {(f"memlock: {REFUSED}",)}


def test_a_node_s_own_name_is_a_whole_word() -> None:
    assert of_any_node("gpu1: gpu1.example and gpu11 and xgpu1", "gpu1") == "NODE: NODE and gpu11 and xgpu1"
    assert of_any_node("driver 570.172.08 on 10.0.0.1", "gpu1") == "driver 570.172.08 on 10.0.0.1"


@given(st.lists(st.integers(0, 3000), min_size=1, max_size=300, unique=True))
def test_a_nodelist_is_cut_between_names(numbers: list[int]) -> None:
    nodes = [f"gpu{n:04}" for n in numbers]
    shown = names(nodes)
    assert len(shown) <= 80
    whole = shown.replace(",...", "")
    assert set(expand(whole)) <= set(nodes)
    assert ("--json names all" in counted(nodes)) is (len(expand(whole)) < len(nodes))


@given(st.text(max_size=600), st.integers(0, 4))
def test_no_line_is_wider_and_none_looks_like_one_of_ours(words: str, indent: int) -> None:
    line = " " * indent + "x" + re.sub(r"\s", " ", words)
    found = within([line])
    assert all(len(each) <= WIDTH for each in found)
    assert all(each.startswith("      | ") for each in found[1:])
    assert "".join("".join(each.removeprefix("      | ") for each in found).split()) == "".join(line.split())


def test_the_reports_are_no_wider() -> None:
    results = [away(f"node{n}", "x" * 1900) for n in range(0, 4000, 2)] + [refused(f"gpu{n}", f"key{n}") for n in range(1, 60, 2)]
    for told in both(results):
        assert max(map(len, told.splitlines())) <= WIDTH + 20


def test_hundreds_of_equal_nodes_take_no_time_to_group() -> None:
    plans = [of_one(away(f"gpu{n}", SSH[0].format(f"10.1.{n // 256}.{n % 256}"))) for n in range(2000)]
    assert len(planned_changes.groups(plans)) == 1
    assert msgspec.json.encode(planned_changes.data(plans)).count(b"10.1.") == 2000
    assert len(provision_report.groups([away(f"gpu{n}", "x") for n in range(2000)])) == 1
