"""The documentation as a site: every page has a place, no link is dead, nothing is fetched from elsewhere."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple

import pytest

from fairlead import __version__
from release.docs_site.__main__ import build, versions_page
from release.docs_site.manual_page import as_markdown
from release.docs_site.staging import DeadLink, Staging, site_path

PROJECT = Path(__file__).resolve().parents[2]
#: Attributes by which a browser fetches something while it shows a page. `href` of an `a` is a link, which it does not fetch.
FETCHES = {
    ("script", "src"),
    ("link", "href"),
    ("img", "src"),
    ("img", "srcset"),
    ("iframe", "src"),
    ("source", "src"),
    ("object", "data"),
}


class Page(HTMLParser):
    """What a page of HTML fetches, links, and can be linked at."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.linked: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if (tag, name) in FETCHES:
                self.fetched.append(value or "")
            elif (tag, name) == ("a", "href"):
                self.linked.append(value or "")
            elif name == "id":
                self.anchors.add(value or "")


class Site(NamedTuple):
    folder: Path
    pages: dict[str, Page]


def read(folder: Path) -> Site:
    return Site(folder, {str(path.relative_to(folder)): Page(path.read_text()) for path in sorted(folder.rglob("*.html"))})


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """The site of this project, built as strictly as `make docs-site` builds it."""
    return read(build(tmp_path_factory.mktemp("site") / "docs-site").parent)


def dead(site: Site) -> Iterator[str]:
    for name, page in site.pages.items():
        for target in page.linked:
            if re.match(r"[a-z]+:", target) or target == "#":
                continue
            to, _, anchor = target.partition("#")
            path = (site.folder / name).parent / to if to else site.folder / name
            there = str(path.resolve().relative_to(site.folder.resolve()))
            if not path.exists() or (anchor and there in site.pages and anchor not in site.pages[there].anchors):
                yield f"{name}: {target}"


def foreign(site: Site) -> Iterator[str]:
    """Yield what a browser would fetch from elsewhere."""
    for name, page in site.pages.items():
        yield from (f"{name}: {what}" for what in page.fetched if re.match(r"(?!data:)([a-z]+:|//)", what))
    for path in site.folder.rglob("*.css"):
        found = re.findall(r"""(?:url\(|@import)\s*["']?([^"')\s]+)""", path.read_text())
        yield from (f"{path.name}: {what}" for what in found if re.match(r"(?!data:)([a-z]+:|//)", what))


@pytest.mark.heavy
@pytest.mark.timeout(600)
def test_every_link_of_the_built_site_is_alive(site: Site) -> None:
    assert len(site.pages) > 200
    assert list(dead(site)) == []


@pytest.mark.heavy
def test_nothing_is_fetched_from_elsewhere(site: Site) -> None:
    assert list(foreign(site)) == []


@pytest.mark.heavy
def test_every_page_of_docs_is_on_the_site_and_in_the_search(site: Site) -> None:
    expected = {site_path(path.relative_to(PROJECT)).removesuffix(".md") for path in (PROJECT / "docs").rglob("*.md")}
    expected |= {f"man/{path.stem}" for path in (PROJECT / "docs/man").glob("*.1")}
    index = json.loads(
        (site.folder / __version__ / "searchindex.js").read_text().removeprefix("Search.setIndex(").removesuffix(")")
    )
    assert expected - set(index["docnames"]) == set()
    assert {f"{__version__}/{name}.html" for name in index["docnames"]} <= site.pages.keys()
    assert len(index["terms"]) > 3000


@pytest.mark.heavy
def test_every_page_shows_the_version_and_the_list_of_versions_has_it(site: Site) -> None:
    for path in (site.folder / __version__).rglob("*.html"):
        assert f"fairlead {__version__}" in path.read_text(), path
    assert f'href="{__version__}/index.html"' in (site.folder / "index.html").read_text()


@pytest.mark.heavy
def test_the_first_page_begins_with_the_matrix_and_the_quickstarts(site: Site) -> None:
    text = (site.folder / __version__ / "index.html").read_text()
    text = text[text.index("<article") :]
    wanted = [
        "NVIDIA driver",
        "not yet",
        "tutorial/one-node.html",
        "tutorial/observe-only.html",
        "tutorial/without-internet.html",
    ]
    at = [text.index(words) for words in [*wanted, "how-to/roll-out.html"]]
    assert at[2:] == sorted(at[2:]) and max(at[:2]) < at[2]


def test_every_page_of_docs_has_one_place_in_the_navigation(tmp_path: Path) -> None:
    staging = Staging(PROJECT, tmp_path / "pages", "1")
    sections = staging.write()
    named = [page for path in (tmp_path / "pages").rglob("*.md") for page in below(path)]
    assert sorted(named) == sorted(set(named)), "a page has two places"
    assert {page.removesuffix(".md") for _, pages in sections for page in pages} <= set(named)
    assert {str(Path(p).with_suffix("")) for p in staging.pages} - set(named) == {"index"}, "link these pages in docs/README.md"


