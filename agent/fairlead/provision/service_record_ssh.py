"""Fetches over ssh what agents say of their nodes' time in service, by one `head` on each node as ``fairlead fleet`` does.

An agent up to 0.1.0 writes no service record, so its audit trail and its status are fetched too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fairlead.config.site import AnsibleOptions
from fairlead.provision.ssh import ssh_options
from fairlead.provision.ssh_fetch import SshFetch, deadline_seconds, parts_of, reading

RECORD = "/run/fairlead/service-record.json"
OLDER = ("/var/lib/fairlead/audit.jsonl.1", "/var/lib/fairlead/audit.jsonl", "/run/fairlead/status.json")
COMMAND, OLDER_COMMAND = reading((RECORD,)), reading(OLDER)


class SshServiceRecords:
    """Fetches files over ssh, with the options of the site. seconds: the time limit for all nodes together, or None."""

    def __init__(self, ansible: AnsibleOptions, *, program: str = "ssh", seconds: float | None = None) -> None:
        self._ansible, self._program, self._seconds = ansible, program, seconds

    def fetch(self, nodes: Sequence[str]) -> Mapping[str, tuple[Mapping[str, bytes], str]]:
        """Return for each node its files by their names, and in one line why there are none, or ""."""
        found = self._fetched(nodes, COMMAND)
        older = [node for node, (files, trouble) in found.items() if not trouble and not files.get("service-record.json")]
        return {**found, **(self._fetched(older, OLDER_COMMAND) if older else {})}

    def _fetched(self, nodes: Sequence[str], command: str) -> dict[str, tuple[Mapping[str, bytes], str]]:
        addresses = {node: self._ansible.hosts.get(node, node) for node in nodes}
        options = ssh_options(
            self._ansible.ssh_args, self._ansible.private_key, next(iter(addresses.values()), ""), self._program
        )
        seconds = self._seconds or deadline_seconds(len(addresses))
        ssh = SshFetch(program=self._program, options=options, user=self._ansible.user, seconds=seconds)
        found: dict[str, tuple[Mapping[str, bytes], str]] = {}
        for node, answer in ssh.fetch(addresses, command).items():
            parts = None if answer.trouble else parts_of(answer.out)
            files = {path.rpartition("/")[2]: content for path, content in (parts or {}).items() if content.strip()}
            found[node] = files, answer.trouble or ("its answer is cut short" if parts is None else "")
        return found
