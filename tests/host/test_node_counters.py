"""Counters of a node: of good files, of files that are not there, and of files that make no sense."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.host import queue_drops
from fairlead.host.node_counters import INTERFACES_MAX, NodeCounters, read
from fairlead.host.root import Root
from fairlead.model.facts import unreadable
from fairlead.model.host_facts import RdmaPort

PRESSURE = "some avg10=0.00 avg60=0.00 avg300=0.00 total={}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n"
DEV = "Inter-|   Receive  |  Transmit\n face |bytes packets errs drop\n"
SNMP = "Tcp: RtoAlgorithm RetransSegs OutRsts\nTcp: 1 42 3\n"
PORT = RdmaPort(name="mlx5_0", port=1, pci="", width_lanes=4, counters={"symbol_error": 3, "link_downed": unreadable("EIO")})


def tree(folder: Path, files: dict[str, str]) -> Root:
    for name, text in files.items():
        path = folder / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Root(str(folder))


def test_what_a_node_has(tmp_path: Path) -> None:
    ports = "/sys/class/infiniband/mlx5_0/ports/1/counters"
    root = tree(
        tmp_path,
        {
            "/proc/pressure/cpu": PRESSURE.format(1_000),
            "/proc/pressure/io": PRESSURE.format(2_000),
            "/sys/fs/cgroup/cpu.pressure": PRESSURE.format(3_000),  # the root group of cgroup v2 goes first
            "/proc/net/snmp": SNMP,
            "/proc/net/dev": DEV + "  eth0: 100 1 2 0 0 0 0 0 200 1 4 5 0 0 0 0\nlo: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n",
            f"{ports}/port_rcv_data": "25\n",
            f"{ports}/port_xmit_data": "50\n",
            f"{ports}/port_xmit_wait": "9\n",
        },
    )
    found = read(root, [PORT])
    assert found.stalled_microseconds == {"cpu": 3_000, "io": 2_000}
    assert found.events == {"tcp_retransmits": 42}
    ethernet, port = found.nics
    assert ethernet == ("eth0", 100, 200, {"receive_errors": 2, "transmit_errors": 4, "transmit_drops": 5})
    assert port == ("mlx5_0/1", 100, 200, {"symbol_error": 3, "port_xmit_wait": 9})


def test_a_node_without_any_of_it(tmp_path: Path) -> None:
    assert read(Root(str(tmp_path)), ()) == NodeCounters({}, {}, ())
    assert read(Root(str(tmp_path)), [PORT]).nics[0].receive_bytes is None


HOSTILE = [
    *("", "\0" * 4096, "some total=-1\n", "some total=9999999999999999999999\n", "Tcp: a\nTcp: b c\n"),
    *("Tcp: RetransSegs\nTcp: \u0663\n", "x" * 70000),
]


@pytest.mark.parametrize("text", HOSTILE)
def test_files_that_make_no_sense(tmp_path: Path, text: str) -> None:
    names = ("/proc/pressure/cpu", "/proc/net/snmp", "/proc/net/dev")
    assert read(tree(tmp_path, dict.fromkeys(names, text)), ()) == NodeCounters({}, {}, ())


@pytest.mark.parametrize(
    "line", ["a\x1b[2J: " + "1 " * 16, "eth0: " + "1 " * 11, "eth0: " + "-1 " * 16, "eth0: " + "9" * 21 + " 1" * 15]
)
def test_lines_of_interfaces_that_make_no_sense(tmp_path: Path, line: str) -> None:
    assert read(tree(tmp_path, {"/proc/net/dev": DEV + line + "\n"}), ()).nics == ()


def test_ten_thousand_interfaces_of_containers(tmp_path: Path) -> None:
    lines = "".join(f"eth{n}: " + "1 " * 16 + "\n" for n in range(10_000))
    assert len(read(tree(tmp_path, {"/proc/net/dev": DEV + lines}), ()).nics) == INTERFACES_MAX


@given(st.binary(max_size=300))
def test_an_answer_of_the_kernel_that_is_cut_off(data: bytes) -> None:
    try:
        list(queue_drops.parsed(data))
    except struct.error:
        pass  # read() gives no answer then


def test_the_drops_are_those_that_tc_shows() -> None:
    if os.geteuid() or not Path("/usr/sbin/tc").exists():
        pytest.skip("needs root and tc: a network namespace with a queue that drops")
    script = (
        "ip link add d0 type veth peer name d1 && ip addr add 10.9.9.1/24 dev d0 && ip link set d0 up && ip link set d1 up && "
        "ip neigh add 10.9.9.2 lladdr 02:00:00:00:00:02 dev d0 && tc qdisc add dev d0 root tbf rate 8kbit burst 600 limit 600 && "
        "for i in 1 2 3 4 5 6 7 8 9; do printf '%0300d' 1 > /dev/udp/10.9.9.2/9; done; "
        'tc -s qdisc show dev d0 | grep -o \'dropped [0-9]*\'; exec "$0" -c "$1"'
    )
    ask = "from fairlead.host import queue_drops; print(queue_drops.read().get('d0'))"
    words = ["unshare", "--net", "/bin/bash", "-c", script, sys.executable, ask]
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": str(Path(__file__).resolve().parents[2] / "agent")}
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True, env=env)
    dropped, found = done.stdout.split("\n")[:2]
    assert dropped == f"dropped {found}" and int(found) > 0, done.stdout + done.stderr
