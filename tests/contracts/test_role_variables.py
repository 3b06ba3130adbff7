"""Every variable of a role is the admin host's to say: what a node brings as a fact is refused, or is not looked at any more."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml
from jinja2 import meta

pytest.importorskip("ansible")

from fairlead.apply import node_lock
from fairlead.on_node import program
from tests import plugin_file

PROJECT = Path(__file__).resolve().parents[2]
ROLES = PROJECT / "playbooks/roles"
FOLDERS = {path.name: path for root in (ROLES, PROJECT / "release/collection/roles") for path in root.iterdir()}
NAMES = sorted(FOLDERS)
#: The spec of the role declare is long, and the loader in C reads it five times as fast.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
#: A variable of another role that a role sets, so that no fact of a node can be it.
HANDED_ON = {"declare": {"node_bundle"}}
#: Set by Ansible itself after all facts (magic variables).
MAGIC = {"ansible_check_mode", "ansible_facts", "inventory_hostname"}
EXPRESSIONS = ("when", "that", "failed_when", "changed_when", "until")


def documents(role: str, part: str) -> Iterator[Any]:
    for path in sorted((FOLDERS[role] / part).glob("*.yml")):
        yield yaml.load(path.read_text(), Loader=LOADER)


def texts(value: Any, key: str = "") -> Iterator[str]:
    """Templates of a task; an expression as one."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from texts(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from texts(inner, key)
    elif isinstance(value, str):
        yield f"{{{{ {value} }}}}" if key in EXPRESSIONS else value


def options(role: str) -> set[str]:
    (spec,) = [d for d in documents(role, "meta") if "argument_specs" in d]
    return set(spec["argument_specs"]["main"]["options"])


def tasks(role: str) -> list[dict[str, Any]]:
    return [task for document in documents(role, "tasks") for task in document]


def used(task: Any) -> set[str]:
    """The variables that a task looks at."""
    environment = jinja2.Environment(autoescape=False)
    environment.filters.update(dict.fromkeys(("from_json", "regex_replace", "bool"), str))
    environment.tests.update(dict.fromkeys(("search", "match"), bool))
    return {name for text in texts(task) for name in meta.find_undeclared_variables(environment.parse(text))}


def own(role: str) -> set[str]:
    """Names that the role itself sets, which win over a fact."""
    made = {task["register"] for task in tasks(role) if "register" in task}
    for task in tasks(role):
        made |= set(task.get("ansible.builtin.set_fact", {}))
    return made


@pytest.mark.parametrize("role", NAMES)
def test_a_role_uses_no_variable_but_those_that_it_names(role: str) -> None:
    for task in tasks(role):
        assert used(task) <= options(role) | own(role) | MAGIC, task["name"]
    (defaults,) = documents(role, "defaults")
    assert set(defaults) <= options(role)
    assert all(name.startswith(f"{role}_") for name in options(role) | own(role) - HANDED_ON.get(role, set()))


@pytest.mark.parametrize("role", [role for role in NAMES if role != "node"])
def test_a_role_looks_at_its_options_before_it_asks_the_node_and_never_after(role: str) -> None:
    main = FOLDERS[role] / "tasks/main.yml"
    first, second, *rest = yaml.safe_load(main.read_text())
    pattern = re.search(r"select\('match', '(\w+)'\)", first["ansible.builtin.assert"]["that"])
    assert pattern is not None and pattern[1] == f"{role}_", "every fact that begins like a variable of the role is refused"
    ((name, _),) = second["ansible.builtin.set_fact"].items()
    assert name not in options(role) and options(role) == used(second)
    for task in (*rest, *(t for t in tasks(role) if t not in (first, second, *rest))):
        assert not used(task) & options(role), f"{task['name']}: a fact may have changed it by then"


def action() -> Any:
    path = ROLES / "node/action_plugins/fairlead_node.py"
    return plugin_file.load(path)


def test_the_one_task_of_the_role_node_refuses_each_of_its_options_as_a_fact() -> None:
    plugin = action()
    assert options("node") == plugin.OWN and len(tasks("node")) == 1
    assert used(tasks("node")) == options("node")
    (defaults,) = documents("node", "defaults")
    assert defaults["node_answer_seconds"] == plugin.ANSWER_SECONDS < defaults["node_seconds"]


@pytest.mark.parametrize(
    ("settings", "check", "long"),
    [
        ({"driver": {"packages": [{"name": "nvidia-open"}]}}, False, True),
        ({"driver": {"packages": [{"name": "nvidia-open"}]}}, True, False),
        ({"driver": {"packages": []}}, False, False),
        ({"driver": None}, False, False),
        ({}, False, False),
    ],
)
def test_only_a_node_that_may_build_a_driver_has_the_longer_time(settings: dict[str, Any], check: bool, long: bool) -> None:
    document = {"path": "/etc/fairlead/node.json", "content": json.dumps({"node": "n1", "settings": settings})}
    assert action()._may_build({"check": check, "documents": [document]}) is long


def test_the_shorter_time_is_longer_than_what_takes_longest_without_packages() -> None:
    assert action().ANSWER_SECONDS >= node_lock.APPLYING_SECONDS + node_lock.LOCK_SECONDS + program.LOCK_SECONDS + 120
