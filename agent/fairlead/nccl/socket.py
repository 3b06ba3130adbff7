"""Decides from the node's routes which interface NCCL's own sockets (bootstrap, out of band) use.

NCCL itself takes the first interface that is up, except docker* and lo. But tunnels, bridges and container interfaces are up on
every node and do not reach other nodes (NCCL 2.30.7 src/misc/socket.cc, ncclFindInterfaces; NVIDIA/nccl#913).
"""

from __future__ import annotations

import ipaddress

from msgspec import Struct

from fairlead.model.facts import Nic
from fairlead.nccl.nccl_conf import ConfLine, Draft, Problem
from fairlead.nccl.route import connected, default_interface, default_interface6, parse_addresses6, parse_routes

NAME = "NCCL_SOCKET_IFNAME"
NEVER = ("lo", "docker", "br-", "veth", "cni", "cali", "flannel", "tun", "tap", "virbr", "dummy", "kube")
FAMILY = ConfLine("NCCL_SOCKET_FAMILY", "AF_INET6", "The addresses of this network are IPv6; NCCL takes IPv4 first.")


class Network(Struct, frozen=True, kw_only=True):
    """Holds the node's interfaces, and the texts of /proc/net/route, if_inet6 and ipv6_route. A text is "" if there is no such
    file."""

    nics: tuple[Nic, ...]
    routes: str
    addresses6: str = ""
    routes6: str = ""

    def state(self, name: str) -> str:
        """Return the state of an interface: UP or another state of the kernel. Return "there" if the interface exists but its
        state is not known, and "" if it does not exist."""
        for nic in self.nics:
            if not nic.rdma and nic.name == name:
                return nic.state if isinstance(nic.state, str) else "there"
        names = {r.interface for r in parse_routes(self.routes)} | {i for i, _ in parse_addresses6(self.addresses6)}
        return "there" if name in names or any(name in n.interfaces for n in self.nics) else ""


def draft(wish: str, network: Network) -> Draft:
    """Return what the file sets for NCCL's sockets.

    ``wish``: auto, none, an interface, or a network (10.1.0.0/16). A network means the node's interface in this network.
    """
    if wish in ("none", ""):
        return Draft()
    if "/" in wish:
        return _in_network(wish, network)
    if wish != "auto":
        return _named(wish, "Declared by the site.", network)
    name, why = default_interface(parse_routes(network.routes)), "The interface of the default route."
    family: tuple[ConfLine, ...] = ()
    if not name and (name := default_interface6(network.routes6)):
        family = (FAMILY,)
    usable = [n.name for n in network.nics if not n.rdma and n.state == "UP" and not n.master and not n.name.startswith(NEVER)]
    if not name and len(usable) == 1:
        name, why = usable[0], "The only interface that is up."
    if not name or name.startswith(NEVER):
        return Draft(notes=(f"no interface for NCCL's sockets is certain ({name or 'no default route'}): NCCL chooses itself",))
    return Draft(lines=(ConfLine(NAME, f"={name}", why), *family))


def _named(name: str, why: str, network: Network) -> Draft:
    state = network.state(name)
    if not state:
        return Draft(problems=(Problem(NAME, f"no interface {name} on this node", "see settings.nccl.socket_interface"),))
    if state not in ("UP", "there"):
        return Draft(problems=(Problem(NAME, f"interface {name} is {state}", "bring it up"),))
    return Draft(lines=(ConfLine(NAME, f"={name}", why),))


def _in_network(wish: str, network: Network) -> Draft:
    net = ipaddress.ip_network(wish, strict=False)
    if isinstance(net, ipaddress.IPv4Network):
        names = connected(parse_routes(network.routes), net)
    else:
        names = tuple(dict.fromkeys(i for i, a in parse_addresses6(network.addresses6) if a in net))
    if len(names) != 1:
        reason = f"{', '.join(names)} are all in {wish}" if names else f"no interface with an address in {wish}"
        return Draft(problems=(Problem(NAME, reason, "see settings.nccl.socket_interface"),))
    made = _named(names[0], f"The interface of {wish}, as the site declares it.", network)
    return made if net.version == 4 or made.problems else Draft(lines=(*made.lines, FAMILY))
