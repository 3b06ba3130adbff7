"""Reads what `fairlead slurm-config topology` needs: the fabric or the NVLink domains, and which nodes the cluster has."""

from __future__ import annotations

import argparse
import os
import re
import shlex
from collections.abc import Iterator
from functools import partial

from fairlead.cli.input_files import text_if_there
from fairlead.cli.machine_tree import recorded_nvml
from fairlead.errors import DataError, InputMissing, UsageError
from fairlead.model.facts import Missing
from fairlead.model.nodelist import expand, fold, is_name
from fairlead.slurm import slurm_conf
from fairlead.topology.fabric import ibnetdiscover, lldp, nvlink_domains, scalable_units
from fairlead.topology.fabric.scalable_units import Blocks, SwitchTree
from fairlead.topology.fabric.switch_fabric import AdapterRule, SwitchFabric, attach, merged

FILE_BYTES = 1 << 28
_GUID = re.compile(r"0x([0-9a-fA-F]{1,16})")


def register(parser: argparse.ArgumentParser) -> None:
    add = partial(parser.add_argument, metavar="FILE", action="append", default=[])
    add("--ibnetdiscover", help="topology: a dump of the InfiniBand fabric, with or without -p; may be repeated")
    add("--lldp", help="topology: the output of `lldpctl -f json` on a node, as NODE.json, or a folder of such files")
    add("--cliques", help="topology: NVLink domains from `clush -w NODES nvidia-smi -q`, or from machine trees (NAME=TREE)")
    parser.add_argument(
        "--kind",
        choices=["tree", "block"],
        default="",
        help="make a tree of switches from the fabric, or a block of each scalable unit (default: tree)",
    )
    parser.add_argument(
        "--format", choices=["conf", "yaml"], default="conf", help="yaml: write topology.yaml, for Slurm 25.05 and newer"
    )
    parser.add_argument(
        "--block-sizes",
        default="",
        metavar="N,...",
        help="BlockSizes (default: the smallest block, and its size doubled each time)",
    )
    parser.add_argument(
        "--rename",
        default="",
        metavar="FILE",
        help='a file of lines "OLD NEW". OLD: an adapter\'s GUID (0x...), description or host; NEW: its node',
    )
    parser.add_argument(
        "--ports", default="", metavar="REGEX", help="use only these adapters or interfaces: 'mlx5_[0-7]|HCA-[1-8]'"
    )


def wanted_nodes(args: argparse.Namespace) -> frozenset[str]:
    """Return the nodes that must be in the file, from --nodes and --slurm-conf. Return an empty set without these options."""
    found = expanded(args.nodes, "--nodes") if args.nodes else frozenset()
    if args.slurm_conf:
        read = slurm_conf.parse(args.slurm_conf, lambda path: text_if_there(path, FILE_BYTES))
        for line in read.nodes:
            if line["nodename"].upper() != "DEFAULT":
                found |= expanded(line["nodename"], args.slurm_conf)
        if not found:
            raise DataError(f"{args.slurm_conf}: no NodeName line in it", hint="name the nodes with --nodes")
    return found


def expanded(text: str, where: str) -> frozenset[str]:
    """Return the nodes of a nodelist. Raise DataError if it is malformed. ``where``: the option or file that contains it."""
    try:
        return frozenset(expand(text))
    except ValueError as e:
        raise DataError(f"{where}: {e}", hint="such as gpu[01-16],login1") from None


def topologies(
    args: argparse.Namespace, wanted: frozenset[str], running: frozenset[str]
) -> tuple[dict[str, SwitchTree | Blocks], tuple[str, ...]]:
    """Return topologies by name, and notes. Raise DataError, InputMissing, UsageError."""
    if not (args.ibnetdiscover or args.lldp or args.cliques):
        raise UsageError("topology needs a source", hint="--ibnetdiscover FILE, --lldp FILE or --cliques FILE")
    made: dict[str, SwitchTree | Blocks] = {}
    notes: list[str] = []
    try:
        sizes = tuple(int(word) for word in args.block_sizes.split(",")) if args.block_sizes else ()
    except ValueError:
        raise UsageError(f"--block-sizes {args.block_sizes}: not numbers", hint="such as 18,36") from None
    rename = _rename(args.rename) if args.rename else {}
    try:
        if args.ibnetdiscover or args.lldp:
            rule = AdapterRule(known=wanted, running=running, rename=rename, ports=_ports(args.ports))
            topology, said = _of_fabric(_fabric(args), rule, args.kind or "tree", sizes)
            made["fabric"] = topology
            notes += said
        if args.cliques:
            nodes = {rename.get(node, node): found for node, found in _cliques(args.cliques)}
            groups, outside = nvlink_domains.groups({n: c for n, c in nodes.items() if not wanted or n in wanted})
            if not groups:
                raise DataError(f"{args.cliques[0]}: no node is in an NVLink domain", hint="use the fabric: --ibnetdiscover")
            made["nvlink"] = scalable_units.blocks(groups, sizes)
            notes += [f"in no NVLink domain: {fold(outside)}"] if outside else []
    except ValueError as e:
        raise UsageError(str(e), hint="see BlockSizes in topology.conf(5)") from None
    return made, tuple(notes)


