"""Propose a site.toml: read over ssh which hardware the nodes have, group equal nodes, and choose a profile and a fabric.

Without a nodelist, Slurm says which nodes have GPUs. Nothing needs to be installed on the nodes, and nothing changes there:
`head` prints files of sysfs that every user may read. The proposed site only observes (policy.mode). A value that no profile
declares is written as a comment, because a person has to confirm it. Exit codes: 0 the file is written, 66 Slurm has no such
node, 68 no node answered.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypedDict

from fairlead import config
from fairlead.cli.new_file import refuse_existing, write_new
from fairlead.cli.output import print_json
from fairlead.cli.slurm_options import add_bin_dir
from fairlead.errors import ConfigError, ExitCode, FairleadError, InputMissing, UsageError
from fairlead.model.nodelist import fold, is_name
from fairlead.provision.terminal_frame import beneath

if TYPE_CHECKING:
    from fairlead.provision.site_proposal import Proposal
    from fairlead.provision.ssh_fetch import NodeAnswer


class PrintedClass(TypedDict):
    """A class of nodes. nodes: in Slurm's notation. profile: the shipped profile, or null. differs: how it differs from it."""

    name: str
    nodes: str
    profile: str | None
    fabric: str
    differs: list[str]


class ProposedSite(TypedDict):
    """The proposal. file: where it was written, or null with --dry-run. without: why nodes are in no class, by nodelist."""

    file: str | None
    classes: list[PrintedClass]
    without: dict[str, str]
    text: str


