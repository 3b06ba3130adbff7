"""NCCL's node facts in /etc/nccl.conf: which HCAs, which interface, which topology file.

Only facts of this node go there: NCCL lets the job's environment win over the file, and ranks must agree on all else.
Sources: NCCL user guide, environment variables NCCL_IB_HCA, NCCL_SOCKET_IFNAME, NCCL_TOPO_FILE; NCCL 2.30.7
src/misc/param.cc for the file. A node whose ports do not match the declared number gets a finding, never a shorter list.
A file that somebody else wrote is left alone until ``replace_existing`` says otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta, Struct, field

from fairlead.errors import ConfigError
from fairlead.model.change import File
from fairlead.model.facts import Missing, Nic, Node, PciDevice
from fairlead.model.setting import Setting, Want
from fairlead.nccl.conf import Line, fault, is_ours, render
from fairlead.nccl.hca import choose
from fairlead.nccl.route import default_interface, other_traffic, parse_routes

FILE = "/etc/nccl.conf"
ROUTE = "/proc/net/route"
MOUNTS = "/proc/mounts"
TOPOLOGY_FILES = ("/etc/fairlead/nccl-topology.xml", "/opt/microsoft/*.xml", "/etc/nccl/*.xml")
# Never for NCCL's own sockets: container and tunnel interfaces are UP everywhere and reach nobody (NVIDIA/nccl#913).
NOT_FOR_SOCKETS = ("lo", "docker", "br-", "veth", "cni", "cali", "flannel", "tun", "tap", "virbr", "dummy", "kube")


class NcclWant(Want, frozen=True, forbid_unknown_fields=True, kw_only=True):
    hcas: Annotated[
        Annotated[int, Meta(ge=0, le=64)] | None,
        Meta(description="Compute HCA ports that this node must have up; unset: not checked."),
    ] = None
    exclude: Annotated[
        tuple[str, ...], Meta(description="HCAs or interfaces not for NCCL (storage, management): exact, or a prefix with *.")
    ] = ()
    socket_interface: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9_.:-]{0,15}$",
            description="NCCL's bootstrap interface: auto (the default route's), a name, or none.",
        ),
    ] = "auto"
    topology_file: Annotated[
        str, Meta(pattern=r"^(/[\x21-\x7e]+)?$", description="The vendor's topology XML, used only in virtual machines.")
    ] = ""
    extra: Annotated[dict[str, str], Meta(description="More NCCL_ variables of this node.")] = field(default_factory=dict)
    replace_existing: Annotated[bool, Meta(description="Replace an /etc/nccl.conf that fairlead did not write.")] = False


class Observed(Struct, frozen=True, kw_only=True):
    file: str | None
    nics: tuple[Nic, ...]
    pci: tuple[PciDevice, ...]
    routes: str
    mounts: str
    virtual: bool | Missing
    topologies: Mapping[str, str]


def observe(node: Node) -> Observed | Missing:
    for path in (FILE, ROUTE, MOUNTS):
        text = node.text(path)
        if isinstance(text, Missing):
            return text
    file, routes, mounts = (node.texts.get(p) for p in (FILE, ROUTE, MOUNTS))
    return Observed(
        file=file if isinstance(file, str) else None,
        nics=node.nics,
        pci=node.pci,
        routes=routes if isinstance(routes, str) else "",
        mounts=mounts if isinstance(mounts, str) else "",
        virtual=node.virtual,
        topologies={p: t for p, t in node.texts.items() if p.endswith(".xml") and isinstance(t, str)},
    )


def _hca_lines(want: NcclWant, seen: Observed) -> list[Line]:
    choice = choose(
        seen.nics, seen.pci, expected=want.hcas, exclude=want.exclude, other_traffic=other_traffic(seen.routes, seen.mounts)
    )
    if choice.problems:
        raise ConfigError(
            FILE,
            "NCCL_IB_HCA",
            choice.problems[0],
            hint="repair the port, or declare the right number in settings.nccl.hcas; the file is left as it is",
        )
    others = tuple(p for p in choice.default if p not in choice.compute)
    if not choice.compute or not others:
        return []  # NCCL takes exactly these by itself
    reasons = ", ".join(f"{p} {choice.left_out.get(p, 'left out')}" for p in others)
    if want.hcas is None:  # nothing declared how many there should be: a list could be one too short, an exclusion cannot
        return [Line("NCCL_IB_HCA", "^=" + ",".join(others), f"All HCAs but these: {reasons}.")]
    return [Line("NCCL_IB_HCA", "=" + ",".join(choice.compute), f"The compute HCAs by exact name; not {reasons}.")]


def _socket_lines(want: NcclWant, seen: Observed) -> list[Line]:
    if want.socket_interface in ("none", ""):
        return []
    plain = {n.name: n for n in seen.nics if not n.rdma}
    name, why = want.socket_interface, "Declared by the site."
    if name == "auto":
        name, why = default_interface(parse_routes(seen.routes)), "The interface of the default route."
        usable = [n.name for n in plain.values() if n.state == "UP" and not n.name.startswith(NOT_FOR_SOCKETS)]
        if not name and len(usable) == 1:
            name, why = usable[0], "The only interface that is up."
        if not name or name.startswith(NOT_FOR_SOCKETS):
            return []
    elif name in plain and plain[name].state != "UP":
        raise ConfigError(FILE, "NCCL_SOCKET_IFNAME", f"interface {name} is {plain[name].state}", hint="bring it up")
    elif name not in plain and all(name not in n.interfaces for n in seen.nics):
        raise ConfigError(FILE, "NCCL_SOCKET_IFNAME", f"no interface {name} on this node", hint="see socket_interface")
    return [Line("NCCL_SOCKET_IFNAME", f"={name}", why)]


def _topology_lines(want: NcclWant, seen: Observed) -> list[Line]:
    if not want.topology_file or seen.virtual is not True:  # bare metal shows its real topology: never a file there
        return []
    text = seen.topologies.get(want.topology_file)
    if text is None:
        raise ConfigError(
            FILE,
            "NCCL_TOPO_FILE",
            f"{want.topology_file}: no such file, or not one of {' '.join(TOPOLOGY_FILES)}",
            hint="install the vendor's file there",
        )
    real = {d.address for d in seen.pci}
    named = {m.lower() for m in re.findall(r'busid="([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])"', text)}
    gpus = {d.address for d in seen.pci if d.vendor == 0x10DE and d.class_code >> 16 == 0x03}
    if gpus and not gpus & named:
        raise ConfigError(
            FILE,
            "NCCL_TOPO_FILE",
            f"{want.topology_file} names none of this node's GPUs ({len(named - real)} of its {len(named)} devices are not here)",
            hint="use the file of this machine type",
        )
    return [Line("NCCL_TOPO_FILE", want.topology_file, "A virtual machine hides its PCIe topology.")]


def wanted(want: NcclWant, seen: Observed) -> str | None:
    """The file's text for this node, None for no file."""
    for name, value in want.extra.items():
        reason = fault(name, value)
        if reason:
            raise ConfigError("node.json", f"settings.nccl.extra.{name}", reason)
    lines = _hca_lines(want, seen) + _socket_lines(want, seen) + _topology_lines(want, seen)
    lines = [x for x in lines if x.name not in want.extra]
    lines += [Line(name, value, "Declared by the site.") for name, value in sorted(want.extra.items())]
    return render(tuple(lines))


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
    # NCCL reads the file when a job starts: what it says is effective, not only for the next boot.
    return (File(setting="nccl", why=why, path=FILE, content=text, before=observed.file),)


setting = Setting(
    summary="NCCL's facts of this node in /etc/nccl.conf",
    want=NcclWant,
    observe=observe,
    plan=plan,
    reads=(FILE, ROUTE, MOUNTS, *TOPOLOGY_FILES),
)
