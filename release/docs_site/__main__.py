"""Builds the site into dist/docs-site/VERSION, and the list of the versions that lie there: make docs-site

Each release has a folder of its own, so that a site may keep the pages of the release that its nodes have. Nothing is fetched.
A dead link, a heading that is not there, or a page without a place in the navigation fails the build.
"""

from __future__ import annotations

import html
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from fairlead import __version__
from release.docs_site.staging import DeadLink, Staging

PROJECT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
VERSIONS = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">
<title>fairlead: documentation by release</title></head>
<body><h1>fairlead: documentation by release</h1><ul>
{links}
</ul></body></html>
"""


def version_key(name: str) -> tuple[tuple[int, str], ...]:
    """Return what versions are ordered by: 0.10 comes after 0.9."""
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"[.+-]", name))


def versions_page(folder: Path) -> str:
    """Return the page that lists the releases in a folder, the newest first."""
    names = sorted((p.parent.name for p in folder.glob("*/index.html")), key=version_key, reverse=True)
    return VERSIONS.format(links="\n".join(f'<li><a href="{html.escape(n)}/index.html">{html.escape(n)}</a></li>' for n in names))


def build(folder: Path, project: Path = PROJECT, version: str = __version__) -> Path:
    """Build the site into a folder of this version, and return that folder. Raises DeadLink, and CalledProcessError where Sphinx
    has found something."""
    site = folder / version
    with tempfile.TemporaryDirectory(prefix="fairlead-docs-") as work:
        Staging(project, Path(work) / "pages", version).write()
        words = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "-c", str(HERE), "-d", f"{work}/state"]
        words += ["-D", f"version={version}", "-D", f"release={version}", "-D", f"html_title=fairlead {version}"]
        # the same pages give the same bytes: Sphinx takes its dates from here
        env = {**os.environ, "SOURCE_DATE_EPOCH": os.environ.get("SOURCE_DATE_EPOCH", "0"), "PYTHONHASHSEED": "0"}
        subprocess.run([*words, f"{work}/pages", f"{work}/site"], check=True, env=env)
        for rest in (".buildinfo", "objects.inv"):
            (Path(work) / "site" / rest).unlink(missing_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(site, ignore_errors=True)
        shutil.copytree(f"{work}/site", site)
    (folder / "index.html").write_text(versions_page(folder))
    return site


def main() -> int:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else PROJECT / "dist/docs-site"
    try:
        site = build(folder)
    except DeadLink as e:
        print(f"docs-site: {e}", file=sys.stderr)
        return 65
    except subprocess.CalledProcessError:
        print("docs-site: the pages have the faults above", file=sys.stderr)
        return 65
    print(f"docs-site: {site}/index.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())
