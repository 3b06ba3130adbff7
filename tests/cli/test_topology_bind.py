"""`fairlead topology` and `fairlead bind` as a person calls them: shapes, files, and trees that are broken."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fairlead.cli import main
from fairlead.errors import ExitCode
from tests.lab.machines import read_nvml, write_machine
from tests.lab.sites import write_site

MEMORY = "/dev/shm"  # thousands of small files: a disk takes seconds


@pytest.fixture(scope="module")
def room() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None) as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def tree(room: Path) -> Path:
    return write_machine(room / "hgx-h100", "hgx-h100", cpus=16, tuned=True)


@pytest.fixture
def copy(tree: Path, room: Path) -> Iterator[Path]:
    made = Path(shutil.copytree(tree, room / "copy", symlinks=True))
    yield made
    shutil.rmtree(made)


def said(capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    done = capsys.readouterr()
    return done.out, done.err


def test_the_json_of_topology(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topology", "--root", str(tree), "--json"]) == ExitCode.OK
    shown = json.loads(said(capsys)[0])
    assert list(shown) == ["numa", "gpus", "nics", "paths", "audit"]
    assert set(shown["numa"][0]) == {"id", "cpus", "memory_bytes"}
    assert set(shown["gpus"][0]) == {"index", "pci", "numa", "cpus", "nics"}
    assert set(shown["nics"][0]) == {"name", "pci", "numa", "link_layer", "rate_gbps", "state"}
    assert set(shown["paths"][0]) == {"a", "b", "nccl", "smi"}
    assert [g["pci"] for g in shown["gpus"]] == [g["pci"] for g in read_nvml(tree)["gpus"]]


def test_the_json_of_bind(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = [
        "bind",
        "--root",
        str(tree),
        "--tasks",
        "2",
        "--gpus",
        "4-5",
        "--cpus",
        "0-3,8-11",
        "--threads-per-core",
        "1",
        "--json",
    ]
    assert main(argv) == ExitCode.OK
    shown = json.loads(said(capsys)[0])
    assert list(shown) == ["tasks", "distance", "notes"]
    assert shown["tasks"][1] == {
        "rank": 1, "gpus": ["0000:c3:00.0"], "cpus": "2-3,10-11", "numa": [0, 1], "nics": ["mlx5_7"], "memory": "preferred:1",
    }  # fmt: skip
    assert shown["distance"] == 8


def test_the_texts(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bind", "--root", str(tree), "--tasks", "8"]) == ExitCode.OK
    out = said(capsys)[0].splitlines()
    assert out[0].split() == ["rank", "gpus", "cpus", "numa", "nics", "memory"]
    assert out[8].split() == ["7", "0000:df:00.0", "14-15", "1", "mlx5_9", "preferred:1"]
    assert main(["topology", "--root", str(tree)]) == ExitCode.OK
    out = said(capsys)[0]
    assert out.split()[:2] == ["GPU0", "GPU1"]
    assert "InfiniBand 400 Gb/s ACTIVE" in out
    assert out.rstrip().endswith("nothing to say")


def test_gpus_in_any_form(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    uuid = read_nvml(tree)["gpus"][1]["uuid"]
    for wish in ("1", "01", "0000:43:00.0", "00000000:43:00.0", "43:00.0", uuid):
        assert main(["bind", "--root", str(tree), "--tasks", "1", "--gpus", wish, "--json"]) == ExitCode.OK
        assert json.loads(said(capsys)[0])["tasks"][0]["gpus"] == ["0000:43:00.0"]


def test_svg_is_written(tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "node.svg"
    assert main(["topology", "--root", str(tree), "--svg", str(picture)]) == ExitCode.OK
    assert picture.read_text().startswith('<?xml version="1.0"')
    assert main(["topology", "--root", str(tree), "--svg", str(tmp_path / "no/where.svg")]) == ExitCode.UNAVAILABLE
    assert "No such file" in said(capsys)[1]


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        (["--tasks", "0"], "--tasks: 0"),
        (["--tasks", "2", "--gpus", "9"], "no GPU '9' here"),
        (["--tasks", "2", "--gpus", "1,1"], "named twice"),
        (["--tasks", "2", "--gpus", "0000:zz:00.0"], "not a PCI address"),
        (["--tasks", "2", "--cpus", "0-"], "--cpus: not a CPU number"),
        (["--tasks", "2", "--cpus", "5-2"], "runs backwards"),
        (["--tasks", "2", "--cpus", "99999999999"], "not a CPU number"),
        (["--tasks", "2", "--cpus", ","], "an empty list"),
        (["--tasks", "2", "--cpus", "200"], "none of these CPUs is online"),
        (["--tasks", "2", "--threads-per-core", "0"], "--threads-per-core: 0"),
    ],
)
def test_wishes_that_cannot_be(tree: Path, capsys: pytest.CaptureFixture[str], wish: list[str], words: str) -> None:
    assert main(["bind", "--root", str(tree), *wish]) == ExitCode.USAGE
    assert words in said(capsys)[1]


def no_sys(tree: Path) -> None:
    shutil.rmtree(tree / "sys")


def nothing(tree: Path) -> None:
    shutil.rmtree(tree / "sys")
    shutil.rmtree(tree / "proc")


def cut_config(tree: Path) -> None:
    for n, config in enumerate(sorted(tree.rglob("config"))):
        config.write_bytes(config.read_bytes()[: n % 70])


def cyclic_links(tree: Path) -> None:
    devices = tree / "sys/bus/pci/devices"
    for n, name in enumerate(sorted(os.listdir(devices))[:6]):
        (devices / name).unlink()
        (devices / name).symlink_to([name, "../devices", "0000:1b:00.0", "/", "..", "a" * 200][n])
    (tree / "sys/class/net/loop0").symlink_to("loop1")
    (tree / "sys/class/net/loop1").symlink_to("loop0")


def garbage_lists(tree: Path) -> None:
    for path, text in (
        ("sys/devices/system/cpu/online", "0-3,banana"),
        ("sys/devices/system/node/node1/cpulist", "0-99999999999999"),
    ):
        (tree / path).write_text(text)


def garbage_node_list(tree: Path) -> None:
    (tree / "sys/devices/system/node/node0/cpulist").write_text("7-3")


def garbage_cores(tree: Path) -> None:
    (tree / "sys/devices/system/cpu/cpu2/topology/core_cpus_list").write_text("\x00\xff")
    (tree / "sys/devices/system/cpu/cpu3/topology/physical_package_id").write_text("one")


def dangling_links(tree: Path) -> None:
    for n, name in enumerate(sorted(os.listdir(tree / "sys/bus/pci/devices"))):
        if n % 4 == 0:
            shutil.rmtree((tree / "sys/bus/pci/devices" / name).resolve(), ignore_errors=True)


def short_config(tree: Path) -> None:
    """As recorded without root."""
    for config in tree.rglob("config"):
        config.write_bytes(config.read_bytes()[:64])


def garbage_devices(tree: Path) -> None:
    for n, device in enumerate(sorted((tree / "sys/bus/pci/devices").iterdir())):
        for name in ("class", "vendor", "numa_node", "current_link_width", "max_link_speed"):
            if n % 3 == 0:
                (device / name).write_text("\x00garbage" * n)
            elif n % 3 == 1:
                (device / name).unlink()


def broken_nvml(tree: Path) -> None:
    (tree / "nvml.json").write_text('{"gpus": [')


def cut_nvml(tree: Path) -> None:
    (tree / "nvml.json").write_text('{"schema": 1, "gpus": [{"pci": 7}, null, {"index": "x", "pci": "nowhere"}, []]}')


def no_cpus(tree: Path) -> None:
    shutil.rmtree(tree / "sys/devices/system")


def directories_for_files(tree: Path) -> None:
    for path in ("sys/devices/system/cpu/online", "sys/devices/system/node/node0/meminfo", "proc/cpuinfo"):
        (tree / path).unlink()
        (tree / path).mkdir()


FINE = (ExitCode.OK, ExitCode.OK)
DAMAGES: list[tuple[Callable[[Path], None], tuple[int, int], str]] = [
    # what is done to the tree, exit codes of topology and bind, words on stderr where one of them refuses
    (nothing, (ExitCode.NO_INPUT, ExitCode.NO_INPUT), "not a machine tree"),
    (no_sys, (ExitCode.NO_INPUT, ExitCode.NO_INPUT), "no sys/"),
    (broken_nvml, (ExitCode.BAD_DATA, ExitCode.BAD_DATA), "nvml.json: not JSON"),
    (no_cpus, (ExitCode.OK, ExitCode.BAD_DATA), "no online CPU is described"),
    (cut_config, (ExitCode.BAD_DATA, ExitCode.BAD_DATA), "/config: cut off after"),
    (cyclic_links, (ExitCode.BAD_DATA, ExitCode.BAD_DATA), "links lead in a circle"),
    (dangling_links, FINE, ""),
    (garbage_lists, (ExitCode.BAD_DATA, ExitCode.BAD_DATA), "/sys/devices/system/cpu/online: not a CPU number: 'banana'"),
    (garbage_node_list, (ExitCode.BAD_DATA, ExitCode.BAD_DATA), "node0/cpulist: range '7-3' runs backwards"),
    (garbage_cores, FINE, ""),
    (short_config, FINE, ""),
    (garbage_devices, FINE, ""),
    (cut_nvml, FINE, ""),
    (directories_for_files, FINE, ""),
]


@pytest.mark.parametrize("damage", DAMAGES, ids=[d[0].__name__ for d in DAMAGES])
def test_a_broken_tree(
    copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: tuple[Callable[[Path], None], tuple[int, int], str]
) -> None:
    """Each way of being broken: one line that says what, the documented exit code, no traceback; or an answer."""
    harm, codes, words = damage
    harm(copy)
    for argv, code in zip((["topology", "--svg", str(tmp_path / "x.svg")], ["bind", "--tasks", "4"]), codes, strict=True):
        assert main([*argv, "--root", str(copy), "--json"]) == code, argv
        out, err = said(capsys)
        assert "Traceback" not in err
        if code == ExitCode.OK:
            json.loads(out)
        else:
            assert words in err
            lines = err.strip().splitlines()
            assert len(lines) <= 2
            assert re.match(rf"fairlead {argv[0]}: ", lines[0])


def test_no_gpu_is_lost_where_the_driver_is_silent(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (copy / "nvml.json").unlink()
    assert main(["topology", "--root", str(copy), "--json"]) == ExitCode.OK
    shown = json.loads(said(capsys)[0])
    assert len(shown["gpus"]) == 8
    assert {p["smi"] for p in shown["paths"]} <= {"PIX", "PXB", "PHB", "NODE", "SYS"}


def test_a_zero_byte_at_the_end_is_how_some_recordings_are(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in ("cpu/online", "node/online", "node/node0/cpulist", "node/node1/cpulist"):
        file = copy / "sys/devices/system" / path
        file.write_text(file.read_text() + "\0")
    assert main(["bind", "--root", str(copy), "--tasks", "8"]) == ExitCode.OK
    assert said(capsys)[0].splitlines()[8].split() == ["7", "0000:df:00.0", "14-15", "1", "mlx5_9", "preferred:1"]


def test_no_such_tree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["topology"], ["bind", "--tasks", "1"]):
        assert main([*command, "--root", str(tmp_path / "none")]) == ExitCode.NO_INPUT
        assert "not a machine tree" in said(capsys)[1]


def test_an_amd_machine(room: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = write_site(room / "lumi", "lumi-g")
    assert main(["topology", "--root", str(tree)]) == ExitCode.OK
    assert "AMD MI250X" in said(capsys)[0]
    for threads, cpus in ((["--threads-per-core"], "48-55"), (["--threads-per-core", "2"], "48-55,112-119")):
        assert main(["bind", "--root", str(tree), "--tasks", "8", *threads, "--json"]) == ExitCode.OK
        assert json.loads(said(capsys)[0])["tasks"][0]["cpus"] == cpus
