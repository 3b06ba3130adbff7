"""The pages of `fairlead fleet --html`: each node has its own word, no text becomes markup, folders stay whole."""

from __future__ import annotations

import html
import os
import re
from pathlib import Path

import pytest

pytest.importorskip("ClusterShell")

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fairlead.cli.fleet_poll import FleetPoll, FleetPoller
from fairlead.cli.node_pages import MARKS, PageFolder, grouped
from fairlead.errors import UsageError
from fairlead.provision.node_details import AUDIT, TOPOLOGY, details_of
from fairlead.provision.roster import WORDS
from fairlead.slurm.node_groups import NodeGroup
from tests.cli.fleet_of_many import AT, HOSTILE, details, fleet, row


def text_of(page: str) -> str:
    """What a person reads on a page."""
    return html.unescape(re.sub(r"<[^>]+>", "", page))


def test_every_node_has_a_tile_with_its_own_verdict(tmp_path: Path) -> None:
    poll = fleet(120)
    PageFolder(str(tmp_path)).write(poll, {}, site="site")
    index = (tmp_path / "index.html").read_text()

    found = {
        node: word for word, node in re.findall(r'<li data-word="([^"]+)"[^>]*><a [^>]*href="node/([a-z0-9]+)\.html"', index)
    }
    assert found == {each.node: each.word for each in poll.rows}
    assert found["gpu0100"] == "unreachable", "a node that did not answer is never ok"
    for each in poll.rows:
        assert each.word in text_of((tmp_path / f"node/{each.node}.html").read_text())


def test_each_word_has_a_sign_of_its_own_group() -> None:
    assert set(MARKS) == set(WORDS)
    assert MARKS["ok"] not in {mark for word, mark in MARKS.items() if word != "ok"}


def test_no_text_of_a_node_or_of_slurm_becomes_markup(tmp_path: Path) -> None:
    strange = row(17, word="drain", text=HOSTILE)
    assert strange.account is not None and strange.out_of_service is not None
    account = replace(strange.account, profile=HOSTILE, agent=HOSTILE, driver=HOSTILE, hold=HOSTILE, verdict=HOSTILE)
    out = replace(strange.out_of_service, user=HOSTILE, why=HOSTILE, reason=HOSTILE)
    strange = replace(strange, account=account, out_of_service=out, partitions=(HOSTILE,), slurmd=HOSTILE)
    poll = FleetPoll(rows=(strange, row(1)), at=AT, seconds=1.0)
    for group in ("class", "partition"):
        PageFolder(str(tmp_path)).write(poll, {"gpu0017": details()}, site=HOSTILE, group=group)
        for path in tmp_path.rglob("*.html"):
            page = path.read_text()
            assert "<script>alert" not in page and "<img src" not in page, path
            assert re.findall(r"<script[^>]*>", page) in ([], ['<script src="filter.js" defer>'])
    assert HOSTILE in text_of((tmp_path / "node/gpu0017.html").read_text())


def test_nodes_are_grouped_by_the_switch_or_block_that_slurm_names(tmp_path: Path) -> None:
    groups = {"gpu0000": "switch leaf1", "gpu0002": "switch leaf1", "gpu0001": "switch leaf2"}
    poll = FleetPoll(rows=tuple(row(n) for n in range(4)), at=AT, seconds=1.0, switches=groups)
    PageFolder(str(tmp_path)).write(poll, {}, site="site", group="switch")
    index = text_of((tmp_path / "index.html").read_text())
    at = [index.index(words) for words in ("no switch known", "switch leaf1", "switch leaf2")]
    assert at == sorted(at)
    assert [(name, [r.node for r in rows]) for name, rows in grouped(poll, "switch")] == [
        ("no switch known", ["gpu0003"]),
        ("switch leaf1", ["gpu0000", "gpu0002"]),
        ("switch leaf2", ["gpu0001"]),
    ]


@pytest.mark.parametrize("wanted", [True, False])
def test_slurmctld_is_asked_for_switches_only_where_the_page_shows_them(monkeypatch: pytest.MonkeyPatch, wanted: bool) -> None:
    asked = []

    def topology(_: object) -> tuple[NodeGroup, ...]:
        asked.append(1)
        return (NodeGroup("block", "b1", frozenset({"n1", "n2"})), NodeGroup("block", "b2", frozenset({"n2"})))

    monkeypatch.setattr("fairlead.cli.fleet_poll.listed", lambda client: [])
    monkeypatch.setattr("fairlead.slurm.scontrol.Scontrol.topology", topology)
    poll = FleetPoller(None, agents=False, switches=wanted).poll()
    assert len(asked) == wanted
    assert poll.switches == ({"n1": "block b1", "n2": "block b1"} if wanted else {}), "the first group of a node counts"


