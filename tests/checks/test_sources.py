"""Absence is never health: whatever file of a tree is taken away, something says so.

Every file that gathering opens is taken away once, one of each kind (names and addresses aside), and the node is judged again
by its profile with everything declared. Either there is a finding that was not there, or the file's kind is in ``UNJUDGED``:
facts that no check judges, each with its reason. A kind in that list that does cause a finding fails too.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead import checks, config
from fairlead.cli.look import _past
from fairlead.cli.recorded import recorded_nvml
from fairlead.config import Document
from fairlead.daemon.judge import judge, reads, wanted
from fairlead.host.gather import gather
from fairlead.host.root import Root
from fairlead.model.check import Past
from fairlead.model.device import readable_fields
from fairlead.model.facts import Missing, Node
from fairlead.model.finding import Finding, Level

TREES = Path(__file__).resolve().parents[1] / "machines"
ADDRESS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
#: Kinds of files (as ``kind`` names them) that may go without a word, and why.
UNJUDGED: dict[str, str] = {}


def kind(path: str) -> str:
    """A path with its numbers and addresses taken out, and without the bridges above a device."""
    path = re.sub(r"(?:/pci[0-9a-f]{4}:[0-9a-f]{2})(?:/A)*", "/pci", ADDRESS.sub("A", path))
    return re.sub(r"\d+", "N", re.sub(r"(enp|ibp)\w+", r"\1", path))


class Watched(Root):
    """A root that notes what was there when it was read, by its real path in the tree."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.seen: dict[str, None] = {}

    def read_bytes(self, path: str, limit: int = 4 << 20, *, head: bool = False) -> bytes | Missing | None:
        data = super().read_bytes(path, limit, head=head)
        if isinstance(data, bytes):
            self.seen[os.path.realpath(self.join(path))] = None
        return data


def declared(tree: Path) -> Document:
    """The profile of a tree, with everything declared that only a site can."""
    profile = tree.name.partition(".")[0]
    data = config.to_data(config.profile_document("n1", profile))
    checks_of = data["checks"]
    checks_of["fs_space"]["paths"] = ["/"]
    checks_of["hung_mounts"]["paths"] = ["/home"]
    checks_of["units"]["wanted"] = ["slurmd.service"]
    checks_of["cpu_memory"] |= {"cpus_expected": 2, "smt": False}
    checks_of["disks"]["nvme_expected"] = 2
    checks_of["kernel_log"]["patterns"] = [{"name": "lockup", "regex": "watchdog: BUG: soft lockup"}]
    return config.decode_document(config.encode_document(config.resolve_layers("n1", [("test", {k: v for k, v in data.items() if k in ("checks", "settings", "unsupported")})], profile=profile)[0]), "test")  # fmt: skip


def look(tree: Path, document: Document, root: Root, yesterday: Node | None) -> tuple[Node, set[tuple[str, str, str]]]:
    """The node, and what is found of it: with the history that an agent has who could read all of it yesterday."""
    node = gather(
        root, recorded_nvml(str(tree)), reads=reads(document), unsupported=document.unsupported, wanted=wanted(document)
    )
    seen = _past(str(tree / "dev/kmsg"), "", live=False)
    past = Past(available=True, records=seen.records, log=seen.log, readable=readable_fields(yesterday or node))
    return node, {_said(f) for f in judge(document, node, past) if f.level is not Level.OK}


def _said(finding: Finding) -> tuple[str, str, str]:
    return finding.check, finding.device, finding.summary


def sources(tree: Path, root: Watched) -> Iterator[Path]:
    """One file of each kind that was read, and those that are read beside the gathering."""
    chosen: dict[str, str] = {}
    for path in root.seen:
        chosen.setdefault(kind(path.removeprefix(str(tree))), path)
    yield from (Path(p) for p in chosen.values())
    yield from (tree / name for name in ("nvml.json", "host.json", "dev/kmsg"))


def silent(name: str, folder: Path) -> tuple[set[str], set[str]]:
    """The kinds of a tree whose absence nothing says, and all kinds."""
    tree = Path(shutil.copytree(TREES / name, folder / name, symlinks=True)).resolve()
    document = declared(tree)
    root = Watched(str(tree))
    before, baseline = look(tree, document, root, None)
    quiet: set[str] = set()
    kinds: set[str] = set()
    for path in sources(tree, root):
        kept = path.read_bytes()
        path.unlink()
        try:
            _, found = look(tree, document, Root(str(tree)), before)
        finally:
            path.write_bytes(kept)
        name_of = kind(str(path).removeprefix(str(tree)))
        kinds.add(name_of)
        if not found - baseline:
            quiet.add(name_of)
    return quiet, kinds


@pytest.mark.parametrize("name", ["hgx-h100.tuned"])
def test_no_source_goes_in_silence(name: str, tmp_path: Path) -> None:
    quiet, kinds = silent(name, tmp_path)
    assert len(kinds) > 40
    assert quiet - UNJUDGED.keys() == set()
    assert {k for k in UNJUDGED if k in kinds} <= quiet, "what is judged is not in the list"
    assert checks.load()
