"""Make Slurm's own configuration from the machines and the fabric.

gres [SOURCE...]    gres.conf: device files, nearest cores in Slurm's numbers, NVLinks
nodes [SOURCE...]   the NodeName lines of slurm.conf, with equal nodes in one line
topology            topology.conf or topology.yaml, from the fabric or from NVLink domains
partitions          the PartitionName lines of slurm.conf, from --site
all [SOURCE...]     nodes, gres and partitions of --site in one run: nodes.conf, gres.conf, partitions.conf

A SOURCE is a machine tree, NAME=TREE, or a node's /run/fairlead/topology (gres only). Without a SOURCE, the command describes
this node. With --site FILE, it describes every node of every class. It then needs one tree for each class (CLASS=TREE, or a tree
of one of the class's nodes) and uses the MIG geometry that the site declares. The text is printed. --write FILE writes the text
to FILE instead, whole or not at all, and only if it changed. The command refuses to make a file that names fewer nodes than the
present file (or than --nodes).
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import stat
import sys
from functools import cache
from typing import Any, NotRequired, Required, TypedDict

import msgspec

from fairlead import config
from fairlead.cli import fabric_input, machine_input, site_machines
from fairlead.cli.input_files import text_if_there
from fairlead.cli.output import print_json
from fairlead.errors import DataError, ExitCode, HostError, InputMissing, UsageError
from fairlead.model.nodelist import fold
from fairlead.slurm_config import running_conf
from fairlead.slurm_config.gres_conf import render_gres, render_nodes
from fairlead.slurm_config.partition_conf import partition_line
from fairlead.slurm_config.slurm_node import SlurmNode, Socket
from fairlead.slurm_config.topology_conf import named_nodes, render_conf, render_yaml
from fairlead.topology.fabric.scalable_units import Block, Switch

HEAD = "# Made by `fairlead slurm-config {}`.\n"


_SLURM_CONF = re.compile(r"^\s*(ClusterName|SlurmctldHost|ControlMachine)\s*=", re.IGNORECASE | re.MULTILINE)


_TYPE = re.compile(r"[A-Za-z0-9_.]+")
#: The names of the files that `all` makes in the folder.
FILES = {"nodes": "nodes.conf", "gres": "gres.conf", "partitions": "partitions.conf"}
SLOW = "reading the machines"  # patience.py says it


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """Holds what gres, nodes, topology or partitions has made: the text, its data, the nodes in it, and notes for the user."""

    text: str
    data: Any
    nodes: frozenset[str]
    notes: tuple[str, ...]


class MadeFile(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a made text and what happens to its file. path: the file, or "" if the text is only printed. diff: the difference
    from the present file."""

    what: str
    path: str
    made: Made
    text: str
    notes: tuple[str, ...]
    changed: bool
    written: bool
    diff: str

    @property
    def as_json(self) -> dict[str, Any]:
        said = {"text": self.text, "nodes": fold(self.made.nodes), self.what: self.made.data, "notes": list(self.notes)}
        of_file = {"file": self.path, "changed": self.changed, "written": self.written, "diff": self.diff}
        return said | (of_file if self.path else {})

    def show(self, *, asked_to_write: bool) -> None:
        """Print the text, or what happened to the file."""
        sys.stdout.write(self.diff if self.path else self.text)
        if asked_to_write:
            print(f"{self.path}: {'written' if self.written else 'would be written' if self.changed else 'unchanged'}")
        elif self.path and not self.diff:
            print(f"{self.path}: no difference")


class PrintedText(TypedDict):
    """A text for Slurm. file, changed, written, diff: with --write or --diff."""

    text: str
    notes: list[str]
    file: NotRequired[str]
    changed: NotRequired[bool]
    written: NotRequired[bool]
    diff: NotRequired[str]


class PrintedGres(PrintedText):
    """gres.conf, the nodes in it in Slurm's notation, and the nodes that it was made from."""

    nodes: str
    gres: list[SlurmNode]


class PrintedNodes(PrintedText):
    """NodeName lines, and the nodes that they were made from."""

    nodes: list[SlurmNode]


class PrintedFabric(TypedDict, total=False):
    """A topology: switches for topology/tree (SwitchTree), or blocks and sizes for topology/block (Blocks)."""

    switches: list[Switch]
    blocks: list[Block]
    sizes: list[int]
    notes: Required[list[str]]


