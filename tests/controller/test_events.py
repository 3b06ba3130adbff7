"""Events: each once by its id, over kills, wrong clocks and restored backups; channels that hang, flood or do not answer."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from fairlead.cli import main
from fairlead.controller.event_channels import OUTPUT_MAX_BYTES, EventChannel, SiteCommand, Webhook, channels_of, ran
from fairlead.controller.event_program import TRIES_MAX, WAIT_MAX_SECONDS, EventProgram, body
from fairlead.controller.event_store import NODE_EVENTS_MAX, EventStore, event_id
from fairlead.controller.fleet_store import FleetStore
from fairlead.errors import ConfigError, DataError, HostError, NodeBusy
from fairlead.fleet.event_options import EventsOptions
from fairlead.fleet.fleet_events import FleetEvent
from fairlead.fleet.node_events import NodeOut, Whose
from fairlead.fleet.service_record import ServiceEntry, ServiceRecord
from tests.fleet.made_records import BEGIN, DAY, HOUR, NOW, drained, record, resumed

ROOT = Path(__file__).resolve().parents[2]
T = BEGIN + 10 * DAY
YEAR = 365 * DAY


class Recorder:
    """A channel that keeps what it was given. why: what it answers."""

    def __init__(self, name: str = "command") -> None:
        self.name, self.why = name, ""
        self.taken: list[dict[str, Any]] = []

    def deliver(self, identity: str, text: bytes) -> str:
        if not self.why:
            self.taken.append(json.loads(text))
            assert self.taken[-1]["id"] == identity
        return self.why

    @property
    def kinds(self) -> list[str]:
        return [event["kind"] for event in self.taken]


class Site:
    """A controller: the history of the fleet, the queue, one channel and a clock."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.channel, self.said, self.now = folder, Recorder(), list[str](), NOW
        self.options = EventsOptions(command=("/bin/true",))
        self.lemons: Callable[[], list[FleetEvent]] = list
        self.first: dict[str, EventChannel] = {}  # channels that come before the one above

    def history(self, *records: ServiceRecord, outs: tuple[NodeOut, ...] | None = None) -> None:
        with FleetStore(str(self.folder), write=True) as fleet:
            fleet.add(records, 0.0)
            if outs is not None:
                fleet.add_events(outs, 0.0)
                fleet.keep({"events_until": self.now})

    def run(self) -> Any:
        with FleetStore(str(self.folder), write=False) as fleet, EventStore(str(self.folder), write=True) as store:
            return EventProgram(
                store,
                fleet,
                self.options,
                {**self.first, self.channel.name: self.channel},
                say=self.said.append,
                clock=lambda: self.now,
                lemons=self.lemons,
            ).run()


@pytest.fixture
def site(tmp_path: Path) -> Site:
    made = Site(tmp_path)
    made.history(record())
    made.run()
    made.said.clear()
    return made


def entry(what: str, unix: float = T, **changes: Any) -> ServiceEntry:
    return ServiceEntry(**{"unix": unix, "id": f"{what}{unix}", "what": what, "who": "ada", **changes})


# -- what is an event -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "kind", "by"),
    [
        (drained(T), "drained", "fairlead"),
        (drained(T, check="manual"), "drained", "person"),
        (drained(T, check="maintain"), "maintenance", "person"),
        (resumed(T), "resumed", "fairlead"),
        (resumed(T, "resumed by a person"), "resumed", "person"),
        (resumed(T, "drain lost"), "resumed", "slurm"),
        (entry("hold", outcome="held", why="riser swap"), "held", "person"),
        (entry("acknowledged", args={"for": "ada"}, why="known"), "acknowledged", "person"),
        (entry("closed as repaired", args={"for": "ada"}, why="new GPU"), "repaired", "person"),
        (entry("hold", outcome="failed"), "", ""),
        (entry("drain given up"), "", ""),
        (entry("left alone"), "", ""),
        (entry("an unknown state"), "", ""),
        (entry("drained", args={"reason": "somebody's own words"}), "", ""),
    ],
)
def test_entries(site: Site, one: ServiceEntry, kind: str, by: str) -> None:
    site.history(record(one))
    site.run()
    assert [(event["kind"], event["by"]) for event in site.channel.taken] == ([(kind, by)] if kind else [])


