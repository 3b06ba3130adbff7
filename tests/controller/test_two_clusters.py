"""A store has the history of one cluster: two clusters may have nodes of one name, and jobs of one number."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.cli import main
from fairlead.controller.event_store import EventStore
from fairlead.controller.fleet_store import FleetStore
from fairlead.errors import ExitCode
from fairlead.slurm.scontrol import Scontrol


def test_a_round_for_another_cluster_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    confs = {}
    for name in ("Alpha", "beta"):
        confs[name] = tmp_path / f"{name}.conf"
        confs[name].write_text(f"# ClusterName=old\nClusterName={name}\n")
    store, state = str(tmp_path / "store"), str(tmp_path / "events")

    def collect(cluster: str, *more: str) -> int:
        words = ["collect", "--store", store, "--slurm-conf", str(confs[cluster]), "--bin-dir", str(tmp_path / "none")]
        return main([*words, *more])

    def deliver() -> int:
        site = tmp_path / "site.toml"
        site.write_text('schema = 1\n[classes.a]\nnodes = "n1"\nprofile = "hgx-h100"\n')
        return main(["events", "deliver", "--store", store, "--state", state, "--site", str(site)])

    assert Scontrol(conf=str(confs["Alpha"])).cluster() == "alpha"
    assert Scontrol(conf=str(tmp_path / "none")).cluster() == ""
    assert collect("Alpha") == ExitCode.OK and collect("Alpha") == ExitCode.OK
    assert deliver() == ExitCode.OK
    capsys.readouterr()
    assert collect("beta") == ExitCode.BAD_DATA
    said = capsys.readouterr().err
    assert "has the history of cluster alpha, and slurm.conf here is of beta" in said and "--renamed-cluster" in said
    assert deliver() == ExitCode.OK
    with FleetStore(store, write=True) as fleet:  # the events of one cluster in the queue of another
        fleet.keep({"cluster": "gamma"})
    assert deliver() == ExitCode.BAD_DATA
    with FleetStore(store, write=True) as fleet:
        fleet.keep({"cluster": "alpha"})
    assert collect("beta", "--renamed-cluster") == ExitCode.OK and collect("beta") == ExitCode.OK
    assert deliver() == ExitCode.OK
    with EventStore(state, write=False) as events:
        assert events.kept("cluster") == "beta"