class PrintedTopology(PrintedText):
    """topology.conf or topology.yaml, the nodes in it in Slurm's notation, and the topologies by name."""

    nodes: str
    topology: dict[str, PrintedFabric]


class PrintedPartitions(PrintedText):
    """PartitionName lines, the nodes in them in Slurm's notation, and by partition."""

    nodes: str
    partitions: dict[str, str]


class PrintedFiles(TypedDict):
    """All files of a site."""

    gres: PrintedGres
    nodes: PrintedNodes
    partitions: PrintedPartitions
    topology: NotRequired[PrintedTopology]


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=["gres", "nodes", "topology", "partitions", "all"], help="which file or lines to make")
    parser.add_argument("source", nargs="*", help="gres, nodes, all: the machine trees (default: this node)")
    parser.add_argument("--site", default="", metavar="FILE", help="a site.toml, for its classes, partitions and MIG geometries")
    parser.add_argument("--root", default="/", metavar="TREE", help="read a machine tree instead of this node")
    parser.add_argument(
        "--socket", choices=[s.value for s in Socket], default="package",
        help="what Slurm counts as a socket: numa with SlurmdParameters=numa_node_as_socket, l3 with l3cache_as_socket",
    )  # fmt: skip
    parser.add_argument("--type", default="", metavar="NAME", help="the GRES type (default: from the product's name, h100)")
    parser.add_argument(
        "--mig-type", action="append", default=[], metavar="PROFILE=TYPE",
        help="the GRES type of a MIG profile, where slurmd uses another name: 3g.40gb=3g.39gb",
    )  # fmt: skip
    parser.add_argument(
        "--autodetect", choices=["nvml", "nvidia", "rsmi"], default="",
        help="let slurmd detect the GPUs; slurmd then compares the written lines with what it finds",
    )  # fmt: skip
    fabric_input.register(parser)
    parser.add_argument("--nodes", default="", metavar="LIST", help="the nodes that must be in the file")
    parser.add_argument(
        "--slurm-conf",
        default="",
        metavar="FILE",
        help="take the nodes that must be in the file from the NodeName lines of this slurm.conf",
    )
    parser.add_argument(
        "--without", default="", metavar="LIST", help="nodes that the file may lose; with --site: nodes to leave out"
    )
    parser.add_argument("--diff", default="", metavar="FILE", help="show the difference from this running file instead")
    parser.add_argument("--write", default="", metavar="FILE", help="write the text to FILE if it changed (all: to a folder)")
    parser.add_argument("--dry-run", action="store_true", help="with --write: show the difference and write nothing")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> ExitCode:
    if args.dry_run and not args.write:
        raise UsageError("--dry-run needs --write: it shows what --write would do", hint="add --write FILE")
    if args.what in ("partitions", "all") and not args.site:
        raise UsageError(f"{args.what} needs a site", hint="add --site FILE")
    if args.what == "topology" and args.site:
        raise UsageError("topology takes no --site", hint="--nodes LIST says which nodes must be in it")
    args.of_site = config.load_site(args.site) if args.site else None
    args.machines = cache(lambda: site_machines.read(args, args.of_site) if args.site else machine_input.read(args))
    made = _each_file(args) if args.what == "all" else {args.what: _make(args)}
    if args.json:
        print_json({what: one.as_json for what, one in made.items()} if args.what == "all" else made[args.what].as_json)
        return ExitCode.OK
    for note in dict.fromkeys(note for one in made.values() for note in one.notes):
        print(f"note: {note}", file=sys.stderr)
    for one in made.values():
        one.show(asked_to_write=bool(args.write))
    return ExitCode.OK


def _each_file(args: argparse.Namespace) -> dict[str, MadeFile]:
    """Make each file of a site. Write no file before the text of every file is made."""
    folder = args.write or args.diff
    if folder and not os.path.isdir(folder):
        raise InputMissing(f"{folder}: no such folder", hint=f"make it first: {', '.join(FILES.values())} go there")
    parts = [what for what in FILES if what != "partitions" or args.of_site.partitions]
    made = {}
    for dry_run in (True, False):
        for what in parts:
            paths = {key: os.path.join(folder, FILES[what]) for key in ("write", "diff") if getattr(args, key)}
            each = argparse.Namespace(**{**vars(args), "what": what, **paths})
            each.dry_run = bool(args.write) and (dry_run or args.dry_run)
            if dry_run or args.write:
                made[what] = _make(each)
    return made


