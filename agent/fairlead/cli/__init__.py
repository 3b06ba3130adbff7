"""Runs the command line. Each command is a module of its own, which is imported only when the command is chosen.

Each command's module has ``register(parser)`` and ``run(args) -> ExitCode``. This package turns an error into one line and an
exit code.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import NoReturn

from fairlead.errors import ExitCode, FairleadError, next_step

COMMANDS = {
    "check": "judge this node (or a machine tree) once",
    "status": "show the agent's verdict on this node and its age",
    "why": "say why a node is in its state and what to do next, with findings, evidence and rules",
    "explain": "explain a check, a setting or an Xid",
    "xid": "decode the Xid and SXid lines of a kernel log",
    "lint": "find harmful settings in job scripts and nccl.conf",
    "nccl": "read, compare and measure nccl-tests, apply a measured result, show nccl.conf",
    "replay": "say what a recorded kernel log would have drained, when and why",
    "topology": "show GPUs, NICs, NUMA nodes and the paths between them",
    "bind": "show which CPUs, memory and NICs each task should have",
    "run": "run a command as one rank of a task, on the CPUs and memory nearest its GPU",
    "slurm-config": "make gres.conf, NodeName lines and topology.conf from the machines and the fabric",
    "snapshot": "write this machine as a machine tree",
    "agent": "run the node agent",
    "init": "propose a site.toml from the hardware of the nodes",
    "apply": "make this node what its document says",
    "plan": "show what provision would change on each node, why, and which nodes need a reboot or a drain",
    "render": "write what a playbook of your own needs to use fairlead's roles",
    "provision": "make nodes what the site declares, over ssh",
    "maintain": "maintain nodes in batches, with a journal: drain, wait, apply, reboot, verify, resume",
    "lock": "resolve the declared drivers into fairlead.lock: exact packages, with hashes",
    "bundle": "make one folder with everything that a site without internet access needs",
    "dashboards": "write the Grafana dashboards and the rules for Prometheus",
    "fleet": "show all nodes in one table: Slurm's state, the agents' verdicts, who drained what",
    "collect": "collect what jobs used from the nodes, keep it, and write jobstats' AdminComment",
    "job": "show what a job used: GPUs, energy, memory, time at 0 %",
    "usage-records": "print this node's usage records of some jobs",
    "accept": "measure nodes with nccl-tests and other tools, as Slurm jobs, and judge them",
    "usage": "show how GPUs were used in a period: allocated, busy, SM-active, energy, cost; compare two periods",
    "report": "report incidents, availability, lost job time, MTTF, lemons and early warning of all nodes",
    "idle": "list the jobs whose GPUs are idle, and tell their owners if the site wants that",
    "events": "send what happens to nodes to a program of the site and to an address",
    "rma": "write the sheet that a vendor asks for when a GPU is returned",
    "slow-nodes": "name nodes that are the slowest of their jobs more often than chance allows",
    "hint": "say how often a job should save, from this cluster's own failures",
    "template": "print a job script for requeue and preemption that was run on real Slurm",
    "drain": "drain a node with a reason that fairlead owns",
    "resume": "resume a node that fairlead drained",
    "hold": "keep the agent from changing this node's Slurm state",
    "ack": "acknowledge findings: they do not drain the node until there is new evidence",
    "clear": "close a device as repaired: its strikes and older evidence count no more",
    "audit": "show who changed what about this node's service, when and why",
    "env": "explain the job environment that the task prolog sets",
    "config": "check and show documents and sites",
    "selftest": "test fairlead on this machine, change nothing, and write a report that a site can send back",
    "profile": "draft a hardware profile from a good node",
    "doctor": "review a site's Slurm configuration and this installation",
    "docs": "print a page of this release's documentation",
    "schema": "print the JSON Schema of what a command prints with --json",
    "version": "print the version",
}


_OVERVIEW = """\
usage: fairlead COMMAND [options]

Keeps the GPU nodes of a Slurm cluster tuned, and jobs off the broken ones.

{commands}

`fairlead COMMAND --help` says more. Exit codes: 0 ok, 1 warn, 2 drain, 3 unknown (check);
64 usage, 65 bad data, 66 no such input, 68 node not reached, 69 unavailable, 70 bug,
75 try again, 77 needs root, 78 configuration, 130 interrupted, 141 the output's reader has gone."""

# Modules that only an optional dependency group (an "extra") of the package installs, each with the name of the extra.
EXTRAS = {
    "ansible_runner": "provision",
    "ClusterShell": "provision",
    "rich": "provision",
    "jinja2": "provision",
    "pyslurm": "pyslurm",
}


