"""fairlead's timers on a controller with real systemd, Slurm and slurmdbd: each change of a node's state is one event, sent once.

The site's command and the webhook both refuse the first one at first, and the controller restarts before they take it.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.accounting.controller_host import HOME, KEY, PROGRAM, PYTHON, ROOT, SITE, add_account, install
from tests.lab.ledger import own_name
from tests.lab.pause import until
from tests.lab.rack import Rack
from tests.lab.wheels import wheelhouse
from tests.rack.provisioned import ProvisionedRack

pytestmark = [pytest.mark.root, pytest.mark.slurm, pytest.mark.slow, pytest.mark.rack, pytest.mark.timeout(900)]
XID = "NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
SECRET = "c2VjcmV0IG9mIHRoZSBsYWIsIDQ0IGJ5dGVzIGxvbmc="
EVENTS = """
[events]
command = ["/srv/hook"]
url = "http://127.0.0.1:8099/fairlead"
cluster = "lab"
"""
#: Refuses each event until /srv/open is there, then writes it into the only folder where the unit may write.
HOOK = """#!/bin/sh
[ -e /srv/open ] || exit 1
{ cat; echo; } >>/var/lib/fairlead-events/taken
"""
#: Answers 503 until /srv/open is there, then keeps each body with its signature.
RECEIVER = """\
import http.server, json, os
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        taken = os.path.exists("/srv/open")
        if taken:
            sign, identity = self.headers["X-Fairlead-Signature-256"], self.headers["X-Fairlead-Event"]
            kept = {"body": body.decode(), "sign": sign, "id": identity}
            with open("/srv/posted", "a") as file:
                file.write(json.dumps(kept) + "\\n")
        self.send_response(200 if taken else 503)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", 8099), Handler).serve_forever()
"""
UNIT = "[Service]\nExecStart=/usr/bin/python3 /srv/receiver.py\n[Install]\nWantedBy=multi-user.target\n"
#: The timers as they are, and earlier: a round each ten seconds, also soon after the restart.
SOON = "[Timer]\nOnBootSec=1s\nOnUnitInactiveSec=10s\nAccuracySec=1s\n"


@pytest.fixture(scope="module")
def site() -> Iterator[ProvisionedRack]:
    with Rack(2, suite="trixie", name=own_name("events"), accounting=True) as rack:
        made = ProvisionedRack(rack)
        made.provision("gpu[1-2]")
        made.hooks_on()
        set_up(rack)
        yield made


def set_up(rack: Rack) -> None:
    """Do what docs/how-to/job-reports.md and events.md say."""
    install(rack.controller, rack.suite)
    add_account(rack)
    rack.ctl("sacctmgr -iQ add user fairlead account=research adminlevel=Operator")
    key = rack.ctl(KEY.format(home=HOME, nodes=" ".join(host.name for host in rack.nodes))).strip()
    for host in rack.nodes:
        line = f'restrict,command="{PROGRAM} usage-records --asked" {key}\n'
        host.run("install -d -m 0700 /root/.ssh; cat >> /root/.ssh/authorized_keys", stdin=line)
    rack.ctl("install -d /etc/fairlead")
    for name, text in (
        ("/etc/fairlead/site.toml", SITE + EVENTS),
        ("/etc/fairlead/events.key", SECRET),
        ("/srv/hook", HOOK),
        ("/srv/receiver.py", RECEIVER),
        ("/etc/systemd/system/receiver.service", UNIT),
    ):
        rack.controller.path(name).write_text(text)
    # systemd of a lab host cannot mount credentials, so the key belongs to the account, as the hint of `fairlead events` says.
    rack.ctl("chown fairlead /etc/fairlead/events.key; chmod 0400 /etc/fairlead/events.key; chmod 0755 /srv/hook")
    rack.ctl(f"{PROGRAM} collect --units /etc/systemd/system")
    for timer in ("fairlead-collect", "fairlead-events"):
        folder = rack.controller.path(f"/etc/systemd/system/{timer}.timer.d")
        folder.mkdir()
        (folder / "lab.conf").write_text(SOON)
    rack.ctl("systemctl daemon-reload && systemctl enable -q --now receiver fairlead-collect.timer")


def events(rack: Rack) -> list[dict[str, Any]]:
    said = rack.controller.run([PROGRAM, "events", "--json"], check=False)
    found: list[dict[str, Any]] = json.loads(said.stdout)["events"] if said.returncode == 0 else []
    return found


def lines(rack: Rack, path: str) -> list[str]:
    file = rack.controller.path(path)
    return file.read_text().splitlines() if file.exists() else []


def ended(rack: Rack) -> str:
    """When the last round of the timer ended, by the controller's monotonic clock; 0 before the first one."""
    return rack.ctl("systemctl show -P ExecMainExitTimestampMonotonic fairlead-events.service").strip()


