"""Reads over ssh which release of fairlead a node has installed, which release its agent runs, and which hooks it has.

Every release can be asked: the installed release is read from the first line of its program, the agent's from its status, and the
hooks are compared by their digest. A node's root may be hostile, so only texts of known forms are taken from the answer.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

from msgspec import Struct

from fairlead import assets
from fairlead.errors import DataError
from fairlead.model.verdict import parse_line
from fairlead.provision.agent_accounts import FILES
from fairlead.provision.agent_status import status_of
from fairlead.provision.run_bundle import HOOKS, OPT, PACKAGE
from fairlead.provision.ssh_fetch import parts_of, reading

PROGRAM, PACKAGED = f"{OPT}/current/bin/fairlead", f"{PACKAGE}/release"
#: sha256sum writes a line for each hook that is there. ``parts_of`` leaves out what comes before the first file.
COMMAND = f"sha256sum {' '.join(HOOKS.values())}; {reading((*FILES, PROGRAM, PACKAGED))}"
NONE = "none"
_RELEASE = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+-]{0,63}")
_SHEBANG = re.compile(rb"#!" + re.escape(OPT.encode()) + rb"/([0-9A-Za-z][0-9A-Za-z.+-]{0,63})/bin/python[^\n]*\n")
_DIGEST = re.compile(rb"^([0-9a-f]{64})  (/[0-9A-Za-z./_-]{1,100})$", re.MULTILINE)


class NodeVersions(Struct, frozen=True, kw_only=True):
    """Holds what one node runs. installed: VERSION-DIGEST of the release that starts next, or "none". agent: the release of the
    agent that runs, or its version where it does not say its release; "none" if no agent has swept lately. hooks: the digest of
    the hooks, or "none". incomplete: hooks that are missing. trouble: why the node gave no answer, or ""; then nothing else is
    known."""

    installed: str = ""
    agent: str = ""
    hooks: str = ""
    incomplete: tuple[str, ...] = ()
    trouble: str = ""

    @property
    def restart_due(self) -> bool:
        """Return whether the agent runs another release than the one that is installed."""
        known = self.installed not in ("", NONE) and self.agent not in ("", NONE)
        return known and self.agent not in (self.installed, self.installed.partition("-")[0])


def versions_of(answer: bytes) -> NodeVersions:
    """Return what the output of ``COMMAND`` says."""
    parts = parts_of(answer)
    if parts is None:
        return NodeVersions(trouble="its answer is cut short")
    head = answer.partition(b"==> /")[0]
    digests = {path.decode(): digest.decode() for digest, path in _DIGEST.findall(head) if path.decode() in HOOKS.values()}
    return NodeVersions(
        installed=_installed(parts),
        agent=_agent(parts),
        hooks=_digest(digests) if digests else NONE,
        incomplete=tuple(path for path in HOOKS.values() if path not in digests) if digests else (),
    )


def own_hooks() -> str:
    """Return the digest of the hooks of this installation."""
    folder = assets.directory("slurm")
    return _digest({path: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name, path in HOOKS.items()})


def _digest(digests: Mapping[str, str]) -> str:
    return hashlib.sha256("".join(f"{digests[path]} {path}\n" for path in sorted(digests)).encode()).hexdigest()[:10]


def _installed(parts: Mapping[str, bytes]) -> str:
    packaged = parts.get(PACKAGED, b"").decode("ascii", "replace").strip()
    if packaged:
        return packaged if _RELEASE.fullmatch(packaged) else "unreadable"
    if not parts.get(PROGRAM, b"").strip():
        return NONE
    found = _SHEBANG.match(parts[PROGRAM])
    return found[1].decode() if found else "unreadable"


def _agent(parts: Mapping[str, bytes]) -> str:
    """Return the agent's release. A verdict that has expired says that no agent runs, whatever its status says."""
    try:
        verdict = parse_line(parts.get(FILES[0], b"").decode("utf-8", "replace").rstrip("\n") + "\n")
        uptime = float(parts.get(FILES[1], b"").split()[0])
        status = status_of(parts.get(FILES[2], b""))
    except (DataError, ValueError, IndexError):
        return NONE
    if uptime > verdict.expires:
        return NONE
    said = status.get("agent_release") or status.get("agent_version") or ""
    return said if _RELEASE.fullmatch(said) else "unknown"
