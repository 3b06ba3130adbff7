"""Generated documentation is current; decisions are numbered once; the README stays short."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from fairlead.cli import COMMANDS
from tests import docs_write, rooms
from tests.measure import fabric_simulation

ROOT = docs_write.ROOT


#: It takes a minute to make on a busy machine; `make test` compares what ROWS says.
FABRIC = docs_write.FABRIC
ROWS = ("3 nodes slow by 15 %, topology unknown", "one uplink at 0.80, topology unknown")
PATHS = [pytest.param(path, marks=pytest.mark.slow if path == FABRIC else ()) for path in docs_write.GENERATED]


@pytest.mark.parametrize("path", PATHS, ids=lambda p: str(p.relative_to(ROOT)))
def test_generated_files_are_current(path: Path) -> None:
    write = docs_write.fabric_page if path == FABRIC else docs_write.GENERATED[path]
    there, expected = (docs_write.without_counts(path, text) for text in (path.read_text(), write()))
    assert there == expected, f"{path.relative_to(ROOT)} is stale: run `make docs`"


def test_the_text_and_some_rows_of_the_page_of_fabrics_are_current() -> None:
    cases = [case for case in fabric_simulation.CASES if case.words in ROWS]
    there = FABRIC.read_text().splitlines()
    left_out = {f"| {case.words} |" for case in fabric_simulation.CASES if case not in cases}
    kept = [line for line in there if not line.startswith(tuple(left_out))]
    assert kept == docs_write.fabric_page(cases).splitlines(), f"{FABRIC.relative_to(ROOT)} is stale: run `make docs`"
    assert len(there) - len(kept) == len(left_out), "a row of the page is of no case, or a case has no row"


def test_the_page_of_fabrics_is_made_again_only_if_its_code_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    mark = docs_write.fabric_mark()
    monkeypatch.setattr(docs_write, "fabric_page", lambda: "made again")
    assert docs_write.fabric_page_if_changed() == "made again", "another text of the function is a change too"
    monkeypatch.setattr(docs_write, "fabric_mark", lambda: mark)
    assert docs_write.fabric_page_if_changed() == FABRIC.read_text()


def test_the_page_of_rooms_has_whole_sentences() -> None:
    cut = {room: sentence for room, sentence in rooms.room_sentences().items() if sentence[-1] != "." and room != "__main__"}
    assert not cut


def test_decisions_are_numbered_once() -> None:
    numbers = Counter(re.match(r"\d{4}", p.name)[0] for p in (ROOT / "docs/decisions").glob("[0-9]*.md"))  # type: ignore[index]
    assert numbers
    assert max(numbers.values()) == 1
    assert sorted(map(int, numbers)) == list(range(1, len(numbers) + 1))


def test_readme_is_short_and_its_links_lead_somewhere() -> None:
    text = (ROOT / "README.md").read_text()
    written = re.sub(r"<!-- generated: .*?<!-- end: ", "", text, flags=re.DOTALL)  # the lists of checks and settings may grow
    assert len(written.splitlines()) < 130
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (ROOT / target).exists(), target


@pytest.mark.parametrize("path", sorted((ROOT / "docs/decisions").glob("[0-9]*.md")), ids=lambda p: p.name[:4])
def test_a_decision_has_a_date_and_a_status(path: Path) -> None:
    assert docs_write.DECISION.match(path.read_text()), "its third line: 'Date: YYYY-MM-DD. Status: accepted.'"


def test_alert_rules_are_valid() -> None:
    promtool = shutil.which("promtool")
    assert promtool, "promtool is missing: tests/lab/apt.sh installs it"
    subprocess.run(
        [promtool, "check", "rules", ROOT / "templates/usr/share/fairlead/alerts.yml"], check=True, capture_output=True
    )


def manual(page: Path) -> str:
    """Return a page of the manual as `man` shows it; fail where groff warns of something."""
    groff = shutil.which("groff")
    assert groff, "groff is missing: tests/lab/apt.sh installs it"
    done = subprocess.run([groff, "-man", "-Tutf8", "-P-cbou", "-ww", page], capture_output=True, text=True, check=True)
    assert not done.stderr
    return done.stdout.replace("\u2010", "-")


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_a_page_of_the_manual(name: str) -> None:
    said = manual(ROOT / f"docs/man/fairlead-{name}.1")
    assert "EXIT STATUS" in said and f"fairlead-{name} - " in " ".join(said.split())
    assert "SUPPRESS" not in said and "%(" not in said


def test_the_manual_lists_every_command() -> None:
    said = manual(ROOT / "docs/man/fairlead.1")
    assert "EXIT STATUS" in said
    assert not [name for name in COMMANDS if f"fairlead {name}" not in said]


def test_tests_that_a_page_names_are_there() -> None:
    """``tests/FILE.py::NAME``, and ``::NAME`` of the file named last."""
    missing = []
    for page in sorted((ROOT / "docs").rglob("*.md")):
        path = ""
        for file, name in re.findall(r"`(tests/\S+?\.py)?::(\w+)`", page.read_text()):
            path = file or path
            if not re.search(rf"^(async )?def {name}\(", (ROOT / path).read_text(), re.MULTILINE):
                missing.append(f"{page.name}: {path}::{name}")
    assert not missing


#: Files of an example that the reader is to make.
TO_MAKE = {"agent/fairlead/checks/spool_room.py", "tests/checks/test_spool_room.py", "agent/fairlead/settings/ksm.py",
           "tests/settings/test_ksm.py"}  # fmt: skip


def test_files_of_the_project_that_a_page_names_are_there() -> None:
    """``FOLDER/FILE.py`` and the like, from the root of the project or of the package."""
    missing = []
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for name in re.findall(r"`([a-z][\w./-]*/[\w.-]+\.(?:py|sh|lua|c|toml|md|yml))`", page.read_text()):
            roots = (ROOT, ROOT / "agent/fairlead", page.parent)
            if name not in TO_MAKE and not any((root / name).exists() for root in roots):
                missing.append(f"{page.relative_to(ROOT)}: {name}")
    assert not missing
