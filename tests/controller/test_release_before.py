"""The store of `fairlead collect`: filled by the release before, upgraded by this one, and met by the older one once more."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

from fairlead.controller.job_store import FILE, JobStore
from tests.release_before import BEFORE, name_before, release_before

FILL = """
import sys
from fairlead.controller.job_store import JobStore
from tests.jobs.job_reports import record_of, run_of
with JobStore(sys.argv[1], write=True) as store:
    run = run_of(2)
    store.add_runs([run], 100)
    store.put_records(run, [record_of(node) for node in run.nodes], [])
"""


def by_the_release_before(before: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {"PYTHONPATH": f"{before / 'agent'}:{before}", "PATH": "/usr/bin:/bin"}
    words = (sys.executable, "-P", *words)
    return subprocess.run(words, capture_output=True, text=True, check=False, env=env, timeout=60, cwd=before)


def test_a_store_is_upgraded_and_refused_after_a_rollback(tmp_path: Path) -> None:
    """The older release names the newer store in one line, and changes nothing in it. The copy that was made before the upgrade
    is as good as ever. (That release writes the copy of its only store to a file.)"""
    store, restored, before = tmp_path / "store", tmp_path / "restored", tmp_path / "before"
    for folder in (store, restored, before):
        folder.mkdir()
    release_before(before)
    filled = by_the_release_before(before, "-c", FILL, str(store))
    assert filled.returncode == 0, filled.stderr
    saved = by_the_release_before(before, "-m", "fairlead", "collect", "--store", str(store), "--backup", str(restored / FILE))
    assert saved.returncode == 0, saved.stderr
    with JobStore(str(store), write=True) as now:
        (found,) = now.runs_of("17")
        assert len(now.records(found.run)) == 2 and (found.run.qos, found.run.kind) == ("", "")
    told = hashlib.sha256((store / FILE).read_bytes()).digest()
    refused = by_the_release_before(before, "-m", "fairlead", "collect", "--store", str(store))
    assert refused.returncode == 65 and "was written by a newer fairlead (schema 2, and this one knows 1)" in refused.stderr
    assert "Traceback" not in refused.stderr and len(refused.stderr.splitlines()) <= 2, refused.stderr
    assert hashlib.sha256((store / FILE).read_bytes()).digest() == told
    shown = by_the_release_before(before, "-m", "fairlead", "job", "17", "--store", str(restored))
    assert shown.returncode == 0 and "17" in shown.stdout, shown.stderr


def test_the_release_before_is_the_newest_tag_of_an_earlier_commit(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        own = ("git", "-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "init.defaultBranch=main")
        subprocess.run([*own, *words], cwd=tmp_path, check=True, capture_output=True)

    git("init", "-q")
    assert name_before(tmp_path) == BEFORE, "no tag, and no commit"
    for tags in (("v0.9.0",), ("v0.10.0", "nightly"), ("v0.11.0",)):
        git("commit", "-q", "--allow-empty", "-m", "x")
        for tag in tags:
            git("tag", tag)
    assert name_before(tmp_path) == "v0.10.0", "the tag of this commit is not before it"
