"""Reads this machine, or a machine tree, once, for the commands that need its facts."""

from __future__ import annotations

import argparse
import os
from typing import Any

from fairlead import config
from fairlead.cli.machine_tree import machine, recorded_nvml
from fairlead.host.gather import gather
from fairlead.host.kmsg import past_now
from fairlead.judge import reads, wanted
from fairlead.model.check_definition import Past
from fairlead.model.facts import Missing, Node, StuckCall

DOCUMENT = "/etc/fairlead/node.json"


def register(parser: argparse.ArgumentParser) -> None:
    """Add the options that all commands share which read a machine."""
    parser.add_argument("--root", default="/", metavar="TREE", help="read a machine tree instead of this machine")
    parser.add_argument(
        "--document", default="", metavar="FILE", help=f"the node's document (default: {DOCUMENT} below the root)"
    )
    parser.add_argument("--profile", metavar="NAME", default="", help="judge by this hardware profile instead of a document")


def document_for(args: argparse.Namespace) -> config.Document:
    """Return the document to use: that of --document, else one of --profile, else the machine's own, else the defaults."""
    if args.document:
        return config.load_document(args.document)
    own = os.path.join(args.root, DOCUMENT.lstrip("/"))
    if args.profile:
        return config.profile_document("localhost", args.profile)
    if os.path.exists(own):
        return config.load_document(own)
    return config.profile_document("localhost")


def live_nvml(deadline_seconds: float) -> tuple[dict[str, Any] | Missing, StuckCall | None]:
    """Return NVML's answers on this machine, and the call that did not answer within the deadline, or None if all answered.

    The calls are made by a worker that is started for them.
    """
    from fairlead.host.nvml import Worker

    worker = Worker(deadline_seconds=deadline_seconds)
    try:
        result = worker.sweep()
        return result.raw, result.stuck
    finally:
        worker.close()


def read_machine(args: argparse.Namespace, document: config.Document) -> tuple[Node, Past]:
    """Return the node as it is now, and what one reading can know of its past: the kernel records that are still in the log."""
    root = machine(args.root)
    stuck = None
    if root.is_live:
        raw, stuck = live_nvml(document.agent.nvml_deadline_seconds)
    else:
        raw = recorded_nvml(args.root)
    node = gather(root, raw, reads=reads(document), unsupported=document.unsupported, wanted=wanted(document), stuck=stuck)
    kmsg = document.agent.kmsg_path if root.is_live else os.path.join(args.root, "dev/kmsg")
    boot_id = node.boot_id if isinstance(node.boot_id, str) else ""
    return node, past_now(kmsg, boot_id)
