"""fairlead docs: every page that a message names is in the package, and is found as the message names it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from fairlead.assets import DOC_KINDS, doc_pages
from fairlead.cli import main

ROOT = Path(__file__).resolve().parents[2]
NAMED = re.compile(rf"docs/(?:{'|'.join(DOC_KINDS)})/[A-Za-z0-9/-]+\.md")


def named() -> list[str]:
    files = [p for folder in ("agent", "slurm", "templates", "playbooks") for p in (ROOT / folder).rglob("*") if p.is_file()]
    texts = (p.read_text(encoding="utf-8", errors="replace") for p in files if p.suffix not in {".pyc", ".so"})
    return sorted({name for text in texts for name in NAMED.findall(text)})


def test_every_page_that_the_programs_name_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(named()) > 10
    for name in named():
        assert main(["docs", name]) == 0, name
        assert capsys.readouterr().out == (ROOT / name).read_text(encoding="utf-8")


def test_a_short_name_is_enough_where_it_is_the_only_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docs", "driver"]) == 0
    assert capsys.readouterr().out == (ROOT / "docs/how-to/driver.md").read_text(encoding="utf-8")
    assert main(["docs", "slow-nodes"]) == 66
    said = capsys.readouterr().err
    assert "2 pages have this name" in said and "how-to/slow-nodes, reference/slow-nodes" in said


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "how-to", "x" * 10_000, "\x1b[31m", "decisions/0001"])
def test_what_is_no_page_is_one_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docs", name]) == 66
    said = capsys.readouterr()
    assert not said.out and "\x1b" not in said.err and len(said.err) < 400 and "no such page" in said.err


def test_the_list_and_the_search(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docs", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [row["page"] for row in listed] == list(doc_pages()) and all(row["line"] for row in listed)
    assert main(["docs", "--search", "VERSIONLOCK"]) == 0
    assert "how-to/driver" in capsys.readouterr().out
    assert main(["docs", "--search", "no page says this, does it"]) == 66
    assert main(["docs", "driver", "--json"]) == 64