def test_a_drain_that_agent_and_slurm_report_is_one_event(site: Site) -> None:
    entry_of, out_of = drained(T, token="aaaaaaaaaaa1", serials="0000:1b:00.0=A1", jobs="7,8"), "fairlead:xid:aaaaaaaaaaa1 Xid 79"
    site.history(outs=())
    site.run()
    out = NodeOut(node="n1", begin_unix=T + 1, end_unix=None, whose=Whose.FAULT, reason=out_of, token="aaaaaaaaaaa1")
    site.history(record(entry_of), outs=(out,))
    site.run()
    site.history(outs=(replace(out, end_unix=T + HOUR),))
    site.run()
    site.history(record(entry_of, resumed(T + HOUR, args={"reason": entry_of.args["reason"]})))
    site.run()
    assert site.channel.kinds == ["drained", "resumed"]
    event = site.channel.taken[0]
    assert (event["device"], event["serial"], event["jobs"], event["machine"]) == ("0000:1b:00.0", "A1", [7, 8], "m1")
    assert event["schema"] == "event/1" and event["time"].endswith("Z") and "source" not in event


def test_slurms_own_and_persons_drains_and_maintenance(site: Site) -> None:
    site.history(outs=())
    site.run()
    person = NodeOut(node="n9", begin_unix=T, end_unix=T + 60, whose=Whose.PERSON, reason="riser\x1b[31m swap")
    planned = NodeOut(
        node="n9", begin_unix=T + 60, end_unix=T + 120, whose=Whose.MAINTENANCE, reason="fairlead:maintain:abcdef1 x"
    )
    down = NodeOut(node="n8", begin_unix=T, end_unix=None, whose=Whose.FAULT, reason="Not responding", down=True)
    site.history(outs=(person, planned, down))
    site.run()
    assert sorted((e["node"], e["kind"], e.get("by", "")) for e in site.channel.taken) == [
        ("n8", "drained", "slurm"),
        ("n9", "drained", "person"),
        ("n9", "maintenance", "person"),
        ("n9", "resumed", ""),
    ], "a reason that replaces another is no resume"
    assert "\x1b" not in json.dumps(site.channel.taken, ensure_ascii=False)


