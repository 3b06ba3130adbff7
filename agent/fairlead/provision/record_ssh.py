"""Fetches usage records over ssh, as ``fairlead fleet`` reaches the nodes: each node prints its records of some jobs.

The login on the nodes may be limited to ``fairlead usage-records`` (sshd(8), ``command=`` in authorized_keys).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fairlead.config.site import AnsibleOptions
from fairlead.provision.ssh import ssh_options
from fairlead.provision.ssh_fetch import SshFetch, deadline_seconds

PROGRAM = "/opt/fairlead/current/bin/fairlead"


def command(jobs: Sequence[int], program: str = PROGRAM) -> str:
    """Return the command that prints the records of these jobs on a node. Every login shell can run it."""
    return f"exec {program} usage-records {','.join(map(str, sorted(jobs)))}"


class SshRecords:
    """Fetches records over ssh, with the options of the site. seconds: the time limit for all nodes together, or None."""

    def __init__(
        self, ansible: AnsibleOptions, *, program: str = "ssh", seconds: float | None = None, remote: str = PROGRAM
    ) -> None:
        self._ansible, self._program, self._seconds, self._remote = ansible, program, seconds, remote

    def fetch(self, nodes: Sequence[str], jobs: Sequence[int]) -> Mapping[str, tuple[bytes, str]]:
        """Return for each node the bytes that it sent, and in one line why it sent none, or ""."""
        addresses = {node: self._ansible.hosts.get(node, node) for node in nodes}
        options = ssh_options(
            self._ansible.ssh_args, self._ansible.private_key, next(iter(addresses.values()), ""), self._program
        )
        seconds = self._seconds or deadline_seconds(len(addresses))
        ssh = SshFetch(program=self._program, options=options, user=self._ansible.user, seconds=seconds)
        answers = ssh.fetch(addresses, command(jobs, self._remote))
        return {node: (answer.out, answer.trouble) for node, answer in answers.items()}
