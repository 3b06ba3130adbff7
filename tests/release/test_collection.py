"""The Ansible collection: built twice, installed without a network, documented; what it refuses, and what it declares."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("ansible")

from ansible.errors import AnsibleActionFail

import fairlead
from fairlead import settings
from release import galaxy
from tests import plugin_file

BIN = Path(sys.executable).parent
PROJECT = Path(__file__).resolve().parents[2]
SOURCE = PROJECT / "release/collection"
pytestmark = [pytest.mark.root, pytest.mark.heavy, pytest.mark.timeout(180)]
DECLARE = "- hosts: all\n  gather_facts: false\n  roles: [fairlead.nodes.declare]\n"


class Site:
    """A control node with the collection installed, without a network."""

    def __init__(self, folder: Path, collections: Path) -> None:
        self.folder = folder
        keep = {k: v for k, v in os.environ.items() if not k.startswith("ANSIBLE")}
        self.env = keep | {
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "LC_ALL": "C.UTF-8",
            "ANSIBLE_HOME": str(folder / "home"),
            "ANSIBLE_COLLECTIONS_PATH": str(collections),
            "ANSIBLE_NOCOLOR": "1",
        }

    def run(self, *words: str | Path, code: int = 0) -> str:
        """What a command says without a network."""
        command = ["unshare", "--net", *map(str, words)]
        done = subprocess.run(command, cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def play(self, inventory: dict[str, Any], *words: str, code: int = 0, playbook: str = DECLARE) -> str:
        (self.folder / "inventory.yml").write_text(json.dumps({"all": inventory}))
        (self.folder / "site.yml").write_text(playbook)
        return self.run("ansible-playbook", "-i", "inventory.yml", "site.yml", *words, code=code)

    def declared(self) -> dict[str, Any]:
        return tomllib.loads((self.folder / "out/site.toml").read_text())


def nodes(hosts: dict[str, dict[str, Any]], **declared: Any) -> dict[str, Any]:
    return {"hosts": hosts, "vars": {"declare_folder": "out", **{f"declare_{name}": value for name, value in declared.items()}}}


def action() -> Any:
    path = SOURCE / "plugins/action/fairlead_declare.py"
    return plugin_file.load(path)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built")
    return galaxy.build_collection(PROJECT, folder, folder, 1)


@pytest.fixture(scope="module")
def site(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Site:
    folder = tmp_path_factory.mktemp("site")
    made = Site(folder, folder / "collections")
    said = made.run("ansible-galaxy", "collection", "install", "--offline", "-p", folder / "collections", archive)
    assert "fairlead.nodes:0.1.0 was installed successfully" in said
    return made


def test_the_same_source_gives_the_same_bytes(archive: Path, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere"
    for name in ("pyproject.toml", "LICENSE", "playbooks", "release"):
        words = ["cp", "-r", "--no-preserve=mode,timestamps", str(PROJECT / name), f"{copy}/"]
        copy.mkdir(exist_ok=True)
        subprocess.run(words, check=True)
    assert galaxy.build_collection(copy, tmp_path / "work", tmp_path, 1).read_bytes() == archive.read_bytes()


def test_it_is_whole_and_its_module_and_roles_are_documented(site: Site) -> None:
    assert "internally consistent with its manifest" in site.run(
        "ansible-galaxy", "collection", "verify", "--offline", "fairlead.nodes"
    )
    said = json.loads(site.run("ansible-doc", "--json", "fairlead.nodes.fairlead_node", "fairlead.nodes.fairlead_declare"))
    assert set(said["fairlead.nodes.fairlead_node"]["doc"]["options"]) == {"bundle", "python", "answer_seconds"}
    roles = json.loads(site.run("ansible-doc", "-t", "role", "--json", "-l", "fairlead.nodes"))
    assert set(roles) == {f"fairlead.nodes.{name}" for name in ("declare", "node", "reboot", "slurm_hooks")}


def test_the_argument_spec_has_each_setting_and_the_defaults_are_those_of_the_role() -> None:
    role = SOURCE / "roles/declare"
    options = yaml.safe_load((role / "meta/argument_specs.yml").read_text())["argument_specs"]["main"]["options"]
    assert set(options["declare_settings"]["options"]) == set(settings.load())
    assert options["declare_settings"]["options"]["transparent_hugepage"]["options"]["enabled"]["choices"]
    defaults = yaml.safe_load((role / "defaults/main.yml").read_text())
    assert set(options) == set(defaults) | {"declare_folder"}
    assert all(defaults[name] == option.get("default", {}) for name, option in options.items() if name in defaults)


def test_an_argument_spec_refuses_wrong_values_and_the_site_lacks_these_nodes(site: Site, tmp_path: Path) -> None:
    site = Site(tmp_path, Path(site.env["ANSIBLE_COLLECTIONS_PATH"]))
    wrong: dict[str, tuple[dict[str, Any], str]] = {
        "gpu1": ({"transparent_hugepage": {"enabled": "often"}}, "must be one of: always, madvise, never, got: often"),
        "gpu2": ({"sysctl": {"vals": {}}}, "declare_settings.sysctl.vals. Supported parameters include: managed, mode, values"),
        "gpu3": ({"numa_balancing": {"value": "high"}}, "cannot be converted to an int"),
    }
    inventory = nodes({**{name: {"declare_settings": settings} for name, (settings, _) in wrong.items()}, "gpu4": {}})
    said = site.play(inventory, code=2)
    assert [words for _, words in wrong.values() if words not in said] == [] and said.count("failed=1") == 3
    assert "not in the site that was written, because they failed before: gpu1,gpu2,gpu3" in said
    assert site.declared()["classes"] == {"nodes": {"nodes": "gpu4"}}


def test_a_declaration_becomes_a_site_and_a_bundle_and_a_second_run_changes_nothing(site: Site, tmp_path: Path) -> None:
    texts = {"net.ipv4.tcp_rmem": "4096 131072 6291456", "kernel.core_pattern": '/x/"%p" \\'}
    wanted = {"sysctl": {"values": {"vm.swappiness": 10, **texts}}, "numa_balancing": {}}
    inventory = nodes(
        {"gpu1": {}, "gpu2": {}, "gpu3": {"declare_settings": {"services": {"off": ["apt-daily.timer"]}}}},
        settings=wanted,
        profile="hgx-h100",
        fabric="infiniband",
        generation=4,
        checks={"disks": {"enabled": False}},
    )
    site = Site(tmp_path, Path(site.env["ANSIBLE_COLLECTIONS_PATH"]))
    said = site.play(inventory, "--check", "--diff")
    assert "+generation = 4" in said and "changed=1" in said
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["check"], "check mode has a folder of its own"
    assert "changed=1" in site.play(inventory)
    declared = site.declared()
    assert declared["classes"] == {
        "hgx-h100": {
            "nodes": "gpu1,gpu2",
            "profile": "hgx-h100",
            "fabric": "infiniband",
            "settings": wanted,
            "checks": {"disks": {"enabled": False}},
        },
        "hgx-h100-2": {
            "nodes": "gpu3",
            "profile": "hgx-h100",
            "fabric": "infiniband",
            "settings": {"services": {"off": ["apt-daily.timer"]}},
            "checks": {"disks": {"enabled": False}},
        },
    }
    bundle = tmp_path / "out/rendered/bundle"
    assert sorted(path.name for path in (bundle / "documents").iterdir()) == ["gpu1", "gpu2", "gpu3"]
    assert "changed=1" not in site.play(inventory)


def test_what_no_argument_spec_says_is_refused_in_one_line(site: Site) -> None:
    said = site.play(nodes({"gpu1": {}}, settings={"numa_balancing": {"value": 7}}), code=2)
    assert "settings.numa_balancing.value: Expected `int` <= 2" in said


def test_the_action_says_what_it_cannot_write(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = action()
    own = {"folder": "x", "generation": 1, "wheelhouse": "", "command": ""}
    with pytest.raises(AnsibleActionFail, match=r"settings.numa_balancing has no value; write \{\} to declare"):
        plugin.site_text({"gpu1": own | {"settings": {"numa_balancing": None}}}, 1)
    with pytest.raises(AnsibleActionFail, match=r"settings.a is a date; write a text"):
        plugin.site_text({"gpu1": own | {"settings": {"a": date(2026, 1, 1)}}}, 1)
    with pytest.raises(AnsibleActionFail, match=r"gpu2 has declared nothing yet: .* without serial"):
        plugin._declared(["gpu1", "gpu2"], {"gpu1": {"declare_own": own}, "gpu2": {}})
    with pytest.raises(AnsibleActionFail, match="declare_folder of gpu2 is not that of gpu1; set it once"):
        plugin._common({"gpu1": own, "gpu2": own | {"folder": "y"}})
    with pytest.raises(AnsibleActionFail, match=r"/no/such: No such file.*; name the path of fairlead in declare_command"):
        plugin._same_release("/no/such")
    monkeypatch.setattr(plugin, "RELEASE", "9.9.9")
    with pytest.raises(AnsibleActionFail, match=f"is fairlead {fairlead.__version__}, and this collection is 9.9.9"):
        plugin._same_release(str(BIN / "fairlead"))


def test_a_fact_of_a_node_declares_nothing(site: Site) -> None:
    """A module's result may hold facts, which Ansible makes variables of. A hostile node could declare what all nodes are."""
    fact = "  pre_tasks:\n    - ansible.builtin.set_fact: {declare_settings: {}, cacheable: true}\n  roles"
    said = site.play(nodes({"gpu1": {}}), code=2, playbook=DECLARE.replace("  roles", fact))
    assert "a variable of the role declare is a fact of this node" in said