def _of_fabric(
    fabric: SwitchFabric, rule: AdapterRule, kind: str, sizes: tuple[int, ...]
) -> tuple[SwitchTree | Blocks, list[str]]:
    attached = attach(fabric, rule)
    notes = []
    if attached.unnamed:
        words = ", ".join(f"{description!r} {count}" for description, count in attached.unnamed.items())
        notes.append(f"{sum(attached.unnamed.values())} adapters name no host: {words}")
    if not attached.nodes:
        raise DataError(
            f"no node is connected to a switch{f' ({notes[0]})' if notes else ''}", hint="use --nodes, --ports or --rename"
        )
    if attached.others:
        notes.append(f"on the fabric, but not nodes of the cluster: {fold(attached.others)}")
    if not rule.known:
        notes.append("every host on the fabric counts as a node; --nodes or --slurm-conf says which are")
    made = scalable_units.switch_tree(fabric, attached) if kind == "tree" else scalable_units.unit_blocks(fabric, attached, sizes)
    return made, [*notes, *made.notes]


def _fabric(args: argparse.Namespace) -> SwitchFabric:
    parts = []
    for path in args.ibnetdiscover:
        part = ibnetdiscover.parse(_text(path), path)
        ibnetdiscover.refuse_cut(part, path)
        parts.append(part)
    if args.lldp:
        texts: dict[str, str] = {}
        for path in args.lldp:
            files = _folder(path) if os.path.isdir(path) else [path]
            texts.update((os.path.basename(file).removesuffix(".json"), _text(file)) for file in files)
        parts.append(lldp.parse(texts))
    return merged(parts)


def _folder(path: str) -> list[str]:
    try:
        files = [os.path.join(path, name) for name in sorted(os.listdir(path)) if name.endswith(".json")]
    except OSError as e:
        raise InputMissing(f"{path}: {e.strerror}") from None
    if not files:
        raise InputMissing(f"{path} holds no file NODE.json", hint="ssh NODE lldpctl -f json > NODE.json")
    return files


def _cliques(paths: list[str]) -> Iterator[tuple[str, frozenset[nvlink_domains.Clique]]]:
    for source in paths:
        name, named, path = source.partition("=")
        if not named or os.path.exists(source):
            name, path = os.path.basename(source.rstrip("/")), source
        if os.path.isdir(path):
            raw = recorded_nvml(path)
            if isinstance(raw, Missing):
                raise InputMissing(raw.detail)
            yield name, nvlink_domains.of_nvml(raw)
        else:
            yield from nvlink_domains.parse_nvsmi(_text(path), path).items()


def _rename(path: str) -> dict[str, str]:
    """Return a table from old name to node name, read from a file.

    Each line has two words, quoted as in a shell: the old name and the node. ``#`` begins a comment.
    """
    found = {}
    for number, line in enumerate(_text(path).splitlines(), 1):
        try:
            words = shlex.split(line, comments=True)
        except ValueError as e:
            raise DataError(f"{path}: line {number}: {e}") from None
        if not words:
            continue
        if len(words) != 2 or not is_name(words[1]):
            raise DataError(f"{path}: line {number} is not an old name and a node", hint='such as: 0xb83fd2030012aa "gpu07"')
        guid = _GUID.fullmatch(words[0])
        found[f"{int(guid[1], 16):016x}" if guid else words[0]] = words[1]
    return found


def _ports(text: str) -> re.Pattern[str] | None:
    try:
        return re.compile(text) if text else None
    except re.error as e:
        raise UsageError(f"--ports {text}: {e}", hint="a regular expression such as 'mlx5_[0-7]'") from None


def _text(path: str) -> str:
    text = text_if_there(path, FILE_BYTES)
    if text is None:
        raise InputMissing(f"{path}: No such file or directory", hint="check that it exists and that you may read it")
    if not text.strip():
        raise DataError(f"{path} is empty", hint="make it again")
    return text
