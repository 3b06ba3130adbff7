"""Which HCA and interface NCCL should use, and what stands in /etc/nccl.conf."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead import settings as setting_list
from fairlead.errors import ConfigError
from fairlead.host.gather import gather
from fairlead.host.root import Root
from fairlead.model.facts import Missing, Nic, PciDevice, unreadable
from fairlead.nccl import hca, nccl_conf, route
from fairlead.settings import nccl
from tests.lab.trees import MACHINES


def port(name: str, pci: str = "", **changes: object) -> Nic:
    values = {
        "name": name,
        "pci": pci,
        "rdma": True,
        "port": 1,
        "link_layer": "InfiniBand",
        "state": "ACTIVE",
        "physical_state": "LinkUp",
        "rate_gbps": 400.0,
    }
    return Nic(**{**values, **changes})  # type: ignore[arg-type]


def device(address: str, path: tuple[str, ...], *, gpu: bool = False) -> PciDevice:
    code = 0x030200 if gpu else 0x020700
    vendor = 0x10DE if gpu else 0x15B3
    return PciDevice(
        address=address, vendor=vendor, device=1, class_code=code, path=(*path, address), numa=0, link=unreadable("not read")
    )


def machine(n: int = 4) -> tuple[tuple[Nic, ...], tuple[PciDevice, ...]]:
    """n GPUs each beside one HCA below a switch, and one storage HCA (mlx5_9) of the same kind elsewhere."""
    pci: list[PciDevice] = []
    nics: list[Nic] = []
    for i in range(n):
        above = (f"pci0000:{i:x}0", f"0000:{i:x}0:01.0", f"0000:{i:x}1:00.0")
        pci += [
            device(f"0000:{i:x}2:00.0", (*above, f"0000:{i:x}1:10.0"), gpu=True),
            device(f"0000:{i:x}3:00.0", (*above, f"0000:{i:x}1:11.0")),
        ]
        nics.append(port(f"mlx5_{i}", f"0000:{i:x}3:00.0", interfaces=(f"ib{i}",)))
    pci.append(device("0000:f1:00.0", ("pci0000:f0", "0000:f0:01.0")))
    nics.append(port("mlx5_9", "0000:f1:00.0", interfaces=("stor0",)))
    return tuple(nics), tuple(pci)


def test_ports_beside_gpus_are_compute_and_storage_is_left_out() -> None:
    nics, pci = machine()
    choice = hca.choose(nics, pci, expected=4)
    assert choice.compute == ("mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3")
    assert choice.default == (*choice.compute, "mlx5_9") and choice.left_out == {"mlx5_9": "not beside a GPU"}
    assert choice.problems == ()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"state": "DOWN"}, "4 compute ports expected, 3 usable; mlx5_2 is DOWN/LinkUp"),
        ({"physical_state": "Polling"}, "4 compute ports expected, 3 usable; mlx5_2 is ACTIVE/Polling"),
        ({"rate_gbps": 100.0}, "4 compute ports expected, 3 usable; mlx5_2 is InfiniBand at 100.0 Gb/s"),
        ({"link_layer": "Ethernet"}, "4 compute ports expected, 3 usable; mlx5_2 is Ethernet at 400.0 Gb/s"),
        ({"state": unreadable("EIO")}, "4 compute ports expected, 3 usable; mlx5_2 is unreadable/LinkUp"),
    ],
)
def test_a_port_that_is_not_as_the_others_is_a_finding_never_a_shorter_list(change: dict[str, object], words: str) -> None:
    nics, pci = machine()
    broken = tuple(port(n.name, n.pci, **change) if n.name == "mlx5_2" else n for n in nics)
    assert hca.choose(broken, pci, expected=4).problems == (words,)


def test_virtual_functions_count_only_where_all_are() -> None:
    nics, pci = machine()
    vf = port("mlx5_20", "0000:13:00.1", virtual_function=True)
    assert hca.choose((*nics, vf), pci, expected=4).left_out["mlx5_20"] == "a virtual function"
    only = tuple(port(n.name, n.pci, virtual_function=True) for n in nics)
    assert len(hca.choose(only, pci, expected=4).compute) == 4


def test_a_bond_is_left_out_unless_it_is_all_there_is() -> None:
    nics, pci = machine()
    assert hca.choose((*nics, port("mlx5_bond_0")), pci, expected=4).left_out["mlx5_bond_0"] == "a bond"
    assert hca.choose((port("mlx5_bond_0"),), (), expected=1).compute == ("mlx5_bond_0",)


def test_without_gpus_nearby_the_fastest_group_and_no_default_route() -> None:
    nics = (
        port("mlx5_0", rate_gbps=200.0, link_layer="Ethernet", interfaces=("eth0",)),
        port("mlx5_1", rate_gbps=200.0, link_layer="Ethernet"),
        port("mlx5_2", rate_gbps=25.0, link_layer="Ethernet"),
    )
    choice = hca.choose(nics, (), expected=None, other_traffic={"eth0": "the default route"})
    assert choice.compute == ("mlx5_1",)
    assert choice.left_out == {"mlx5_0": "carries the default route", "mlx5_2": "another link layer or rate"}


def test_a_port_beside_a_gpu_is_compute_though_storage_shares_it() -> None:
    nics, pci = machine()
    assert "mlx5_0" in hca.choose(nics, pci, expected=4, other_traffic={"ib0": "the route to a file server"}).compute


def test_the_site_s_exclusion_wins_and_needs_a_star_to_be_a_prefix() -> None:
    nics, pci = machine()
    assert hca.choose(nics, pci, expected=3, exclude=("mlx5_1",)).compute == ("mlx5_0", "mlx5_2", "mlx5_3")
    assert hca.choose(nics, pci, expected=3, exclude=("ib3",)).left_out["mlx5_3"] == "excluded by the site"
    assert hca.choose(nics, pci, expected=0, exclude=("mlx5_*",)).compute == ()


def test_names_are_in_natural_order_and_ports_named_only_where_there_are_two() -> None:
    nics = (port("mlx5_10"), port("mlx5_2"), port("mlx5_3"), port("mlx5_3", port=2))
    assert hca.choose(nics, (), expected=None).compute == ("mlx5_2", "mlx5_3:1", "mlx5_3:2", "mlx5_10")


ROUTES = """Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth1\t00000000\t0100000A\t0003\t0\t0\t200\t00000000\t0\t0\t0
eth0\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\t0\t0
stor0\t0000A8C0\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0
down0\t0101A8C0\t00000000\t0000\t0\t0\t0\tFFFFFFFF\t0\t0\t0
"""
MOUNTS = """/dev/sda / ext4 rw 0 0
192.168.7.9:/home /home nfs4 rw,addr=192.168.7.9 0 0
10.9.9.9@tcp:10.9.9.8@tcp:/fs /fs lustre rw 0 0
server:/x /x nfs rw 0 0
"""


def test_routes_and_servers() -> None:
    assert route.default_interface(route.parse_routes(ROUTES)) == "eth0"
    assert route.other_traffic(ROUTES, MOUNTS) == {"stor0": "the route to a file server", "eth0": "the default route"}


@given(st.text(), st.text())
def test_any_text_of_the_kernel_is_taken(routes: str, mounts: str) -> None:
    route.other_traffic("head\n" + routes, mounts)


@given(st.dictionaries(st.text(max_size=12), st.text(max_size=12), max_size=4))
def test_what_is_written_is_what_nccl_reads(values: dict[str, str]) -> None:
    good = {f"NCCL_X{i}": v for i, v in enumerate(values.values()) if not nccl_conf.fault(f"NCCL_X{i}", v)}
    text = nccl_conf.render(tuple(nccl_conf.ConfLine(n, v, "because") for n, v in good.items()))
    assert nccl_conf.parse(text or "") == good and (text is None or nccl_conf.is_ours(text))


@pytest.mark.parametrize("name", ["NCCL_ALGO", "NCCL_BUFFSIZE", "NCCL_MIN_NCHANNELS", "NCCL_CROSS_NIC"])
def test_nothing_that_ranks_must_agree_on(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"settings.nccl.extra.{name}: must be equal on all ranks"):
        planned(tmp_path, extra={name: "1"})


@pytest.mark.parametrize("value", ["1 # why", " 1", "1\n2", ""])
def test_values_that_nccl_would_read_otherwise(value: str) -> None:
    assert nccl_conf.fault("NCCL_DEBUG", value)


def planned(folder: Path, model: str = "hgx-h100", **want: object) -> str | None:
    tree = folder / "tree"
    if not tree.exists():
        shutil.copytree(MACHINES / model, tree, symlinks=True)
    node = gather(Root(str(tree)), unreadable("not asked"), reads=setting_list.load()["nccl"].reads)
    observed = nccl.observe(node)
    assert not isinstance(observed, Missing)
    return nccl.wanted(nccl.NcclWant(**want), observed)  # type: ignore[arg-type]


def test_the_file_gives_its_reasons_on_lines_of_their_own(tmp_path: Path) -> None:
    text = planned(tmp_path, hcas=8)
    assert text is not None and text.startswith(nccl_conf.HEADER)
    values = nccl_conf.parse(text)
    assert values["NCCL_SOCKET_IFNAME"] == "=enp170s0np0"
    assert values["NCCL_IB_HCA"].startswith("=mlx5_") and len(values["NCCL_IB_HCA"].split(",")) == 8
    assert all("#" not in line or line.startswith("#") for line in text.splitlines())


def test_an_undeclared_number_gives_an_exclusion_which_cannot_be_too_short(tmp_path: Path) -> None:
    text = planned(tmp_path)
    assert text is not None and nccl_conf.parse(text)["NCCL_IB_HCA"].startswith("^=mlx5_")


def test_a_port_down_keeps_the_file_and_says_which(tmp_path: Path) -> None:
    planned(tmp_path)
    for state in (tmp_path / "tree/sys/class/infiniband/mlx5_3/ports").glob("*/state"):
        state.write_text("1: DOWN\n")
    with pytest.raises(ConfigError, match=r"8 compute ports expected, 7 usable; mlx5_3 is DOWN"):
        planned(tmp_path, hcas=8)


@pytest.mark.parametrize(("want", "words"), [("docker0", "no interface docker0"), ("enp41s0np0", "")])
def test_a_declared_interface_must_be_there_and_up(want: str, words: str, tmp_path: Path) -> None:
    if words:
        with pytest.raises(ConfigError, match=words):
            planned(tmp_path, socket_interface=want)
    else:
        text = planned(tmp_path, socket_interface=want)
        assert text is not None and nccl_conf.parse(text)["NCCL_SOCKET_IFNAME"] == f"={want}"


def test_a_topology_file_only_in_a_virtual_machine_and_only_for_these_gpus(tmp_path: Path) -> None:
    path = "/etc/nccl/topo.xml"
    assert "NCCL_TOPO_FILE" not in (planned(tmp_path, topology_file=path) or "")
    info = tmp_path / "tree/proc/cpuinfo"
    info.write_text(info.read_text().replace("flags\t\t:", "flags\t\t: hypervisor", 1))
    with pytest.raises(ConfigError, match="no such file"):
        planned(tmp_path, topology_file=path)
    xml = tmp_path / "tree/etc/nccl/topo.xml"
    xml.parent.mkdir(parents=True)
    gpus = [d.address for d in machine_pci(tmp_path) if d.vendor == 0x10DE and d.class_code >> 8 == 0x0302]
    for text, words in (
        ('<system><pci busid="ffff:ff:01.0" class="0x060400"/></system>', "names no GPU and no NIC"),
        ("<graphs/>", "not a topology of NCCL"),
        (xml_of([*gpus, "0000:77:00.0"]), "names 1 of 9 devices that are not here, GPU 0000:77:00.0 the first"),
        (xml_of(gpus[:7]), f"leaves out GPU {gpus[7]}"),
    ):
        xml.write_text(text)
        with pytest.raises(ConfigError, match=words):
            planned(tmp_path, topology_file=path)
    xml.write_text(xml_of(gpus).upper().replace("PCI BUSID", "pci busid").replace("CLASS", "class").replace("SYSTEM", "system"))
    assert f"NCCL_TOPO_FILE={path}" in (planned(tmp_path, topology_file=path) or "")


def xml_of(gpus: list[str]) -> str:
    inside = "".join(f'<pci busid="{a}" class="0x030200"/>' for a in gpus)
    comment = '<!-- <pci busid="0000:99:00.0" class="0x030200"/> -->'
    return f'<system version="1">{comment}<pci busid="ffff:ff:01.0">{inside}</pci></system>'


def machine_pci(folder: Path) -> tuple[PciDevice, ...]:
    return gather(Root(str(folder / "tree")), unreadable("not asked")).pci