def test_a_bundle_of_another_release_is_refused(site: Site, tmp_path: Path) -> None:
    (tmp_path / "lib/fairlead").mkdir(parents=True)
    (tmp_path / "lib/fairlead/__init__.py").write_text('__version__ = "0.0.9"\n')
    inventory = nodes({"gpu1": {"node_bundle": str(tmp_path), "ansible_connection": "local"}})
    said = site.play(inventory, code=2, playbook=DECLARE.replace("nodes.declare", "nodes.node"))
    assert f"{tmp_path} is of fairlead 0.0.9, and this collection is {fairlead.__version__}" in said


def test_the_examples_are_declarations(site: Site, tmp_path: Path) -> None:
    folder = Path(site.env["ANSIBLE_COLLECTIONS_PATH"]) / "ansible_collections/fairlead/nodes/examples"
    inventories = ("-i", folder / "stackhpc/hosts.ini", "-i", folder / "openhpc/hosts.yml")
    site.run("ansible-playbook", *inventories, "--syntax-check", *folder.glob("*/gpu_nodes.yml"))
    plays = (DECLARE.replace("all", group) for group in ("demo_gpu", "gpu"))
    (site.folder / "declare.yml").write_text("".join(plays))
    name = "declare_folder={{ '" + str(tmp_path) + "/' ~ ansible_play_hosts[0] }}"
    said = site.run("ansible-playbook", *inventories, "declare.yml", "-e", name, "--limit", "demo-gpu-0,c5")
    assert said.count("failed=0") == 2
    for first in ("demo-gpu-0", "c5"):
        assert tomllib.loads((tmp_path / first / "site.toml").read_text())["classes"]


def test_a_text_of_any_kind_is_the_same_in_toml() -> None:
    values = {"a.b": "\x00\x1f\x7f\u2028\U0001f600\"'\\\n", "c": [1, 2.5, 1e300, True, [], {}], "d e": {"f": -(2**62)}, "g": ""}
    own = {"n1": {"folder": "x", "generation": 1, "wheelhouse": "", "command": "", "settings": values}}
    assert tomllib.loads(action().site_text(own, 1))["classes"]["nodes"]["settings"] == values
