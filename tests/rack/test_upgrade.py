"""Two releases of fairlead side by side on one rack, upgraded and rolled back in the middle while jobs run.

The release before is the newest tag v* before this commit, or the commit ``release_before.BEFORE``. The test is skipped where the
history does not have it (a shallow clone). A state of a release to come is made by raising its schema numbers.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.controller.record_reader import records_in
from fairlead.fleet.service_record import decoded as service_record
from tests.lab.ledger import own_name
from tests.lab.rack import Rack
from tests.lab.roots import SUITES
from tests.rack.provisioned import PROJECT, ProvisionedRack, until
from tests.rack.upgrade_scene import UpgradeScene, agents_answer, versions
from tests.release_before import release_before

pytestmark = [pytest.mark.root, pytest.mark.slurm, pytest.mark.rack, pytest.mark.timeout(480), pytest.mark.slow]
HISTORY = "/var/lib/fairlead/history.sqlite"
READ = "import sys; from fairlead.controller.record_reader import records_in; r = records_in(sys.stdin.buffer.read());"
READ += " print(len(r.records), *r.troubles, sep='\\n')"


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the release before."""
    return release_before(tmp_path_factory.mktemp("before"))


@pytest.fixture(scope="module", params=list(SUITES))
def site(request: pytest.FixtureRequest, before: Path) -> Iterator[ProvisionedRack]:
    with Rack(3, suite=request.param, name=own_name("test-upgrade")) as rack:
        made = ProvisionedRack(rack)
        made.provision("gpu[1-3]", release=before)
        made.hooks_on()
        agents_answer(made)
        yield made


def test_1_jobs_and_drains_outlast_an_upgrade_in_batches_and_a_rollback(site: ProvisionedRack, before: Path) -> None:
    scene = UpgradeScene(site)
    releases = {name: each["installed"] for name, each in versions(site).items()}
    assert len(set(releases.values())) == 1
    for nodelist, release in (("gpu[1,3]", PROJECT), ("gpu1", before), ("gpu3", before), ("gpu[1-3]", PROJECT)):
        site.provision(nodelist, release=release)
        found = versions(site)
        for each in found.values():
            assert each["agent"] != "none" and not each["restart_due"], found
            assert re.match(r"\d+\.\d+\.\d+\S*-[0-9a-f]{10}", each["installed"]), found
        touched = {"gpu[1,3]": ("gpu1", "gpu3"), "gpu[1-3]": ("gpu1", "gpu2", "gpu3")}.get(nodelist, (nodelist,))
        assert all((found[name]["installed"] == releases[name]) == (release == before) for name in touched), found
        scene.holds()
    scene.end()


def test_2_records_of_both_releases_are_read_and_the_older_refuses_newer_ones(site: ProvisionedRack, before: Path) -> None:
    """The record of the job on gpu1 was begun, taken over and ended by different releases. gpu2 gets another job of the release
    before, whose record both releases read."""
    site.rack.scontrol("update", "nodename=gpu2", "state=resume")
    site.provision("gpu2", release=before)
    until("gpu2 free", lambda: site.rack.node_state("gpu2").states == ("IDLE",))
    job = site.rack.submit("#!/bin/sh\nsrun sleep 8\n", "--nodelist=gpu2", "--gres=gpu:8", "--exclusive")
    assert site.rack.wait_job(job) == "COMPLETED"
    until(
        f"its record of {site.node(2).run('ls /var/lib/fairlead/usage').stdout.split()}",
        lambda: any(b'"end_unix"' in data for data in records(site, 2, job)),
    )
    (old,) = records(site, 2, job)
    assert len(records_in(old).records) == 1 and read_by(before, old)[0] == "1"
    ended = [data for data in records(site, 1) if b'"end_unix"' in data]
    assert ended
    for data in ended:
        assert len(records_in(data).records) == 1
    job = site.rack.submit("#!/bin/sh\nsrun sleep 8\n", "--nodelist=gpu1", "--gres=gpu:8", "--exclusive")
    assert site.rack.wait_job(job) == "COMPLETED"
    until("the record of this release", lambda: any(b'"end_unix"' in data for data in records(site, 1, job)))
    (new,) = records(site, 1, job)
    assert len(records_in(new).records) == 1
    count, *said = read_by(before, new)
    assert count == "0" and any("is not a usage record" in line for line in said), "the order would not matter"
    newer = ended[0].replace(b'"job-record/1"', b'"job-record/2"', 1)
    count, *said = read_by(before, newer)
    assert count == "0" and any('has the schema "job-record/2"' in line for line in said), said
    assert records_in(newer).records == () and 'has the schema "job-record/2"' in records_in(newer).troubles[0]
    for n in (1, 3):
        record = service_record(site.node(n).path("/run/fairlead/service-record.json").read_bytes())
        assert record.node == f"gpu{n}"


