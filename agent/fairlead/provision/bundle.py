"""What a run carries to the nodes, laid out in one private folder that is wiped when the run ends.

request.json      what every node must have: release, files with their hashes, links, units
files.json, files the contents, sent only to a node that lacks one
wheels/           wheels, the same
documents/NODE    each node's resolved document
nodes             the names of all nodes that the site declares
packages          where the package files of the lock are on this host
program.json      the program that does the work there (on_node*.py)
answer.py         what a node may answer, for the action plugin; plain.py goes before it
wheel_tags.py     how the action plugin chooses among the wheels
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
from fairlead.provision import package_files, wheel_lock
from fairlead.provision.inventory import Target
from fairlead.provision.wheels import Wheel

OPT = "/opt/fairlead"
# Slurm runs everything in prolog.d and epilog.d: only these two go there, the others beside.
HOOKS = {
    "prolog": "/etc/slurm/prolog.d/50-fairlead",
    "epilog": "/etc/slurm/epilog.d/50-fairlead",
    "task-prolog": "/etc/slurm/fairlead/task-prolog",
    "bind-plan": "/etc/slurm/fairlead/bind-plan",
    "health-check": "/etc/slurm/fairlead/health-check",
}
PROGRAM = (
    "on_node_files.py",
    "on_node_release.py",
    "on_node_packages.py",
    "on_node.py",
)  # sent in this order, into one namespace
UNITS = ({"name": "fairlead-apply.service", "start": False}, {"name": "fairlead-agent.service", "start": True})


def _mode(source: Path) -> int:
    return 0o755 if source.stat().st_mode & 0o100 else 0o644


def node_files() -> list[tuple[str, bytes, int]]:
    """(path on the node, content, mode) of everything that is the same on every node."""
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
    """VERSION-DIGEST: other contents of ours, or other versions of what it needs, are another release."""
    versions = sorted(f"{name}-{version}" for name, version in wheel_lock.load().versions().items())
    digest = hashlib.sha256("\n".join([own.record, *versions]).encode()).hexdigest()
    return f"{fairlead.__version__}-{digest[:10]}"


def documents(document: config.Document) -> list[dict[str, Any]]:
    """The files that differ from node to node."""
    return [
        {"path": "/etc/fairlead/node.json", "content": config.encode_document(document).decode(), "mode": 0o644},
        {"path": "/etc/fairlead/hooks", "content": config.hooks_line(document), "mode": 0o644},
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
) -> None:
    """Lay out everything that the action plugin needs below ``folder``. declared: every node of the site. drained: `fairlead
    apply --drained` is run there; only: of these settings. packages: the folder here with the files of the lock's packages; only
    its path is written."""
    files = node_files()
    index = [{"name": w.name, "size": len(w.content), "sha256": w.sha256} for w in (own, *wheels)]
    how = {"state": state, "undo": undo, "force": force, "drained": drained, "only": list(only)}
    (folder / "wheels").mkdir()
    (folder / "documents").mkdir()
    (folder / "request.json").write_bytes(msgspec.json.encode(how | _request(files, release_name(own), index)))
    (folder / "files").write_bytes(b"".join(c for _, c, _ in files))
    (folder / "wheels.json").write_bytes(msgspec.json.encode(index))
    for wheel in (own, *wheels):
        (folder / "wheels" / wheel.name).write_bytes(wheel.content)
    for target in targets:
        (folder / "documents" / target.node).write_bytes(msgspec.json.encode(documents(target.document)))
    (folder / "nodes").write_bytes(msgspec.json.encode(declared))
    (folder / "packages").write_text(os.path.abspath(packages) if packages else str(package_files.default_folder()))
    here = Path(__file__).parent
    for source in (here / "wheel_tags.py", here / "answer.py", here.parent / "model" / "plain.py"):
        (folder / source.name).write_bytes(source.read_bytes())
    program = [[name, (here / name).read_text(encoding="utf-8")] for name in PROGRAM]
    (folder / "program.json").write_bytes(msgspec.json.encode(program))


def _request(files: Sequence[tuple[str, bytes, int]], release: str, index: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What every node is asked for: the files, the wheels of ``index``, the links and units; and what an uninstall removes."""
    units = [u for u in UNITS if any(path.endswith(f"/{u['name']}") for path, _, _ in files)]
    return {
        "opt": OPT,
        "release": release,
        # The node installs no other wheels: each is held against this on the admin host's word, which came over ssh.
        "wheels": index,
        "files": [{"path": p, "mode": m, "sha256": hashlib.sha256(c).hexdigest(), "size": len(c)} for p, c, m in files],
        "links": [[f"{OPT}/current", release], ["/usr/local/bin/fairlead", f"{OPT}/current/bin/fairlead"]],
        "units": units,
        # Removed by uninstall: what the node made itself, then folders where nothing else is left.
        "leftovers": [
            "/etc/slurm/fairlead/scratch-clean",
            "/run/fairlead",
            "/etc/fairlead/disabled",
            "/etc/fairlead/left-for-boot",
            "/var/cache/fairlead",
        ],
        "state_paths": ["/var/lib/fairlead"],
        "folders": ["/etc/slurm/fairlead", "/etc/fairlead", "/usr/share/fairlead", "/etc/systemd/system/slurmd.service.d"],
    }
