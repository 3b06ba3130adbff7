"""Defines the action ``fairlead_node``, which needs one round trip to a node, or two if the node lacks files.

The program fairlead/on_node does the work on the node. The bundle contains this program and all its files, so the Python that
runs Ansible need not have fairlead. The action sends the program and the request over the connection's standard input, and the
node answers in one line. No module is built, no file is copied to the node before, and no facts are gathered.

A node's answer is not trusted. node_answer.py of the bundle reads the known keys of the answer, and refuses all others
(decisions/0037). No other text of a node gets into the result, and Ansible prints no text of a node unchanged.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure, AnsibleError
from ansible.plugins.action import ActionBase

RELEASE = ""  # the version of the collection, written by its build; a role beside its bundle has none
ANSWER_SECONDS = 900  # `fairlead apply` takes 10 minutes at most without packages (APPLYING_SECONDS), and waits 90 s for another
MEMORY_MIB = 192  # this process may grow by so much while a node answers, so an endless answer fails
#: The role's variables (meta/argument_specs.yml). Only the admin host may set them.
OWN = frozenset(("node_bundle", "node_python", "node_seconds", "node_answer_seconds"))
FOLDER = re.compile(r"/[A-Za-z0-9._/-]{1,200}")


class ActionModule(ActionBase):  # type: ignore[misc]
    """Runs the action. library/fairlead_node.py documents it."""

    TRANSFERS_FILES = False
    _supports_check_mode = True
    _supports_async = False
    _supports_diff = True
    _VALID_ARGS = frozenset(("bundle", "python", "answer_seconds"))

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        bundle = str(self._task.args.get("bundle", ""))
        if said := OWN & set(variables.get("ansible_facts") or ()):
            # A fact from a node would win over an inventory's variable, and this process runs Python code from the bundle.
            raise AnsibleActionFail(f"{min(said)} is a fact of this node: only the admin host may set it")
        modules = _modules(bundle)
        plain_text, answers = modules.plain_text, modules.node_answer
        try:
            with _bounded():
                found = self._visit(bundle, variables, modules)
        except answers.NotAnAnswerError as e:
            found = {"failed": True, "msg": str(e), "hint": answers.HINT}
        except MemoryError:
            found = {"failed": True, "msg": f"{answers.SAID}: it does not end", "hint": answers.HINT}
        except LateError as e:
            hint = "see what runs there: ps, dmesg; a node that has a reason to be slow needs more node_answer_seconds"
            found = {"failed": True, "msg": f"no answer within {e} s", "hint": hint}
        except AnsibleConnectionFailure as e:  # its text has ssh's messages and the node's standard error
            raise AnsibleConnectionFailure(plain_text.one_line(str(e), answers.TEXT_MAX)) from None
        except AnsibleError as e:
            raise AnsibleActionFail(plain_text.one_line(str(e), answers.TEXT_MAX)) from None
        return {**result, **found}

    def _visit(self, bundle: str, variables: dict[str, Any], modules: Modules) -> dict[str, Any]:
        """Return the result of one visit, which has one deadline. The result has only known keys, with values that were
        checked."""
        node = variables["inventory_hostname"]
        try:
            request = json.loads(_read(bundle, "request.json"))
            request.update(json.loads(_read(bundle, "documents", node)))
            request["units"] += request.pop("scratch_units")
        except FileNotFoundError as e:
            words = f"{e.filename}: no such file; is {node} declared in the site, and the bundle made since?"
            raise AnsibleActionFail(words) from None
        profile = {key: request.pop(key) for key in ("profile", "classes", "known_profiles")}
        request["node"] = node
        request["check"] = bool(self._task.check_mode)
        request["diff"] = bool(self._task.diff)
        seconds = None if _may_build(request) else int(self._task.args.get("answer_seconds") or ANSWER_SECONDS)
        with _within(seconds):  # one limit for both requests and the copying between them
            answer = self._settle(bundle, variables, modules, request)
        if here := answer.get("other_gpus"):
            known = [modules.another_gpu.KnownProfile(*each) for each in profile["known_profiles"]]
            declared = modules.another_gpu.Declared(node, profile["profile"], request["gpu_pci_ids"], profile["classes"])
            words, hint = modules.another_gpu.refusal(declared, here, known)
            return {"failed": True, "msg": f"{words}; nothing was changed", "hint": hint}
        return answer

    def _settle(self, bundle: str, variables: dict[str, Any], modules: Modules, request: dict[str, Any]) -> dict[str, Any]:
        """Send this request to the node. If the node lacks files, copy them and send the request again. Return the result."""
        node = request["node"]
        answer = self._ask(bundle, request, b"", modules)
        if "need" in answer:
            if other := _other_node(bundle, node, answer):
                words = f"{variables.get('ansible_host') or node} leads to {other}, which the site declares as another node"
                hint = "correct [ansible] hosts of the site, DNS, the inventory or that machine's hostname; nothing was changed"
                return {"failed": True, "msg": words, "hint": hint}
            request["named"] = True
            payload = _payload(bundle, request, answer, modules)
            if isinstance(payload, dict):
                return payload
            try:
                request["incoming"] = self._bring(bundle, answer["packages"])
            except FileNotFoundError as e:
                words = f"{os.path.basename(e.filename)}: in fairlead.lock, and not in {os.path.dirname(e.filename)}"
                hint = "fetch it with `fairlead lock --download`, or declare settings.driver.mirror"
                return {"failed": True, "msg": words, "hint": hint}
            answer = self._ask(bundle, request, payload, modules, may_need=False)
            if request["incoming"]:
                self._low_level_execute_command(f"rm -rf -- {shlex.quote(request['incoming'])}", sudoable=False)
        if answer.get("failed") or "other_gpus" in answer:
            return answer
        if request["diff"]:
            answer["diff"] = [
                {"before": c.get("before", ""), "after": c["after"], "before_header": c["what"], "after_header": c["what"]}
                for c in answer["changes"]
                if "after" in c
            ]
        return {**answer, **_outcome(answer)}

    def _bring(self, bundle: str, files: list[str]) -> str:
        """Copy the package files that the node lacks into a new folder on the node. Return that folder, or "" if there are no
        files.

        The node's document names each file. Ansible's own temporary folder is not used, because Ansible's errors about it show a
        node's text unchanged.
        """
        if not files:
            return ""
        here = [os.path.join(_read(bundle, "packages").decode(), name) for name in files]
        for path in here:
            os.stat(path)
        made = self._low_level_execute_command("umask 77; mktemp -d /var/tmp/fairlead.XXXXXXXXXX", sudoable=False)
        folder = (made["stdout"].strip().splitlines() or [""])[-1]
        if made["rc"] or not FOLDER.fullmatch(folder):
            raise AnsibleActionFail("no folder could be made in /var/tmp of the node for the package files")
        for path, name in zip(here, files, strict=True):
            self._connection.put_file(path, self._connection._shell.join_path(folder, name))
        return folder

    def _ask(
        self, bundle: str, request: dict[str, Any], payload: bytes, modules: Modules, *, may_need: bool = True
    ) -> dict[str, Any]:
        answers, pythons, named = modules.node_answer, modules.node_python, str(self._task.args.get("python") or "")
        program = _read(bundle, "program.zip")
        body = json.dumps(request).encode()
        data = b"".join((b"%d\n" % len(program), program, b"%d\n" % len(body), body, payload))
        wheels = [wheel["name"] for wheel in json.loads(_read(bundle, "wheels.json"))]
        done = self._low_level_execute_command(
            pythons.command(f"{request['opt']}/current/bin/python", named, wheels), in_data=data
        )
        lines = [line for line in done["stdout_lines"] if line.startswith(pythons.MARK)]
        if not lines:
            said = (done["stderr"] or done["stdout"]).strip().splitlines()
            words = answers.one_line(said[-1], answers.TEXT_MAX) if said else f"exit code {done['rc']}"
            return {"failed": True, "msg": f"no answer from the node: {words}", "hint": ""}
        names = [entry["file"] for entry in request["package_files"]]
        text = lines[-1][len(pythons.MARK) :]
        answer = dict(answers.read(text, request["documents"], package_files=names, may_need=may_need))
        return dict(pythons.failure(answer["no_python"], named)) if "no_python" in answer else answer


def _may_build(request: dict[str, Any]) -> bool:
    """Say whether the node may take long with apt and dkms, because its document has packages of a driver."""
    documents = (json.loads(d["content"]) for d in request["documents"] if d["path"].endswith("/node.json"))
    return not request["check"] and any((d.get("settings", {}).get("driver") or {}).get("packages") for d in documents)


class LateError(BaseException):
    """Is raised if a node has not answered in time. It is a BaseException like Ansible's own timeout, so only we catch it."""


