"""Reaches the nodes for maintenance: it reads and reboots one node over ssh, and applies documents in a provisioning run.

ssh does not use the shared connections of other runs here, because it would wait for a connection that a reboot has cut.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol

import msgspec

from fairlead.config import Site
from fairlead.errors import DataError, FairleadError
from fairlead.model.isolated import isolated
from fairlead.model.verdict import one_line
from fairlead.provision.agent_accounts import parse_account
from fairlead.provision.agent_status import Status, status_of
from fairlead.provision.inventory import Target, fold
from fairlead.provision.maintain.maintenance_steps import ApplyOutcome, NodeReading
from fairlead.provision.node_answer import SAID
from fairlead.provision.provision_report import NodeResult
from fairlead.provision.provision_run import ProvisionOptions
from fairlead.provision.provision_run import run as provision
from fairlead.provision.ssh import SSH_ARGS, ask, shared_connections
from fairlead.provision.ssh_fetch import parts_of, reading

READ_SECONDS = 20.0
REBOOT_SECONDS = 30.0
_BOOT = "/proc/sys/kernel/random/boot_id"
_SERIALS = ("/sys/class/dmi/id/product_serial", "/sys/class/dmi/id/board_serial", "/sys/class/dmi/id/product_uuid")
_PARTS = ("/run/fairlead/verdict", "/proc/uptime", "/run/fairlead/status.json", _BOOT, *_SERIALS, "/etc/machine-id")
#: Values that mainboards without a serial number report. No machine has one of them as its serial number. (dmidecode's own list
#: is longer.)
_NO_SERIAL = re.compile(
    r"(?i)|none|unknown|0+|default string|not (specified|applicable|available)|to be filled.*|system serial.*"
)
_OTHER_KEY = ("HOST IDENTIFICATION HAS CHANGED", "Host key verification failed")


class NodeAccess(Protocol):
    """Reaches the nodes of a run. No method raises for a node that does not answer. The result then has the reason."""

    def read(self, node: str) -> NodeReading:
        """Return what can be read from the node now."""

    def reboot(self, node: str, boot: str) -> str:
        """Order a reboot if the node still has the boot id ``boot``. Return why the reboot could not be ordered, or ""."""

    def apply(self, nodes: Sequence[str], *, check: bool) -> dict[str, ApplyOutcome]:
        """Make the nodes what the site declares, and return the outcome by node. With ``check``, only return what would be
        changed."""

    def forget(self, node: str) -> None:
        """Close Ansible's shared ssh connection to a node that has rebooted, because the connection no longer works."""


class SshNodeAccess:
    """Reaches nodes over ssh and Ansible, with the options of [ansible] in site.toml. ``program``: the ssh command."""

    def __init__(
        self, site: Site, targets: Mapping[str, Target], *, program: str = "ssh", options: ProvisionOptions | None = None
    ) -> None:
        self._site = site
        self._targets = targets
        self._program = program
        self._options = options or ProvisionOptions()

    def read(self, node: str) -> NodeReading:
        code, out, error = self._ssh(node, reading(_PARTS), READ_SECONDS)
        if any(words in error for words in _OTHER_KEY):
            return NodeReading(stranger=f"{self._address(node)} has another host key")
        if code != 0 and not (code == 1 and parts_of(out)):  # head exits with 1 if a file does not exist
            return NodeReading(trouble=_last(error) or ("no answer" if code is None else f"ssh ended with {code}"))
        declared = self._targets[node].document.node
        return isolated(lambda: parse_reading(out, declared), lambda why: NodeReading(trouble=why))

    def reboot(self, node: str, boot: str) -> str:
        # The boot id is checked, because a late order would reboot a node that has just come back.
        script = f'[ "$(cat {_BOOT})" = {shlex.quote(boot)} ] || exit 0; exec systemctl reboot'
        code, _, error = self._ssh(node, script, REBOOT_SECONDS)
        # ssh exits with 255 also if the reboot cuts the connection. The boot id shows later whether the node has rebooted.
        return "" if code in (0, 255, None) else _last(error) or f"systemctl reboot ended with {code}"

    def apply(self, nodes: Sequence[str], *, check: bool) -> dict[str, ApplyOutcome]:
        asked = msgspec.structs.replace(self._options, nodelist=",".join(nodes), check=check, quiet=True, drained=True)
        try:
            report = provision(self._site, asked)
        except FairleadError as e:
            return {node: ApplyOutcome(trouble=f"{e}; next: {e.hint or unheard(nodes)}") for node in nodes}
        return {
            result.node: isolated(partial(apply_outcome, result), lambda why: ApplyOutcome(trouble=why))
            for result in report.nodes
        }

    def forget(self, node: str) -> None:
        a = self._site.ansible
        kept = shared_connections(a.ssh_args, self._address(node))
        if kept:
            words = ["ssh", *shlex.split(a.ssh_args), *shlex.split(kept), "-l", a.user, "-O", "exit", self._address(node)]
            _run(words, 10.0)

    def _address(self, node: str) -> str:
        return self._targets[node].address

    def _ssh(self, node: str, script: str, seconds: float) -> tuple[int | None, bytes, str]:
        """Run a script as root on the node, because only root may read serial numbers. Return what ``_run`` returns."""
        a = self._site.ansible
        command = ("" if a.user == "root" else "sudo -n ") + f"/bin/sh -c {shlex.quote(script)}"
        key = ["-i", a.private_key] if a.private_key else []
        alone = ["-o", "ControlMaster=no", "-o", "ControlPath=none"]
        words = [self._program, *alone, *shlex.split(a.ssh_args), *key, *shlex.split(SSH_ARGS), "-l", a.user, self._address(node)]
        return _run([*words, command], seconds)


