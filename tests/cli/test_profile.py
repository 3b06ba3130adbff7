"""`fairlead profile draft`: what it declares is justified, what it found has to be confirmed, and a sick node is refused."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead import config
from fairlead.cli import main
from tests.lab.faultytrees import take_out
from tests.lab.machines import read_nvml, write_nvml
from tests.lab.trees import MACHINES, names

SICK = {
    "hgx-h100.xid79": "gpu_count: GPU 0000:61:00.0 is lost",
    "hgx-h100.row-remap-failed": "row_remap: row remapping failed on GPU 0000:c3:00.0",
    "hgx-h100.width-x8": "pcie_link: PCIe link of GPU 0000:52:00.0 is x8",
    "hgx-h100.ecc-unreadable": "Xid 48 on GPU 0000:d1:00.0",
}
GOOD = [name for name in names() if name not in SICK]
#: What the GPUs themselves prove, or what all profiles of fairlead declare.
JUSTIFIED = {"checks.pcie_link.gpu_width", "checks.pcie_link.gpu_gen", "checks.ecc.required"}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else tmp_path) as folder:
        yield Path(folder)


def copied(name: str, folder: Path) -> Path:
    return Path(shutil.copytree(MACHINES / name, folder / name, symlinks=True))


def unknown(tree: Path) -> Path:
    """The same machine with GPUs that no profile of fairlead is for."""
    for gpu in read_nvml(tree)["gpus"]:
        (tree / "sys/bus/pci/devices" / gpu["pci"] / "device").write_text("0x2bff\n")
    return tree


def draft(tree: Path, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["profile", "draft", str(tree), "--json", *words]) == 0
    return dict(json.loads(capsys.readouterr().out))


def confirmed_is_right(tree: Path, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Once a person has removed "# ? ", a site with the profile is right, and the node of the draft is healthy under it."""
    file.write_text(file.read_text().replace("# ? ", ""))
    site = file.with_name("site.toml")
    site.write_text(f'schema = 1\n[classes.a]\nnodes = "n1"\nprofile = "{file}"\n')
    assert main(["config", "check", str(site)]) == 0
    capsys.readouterr()
    main(["check", "--root", str(tree), "--profile", str(file), "--json"])
    found = json.loads(capsys.readouterr().out)["findings"]
    assert [f for f in found if not f["needs_history"] and not f["check"].startswith("setting.")] == []


