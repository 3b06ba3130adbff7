"""The audit trail and the spool of requests: nothing is done that no line speaks of, and nothing is applied twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairlead import config
from fairlead.daemon.publishing.status_json import remembered
from fairlead.daemon.requests import audit_trail
from fairlead.daemon.requests.audit_trail import ASKED, AuditEntry, Trail, new_id
from fairlead.daemon.requests.spool import Requests, decode, put
from fairlead.errors import HostError, InputMissing
from fairlead.history.memory import History
from fairlead.model.check_definition import KernelRecord
from fairlead.model.finding import Finding, Level
from fairlead.policy.policy_state import PolicyState, Track, identity
from fairlead.policy.state_requests import Ack, Clear
from tests.daemon.conftest import PROJECT

PCI = "0000:1b:00.0"
FOUND = Finding(check="xid", level=Level.DRAIN, device=PCI, summary="Xid 79", evidence_id="b1:7")
STATE = PolicyState(
    boot_id="b1",
    tracks={f"xid/{PCI}": Track(level=Level.DRAIN, bad=(FOUND,), found=(FOUND,))},
    strikes={"1651": (1.0, 2.0), "1652": (3.0,)},
)


def entry(what: str = "hold", **changes: object) -> AuditEntry:
    made = {"unix": time.time(), "id": new_id(), "who": "ann", "what": what, **changes}
    return AuditEntry(**made)  # type: ignore[arg-type]


@pytest.fixture
def folders(tmp_path: Path) -> tuple[str, str]:
    (tmp_path / "run").mkdir()
    return str(tmp_path / "state"), str(tmp_path / "run")


@pytest.fixture
def trail(folders: tuple[str, str]) -> Trail:
    return Trail(*folders)


def test_an_entry_comes_back_once_with_its_last_outcome(trail: Trail) -> None:
    first = entry(tty="/dev/pts/3", client="10.0.0.5", args={"evidence": "xid"}, why="riser", uid=0)
    trail.add(first)
    assert trail.read()[0].outcome == ASKED
    trail.add(msgspec.structs.replace(first, outcome="held", detail="until 9"))
    trail.agent("drained", args={"reason": "fairlead:xid:abc GPU"})
    assert [e.what for e in trail.read()] == ["hold", "drained"] and not trail.trouble
    assert trail.read()[0] == msgspec.structs.replace(first, outcome="held", detail="until 9")
    assert trail.read(since=time.time() + 5) == []
    assert oct(os.stat(trail.path).st_mode & 0o777) == "0o644"


def test_what_a_person_writes_stays_one_line(trail: Trail) -> None:
    trail.add(entry(why='two\nlines\t{"id":"x"}\x1b[31m' + "x" * 5000))
    assert len(Path(trail.path).read_bytes().splitlines()) == 1
    assert trail.read()[0].why.startswith('two lines {"id":"x"} [31mxxx') and len(trail.read()[0].why) == audit_trail.TEXT_MAX


def test_a_line_torn_by_a_crash_costs_itself_alone(trail: Trail) -> None:
    trail.add(entry("one"))
    with open(trail.path, "ab") as out:
        out.write(b'{"unix":1,"id":"to')
    trail.add(entry("two"))
    assert [e.what for e in trail.read()] == ["one", "two"]
    assert "1 line left out" in trail.trouble


def test_it_grows_to_a_bound_and_keeps_the_newest(trail: Trail, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_trail, "ROTATE_BYTES", 4096)
    for number in range(200):
        trail.add(entry(f"step {number}"))
        assert os.stat(trail.path).st_size <= 4096
    assert sorted(os.listdir(os.path.dirname(trail.path))) == ["audit.jsonl", "audit.jsonl.1"]
    whats = [e.what for e in trail.read()]
    assert whats == [f"step {number}" for number in range(200 - len(whats), 200)] and len(whats) > 20


@pytest.mark.heavy
def test_many_writers_lose_nothing(folders: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight processes, 25 entries each; the file is turned over on the way."""
    code = (
        "import sys; from fairlead.daemon.requests import audit_trail\n"
        "from tests.daemon.requests.test_audit_trail import entry\n"
        "audit_trail.ROTATE_BYTES = 20000\n"
        "for n in range(25): audit_trail.Trail(*sys.argv[1:3]).add(entry(f'{sys.argv[3]} {n}'))\n"
    )
    env = {**os.environ, "PYTHONPATH": f"{PROJECT / 'agent'}:{PROJECT}"}
    writers = [subprocess.Popen([sys.executable, "-c", code, *folders, str(w)], env=env, cwd=PROJECT) for w in range(8)]
    assert [w.wait(timeout=120) for w in writers] == [0] * 8
    assert {e.what for e in Trail(*folders).read()} == {f"{w} {n}" for w in range(8) for n in range(25)}