def test_the_first_run_sends_nothing_old_and_says_so(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.history(
        record(drained(T), resumed(T + HOUR)), outs=(NodeOut(node="n1", begin_unix=T, end_unix=T + 9, whose=Whose.PERSON),)
    )
    site.run()
    assert site.channel.taken == [] and len(site.said) == 1 and "4 earlier events" in site.said[0]
    site.history(record(drained(NOW - 100), node="n2", machine="m2"), record(drained(T), node="n3", machine="m3"))
    site.run()
    assert [e["node"] for e in site.channel.taken] == ["n2"], "of a new machine only the last day counts"


def test_a_renamed_node_reports_nothing_again(site: Site) -> None:
    site.history(record(drained(T)))
    site.run()
    site.history(record(drained(T), drained(T + HOUR), node="n1b", written_unix=NOW + 60))
    site.run()
    assert [e["node"] for e in site.channel.taken] == ["n1", "n1b"]


def test_lemons_are_new_ones_once(site: Site) -> None:
    site.lemons = lambda: [FleetEvent(kind="lemon", node="n1", machine="m1", at_unix=T, cause="lemon")]
    for _ in range(3):
        site.now += DAY + 60
        site.run()
    assert site.channel.kinds == ["lemon"]


# -- text of others -------------------------------------------------------------------------------------


def test_hostile_text_is_plain(site: Site) -> None:
    evil = "x\x1b[2J</script><script>\u202e\"\n\r'; rm -rf / #" + "y" * 2000
    site.history(
        record(entry("hold", outcome="held", why=evil, who=evil[:100]), drained(T, device="\x07<b>", jobs="9" * 40 + ",5"))
    )
    site.run()
    assert len(site.channel.taken) == 2
    for event in site.channel.taken:
        text = body(FleetEvent(**{k: event[k] for k in ("kind", "node", "at_unix")}, why=event.get("why", "")), "0", "")
        assert b"<" not in text and b"\x1b" not in text and b"\n" not in text
        assert all(len(v) <= 300 and v.isprintable() for v in event.values() if isinstance(v, str))


def test_a_hostile_node_cannot_flood_or_hide_others(site: Site) -> None:
    flood = [drained(T + n) for n in range(500)]
    site.history(record(*flood, node="n1"), record(node="n2", machine="m2"))
    done = site.run()
    assert len(site.channel.taken) == NODE_EVENTS_MAX and done.left_out == 450 and len(site.said) == 1
    site.history(record(*flood, *(drained(T + 1000 + n) for n in range(500)), node="n1", written_unix=NOW + 1))
    site.history(record(drained(T + 3, token=f"{int(T + 3):012x}"), node="n2", machine="m2", written_unix=NOW + 1))
    site.run()
    assert len(site.channel.taken) == NODE_EVENTS_MAX + 1, "the same token on another node is another event"


# -- delivery -------------------------------------------------------------------------------------------


def test_back_off_and_no_second_delivery(site: Site) -> None:
    site.channel.why = "HTTP 500"
    site.history(record(drained(T)))
    assert site.run().failed == 1 and len(site.said) == 1
    assert site.run().failed == 0, "it waits"
    site.now += 61
    assert site.run().failed == 1 and len(site.said) == 1, "the same trouble is said once"
    site.now += 61
    assert site.run().failed == 0, "it waits longer"
    site.now += 3600
    site.channel.why = ""
    assert site.run().delivered == 1
    site.now += 10 * DAY
    assert site.run().delivered == 0 and site.channel.kinds == ["drained"]


def test_it_gives_up_and_retries_on_request(site: Site) -> None:
    site.channel.why = "HTTP 400"
    site.history(record(drained(T)))
    for _ in range(TRIES_MAX):
        site.run()
        site.now += WAIT_MAX_SECONDS + 1
    assert any("given up after" in line for line in site.said) and site.run().failed == 0
    assert main(["events", "retry", "--all", "--state", str(site.folder)]) == 0
    site.channel.why = ""
    assert site.run().delivered == 1


def test_one_event_that_is_refused_does_not_hold_up_others(site: Site) -> None:
    class Picky(Recorder):
        def deliver(self, identity: str, text: bytes) -> str:
            return "HTTP 400" if json.loads(text)["node"] == "n2" else super().deliver(identity, text)

    site.channel = Picky()
    site.history(record(drained(NOW - 60), node="n2", machine="m2"), record(drained(NOW - 50)))
    site.run()
    assert [e["node"] for e in site.channel.taken] == ["n1"]


@pytest.mark.parametrize("years", [-1, 1])
def test_a_clock_that_is_a_year_wrong_loses_and_repeats_nothing(site: Site, years: int) -> None:
    site.channel.why = "HTTP 503"
    site.history(record(drained(T)))
    site.run()
    site.now += years * YEAR  # the clock of the controller
    site.channel.why = ""
    site.run()
    site.history(record(drained(T), drained(T + 5 - YEAR), drained(T + 5 + YEAR), written_unix=NOW + 1))  # and those of a node
    site.run()
    site.now -= years * YEAR
    site.run()
    site.run()
    assert len(site.channel.taken) == 3 and len({e["id"] for e in site.channel.taken}) == 3


def test_a_restored_history_that_is_older_is_one_line(site: Site) -> None:
    copy = sqlite3.connect(site.folder / "copy")
    with FleetStore(str(site.folder), write=False) as fleet:
        fleet._db.backup(copy)
    copy.close()
    site.history(record(drained(T), written_unix=NOW + 60))
    site.run()
    for suffix in ("", "-wal", "-shm"):
        (site.folder / f"fleet.sqlite{suffix}").unlink(missing_ok=True)
    shutil.copy(site.folder / "copy", site.folder / "fleet.sqlite")
    site.run()
    site.run()
    assert len(site.said) == 1 and "restored backup" in site.said[0] and "n1" in site.said[0]
    site.history(record(drained(T), drained(T + HOUR), written_unix=NOW + 120))
    site.run()
    assert site.channel.kinds == ["drained", "drained"] and len(site.said) == 1


@pytest.mark.parametrize(
    ("text", "why"),
    [("sleep 300 & exec sleep 300", "no answer in 0.3 s: it was ended"), ("exec yes", "wrote more than 64 KiB: it was ended")],
    ids=["hangs", "floods"],
)
def test_a_hook_that_hangs_or_floods_keeps_no_event_from_another_channel(site: Site, tmp_path: Path, text: str, why: str) -> None:
    """It gets three events in a run at most, it is one line, and it gets all of them when it is mended."""
    site.channel = Recorder("url")
    taken = tmp_path / "taken"
    site.first = {"command": SiteCommand(script(tmp_path, text), 0.3 if "0.3" in why else 20.0)}
    site.history(record(*(drained(T + n) for n in range(5))))
    began = time.monotonic()
    found = site.run()
    assert time.monotonic() - began < 15
    assert len(site.channel.taken) == 5 and (found.delivered, found.failed) == (5, 3)
    assert site.said == [f"command: {why}; the events wait and are tried again"]
    site.first = {"command": SiteCommand(script(tmp_path, f"{{ cat; echo; }} >>{taken}"), 20.0)}
    site.now += HOUR
    site.run()
    kept = [json.loads(line)["id"] for line in taken.read_text().splitlines()]
    assert len(kept) == len(set(kept)) == 5 and set(kept) == {event["id"] for event in site.channel.taken}
    assert len(site.channel.taken) == 5 and len(site.said) == 1


def test_old_events_go_and_those_of_the_history_stay(site: Site) -> None:
    site.history(record(*(drained(T + n) for n in range(20))))
    site.run()
    with FleetStore(str(site.folder), write=False), EventStore(str(site.folder), write=True) as store:
        every = [each.event for each in store.listed(100)]
        assert store.prune(lambda: every, 5) == 0
        assert store.prune(lambda: every[:10], 5) == 10 and len(store.listed(100)) == 10


def test_one_writer_newer_and_damaged_files(site: Site) -> None:
    with EventStore(str(site.folder), write=True) as store:
        with pytest.raises(NodeBusy, match="fairlead events"):
            EventStore(str(site.folder), write=True)
        store._db.execute("PRAGMA user_version = 9")
    with pytest.raises(DataError, match="newer fairlead"):
        EventStore(str(site.folder), write=True)
    for suffix in ("-wal", "-shm"):
        (site.folder / f"events.sqlite{suffix}").unlink(missing_ok=True)
    (site.folder / "events.sqlite").write_bytes(b"x" * 9000)
    with pytest.raises(DataError, match="not a database"):
        EventStore(str(site.folder), write=False)


def wait_until_free(folder: Path) -> None:
    """A program that was forked and not yet executed has its parent's locks, for a moment after the parent was killed."""
    deadline = time.monotonic() + 60
    while True:
        try:
            with EventStore(str(folder), write=True), FleetStore(str(folder), write=True):
                return
        except NodeBusy:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_killed_at_any_moment(tmp_path: Path) -> None:
    """Each event is delivered. One is delivered twice only if the kill came between the program's end and the note of it."""
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'agent'}:{ROOT}"}
    kills = 6
    for number in range(kills):
        command = [sys.executable, "-m", "tests.controller.killed_events", str(tmp_path), "n1", "100000"]
        process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert process.stdout is not None
        process.stdout.readline()
        for _ in range(number % 3):
            process.stdout.readline()
        time.sleep(0.013 * number)  # another step each time
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        wait_until_free(tmp_path)
    command = [sys.executable, "-m", "tests.controller.killed_events", str(tmp_path), "n1", "1"]
    env["TZ"] = "UTC"
    with EventStore(str(tmp_path), write=True) as store:
        for each in store.due("command", 0.0, -1e12, 1000):
            store.tried(each, "waiting", each.tries, 0.0, each.said)  # the back-off is over
    subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL, cwd=ROOT, timeout=200)
    taken = (tmp_path / "taken").read_text().split()
    with EventStore(str(tmp_path), write=False) as store:
        sent = [each.id for each in store.listed(10000) if each.state == "delivered"]
        assert store.counts() == {"delivered": len(sent)}
    with FleetStore(str(tmp_path), write=False) as fleet:
        (found,) = fleet.records()
    assert len(sent) >= len(found.entries) - 1 > kills, "all but those that the first run only remembered"
    assert set(sent) == set(taken) and len(taken) - len(set(taken)) <= kills


