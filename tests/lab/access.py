"""The ways into a rack from the machine: ssh_config, an Ansible inventory, ``enter`` and Slurm's commands in bin/."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from tests.lab import clients, net, roots
from tests.lab.enter import enter_command

if TYPE_CHECKING:
    from tests.lab.rack import Rack

_SSH = """\
Host *
  User root
  IdentityFile {key}
  IdentitiesOnly yes
  BatchMode yes
  StrictHostKeyChecking no
  UserKnownHostsFile /dev/null
  GlobalKnownHostsFile /dev/null
  LogLevel ERROR
  ConnectTimeout 3
  PreferredAuthentications publickey
  GSSAPIAuthentication no
  ControlMaster auto
  ControlPath {folder}/ssh/%C
  ControlPersist 60
"""


def write(rack: Rack) -> None:
    """Write ssh_config, inventory, enter and bin/ into the rack's run folder."""
    ssh = _SSH.format(key=roots.ssh_key(), folder=rack.folder)
    ssh += "".join(f"Host {host.name}\n  HostName {host.address}\n" for host in rack.hosts)
    rack.ssh_config.write_text(ssh)
    lines = ["[nodes]", *(f"{host.name} ansible_host={host.address}" for host in rack.nodes)]
    lines += ["", "[controllers]", f"{rack.controller.name} ansible_host={net.CONTROLLER_ADDRESS}", "", "[all:vars]"]
    lines += ["ansible_user=root", "ansible_python_interpreter=/usr/bin/python3"]
    lines += [f"ansible_ssh_private_key_file={roots.ssh_key()}"]
    lines += [f"ansible_ssh_common_args='-F {rack.ssh_config}'", ""]
    rack.inventory_path.write_text("\n".join(lines))
    enter = rack.folder / "enter"
    control = f"ip netns exec {rack.control_netns}"
    enter.write_text(f'#!/bin/sh\necho $$ > {rack.cgroup}/tools/cgroup.procs && exec {control} "$@"\n')
    enter.chmod(0o755)
    for client in clients.CLIENTS:
        script = rack.bin / client
        words = shlex.join(enter_command("PID")).replace("PID", '"$pid"')
        pid = f"read -r pid rest < {rack.controller.folder}/init || exit 1"
        script.write_text(f'#!/bin/sh\n{pid}\nexec {words} /usr/bin/{client} "$@"\n')
        script.chmod(0o755)