def register(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("nodelist", nargs="?", default="", help="the nodes: gpu[001-064] (default: the nodes that have GPUs in Slurm)")
    add("-p", "--partition", metavar="NAME", default="", help="ask Slurm only for the nodes of this partition")
    add("--out", metavar="FILE", default="site.toml", help="the file to write (default %(default)s); it must not exist")
    add("--user", metavar="NAME", default="root", help="the user that logs in on the nodes (default %(default)s)")
    add("--private-key", metavar="FILE", default="", help="the private key (default: ssh finds one)")
    add("--ssh-args", metavar="TEXT", default="", help='more ssh options, such as "-p 2222"')
    add("--ssh", default="ssh", metavar="PROGRAM", help="the program to call in place of ssh")
    add("--slurm-conf", default="", metavar="FILE", help="the slurm.conf to use, where Slurm's commands do not find it")
    add_bin_dir(parser)
    add("-n", "--dry-run", action="store_true", help="print the proposal, write nothing")
    add("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> ExitCode:
    from fairlead.provision.site_proposal import propose
    from fairlead.provision.site_text import site_text

    if not args.dry_run:
        refuse_existing(args.out)
    ansible = _ansible(args)
    addresses = _addresses(args)
    answers = _fetch(args, ansible, addresses)
    machines, unreached = _machines(answers)
    if not machines:
        why, nodes = next(iter(unreached.items()))
        hint = f"try it: ssh {args.user}@{addresses[nodes[0]]}"
        raise NoHost(f"none of {len(addresses)} nodes answered; {nodes[0]}: {why}", hint=hint)
    proposal = propose(machines, [config.load_profile(name) for name in config.profile_names()])
    hosts = {name: address for name, address in addresses.items() if name in machines and address != name}
    table = {**ansible, **({"hosts": hosts} if hosts else {})}
    day = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    text = site_text(proposal, file=args.out, day=day, ansible=table, unreached=unreached)
    if not args.dry_run:
        write_new(args.out, text)
    _report(args, proposal, unreached, text)
    return ExitCode.OK


class NoHost(FairleadError):
    exit_code = ExitCode.NO_HOST


def _ansible(args: argparse.Namespace) -> dict[str, Any]:
    """Return the values for [ansible] that differ from the defaults. Raises ConfigError for a value that a site cannot have."""
    import msgspec

    from fairlead.config.site import AnsibleOptions

    given = {"user": args.user, "private_key": args.private_key, "ssh_args": args.ssh_args}
    try:
        msgspec.convert(given, AnsibleOptions)
    except msgspec.ValidationError as e:
        raise ConfigError("the command line", "", str(e)) from None
    defaults = AnsibleOptions()
    return {key: value for key, value in given.items() if value != getattr(defaults, key)}


def _addresses(args: argparse.Namespace) -> dict[str, str]:
    """Return the address of each node by its name. Raises UsageError, InputMissing, SlurmUnavailable, SlurmError."""
    from fairlead.provision.inventory import expand, is_address, nodelist_hint
    from fairlead.slurm.listing import gpu_nodes
    from fairlead.slurm.scontrol import Scontrol

    if args.nodelist:
        try:
            names = expand(args.nodelist)
        except ValueError as e:
            raise UsageError(f"{args.nodelist}: {e}", hint=nodelist_hint(args.nodelist)) from None
        found = {name: name for name in names}
    else:
        nodes = gpu_nodes(Scontrol(conf=args.slurm_conf, bin_dir=args.bin_dir), args.partition)
        found = {node.name: node.address or node.name for node in nodes}
    if not found:
        raise InputMissing("there is no node to ask", hint="name the nodes: fairlead init gpu[001-064]")
    if wrong := [name for name in found if not is_name(name)]:
        raise UsageError(f"{wrong[0]!r} is not the name of a node", hint="letters, digits, dots, dashes and underscores")
    if odd := [name for name, address in found.items() if not is_address(address)]:
        raise UsageError(f"{odd[0]}: its NodeAddr is no address that ssh can take", hint="fairlead init NODELIST leaves it out")
    return found


def _fetch(args: argparse.Namespace, ansible: Mapping[str, Any], addresses: Mapping[str, str]) -> dict[str, NodeAnswer]:
    from fairlead.provision.node_hardware import COMMAND
    from fairlead.provision.ssh import ssh_options
    from fairlead.provision.ssh_fetch import SshFetch, deadline_seconds

    def answered(done: int, total: int) -> None:
        beneath(sys.stderr).write(f"\r\x1b[Kfairlead init: {done} of {total} nodes have answered")
        sys.stderr.flush()

    options = ssh_options(args.ssh_args, args.private_key, next(iter(addresses.values())), args.ssh)
    on_answer = answered if sys.stderr.isatty() else None
    seconds = deadline_seconds(len(addresses))
    ssh = SshFetch(program=args.ssh, options=options, user=args.user, seconds=seconds, on_answer=on_answer)
    try:
        return ssh.fetch(addresses, COMMAND)
    finally:
        if sys.stderr.isatty():
            beneath(sys.stderr).write("\r\x1b[K")


def _machines(answers: Mapping[str, NodeAnswer]) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """Return the hardware of each node that answered, and the other nodes by the reason."""
    from fairlead.model.isolated import isolated
    from fairlead.provision.node_hardware import parse_hardware

    machines: dict[str, Any] = {}
    unreached: dict[str, list[str]] = {}
    for node, answer in answers.items():
        found = answer.trouble or isolated(lambda answer=answer: parse_hardware(answer.out), str)  # type: ignore[misc]
        if isinstance(found, str):
            unreached.setdefault(found, []).append(node)
        else:
            machines[node] = found
    return machines, unreached


def _report(args: argparse.Namespace, proposal: Proposal, unreached: Mapping[str, list[str]], text: str) -> None:
    if args.json:
        classes = [
            PrintedClass(
                name=c.name,
                nodes=fold(c.nodes),
                profile=c.profile.name if c.profile else None,
                fabric=c.fabric,
                differs=list(c.unlike),
            )
            for c in proposal.classes
        ]
        without = {fold(nodes): why for why, nodes in (*proposal.without.items(), *unreached.items())}
        print_json(ProposedSite(file=None if args.dry_run else args.out, classes=classes, without=without, text=text))
        return
    if args.dry_run:
        print(text, end="")
        return
    for entry in proposal.classes:
        profile = f"profile {entry.profile.name}" if entry.profile else "no profile matches"
        print(f"{entry.name}: {fold(entry.nodes)}: {profile}, fabric {entry.fabric}")
        for line in entry.unlike:
            print(f"  differs: {line}")
    for why, nodes in (*proposal.without.items(), *unreached.items()):
        print(f"no class: {fold(nodes)}: {why}")
    print(f"{args.out} is written: read it, then `fairlead config check {args.out}`")


def json_types() -> dict[str, object]:
    """Return the type of what --json prints (json_schema.py)."""
    return {"": ProposedSite}