# -- the channels ---------------------------------------------------------------------------------------


def script(folder: Path, text: str) -> tuple[str, ...]:
    path = folder / "hook"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return (str(path),)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("cat >/dev/null", ""),
        ("exit 0", ""),
        ("echo no such queue; exit 3", "exit code 3: no such queue"),
        ("printf 'a\\033[31mb'; exit 1", "exit code 1: a [31mb"),
        ("kill -9 $$", "signal 9"),
        ("sleep 300 & sleep 300", "no answer in 0.5 s: it was ended"),
        ("trap '' TERM INT; while :; do :; done", "no answer in 0.5 s: it was ended"),
        ("exec yes", f"wrote more than {OUTPUT_MAX_BYTES >> 10} KiB: it was ended"),
        ("sleep 300 & exit 0", ""),
    ],
)
def test_the_sites_program(tmp_path: Path, text: str, why: str) -> None:
    began = time.monotonic()
    seconds = 0.5 if "0.5" in why else 20.0
    assert SiteCommand(script(tmp_path, text), seconds).deliver("a1", b'{"kind": "test"}' * 10_000) == why
    assert time.monotonic() - began < 15
    if "sleep" in text:
        end = time.monotonic() + 20  # what was killed and has no parent is there for a moment
        while subprocess.run(["pgrep", "-f", f"{tmp_path}/hook"], capture_output=True, check=False).stdout:
            assert time.monotonic() < end, "its process group is ended"
            time.sleep(0.05)


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    assert "No such file" in ran((str(tmp_path / "none"),), b"", 1.0, {})
    (tmp_path / "plain").write_text("x")
    assert "Permission denied" in ran((str(tmp_path / "plain"),), b"", 1.0, {})


