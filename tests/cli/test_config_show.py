"""`fairlead config show`: what differs from the defaults and who says so, in the words of site.toml."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ClusterShell")

from hypothesis import given
from hypothesis import strategies as st

from fairlead import config
from fairlead.cli import main
from fairlead.cli.value_text import UNSET, value_lines, value_text

SITE = """\
schema = 1
generation = 7
[agent]
interval_seconds = 10
[classes.h100]
nodes = "gpu[1-3]"
profile = "hgx-h100"
fabric = "infiniband"
[classes.h100.settings.compute_mode]
[classes.h100.checks.xid]
services = { "94" = "drain_now" }
[nodes.gpu2.checks.pcie_link]
mode = "enforce"
"""
PYTHON = re.compile(r"\b(None|True|False)\b|<[\w.]+[:.]|\(\)|\('|'\)|\(\d+,|\bUNSET\b")


@pytest.fixture
def site(tmp_path: Path) -> str:
    path = tmp_path / "site.toml"
    path.write_text(SITE)
    return str(path)


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["config", "show", *words]) == 0
    return capsys.readouterr().out


def paragraphs(text: str) -> dict[str, list[str]]:
    return {head: [row.strip() for row in rows] for head, *rows in (part.splitlines() for part in text.split("\n\n")[1:])}


def test_changed_is_what_differs_from_the_defaults_by_who_says_so(site: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = shown(capsys, "--site", site, "--node", "gpu2", "--changed")
    assert told.startswith("gpu2: profile hgx-h100, generation 7; what differs from the defaults:\n")
    said = paragraphs(told)
    assert list(said) == ["profile hgx-h100", "fabric infiniband", site, f"{site} classes.h100", f"{site} nodes.gpu2"]
    assert "checks.gpu_count.expected = 8" in said["profile hgx-h100"]
    assert "checks.ecc.required = true" not in told, "the profile says it, and it is the default"
    assert said[site] == ["agent.interval_seconds = 10.0"]
    assert said[f"{site} classes.h100"] == ['checks.xid.services.94 = "drain_now"', "settings.compute_mode.managed = true"]
    assert said[f"{site} nodes.gpu2"] == ['checks.pcie_link.mode = "enforce"']


def test_the_same_of_a_document_that_came_from_elsewhere(site: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "node.json"
    path.write_text(shown(capsys, "--site", site, "--node", "gpu2", "--json"))
    said = paragraphs(shown(capsys, str(path), "--changed"))
    assert list(said) == ["profile hgx-h100", "the document"]
    assert 'checks.pcie_link.mode = "enforce"' in said["the document"]
    assert "settings.compute_mode.managed = true" in said["the document"]
    assert "  the document\n" in shown(capsys, str(path), "--origin")


def test_json_of_what_differs_names_the_origin_of_each_key(site: str, capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads(shown(capsys, "--site", site, "--node", "gpu2", "--changed", "--json"))
    assert data["document"]["checks"]["pcie_link"] == {"mode": "enforce", "gpu_width": 16, "gpu_gen": 5}
    assert data["origins"]["checks.pcie_link.mode"] == f"{site} nodes.gpu2"
    assert data["origins"]["checks.pcie_link.gpu_gen"] == "profile hgx-h100"
    assert "clock" not in data["document"]["checks"]


def test_a_value_that_a_declared_setting_puts_on_a_check_names_the_setting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "site.toml"
    path.write_text(SITE + "[nodes.gpu1.settings.ecc_mode]\nenabled = true\n")
    said = paragraphs(shown(capsys, "--site", str(path), "--node", "gpu1", "--changed"))
    assert said["the declared setting ecc_mode"] == ["checks.ecc.judge_mode = false"]


def test_a_document_of_nothing_but_defaults(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "node.json"
    path.write_bytes(config.encode_document(config.profile_document("n1")))
    assert shown(capsys, str(path), "--changed").splitlines()[1:] == ["  nothing"]


@pytest.mark.parametrize("options", [(), ("--origin",), ("--changed",)])
def test_no_python_is_printed(site: str, options: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    told = shown(capsys, "--site", site, "--node", "gpu2", *options)
    assert not [line for line in told.splitlines() if PYTHON.search(re.sub(r'"[^"]*"', '""', line))]
    assert main(["config", "profiles", "hgx-h100"]) == 0
    values = [line for line in capsys.readouterr().out.splitlines() if " = " in line and not line.startswith("      ")]
    assert values and not [line for line in values if PYTHON.search(line)]


VALUES = st.recursive(
    st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="\x7f"), max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab.-_ ", max_size=4), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(VALUES)
def test_a_value_is_written_as_toml_reads_it(value: Any) -> None:
    assert tomllib.loads(f"x = {value_text(value)}")["x"] == value
    if isinstance(value, list):
        assert tomllib.loads("x = " + "\n".join(value_lines(value)))["x"] == value


def test_what_toml_cannot_write() -> None:
    assert value_text(None) == UNSET
    assert value_text(("a", None)) == '["a", unset]'
    with pytest.raises((ValueError, SyntaxError)):
        ast.literal_eval(value_text(True))
