"""fairlead plan, --tags, the inventory, and the report: what needs no node."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fairlead import config, settings
from fairlead.cli import main
from fairlead.errors import ConfigError, ExitCode, InputMissing, SlurmError, UsageError
from fairlead.provision import inventory, planned_changes, provision_report
from fairlead.provision.planned_changes import of_items, of_result
from fairlead.provision.provision_progress import display
from fairlead.provision.provision_report import NodeResult, node_result
from fairlead.slurm.scontrol import Scontrol
from tests.lab.trees import MACHINES

TREE = MACHINES / "hgx-h100"
SITE = 'schema = 1\n[classes.h100]\nnodes = "gpu[1-3]"\nprofile = "hgx-h100"\n'


def planned(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> dict[str, Any]:
    assert main(["plan", "--json", *words]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_tree_is_planned_for_without_any_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = tmp_path / "site.toml"
    words = 'words = ["iommu=pt"]'
    site.write_text(f"{SITE}[nodes.gpu2.settings.kernel_cmdline]\n{words}\n")
    assert main(["plan", "--site", str(site), "--root", f"gpu1={TREE}", "--root", f"gpu3={TREE}"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("gpu[1,3] (2 nodes): would change, needs an idle node\n")
    assert "  numa_balancing: kernel.numa_balancing is 1, wanted 0 (/proc/sys/kernel/numa_balancing)\n" in told
    assert told.endswith("needs an idle node: gpu[1,3]\n2 nodes: 2 would change\n")
    found = planned(capsys, "--site", str(site), "--root", f"gpu2={TREE}", "--tags", "pcie_acs", "--exit-code", code=1)
    (node,) = found["nodes"]
    assert {step["setting"] for step in node["steps"]} == {"pcie_acs"} and node["needs"] == "idle"
    assert main(["plan", "--root", f"a={TREE}", "--root", f"a={TREE}", "--profile", "hgx-h100"]) == 65
    assert "two trees are of node a" in capsys.readouterr().err
    assert main(["plan", "--root", str(tmp_path / "none"), "--profile", "hgx-h100"]) == 66
    assert main(["plan", "--site", str(site), "--root", f"gpu9={TREE}"]) == 64


def unwrapped(text: str) -> str:
    """Return a report with each line whole again."""
    return text.replace("\n      | ", " ")


def item(setting: str, state: str, *steps: tuple[str, str], message: str = "") -> dict[str, object]:
    made = [{"target": setting, "why": why, "disruption": needs, "diff": ""} for why, needs in steps]
    return {"setting": setting, "state": state, "message": message, "hint": "", "steps": made}


CHANGE = {"what": "/x", "why": "content"}


def test_nodes_that_need_a_reboot_or_a_drain_are_named() -> None:
    plans = [
        of_items("gpu1", [item("kernel_cmdline", "would_change", ("file", "none"), ("running", "reboot"))]),
        of_items("gpu2", [item("driver", "deferred", ("other version", "drain"))], busy=True),
        of_items("gpu3", [item("sysctl", "refused", message="brr")]),
        of_items("gpu4", [item("nccl", "same")]),
        of_result(node_result("gpu5", "runner_on_unreachable", "t", {"msg": "No route to host"})),
        of_result(
            node_result("gpu6", "runner_on_ok", "t", {"changes": [{"what": "/x", "why": "content"}], "apply": {"items": []}})
        ),
    ]
    assert [p.state for p in plans] == ["would_change", "would_change", "failed", "same", "unreachable", "would_change"]
    assert planned_changes.needing(plans) == {"reboot": ("gpu1",), "drain": ("gpu2",), "draining": (), "idle": ()}
    told = planned_changes.text(plans).splitlines()
    assert "  kernel_cmdline: running (kernel_cmdline) [reboot]" in told and "  /x: content" in told
    assert "needs a reboot: gpu1" in told and "needs a drained node: gpu2" in told and "a job runs there now: gpu2" in told
    assert told.index("  cannot: No route to host") > told.index("gpu4 (1 node): same"), "those not reached come last"
    assert told[-1] == "6 nodes: 1 the same, 3 would change, 1 failed, 1 unreachable"


def test_a_plan_names_the_file_that_declares_what_cannot_be_and_shows_our_own_files_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = tmp_path / "site.toml"
    site.write_text(f'{SITE}[nodes.gpu1.settings.sysctl.values]\n"net.ipv4.tcp_congestion_control" = "brr"\n')
    assert main(["plan", "--site", str(site), "--root", f"gpu1={TREE}"]) == 69
    assert f"  cannot: sysctl: {site} nodes.gpu1: settings.sysctl.values.net.ipv4.tcp_" in unwrapped(capsys.readouterr().out)
    changes = [{"what": "/x", "why": "content", "before": "a\n", "after": f"{n}\n"} for n in range(2)]
    results = [
        node_result(f"gpu{n}", "runner_on_ok", "t", {"changes": [c], "apply": {"items": []}}) for n, c in enumerate(changes)
    ]
    told = planned_changes.text([of_result(r) for r in results], diff=True)
    assert told.startswith("gpu[0-1] (2 nodes): would change\n  /x: content\n  diff of gpu0, the first of them:\n    --- /x\n")
    assert "    +0\n" in told and "    +1\n" not in told
    assert "  diff of gpu0, the first of them:\n    --- /x\n" in provision_report.text(made_of(results), diff=True)


def test_tags_are_settings_and_their_groups() -> None:
    assert settings.select("pcie_acs, memlock") == ("memlock", "pcie_acs")
    assert {"memlock", "pcie_acs"} <= set(settings.select("pcie,memlock"))
    assert set(settings.select("kernel")) >= {"sysctl", "numa_balancing", "kernel_cmdline"}
    for group, names in settings.groups().items():
        assert group not in settings.load() or group in names, "a setting is in the group of its name"
    assert all(s.group for s in settings.load().values()), "each setting can be chosen with others of its kind"


@pytest.mark.parametrize(("words", "said"), [("nvlink", "nvlink: no setting and no group"), (",", "names no setting")])
def test_an_unknown_tag_names_those_that_exist(words: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as raised:
        settings.select(words)
    assert all(group in raised.value.hint for group in settings.groups())


def test_a_tag_that_no_node_declares_is_said_before_any_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = tmp_path / "site.toml"
    site.write_text(SITE)
    assert main(["provision", "--site", str(site), "--tags", "journald", "-q"]) == 64
    assert "--tags: journald: declared for none of these nodes" in capsys.readouterr().err
    assert main(["provision", "--site", str(site), "--tags", "nccl", "--uninstall", "-q"]) == 64


def answering(folder: Path, *nodes: tuple[str, str]) -> Scontrol:
    """A sinfo that knows these nodes and their addresses: each field ends in the mark that it is asked for."""
    program = folder / "sinfo"
    rows = "".join(f'printf \'%s%s%s%s\\n\' {shlex.quote(name)} "$mark" {shlex.quote(at)} "$mark"\n' for name, at in nodes)
    program.write_text(f"#!/bin/sh\nmark=${{5##*:}}\n{rows}")
    program.chmod(0o755)
    return Scontrol(bin_dir=str(folder))


RECORDED = (("gpu1", "10.0.0.1"), ("gpu2", "gpu2.example"), ("login1", "login1"), ("gpu1", "10.0.0.1"))


def test_nodes_and_addresses_come_from_slurm(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_text(SITE + '[ansible.hosts]\ngpu2 = "10.0.0.22"\n')
    site = config.load_site(str(path))
    known = inventory.in_slurm(answering(tmp_path, *RECORDED))
    assert known == {"gpu1": "10.0.0.1", "gpu2": "gpu2.example", "login1": "login1"}
    assert {t.node: t.address for t in inventory.targets(site, "", known)} == {"gpu1": "10.0.0.1", "gpu2": "10.0.0.22"}
    with pytest.raises(UsageError, match="gpu3: Slurm has no such node"):
        inventory.targets(site, "gpu[1-3]", known)
    with pytest.raises(UsageError, match="login1: not declared in"):
        inventory.targets(site, "login1", known)
    with pytest.raises(ConfigError, match=r"Slurm has none of gpu\[1-3\]"):
        inventory.targets(site, "", {"cpu1": "cpu1"})
    with pytest.raises(InputMissing, match="no node"):
        inventory.in_slurm(answering(tmp_path))


@pytest.mark.parametrize("entry", [("n1", "10.6.6.6"), ("n3", "-oProxyCommand=id"), ("../n3", "10.6.6.6"), ("n3", "{{x}}")])
def test_no_address_of_slurm_is_an_option_or_leads_to_two_machines(entry: tuple[str, str], tmp_path: Path) -> None:
    with pytest.raises(SlurmError, match="is no node, or is listed twice"):
        inventory.in_slurm(answering(tmp_path, ("n1", "10.0.0.1"), ("n2", "10.0.0.2"), entry))


def test_a_slurmd_gives_no_node_an_address(tmp_path: Path) -> None:
    """What a slurmd says of its machine is not asked for: only two fields that slurm.conf gives."""
    client = answering(tmp_path, ("n1", "10.0.0.1"))
    (tmp_path / "scontrol").write_text("#!/bin/sh\necho 'NodeName=n1 Arch=x NodeAddr=10.6.6.6 NodeAddr=10.0.0.1'\n")
    (tmp_path / "scontrol").chmod(0o755)
    assert inventory.in_slurm(client) == {"n1": "10.0.0.1"}


def test_a_group_of_clustershell_that_is_none_is_an_error(tmp_path: Path) -> None:
    """ClusterShell itself takes it for an empty one: the run would have nothing to do, and say that all is well."""
    path = tmp_path / "site.toml"
    path.write_text(SITE)
    with pytest.raises(UsageError, match="@nobody: no such group"):
        inventory.targets(config.load_site(str(path)), "gpu1,@nobody")
    path.write_text(SITE.replace("gpu[1-3]", "@nobody"))
    with pytest.raises(ConfigError, match=r"classes\.h100\.nodes: @nobody: no such group"):
        inventory.targets(config.load_site(str(path)))


def made_of(nodes: Sequence[NodeResult], check: bool = False) -> provision_report.ProvisionReport:
    return provision_report.ProvisionReport(
        site="site.toml", generation=7, check=check, seconds=1.5, nodes=tuple(nodes), began=1763769600.0, tags=("nccl",)
    )


def made(*states: str, check: bool = False) -> provision_report.ProvisionReport:
    return made_of([NodeResult(node=f"gpu{i}", state=s, message=s) for i, s in enumerate(states)], check)


@pytest.mark.parametrize(
    ("states", "plain", "detailed"),
    [
        (("same",), 0, 0),
        (("same", "changed"), 0, 1),
        (("changed", "unreachable"), 68, 68),
        (("failed", "unreachable", "changed"), 69, 69),
        (("unfinished", "same"), 69, 69),
    ],
)
def test_exit_codes_say_changed_failed_unreachable(states: tuple[str, ...], plain: int, detailed: int) -> None:
    found = made(*states)
    assert (found.exit_code, found.detailed_exit_code) == (plain, detailed)


def test_the_page_for_a_change_ticket_says_what_when_and_how_it_ended() -> None:
    page = provision_report.ticket(made("same", "unreachable", "failed"), ExitCode.UNAVAILABLE, "ada on admin1")
    assert "site: site.toml, generation 7\nsettings: nccl\nbegan: 2025-11-22 00:00:00 UTC\n" in page
    assert page.startswith("fairlead provision: change\nby: ada on admin1\n")
    assert "exit code: 69" in page and page.endswith("3 nodes: 1 the same, 1 failed, 1 unreachable; 0 changes in 1.5 s\n")
    assert page.index("gpu2 (1 node): failed") < page.index("gpu1 (1 node): unreachable"), "those not reached come last"
    found = provision_report.data(made("same", "same"), ExitCode.OK)
    assert (found["counts"], found["exit_code"], found["groups"]) == (
        {"same": 2},
        0,
        [{"nodes": "gpu[0-1]", "count": 2, "state": "same", "waiting": 0}],
    )


@pytest.mark.parametrize(
    "case",
    [
        (SITE, ("-l", "gpu[2,9]"), 64, ("gpu9: not declared in", "site.toml")),
        (SITE, ("--tags", "nccl,numa"), 64, ("numa: no setting", "kernel: ")),
        (SITE.replace("hgx-h100", "hgx-h900"), (), 66, ("site.toml: classes.h100.profile", "hgx-h900", "known profiles: ")),
        (SITE + "[classes.h100.settings.numa_balancing]\nvalu = 0\n", (), 78, ("site.toml", "settings.numa_balancing", "valu")),
        (SITE + "[classes.h100.setings.nccl]\n", (), 78, ("site.toml: classes.h100.setings: unknown key", "known here: ")),
        (SITE + "[nodes.gpu2.settings.frobnicate]\n", (), 78, ("site.toml nodes.gpu2", "frobnicate")),
        (SITE + "[ansible]\nuser = {}\n", (), 78, ("site.toml: ansible.user",)),
        (SITE + "[ansible\n", (), 78, ("site.toml: not TOML", "line 5")),
    ],
)
@pytest.mark.parametrize("command", ["provision", "plan", "render"])
def test_bad_input_is_one_clear_line_before_any_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, case: tuple[str, tuple[str, ...], int, tuple[str, ...]]
) -> None:
    site, words, code, said = case
    (tmp_path / "site.toml").write_text(site)
    more = ["-o", str(tmp_path / "out")] if command == "render" else ["-q"]
    assert main([command, "--site", str(tmp_path / "site.toml"), *words, *more]) == code
    told = capsys.readouterr().err
    assert all(each in told for each in said), told
    assert len(told.splitlines()) <= 2 and not (tmp_path / "out").exists()


def unreachable(tmp_path: Path, terminal: bool) -> str:
    """What a run with one node that nobody answers for shows of its progress."""
    (tmp_path / "site.toml").write_text(SITE + '[ansible]\nssh_args = "-o Port=9"\nhosts = { gpu1 = "127.0.0.1" }\n')
    command = [sys.executable, "-m", "fairlead", "provision", "--site", str(tmp_path / "site.toml"), "--check", "-l", "gpu1"]
    env = {**os.environ, "PYTHONPATH": str(Path(config.__file__).parents[2]), "TERM": "xterm", "COLUMNS": "120"}
    ours, theirs = os.openpty() if terminal else os.pipe()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, env=env) as run:
        os.close(theirs)
        shown = b""
        while True:
            try:
                more = os.read(ours, 65536)
            except OSError:  # EIO: the terminal's other side is closed
                break
            if not more:
                break
            shown += more
        run.wait(60)
    os.close(ours)
    assert run.returncode == 68
    return shown.decode()


def test_progress_of_a_check_never_says_that_something_was_changed(capsys: pytest.CaptureFixture[str]) -> None:
    result = NodeResult(
        node="gpu1", state="changed", changed=2, changes=("a: b", "c: d"), waiting=("pcie_acs: x",), waits=("idle",)
    )
    for check in (True, False):
        with display(1, quiet=False, check=check) as shown:
            shown.done(result)
    assert capsys.readouterr().err.splitlines() == [
        "[1/1] gpu1: would change: 2 changes, 1 waiting",
        "[1/1] gpu1: changed: 2 changes, 1 waiting",
    ]


def test_progress_is_a_bar_in_a_terminal_and_plain_lines_elsewhere(tmp_path: Path) -> None:
    lines = unreachable(tmp_path, terminal=False)
    assert lines.startswith("[1/1] gpu1: unreachable: ") and "Connection refused" in lines and "\033" not in lines
    bar = unreachable(tmp_path, terminal=True)
    assert "\033[" in bar and "0/1" in bar and "1 unreachable" in bar and "gpu1: unreachable: " in bar
