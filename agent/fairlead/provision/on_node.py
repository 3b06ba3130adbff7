"""The program that `fairlead provision` runs on a node: standard library only, sent over ssh, read from standard input.

It gets a request (JSON) and, on the second trip to a node where something is missing, a payload (files and wheels). It
compares, changes what differs in an order that survives being killed at any point, runs `fairlead apply`, and answers with
one line of JSON. The action plugin has looked at the interpreter's version before it hands over this text.

Order: the release (unpacked beside, then renamed), files, the document, the links ``current`` and ``fairlead``, units,
``fairlead apply``, the agent. Nothing refers to a release that is not complete.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import hashlib
import importlib
import io
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any, BinaryIO

if "Stop" not in globals():  # on a node all parts share one namespace
    from fairlead.provision.on_node_files import (
        SLURM_CONF,
        Stop,
        differs,
        enabled_scratch_units,
        link,
        link_target,
        next_step,
        read,
        reply,
        scratch_units,
        systemctl_or_stop,
        unit_states,
        write,
    )
    from fairlead.provision.on_node_packages import PACKAGES, lacking, take_in
    from fairlead.provision.on_node_release import Release, verify


APPLY_SECONDS = 2400.0  # apt and dkms build a kernel module in minutes
LOCK_SECONDS = 30.0  # a run whose connection broke may still be at work


class Node:
    """One visit: what the request wants, what was found, what was changed."""

    def __init__(self, request: dict[str, Any], payload: dict[str, Any] | None) -> None:
        self.request = request
        self.payload = payload
        self.check = request["check"]
        self.changes: list[dict[str, str]] = []
        self.opt: str = request["opt"]
        self.release = Release(self.opt, request["release"], payload["wheels"] if payload else [])
        # From the first change that asks for it to the restart: a run that ended in between is made good by the next one.
        self.unfinished = os.path.join(self.opt, ".unfinished")

    def note(self, what: str, why: str, before: bytes | None = None, after: bytes | None = None) -> None:
        change = {"what": what, "why": why}
        if self.request["diff"] and after is not None:
            change["before"] = "" if before is None else before.decode("utf-8", "replace")
            change["after"] = after.decode("utf-8", "replace")
        self.changes.append(change)

    def begin(self) -> None:
        """Before a change that the agent sees only after its restart."""
        if not os.path.lexists(self.unfinished):
            write(self.unfinished, b"", 0o644)

    def needs(self) -> list[str]:
        wanted = []
        if not self.release.installed():
            wanted.append("wheels")
        if any(differs(entry) for entry in self.request["files"]):
            wanted.append("files")
        if not self.check and lacking(self.request):
            wanted.append("packages")
        return wanted

    def strange(self, hostname: str) -> bool:
        """Does this machine go by another name than the node that it is to be, and never was that node before? Then the admin
        host says whether the address leads to another of its nodes. A hostname that is no node's is a site's own choice."""
        name = self.request.get("node", "")
        if not name or self.request.get("named") or {hostname, hostname.split(".", maxsplit=1)[0]} & {name, name.split(".")[0]}:
            return False
        try:
            return bool(json.loads(read(self.request["documents"][0]["path"]) or b"{}").get("node") != name)
        except (ValueError, AttributeError):
            return True

    def place_files(self) -> bool:
        contents = self.payload["files"] if self.payload else {}
        units = False
        for entry in self.request["files"]:
            why = differs(entry)
            if not why:
                continue
            content: bytes = contents[entry["path"]]
            self.note(entry["path"], why, read(entry["path"]), content)
            unit = "/systemd/" in entry["path"]
            units = units or unit
            if not self.check:
                if unit:
                    self.begin()
                write(entry["path"], content, entry["mode"])
        return units

    def place_document(self) -> bool:
        changed = False
        for entry in self.request["documents"]:
            content = entry["content"].encode("utf-8")
            why = differs({**entry, "sha256": hashlib.sha256(content).hexdigest()})
            if why:
                changed = changed or why != "mode or owner"
                self.note(entry["path"], why, read(entry["path"]), content)
                if not self.check:
                    self.begin()
                    write(entry["path"], content, entry["mode"])
        return changed

    def place_links(self) -> bool:
        changed = False
        for path, target in self.request["links"]:
            before = link_target(path)
            if before == target:
                continue
            if before is None and os.path.lexists(path):
                raise Stop(f"{path}: exists and is not our link", "move it away")
            changed = True
            self.note(path, f"link to {target}", (before or "").encode(), target.encode())
            if not self.check:
                self.begin()
                link(path, target)
        return changed

    def apply(self) -> dict[str, Any] | None:
        """`fairlead apply`, in this very process where it already runs the wanted release."""
        arguments = ["apply", "--json"] + ["--dry-run"] * self.check + ["--drained"] * self.request["drained"]
        arguments += ["--only", ",".join(self.request["only"])] if self.request["only"] else []
        if not self.release.installed():
            if not self.payload:
                return None
            # A check on a fresh node: look with the code that would be installed, then forget it.
            import tempfile

            with tempfile.TemporaryDirectory(prefix="fairlead-check.", dir=self.release.scratch()) as folder:
                venv = os.path.join(folder, "venv")
                os.mkdir(venv)
                self.release.unpack(venv)
                document = os.path.join(folder, "node.json")
                with open(document, "w") as f:
                    f.write(self.request["documents"][0]["content"])
                return self.run_apply([venv + "/bin/python", "-I", "-m", "fairlead", *arguments, "--document", document])
        if self.check and any(c["what"] == self.request["documents"][0]["path"] for c in self.changes):
            import tempfile

            with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
                f.write(self.request["documents"][0]["content"])
                f.flush()
                return self.run_apply([os.path.join(self.release.path, "bin/fairlead"), *arguments, "--document", f.name])
        if os.path.realpath(sys.prefix) == self.release.path:
            main = importlib.import_module("fairlead.cli").main  # the command itself, without another start of Python
            out, err = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = main(arguments)
            return self.applied(code, out.getvalue(), err.getvalue())
        return self.run_apply([os.path.join(self.release.path, "bin/fairlead"), *arguments])

    def run_apply(self, command: list[str]) -> dict[str, Any]:
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=APPLY_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            raise Stop(f"fairlead apply: no answer within {APPLY_SECONDS:.0f} s") from None
        return self.applied(done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace"))

    def applied(self, code: int, out: str, err: str) -> dict[str, Any]:
        try:
            return dict(json.loads(out))
        except ValueError:
            lines = err.strip().splitlines() or [f"exit code {code}"]
            hint = [line.split("next:", 1)[1].strip() for line in lines if "next:" in line]
            if "Traceback" in err:  # the error itself, above the line that says that it is one
                lines = [line for line in lines if "this is a bug in fairlead" not in line][-1:]
                hint = ["this is a bug in fairlead: `fairlead apply` on the node shows all of it; please report that"]
            said = lines[0]
            raise Stop("fairlead apply: " + said.replace("fairlead apply: ", "", 1), hint[0] if hint else "") from None

    def settle_units(self, reload: bool, restart: bool) -> list[tuple[str, str]]:
        units = self.request["units"] + scratch_units(self.request["documents"][0]["content"])
        if self.check:
            files = {os.path.basename(e["path"]) for e in self.request["files"]}
            present = [u for u in units if u["name"] in files or "@" in u["name"]]
            states = unit_states([u["name"] for u in present]) if present else {}
        else:
            states = unit_states([u["name"] for u in units]) if units else {}
            reload = reload or any(state[2] for state in states.values())
            if reload:
                systemctl_or_stop("daemon-reload")
        for name in enabled_scratch_units():
            if not any(unit["name"] == name for unit in units):
                self.note(name, "stop and disable: that disk is no longer declared")
                if not self.check:
                    systemctl_or_stop("disable", "--now", name)
        late = []
        for unit in units:
            enabled, active, _ = states.get(unit["name"], (False, False, False))
            if not enabled:
                self.note(unit["name"], "enable")
                if not self.check:
                    systemctl_or_stop("enable", unit["name"])
            if unit["start"] and not active:
                self.note(unit["name"], "start")
                late.append(("start", unit["name"]))
            elif unit["start"] and restart:
                self.note(unit["name"], "restart")
                late.append(("restart", unit["name"]))
        return late

    def present(self) -> dict[str, Any] | None:
        fresh = not self.release.installed()
        unfinished = os.path.lexists(self.unfinished)
        previous = link_target(os.path.join(self.opt, "current"))
        if fresh:
            self.release.runnable()
            self.note(self.release.path, f"install for Python {self.release.python}")
            if not self.check:
                self.begin()
                self.release.install()
        units = self.place_files()
        document = self.place_document()
        links = self.place_links()
        taken = 0 if self.check else take_in(self.request)
        if taken:
            self.note(PACKAGES, f"{taken} package files")
        late = self.settle_units(units, restart=fresh or units or document or links or unfinished)
        applied = self.apply()
        if not self.check:
            for verb, name in late:
                systemctl_or_stop(verb, name)
            if fresh:
                self.release.prune(previous or "")
            if os.path.lexists(self.unfinished):
                os.unlink(self.unfinished)
        return applied

    def absent(self) -> dict[str, Any] | None:
        """Everything of ours away. Settings stay as they are unless the request says undo."""
        hooks = [e["path"] for e in self.request["files"] if "/slurm/" in e["path"]]
        for path in sorted({p for pattern in self.request.get("slurm_conf", SLURM_CONF) for p in glob.glob(pattern)}):
            for line in (read(path) or b"").decode("utf-8", "replace").splitlines():
                said = line.partition("#")[0].strip()
                if any(hook in said for hook in hooks) and not self.request["force"]:
                    raise Stop(
                        f"{path} still says {said}; a job would fail without that file",
                        "take the line out and run `scontrol reconfigure` first, or give --force",
                    )
        names = [u["name"] for u in self.request["units"]] + enabled_scratch_units()
        for name, (enabled, active, _) in sorted(unit_states(names).items()):
            if enabled or active:
                self.note(name, "stop and disable")
                if not self.check:
                    systemctl_or_stop("disable", "--now", name)
        undone = None
        program = os.path.join(self.opt, "current", "bin", "fairlead")
        if self.request["undo"] and os.path.exists(program):
            more_words = ["--dry-run"] * self.check + ["--drained"] * self.request["drained"]
            undone = self.run_apply([program, "apply", "--undo", "--json", *more_words])
            left = [outcome["message"] for outcome in undone["outcomes"] if not outcome["done"]]
            if left:
                more = f" (and {len(left) - 1} more)" if len(left) > 1 else ""
                raise Stop(f"not brought back: {left[0]}{more}", "nothing is removed yet; run it again, or without --undo")
            for outcome in undone["outcomes"]:
                self.note(outcome["target"], "as it was before fairlead")
        paths = [e["path"] for e in self.request["files"] + self.request["documents"]] + self.request["leftovers"]
        paths += [path for path, target in self.request["links"] if link_target(path) == target]
        if self.request["undo"]:
            paths += self.request["state_paths"]
        for path in [*paths, self.opt]:
            if not os.path.lexists(path):
                continue
            self.note(path, "remove")
            if not self.check:
                if os.path.isdir(path) and not os.path.islink(path):
                    shutil.rmtree(path)
                else:
                    os.unlink(path)
        for folder in self.request["folders"]:
            try:
                if not self.check:
                    os.rmdir(folder)
            except OSError:
                pass  # not empty, so not only ours; or never there
        if self.changes and not self.check:
            systemctl_or_stop("daemon-reload")
        return undone


def receive(stream: BinaryIO) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The request, and the payload that follows it, if any."""
    request = json.loads(stream.read(int(stream.readline())).decode("utf-8"))
    head = stream.readline()
    if not head:
        return request, None
    index = json.loads(stream.read(int(head)).decode("utf-8"))
    files = {entry["path"]: stream.read(entry["size"]) for entry in index["files"]}
    wheels = [dict(entry, content=stream.read(entry["size"])) for entry in index["wheels"]]
    if any(len(w["content"]) != w["size"] for w in wheels):
        raise Stop("the connection ended early", "run it again")
    payload = {"files": files, "wheels": wheels}
    verify(request, payload)
    return request, payload


