"""Polls the fleet: reads Slurm's listing, then the status of all agents at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from ClusterShell.NodeSet import NodeSet, NodeSetException
from msgspec import Struct

from fairlead.config import Site
from fairlead.config.site import AnsibleOptions
from fairlead.errors import UsageError
from fairlead.provision.agent_accounts import AccountSource, AgentAccount, SshAccounts
from fairlead.provision.node_details import DETAILED, NodeDetails, details_of
from fairlead.provision.roster import FleetData, RosterFold, RosterRow, as_data, fold, rows
from fairlead.provision.ssh import ssh_options
from fairlead.provision.ssh_fetch import deadline_seconds
from fairlead.slurm.client import switched_off
from fairlead.slurm.listing import Listed, listed
from fairlead.slurm.scontrol import Scontrol

AGENTS_SECONDS = 30.0  # with --watch, the agents are asked at most once in this time


class PolledFleet(FleetData):
    """One poll of all nodes: when it was, and how long it took."""

    at_unix: float
    seconds: float


class FleetPoll(Struct, frozen=True, kw_only=True):
    """Holds the result of one poll. rows: in Slurm's order. at: Unix time. seconds: how long the poll took. switches: the leaf
    switch or block of each node, if it was asked for and Slurm has one."""

    rows: tuple[RosterRow, ...]
    at: float
    seconds: float
    switches: Mapping[str, str] = {}

    def folds(self, *, each: bool = False) -> tuple[RosterFold, ...]:
        """Return the rows with equal rows folded into one. With ``each``, return every row by itself."""
        return tuple(f for r in self.rows for f in fold((r,))) if each else fold(self.rows)

    def data(self) -> PolledFleet:
        """Return the data for --json."""
        return {"at_unix": round(self.at, 3), "seconds": round(self.seconds, 3), **as_data(self.rows)}


class FleetPoller:
    """Polls one selection of nodes.

    ``agents``: ask the agents too, with ``program`` as ssh. ``seconds``: the deadline for the agents' answers, or None for a
    deadline by the number of nodes. ``on_answer``: a function that is called with the number of nodes that have answered and the
    number of all nodes (see SshAccounts). ``detailed``: ask the nodes for their findings, audit trail and GPUs too. ``switches``:
    ask slurmctld for the switch or block of each node (one RPC). ``ask``: another command that reads the account and more, and a
    function that is called with the node and the whole answer.
    """

    def __init__(
        self,
        site: Site | None,
        *,
        nodelist: str = "",
        partition: str = "",
        agents: bool = True,
        seconds: float | None = None,
        program: str = "ssh",
        conf: str = "",
        bin_dir: str = "/usr/bin",
        source: AccountSource | None = None,
        on_answer: Callable[[int, int], None] | None = None,
        detailed: bool = False,
        switches: bool = False,
        ask: tuple[str, Callable[[str, bytes], None]] | None = None,
    ) -> None:
        self._ask = (DETAILED, self._keep) if detailed else ask
        self.details: dict[str, NodeDetails] = {}
        try:
            self._wanted = {str(n) for n in NodeSet(nodelist)} if nodelist else set()
        except NodeSetException as e:
            raise UsageError(f"{nodelist}: {e}") from None
        self._partition = partition
        self._client = Scontrol(conf=conf, bin_dir=bin_dir)
        self._hosts = site.ansible.hosts if site is not None else {}
        self._site, self._program, self._seconds = site, program, seconds
        self._agents, self._switches = agents, switches
        self._source = source
        self._on_answer = on_answer
        self._accounts: dict[str, AgentAccount] = {}
        self._asked: set[str] = set()
        self._accounts_at = float("-inf")

    def poll(self) -> FleetPoll:
        """Poll the nodes once. Agents that were asked less than ``AGENTS_SECONDS`` ago are not asked again.

        Raise SlurmUnavailable, SlurmError.
        """
        began, at = time.monotonic(), time.time()
        nodes = [n for n in listed(self._client) if self._chosen(n)]
        names = {n.state.name for n in nodes if not switched_off(n.state.states)}  # ssh to a node that is off waits in vain
        if self._agents and (began - self._accounts_at >= AGENTS_SECONDS or not names <= self._asked):
            self.details = {}
            self._accounts = self._fetch({name: self._hosts.get(name, name) for name in sorted(names)})
            self._asked, self._accounts_at = names, time.monotonic()
        made = rows(nodes, self._accounts if self._agents else None)
        groups = self._client.topology() if self._switches else ()
        switches = {name: f"{group.kind} {group.name}" for group in reversed(groups) for name in group.nodes}
        return FleetPoll(rows=made, at=at, seconds=time.monotonic() - began, switches=switches)

    def _chosen(self, node: Listed) -> bool:
        name, partitions = node.state.name, node.state.partitions
        return (not self._wanted or name in self._wanted) and (not self._partition or self._partition in partitions)

    def _fetch(self, addresses: dict[str, str]) -> dict[str, AgentAccount]:
        if self._source is None:
            seconds = self._seconds or deadline_seconds(len(addresses))
            self._source = self._over_ssh(next(iter(addresses.values()), ""), seconds)
        return self._source.fetch(addresses)

    def _over_ssh(self, address: str, seconds: float) -> SshAccounts:
        """Return the source of the agents' status: ssh as the site configures it, over the connections that `fairlead
        provision` keeps."""
        ansible = self._site.ansible if self._site is not None else AnsibleOptions(user="")
        options = ssh_options(ansible.ssh_args, ansible.private_key, address, self._program)
        more: dict[str, Any] = {"command": self._ask[0], "on_whole": self._ask[1]} if self._ask is not None else {}
        return SshAccounts(
            program=self._program, options=options, user=ansible.user, seconds=seconds, on_answer=self._on_answer, **more
        )

    def _keep(self, node: str, answer: bytes) -> None:
        self.details[node] = details_of(answer)
