"""Reads what NCCL says about itself with NCCL_DEBUG=INFO: its version, the network plug-in, and the size of the communicator.

Source: NCCL 2.30.7, src/init.cc (versionInfo, initNet, initTransportsRank), src/plugin/net.cc and src/plugin/net/net_v*.cc. The
lines of plug-ins are those of aws-ofi-nccl and gIB. Each part is "" if no line says it, or if lines contradict each other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec import Struct

LINES_MAX = 200_000  # 512 ranks write some 100 lines each
_VERSION = re.compile(r"NCCL version (\d[\w.]{0,30}?)(?:\+cuda(\d[\d.]{0,20}))?\s*$", re.M)
_NETWORK = re.compile(r"NCCL INFO Using network ([\w./+ -]{1,60}?)\s*$", re.M)
_SIZE = re.compile(r"\bnRanks (\d{1,7}) nNodes (\d{1,7}) localRanks \d+")
_EXTERNAL = re.compile(
    r"(?:Successfully loaded external network plugin|NET/Plugin: Loaded net plugin) ([\w./+ -]{1,80}?)(?: \(v\d+\))?\s*$", re.M
)
_PLUGIN_VERSION = re.compile(r"NET/\w+ *:? Initializing ([\w-]{1,40}) v?(\d[\w.-]{0,30})")


class NcclSaid(Struct, frozen=True, kw_only=True):
    """Holds the version of NCCL, the CUDA version that it was built with, the network with its plug-in, and the size of the
    largest communicator. net: "IB", "Socket", or the name of a plug-in with its version."""

    nccl: str = ""
    cuda: str = ""
    net: str = ""
    ranks: str = ""
    nodes: str = ""


def read(text: str) -> NcclSaid:
    """Return what the lines of all ranks say together."""
    lines = "\n".join(text.splitlines()[:LINES_MAX])
    versions = {(m[1], m[2] or "") for m in _VERSION.finditer(lines)}
    nccl, cuda = versions.pop() if len(versions) == 1 else ("", "")
    sizes = {(int(m[1]), int(m[2])) for m in _SIZE.finditer(lines)}
    ranks, nodes = map(str, max(sizes)) if sizes else ("", "")
    return NcclSaid(nccl=nccl, cuda=cuda, net=_net(lines), ranks=ranks, nodes=nodes)


def _net(lines: str) -> str:
    """Return the network. A plug-in that does not say its version is not known, because its version may change unseen."""
    network = _only(m[1] for m in _NETWORK.finditer(lines))
    plugins = {m[1] for m in _EXTERNAL.finditer(lines)}
    if not network or not plugins:
        return network
    version = _only(f"{m[1]} {m[2]}" for m in _PLUGIN_VERSION.finditer(lines))
    return f"{network}, {version}" if version else ""


def _only(found: Iterable[str]) -> str:
    values = set(found)
    return values.pop() if len(values) == 1 else ""