def _make(args: argparse.Namespace) -> MadeFile:
    """Make one file, and write it with --write. Raise DataError if the new file would lose nodes or GPUs."""
    path = args.write or args.diff
    before = text_if_there(path, fabric_input.FILE_BYTES) if path else None
    if before and _SLURM_CONF.search(before):
        raise UsageError(f"{path} is a whole slurm.conf", hint="name a file of its own, which slurm.conf may include")
    wanted = fabric_input.wanted_nodes(args)
    running = _named(args.what, before, path) if before is not None else frozenset()
    made = {"gres": _gres, "nodes": _nodes, "topology": _topology, "partitions": _partitions}[args.what](args, wanted, running)
    text = HEAD.format(args.what) + made.text
    notes = made.notes + _losses(args, made, wanted, running, before) + _ignored(args)
    write = bool(args.write and before != text and not args.dry_run)
    if write:
        _write(args.write, text)
    return MadeFile(
        what=args.what,
        path=path,
        made=made,
        text=text,
        notes=notes,
        changed=before != text,
        written=write,
        diff=_diff(before, text, path) if path else "",
    )


def _gres(args: argparse.Namespace, _wanted: frozenset[str], _running: frozenset[str]) -> Made:
    nodes = args.machines()
    text = render_gres(nodes, args.autodetect)
    named = frozenset(node.name for node in nodes if node.gpus)
    without = [node.name for node in nodes if not node.gpus]
    mig = [node.name for node in nodes if any(g.mig for g in node.gpus)]
    notes = [f"{fold(without)} has no GPU"] if without else []
    notes += [f"{fold(mig)} is in MIG mode and is left to AutoDetect=nvml"] if mig else []
    return Made(text=text, data=msgspec.to_builtins(nodes), nodes=named, notes=(*_notes(nodes), *notes))


def _nodes(args: argparse.Namespace, _wanted: frozenset[str], _running: frozenset[str]) -> Made:
    nodes = args.machines()
    blind = [node.name for node in nodes if node.memory_mib is None]
    if blind:
        raise DataError(
            f"{blind[0]}: it is not known how much memory it has", hint="name its machine tree: `fairlead snapshot` writes one"
        )
    text, notes = render_nodes(nodes, _mig_names(args))
    named = frozenset(node.name for node in nodes)
    return Made(text=text, data=msgspec.to_builtins(nodes), nodes=named, notes=(*_notes(nodes), *notes))


def _mig_names(args: argparse.Namespace) -> dict[str, str]:
    found = {}
    for word in args.mig_type:
        profile, _, name = word.partition("=")
        if not profile or not _TYPE.fullmatch(name):
            raise UsageError(f"--mig-type {word} is not a profile and a type", hint="such as 3g.40gb=3g.39gb")
        found[profile] = name
    return found


def _partitions(args: argparse.Namespace, _wanted: frozenset[str], _running: frozenset[str]) -> Made:
    from fairlead.provision.inventory import members

    by_class = members(args.of_site)
    known = {node for nodes in by_class.values() for node in nodes}
    left_out = fabric_input.expanded(args.without, "--without") if args.without else frozenset()
    nodes = {
        name: (frozenset(node for c in one.classes for node in by_class[c]) | _of_nodelist(args.site, name, one.nodes)) - left_out
        for name, one in args.of_site.partitions.items()
    }
    empty = [name for name, found in nodes.items() if not found]
    if empty:
        raise DataError(f"partition {empty[0]}: no node is left in it", hint="mend the site, or --without")
    text = "".join(partition_line(name, found, args.of_site.partitions[name].options) for name, found in nodes.items())
    named = frozenset[str]().union(*nodes.values())
    others = named - known
    notes = [f"{fold(others)} is in a partition and in no class: write its NodeName line yourself"] if others else []
    in_none = known - named - left_out
    notes += [f"{fold(in_none)} is in no partition"] if nodes and in_none else []
    return Made(text=text, data={name: fold(found) for name, found in nodes.items()}, nodes=named, notes=tuple(notes))


def _of_nodelist(path: str, name: str, nodelist: str) -> frozenset[str]:
    return fabric_input.expanded(nodelist, f"{path}: partitions.{name}.nodes") if nodelist else frozenset()