@pytest.fixture
def full(folders: tuple[str, str]) -> Iterator[Path]:
    """The state directory on a disk that takes nothing more."""
    if os.geteuid():
        pytest.skip("needs root: a file system of its own is mounted")
    folder = Path(folders[0])
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "full", folder], check=True)
    try:
        Trail(*folders).add(entry("before"))
        with pytest.raises(OSError, match="No space"), open(folder / "filler", "wb", buffering=0) as out:
            while out.write(b"x" * 4096) > 0:
                pass
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.mark.root
def test_a_full_disk_leaves_no_half_line_and_what_was_noted_elsewhere_moves_over(trail: Trail, full: Path) -> None:
    before = Path(trail.path).read_bytes()
    for number in range(40):
        trail.add(entry(f"during {number}", why="x" * 500))
    assert "No space left on device; written to" in trail.trouble
    whole = Path(trail.path).read_bytes()
    assert whole.startswith(before) and whole.endswith(b"\n")  # the last block of the file had room for a few
    assert [e.what for e in trail.read()] == ["before", *(f"during {n}" for n in range(40))]
    (full / "filler").unlink()
    trail.add(entry("after"))
    assert not trail.trouble and not Path(trail.spare).exists()
    assert [e.what for e in trail.read()] == ["before", *(f"during {n}" for n in range(40)), "after"]
    assert not trail.trouble


def test_where_nothing_can_be_written_it_says_so_and_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    trail = Trail(str(tmp_path / "file"), str(tmp_path / "file"))
    trail.add(entry())
    assert "this is not in the trail" in trail.trouble and "\n" not in trail.trouble


