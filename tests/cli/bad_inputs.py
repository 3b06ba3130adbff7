"""Inputs that no command can use, and where each command takes an input. test_every_bad_input.py brings them together."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

from tests.lab.trees import MACHINES

TREE = str(MACHINES / "l40s-pcie")  # the smallest
X = "INPUT"  # what stands for the bad input in a command line
BINARY = bytes(range(256)) * 16
#: The name of the threads that write to pipes.
WRITER = "writer of a pipe"


def _fifo(content: bytes) -> Callable[[Path], str]:
    """Make a named pipe that one writer fills and closes each time somebody opens it."""

    def make(folder: Path) -> str:
        path = folder / "pipe"
        os.mkfifo(path)

        def feed() -> None:
            while True:
                try:
                    pipe = os.open(path, os.O_WRONLY)  # Python's open() would make a file where the pipe was, again and again
                except FileNotFoundError:
                    return
                try:
                    os.write(pipe, content)
                except OSError:
                    pass  # the reader has closed it before it was read
                finally:
                    os.close(pipe)

        threading.Thread(target=feed, name=WRITER, daemon=True).start()
        return str(path)

    return make


def end_pipe(folder: Path) -> None:
    """Remove the named pipe of ``folder`` and let its writer end."""
    path = folder / "pipe"
    if path.exists():
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        path.unlink()
        os.close(reader)


def _file(content: bytes, name: str = "bad") -> Callable[[Path], str]:
    def make(folder: Path) -> str:
        (folder / name).write_bytes(content)
        return str(folder / name)

    return make


def _huge(folder: Path) -> str:
    with (folder / "huge").open("wb") as file:
        file.truncate(65 << 20)
    return str(folder / "huge")


def _circle(folder: Path) -> str:
    (folder / "circle").symlink_to("circle")
    return str(folder / "circle")


def _dangling(folder: Path) -> str:
    (folder / "dangling").symlink_to("nowhere")
    return str(folder / "dangling")


def _socket(folder: Path) -> str:
    here = os.getcwd()
    os.chdir(folder)  # a socket's path may have 108 characters
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind("socket")
    finally:
        os.chdir(here)
    return str(folder / "socket")


def _folder(folder: Path) -> str:
    (folder / "folder").mkdir()
    return str(folder / "folder")


def _full_folder(folder: Path) -> str:
    made = folder / "full"
    made.mkdir()
    for name in ("a.json", "x.whl", "fairlead-0.1.0-py3-none-any.whl", "bad.deb", "SHA256SUMS", "bundle.json", "audit.jsonl"):
        (made / name).write_bytes(BINARY)
    return str(made)


def _bad_tree(folder: Path) -> str:
    """Make a machine tree in which each file is of another kind than it should be."""
    tree = folder / "tree"
    for name in ("sys/bus/pci/devices/0000:1b:00.0/vendor", "proc/meminfo", "proc/cpuinfo", "dev/kmsg", "etc/fairlead/node.json"):
        (tree / name).mkdir(parents=True)
    (tree / "sys/devices").symlink_to("devices")
    (tree / "proc/uptime").write_bytes(BINARY)
    (tree / "nvml.json").write_bytes(b'{"gpus": [{"pci": 5}, null, "x"]}')
    return str(tree)


#: Each kind of bad input, and what makes it in an empty folder. The text that comes back stands in the command line.
KINDS: dict[str, Callable[[Path], str]] = {
    "missing": lambda folder: str(folder / "none"),
    "empty name": lambda folder: "",
    "empty": _file(b""),
    "spaces": _file(b" \n\t\n"),
    "binary": _file(BINARY),
    "binary .toml": _file(BINARY, "bad.toml"),
    "zero characters": _file(b"\0" * 4096),
    "not UTF-8": _file("schema = 1 # gr\u00f6\u00dfe\n".encode("latin-1"), "latin.toml"),
    "UTF-16": _file('{"schema": 1}'.encode("utf-16")),
    "truncated JSON": _file(b'{"schema": 1, "agent": {"inter'),
    "truncated TOML": _file(b"schema = 1\n[classes.a]\nnodes = [", "cut.toml"),
    "JSON of another kind": _file(b"[1, 2, 3]"),
    "JSON nested deep": _file(b"[" * 100_000),
    "TOML of another kind": _file(b"title = 'x'\n[a.b]\nc = 1979-05-27T07:32:00Z\n", "other.toml"),
    "program": _file(b"\x7fELF" + BINARY),
    "one long line": _file(b"x" * (5 << 20)),
    "huge": _huge,
    "directory": _folder,
    "directory of bad files": _full_folder,
    "below a file": lambda folder: _file(b"x")(folder) + "/none",
    "read fails": lambda folder: "/proc/self/mem",
    "empty pipe": _fifo(b""),
    "binary pipe": _fifo(BINARY),
    "endless device": lambda folder: "/dev/zero",
    "empty device": lambda folder: "/dev/null",
    "socket": _socket,
    "link in a circle": _circle,
    "dangling link": _dangling,
    "name too long": lambda folder: str(folder / ("n" * 300)),
    "TOML nested deep": _file(b"a = " + b"[" * 100_000, "deep.toml"),
    "escape in the name": lambda folder: str(folder) + "/\x1b[2Jx\ny",
    "tree of wrong kinds": _bad_tree,
}

#: Where an empty text is the default, which would ask nodes or the network; and what is written to has to be no pipe.
NOT_TRIED = {
    **{("empty name", command): "" for command in ("provision", "plan", "render", "maintain", "accept", "lock")},
    ("empty pipe", "topology"): "--svg",
    ("binary pipe", "topology"): "--svg",
}


def is_tried(kind: str, words: tuple[str, ...]) -> bool:
    """Say whether this kind of input says anything about this command line."""
    option = NOT_TRIED.get((kind, words[0]))
    return option is None or (option != "" and option not in words)


#: Command lines with the bad input in one place. ``good.json``, ``site.toml``, ``log`` and ``tree`` are right.
COMMAND_LINES: tuple[tuple[str, ...], ...] = (
    ("check", "--root", X, "--profile", "l40s-pcie"),
    ("check", "--root", TREE, "--document", X, "--only", "gpu_count"),
    ("check", "--root", TREE, "--profile", X),
    ("status", "--run-dir", X),
    ("why", "--no-slurm", "--state-dir", X, "--run-dir", X),
    ("why", "n9", "--no-slurm", "--site", X),
    ("explain", "xid", "79", "--document", X),
    ("explain", X),
    ("xid", "decode", X),
    ("xid", "decode", X, "--json"),
    ("lint", X),
    ("lint", "--conf", X),
    ("nccl", "parse", X),
    ("nccl", "compare", X, X),
    ("nccl", "measure", "--a", "true", "--b", X, "--folder", "run", "-q"),
    ("nccl", "measure", "--a", "true", "--set", X, "--skip-versions", "--folder", "run"),
    ("nccl", "measure", "--a", "true", "--set", "NCCL_ALGO=Tree", "--versions", X, "--folder", "run"),
    ("nccl", "measure", "--a", "true", "--b", "true", "--folder", X, "-q"),
    ("nccl", "measure", "--resume", "--folder", X),
    ("nccl", "show", X),
    ("nccl", "use", X),
    ("nccl", "key", X, "--root", TREE),
    ("nccl", "key", "--root", X),
    ("nccl", "conf", "--root", X),
    ("nccl", "conf", "--root", TREE, "--document", X),
    ("nccl", "conf", "--root", TREE, "--profile", X),
    ("replay", X),
    ("replay", "log", "--policy", X),
    ("replay", "log", "--against", X),
    ("topology", "--root", X),
    ("topology", "--root", TREE, "--document", X),
    ("topology", "--root", TREE, "--svg", X),
    ("bind", "--tasks", "2", "--root", X),
    ("bind", "--tasks", "2", "--root", TREE, "--gpus", X),
    ("bind", "--tasks", "2", "--root", TREE, "--cpus", X),
    ("slurm-config", "gres", X),
    ("slurm-config", "nodes", X),
    ("slurm-config", "gres", TREE, "--diff", X),
    ("slurm-config", "gres", TREE, "--write", X, "--dry-run"),
    ("slurm-config", "topology", "--ibnetdiscover", X),
    ("slurm-config", "topology", "--lldp", X),
    ("slurm-config", "topology", "--cliques", X),
    ("slurm-config", "topology", "--cliques", TREE, "--rename", X),
    ("slurm-config", "topology", "--cliques", TREE, "--slurm-conf", X),
    ("slurm-config", "topology", "--cliques", TREE, "--nodes", X),
    ("snapshot", "--root", X, "out"),
    ("agent", "--root", TREE, "--once", "--document", X),
    ("agent", "--root", X, "--once", "--document", "good.json"),
    ("init", "--dry-run", "--bin-dir", X),
    ("init", X, "--dry-run", "--ssh", "/nonexistent"),
    ("init", "n1", "--dry-run", "--ssh", X),
    ("profile", "draft", X, "--dry-run"),
    ("profile", "draft", "--root", X, "--dry-run"),
    ("profile", "draft", TREE, "--name", X, "--dry-run"),
    ("apply", "--root", X, "--dry-run", "--document", "good.json"),
    ("apply", "--root", "tree", "--dry-run", "--document", X),
    ("plan", "--site", X),
    ("plan", "--root", X, "--profile", "l40s-pcie"),
    ("plan", "--root", TREE, "--document", X),
    ("plan", "--site", "site.toml", "-i", "slurm", "--bin-dir", X),
    ("provision", "--site", X, "--check", "-q"),
    ("provision", "--site", "site.toml", "--check", "-q", "--wheel", X),
    ("provision", "--site", "site.toml", "--check", "-q", "--wheelhouse", X),
    ("provision", "--site", "site.toml", "--check", "-q", "--bundle", X),
    ("provision", "--site", "site.toml", "--check", "-q", "-l", X),
    ("provision", "--site", "site.toml", "--check", "-q", "--tags", X),
    ("render", "--site", X, "--output", "out", "--dry-run"),
    ("render", "--site", "site.toml", "--output", "out", "--dry-run", "--wheel", X),
    ("maintain", "n1", "--site", X, "--reason", "x", "--dry-run"),
    ("maintain", "--list", "--journal", X),
    ("maintain", "--show", "--journal", X),
    ("maintain", "--resume", "--journal", X),
    ("lock", "--site", X, "--check"),
    ("lock", "--site", "site.toml", "--debs", X, "--dry-run"),
    ("lock", "--site", "site.toml", "--debs", "tree", "--status", X, "--dry-run"),
    ("bundle", "--site", X, "--dry-run"),
    ("fleet", "--site", X),
    ("fleet", "--bin-dir", X),
    ("fleet", X, "--bin-dir", "/nonexistent"),
    ("accept", "--site", X, "n1", "--dry-run"),
    ("accept", "--history", "--store", X),
    ("accept", "--show", "--store", X),
    ("accept", "n1", "--profile", X, "--dry-run"),
    ("accept", "n1", "--tools", X, "--dry-run"),
    ("usage", "2026-10", "--from", X),
    ("usage", X, "--from", "."),
    ("usage", "2026-10", "--from", ".", "--site", X),
    ("usage", "2026-10", "--from", ".", "--html", X),
    ("usage", "2026-10", "--store", X, "--bin-dir", "/nonexistent"),
    ("usage", "2026-10", "--store", "store", "--running", X, "--bin-dir", "/nonexistent"),
    ("idle", "observe", "--from", X, "--state", "idle", "--dry-run"),
    ("idle", "observe", "--from", ".", "--site", X, "--dry-run"),
    ("idle", "list", "--state", X),
    ("events", "--state", X),
    ("events", "deliver", "--store", X, "--state", "events", "--dry-run"),
    ("events", "deliver", "--store", X, "--state", "events"),
    ("events", "test", "--site", X, "--dry-run"),
    ("events", "test", X, "--dry-run"),
    ("events", "retry", X, "--state", "events"),
    ("rma", "n1", "0", "--from", X),
    ("rma", "n1", "0", "--store", X),
    ("rma", X, "0", "--from", "."),
    ("rma", "n1", X, "--from", "."),
    ("collect", "--from", X, "--store", "store"),
    ("collect", "--backup", X, "--store", "store", "--idle-state", "idle"),
    ("collect", "--restore", X, "--store", "store", "--idle-state", "idle"),
    ("collect", "--running", X, "--bin-dir", "/nonexistent"),
    ("collect", "--running", "running", "--site", X, "--bin-dir", "/nonexistent"),
    ("job", "17", "--store", X),
    ("job", "17", "--store", "store", "--site", X, "--bin-dir", "/nonexistent"),
    ("report", "2026-10", "--from", X),
    ("report", X, "--from", "."),
    ("report", "2026-10", "--store", X),
    ("report", "2026-10", "--from", ".", "--html", X),
    ("slow-nodes", "--from", X),
    ("slow-nodes", "--store", X),
    ("hint", "checkpoint", "--nodes", "4", "--save", "2m", "--from", X),
    ("hint", "checkpoint", "--nodes", "4", "--save", X, "--from", "."),
    ("hint", "checkpoint", "--nodes", "4", "--store", X, "--bin-dir", "/nonexistent"),
    ("template", "sbatch", X),
    ("docs", X),
    ("schema", X),
    ("dashboards", "--write", X, "--dry-run"),
    ("fleet", "--site", X, "--prometheus-targets", "-"),
    ("fleet", "--html", X, "--bin-dir", "/nonexistent"),
    ("accept", "--fabric", "--judge", X),
    ("usage-records", "17", "--state-dir", X),
    ("drain", "--reason", "x", "--dry-run", "--document", X),
    ("resume", "--dry-run", "--document", X),
    ("hold", "--show", "--state-dir", X, "--run-dir", X),
    ("hold", "--reason", "x", "--dry-run", "--state-dir", X, "--run-dir", X),
    ("ack", "--list", "--document", X),
    ("ack", X, "--reason", "x", "--document", "good.json", "--dry-run"),
    ("clear", "--all", "--reason", "x", "--document", X, "--dry-run"),
    ("audit", "--state-dir", X, "--run-dir", X),
    ("env", "explain", "--job", X),
    ("config", "check", X),
    ("config", "show", X),
    ("config", "show", "--site", X, "--node", "n1"),
    ("config", "profiles", X),
    ("selftest", "--compare", X),
    ("selftest", "--document", X),
    ("selftest", "--out", X),
    ("doctor", "--slurm-conf", X),
    ("doctor", "--root", X),
    ("doctor", "--slurm-conf", "slurm.conf", "--document", X),
    ("run", "--dry-run", "--gpus-per-rank", X),
    ("version", X),
    (X,),
    ("help", X),
)
