"""Makes a folder from the site's declaration for people who run a playbook of their own.

OUTPUT/bundle           what the role `node` sends to the nodes (run_bundle.py); `node_bundle` in the inventory is its path
OUTPUT/inventory.yml    the nodes by class, with their addresses
OUTPUT/roles            the roles, of the same version as the bundle

The folder is made under another name and then renamed, so that no run sees half of it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from fairlead import assets
from fairlead.config import Site
from fairlead.errors import DataError, HostError
from fairlead.provision.inventory import Target, all_nodes, members
from fairlead.provision.run_bundle import write_bundle
from fairlead.provision.wheels import Wheel

PARTS = ("bundle", "inventory.yml", "roles")


def render(site: Site, chosen: Sequence[Target], own: Wheel, wheels: Sequence[Wheel], output: Path, **request: Any) -> bool:
    """Write the folder ``output``. Return False if it had this content already. request: the other arguments of write_bundle.
    Raises HostError, and DataError if the folder has other files in it."""
    if output.is_dir() and (strange := sorted({p.name for p in output.iterdir()} - set(PARTS))):
        raise DataError(f"{output}: has {strange[0]} in it, which is not of `fairlead render`", hint="name another folder")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{output.name}.", dir=output.parent))  # 0700
        try:
            (made / "bundle").mkdir()
            write_bundle(made / "bundle", chosen, own, wheels, declared=all_nodes(site), package=site.ansible.package, **request)
            (made / "inventory.yml").write_bytes(inventory(site, chosen, str((output / "bundle").absolute())))
            shutil.copytree(assets.directory("playbooks") / "roles", made / "roles", ignore=shutil.ignore_patterns("__pycache__"))
            if output.is_dir() and _content(output) == _content(made):
                return False
            _replace(output, made)
        finally:
            shutil.rmtree(made, ignore_errors=True)
    except OSError as e:
        raise HostError(f"{e.filename or output}: {e.strerror}") from None
    return True


def inventory(site: Site, chosen: Sequence[Target], bundle: str) -> bytes:
    """Return an inventory with a group for each class, and with the variables that all nodes have in common. It is written as
    JSON, which is YAML too."""
    a = site.ansible
    common: dict[str, Any] = {"ansible_user": a.user, "node_bundle": bundle}
    common |= {"ansible_python_interpreter": a.python, "node_python": a.python} if a.python else {}
    common |= {"ansible_become": True} if a.user != "root" else {}
    common |= {"ansible_ssh_private_key_file": os.path.abspath(a.private_key)} if a.private_key else {}
    common |= {"ansible_ssh_common_args": a.ssh_args} if a.ssh_args else {}
    hosts: Mapping[str, Any] = {t.node: {} if t.address == t.node else {"ansible_host": t.address} for t in chosen}
    groups: dict[str, dict[str, Any]] = {
        _group(name): {"hosts": {n: {} for n in nodes if n in hosts}} for name, nodes in members(site).items()
    }
    nodes = {"hosts": hosts, "vars": common, "children": {name: group for name, group in groups.items() if group["hosts"]}}
    return msgspec.json.format(msgspec.json.encode({"all": {"children": {"fairlead": nodes}}}), indent=2) + b"\n"


def _group(name: str) -> str:
    """Return a class's name in the form that Ansible accepts for a group: letters, digits and _."""
    return "class_" + "".join(c if c.isalnum() and c.isascii() else "_" for c in name)


def _content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts}


def _replace(output: Path, made: Path) -> None:
    old = made.with_name(made.name + ".old")
    if output.is_dir():
        output.rename(old)
    made.rename(output)
    shutil.rmtree(old, ignore_errors=True)
