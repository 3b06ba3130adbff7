"""Writes the facts of this node that NCCL needs to /etc/nccl.conf: HCAs, interface, addresses and topology file.

The file has only facts of this node, because all ranks of a job must have the same value of every other variable. For NCCL, the
job's environment overrides the file. Sources: NCCL user guide, environment variables NCCL_IB_HCA, NCCL_SOCKET_IFNAME,
NCCL_IB_ADDR_RANGE, NCCL_TOPO_FILE; NCCL 2.30.7 src/misc/param.cc for the file. If the active ports of a node do not match the
declared number, fairlead reports a finding and never writes a shorter list. A file that fairlead did not write is not changed
unless ``replace_existing`` is true.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta, Struct, field

from fairlead.errors import ConfigError
from fairlead.model.change import File
from fairlead.model.facts import Missing, Nic, Node, PciDevice
from fairlead.model.setting import Setting, Want
from fairlead.nccl import nccl_version, roce, socket, topology_file
from fairlead.nccl.hca import choose
from fairlead.nccl.nccl_conf import ConfLine, Draft, Problem, fault, is_ours, render
from fairlead.nccl.route import connected, other_traffic, parse_routes

FILE = "/etc/nccl.conf"
ROUTE = "/proc/net/route"
MOUNTS = "/proc/mounts"
ADDRESSES6 = "/proc/net/if_inet6"
ROUTES6 = "/proc/net/ipv6_route"
NETWORK = (ROUTE, ADDRESSES6, ROUTES6)
TOPOLOGY_FILES = ("/etc/fairlead/nccl-topology.xml", "/opt/microsoft/*.xml", "/opt/microsoft/*/*.xml", "/etc/nccl/*.xml")


class Stated(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Describes a variable of the fabric profile: its value, the reason and the source. ``nccl`` says for which NCCL versions it
    is."""

    name: str
    value: str
    why: str
    source: str = ""
    nccl: str = ""


class NcclWant(Want, frozen=True, forbid_unknown_fields=True, kw_only=True):
    network: Annotated[
        bool, Meta(description="fairlead writes variables of networks. false: none (for jobs on one node only).")
    ] = True
    hcas: Annotated[
        Annotated[int, Meta(ge=0, le=64)] | None,
        Meta(description="Number of compute HCA ports that must be up on this node. If unset, it is not checked."),
    ] = None
    exclude: Annotated[
        tuple[str, ...],
        Meta(description="HCAs or interfaces that NCCL must not use (storage, management): a name, or a prefix with *."),
    ] = ()
    socket_interface: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9_.:-]{0,15}$|^[0-9A-Fa-f.:]{2,39}/[0-9]{1,3}$",
            description="NCCL's bootstrap interface: auto (that of the default route), a name, a network (10.1.0.0/16), or none.",
        ),
    ] = "auto"
    roce_subnet: Annotated[
        str,
        Meta(
            pattern=r"^$|^[0-9A-Fa-f.:]{2,39}/[0-9]{1,3}$",
            description="RoCE: the network of the compute ports' addresses, if ports have several addresses.",
        ),
    ] = ""
    gid_index: Annotated[
        Annotated[int, Meta(ge=0, le=255)] | None,
        Meta(description="Only for RoCE with NCCL before 2.21: the GID index of RoCE v2 on all ports of all nodes."),
    ] = None
    nccl_version: Annotated[
        str,
        Meta(pattern=r"^$|^[0-9]+(\.[0-9]+){1,3}$", description="The oldest NCCL that jobs use. If empty, a current version."),
    ] = ""
    topology_file: Annotated[
        str, Meta(pattern=r"^(/[\x21-\x7e]+)?$", description="The vendor's topology XML, used only in virtual machines.")
    ] = ""
    variables: Annotated[
        tuple[Stated, ...], Meta(description="Variables of the fabric profile, each with a reason and a source.")
    ] = ()
    extra: Annotated[dict[str, str], Meta(description="Further NCCL_ variables of this node.")] = field(default_factory=dict)
    replace_existing: Annotated[bool, Meta(description="Replace an /etc/nccl.conf that fairlead did not write.")] = False