def test_half_of_the_nodes_that_do_not_answer_are_not_shown_as_well(tmp_path: Path) -> None:
    poll = FleetPoll(rows=tuple(row(n, word="unreachable" if n % 2 else "ok") for n in range(100)), at=AT, seconds=30.0)
    PageFolder(str(tmp_path)).write(poll, {}, site="site")
    index = (tmp_path / "index.html").read_text()
    assert index.count('<li data-word="unreachable"') == 50 and index.count('<li data-word="ok"') == 50
    assert "50 unreachable" in text_of(index), "and one line says how many"
    for number in (1, 99):
        page = text_of((tmp_path / f"node/gpu{number:04d}.html").read_text())
        assert "unreachable" in page and "no finding" not in page


def test_pages_of_nodes_that_are_gone_are_removed(tmp_path: Path) -> None:
    folder = PageFolder(str(tmp_path))
    folder.write(fleet(3), {}, site="site")
    folder.write(fleet(2), {}, site="site")
    assert sorted(p.name for p in (tmp_path / "node").iterdir()) == ["gpu0000.html", "gpu0001.html"]
    assert not list(tmp_path.rglob("*.new"))


def test_a_folder_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError, match="has other files, and no page of fairlead"):
        PageFolder(str(tmp_path))
    with pytest.raises(UsageError, match="no such folder"):
        PageFolder(str(tmp_path / "none"))
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_thousand_nodes_are_less_than_five_megabytes(tmp_path: Path) -> None:
    poll = fleet(1000)
    PageFolder(str(tmp_path)).write(poll, {each.node: details() for each in poll.rows[:100]}, site="site")
    assert sum(p.stat().st_size for p in tmp_path.rglob("*") if p.is_file()) < 5_000_000
    assert (tmp_path / "index.html").stat().st_size < 300_000


def answer(topology: str = "", audit: str = "", status: str = "{}") -> bytes:
    parts = {"/run/fairlead/status.json": status, TOPOLOGY: topology, AUDIT: audit, "/dev/null": ""}
    return "".join(f"==> {path} <==\n{text}\n" for path, text in parts.items()).encode()


def test_details_of_a_well_formed_answer() -> None:
    topology = "1\tnode\tgpu1\t1\t0-7\t8\tx\ngpu\t3\t2\tGPU-a\t0000:1b:00.0\t1\t0-3\tmlx5_0\tF\n"
    audit = '{"unix":5.0,"id":"a","what":"hold","who":"ann","why":"riser"}\n'
    audit += '{"unix":5.5,"id":"a","what":"hold","who":"ann","why":"riser","outcome":"done"}\n'
    found = details_of(answer(topology, audit, '{"findings":[{"check":"xid","summary":"x\\u001b[2J"}]}'))
    assert [(g.pci, g.index, g.numa) for g in found.gpus] == [("0000:1b:00.0", 3, 1)]
    assert [(a.who, a.what, a.outcome) for a in found.actions] == [("ann", "hold", "done")], "one entry, with its outcome"
    assert found.status["findings"][0]["summary"] == "x [2J"


@given(st.text(max_size=300), st.text(max_size=300), st.text(max_size=100))
def test_nothing_that_a_node_says_breaks_the_reader(topology: str, audit: str, status: str) -> None:
    found = details_of(answer(topology, audit, status))
    assert all("\x1b" not in text for a in found.actions for text in (a.who, a.what, a.why, a.outcome, a.detail))


@given(st.binary(max_size=400))
def test_nothing_that_is_no_answer_breaks_the_reader(data: bytes) -> None:
    assert details_of(data).gpus == ()


@pytest.mark.parametrize("word", ["stale", "none", "unknown"])
def test_a_gpu_is_not_drawn_as_well_where_nothing_is_known_of_it(tmp_path: Path, word: str) -> None:
    known = details()
    poll = FleetPoll(rows=(row(17, word=word, text="x"), row(18), row(19)), at=AT, seconds=1.0)
    unread = replace(known, status={})
    PageFolder(str(tmp_path)).write(poll, {"gpu0017": replace(known, status={"findings": []}), "gpu0018": unread, "gpu0019":
                                           replace(known, status={"findings": []})}, site="site")  # fmt: skip
    for node, words in (("gpu0017", "not known"), ("gpu0018", "not known"), ("gpu0019", "no finding")):
        page = (tmp_path / f"node/{node}.html").read_text()
        assert page.count(f">{words}</text>") == 8 and page.count(">no finding</text>") == (8 if words == "no finding" else 0)


def test_root_does_not_write_where_others_can_lay_a_link(tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("needs root")
    tmp_path.chmod(0o777)
    with pytest.raises(UsageError, match="users other than root can write to this folder"):
        PageFolder(str(tmp_path))
