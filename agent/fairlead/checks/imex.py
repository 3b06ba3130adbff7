"""Checks IMEX, which lets GPUs of several nodes map each other's memory over NVLink: daemon, list of nodes, and channel.

Source: NVIDIA IMEX service user guide (docs.nvidia.com/multi-node-nvlink-systems/imex-guide). The daemon nvidia-imex runs on
every node of an NVLink domain. /etc/nvidia-imex/nodes_config.cfg has the address of each node on a line of its own. CUDA needs a
device /dev/nvidia-caps-imex-channels/channelN. A reboot removes this device.

The check does not judge whether the node's own address is in nodes_config.cfg. When the daemon starts, it reads this file and
looks for an address of this machine in it ("Config Options", BIND_INTERFACE_IP). The daemon also accepts host names, so a file
without the node's own address may be right. With a wrong file the daemon does not run, and the check reports that. If the
scheduler of a site starts IMEX and makes channels for each job, the site declares `daemon = false` and `channels_min = 0`. The
daemon must belong to root, as the fabric manager must in the check `fabric_manager`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta

from fairlead.model.check_definition import Check, CheckParams, Past
from fairlead.model.facts import Missing, Node
from fairlead.model.finding import Action, Finding, Level, Mode, Service, with_action
from fairlead.model.unread import unread

STAT = "/proc/@nvidia-imex/stat"
NODES = "/etc/nvidia-imex/nodes_config.cfg"


class Params(CheckParams, frozen=True, kw_only=True):
    required: Annotated[bool, Meta(description="The node is part of an NVLink domain of several nodes.")] = False
    daemon: Annotated[bool, Meta(description="nvidia-imex must run all the time.")] = True
    channels_min: Annotated[int, Meta(ge=0, le=2048, description="This many channel devices must be there all the time.")] = 1
    nodes_expected: Annotated[
        Annotated[int, Meta(ge=1, le=1024)] | None,
        Meta(description="Number of nodes in nodes_config.cfg. If unset, at least one."),
    ] = None


def _drain(summary: str, *evidence: str) -> Finding:
    return with_action(Level.DRAIN, summary, Action.PROVISION, *evidence, service=Service.DRAIN_AFTER_JOB)


def judge(node: Node, past: Past, params: Params) -> Iterator[Finding]:
    if not params.required:
        return
    if params.daemon:
        yield from _daemon(node, params)
    channels = node.driver.software.imex_channels
    if isinstance(channels, Missing):
        yield unread("IMEX channels", channels)
    elif channels < params.channels_min:
        yield _drain(f"{channels} of {params.channels_min} IMEX channels in /dev/nvidia-caps-imex-channels")


def _daemon(node: Node, params: Params) -> Iterator[Finding]:
    stat, text = node.text(STAT), node.text(NODES)
    if isinstance(stat, Missing):
        yield unread("whether nvidia-imex runs", stat)
    elif (stat or "").rpartition(")")[2].split()[:1] in ([], ["Z"], ["X"]):
        yield _drain("nvidia-imex does not run", "systemctl status nvidia-imex; /var/log/nvidia-imex.log")
    if isinstance(text, Missing):
        yield unread(NODES, text)
        return
    lines = [line for line in (text or "").splitlines() if line.strip() and not line.lstrip().startswith("#")]
    if not lines:
        yield _drain(f"{NODES} {'is not there' if text is None else 'names no node'}")
    elif params.nodes_expected is not None and len(lines) != params.nodes_expected:
        yield _drain(f"{NODES} names {len(lines)} nodes, {params.nodes_expected} expected")


check = Check(
    summary="IMEX daemon, node list and channels, on nodes of a multi-node NVLink domain",
    params=Params,
    another_gpu={"required": False, "nodes_expected": None},
    judge=judge,
    mode=Mode.OBSERVE,
    confirm=2,
    confirm_of=2,
    recover=2,
    boot_grace_seconds=300,
    reads=(STAT, NODES),
    slow=True,
    judges=lambda params: bool(params.required),
)