@pytest.mark.trees
@pytest.mark.parametrize("name", GOOD)
def test_a_confirmed_draft_fits_its_own_node(name: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = draft(MACHINES / name, capsys, "--name", "ours")
    assert said["like"] == name.partition(".")[0] and said["file"] == "ours.toml"
    assert not set(said["declared"]) & set(said["to_confirm"])
    confirmed_is_right(MACHINES / name, here / "ours.toml", capsys)


@pytest.mark.trees
@pytest.mark.parametrize("name", ["hgx-h100.tuned", "gb300-nvl72", "h100-pcie", "l4"])
def test_nothing_is_learned_from_unknown_hardware(
    name: str, here: Path, memory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = unknown(copied(name, memory))
    said = draft(tree, capsys, "--out", str(here / "new.toml"))
    assert said["like"] == ""
    made = config.load_profile(str(here / "new.toml"))
    assert {v.key for v in made.values} == set(said["declared"])
    assert {key for key in said["declared"] if key.startswith("checks.")} == JUSTIFIED
    assert made.unsupported == () and made.match is not None and made.match.gpus == ("10de:2bff",) and made.match.gpu_count == 0
    assert all(v.why and v.source for v in made.values)
    assert {"checks.gpu_count.expected", "checks.nvlink.links"} <= set(said["to_confirm"])
    confirmed_is_right(tree, here / "new.toml", capsys)


@pytest.mark.parametrize("name", SICK)
def test_a_sick_node_is_refused_in_one_line(name: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "draft", str(MACHINES / name)]) == 65
    first = capsys.readouterr().err.splitlines()[0]
    assert first.startswith(f"fairlead profile: {MACHINES / name}: ") and SICK[name] in first
    assert list(here.iterdir()) == []


def ecc_off(gpu: dict[str, Any]) -> None:
    gpu["ecc_mode"] = {"current": 0, "pending": 0}


def narrow(gpu: dict[str, Any]) -> None:
    gpu["pcie"]["width_current"] = 8


def link_down(gpu: dict[str, Any]) -> None:
    gpu["nvlink"][4]["active"] = 0


@pytest.mark.trees
@pytest.mark.parametrize(("fault", "words"), [(ecc_off, "ECC is off"), (narrow, "is x8"), (link_down, "17 of 18 NVLinks")])
def test_a_fault_of_unknown_hardware_is_found_too(
    fault: Any, words: str, here: Path, memory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = unknown(copied("hgx-h100.tuned", memory))
    nvml = read_nvml(tree)
    fault(nvml["gpus"][2])
    write_nvml(tree, nvml)
    assert main(["profile", "draft", "--root", str(tree)]) == 65
    assert f"GPU {nvml['gpus'][2]['pci']}" in (said := capsys.readouterr().err.splitlines()[0]) and words in said


@pytest.mark.trees
def test_cards_without_bridges_are_healthy_and_their_number_of_links_is_to_be_confirmed(
    here: Path, memory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = copied("a100-pcie", memory)
    nvml = read_nvml(tree)
    for link in (link for gpu in nvml["gpus"] for link in gpu["nvlink"]):
        link |= {"active": 0, "remote": ""}
    write_nvml(tree, nvml)
    said = draft(tree, capsys, "--name", "ours")
    assert said["like"] == "a100-pcie" and "checks.nvlink.links" in said["to_confirm"]
    confirmed_is_right(tree, here / "ours.toml", capsys)


@pytest.mark.trees
def test_a_board_that_lacks_a_gpu_is_no_other_hardware(here: Path, memory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = copied("hgx-h100.tuned", memory)
    take_out(tree, 3)
    assert main(["profile", "draft", str(tree)]) == 65
    assert "gpu_count: 7 of 8 GPUs on the PCI bus" in capsys.readouterr().err


@pytest.mark.trees
def test_a_gpu_that_the_driver_does_not_list_is_found_on_unknown_hardware(
    here: Path, memory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = unknown(copied("l4", memory))
    nvml = read_nvml(tree)
    gone = nvml["gpus"].pop()
    write_nvml(tree, nvml)
    assert main(["profile", "draft", str(tree)]) == 65
    assert f"GPU {gone['pci']} is on the PCI bus, but the driver does not list it" in capsys.readouterr().err


@pytest.mark.trees
def test_texts_of_a_hostile_tree_stay_texts(here: Path, memory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever made the tree chose the GPU's name and the node's name."""
    evil = 'H100"\n[[values]]\nkey = "policy.mode"\x1b[31m\u202e' + "x" * 5000
    tree = unknown(copied("h100-pcie", memory))
    nvml = read_nvml(tree)
    for gpu in nvml["gpus"]:
        gpu["name"] = evil
    write_nvml(tree, nvml)
    (tree / "proc/sys/kernel/hostname").write_text("n1\x1b]0;x\x07\n[match]\n")
    said = draft(tree, capsys, "--name", "evil", "--out", str(here / "evil.toml"))
    text = (here / "evil.toml").read_text()
    assert "policy.mode" not in said["declared"] and text.isprintable() is False and "\x1b" not in text and "\u202e" not in text
    for version in (text, text.replace("# ? ", "")):
        assert {v["key"] for v in tomllib.loads(version)["values"]} <= {*said["declared"], *said["to_confirm"]}
    assert max(map(len, text.splitlines())) < 1000


def test_dry_run_writes_nothing(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "draft", str(MACHINES / "l40s-pcie"), "--dry-run"]) == 0
    assert tomllib.loads(capsys.readouterr().out)["name"] == "l40s-x8" and list(here.iterdir()) == []
    assert draft(MACHINES / "l40s-pcie", capsys, "-n")["file"] is None


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        (["/nonexistent"], 66, "/nonexistent is not a machine tree"),
        (["TREE", "--root", "TREE"], 64, "name the same thing"),
        (["TREE", "--name", "Not A Name"], 64, "--name 'Not A Name' is not a profile's name"),
        (["TREE", "--out", "mine.toml"], 64, "mine.toml exists already"),
        (["TREE", "--name", "mine"], 64, "mine.toml exists already"),
        (["TREE", "--out", "/nonexistent/x.toml"], 66, "/nonexistent: no such folder"),
    ],
)
def test_bad_input_is_one_line(here: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: int, line: str) -> None:
    (here / "mine.toml").write_text("mine")
    tree = str(MACHINES / "l40s-pcie")
    assert main(["profile", "draft", *(tree if word == "TREE" else word for word in words)]) == code
    first = next(said for said in capsys.readouterr().err.splitlines() if said.startswith("fairlead profile: "))
    assert line in first and (here / "mine.toml").read_text() == "mine"
