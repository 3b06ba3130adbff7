"""Configures Sphinx for the site. ``python -m release.docs_site`` says the version and the folder of pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

project = "fairlead"
project_copyright = "The fairlead maintainers, Apache-2.0"
extensions = ["myst_parser"]
# The pages are written for GitHub: anchors are made by its rule. A dead link is a warning, and a warning fails the build.
myst_heading_anchors = 6
nitpicky = True
smartquotes = False  # --json stays --json
suppress_warnings = ["misc.highlighting_failure"]  # a block that Pygments cannot colour is shown without colours
html_theme = "furo"
html_static_path = [str(Path(__file__).parent / "static")]
html_css_files = ["site.css"]
html_js_files = [("from_files.js", {"priority": 900})]
html_use_index = False
html_show_sourcelink = html_copy_source = False
html_show_sphinx = False
html_last_updated_fmt = None
html_title = "fairlead"
highlight_language = "none"
html_theme_options = {"top_of_page_buttons": []}


def setup(app: Sphinx) -> None:
    """Shorten the navigation of each page, before the theme makes it (its priority is 500)."""
    app.connect("html-page-context", _short_navigation, priority=400)


def _short_navigation(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object) -> None:
    """Show the pages below another page only on that page and on those below it: 62 decisions and 50 manual pages would be in the
    way, and would take most of the time of a build."""
    whole = context["toctree"]
    context["toctree"] = lambda **words: whole(**{**words, "collapse": True})