def visit(stream: BinaryIO) -> dict[str, Any]:
    request, payload = receive(stream)
    if os.geteuid() != 0:
        raise Stop("not root on this node", "let [ansible] user be root or a user who may sudo without a password")
    os.umask(0o022)
    node = Node(request, payload)
    with alone(request):
        return settle(node, request, payload)


@contextlib.contextmanager
def alone(request: dict[str, Any]) -> Iterator[None]:
    """One run changes this node at a time; the kernel ends the lock with the process."""
    if request["check"] or (request["state"] == "absent" and not os.path.isdir(request["opt"])):
        yield
        return
    os.makedirs(request["opt"], mode=0o755, exist_ok=True)
    end = time.monotonic() + LOCK_SECONDS
    lock = os.open(os.path.join(request["opt"], ".lock"), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise Stop("another fairlead provision is at work here", "run it again when that one has ended") from None
                time.sleep(0.05)
        yield
    finally:
        os.close(lock)


def settle(node: Node, request: dict[str, Any], payload: dict[str, Any] | None) -> dict[str, Any]:
    hostname = os.uname().nodename
    wanted = ["name"] if node.strange(hostname) else []
    if request["state"] == "absent" and not wanted:
        node.check = request["check"]
        applied = node.absent()
        return {"changed": bool(node.changes), "changes": node.changes, "undone": applied}
    wanted += node.needs() if request["state"] == "present" else []
    if wanted and payload is None:
        import platform

        need = {"need": wanted, "packages": lacking(request) if "packages" in wanted else [], "hostname": hostname}
        return {**need, "python": node.release.python, "machine": platform.machine(), "libc": platform.libc_ver()}
    applied = node.present()
    changed = bool(node.changes) or bool(applied and applied["changed"])
    return {"changed": changed, "changes": node.changes, "apply": applied, "python": node.release.python}


def main() -> None:
    try:
        answer = visit(sys.stdin.buffer)
    except Stop as e:
        answer = {"failed": True, "msg": str(e), "hint": e.hint}
    except OSError as e:
        answer = {"failed": True, "msg": "{}: {}".format(e.filename or "node", e.strerror or e), "hint": next_step(e)}
    reply(answer)


if __name__ == "__main__":
    main()
