"""Which classes, profiles and fabrics are proposed for which hardware, and what is left to a person."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fairlead import config
from fairlead.provision.node_hardware import NodeHardware, SeenPort
from fairlead.provision.site_proposal import Proposal, propose
from fairlead.provision.site_text import site_text

PROFILES = [config.load_profile(name) for name in config.profile_names()]
IB = tuple(SeenPort(f"mlx5_{n}", "InfiniBand", 400.0) for n in range(8))
H100 = NodeHardware(
    vendor="NVIDIA", product="DGXH100", gpus={"10de:2330": 8}, nvswitches=4, ports=IB, cpus=224, memory_bytes=2 << 40
)
L40S = NodeHardware(vendor="Dell", product="R760xa", gpus={"10de:26b9": 4}, cpus=128, memory_bytes=1 << 40)


def shape(proposal: Proposal) -> dict[str, tuple[Any, ...]]:
    return {c.name: (c.nodes, c.profile.name if c.profile else None, c.fabric) for c in proposal.classes}


def text(proposal: Proposal, **more: Any) -> str:
    return site_text(proposal, file="site.toml", day="2026-11-23", ansible=more, unreached={})


def test_equal_nodes_get_one_class_and_others_their_own() -> None:
    proposal = propose({"n1": H100, "n2": H100, "l1": L40S, "login": NodeHardware(cpus=64)}, PROFILES)
    assert shape(proposal) == {
        "l40s-pcie": (("l1",), "l40s-pcie", "tcp"),
        "hgx-h100": (("n1", "n2"), "hgx-h100", "infiniband"),
    }
    assert proposal.without == {"it has no NVIDIA GPU that the kernel sees": ("login",)}


def test_a_broken_board_does_not_become_the_expectation() -> None:
    """Node n3 has lost a GPU, an NVSwitch and an adapter. It stays in the class of its board, and its class names it."""
    broken = replace(H100, gpus={"10de:2330": 7}, nvswitches=3, ports=(*IB[:7], SeenPort("mlx5_7", "InfiniBand", 0.0)))
    proposal = propose({"n1": H100, "n2": H100, "n3": broken}, PROFILES)
    assert shape(proposal) == {"hgx-h100": (("n1", "n2", "n3"), "hgx-h100", "infiniband")}
    differs = proposal.classes[0].unlike
    assert differs == ("n3: 7 GPUs, most nodes have 8", "n3: 3 NVSwitches, most nodes have 4",
                       "n3: 7 active InfiniBand ports, most nodes have 8")  # fmt: skip
    assert "expected" not in tomllib.loads(text(proposal))["classes"]["hgx-h100"].get("checks", {}).get("gpu_count", {})


def test_a_single_broken_board_does_not_become_the_expectation_either() -> None:
    proposal = propose({"n1": replace(H100, gpus={"10de:2330": 7})}, PROFILES)
    assert "gpu_count" not in text(proposal)


def test_a_server_with_fewer_cards_than_its_like_is_left_to_a_person() -> None:
    proposal = propose({"l1": L40S, "l2": L40S, "l3": replace(L40S, gpus={"10de:26b9": 3})}, PROFILES)
    assert shape(proposal) == {"l40s-pcie": (("l1", "l2"), "l40s-pcie", "tcp")}
    ((why, nodes),) = proposal.without.items()
    assert nodes == ("l3",) and "3 GPUs and most nodes of its kind have 4" in why


def test_servers_with_another_number_of_cards_declare_it() -> None:
    found = tomllib.loads(text(propose({"l1": L40S}, PROFILES)))
    assert found["classes"]["l40s-pcie"]["checks"] == {"gpu_count": {"expected": 4}}


def test_nothing_drains_and_nothing_is_learned() -> None:
    """What was found and no profile declares is a comment."""
    said = text(propose({"n1": H100}, PROFILES))
    found = tomllib.loads(said)
    assert found["policy"] == {"mode": "observe"} and "checks" not in found["classes"]["hgx-h100"]
    assert "# ? cpus_expected = 224\n" in said
    confirmed = tomllib.loads(said.replace("# ? ", ""))["classes"]["hgx-h100"]["checks"]["cpu_memory"]
    assert confirmed["cpus_expected"] == 224 and 0.97 * (2 << 40) < confirmed["memory_bytes_min"] < 0.99 * (2 << 40)


def test_gpus_without_a_profile_get_a_class_to_complete() -> None:
    proposal = propose({"x1": replace(L40S, gpus={"10de:ffff": 4})}, PROFILES)
    assert shape(proposal) == {"gpu-ffff": (("x1",), None, "pcie")}
    assert "fairlead profile draft" in text(proposal)


@pytest.mark.parametrize(
    ("vendor", "asset_tag", "layer", "gbps", "fabric"),
    [
        ("Supermicro", "", "InfiniBand", 400.0, "infiniband"),
        ("Supermicro", "", "InfiniBand", 0.0, "infiniband"),
        ("Supermicro", "", "Ethernet", 400.0, "roce"),
        ("Supermicro", "", "Ethernet", 25.0, "tcp"),
        ("Amazon EC2", "", "Unspecified", 0.0, "aws-efa"),
        ("Microsoft Corporation", "7783-7084-3265-9085-8269-3286-77", "InfiniBand", 400.0, "azure-nd-h100"),
        ("Google", "", "Ethernet", 200.0, "gcp"),
        ("Oracle", "OracleCloud.com", "Ethernet", 200.0, "oci-bm-h100"),
    ],
)
def test_the_fabric(vendor: str, asset_tag: str, layer: str, gbps: float, fabric: str) -> None:
    node = replace(H100, vendor=vendor, asset_tag=asset_tag, ports=(SeenPort("x0", layer, gbps),))
    assert {c.fabric for c in propose({"n1": node, "n2": node}, PROFILES).classes} == {fabric}
    assert fabric in config.fabric_names()


@pytest.mark.parametrize(("gpu", "count"), [("10de:31c2", 4), ("10de:2941", 4), ("10de:3182", 8)])
def test_oracles_fabrics_of_hgx_h100_to_b200_are_for_no_other_board(gpu: str, count: int) -> None:
    """The name of the profile gb200-nvl72 has the name b200 in it, and no fabric profile is for its shape."""
    ports = (SeenPort("x0", "Ethernet", 400.0),)
    node = NodeHardware(vendor="Oracle", asset_tag="OracleCloud.com", gpus={gpu: count}, ports=ports)
    assert {c.fabric for c in propose({"n1": node, "n2": node}, PROFILES).classes} == {"roce"}


MACHINES = st.builds(
    NodeHardware,
    vendor=st.text(max_size=8).map(lambda t: "".join(c for c in t if c.isprintable())),
    product=st.text(max_size=8).map(lambda t: "".join(c for c in t if c.isprintable())),
    gpus=st.dictionaries(st.sampled_from(["10de:2330", "10de:26b9", "10de:20b2", "10de:1234"]), st.integers(1, 16), max_size=2),
    nvswitches=st.integers(0, 6),
    ports=st.lists(st.builds(SeenPort, st.just("x"), st.sampled_from(["InfiniBand", "Ethernet", "?"]), st.just(100.0))).map(
        tuple
    ),
    cpus=st.integers(0, 8192),
    memory_bytes=st.integers(0, 1 << 43),
)


@given(st.dictionaries(st.integers(1, 12).map(lambda n: f"n{n}"), MACHINES, max_size=8))
def test_every_node_has_one_place_and_the_text_is_toml(machines: dict[str, NodeHardware]) -> None:
    proposal = propose(machines, PROFILES)
    placed = [n for c in proposal.classes for n in c.nodes] + [n for nodes in proposal.without.values() for n in nodes]
    assert sorted(placed) == sorted(machines)
    said = text(proposal, user="admin", hosts={"n1.x": "10.0.0.1"})
    assert set(tomllib.loads(said).get("classes", {})) == {c.name for c in proposal.classes}
    tomllib.loads(said.replace("# ? ", ""))
