"""What a command line that is nearly right is answered with: the line to type instead."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fairlead.cli import chosen_settings, main
from tests.lab.trees import MACHINES

ROOT = Path(__file__).resolve().parents[2]
TREE = str(MACHINES / "hgx-h100")
SITE = 'schema = 1\n[classes.a]\nnodes = "gpu[001-004]"\nprofile = "hgx-h100"\n'


def hint(capsys: pytest.CaptureFixture[str], *words: str, code: int = 64) -> str:
    """The last line of the error, which is the next step."""
    assert main(words) == code
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("  next: "), last
    return last.removeprefix("  next: ")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "site.toml").write_text(SITE)
    return "site.toml"


def test_a_tree_that_is_of_no_declared_node_says_how_it_is_named(site: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = hint(capsys, "plan", "--root", TREE, "--site", site)
    assert f"--root NODE={TREE}" in said and "gpu[001-004]" in said and "--profile NAME" in said
    assert main(["plan", "--root", f"gpu001={TREE}", "--site", site]) == 0  # as the hint says
    assert main(["plan", "--root", TREE, "--profile", "hgx-h100"]) == 0


def test_a_tree_without_a_site_says_what_else_can_be_named(
    site: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlead.cli.provision.SITE", "/nonexistent/site.toml")
    said = hint(capsys, "plan", "--root", TREE, code=66)
    assert "--profile NAME, --document FILE or --site FILE" in said


@pytest.mark.parametrize("words", [("plan", "--root"), ("plan", "--root", "--site", "site.toml")])
def test_an_option_without_its_value_says_what_it_takes(
    site: str, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    assert hint(capsys, *words) == "--root [NODE=]TREE: plan for a machine tree instead of nodes"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("check", "--root", TREE, "--only", "nccl"), "nccl is a setting: --only setting.nccl judges"),
        (("check", "--root", TREE, "--only", "xid,gpu_count"), "--only xid --only gpu_count"),
        (("check", "--root", TREE, "--only", "gpu_cuont"), "did you mean `gpu_count`?"),
        (("apply", "--dry-run", "--only", "xid"), "xid is a check, not a setting: `fairlead check --only xid`"),
        (("apply", "--dry-run", "--only", "setting.nccl"), "--only nccl"),
        (("apply", "--dry-run", "--only", "ncll"), "did you mean `nccl`?"),
        (("plan", "--tags", "gpu_count"), "gpu_count is a check"),
        (("plan", "--tags", "slurm_hooks"), "slurm_hooks is a role, and a run always uses all roles; --tags chooses settings"),
        (("provision", "--tags", "reboot"), "reboot is a role"),
        (("render", "--site", "site.toml", "-o", "out", "--tags", "frobnicate"), "there are containers: "),
        (("provision", "site.toml"), "--site site.toml"),
        (("plan", "site.toml"), "--site site.toml"),
        (("provision", "--taggs=nccl"), "did you mean --tags?"),
        (("config", "show", "site.toml", "--node", "gpu001"), "config show --site site.toml --node gpu001"),
        (("config", "show", "--site", "site.toml", "--node", "gpu005"), "declared there: gpu[001-004]"),
        (("plan", "--site", "site.toml", "-l", "gpu005"), "declared there: gpu[001-004]"),
    ],
    ids=lambda value: " ".join(value).replace(TREE, "TREE") if isinstance(value, tuple) else "",
)
def test_what_is_nearly_right(site: str, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], expected: str) -> None:
    assert expected in hint(capsys, *words)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("explain", "nccll"), "did you mean `nccl`?"),
        (("check", "--root", TREE, "--profile", "hgx-h10"), "did you mean `hgx-h100`?"),
        (("config", "check", "nowhere.toml"), "--site FILE), or write one: schema = 1"),
        (("provision", "--site", "nowhere.toml"), "--site FILE), or write one: schema = 1"),
        (("config", "show", "nowhere.json"), "name the document that you have"),
    ],
    ids=lambda value: " ".join(value).replace(TREE, "TREE") if isinstance(value, tuple) else "",
)
def test_what_is_not_there(site: str, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], expected: str) -> None:
    assert expected in hint(capsys, *words, code=66)


def test_the_site_that_the_hint_writes_is_right(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = hint(capsys, "config", "check", str(tmp_path / "site.toml"), code=66)
    assert 'nodes = "gpu[001-004]" and profile = "hgx-h100"' in said
    (tmp_path / "site.toml").write_text('schema = 1\n[classes.NAME]\nnodes = "gpu[001-004]"\nprofile = "hgx-h100"\n')
    assert main(["config", "check", str(tmp_path / "site.toml")]) == 0


def test_the_roles_are_those_of_the_playbooks() -> None:
    assert set(chosen_settings.ROLES) == {p.name for p in (ROOT / "playbooks/roles").iterdir() if p.is_dir()}


def test_a_document_in_the_tree_needs_no_site(site: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from fairlead import config

    shutil.copytree(TREE, tmp_path / "tree", symlinks=True)
    own = tmp_path / "tree/etc/fairlead/node.json"
    own.parent.mkdir(parents=True, exist_ok=True)
    own.write_bytes(config.encode_document(config.profile_document("gpu001", "hgx-h100")))
    assert main(["plan", "--root", str(tmp_path / "tree")]) == 0 and capsys.readouterr().out