def unheard(nodes: Sequence[str]) -> str:
    """Return what to do next if Ansible itself has failed with an error that has no hint."""
    again = f"`fairlead provision {shlex.quote(fold(list(nodes)))} --check`"
    return f"{again} on this admin host shows whether it fails again; `journalctl -k` there says whether it was killed for memory"


def _run(words: Sequence[str], seconds: float) -> tuple[int | None, bytes, str]:
    """Run a command. Return its exit status, its output and its errors as text. The status is None if the command was killed
    after ``seconds``."""
    try:
        said = ask(words, seconds)
    except OSError as e:
        return 127, b"", f"{words[0]}: {e.strerror}"
    return said.code, said.out, f"{SAID}: it does not end" if said.endless else said.err


def _last(error: str) -> str:
    lines = [line for line in error.strip().splitlines() if line.strip()]
    return one_line(lines[-1])[:200] if lines else ""


def parse_reading(answer: bytes, node: str) -> NodeReading:
    """Return the reading from the output of the command that ``read`` runs. ``node``: the name that the node should have."""
    parts = parts_of(answer)
    if parts is None:
        return NodeReading(trouble="its answer is cut short")
    try:
        status = status_of(parts.get("/run/fairlead/status.json", b""))
    except DataError as e:
        return NodeReading(trouble=str(e))
    account = parse_account(answer)
    if account.node not in ("", node):
        return NodeReading(stranger=f"the node there is {account.node}")
    bad, worse = _findings(status)
    boot = _word(parts, _BOOT)
    return NodeReading(
        trouble="" if boot else "it does not say its boot id",
        boot=boot,
        machine=_machine(parts),
        verdict=account.verdict,
        text=account.text or account.trouble,
        age_seconds=account.age_seconds,
        verdict_boot=status.get("boot_id", ""),
        bad=bad,
        worse=worse,
    )


def _word(parts: Mapping[str, bytes], name: str) -> str:
    return one_line(parts.get(name, b"").decode("utf-8", "replace"))[:100]


def _machine(parts: Mapping[str, bytes]) -> str:
    """Return the machine's serial numbers, or its machine id if it has none. A new installation changes the machine id."""
    found = [f"{name.rpartition('/')[2]} {word}" for name in _SERIALS if not _NO_SERIAL.fullmatch(word := _word(parts, name))]
    name = _word(parts, "/etc/machine-id")
    return ", ".join(found) or (f"machine-id {name}" if name else "")


def _findings(status: Status) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the findings of level drain or unknown that nobody has acknowledged: first those of all checks, then those of
    checks in mode enforce."""
    known = set(status.get("acknowledged", ()))
    bad, worse = [], []
    for finding in status.get("findings", ()):
        if finding.get("level") not in ("drain", "unknown") or finding.get("id") in known:
            continue
        text = one_line(f"{finding['check']}: {finding['summary']}")[:200]
        bad.append(text)
        if finding.get("mode") == "enforce":
            worse.append(text)
    return tuple(bad), tuple(worse)


def apply_outcome(result: NodeResult) -> ApplyOutcome:
    """Return the outcome for a node's maintenance from its result of a provisioning run."""
    if result.state in ("failed", "unreachable", "unfinished"):
        return ApplyOutcome(trouble=result.message or result.state)
    pending: list[str] = []
    waiting: list[str] = []
    for item in result.apply.get("items", ()):
        if item["state"] == "deferred":
            (pending if item.get("pending") == "reboot" else waiting).append(f"{item['setting']}: {item['message']}")
        elif item.get("pending") == "reboot":
            pending.append(f"{item['setting']}: {item['message'] or 'in effect after a reboot'}")
    deferred = {text.partition(":")[0] for text in (*pending, *waiting)}
    changed = tuple(c for c in result.changes if c.partition(":")[0] not in deferred)
    return ApplyOutcome(changed=changed, pending=tuple(pending), waiting=tuple(waiting))