@given(
    st.lists(
        st.binary(max_size=60) | st.sampled_from([b'{"unix":1,"id":"a","what":"x","who":"y"}', b"{}", b"[" * 3000]), max_size=8
    )
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
def test_any_file_can_be_read(trail: Trail, lines: list[bytes]) -> None:
    os.makedirs(os.path.dirname(trail.path), exist_ok=True)
    Path(trail.path).write_bytes(b"\n".join(lines))
    assert all(isinstance(e, AuditEntry) for e in trail.read())
    assert "\n" not in trail.trouble


# -- the spool -----------------------------------------------------------------------------------


def history_of(folders: tuple[str, str]) -> History:
    os.makedirs(folders[0], exist_ok=True)
    return History(folders[0], "b1")


def ready(folders: tuple[str, str]) -> History:
    history = history_of(folders)
    history.save_state(STATE)
    return history


def waiting_requests(folders: tuple[str, str]) -> list[str]:
    return [
        n for f in folders if os.path.isdir(os.path.join(f, "requests")) for n in sorted(os.listdir(os.path.join(f, "requests")))
    ]


def test_a_request_is_taken_once_saved_and_noted(folders: tuple[str, str], trail: Trail) -> None:
    history = ready(folders)
    put(*folders, Ack(id=new_id(), evidence=(identity(FOUND),), who="ann", why="known"))
    made = Requests(*folders, trail).take(STATE, history, "b1")
    assert made.acknowledged == (identity(FOUND),) and waiting_requests(folders) == []
    assert history_of(folders).load_state() == made
    assert [(e.who, e.what, e.why, e.args["for"]) for e in trail.read()] == [("agent", "acknowledged", "known", "ann")]
    assert Requests(*folders, trail).take(made, history, "b1") is made


def test_in_the_order_of_asking(folders: tuple[str, str], trail: Trail) -> None:
    history = ready(folders)
    ids = [new_id() for _ in range(5)]
    for one in ids:
        put(*folders, Ack(id=one, evidence=("xid/x#1",)))
    assert Requests(*folders, trail).take(STATE, history, "b1").requests == tuple(ids)


def test_without_a_number_a_repair_closes_what_the_agent_has_read(folders: tuple[str, str], trail: Trail) -> None:
    history = ready(folders)
    history.add_readable(frozenset({f"{PCI}/ecc", "1651/ecc", "1652/ecc"}))
    history.add_records([KernelRecord(sequence=9, seconds=1.0, priority=3, text="NVRM: Xid x", boot_id="b1")])
    put(*folders, Clear(id=new_id(), devices=(PCI, "1651"), boot_id="b1"))
    made = Requests(*folders, trail).take(STATE, history, "b1")
    assert [r.sequence for r in made.repairs] == [9] and set(made.strikes) == {"1652"}
    assert history.past().readable == history_of(folders).past().readable == {"1652/ecc"}


@pytest.mark.parametrize("what", ["garbage", "folder", "link", "stranger", "fifo"])
def test_what_is_no_request_of_roots_is_moved_aside_once(
    folders: tuple[str, str], trail: Trail, what: str, tmp_path: Path
) -> None:
    history = ready(folders)
    good = put(*folders, Ack(id=new_id(), evidence=("xid/x#1",)))
    bad = Path(good).with_name("00000000000000000000-bad.json")
    (tmp_path / "elsewhere").write_bytes(Path(good).read_bytes())
    if what == "garbage":
        bad.write_bytes(b"{")
    elif what == "folder":
        bad.mkdir()
    elif what == "link":
        bad.symlink_to(tmp_path / "elsewhere")
    elif what == "fifo":
        os.mkfifo(bad)
    elif os.geteuid():
        pytest.skip("needs root, to give a file to somebody else")
    else:
        bad.write_bytes(Path(good).read_bytes())
        os.chown(bad, 65534, 65534)
    agent = Requests(*folders, trail)
    made = agent.take(STATE, history, "b1")
    assert len(made.requests) == 1 and waiting_requests(folders) == [f"{bad.name}.bad"]
    assert agent.take(made, history, "b1") is made
    assert [e.what for e in trail.read()] == ["request refused", "acknowledged"]


def test_where_the_disk_takes_nothing_the_spool_is_in_the_run_directory(tmp_path: Path, trail: Trail) -> None:
    (tmp_path / "file").write_text("")
    folders = str(tmp_path / "file"), str(tmp_path / "run")
    history = History(folders[0], "b1")
    put(*folders, Ack(id=new_id(), evidence=(identity(FOUND),)))
    made = Requests(*folders, trail).take(STATE, history, "b1")
    assert made.acknowledged and len(waiting_requests(folders)) == 1  # it stays until a history on disk contains it
    assert Requests(*folders, trail).take(made, history, "b1") is made
    with pytest.raises(HostError, match="Not a directory"):
        put(folders[0], folders[0], Ack(id=new_id(), evidence=("x",)))


def child(*words: str) -> int:
    env = {**os.environ, "PYTHONPATH": f"{PROJECT / 'agent'}:{PROJECT}", "SUDO_USER": "ann"}
    command = [sys.executable, "-m", "tests.daemon.requests.killed_people", *words]
    done = subprocess.run(command, cwd=PROJECT, env=env, timeout=60, check=False, capture_output=True, text=True)
    assert done.returncode in (0, -signal.SIGKILL), done
    return done.returncode


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["ack", "clear"])
def test_killed_before_every_write_of_taking_up_it_is_applied_once(tmp_path: Path, kind: str) -> None:
    want = Ack(id="0123456789abcdef", evidence=(identity(FOUND),), who="ann", why="known")
    repair = Clear(id="0123456789abcdef", devices=(PCI, "1651"), boot_id="b1", sequence=9, who="ann", why="reset")
    seen = []
    for at in range(60):
        folders = str(tmp_path / f"{at}" / "state"), str(tmp_path / f"{at}" / "run")
        os.makedirs(folders[1])
        ready(folders).close()
        put(*folders, want if kind == "ack" else repair)
        code = child("take", str(tmp_path / f"{at}"), str(at))
        history, trail = history_of(folders), Trail(*folders)
        left = history.load_state()
        seen.append((bool(left.requests), bool(waiting_requests(folders))))
        made = Requests(*folders, trail).take(left, history, "b1")
        assert made.requests == ("0123456789abcdef",) and waiting_requests(folders) == []
        assert history_of(folders).load_state() == made
        if kind == "ack":
            assert made.acknowledged == (identity(FOUND),)
        else:
            assert set(made.strikes) == {"1652"} and len(made.repairs) == 1 and not made.tracks
        history.close()
        if code == 0:
            break
    assert code == 0 and at > 5
    assert seen[0] == (False, True) and (True, True) in seen and seen[-1] == (True, False)
    assert (False, False) not in seen  # never lost


