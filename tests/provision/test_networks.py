"""The pass over a class's nodes in a run's report."""

from __future__ import annotations

from pathlib import Path

import msgspec

from fairlead import config
from fairlead.nccl.compute_ports import Port
from fairlead.provision.networks import differences
from fairlead.provision.provision_report import NodeResult, ProvisionReport, text

PORTS = tuple(Port(name=f"mlx5_{i}", up=True, link_layer="InfiniBand", rate_gbps=400, mtu_bytes=4092) for i in range(2))


def result(node: str, ports: object) -> NodeResult:
    return NodeResult(node=node, state="same", apply={"ports": msgspec.to_builtins(ports)} if ports is not None else {})


def test_classes_are_compared_apart_and_silent_nodes_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_text('schema = 1\n[classes.a]\nnodes = "a[1-3]"\n[classes.b]\nnodes = "b[1-2]"\n')
    site = config.load_site(str(path))
    nodes = (
        result("a1", PORTS),
        result("a2", PORTS),
        result("a3", PORTS[:1]),
        result("b1", PORTS[1:]),
        result("b2", None),
        result("x", [{"odd": 1}]),
    )
    found = differences(site, nodes)
    assert [(d.name, d.difference.nodes) for d in found] == [("a", ("a3",))]
    report = ProvisionReport(site=str(path), generation=1, check=True, seconds=1, nodes=nodes, networks=found)
    assert "class a: a3: ports: 1 InfiniBand up; the other 2 have 2 InfiniBand up\n" in text(report)
    assert report.exit_code == 0
    assert msgspec.json.decode(msgspec.json.encode(report))["networks"][0]["difference"]["nodes"] == ["a3"]
