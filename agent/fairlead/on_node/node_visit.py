"""Visits a node once: compares the node with the request, changes what differs, and applies the document.

A node that has fairlead's package gets its document and its settings, and neither a release nor files (installed_package.py).

The program may be killed at any point. Therefore the order is: the release (unpacked in another folder, then renamed), files,
the document, the links ``current`` and ``fairlead``, units, `fairlead apply`, the agent. So nothing ever refers to an incomplete
release.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
from typing import Any

from . import apply_command
from .installed_package import packaged, remove, replaced
from .installed_release import Release
from .managed_files import differs, link, link_target, read, write
from .package_cache import PACKAGES, lacking, take_in
from .stop import Stop
from .systemd_units import SystemdUnit, enabled_scratch_units, systemctl_or_stop, unit_states

SLURM_CONF = ("/etc/slurm/*.conf", "/run/slurm/conf/*.conf")  # also the files that slurm.conf includes


class NodeVisit:
    """Holds what the request wants and what was changed. A check (``request["check"]``) records every change and makes none.
    Raises Stop if the node's package does not fit the request."""

    def __init__(self, request: dict[str, Any], payload: dict[str, Any] | None) -> None:
        self.request = request
        self.payload = payload
        self.check = request["check"]
        self.changes: list[dict[str, str]] = []
        self.opt: str = request["opt"]
        self.packaged = packaged(request)
        self.release = self.packaged or Release(self.opt, request["release"], payload["wheels"] if payload else [])
        #: The files and links that this program writes. Those of a package are the package manager's.
        self.files: list[dict[str, Any]] = [] if self.packaged else request["files"]
        own = [[f"{self.opt}/current", os.path.relpath(self.packaged.path, self.opt)]] if self.packaged else []
        self.links: list[list[str]] = own or request["links"]
        # This file exists from the first change that needs a restart of the agent until that restart. If a run ends in between,
        # the next run restarts the agent.
        self.unfinished = os.path.join(self.opt, ".unfinished")

    def add_change(self, what: str, why: str, before: bytes | None = None, after: bytes | None = None) -> None:
        change = {"what": what, "why": why}
        if self.request["diff"] and after is not None:
            change["before"] = "" if before is None else before.decode("utf-8", "replace")
            change["after"] = after.decode("utf-8", "replace")
        self.changes.append(change)

    def mark_unfinished(self) -> None:
        """Record that a restart of the agent is due. This is called before a change that the agent sees only after its
        restart."""
        if not os.path.lexists(self.unfinished):
            write(self.unfinished, b"", 0o644)

    def needs(self) -> list[str]:
        """Return what has to be sent before anything can be changed: wheels, files, packages."""
        wanted = []
        if not self.release.installed():
            wanted.append("wheels")
        if any(differs(entry) for entry in self.files):
            wanted.append("files")
        if not self.check and lacking(self.request):
            wanted.append("packages")
        return wanted

    def write_files(self) -> bool:
        """Write the files that differ. Return whether one of them was a systemd unit."""
        contents = self.payload["files"] if self.payload else {}
        units = False
        for entry in self.files:
            why = differs(entry)
            if not why:
                continue
            content: bytes = contents[entry["path"]]
            self.add_change(entry["path"], why, read(entry["path"]), content)
            unit = "/systemd/" in entry["path"]
            units = units or unit
            if not self.check:
                if unit:
                    self.mark_unfinished()
                write(entry["path"], content, entry["mode"])
        return units

    def write_documents(self) -> bool:
        """Write the documents that differ. Return whether the content of any document has changed."""
        changed = False
        for entry in self.request["documents"]:
            content = entry["content"].encode("utf-8")
            why = differs({**entry, "sha256": hashlib.sha256(content).hexdigest()})
            if why:
                changed = changed or why != "mode or owner"
                self.add_change(entry["path"], why, read(entry["path"]), content)
                if not self.check:
                    self.mark_unfinished()
                    write(entry["path"], content, entry["mode"])
        return changed

    def make_links(self) -> bool:
        """Make the links that differ. Return whether any differed. Raises Stop if a file or folder has the name of a link."""
        changed = False
        for path, target in self.links:
            before = link_target(path)
            if before == target:
                continue
            if before is None and os.path.lexists(path):
                raise Stop(f"{path}: exists and is not our link", "move it away")
            changed = True
            self.add_change(path, f"link to {target}", (before or "").encode(), target.encode())
            if not self.check:
                self.mark_unfinished()
                link(path, target)
        return changed

    def remove_replaced(self) -> bool:
        """Remove what the package replaces. Return whether a systemd unit was among it. Such a unit that was enabled is enabled
        again, because the link that enabled it led to the removed file."""
        paths = replaced(self.request, self.packaged) if self.packaged else []
        units = [os.path.basename(path) for path in paths if "/systemd/" in path]
        names = [u["name"] for u in self.request["units"] if u["name"] in units]
        enabled = [name for name, state in unit_states(names).items() if state.enabled] if names else []
        for path in paths:
            self.add_change(path, "remove: the package fairlead has its own")
            if not self.check:
                self.mark_unfinished()
                remove(path)
        if units and not self.check:
            systemctl_or_stop("daemon-reload")
            for name in enabled:
                systemctl_or_stop("reenable", name)
        return bool(units)

    def enable_units(self, reload: bool, restart: bool) -> list[tuple[str, str]]:
        """Enable the units. Return what has to be done at the end, as pairs ("start" or "restart", name of the unit)."""
        units = self.request["units"]
        if self.check:
            files = {os.path.basename(e["path"]) for e in self.request["files"]}
            present = [u for u in units if u["name"] in files or "@" in u["name"]]
            states = unit_states([u["name"] for u in present]) if present else {}
        else:
            states = unit_states([u["name"] for u in units]) if units else {}
            reload = reload or any(state.stale for state in states.values())
        for name in enabled_scratch_units():
            if not any(unit["name"] == name for unit in units):
                self.add_change(name, "stop and disable: that disk is no longer declared")
                if not self.check:
                    systemctl_or_stop("disable", "--now", name)
        disabled = [unit["name"] for unit in units if not states.get(unit["name"], SystemdUnit()).enabled]
        for name in disabled:
            self.add_change(name, "enable")
        if not self.check and (disabled or reload):
            systemctl_or_stop(*(["enable", *disabled] if disabled else ["daemon-reload"]))  # "enable" reloads the unit files too
        late = []
        for unit in units:
            state = states.get(unit["name"], SystemdUnit())
            if unit["start"] and not state.active:
                self.add_change(unit["name"], "start")
                late.append(("start", unit["name"]))
            elif unit["start"] and restart:
                self.add_change(unit["name"], "restart")
                late.append(("restart", unit["name"]))
        return late

    def present(self) -> dict[str, Any] | None:
        """Bring the node into the state that the request describes. Return the report of `fairlead apply`."""
        fresh = not self.release.installed()
        unfinished = os.path.lexists(self.unfinished)
        previous = link_target(os.path.join(self.opt, "current"))
        if fresh:
            self.release.runnable()
            self.add_change(self.release.path, f"install for Python {self.release.python}")
            if not self.check:
                self.mark_unfinished()
                self.release.install()
        units = self.write_files()
        document = self.write_documents()
        links = self.make_links()
        units = self.remove_replaced() or units
        count = 0 if self.check else take_in(self.request)
        if count:
            self.add_change(PACKAGES, f"{count} package files")
        units = units or unfinished or any("/systemd/" in change["what"] for change in self.changes)
        late = self.enable_units(units, restart=fresh or units or document or links or unfinished)
        document_differs = any(c["what"] == self.request["documents"][0]["path"] for c in self.changes)
        applied = apply_command.apply(self.request, self.release, sent=bool(self.payload), document_differs=document_differs)
        if not self.check:
            for verb, name in late:
                systemctl_or_stop(verb, name)
            if fresh:
                self.release.prune(previous or "")
            if os.path.lexists(self.unfinished):
                os.unlink(self.unfinished)
        return applied

    def absent(self) -> dict[str, Any] | None:
        """Remove all that fairlead has installed. The settings remain, unless the request asks for undo. Return the report of
        `fairlead apply --undo`, or None if it was not run."""
        if not self.request["force"] and not self.packaged:  # the hooks of a package stay
            self.refuse_named_hooks()
        names = [u["name"] for u in self.request["units"]] + enabled_scratch_units()
        for name, state in sorted(unit_states(names).items()):
            if state.enabled or state.active:
                self.add_change(name, "stop and disable")
                if not self.check:
                    systemctl_or_stop("disable", "--now", name)
        undone = self.undo_settings() if self.request["undo"] else None
        self.remove_files()
        if self.changes and not self.check:
            systemctl_or_stop("daemon-reload")
        return undone

    def refuse_named_hooks(self) -> None:
        """Raise Stop if Slurm's configuration still names a hook of fairlead, because jobs would fail without the hook."""
        hooks = [e["path"] for e in self.request["files"] if "/slurm/" in e["path"]]
        for path in sorted({p for pattern in self.request.get("slurm_conf", SLURM_CONF) for p in glob.glob(pattern)}):
            for line in (read(path) or b"").decode("utf-8", "replace").splitlines():
                said = line.partition("#")[0].strip()
                if any(hook in said for hook in hooks):
                    raise Stop(
                        f"{path} still says {said}; a job would fail without that file",
                        "take the line out and run `scontrol reconfigure` first, or give --force",
                    )

    def undo_settings(self) -> dict[str, Any] | None:
        """Restore the settings as they were before fairlead. Return the report of `fairlead apply --undo`, or None if fairlead is
        not installed. Raises Stop if a setting could not be restored."""
        program = os.path.join(self.opt, "current", "bin", "fairlead")
        if not os.path.exists(program):
            return None
        more_words = ["--dry-run"] * self.check + ["--drained"] * self.request["drained"]
        undone = apply_command.run([program, "apply", "--undo", "--json", *more_words])
        failed = [outcome["message"] for outcome in undone["outcomes"] if not outcome["done"]]
        if failed:
            more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
            raise Stop(f"not brought back: {failed[0]}{more}", "nothing is removed yet; run it again, or without --undo")
        for outcome in undone["outcomes"]:
            self.add_change(outcome["target"], "as it was before fairlead")
        return undone

    def remove_files(self) -> None:
        """Remove files, documents, links, all releases, and the folders that are empty then. A package stays, with its folders,
        until the package manager removes it."""
        paths = [e["path"] for e in self.files + self.request["documents"]] + self.request["leftovers"]
        paths += [path for path, target in self.request["links"] if link_target(path) == target]
        if self.request["undo"]:
            paths += self.request["state_paths"]
        paths += replaced(self.request, self.packaged) if self.packaged else [self.opt]
        keep = tuple(self.request["package"]["folders"]) if self.packaged else ()
        for path in dict.fromkeys(paths):
            if not os.path.lexists(path) or (path in keep and set(os.listdir(path)) <= {os.path.basename(k) for k in keep}):
                continue
            self.add_change(path, "remove")
            if not self.check:
                remove(path, keep)
        for folder in self.request["folders"] if not self.check else ():
            if folder not in keep:
                with contextlib.suppress(OSError):  # the folder has files of others in it, or it never existed
                    os.rmdir(folder)