def below(path: Path) -> list[str]:
    """Return the pages that a page puts below itself."""
    return [
        line.lstrip("/")
        for tree in re.findall(r"```\{toctree\}\n(.*?)```", path.read_text(), re.DOTALL)
        for line in tree.split("\n")
        if line.startswith("/")
    ]


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A project in which every rule is kept."""
    for name, text in {
        "docs/README.md": "# All\n\n## First\n\n[matrix](reference/support.md)\n\n## Rest\n\n"
        "[two](two.md#the-end-of-it) [c](../C.md) [code](../code/README.md)\n",
        "docs/reference/support.md": "# Reference: matrix\n\n| a | b |\n|---|---|\n| `x` | [two](../two.md) |\n",
        "docs/two.md": "# Two\n\n1. a\n\n   ```\n   [no link](nowhere)\n   ```\n\n"
        '## The `end` of it\n\nWith --json it prints "x"...\n',
        "C.md": "# C\n\n[a file](code/a.py), [two](docs/two.md), [a folder](code/)\n",
        "code/a.py": "pass\n",
        "code/README.md": "# Code\n\n[back](../C.md)\n",
    }.items():
        (tmp_path / "p" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "p" / name).write_text(text)
    return tmp_path / "p"


def test_a_small_project_gives_the_same_bytes_twice(small: Path, tmp_path: Path) -> None:
    built = [build(tmp_path / name, small, "1.2") for name in ("a", "b")]
    texts = [{path.relative_to(at): path.read_bytes() for path in at.rglob("*") if path.is_file()} for at in built]
    assert texts[0] == texts[1]
    site = read(tmp_path / "a")
    assert list(dead(site)) == [] and list(foreign(site)) == []
    said = (built[0] / "two.html").read_text()
    assert "[no link](nowhere)" in said
    assert "With --json it prints &quot;x&quot;..." in said, "no sign becomes another one"


@pytest.mark.parametrize("planted", ["[x](gone.md)", "[x](../gone.py)", "[x](/etc/passwd)", "![x](gone.svg)"])
def test_a_link_to_a_file_that_is_not_there_fails(small: Path, tmp_path: Path, planted: str) -> None:
    (small / "docs/two.md").write_text(f"# Two\n\n## The end of it\n\n{planted}\n")
    with pytest.raises(DeadLink, match=r"docs/two\.md"):
        build(tmp_path / "out", small, "1.2")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "planted",
    [
        ("docs/two.md", "# Two\n\n## The end of it\n\n[x](#gone)\n", "gone"),
        ("docs/two.md", "# Two\n", "the-end-of-it"),
        ("docs/three.md", "# Three\n", "three.md"),
    ],
)
def test_a_dead_anchor_and_a_page_without_a_place_fail(
    small: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], planted: tuple[str, str, str]
) -> None:
    name, text, said = planted
    (small / name).write_text(text)
    with pytest.raises(subprocess.CalledProcessError):
        build(tmp_path / "out", small, "1.2")
    assert said in capfd.readouterr().err


def test_a_failed_build_leaves_the_site_as_it_was(small: Path, tmp_path: Path) -> None:
    site = build(tmp_path / "out", small, "1.2")
    before = (site / "two.html").read_bytes()
    (small / "docs/two.md").write_text("# Two\n")
    with pytest.raises(subprocess.CalledProcessError):
        build(tmp_path / "out", small, "1.2")
    assert (site / "two.html").read_bytes() == before


def test_the_newest_version_is_listed_first(tmp_path: Path) -> None:
    for name in ("0.9.0", "0.10.0", "0.10.0rc1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "index.html").touch()
    (tmp_path / "notes").mkdir()
    assert re.findall(r'href="([^/]+)/', versions_page(tmp_path)) == ["0.10.0", "0.10.0rc1", "0.9.0"]


def test_a_page_of_the_manual_as_markdown() -> None:
    roff = r"""
.TH FAIRLEAD\-X 1 "" "" ""
.SH NAME
fairlead\-x \- do *it*
.SH OPTIONS
.TP
\fB\-a\fR \fIB\fR
see \(gax_y\(ga
.nf
\&.x
.fi
"""
    said = as_markdown(roff.lstrip())
    assert said.startswith("# fairlead x\n") and "fairlead-x - do \\*it\\*" in said
    assert "- `-a B`  \n  see `x_y`" in said and "```text\n.x\n```" in said
    with pytest.raises(ValueError, match="does not know"):
        as_markdown(".XY z\n")


@pytest.mark.heavy
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed: apt-get install chromium")
def test_the_search_works_in_a_browser_without_network(site: Site) -> None:
    words = [
        "chromium",
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--host-resolver-rules=MAP * ~NOTFOUND",
        "--enable-logging=stderr",
    ]
    words += ["--virtual-time-budget=20000", "--dump-dom", f"file://{site.folder}/{__version__}/search.html?q=drain+budget"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
    assert "explanation/many-nodes-at-once.html" in done.stdout and "pages matching the search query" in done.stdout
    assert "CONSOLE" not in done.stderr
