"""Pages lead to each other: README to the index, the index to every page, and each link to a file and a heading that are there.

Each rule is a function over a folder, so that a violation can be planted in a folder made for the test.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
INDEX = "docs/README.md"


def prose(text: str) -> str:
    """Return the text without code, where brackets are no links."""
    text = re.sub(r"^( *)```.*?^\1```", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", "", text)


def slugs(text: str) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page. The second heading of a name ends with ``-1``."""
    found: list[str] = []
    text = re.sub(r"^( *)```.*?^\1```", "", text, flags=re.DOTALL | re.MULTILINE)
    for heading in re.findall(r"^#+ +(.+?) *$", text, re.MULTILINE):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        found.append(re.sub(r"[^\w\- ]", "", words).replace(" ", "-"))
    return {slug if (before := found[:at].count(slug)) == 0 else f"{slug}-{before}" for at, slug in enumerate(found)}


def links(page: Path) -> Iterator[tuple[str, Path, str]]:
    """Yield each link of a page to something in the project: as it is written, its file or folder, and its heading or ''."""
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page.read_text())):
        if not re.match(r"[a-z]+:", target):
            path, _, heading = target.partition("#")
            yield target, (page.parent / path).resolve() if path else page.resolve(), heading


def pages(root: Path) -> list[Path]:
    """Return the pages of the documentation. The index is not one of them."""
    return sorted(p for p in (root / "docs").rglob("*") if p.suffix in (".md", ".1") and p != root / INDEX)


def without_a_link(root: Path) -> list[str]:
    """Return the pages of the documentation that the index does not link, and the index where README does not link it. A folder
    may have an index of its own: its README.md, which the index links."""
    linked = {path for _, path, _ in links(root / INDEX)}
    linked |= {path for own in linked if own.name == "README.md" and own.is_file() for _, path, _ in links(own)}
    missing = [str(page.relative_to(root)) for page in pages(root) if page.resolve() not in linked]
    return missing if (root / INDEX).resolve() in {p for _, p, _ in links(root / "README.md")} else [INDEX, *missing]


def unreachable(root: Path, others: list[Path]) -> list[str]:
    """Return those of the other pages and pictures to which no way of links leads from README."""
    reached: set[Path] = set()
    ahead = [(root / "README.md").resolve()]
    while ahead:
        page = ahead.pop()
        if page not in reached and page.is_file():
            reached.add(page)
            ahead += [path for _, path, _ in links(page)] if page.suffix == ".md" else []
    return [str(path.relative_to(root)) for path in others if path.resolve() not in reached]


def dead(page: Path) -> list[str]:
    """Return the links of a page that lead to no file, or to no heading of the file."""
    return [
        target
        for target, path, heading in links(page)
        if not path.exists() or (heading and path.suffix == ".md" and heading not in slugs(path.read_text()))
    ]


@cache
def tracked() -> list[Path]:
    """Return the pages and pictures of the project outside the machine trees."""
    words = ["git", "ls-files", "-z", "-co", "--exclude-standard", "*.md", "docs/images"]
    names = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    return sorted(ROOT / name for name in names if name and not name.startswith("tests/machines/") and (ROOT / name).is_file())


def test_readme_links_the_index_and_the_index_every_page() -> None:
    assert without_a_link(ROOT) == [], f"link these pages in {INDEX}, or {INDEX} in README"


def test_a_way_leads_to_every_page_and_picture() -> None:
    assert unreachable(ROOT, tracked()) == []


@pytest.mark.parametrize("page", [p for p in tracked() if p.suffix == ".md"], ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert dead(page) == []


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A project with two pages and a picture, in which every rule is kept."""
    (tmp_path / "docs/images").mkdir(parents=True)
    (tmp_path / "docs/images/a.svg").write_text("<svg/>")
    (tmp_path / "README.md").write_text("[All pages](docs/README.md)\n")
    (tmp_path / INDEX).write_text("[one](one.md), [its end](one.md#the-end-of-it), [two](two.md)\n")
    (tmp_path / "docs/one.md").write_text("# One\n\n![a](images/a.svg)\n\n## The `end` of it\n\n[above](#one) `[x](y)`\n")
    (tmp_path / "docs/two.md").write_text("# Two\n\n```\n[no link](nowhere)\n```\n\nSee [a site](https://example.org/x).\n")
    return tmp_path


def test_a_project_that_keeps_the_rules_has_no_violation(small: Path) -> None:
    assert without_a_link(small) == []
    assert unreachable(small, [*pages(small), small / "docs/images/a.svg"]) == []
    assert [dead(page) for page in (small / "README.md", small / INDEX, *pages(small))] == [[], [], [], []]


def test_a_planted_page_without_a_link_is_found(small: Path) -> None:
    (small / "docs/three.md").write_text("# Three\n")
    (small / "docs/two.md").write_text("[three](three.md)\n")
    assert without_a_link(small) == ["docs/three.md"], "another page links it, the index does not"
    (small / "slurm").mkdir()
    (small / "slurm/README.md").write_text("# Hooks\n")
    (small / "docs/images/b.svg").write_text("<svg/>")
    others = [small / name for name in ("docs/three.md", "slurm/README.md", "docs/images/b.svg")]
    assert unreachable(small, others) == ["slurm/README.md", "docs/images/b.svg"]
    (small / "README.md").write_text("[one](docs/one.md)\n")
    assert without_a_link(small) == [INDEX, "docs/three.md"]


@pytest.mark.parametrize("link", ["[x](gone.md)", "[x](two.md#gone)", "[x](#two)", "![x](images/gone.svg)", "[x](../gone/)"])
def test_a_planted_dead_link_is_found(small: Path, link: str) -> None:
    page = small / "docs/one.md"
    page.write_text(page.read_text() + link)
    assert dead(page) == [re.sub(r"^!?\[x\]\((.*)\)$", r"\1", link)]


def test_headings_of_one_name_have_anchors_of_their_own() -> None:
    text = "# site.toml\n## How\n## How\n```\n# no heading\n```\n## A, b: [c d](e.md)\n"
    assert slugs(text) == {"sitetoml", "how", "how-1", "a-b-c-d"}