@contextmanager
def _within(seconds: int | None) -> Iterator[None]:
    """Raise LateError in the block after ``seconds``.

    If ``seconds`` is None, or if the task's own timeout (signal.alarm of Ansible) is earlier, only the task's timeout counts.
    """
    remaining, began = signal.getitimer(signal.ITIMER_REAL)[0], time.monotonic()
    if seconds is None or 0 < remaining <= seconds:
        yield
        return

    def late(number: int, frame: object) -> None:
        raise LateError(seconds)

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if remaining:
            signal.setitimer(signal.ITIMER_REAL, max(0.01, remaining - (time.monotonic() - began)))


@contextmanager
def _bounded() -> Iterator[None]:
    """Let this process grow by MEMORY_MIB at most in the block, because Ansible keeps all that a node writes in memory.

    After an error in the block, the children of this process are killed, such as ssh.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm", encoding="ascii") as f:
        limit = int(f.read().split()[0]) * resource.getpagesize() + (MEMORY_MIB << 20)
    bounds = [b for b in (limit, soft, hard) if b != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(bounds), hard))
    try:
        yield
    except BaseException:
        _end_children()
        raise
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _end_children() -> None:
    """Kill the children of this process, such as an ssh to a node that never stops writing."""
    with suppress(OSError), open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as f:
        for pid in f.read().split():
            os.kill(int(pid), signal.SIGKILL)


class Modules(NamedTuple):
    """Holds the modules of fairlead that are in the bundle. They import no other modules of fairlead."""

    another_gpu: Any
    plain_text: Any
    node_answer: Any
    node_python: Any
    wheel_tags: Any


def _modules(bundle: str) -> Modules:
    if (lib := os.path.join(bundle, "lib")) not in sys.path:
        sys.path.insert(0, lib)
    import fairlead

    if RELEASE and fairlead.__version__ != RELEASE:
        words = f"{bundle} is of fairlead {fairlead.__version__}, and this collection is {RELEASE}; use the same release of both"
        raise AnsibleActionFail(words)
    from fairlead.model import another_gpu, plain_text
    from fairlead.provision import node_answer, node_python, wheel_tags

    return Modules(another_gpu, plain_text, node_answer, node_python, wheel_tags)


def _read(*path: str) -> bytes:
    with open(os.path.join(*path), "rb") as f:
        return f.read()


def _other_node(bundle: str, node: str, answer: dict[str, Any]) -> str:
    """Return the name of the machine that answered if the site declares it as another node, else ""."""
    hostname: str = answer["hostname"]
    declared = set(json.loads(_read(bundle, "nodes"))) - {node} if "name" in answer["need"] else set()
    return next((name for name in (hostname, hostname.split(".", maxsplit=1)[0]) if name in declared), "")


def _outcome(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the task's outcome. A failed setting makes the task fail after all other settings. A setting that waits is a
    warning."""
    items = (answer.get("apply") or {"items": ()})["items"]
    bad = [i for i in items if i["state"] in ("failed", "refused", "unreadable")]
    late = [i for i in items if i["state"] == "deferred"]
    outcome: dict[str, Any] = {}
    if late:
        outcome["warnings"] = [f"waits for {i['pending']}: {i['setting']}: {i['message']}" for i in late]
    if bad:
        outcome |= {"failed": True, "msg": "; ".join(f"{i['setting']}: {i['message']}" for i in bad[:20])}
        outcome["hint"] = next((i["hint"] for i in bad if i["hint"]), "")
    return outcome


def _payload(bundle: str, request: dict[str, Any], answer: dict[str, Any], modules: Modules) -> bytes | dict[str, Any]:
    """Return the files and wheels that the node needs, or a failed result that says which wheel is missing."""
    files = request["files"] if "files" in answer["need"] or "wheels" in answer["need"] else []
    wheels = json.loads(_read(bundle, "wheels.json")) if "wheels" in answer["need"] else []
    if wheels:
        own, rest = wheels[0], {w["name"]: w for w in wheels[1:]}
        chosen, missing = modules.wheel_tags.choose(rest, answer["python"], answer["machine"], answer["libc"])
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