class Observed(Struct, frozen=True, kw_only=True):
    file: str | None
    nics: tuple[Nic, ...]
    pci: tuple[PciDevice, ...]
    routes: str
    mounts: str
    virtual: bool | Missing
    topologies: Mapping[str, str]
    addresses6: str = ""
    routes6: str = ""


def observe(node: Node) -> Observed | Missing:
    for path in (FILE, ROUTE, MOUNTS):
        text = node.text(path)
        if isinstance(text, Missing):
            return text
    file, routes, mounts, addresses6, routes6 = (node.texts.get(p) for p in (FILE, ROUTE, MOUNTS, ADDRESSES6, ROUTES6))
    return Observed(
        file=file if isinstance(file, str) else None,
        nics=node.nics,
        pci=node.pci,
        routes=routes if isinstance(routes, str) else "",
        mounts=mounts if isinstance(mounts, str) else "",
        virtual=node.virtual,
        topologies={p: t for p, t in node.texts.items() if p.endswith(".xml") and isinstance(t, str)},
        addresses6=addresses6 if isinstance(addresses6, str) else "",
        routes6=routes6 if isinstance(routes6, str) else "",
    )


def _hcas(want: NcclWant, seen: Observed) -> Draft:
    traffic = other_traffic(seen.routes, seen.mounts)
    if "." in want.socket_interface and "/" in want.socket_interface:  # the network of the nodes' own addresses
        for name in connected(parse_routes(seen.routes), ipaddress.IPv4Network(want.socket_interface, strict=False)):
            traffic.setdefault(name, "the nodes' own addresses")
    choice = choose(seen.nics, seen.pci, expected=want.hcas, exclude=want.exclude, other_traffic=traffic)
    if choice.problems:
        hint = "repair the port, or declare the right number in settings.nccl.hcas; the file is left as it is"
        return Draft(problems=tuple(Problem("NCCL_IB_HCA", p, hint) for p in choice.problems))
    notes: tuple[str, ...] = ()
    if choice.down and want.hcas is None:
        down = ", ".join(f"{p} is {choice.left_out[p]}" for p in choice.down)
        notes = (f"{down}; how many ports there must be is not declared (settings.nccl.hcas)",)
    others = tuple(p for p in choice.default if p not in choice.compute and p not in choice.down)
    lines: tuple[ConfLine, ...] = ()
    if choice.compute and others:  # without other HCAs, NCCL uses exactly the compute HCAs by default
        reasons = ", ".join(f"{p} {choice.left_out.get(p, 'left out')}" for p in others)
        if want.hcas is None:  # without a declared number a list could miss HCAs, but an exclusion cannot
            lines = (ConfLine("NCCL_IB_HCA", "^=" + ",".join(others), f"All HCAs but these: {reasons}."),)
        else:
            lines = (ConfLine("NCCL_IB_HCA", "=" + ",".join(choice.compute), f"The compute HCAs by exact name; not {reasons}."),)
    made = Draft(lines=lines, notes=notes)
    if choice.ports and all(n.link_layer == "Ethernet" for n in choice.ports):
        numbers = nccl_version.parse(want.nccl_version)
        made += roce.draft(choice.ports, version=numbers, subnet=want.roce_subnet, gid_index=want.gid_index)
    return made


def _topology(want: NcclWant, seen: Observed) -> Draft:
    if not want.topology_file:
        return Draft()
    if seen.virtual is not True:  # bare metal shows its real topology and needs no file
        return Draft(notes=(f"{want.topology_file} is not for bare metal, which shows its real topology",))
    text = seen.topologies.get(want.topology_file)
    if text is None:
        reason = f"{want.topology_file}: no such file, or not one of {' '.join(TOPOLOGY_FILES)}"
        return Draft(problems=(Problem("NCCL_TOPO_FILE", reason, "install the vendor's file there"),))
    wrong = topology_file.fault(text, seen.pci)
    if wrong:
        return Draft(problems=(Problem("NCCL_TOPO_FILE", f"{want.topology_file} {wrong}", "use the file of this machine type"),))
    return Draft(lines=(ConfLine("NCCL_TOPO_FILE", want.topology_file, "A virtual machine hides its PCIe topology."),))


