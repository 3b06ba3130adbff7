"""The pages of `fairlead fleet --html` in a real browser, judged by axe-core in both colour schemes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

pytest.importorskip("ClusterShell")

from fairlead.cli.node_pages import PageFolder
from tests.cli.fleet_of_many import details, fleet

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed: apt-get install chromium"),
    pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed, which brings axe-core: apt-get install npm"),
]
JUDGE = (
    "axe.run().then(r => { document.body.innerHTML = '<pre id=out></pre>'; document.getElementById('out').textContent ="
    " JSON.stringify(r.violations.map(v => [v.impact, v.id, v.nodes[0].html])) })"
)


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("axe")
    subprocess.run(["npm", "pack", "axe-core@4"], cwd=folder, check=True, capture_output=True, timeout=120)
    with tarfile.open(next(folder.glob("axe-core-*.tgz"))) as archive:
        file = archive.extractfile("package/axe.min.js")
        assert file is not None
        return file.read().decode()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("page", ["index.html", "node/gpu0017.html"])
def test_axe_finds_nothing_serious(tmp_path: Path, axe: str, page: str, scheme: str) -> None:
    PageFolder(str(tmp_path)).write(fleet(110), {"gpu0017": details()}, site="site")
    style = (
        (tmp_path / "style.css")
        .read_text()
        .replace("@media (prefers-color-scheme:dark)", f"@media {'all' if scheme == 'dark' else 'print'}")
    )
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", (tmp_path / page).read_text())
    text = re.sub(r'<link rel="stylesheet"[^>]*>', lambda _: f"<style>{style}</style>", text)
    (tmp_path / page).write_text(text.replace("</body>", f"<script>{axe}</script><script>{JUDGE}</script></body>"))
    words = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=60000", "--dump-dom"]
    done = subprocess.run([*words, f"file://{tmp_path / page}"], capture_output=True, text=True, timeout=240, check=True)
    said = re.search(r'<pre id="out">(.*?)</pre>', done.stdout, re.DOTALL)
    assert said, done.stdout[-500:]
    assert [
        v
        for v in json.loads(said[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
        if v[0] in ("serious", "critical")
    ] == []