def _notes(nodes: list[Any]) -> tuple[str, ...]:
    """Return each note once, with the nodes that it is about."""
    about: dict[str, list[str]] = {}
    for node in nodes:
        for note in node.notes:
            about.setdefault(note, []).append(node.name)
    return tuple(f"{fold(names)}: {note}" for note, names in about.items())


def _topology(args: argparse.Namespace, wanted: frozenset[str], running: frozenset[str]) -> Made:
    if args.source:
        raise UsageError(f"topology takes no {args.source[0]}", hint="name it with --ibnetdiscover, --lldp or --cliques")
    made, notes = fabric_input.topologies(args, wanted, running)
    if args.format == "yaml":
        text = render_yaml(made)
    elif len(made) > 1:
        raise UsageError("topology.conf holds one topology", hint="--format yaml (Slurm 25.05), or leave one source out")
    else:
        text = render_conf(next(iter(made.values())))
    named = frozenset[str]().union(*(topology.nodes() for topology in made.values()))
    whole = frozenset.intersection(*(topology.nodes() for topology in made.values())) if args.format != "yaml" else named
    data = {name: msgspec.to_builtins(topology) for name, topology in made.items()}
    return Made(text=text, data=data, nodes=whole, notes=notes)


def _named(what: str, text: str, path: str) -> frozenset[str]:
    if what == "partitions":
        return frozenset()
    try:
        return named_nodes(text) if what == "topology" else running_conf.node_names(text)
    except ValueError as e:
        raise DataError(f"{path}: {e}", hint="repair the running file, or write to another one") from None


def _losses(
    args: argparse.Namespace, made: Made, wanted: frozenset[str], running: frozenset[str], before: str | None
) -> tuple[str, ...]:
    """Return a note on the nodes that the new file no longer names.

    Raise DataError if the new file would lose nodes, or GPUs of a node, and no option allows the loss.
    """
    allowed = fabric_input.expanded(args.without, "--without") if args.without else frozenset()
    lost = (wanted or running) - made.nodes - allowed
    if lost:
        why = "; ".join(note for note in made.notes if "name no host" in note)
        raise DataError(
            f"{len(lost)} node{'s' if len(lost) > 1 else ''} would be lost: {fold(lost)}{f' ({why})' if why else ''}",
            hint=f"--without {fold(lost)} if they may go; --rename FILE if the fabric has other names for them",
        )
    if args.what == "gres" and before:
        fewer = running_conf.fewer_gpus(before, made.text, allowed)
        if fewer:
            raise DataError(f"GPUs would be lost: {fewer}", hint="repair the node first, or name it with --without")
    gone = (running & allowed | (running - wanted if wanted else frozenset())) - made.nodes
    return (f"no longer named: {fold(gone)}",) if gone else ()


def _ignored(args: argparse.Namespace) -> tuple[str, ...]:
    """Return a note where Slurm ignores topology.conf, because there is a topology.yaml beside it (topology.conf(5))."""
    yaml = os.path.join(os.path.dirname(os.path.realpath(args.write)), "topology.yaml") if args.write else ""
    if args.what != "topology" or args.format != "conf" or not os.path.exists(yaml):
        return ()
    return (f"Slurm 25.05 and newer read {yaml} and ignore topology.conf",)


def _diff(before: str | None, text: str, path: str) -> str:
    old = (before or "").splitlines(keepends=True)
    return "".join(difflib.unified_diff(old, text.splitlines(keepends=True), path if before is not None else "/dev/null", path))


def _write(path: str, text: str) -> None:
    from fairlead.host.change import write_file

    whole = os.path.realpath(path)  # a link to a shared folder stays a link
    try:
        mode = stat.S_IMODE(os.stat(whole).st_mode) if os.path.exists(whole) else 0o644
        write_file(whole, text.encode(), mode)
    except OSError as e:
        raise HostError(f"{path}: {e.strerror}", hint="name a file that can be written") from None


def json_types() -> dict[str, object]:
    """Return the type of what --json prints (json_schema.py)."""
    return {
        "gres": PrintedGres,
        "nodes": PrintedNodes,
        "topology": PrintedTopology,
        "partitions": PrintedPartitions,
        "all": PrintedFiles,
    }