@pytest.mark.heavy
def test_killed_before_every_write_of_a_command_it_is_asked_whole_or_not_and_noted_if_asked(tmp_path: Path) -> None:
    document = tmp_path / "node.json"
    state_dir, run_dir = str(tmp_path / "state"), str(tmp_path / "run")
    data = config.to_data(config.profile_document("n1", "hgx-h100"))
    data["agent"] |= {"state_dir": state_dir, "run_dir": run_dir}
    del data["hash"]
    document.write_bytes(config.encode_document(config.decode_document(msgspec.json.encode(data), "test")))
    os.makedirs(run_dir)
    (tmp_path / "run/status.json").write_bytes(msgspec.json.encode(remembered(STATE)))
    asked = []
    for at in range(60):
        code = child("say", str(at), "ack", "--all", "--reason", f"try {at}", "--document", str(document))
        waiting = [n for n in waiting_requests((state_dir, run_dir)) if n.endswith(".json")]
        noted = [e for e in Trail(state_dir, run_dir).read() if e.why == f"try {at}"]
        assert not waiting or noted, "in the spool, and nobody knows who put it there"
        asked.append((len(waiting), [e.outcome for e in noted]))
        for name in waiting:
            request = decode(Path(state_dir, "requests", name).read_bytes())
            assert request.why == f"try {at}" and request.who == "ann"
        for name in waiting_requests((state_dir, run_dir)):
            os.unlink(os.path.join(state_dir, "requests", name))
        if code == 0:
            break
    assert code == 0 and asked[0] == (0, []) and asked[-1] == (1, ["done"])
    assert (0, [ASKED]) in asked and (1, [ASKED]) in asked


def test_the_command_line_reads_the_trail(folders: tuple[str, str], trail: Trail, capsys: pytest.CaptureFixture[str]) -> None:
    from fairlead.cli import main

    trail.add(entry("drain", unix=time.time() - 7200, why="new PSU", outcome="drained"))
    trail.add(entry("hold", tty="/dev/pts/3", client="10.0.0.5", why="riser 2"))
    places = ["--state-dir", folders[0], "--run-dir", folders[1]]
    assert main(["audit", "--since", "1h", *places]) == 0
    told = capsys.readouterr().out
    assert 'ann (pts/3 from 10.0.0.5): hold "riser 2" -> no outcome' in told and "PSU" not in told
    assert main(["audit", "--json", *places]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [e["why"] for e in data["entries"]] == ["new PSU", "riser 2"]
    assert main(["audit", "--since", "yesterday", *places]) == 64
    assert "--since 'yesterday': not a time" in capsys.readouterr().err


def test_the_account_of_an_agent_that_ended_well_is_on_disk(folders: tuple[str, str]) -> None:
    from fairlead.cli.agent_client import node_status

    assert node_status(*folders) == {}
    ready(folders).close()
    assert [r["id"] for r in node_status(*folders)["standing"]] == [identity(FOUND)]
    (Path(folders[1]) / "status.json").write_bytes(msgspec.json.encode({**remembered(PolicyState()), "pid": 7}))
    assert node_status(*folders)["standing"] == []  # the agent's own word is the newer one
    Path(folders[0], "history.sqlite").write_bytes(b"damaged" * 1000)
    (Path(folders[1]) / "status.json").unlink()
    assert node_status(*folders) == {}


def test_where_the_log_stands_is_asked_only_of_a_device(tmp_path: Path) -> None:
    from fairlead.cli.clear import last_record

    os.mkfifo(tmp_path / "kmsg")
    assert last_record(str(tmp_path / "kmsg")) == last_record(str(tmp_path / "none")) == last_record("/dev/null") == -1
    try:
        log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError as e:
        pytest.skip(f"/dev/kmsg: {e.strerror}")
    try:
        first = int(os.read(log, 8192).split(b",")[1])
    except BlockingIOError:
        pytest.skip("the kernel log is empty")
    finally:
        os.close(log)
    assert last_record("/dev/kmsg") >= first


@pytest.mark.parametrize("word", [PCI, "00000000:1B:00.0", "1651", "GPU-AB-1"])
def test_a_gpu_goes_by_any_of_its_names(word: str) -> None:
    from fairlead.cli.clear import names_of

    known = {"gpus": [{"pci": PCI, "serial": "1651", "uuid": "GPU-ab-1"}], "strikes": {"1649": [1.0]}}
    assert names_of(word, known) == (PCI, "1651")
    assert names_of("1649", known) == ("1649",)  # a board that is not in the node any more
    with pytest.raises(InputMissing, match="knows no such device"):
        names_of("165", known)
