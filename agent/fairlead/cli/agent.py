"""Run the node agent in the foreground, as fairlead-agent.service does.

SIGHUP makes the agent read the document again; if the new document is bad, the agent keeps the old one. SIGUSR1 makes it sweep
and read slurmctld at once. SIGTERM ends it. Exit codes: 66 the document is missing, 78 it is wrong, 75 an agent runs already.
"""

from __future__ import annotations

import argparse

from fairlead.errors import ExitCode


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--document", metavar="FILE", default="/etc/fairlead/node.json", help="the node's document")
    parser.add_argument("--root", default="/", metavar="TREE", help="read a machine tree instead of this machine")
    parser.add_argument(
        "--ask-nvml", action="store_true", help="with --root: ask this machine's NVML library, not the tree's nvml.json"
    )
    parser.add_argument("--once", action="store_true", help="make one sweep, publish its verdict and end")


def run(args: argparse.Namespace) -> ExitCode:
    from fairlead.daemon.loop.main_loop import run as run_agent
    from fairlead.host.root import Root

    return ExitCode(run_agent(args.document, root=Root(args.root), ask_nvml=args.ask_nvml, once=args.once))