class Parser(argparse.ArgumentParser):
    """Ends with exit code 64 on a usage error. argparse would end with 2, which means DRAIN to monitoring."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        print(f"{self.prog}: {message}", file=sys.stderr)
        if hint := self._hint(message):
            print(f"  next: {hint}", file=sys.stderr)
        sys.exit(ExitCode.USAGE)

    def _hint(self, message: str) -> str:
        """Return what to write instead. Return "" if there is no better word, or if the message already names it."""
        options = {name: action for action in self._actions for name in action.option_strings}
        kind, _, rest = message.partition(": ")
        if kind == "unrecognized arguments":
            import difflib

            word = next(iter(rest.split()), "")  # an empty argument has no word
            if word.endswith(".toml") and "--site" in options:
                return f"--site {word}"
            like = difflib.get_close_matches(word.partition("=")[0], options, n=1) if word.startswith("-") else []
            return f"did you mean {like[0]}?" if like else ""
        named = kind.removeprefix("argument ").rpartition("/")[2]
        if rest.startswith("expected one argument") and named in options:
            value = options[named].metavar or options[named].dest.upper()
            return f"{named} {value if isinstance(value, str) else ' '.join(value)}: {options[named].help or 'a value'}"
        return ""

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """Return the parsed arguments. Options may come before, between and after the positional arguments.

        A command that passes the rest of its command line to another program is an exception.
        """
        rest = any(action.nargs == argparse.REMAINDER for action in self._actions)
        if rest:
            return self.parse_args(words)
        self._refuse_empty_paths(words)
        # argparse would set ``usage`` without escaping the % signs in it
        self.usage = self.format_usage().removeprefix("usage: ").replace("%", "%%")
        return self.parse_intermixed_args(words)

    def _refuse_empty_paths(self, words: Sequence[str]) -> None:
        """End with a usage error if an option that names a file or folder has an empty value, as from an unset shell variable.
        The command would take the option for absent, and do something else."""
        paths = {name for action in self._actions if action.metavar in ("FILE", "DIR") for name in action.option_strings}
        pairs = [(before, word) for before, word in pairwise(words) if before in paths]
        pairs += [(name, value) for name, equals, value in (word.partition("=") for word in words) if equals and name in paths]
        if empty := [name for name, value in pairs if not value]:
            self.error(f"{empty[0]}: the name is empty")


def overview() -> str:
    """Return the text of ``fairlead --help``."""
    from fairlead.cli.help_text import COLUMNS_MAX, wrapped

    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {name:{width}}  {summary}" for name, summary in COMMANDS.items())
    return "\n".join(wrapped(_OVERVIEW.format(commands=commands), COLUMNS_MAX - 2))


def command_parser(name: str) -> Parser:
    """Return the parser of one command. Imports the command's module."""
    from fairlead.cli.help_text import HelpFormatter

    module = importlib.import_module(f"fairlead.cli.{name.replace('-', '_')}")
    parser = Parser(prog=f"fairlead {name}", description=(module.__doc__ or COMMANDS[name]), formatter_class=HelpFormatter)
    module.register(parser)
    parser.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    from fairlead.cli.terminal import open_standard_streams, printable

    args = list(sys.argv[1:] if argv is None else argv)
    open_standard_streams()
    with printable():
        try:
            return _unless_lost(_main(args), args)
        except BrokenPipeError:
            return ExitCode.READER_GONE


def _main(args: list[str]) -> int:
    if args[:1] == ["help"] and len(args) > 1:
        args = [args[1], "--help"]
    if not args or args[0] in {"-h", "--help", "help"}:
        print(overview())
        return ExitCode.OK if args else ExitCode.USAGE
    return _run(args)


def _unless_lost(code: int, args: list[str]) -> int:
    """Return ``code``. If output was lost, print why, and return 69 in place of 0.

    Return 141 if the reader of the output has gone.
    """
    from fairlead.cli.terminal import output_trouble

    trouble = output_trouble()
    if trouble is None:
        return code
    if isinstance(trouble, BrokenPipeError):  # argparse ignores this error and goes on
        return ExitCode.READER_GONE
    command = " ".join(["fairlead", *args[:1]])
    print(f"{command}: standard output: {trouble.strerror}", file=sys.stderr)
    hint = next_step(trouble) or "send it to a terminal, a file or /dev/null"
    print(f"  next: {hint}; only what the command printed is lost", file=sys.stderr)
    return code or ExitCode.UNAVAILABLE


def _run(args: list[str]) -> int:
    name = {"--version": "version", "-V": "version"}.get(args[0], args[0])
    if name not in COMMANDS:
        close = [c for c in COMMANDS if c.startswith(name[:2])]
        hint = f"; did you mean {' or '.join(close)}?" if close else ""
        print(f"fairlead: {name!r} is not a command{hint} (fairlead --help lists them)", file=sys.stderr)
        return ExitCode.USAGE
    try:
        parsed = command_parser(name).parse(args[1:])
        from fairlead.cli.patience import patience

        with patience(name, getattr(sys.modules[parsed.run.__module__], "SLOW", "")):
            return int(parsed.run(parsed))
    except FairleadError as e:
        print(f"fairlead {name}: {e}", file=sys.stderr)
        if e.hint:
            print(f"  next: {' '.join(e.hint.split())}", file=sys.stderr)  # a hint may quote a name with a line break
        return int(e.exit_code)
    except ModuleNotFoundError as e:
        package = (e.name or "").split(".")[0]
        if package not in EXTRAS:
            raise
        print(f"fairlead {name}: needs fairlead[{EXTRAS[package]}] (module {package} is not installed)", file=sys.stderr)
        return ExitCode.UNAVAILABLE
    except BrokenPipeError:
        raise
    except KeyboardInterrupt as e:
        print(f"fairlead {name}: interrupted", file=sys.stderr)
        if e.args and e.args[0]:
            print(f"  next: run it again: {e.args[0]}", file=sys.stderr)
        return ExitCode.INTERRUPTED
    except SystemExit as e:
        return int(e.code or 0)
    except Exception:
        import traceback

        traceback.print_exc()
        print(f"fairlead {name}: this is a bug in fairlead; please report the lines above", file=sys.stderr)
        return ExitCode.BUG