@pytest.fixture
def server() -> Iterator[tuple[str, list[tuple[dict[str, str], bytes]], dict[str, Any]]]:
    """An address that keeps what it gets. The dict says how it answers."""
    got: list[tuple[dict[str, str], bytes]] = []
    how: dict[str, Any] = {"code": 204, "body": b""}

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            text = self.rfile.read(int(self.headers["Content-Length"]))
            if how["code"] == 0:
                how["ended"].wait(20)
                return
            got.append((dict(self.headers), text))
            self.send_response(how["code"])
            for name, value in how.get("headers", {}).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(how["body"])

        def log_message(self, *_: object) -> None:
            pass

    made = HTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    how["ended"] = threading.Event()
    yield f"http://127.0.0.1:{made.server_port}/hook", got, how
    how["ended"].set()
    made.shutdown()
    made.server_close()
    thread.join()


def test_the_webhook_is_signed(server: tuple[str, list[tuple[dict[str, str], bytes]], dict[str, Any]]) -> None:
    url, got, _ = server
    assert Webhook(url, b"k" * 32, 20.0).deliver("a1", b'{"kind": "test"}') == ""
    ((headers, text),) = got
    wanted = hmac.new(b"k" * 32, text, hashlib.sha256).hexdigest()
    assert headers["X-Fairlead-Signature-256"] == f"sha256={wanted}" and headers["X-Fairlead-Event"] == "a1"
    assert headers["Content-Type"] == "application/json" and text == b'{"kind": "test"}'


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"code": 500, "body": b"no \x1b[31mroom" + b"x" * 100_000}, "HTTP 500: no [31mroomx"),
        ({"code": 302, "headers": {"Location": "http://127.0.0.1:1/elsewhere"}}, "HTTP 302"),
        ({"code": 0}, "no answer in 1 s"),
    ],
)
def test_what_is_no_delivery(server: tuple[str, Any, dict[str, Any]], how: dict[str, Any], why: str) -> None:
    url, _, answer = server
    answer.update(how)
    said = Webhook(url, b"k" * 32, 1.0 if how["code"] == 0 else 20.0).deliver("a1", b"{}")
    assert said.startswith(("exit code 1: " + why, why)) or "timed out" in said
    assert len(said) <= 250 and said.isprintable()