def later_rounds(rack: Rack, more: int) -> None:
    try:
        for _ in range(more):
            before = ended(rack)
            until(lambda known=before: ended(rack) not in (known, "0"), "further round of the timer", 90)  # type: ignore[misc]
        assert rack.ctl("systemctl show -P Result fairlead-events.service").strip() == "success"
    except AssertionError as e:
        said = rack.ctl("systemctl --no-pager status 'fairlead-*'; journalctl --no-pager -n 40", check=False)
        raise AssertionError(f"{e}\n{said}") from None


def test_a_drain_is_one_event_that_each_channel_takes_once_over_a_restart(site: ProvisionedRack) -> None:
    rack = site.rack
    until(lambda: rack.controller.path(f"{HOME}/fleet.sqlite").exists(), "history of the fleet", 120)
    rack.ctl("systemctl enable -q --now fairlead-events.timer")
    later_rounds(rack, 1)
    assert events(rack) == [], "the first run only remembers"

    site.node(1).inject_kmsg(XID)
    until(lambda: rack.node_state("gpu1").reason.startswith("fairlead:xid:"), "drain of gpu1", 90)
    until(lambda: [each["delivery"]["tries"] for each in events(rack)] == [1, 1], "try of both channels", 180)
    found = events(rack)
    assert {each["event"]["kind"] for each in found} == {"drained"} and len({each["event"]["id"] for each in found}) == 1
    assert {each["delivery"]["state"] for each in found} == {"waiting"}
    assert lines(rack, "/srv/posted") == lines(rack, "/var/lib/fairlead-events/taken") == []

    rack.controller.reboot()
    rack.controller.wait_ssh()
    rack.ctl("touch /srv/open")
    until(lambda: {each["delivery"]["state"] for each in events(rack)} == {"delivered"}, "delivery after the restart", 240)
    later_rounds(rack, 3)
    (taken,), (posted,) = lines(rack, "/var/lib/fairlead-events/taken"), map(json.loads, lines(rack, "/srv/posted"))
    event = json.loads(taken)
    assert json.loads(posted["body"]) == event and posted["id"] == event["id"]
    assert (event["kind"], event["node"], event["by"], event["cause"]) == ("drained", "gpu1", "fairlead", "xid")
    assert event["cluster"] == "lab" and event["token"] in rack.node_state("gpu1").reason
    digest = hmac.new(SECRET.encode(), posted["body"].encode(), hashlib.sha256).hexdigest()
    assert posted["sign"] == f"sha256={digest}"
    assert "fairlead-events" not in "".join(rack.controller.units_failed())

    rack.scontrol("update", "nodename=gpu2", "state=drain", "reason=fan is noisy")
    until(lambda: len(lines(rack, "/srv/posted")) == 2, "event of a person's drain, which slurmdbd has", 240)
    later_rounds(rack, 2)
    second = [json.loads(json.loads(line)["body"]) for line in lines(rack, "/srv/posted")[1:]]
    assert [(e["kind"], e["node"], e["by"], e["summary"]) for e in second] == [("drained", "gpu2", "person", "fan is noisy")]
    assert len(lines(rack, "/var/lib/fairlead-events/taken")) == 2


#: `fairlead events deliver` by a clock that is a day ahead: what the agents have reported is then also taken from slurmdbd, and
#: the list of lemons is made again.
A_DAY_LATER = """\
import sys, time
true = time.time
time.time = lambda: true() + 86500.0
from fairlead.cli import main
sys.exit(main(["events", "deliver"]))
"""


