"""A hardware profile for another GPU: apply, plan, provision and config check refuse it in one line, and change nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fairlead import config
from fairlead.apply import TreeNvml, apply
from fairlead.cli import main
from fairlead.host.root import Root
from fairlead.model.another_gpu import Declared, KnownProfile, refusal
from tests.lab.trees import MACHINES

pytestmark = pytest.mark.trees
KINDS = "every GPU is 10de:27b8 (8 of them), and the profile hgx-h100 is for 10de:2330"
WORDS = f"gpu1: {KINDS}; nothing was changed"


def of_tree(path: Path) -> tuple[tuple[str, bytes], ...]:
    return tuple((str(p), p.read_bytes()) for p in sorted(path.rglob("*")) if p.is_file() and not p.is_symlink())


@pytest.fixture
def l4(memory: Path) -> Path:
    return Path(shutil.copytree(MACHINES / "l4", memory / "tree", symlinks=True))


def test_apply_changes_nothing(l4: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Settings that do not depend on the hardware are not applied either: nobody would expect half of a document."""
    file, before = tmp_path / "node.json", of_tree(l4)
    file.write_bytes(config.encode_document(config.profile_document("gpu1", "hgx-h100")))
    for more in ([], ["--dry-run"], ["--json"], ["--phase", "boot"], ["--only", "sysctl"]):
        assert main(["apply", "--root", str(l4), "--document", str(file), *more]) == 78
        said = capsys.readouterr()
        assert said.out == "" and said.err.splitlines()[0].endswith(WORDS), more
        assert "next: the profile l4 fits these GPUs" in said.err
    assert of_tree(l4) == before


def test_a_declared_pci_id_is_believed(l4: Path) -> None:
    layers = [("profile hgx-h100", {"checks": {"gpu_count": {"pci_ids": ["10de:27b8"]}}, "settings": {"numa_balancing": {}}})]
    document = config.resolve_layers("gpu1", layers, profile="hgx-h100")[0]
    assert apply(document, Root(str(l4)), nvml=TreeNvml(Root(str(l4)))).changed > 0


def test_a_plan_of_a_tree_says_the_same_line(capsys: pytest.CaptureFixture[str]) -> None:
    trees = ["--root", f"gpu1={MACHINES / 'l4'}", "--root", f"gpu2={MACHINES / 'hgx-h100'}"]
    assert main(["plan", *trees, "--profile", "hgx-h100"]) == 69
    said = capsys.readouterr().out
    assert WORDS in said and "gpu2 (1 node): would change" in said


def test_config_check_says_it_of_a_tree(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    site, document = tmp_path / "site.toml", tmp_path / "node.json"
    site.write_text('schema = 1\n[classes.h100]\nnodes = "gpu[1-2]"\nprofile = "hgx-h100"\n')
    document.write_bytes(config.encode_document(config.profile_document("gpu1", "hgx-h100")))
    wrong, right = f"gpu1={MACHINES / 'l4'}", f"gpu2={MACHINES / 'hgx-h100'}"
    assert main(["config", "check", str(site), "--root", wrong, "--root", right]) == 78
    line, hint = capsys.readouterr().err.splitlines()
    assert line == f"fairlead config: {site}: classes.h100.profile: gpu1 (class h100): {KINDS}"
    assert hint.startswith("  next: the profile l4 fits these GPUs")
    assert main(["config", "check", str(site), "--root", right]) == 0
    capsys.readouterr()
    assert main(["config", "check", str(document), "--root", wrong]) == 78
    assert capsys.readouterr().err.startswith(f"fairlead config: {document}: profile: gpu1: {KINDS}\n")
    assert main(["config", "check", str(site), "--root", f"gpu3={MACHINES / 'l4'}"]) == 64
    assert "gpu3 is not declared" in capsys.readouterr().err


KNOWN = (
    KnownProfile("one", ("10de:0001",), 4),
    KnownProfile("two", ("10de:0001", "10de:0002"), 8),
    KnownProfile("any", ("10de:0003",), 0),
)


@pytest.mark.parametrize(
    ("here", "fits"),
    [
        ({"10de:0001": 4}, "the profile one fits"),
        ({"10de:0001": 8}, "the profile two fits"),
        ({"10de:0001": 7}, "the profiles one and two are for these GPUs, and for 4 and 8 of them"),
        ({"10de:0003": 5}, "the profile any fits"),
        ({"10de:0004": 5}, "no profile of fairlead is for these GPUs"),
        ({"10de:0001": 4, "10de:0003": 4}, "no profile of fairlead is for these GPUs"),
    ],
)
def test_the_profile_that_fits_is_named(here: dict[str, int], fits: str) -> None:
    words, hint = refusal(Declared("n1", "p", ("10de:9999",), ("a", "b")), here, KNOWN)
    assert words.startswith("n1 (class a, b): every GPU is ") and fits in hint
    assert "checks.gpu_count.pci_ids" in hint