def test_an_address_that_nobody_answers() -> None:
    assert "refused" in Webhook("http://127.0.0.1:1/", b"k" * 32, 20.0).deliver("a1", b"{}")


@pytest.mark.parametrize(("mode", "text", "why"), [(0o644, "k" * 32, "others may"), (0o600, "k", "16 to"), (0, None, "No such")])
def test_a_key_that_cannot_be_used(tmp_path: Path, mode: int, text: str | None, why: str) -> None:
    if text is not None:
        (tmp_path / "key").write_text(text)
        (tmp_path / "key").chmod(mode)
    with pytest.raises(ConfigError, match=why):
        channels_of(EventsOptions(url="http://h/", key_file=str(tmp_path / "key")), "site.toml")


def test_a_key_that_exists_and_cannot_be_read_is_not_made_anew(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("k" * 32)
    (tmp_path / "key").chmod(0o400)
    os.seteuid(65534)  # nobody, as the account of the unit
    try:
        with pytest.raises(ConfigError, match="Permission denied") as raised:
            channels_of(EventsOptions(url="http://h/", key_file=str(tmp_path / "key")), "site.toml")
    finally:
        os.seteuid(0)
    assert "chown fairlead" in raised.value.hint and "urandom" not in raised.value.hint


def test_the_key_of_the_unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    (tmp_path / "events.key").write_text("k" * 32 + "\n")
    assert list(channels_of(EventsOptions(url="http://h/", key_file="/nonexistent"), "x")) == ["webhook"]
    (tmp_path / "events.key").write_text("-")
    with pytest.raises(ConfigError):
        channels_of(EventsOptions(url="http://h/", key_file="/nonexistent"), "x")
    with pytest.raises(ConfigError, match="path of a program"):
        channels_of(EventsOptions(command=("mail",)), "x")


# -- a full disk ----------------------------------------------------------------------------------------


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small tmpfs")
def test_a_full_disk_sends_nothing_twice(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    site = Site(tmp_path)
    site.history(record())
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(state)], check=True)
    try:

        def run() -> None:
            with FleetStore(str(tmp_path), write=False) as fleet, EventStore(str(state), write=True) as store:
                EventProgram(store, fleet, site.options, {"command": site.channel}, say=site.said.append).run()

        run()
        site.history(record(drained(T), written_unix=NOW + 1))
        with (state / "filler").open("wb", buffering=0) as filler, pytest.raises(OSError):
            while True:
                filler.write(b"x" * 4096)
        for _ in range(3):
            with pytest.raises(HostError, match=r"full|I/O"):
                run()
        assert site.channel.taken == [], "what cannot be saved as sent is not sent"
        (state / "filler").unlink()
        run()
        run()
        assert site.channel.kinds == ["drained"]
    finally:
        subprocess.run(["umount", "-l", str(state)], check=True)


