"""Writes what a run sends to the nodes into one private folder, which is removed when the run ends.

request.json      what every node must have: release, files with their hashes, links, units
files             the contents of these files, sent only to a node that lacks a file
wheels.json       the names, sizes and hashes of the wheels
wheels/           the wheels, sent only to a node that lacks a wheel
documents/NODE    what only this node's request has: its documents, the units of its local disk, its driver's package files,
                  and its hardware profile with the PCI IDs of the GPU
nodes             the names of all nodes that the site declares
packages          the path of the folder on this host with the package files of the lock
program.zip       the program that does the work on the node (fairlead/on_node)
lib/fairlead      the modules that the action plugin imports, because the Python that runs Ansible need not have fairlead
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

import fairlead
from fairlead import assets, config
from fairlead.errors import InputMissing
from fairlead.provision import node_program, package_files, wheel_lock
from fairlead.provision.inventory import Target
from fairlead.provision.wheels import Wheel
from fairlead.settings.driver import DriverWant

OPT = "/opt/fairlead"
#: The folder that fairlead's RPM and .deb have (release/package_tree.py), and their folders that an uninstall of ours leaves.
PACKAGE = "/usr/lib/fairlead"
PACKAGE_FOLDERS = (
    *("/etc/fairlead", "/etc/slurm/fairlead", "/usr/share/fairlead", "/var/lib/fairlead"),
    *("/var/cache/fairlead", "/var/cache/fairlead/python"),
)
#: The state folder that the agent's unit makes and may write without a drop-in.
UNIT_STATE = "/var/lib/fairlead"
AGENT_DROP_INS = "/etc/systemd/system/fairlead-agent.service.d"
# Slurm runs every file in prolog.d and epilog.d. Therefore only the prolog and the epilog are in these folders.
HOOKS = {
    "prolog": "/etc/slurm/prolog.d/50-fairlead",
    "epilog": "/etc/slurm/epilog.d/50-fairlead",
    "task-prolog": "/etc/slurm/fairlead/task-prolog",
    "bind-plan": "/etc/slurm/fairlead/bind-plan",
    "health-check": "/etc/slurm/fairlead/health-check",
}
#: The modules for the action plugin, which import only the standard library and each other, and the packages that they are in.
PLUGIN_MODULES = (
    "__init__.py",
    "model/__init__.py",
    "model/another_gpu.py",
    "model/plain_text.py",
    "provision/__init__.py",
    "provision/node_answer.py",
    "provision/node_python.py",
    "provision/wheel_tags.py",
)
UNITS = ({"name": "fairlead-apply.service", "start": False}, {"name": "fairlead-agent.service", "start": True})


def _mode(source: Path) -> int:
    return 0o755 if source.stat().st_mode & 0o100 else 0o644


def node_files() -> list[tuple[str, bytes, int]]:
    """Return (path on the node, content, mode) of everything that is the same on every node. Raises InputMissing."""
    found: list[tuple[str, bytes, int]] = []
    hooks = assets.directory("slurm")
    for name, path in HOOKS.items():
        source = hooks / name
        if not source.is_file():
            raise InputMissing(f"{source}: missing from this installation", hint="reinstall fairlead")
        found.append((path, source.read_bytes(), _mode(source)))
    templates = assets.directory("templates")
    for source in sorted(templates.rglob("*")):
        if source.is_file():
            found.append((f"/{source.relative_to(templates).as_posix()}", source.read_bytes(), _mode(source)))
    return found


def release_name(own: Wheel) -> str:
    """Return VERSION-DIGEST. Any change to fairlead's files or to the versions of its dependencies gives another name."""
    versions = sorted(f"{name}-{version}" for name, version in wheel_lock.load().versions().items())
    digest = hashlib.sha256("\n".join([own.record, *versions]).encode()).hexdigest()
    return f"{fairlead.__version__}-{digest[:10]}"


def scratch_units(document: config.Document) -> list[dict[str, Any]]:
    """Return the systemd units for the node's local disk (jobenv.scratch). Each is an instance whose name is the path, escaped
    as in systemd.unit(5)."""
    path = document.jobenv.scratch.strip("/")
    if not path:
        return []
    plain = ":_.0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    instance = "".join(
        "-" if c == "/" else c if c in plain and (i or c != ".") else f"\\x{ord(c):02x}" for i, c in enumerate(path)
    )
    return [{"name": f"fairlead-scratch@{instance}.{kind}", "start": True} for kind in ("path", "timer")]


def driver_files(document: config.Document) -> list[dict[str, Any]]:
    """Return the package files of the node's driver that this host sends. The list is empty if a mirror is declared, or if the
    driver is not managed."""
    driver = document.settings.get("driver")
    if not isinstance(driver, DriverWant) or not driver.managed or driver.mirror:
        return []
    return [{"file": p.file, "size": p.size, "sha256": p.sha256} for p in driver.packages]


