"""Defines the action ``fairlead_declare``, which writes a site and the files for the nodes on the control node.

The role `declare` has set ``declare_own`` on every host of the play. Hosts with the same values become one class of the site.
`fairlead render` then checks the whole declaration, so no value is judged here. It reaches no node.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

RELEASE = ""  # the version of the collection, written by its build
SECONDS = 600
#: What the hosts of a play have to agree on, because it says where and how the one site is written.
COMMON = ("folder", "generation", "wheelhouse", "command")
#: The sections of a site that a class may have.
SECTIONS = ("checks", "settings", "policy", "agent", "slurm", "hooks", "jobenv")
BARE = re.compile(r"[A-Za-z0-9_-]+")
HEAD = "# Written by fairlead.nodes.declare from the variables of the inventory. Change those: the next run replaces this file.\n"


class ActionModule(ActionBase):  # type: ignore[misc]
    """Runs the action. plugins/modules/fairlead_declare.py documents it."""

    TRANSFERS_FILES = False
    _supports_check_mode = True
    _supports_async = False
    _supports_diff = True
    _VALID_ARGS = frozenset(())

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        own = _declared(variables["ansible_play_hosts"], variables["hostvars"])
        common = _common(own)
        command = _command(common["command"])
        _same_release(command)
        target = os.path.abspath(os.path.expanduser(str(common["folder"])))
        folder = os.path.join(target, "check") if self._task.check_mode else target
        text = site_text(own, int(common["generation"]))
        before = _read(os.path.join(target, "site.toml"))
        if self._task.check_mode:
            _bring_lock(target, folder)
        site = _write(folder, text)
        rendered = os.path.join(folder, "rendered")
        words = [command, "render", "--site", site, "--output", rendered, "--json"]
        words += ["--wheelhouse", str(common["wheelhouse"])] if common["wheelhouse"] else []
        written = json.loads(_run(words))["written"]
        changed = before != text or (written and not self._task.check_mode)
        result |= {"changed": changed, "bundle": os.path.join(rendered, "bundle"), "site": site}
        if lost := [host for host in variables["ansible_play_hosts_all"] if host not in own]:
            words = f"not in the site that was written, because they failed before: {','.join(lost[:20])}"
            result["warnings"] = [f"{words} and {len(lost) - 20} more" if len(lost) > 20 else words]
        if self._task.diff and before != text:
            result["diff"] = [{"before": before, "after": text, "before_header": "site.toml", "after_header": "site.toml"}]
        return result


def _declared(hosts: list[str], hostvars: Any) -> dict[str, dict[str, Any]]:
    """Return what each host of the play declares. The first host that has declared nothing fails the task."""
    own: dict[str, dict[str, Any]] = {}
    for host in hosts:
        try:
            own[str(host)] = hostvars[host]["declare_own"]
        except KeyError:
            words = f"{host} has declared nothing yet: use the role declare in a play that has every node, without serial"
            raise AnsibleActionFail(words) from None
    return own


def _common(own: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the values that all hosts have to have in common."""
    (first, common), *rest = own.items()
    for host, declared in rest:
        for name in COMMON:
            if declared[name] != common[name]:
                words = f"declare_{name} of {host} is not that of {first}; set it once, for all hosts of the play"
                raise AnsibleActionFail(words)
    return common


def site_text(own: Mapping[str, Mapping[str, Any]], generation: int) -> str:
    """Return the text of site.toml. Hosts that declare the same are a class. It is named after its profile."""
    classes: dict[str, tuple[Mapping[str, Any], list[str]]] = {}
    for host, declared in own.items():
        layer = {key: value for key, value in declared.items() if key not in COMMON and value not in ("", {})}
        classes.setdefault(json.dumps(layer, default=repr), (layer, []))[1].append(host)
    text = f"{HEAD}schema = 1\ngeneration = {generation}\n"
    names: dict[str, int] = {}
    for layer, hosts in classes.values():
        stem = re.sub(r"[^A-Za-z0-9_-]", "_", os.path.basename(str(layer.get("profile", "")))) or "nodes"
        names[stem] = names.get(stem, 0) + 1
        name = stem if names[stem] == 1 else f"{stem}-{names[stem]}"
        text += f"\n[classes.{name}]\nnodes = {_value(','.join(hosts), '')}\n"
        text += "".join(f"{key} = {_value(layer[key], key)}\n" for key in ("profile", "fabric") if key in layer)
        for section in (s for s in SECTIONS if s in layer):
            text += _tables(f"classes.{name}.{section}", layer[section])
    return text