# -- the command ----------------------------------------------------------------------------------------


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hook = script(tmp_path, f'cat >>"{tmp_path}/taken"; echo >>"{tmp_path}/taken"')
    (tmp_path / "site.toml").write_text(f'schema = 1\n[events]\ncommand = ["{hook[0]}"]\ncluster = "c1"\n')
    folders = ["--store", str(tmp_path), "--state", str(tmp_path / "events"), "--site", str(tmp_path / "site.toml")]
    site = Site(tmp_path)
    site.history(record())
    assert main(["events", "deliver", *folders]) == 0
    site.history(record(drained(T)))
    assert main(["events", "deliver", "--dry-run", *folders]) == 0
    assert "1 deliveries would be tried" in capsys.readouterr().out and not (tmp_path / "taken").exists()
    assert main(["events", "deliver", *folders]) == 0 and main(["events", "deliver", *folders]) == 0
    (line,) = (tmp_path / "taken").read_text().splitlines()
    event = json.loads(line)
    assert event["kind"] == "drained" and event["cluster"] == "c1"
    capsys.readouterr()
    assert main(["events", "--json", *folders]) == 0
    (listed,) = json.loads(capsys.readouterr().out)["events"]
    assert listed["event"]["id"] == event["id"] and listed["delivery"]["state"] == "delivered"
    assert main(["events", *folders]) == 0 and event["id"][:10] in capsys.readouterr().out
    assert main(["events", "test", "gpu1", *folders]) == 0
    assert json.loads((tmp_path / "taken").read_text().splitlines()[-1])["kind"] == "test"
    assert main(["events", "retry", "zz", *folders]) == 66 and main(["events", "retry", *folders]) == 64


def test_the_mail_example(tmp_path: Path) -> None:
    sendmail = tmp_path / "sendmail"
    sendmail.write_text(f'#!/bin/sh\ncat >"{tmp_path}/mail"\n')
    sendmail.chmod(0o755)
    example = str(ROOT / "slurm/events/mail")
    event = FleetEvent(kind="drained", node="n1", at_unix=T, why="a\nTo: evil@example.org")
    env = {"PATH": "/usr/bin:/bin", "SENDMAIL": str(sendmail), "FAIRLEAD_EVENT": event_id(event)}
    assert ran((example, "ops@example.org"), body(event, event_id(event), ""), 20.0, env) == ""
    text = (tmp_path / "mail").read_text()
    head, _, rest = text.partition("\n\n")
    assert head.splitlines()[0] == "To: ops@example.org" and "evil" not in head
    assert json.loads(rest)["node"] == "n1"
    assert "exit code 64" in ran((example, "-t; rm"), b"{}", 20.0, env)


def test_the_ticket_example(server: tuple[str, list[tuple[dict[str, str], bytes]], dict[str, Any]]) -> None:
    url, got, how = server
    example = str(ROOT / "slurm/events/ticket")
    env = {"PATH": "/usr/bin:/bin", "TICKET_TOKEN": "/nonexistent"}
    for kind in ("drained", "resumed"):
        event = FleetEvent(kind=kind, node="n1", at_unix=T)
        assert ran((example, url), body(event, event_id(event), ""), 20.0, env) == ""
    assert [json.loads(text)["action"] for _, text in got] == ["open", "comment"]
    how["code"] = 500
    assert "exit code 1" in ran((example, url), body(event, event_id(event), ""), 20.0, env)


@pytest.mark.root
def test_what_root_makes_belongs_to_the_account_of_the_folder(tmp_path: Path) -> None:
    """Else the account whose timer delivers could never open the queue again."""
    os.chown(tmp_path, 4711, 4711)
    with EventStore(str(tmp_path), write=True):
        assert {path.stat().st_uid for path in tmp_path.iterdir() if path.suffix in (".sqlite", ".lock")} == {4711}


def test_a_database_of_another_program_is_left_alone(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "events.sqlite") as db:
        db.execute("CREATE TABLE other (x)")
    db.close()
    with pytest.raises(DataError, match="is not a store of fairlead"), EventStore(str(tmp_path), write=True):
        pass