def agent_folders_drop_in(document: config.Document) -> str:
    """Return the drop-in that lets the agent's unit write to the folders that the document names: its state, its metrics, and the
    files for other exporters. The latter are on tmpfs, so the unit makes these folders. If the unit may write to all of them
    anyway, the drop-in sets nothing."""
    agent = document.agent
    words = "# Written by fairlead provision: folders of agent.*, beyond what the unit may write anyway.\n[Service]\n"
    folders = {
        agent.state_dir: "make",
        os.path.dirname(agent.metrics_textfile): "",
        agent.gpustat_dir: "make",
        agent.dcgm_job_dir: "make",
    }
    for folder, make in folders.items():
        if folder and not any(f"{folder}/".startswith(f"{path}/") for path in (agent.run_dir, UNIT_STATE)):
            words += f"ExecStartPre=-+/bin/mkdir -p -m 0755 {folder}\n" if make else ""
            words += f"ReadWritePaths=-{folder}\n"
    return words


def documents(document: config.Document) -> list[dict[str, Any]]:
    """Return the files that differ from node to node."""
    return [
        {"path": "/etc/fairlead/node.json", "content": config.encode_document(document).decode(), "mode": 0o644},
        {"path": "/etc/fairlead/hooks", "content": config.hooks_line(document), "mode": 0o644},
        {"path": f"{AGENT_DROP_INS}/50-metrics.conf", "content": agent_folders_drop_in(document), "mode": 0o644},
    ]


def write_bundle(
    folder: Path,
    targets: Sequence[Target],
    own: Wheel,
    wheels: Sequence[Wheel],
    *,
    state: str,
    undo: bool,
    force: bool,
    drained: bool = False,
    only: Sequence[str] = (),
    packages: str = "",
    declared: Sequence[str] = (),
    package: bool = False,
) -> None:
    """Write everything that the action plugin needs into ``folder``. declared: every node of the site. drained: the nodes run
    `fairlead apply --drained`. only: the settings to apply, () for all. packages: the folder on this host with the package files
    of the lock. Only its path is written. package: a node without fairlead's own package is refused."""
    files = node_files()
    index = [{"name": w.name, "size": len(w.content), "sha256": w.sha256} for w in (own, *wheels)]
    how = {"state": state, "undo": undo, "force": force, "drained": drained, "only": list(only)}
    own_package = {"folder": PACKAGE, "folders": PACKAGE_FOLDERS, "required": package, "version": fairlead.__version__}
    (folder / "wheels").mkdir()
    (folder / "documents").mkdir()
    (folder / "request.json").write_bytes(
        msgspec.json.encode(
            how
            | {"package": own_package, "known_profiles": config.known_profiles()}  # the profiles stay on this host
            | _request(files, release_name(own), index)
        )
    )
    (folder / "files").write_bytes(b"".join(c for _, c, _ in files))
    (folder / "wheels.json").write_bytes(msgspec.json.encode(index))
    for wheel in (own, *wheels):
        (folder / "wheels" / wheel.name).write_bytes(wheel.content)
    for target in targets:
        (folder / "documents" / target.node).write_bytes(msgspec.json.encode(_request_of(target)))
    (folder / "nodes").write_bytes(msgspec.json.encode(declared))
    (folder / "packages").write_text(os.path.abspath(packages) if packages else str(package_files.default_folder()))
    for name in PLUGIN_MODULES:
        copy = folder / "lib" / "fairlead" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes((Path(fairlead.__file__).parent / name).read_bytes())
    (folder / "program.zip").write_bytes(node_program.archive())


def _request_of(target: Target) -> dict[str, Any]:
    """Return the part of the request that is for one node only, in addition to ``_request``."""
    document = target.document
    return {
        # A node with other GPUs is refused (model/another_gpu.py). Profile and classes are for that line and stay on this host.
        "gpu_pci_ids": document.gpu_pci_ids,
        "profile": document.profile,
        "classes": target.classes,
        "documents": documents(document),
        "scratch_units": scratch_units(document),
        "package_files": driver_files(document),
    }


def _request(files: Sequence[tuple[str, bytes, int]], release: str, index: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the request to every node: the files, the wheels of ``index``, the links and units, and what an uninstall
    removes."""
    units = [u for u in UNITS if any(path.endswith(f"/{u['name']}") for path, _, _ in files)]
    return {
        "opt": OPT,
        "release": release,
        # The node installs only wheels that are in this list, which the admin host has sent over ssh.
        "wheels": index,
        "files": [{"path": p, "mode": m, "sha256": hashlib.sha256(c).hexdigest(), "size": len(c)} for p, c, m in files],
        "links": [[f"{OPT}/current", release], ["/usr/local/bin/fairlead", f"{OPT}/current/bin/fairlead"]],
        "units": units,
        # An uninstall also removes these files that the node has made itself, and then the empty ones of the folders below.
        "leftovers": [
            "/etc/slurm/fairlead/scratch-clean",
            "/run/fairlead",
            "/etc/fairlead/disabled",
            "/etc/fairlead/left-for-boot",
            "/var/cache/fairlead",
        ],
        "state_paths": ["/var/lib/fairlead"],
        "folders": [
            "/etc/slurm/fairlead",
            "/etc/fairlead",
            "/usr/share/fairlead",
            "/etc/systemd/system/slurmd.service.d",
            AGENT_DROP_INS,
        ],
    }
