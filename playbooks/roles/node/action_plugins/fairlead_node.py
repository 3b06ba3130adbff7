"""The action ``fairlead_node``: one round trip to a node that lacks nothing, two to one that needs files.

The work is done on the node by fairlead/provision/on_node.py, which the bundle holds (as all else that is needed: the
Python that runs Ansible need not have fairlead); here the request goes
out over the connection's standard input and the answer comes back as one line. No module is built, no file is copied
to the node beforehand, no facts are gathered.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

MARK = "FAIRLEAD-REPLY "
# The installed release's own Python where there is one: it then runs `fairlead apply` in the same process.
START = """import json,sys
if sys.version_info<(3,11):
 said="%s is Python %d.%d; fairlead needs 3.11 or newer"%((sys.executable,)+sys.version_info[:2])
 print("MARK"+json.dumps({"failed":True,"msg":said,"hint":"install one and name it in the site's [ansible] python"}))
 sys.exit()
b=sys.stdin.buffer
g={"__name__":"__main__"}
for name,text in json.loads(b.read(int(b.readline())).decode()):
 exec(compile(text,name,"exec"),g)
""".replace("MARK", MARK)


class ActionModule(ActionBase):  # type: ignore[misc]
    """See the documentation beside it in library/fairlead_node.py."""

    TRANSFERS_FILES = False
    _supports_check_mode = True
    _supports_async = False
    _supports_diff = True
    _VALID_ARGS = frozenset(("bundle", "python"))

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        bundle = str(self._task.args.get("bundle", ""))
        python = str(self._task.args.get("python") or "/usr/bin/python3")
        node = variables["inventory_hostname"]
        try:
            request = json.loads(_read(bundle, "request.json"))
            request["documents"] = json.loads(_read(bundle, "documents", node))
        except FileNotFoundError as e:
            words = f"{e.filename}: no such file; is {node} declared in the site, and the bundle made since?"
            raise AnsibleActionFail(words) from None
        request["node"] = node
        request["check"] = bool(self._task.check_mode)
        request["diff"] = bool(self._task.diff)
        answer = self._ask(bundle, python, request, b"")
        if "need" in answer:
            if other := _other_node(bundle, node, answer):
                words = f"{variables.get('ansible_host') or node} leads to {other}, which the site declares as another node"
                hint = "mend [ansible] hosts of the site, DNS or the inventory, or that machine's hostname; nothing was changed"
                return {**result, "failed": True, "msg": words, "hint": hint}
            request["named"] = True
            payload = _payload(bundle, request, answer)
            if isinstance(payload, dict):
                return {**result, **payload}
            try:
                request["incoming"] = self._bring(bundle, answer.get("packages", []))
            except FileNotFoundError as e:
                words = f"{os.path.basename(e.filename)}: in fairlead.lock, and not in {os.path.dirname(e.filename)}"
                hint = "fetch it with `fairlead lock --download`, or declare settings.driver.mirror"
                return {**result, "failed": True, "msg": words, "hint": hint}
            answer = self._ask(bundle, python, request, payload)
            if request["incoming"]:
                self._remove_tmp_path(request["incoming"])
        if request["diff"]:
            result["diff"] = [
                {"before": c["before"], "after": c["after"], "before_header": c["what"], "after_header": c["what"]}
                for c in answer.get("changes", ())
                if "after" in c
            ]
        return {**result, **answer, **_outcome(answer)}

    def _bring(self, bundle: str, files: list[str]) -> str:
        """Package files that the node lacks, put into a folder of this run there, which Ansible removes; "" for none."""
        if not files:
            return ""
        here = [os.path.join(_read(bundle, "packages").decode(), name) for name in files]
        for path in here:
            os.stat(path)
        folder = str(self._make_tmp_path())
        for path, name in zip(here, files, strict=True):
            self._connection.put_file(path, self._connection._shell.join_path(folder, name))
        return folder

    def _ask(self, bundle: str, python: str, request: dict[str, Any], payload: bytes) -> dict[str, Any]:
        program = _read(bundle, "program.json")
        body = json.dumps(request).encode()
        data = b"".join((b"%d\n" % len(program), program, b"%d\n" % len(body), body, payload))
        ours = request["opt"] + "/current/bin/python"
        command = f"p={ours}; [ -x $p ] || p={shlex.quote(python)}; exec $p -I -c {shlex.quote(START)}"
        done = self._low_level_execute_command(command, in_data=data)
        lines = [line for line in done["stdout_lines"] if line.startswith(MARK)]
        if not lines:
            said = (done["stderr"] or done["stdout"]).strip().splitlines()
            words = said[-1] if said else f"exit code {done['rc']}"
            hint = f"is {python} there? name another in the site's [ansible] python" if done["rc"] in (126, 127) else ""
            return {"failed": True, "msg": f"no answer from the node: {words}", "hint": hint}
        return dict(json.loads(lines[-1][len(MARK) :]))


def _read(*path: str) -> bytes:
    with open(os.path.join(*path), "rb") as f:
        return f.read()


def _other_node(bundle: str, node: str, answer: dict[str, Any]) -> str:
    """The name of the machine that answered, where the site has it for another node; else ""."""
    hostname = str(answer["hostname"])
    declared = set(json.loads(_read(bundle, "nodes"))) - {node} if "name" in answer["need"] else set()
    return next((name for name in (hostname, hostname.split(".", maxsplit=1)[0]) if name in declared), "")


def _outcome(answer: dict[str, Any]) -> dict[str, Any]:
    """A setting that could not be made so fails the task, after all others were; one that waits is a warning."""
    items = (answer.get("apply") or {}).get("items", ())
    bad = [i for i in items if i["state"] in ("failed", "refused", "unreadable")]
    late = [i for i in items if i["state"] == "deferred"]
    told: dict[str, Any] = {}
    if late:
        told["warnings"] = [f"waits for {i['pending']}: {i['setting']}: {i['message']}" for i in late]
    if bad:
        told |= {"failed": True, "msg": "; ".join(f"{i['setting']}: {i['message']}" for i in bad)}
        told["hint"] = next((i["hint"] for i in bad if i.get("hint")), "")
    return told


def _wheel_tags(bundle: str) -> Any:
    """The module that the bundle brings along."""
    spec = importlib.util.spec_from_file_location("fairlead_wheel_tags", os.path.join(bundle, "wheel_tags.py"))
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    return module


def _payload(bundle: str, request: dict[str, Any], answer: dict[str, Any]) -> bytes | dict[str, Any]:
    """What the node asked for, or why it cannot be had."""
    files = request["files"] if "files" in answer["need"] or "wheels" in answer["need"] else []
    wheels = json.loads(_read(bundle, "wheels.json")) if "wheels" in answer["need"] else []
    if wheels:
        own, rest = wheels[0], {w["name"]: w for w in wheels[1:]}
        chosen, missing = _wheel_tags(bundle).choose(rest, answer["python"], answer["machine"], answer["libc"])
        if missing:
            return {
                "failed": True,
                "msg": f"no wheel of {', '.join(missing)} for Python {answer['python']} on {answer['machine']}",
                "hint": "name a wheelhouse that has one with --wheelhouse",
                "no_wheel": {"python": answer["python"], "machine": answer["machine"]},
            }
        wheels = [own, *(rest[name] for name in chosen)]
    index = json.dumps({"files": files, "wheels": wheels}).encode()
    parts = [b"%d\n" % len(index), index]
    if files:
        parts.append(_read(bundle, "files"))
    parts += [_read(bundle, "wheels", w["name"]) for w in wheels]
    return b"".join(parts)
