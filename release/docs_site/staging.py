"""Lays out the pages of the site: each page of docs/, the manual as Markdown, and the pages outside docs/ that they link.

docs/README.md is the first page, and its sections are the navigation: a section's pages are those that it links, in its order. A
page stands where it is linked first. The first page has the support matrix itself, and the lists of decisions and of the manual
are pages of their own.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from release.docs_site.manual_page import as_markdown

INDEX, MATRIX = "docs/README.md", "docs/reference/support.md"
#: Sections of docs/README.md that become pages, by the heading, with the page and the mark that its list begins with.
LISTS = {"Decisions": "decisions/index.md", "The manual": "man/index.md"}
_CODE_OR_LINK = re.compile(r"^( *)```.*?^\1```|`[^`\n]*`|\]\(([^)\s]+)\)", re.DOTALL | re.MULTILINE)
_SECTION = re.compile(r"^## +(.+?) *$", re.MULTILINE)


class DeadLink(Exception):
    """A page links something that is not there."""


def site_path(path: Path) -> str:
    """Return where a file of the project lies on the site. ``path``: from the root of the project."""
    name = str(path)
    if name.startswith("docs/"):
        inside = name.removeprefix("docs/")
        return re.sub(r"(^|/)README\.md$", r"\1index.md", re.sub(r"^(man/.*)\.1$", r"\1.md", inside))
    return f"project/{name}" if path.suffix == ".md" else f"files/{name}"


def project_links(text: str) -> Iterator[str]:
    """Yield the links of a page to something in the project, without those in code."""
    for found in _CODE_OR_LINK.finditer(text):
        if found[2] and not re.match(r"[a-z]+:", found[2]):
            yield found[2]


def own_title(text: str) -> str:
    """Return a page without the word `Reference:` in its title, which the navigation says already."""
    return re.sub(r"\A# Reference: (.)", lambda found: f"# {found[1].upper()}", text)


class Staging:
    """Writes the pages into a folder. ``pages``: the place of each page that was written."""

    def __init__(self, project: Path, folder: Path, version: str) -> None:
        self.project, self.folder, self.version = project.resolve(), folder, version
        self.pages: list[str] = []
        self._ahead: list[Path] = []

    def write(self) -> list[tuple[str, list[str]]]:
        """Write all pages, and return the navigation: the title of each section with its pages. Raises DeadLink."""
        shutil.rmtree(self.folder, ignore_errors=True)
        done = {self.project / INDEX}
        self._ahead = [*sorted((self.project / "docs").rglob("*.md")), *sorted((self.project / "docs/man").glob("*.1"))]
        navigation = self._first_page()
        while self._ahead:
            path = self._ahead.pop(0)
            if path not in done:
                done.add(path)
                self._page(path)
        return navigation

    def _page(self, path: Path) -> None:
        at = path.relative_to(self.project)
        if path.suffix == ".1":
            self._put(site_path(at), as_markdown(path.read_text()))
        elif path.suffix == ".md":
            children = [site_path(p.relative_to(self.project)) for p in self._children(path)]
            text = self._relinked(own_title(path.read_text()), path, site_path(at))
            self._put(site_path(at), text + toctree("", children))
        else:
            (self.folder / site_path(at)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, self.folder / site_path(at))

    def _children(self, path: Path) -> list[Path]:
        """Return the pages in the folder of an index inside docs/."""
        if path.name != "README.md" or not path.is_relative_to(self.project / "docs"):
            return []
        return sorted(p for p in path.parent.glob("*.md") if p != path)

    def _put(self, name: str, text: str) -> None:
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_text(text)
        self.pages.append(name)

    def _relinked(self, text: str, page: Path, name: str) -> str:
        """Return the text of a page with each link as it is on the site, where the page is at ``name``."""

        def on_site(found: re.Match[str]) -> str:
            target = found[2]
            if not target or re.match(r"[a-z]+:", target):
                return found[0]
            to, sign, heading = target.partition("#")
            path = Path(os.path.normpath(page.parent / to)) if to else page
            if path == self.project / "docs/decisions":
                return f"]({os.path.relpath(LISTS['Decisions'], os.path.dirname(name) or '.')})"
            path = path / "README.md" if path.is_dir() else path
            if not path.is_file() or not path.is_relative_to(self.project):
                raise DeadLink(f"{page.relative_to(self.project)}: {target}: there is no such file")
            self._ahead.append(path)
            there = LISTS["Decisions"] if path == self.project / INDEX and heading == "decisions" else ""
            there = there or site_path(path.relative_to(self.project))
            return f"]({os.path.relpath(there, os.path.dirname(name) or '.')}{sign}{heading})"

        return _CODE_OR_LINK.sub(on_site, text)

    def _first_page(self) -> list[tuple[str, list[str]]]:
        index = self.project / INDEX
        head, *parts = _SECTION.split(index.read_text())
        sections = list(zip(parts[::2], parts[1::2], strict=True))
        out, navigation, placed = [head], [], {"index.md"}
        for heading, text in sections:
            linked = (
                site_path((index.parent / t.partition("#")[0]).resolve().relative_to(self.project)) for t in project_links(text)
            )
            own = [name for name in dict.fromkeys(linked) if name.endswith(".md") and name not in placed]
            own = [name for name in own if heading in LISTS or not name.startswith("man/")]
            placed |= set(own)
            if heading in LISTS:
                name, said = LISTS[heading], text.strip().split("\n\n")[0]
                written = self._relinked(text, index, name)
                self._put(name, f"# {heading}\n{written}\n" + toctree("", own))
                navigation.append((heading, [name]))
                said = self._relinked(said, index, "index.md").rstrip(":.")
                out.append(f"## {heading}\n\n{said}: [{heading.lower()}]({name}).\n")
            else:
                navigation.append((heading, own))
                out.append(f"## {heading}\n{self._relinked(text, index, 'index.md')}")
                out += [self._matrix()] if heading == sections[0][0] else []
        out.append(f'<p>These are the pages of fairlead {self.version}. <a href="../index.html">Other releases</a></p>\n')
        out += [toctree(heading, pages) for heading, pages in navigation]
        self._put("index.md", "\n".join(out))
        return navigation

    def _matrix(self) -> str:
        """Return the support matrix with what its words mean, as it stands on its own page."""
        page = self.project / MATRIX
        return self._relinked(page.read_text().partition("\n")[2].strip(), page, "index.md") + "\n"


def toctree(caption: str, pages: list[str]) -> str:
    """Return the part of a page that puts pages below it in the navigation."""
    if not pages:
        return ""
    lines = [f"/{page.removesuffix('.md')}" for page in pages]
    return "\n".join(["", "```{toctree}", ":hidden:", *([f":caption: {caption}"] if caption else []), "", *lines, "```", ""])