def records(site: ProvisionedRack, number: int, job: int | None = None) -> list[bytes]:
    folder = site.node(number).path("/var/lib/fairlead/usage")
    return [path.read_bytes() for path in sorted(folder.glob(f"{job or ''}*.json"))]


def read_by(release: Path, data: bytes) -> list[str]:
    env = {"PYTHONPATH": str(release / "agent")}
    done = subprocess.run([sys.executable, "-P", "-c", READ], input=data, capture_output=True, env=env, check=True, timeout=60)
    return done.stdout.decode().splitlines()


def test_3_the_state_of_a_release_to_come_is_kept_and_nothing_is_drained(site: ProvisionedRack) -> None:
    """gpu3 was rolled back from a release whose ledger and history have higher schema numbers."""
    host, drain = site.node(3), site.rack.node_state("gpu3")
    host.run("systemctl stop fairlead-agent")
    ledger = host.path("/var/lib/fairlead/ledger.json")
    data = json.loads(ledger.read_text())
    data |= {"schema": 2, "sequence": data["sequence"] + 1}
    data["entry"]["colour"] = "red"
    ledger.write_text(json.dumps(data) + "\n")
    # on the node itself: SQLite would resolve the path that leads from here into the node
    raise_schema = f"import sqlite3; db = sqlite3.connect('{HISTORY}'); db.execute('ALTER TABLE record ADD COLUMN colour TEXT')"
    host.run(["/opt/fairlead/current/bin/python", "-c", f"{raise_schema}; db.execute('PRAGMA user_version = 9'); db.commit()"])
    host.run("systemctl start fairlead-agent")
    until("the agent's own drain", lambda: (site.status(3).get("drain") or {}).get("reason") == drain.reason)
    until("sweeps", lambda: site.status(3)["sweep"]["count"] >= 4)
    assert any("history.sqlite was written by a newer fairlead (schema 9)" in line for line in site.status(3)["trouble"])
    assert json.loads(host.path("/var/lib/fairlead/ledger.json.schema2").read_text()) == data
    assert host.path(f"{HISTORY}.schema9").exists()
    assert site.rack.node_state("gpu3") == drain and site.trail(3).count("drained") == 1


def test_4_the_wrong_order_is_refused(site: ProvisionedRack, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A store of an older collector on this admin host. The command runs here as an admin runs it, and touches no node."""
    from fairlead.cli import main, upgrade_order

    (tmp_path / "controller-release.json").write_text('{"schema":1,"version":"0.0.9","release":"0.0.9-abc","unix":1}')
    before = versions(site)["gpu2"]["installed"]
    monkeypatch.setattr(upgrade_order.refuse_nodes_first, "__defaults__", (str(tmp_path),))
    assert main(["provision", "--site", str(site.site), "-l", "gpu2"]) == 69
    assert versions(site)["gpu2"]["installed"] == before


def test_5_a_silent_node_is_named_and_counts_as_nothing(site: ProvisionedRack) -> None:
    site.node(2).power("off")
    until("gpu2 is off", lambda: not (site.node(2).folder / "init").exists())
    said = site.fairlead("version", "--fleet", "--site", str(site.site), "--bin-dir", str(site.rack.bin), "--timeout", "8")
    assert re.search(r"^gpu2: not known: ", said, re.MULTILINE) and "3 nodes: 2 answered, 1 did not" in said, said
    site.node(1).run("systemctl stop fairlead-agent")
    until("the verdict of gpu1 has expired", lambda: versions(site)["gpu1"]["agent"] == "none", 60)
