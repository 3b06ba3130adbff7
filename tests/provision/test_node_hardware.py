"""What `fairlead init` reads of a node's hardware: from machine trees by the command that nodes run, and from hostile answers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.model.cpulist import parse_cpu_set
from fairlead.provision import node_hardware
from fairlead.provision.node_hardware import COMMAND, NodeHardware, SeenPort, parse_hardware
from tests.provision.hardware_ssh import program

END = b"==> /dev/null <==\n"


def read(tmp_path: Path, tree: str) -> NodeHardware:
    ssh = program(tmp_path, {"n1": tree})
    return parse_hardware(subprocess.run([ssh, "n1", COMMAND], capture_output=True, check=False).stdout)


@pytest.mark.parametrize(
    ("tree", "wanted"),
    [
        ("hgx-h100", ("DGXH100", {"10de:2330": 8}, 4, 8, 2)),
        ("hgx-a100", ("DGXA100 920-23687-2530-000", {"10de:20b2": 8}, 0, 8, 1)),
        ("l40s-pcie", ("SYS-421GE-TNRT", {"10de:26b9": 8}, 0, 0, 2)),
    ],
)
def test_the_hardware_of_each_tree(tmp_path: Path, tree: str, wanted: tuple[str, dict[str, int], int, int, int]) -> None:
    """wanted: product, GPUs, NVSwitches, active ports of InfiniBand and of Ethernet."""
    found = read(tmp_path, tree)
    ports = [sum(port.gbps > 0 for port in found.ports_of(layer)) for layer in ("InfiniBand", "Ethernet")]
    assert (found.product, found.gpus, found.nvswitches, *ports) == wanted
    assert found.memory_bytes > 900 << 30 and found.cpus > 0


def test_a_port_that_is_down_is_a_port_without_a_rate() -> None:
    folder = "/sys/class/infiniband/mlx5_0/ports/1"
    files = {"link_layer": "InfiniBand", "rate": "400 Gb/sec (4X NDR)", "state": "1: DOWN"}
    said = "".join(f"==> {folder}/{name} <==\n{text}\n\n" for name, text in files.items())
    assert parse_hardware(said.encode() + END).ports == (SeenPort("mlx5_0", "InfiniBand", 0.0),)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"==> /sys/bus/pci/devices/x/class <==\n0x030200\n\n",
        b"==> /sys/bus/pci/devices/x/class <==\n0x030200\n\n==> /sys/bus/pci/devices/x/vendor <==\n-0x10de\n\n",
        b"==> /sys/class/infiniband/../../x/ports/1/link_layer <==\nInfiniBand\n\n",
        b"==> /proc/meminfo <==\nMemTotal: 99999999999999999999 kB\n\n",
        b"==> /sys/devices/system/cpu/online <==\n0-99999999999\n\n",
    ],
)
def test_a_malformed_value_counts_as_not_there(said: bytes) -> None:
    assert parse_hardware(said + END) == NodeHardware()


def test_no_text_of_a_node_controls_the_terminal_or_fills_the_file() -> None:
    said = b"==> /sys/class/dmi/id/product_name <==\n\x1b[2J" + b"A" * 100_000 + b"\n[ansible]\n\n"
    product = parse_hardware(said + END).product
    assert product.isprintable() and len(product) <= 64


def test_of_the_longest_list_of_cpus_only_the_begin_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole list would cost this host many seconds."""
    lengths: list[int] = []
    monkeypatch.setattr(node_hardware, "parse_cpu_set", lambda text: lengths.append(len(text)) or parse_cpu_set(text))
    parse_hardware(b"==> /sys/devices/system/cpu/online <==\n" + b"0-65535," * 500_000 + b"1\n\n" + END)
    assert len(lengths) == 1 and 0 < lengths[0] <= 4096


@given(st.binary(max_size=400))
def test_any_answer_can_be_read(said: bytes) -> None:
    assert isinstance(parse_hardware(said + b"\n" + END), NodeHardware)