def posted(rack: Rack) -> list[dict[str, Any]]:
    return [json.loads(json.loads(line)["body"]) for line in lines(rack, "/srv/posted")]


def begin(rack: Rack) -> None:
    """Let the timers run and the channels take what comes, with gpu2 in service and no event on its way."""
    until(lambda: rack.controller.path(f"{HOME}/fleet.sqlite").exists(), "history of the fleet", 120)
    rack.ctl("touch /srv/open; systemctl enable -q --now fairlead-events.timer")
    later_rounds(rack, 1)
    if "DRAIN" in rack.node_state("gpu2").states:
        before = len(posted(rack))
        rack.scontrol("update", "nodename=gpu2", "state=resume")
        until(lambda: len(posted(rack)) > before, "event of the resume", 240)


def test_each_change_of_state_is_one_event_on_each_channel(site: ProvisionedRack) -> None:
    """A hold, a drain of the agent, an acknowledgement with the agent's resume, a repair, a maintenance, and a lemon."""
    rack, host = site.rack, site.node(2)
    begin(rack)
    old = len(posted(rack))

    def came(kind: str) -> None:
        until(lambda: kind in [event["kind"] for event in posted(rack)[old:]], f"event {kind}", 240)

    host.run("/usr/local/bin/fairlead hold --reason 'riser swap' && /usr/local/bin/fairlead hold --release")
    host.inject_kmsg(XID)
    until(lambda: rack.node_state("gpu2").reason.startswith("fairlead:xid:"), "drain of gpu2", 90)
    came("drained")
    host.run("/usr/local/bin/fairlead ack --all --reason 'known, RMA 4711'")
    until(lambda: "DRAIN" not in rack.node_state("gpu2").states, "resume by the agent", 180)
    came("resumed")
    host.run("/usr/local/bin/fairlead clear --all --reason 'GPU replaced'")
    wheels = str(wheelhouse(rack.suite))
    words = ("--site", str(site.site), "--journal", str(rack.folder / "maintain.db"), "--slurm-conf", "/etc/slurm/slurm.conf")
    site.fairlead("maintain", "gpu2", "--reason", "new driver", *words, "--bin-dir", str(rack.bin), "--wheelhouse", wheels)
    for kind in ("held", "acknowledged", "repaired", "maintenance"):
        came(kind)
    until(lambda: [event["kind"] for event in posted(rack)[old:]].count("resumed") == 2, "event of the second resume", 240)

    rack.ctl("systemctl stop fairlead-collect.timer fairlead-events.timer fairlead-collect.service fairlead-events.service")
    store = (ROOT / "tests/accounting/lemon_store.py").read_text()
    rack.controller.run([PYTHON, "-I", "-c", store, HOME, str(time.time())], user="fairlead")
    rack.controller.run([PYTHON, "-I", "-c", A_DAY_LATER], user="fairlead")
    rack.ctl("systemctl start fairlead-collect.timer fairlead-events.timer")
    later_rounds(rack, 2)
    new = posted(rack)[old:]
    assert Counter((event["kind"], event["node"]) for event in new) == {
        ("held", "gpu2"): 1,
        ("drained", "gpu2"): 1,
        ("acknowledged", "gpu2"): 1,
        ("resumed", "gpu2"): 2,
        ("repaired", "gpu2"): 1,
        ("maintenance", "gpu2"): 1,
        ("lemon", "made7"): 1,
    }, new
    taken = [json.loads(line) for line in lines(rack, "/var/lib/fairlead-events/taken")][-len(new) :]
    assert sorted(event["id"] for event in taken) == sorted({event["id"] for event in new}), "each id once on each channel"
    by_kind = {event["kind"]: event for event in taken}
    assert (by_kind["held"]["why"], by_kind["acknowledged"]["why"]) == ("riser swap", "known, RMA 4711")
    assert (by_kind["drained"]["cause"], by_kind["repaired"]["why"]) == ("xid", "GPU replaced")
    assert (by_kind["maintenance"]["by"], by_kind["maintenance"]["cause"]) == ("person", "maintain")