def _tables(path: str, table: Mapping[str, Any]) -> str:
    """Return a table of a section. A table in it, such as that of one setting, gets its own header."""
    plain = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
    text = f"[{path}]\n" + "".join(f"{_key(key)} = {_value(value, f'{path}.{key}')}\n" for key, value in plain.items())
    return text + "".join(_tables(f"{path}.{_key(key)}", inner) for key, inner in table.items() if isinstance(inner, Mapping))


def _key(key: Any) -> str:
    return str(key) if BARE.fullmatch(str(key)) else _value(str(key), "")


def _value(value: Any, path: str) -> str:
    """Return a value of TOML. TOML has no null, so a key without a value would be lost: the task fails instead."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return repr(float(value))
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(key)} = {_value(item, f'{path}.{key}')}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(item, path) for item in value) + "]"
    if value is None:
        words = f"{path} has no value; write {{}} to declare a setting with its defaults, or leave the key out"
        raise AnsibleActionFail(words)
    raise AnsibleActionFail(f"{path} is a {type(value).__name__}; write a text, a number, a list or a dictionary")


def _command(named: Any) -> str:
    """Return the path of fairlead's command on this host."""
    if named:
        return str(named)
    beside = os.path.join(os.path.dirname(sys.executable), "fairlead")
    found = beside if os.access(beside, os.X_OK) else shutil.which("fairlead")
    if not found:
        words = f"fairlead is not installed here; install fairlead {RELEASE}, or name its path in declare_command"
        raise AnsibleActionFail(words)
    return found


def _same_release(command: str) -> None:
    """Fail if the command is another release than the collection, because the roles and the bundle belong together."""
    said = _run([command, "--version"]).split()
    if RELEASE and said[-1:] != [RELEASE]:
        words = f"{command} is {' '.join(said)[:80]}, and this collection is {RELEASE}; install the same release of both"
        raise AnsibleActionFail(words)


def _run(words: list[str]) -> str:
    """Run a command of fairlead, and return what it prints. Its own message and hint are the task's message if it fails."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH" or not RELEASE}
    try:
        done = subprocess.run(
            words, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except OSError as e:
        raise AnsibleActionFail(f"{words[0]}: {e.strerror}; name the path of fairlead in declare_command") from None
    except subprocess.TimeoutExpired:
        raise AnsibleActionFail(f"{' '.join(words[:2])}: not done after {SECONDS} s") from None
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split())
        raise AnsibleActionFail(said or f"{' '.join(words[:2])}: exit code {done.returncode}")
    return str(done.stdout)


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def _write(folder: str, text: str) -> str:
    """Write site.toml where it differs, so that no other process reads half of it. Return its path."""
    path = os.path.join(folder, "site.toml")
    os.makedirs(folder, exist_ok=True)
    if _read(path) != text:
        number, made = tempfile.mkstemp(prefix=".site.", dir=folder)
        with os.fdopen(number, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(made, 0o644)
        os.rename(made, path)
    return path


def _bring_lock(target: str, folder: str) -> None:
    """Copy the lock of a driver, which has to lie beside site.toml, into the folder of check mode."""
    source, copy = os.path.join(target, "fairlead.lock"), os.path.join(folder, "fairlead.lock")
    os.makedirs(folder, exist_ok=True)
    if os.path.exists(source):
        shutil.copyfile(source, copy)
    elif os.path.exists(copy):
        os.unlink(copy)