def _stated(want: NcclWant) -> Draft:
    lines, notes, numbers = [], [], nccl_version.parse(want.nccl_version)
    for v in want.variables:
        if nccl_version.within(numbers, v.nccl):
            lines.append(ConfLine(v.name, v.value, f"{v.why} [{v.source}]" if v.source else v.why))
        else:
            notes.append(f"{v.name} is for NCCL {v.nccl}")
    return Draft(lines=tuple(lines), notes=tuple(notes))


def draft(want: NcclWant, seen: Observed) -> Draft:
    """Return the lines for the file of this node, notes about facts that were left out, and problems. With a problem, the file is
    not changed. Raise ConfigError for a variable that must not be in the file.
    """
    for key, declared in (("extra", want.extra), ("variables", {v.name: v.value for v in want.variables})):
        for name, value in declared.items():
            if reason := fault(name, value):
                raise ConfigError("node.json", f"settings.nccl.{key}.{name}", reason)
    made = Draft()
    if want.network:
        made += _hcas(want, seen)
        network = socket.Network(nics=seen.nics, routes=seen.routes, addresses6=seen.addresses6, routes6=seen.routes6)
        made += socket.draft(want.socket_interface, network)
    made += _topology(want, seen)
    made += _stated(want)
    lines = [x for x in made.lines if x.name not in want.extra]
    lines += [ConfLine(name, value, "Declared by the site.") for name, value in sorted(want.extra.items())]
    return Draft(lines=tuple(lines), notes=made.notes, problems=made.problems)


def wanted(want: NcclWant, seen: Observed) -> str | None:
    """Return the file's text for this node, or None for no file. Raise ConfigError for the first problem, so that the file is not
    changed."""
    made = draft(want, seen)
    for problem in made.problems:
        raise ConfigError(FILE, problem.key, problem.reason, hint=problem.hint)
    return render(made.lines)


def interface(want: NcclWant, node: Node) -> str:
    """Return the name of the interface that NCCL's sockets use on this node, without a prefix. Return "" if it is not certain."""
    declared = want.extra.get(socket.NAME, "")
    if declared:
        return declared[1:] if declared.startswith("=") and "," not in declared else ""
    seen = observe(node)
    if isinstance(seen, Missing) or not want.managed or not want.network:
        return ""
    network = socket.Network(nics=seen.nics, routes=seen.routes, addresses6=seen.addresses6, routes6=seen.routes6)
    made = socket.draft(want.socket_interface, network)
    return next((x.value.removeprefix("=") for x in made.lines if x.name == socket.NAME), "")


def plan(want: NcclWant, observed: Observed) -> tuple[File, ...]:
    text = wanted(want, observed)
    if text == observed.file:
        return ()
    if observed.file is not None and not is_ours(observed.file) and not want.replace_existing:
        if text is None:
            return ()
        raise ConfigError(
            FILE,
            "",
            "was written by somebody else and is left alone",
            hint="move what it says to settings.nccl.extra and declare settings.nccl.replace_existing = true, or managed = false",
        )
    if observed.file is None:
        why = f"{FILE} is missing"
    else:
        why = f"{FILE} has nothing to say on this node" if text is None else f"{FILE} differs from the node's facts"
    # NCCL reads the file when a job starts, so a change is effective at once, not only after the next boot.
    return (File(setting="nccl", why=why, path=FILE, content=text, before=observed.file),)


setting = Setting(
    summary="NCCL's facts of this node in /etc/nccl.conf",
    group="nccl",
    want=NcclWant,
    observe=observe,
    plan=plan,
    live=True,
    reads=(FILE, ROUTE, MOUNTS, ADDRESSES6, ROUTES6, *TOPOLOGY_FILES),
)
