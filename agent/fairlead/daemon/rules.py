"""What a document and the files of people say about deciding: policies, hold, a running apply, the way to slurmctld."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from fairlead import checks
from fairlead.config import Document, SlurmOptions
from fairlead.daemon import log
from fairlead.daemon.disk import Storage
from fairlead.daemon.drain import Drain
from fairlead.daemon.fleet import Fleet
from fairlead.daemon.ledger import Ledger
from fairlead.daemon.slurmd import Slurmd
from fairlead.errors import SlurmError
from fairlead.host.clock import boottime
from fairlead.host.process import slurmd_names
from fairlead.model.json_text import NOT_JSON
from fairlead.policy import CheckPolicy
from fairlead.slurm.client import NodeState
from fairlead.slurm.identity import disagreement
from fairlead.slurm.leftovers import Leftovers
from fairlead.slurm.scontrol import Scontrol

if TYPE_CHECKING:
    from fairlead.slurm.pyslurm_adapter import Pyslurm

DISABLED = "/etc/fairlead/disabled"


def policies_of(document: Document) -> dict[str, CheckPolicy]:
    """The policy of every enabled check and managed setting (``setting.NAME``)."""
    loaded = checks.load()
    found = {n: CheckPolicy.of(loaded[n], params) for n, params in document.checks.items() if params.enabled}
    found |= {f"setting.{n}": CheckPolicy.of_setting(want.mode) for n, want in document.settings.items() if want.managed}
    return found


def keeping(old: Document, new: Document) -> tuple[Document, list[str]]:
    """A document for an agent that runs: what it cannot change while it runs stays as it was, and is named."""
    later = []
    for name in ("state_dir", "run_dir"):
        was = getattr(old.agent, name)
        if getattr(new.agent, name) != was:
            later.append(f"agent.{name}")
            new = replace(new, agent=replace(new.agent, **{name: was}))
    if new.slurm_node != old.slurm_node:  # the ledger is of one node
        later.append("slurm.node_name" if new.node == old.node else "node")
        new = replace(new, node=old.node, slurm=replace(new.slurm, node_name=old.slurm.node_name))
    return new, later


def hold_of(state_dir: str, run_dir: str) -> dict[str, str] | None:
    """Who holds this node by `fairlead hold`; None: nobody. A hold that cannot be read is one. It lies in ``run_dir`` where
    the disk took nothing."""
    return _hold(os.path.join(state_dir, "hold")) or _hold(os.path.join(run_dir, "hold"))


class Hold:
    """``hold_of`` where the disk may not answer: what was known of a hold then stands. ``every_seconds``: asked so often at
    most; who writes to Slurm asks each time."""

    def __init__(self, disk: Storage, every_seconds: float = 0.0) -> None:
        self._disk = disk
        self._known: dict[str, str] | None = None
        self._every_seconds = every_seconds
        self._next = 0.0

    def look(self, state_dir: str, run_dir: str) -> dict[str, str] | None:
        """Who holds this node; None: nobody."""
        if (now := time.monotonic()) >= self._next:
            self._next = now + self._every_seconds
            with suppress(OSError):
                self._known = self._disk.do(lambda: _hold(os.path.join(state_dir, "hold")))
        return self._known or _hold(os.path.join(run_dir, "hold"))


def _hold(path: str) -> dict[str, str] | None:
    try:
        with open(path, "rb") as f:
            data = msgspec.json.decode(f.read(65536))
    except FileNotFoundError:
        return None
    except (*NOT_JSON, OSError):
        return {"reason": "unreadable"}
    if not isinstance(data, dict):
        return {"reason": "unreadable"}
    until = data.get("until_unix")
    if isinstance(until, int | float) and time.time() >= until:
        return None
    return {str(k): str(v) for k, v in data.items()} or {"reason": "unreadable"}


def barred(hold: Hold, state_dir: str, run_dir: str, disabled: str) -> str:
    """Why the agent may write nothing to Slurm: a person's hold, or the file ``disabled``; "" when it may."""
    if os.path.lexists(disabled):
        return "fairlead is disabled on this node"
    return "held by an admin" if hold.look(state_dir, run_dir) is not None else ""


def applying(run_dir: str) -> bool:
    """Whether `fairlead apply` runs: RUN_DIR/applying, ``1 PID EXPIRES`` with CLOCK_BOOTTIME seconds. One that was killed left
    its mark, and no process."""
    pid = _asked(run_dir, "applying")
    return pid is not None and os.path.exists(f"/proc/{pid}")


def nvml_released(run_dir: str) -> bool:
    """Whether NVML is to be let go of, for the module to be unloaded or a GPU reset: RUN_DIR/nvml-release, of the same form."""
    return _asked(run_dir, "nvml-release") is not None


def _asked(run_dir: str, name: str) -> int | None:
    """The process that wrote a mark which has not expired; None: there is none."""
    try:
        with open(os.path.join(run_dir, name), encoding="ascii", errors="replace") as f:
            fields = f.read(256).strip().split("\t")
    except OSError:
        return None
    valid = len(fields) == 3 and fields[1].isdigit() and fields[2].isdigit() and int(fields[2]) >= boottime()
    return int(fields[1]) if valid else None


def drain_protocol(document: Document, ledger: Ledger, *, barred: Callable[[], str] = lambda: "", boot_id: str = "") -> Drain:
    """The drain protocol of the document's node, over the adapter that the document chooses. ``barred``, ``boot_id``: see
    Drain."""
    options, name = document.slurm, document.slurm_node
    hidden = Leftovers(options.conf, name)
    client = slurm_client(options)
    # pyslurm knows no topology
    ask = Scontrol(conf=options.conf, bin_dir=options.bin_dir, deadline_seconds=options.deadline_seconds)
    fleet = Fleet(document.policy, ask.topology)
    return Drain(
        client,
        ledger,
        name,
        document.policy,
        hidden=hidden.since,
        stranger=_stranger,
        barred=barred,
        fleet=fleet,
        boot_id=boot_id,
        reconfigured=lambda: Slurmd().reconfigured(),
        not_after=client.not_after,
    )


def _stranger(mine: NodeState) -> str:
    return disagreement(mine, slurmd_names())


def slurm_client(options: SlurmOptions) -> Scontrol | Pyslurm:
    """The adapter that the document chooses; scontrol where pyslurm does not fit this node's Slurm."""
    if options.adapter == "pyslurm":
        from fairlead.slurm.pyslurm_adapter import Pyslurm

        try:
            return Pyslurm(
                conf=options.conf,
                bin_dir=options.bin_dir,
                python=options.pyslurm_python,
                deadline_seconds=options.deadline_seconds,
            )
        except SlurmError as e:
            log.line(log.WARNING, "pyslurm does not fit", instead="scontrol", why=str(e))
    return Scontrol(conf=options.conf, bin_dir=options.bin_dir, deadline_seconds=options.deadline_seconds)
