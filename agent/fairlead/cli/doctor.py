"""Review a site's Slurm configuration and this installation: warn and explain, change nothing.

--diff prints a patch for the lines of slurm.conf that are missing or wrong. Other things to do are printed on standard error.
Exit codes: 0 nothing wrong, 1 a warning, 2 something wrong.
"""

from __future__ import annotations

import argparse
import difflib
import glob
import os
import re
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from typing import TypedDict

from fairlead import config
from fairlead.cli.output import print_json
from fairlead.cli.status import lost_words
from fairlead.errors import DataError, ExitCode, FairleadError, InputMissing
from fairlead.host.root import Root
from fairlead.host.volatile_folder import lost_at_reboot
from fairlead.slurm import container_runtimes, slurm_conf
from fairlead.slurm.amend import amend
from fairlead.slurm.conf_review import Remark, copy_remarks, gres_remarks, mig_remarks, review
from fairlead.slurm.plugstack import plugstack_path, plugstack_text
from fairlead.slurm.scontrol import CONF_PATHS
from fairlead.slurm_config import listed_gpus

HOOKS = (
    "/etc/slurm/prolog.d/50-fairlead",
    "/etc/slurm/epilog.d/50-fairlead",
    "/etc/slurm/fairlead/task-prolog",
    "/etc/slurm/fairlead/health-check",
)
#: Where a program without a folder in its name is looked for.
PROGRAM_FOLDERS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_MARK = {"ok": "ok   ", "note": "note ", "warn": "warn ", "wrong": "WRONG"}
SLOW = "reading the configuration"  # patience.py says it


class DoctorReport(TypedDict):
    """What doctor says about a slurm.conf and this installation."""

    slurm_conf: str
    remarks: list[Remark]


class DoctorDiff(TypedDict):
    """The change that doctor proposes, as a unified diff."""

    slurm_conf: str
    diff: str
    notes: list[str]


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--slurm-conf", metavar="FILE", default="", help="default: $SLURM_CONF, /etc/slurm/slurm.conf, or slurmd's copy"
    )
    parser.add_argument("--root", metavar="TREE", default="/", help="review a tree instead of this machine")
    parser.add_argument("--document", metavar="FILE", default="/etc/fairlead/node.json", help="the node's document (%(default)s)")
    parser.add_argument(
        "--diff", action="store_true", help="print what to change in slurm.conf as a diff for patch(1); write nothing"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def _text(root: str, path: str) -> str | None:
    try:
        with open(os.path.join(root, path.lstrip("/")), encoding="utf-8", errors="replace") as f:
            text = f.read(4 << 20)
    except FileNotFoundError:
        return None
    except OSError as e:
        raise InputMissing(f"{path}: {e.strerror}") from None
    if "\0" in text:
        raise DataError(f"{path} is not a text file (it holds zero bytes)", hint="is it the right file?")
    return text


def _conf_path(root: str, named: str) -> str:
    configured = os.environ.get("SLURM_CONF", "")
    if root == "/":  # on this machine a relative path is relative to the current folder
        named, configured = (os.path.abspath(path) if path else "" for path in (named, configured))
    for path in (named, configured, *CONF_PATHS):
        if path and (path == named or _text(root, path) is not None):
            return path
    raise InputMissing("no slurm.conf found", hint="name it with --slurm-conf")


def _matching(root: str, pattern: str) -> list[str]:
    """Return the paths of the files below ``root`` that match a pattern of shell wildcards."""
    found = glob.glob(pattern.lstrip("/"), root_dir=root)
    return [f"/{path}" for path in found if os.path.isfile(os.path.join(root, path))]


def _version(root: str) -> tuple[int, ...] | None:
    """Return this machine's release of Slurm, such as (24, 11, 5), or None if it is not known."""
    if root != "/":
        return None
    try:
        done = subprocess.run(["scontrol", "--version"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"slurm\S* (\d+(?:\.\d+){1,2})", done.stdout)
    return tuple(map(int, match[1].split("."))) if match else None


def _release_of(root: str, program: str) -> tuple[int, ...] | None:
    """Return the release of a container runtime, () if it is not known, or None if the program or file is not there.

    Slurm starts these programs as the job's user. Here root may start them, so only those in PROGRAM_FOLDERS are started.
    """
    candidates = (program,) if program.startswith("/") else tuple(f"{folder}/{program}" for folder in PROGRAM_FOLDERS)
    path = next((c for c in candidates if os.path.lexists(os.path.join(root, c.lstrip("/")))), None)
    words = container_runtimes.VERSION_WORDS.get(os.path.basename(program))
    if path is None or words is None or root != "/" or os.path.dirname(path) not in PROGRAM_FOLDERS:
        return None if path is None else ()
    try:
        done = subprocess.run([path, words], capture_output=True, text=True, errors="replace", timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return container_runtimes.parse_version(done.stdout)


def _container_runtimes(root: str, conf_path: str, document_path: str, plugstack: str) -> Iterator[Remark]:
    oci_conf = _text(root, f"{os.path.dirname(conf_path)}/oci.conf") or ""
    try:
        enroot = "enroot" in config.load_document(os.path.join(root, document_path.lstrip("/"))).settings
    except FairleadError:  # _installation says what is wrong
        enroot = False
    found = {name: _release_of(root, name) for name in container_runtimes.wanted(plugstack, oci_conf, enroot=enroot)}
    yield from container_runtimes.review_runtimes(plugstack, oci_conf, enroot=enroot, slurm=_version(root), found=found)


def _copy(root: str, path: str) -> Iterator[Remark]:
    """Yield remarks on the copy that slurmd has fetched, if this is one, or if there is one besides the reviewed file."""
    fetched, copy = _text(root, CONF_PATHS[1]), CONF_PATHS[1]
    if slurm_conf.is_slurmds_copy(path):
        yield from copy_remarks(path, _text(root, path) or "", None)
    elif path == CONF_PATHS[0] and fetched is not None:
        yield from copy_remarks(copy, fetched, _text(root, path))


def _mig_lines(root: str, conf_path: str, document_path: str) -> Iterator[Remark]:
    """Yield remarks on gres.conf's lines of MIG instances. Only a node with the driver's list of capabilities can tell them."""
    minors = _text(root, listed_gpus.MINORS)
    if minors is None:
        return
    try:
        document = config.load_document(os.path.join(root, document_path.lstrip("/")))
        node, run_dir = document.slurm_node, document.agent.run_dir
    except FairleadError:  # _installation says what is wrong
        node, run_dir = socket.gethostname().partition(".")[0], "/run/fairlead"
    lines = slurm_conf.lines_beside(conf_path, "gres.conf", lambda p: _text(root, p))
    yield from mig_remarks(lines, node, minors, _text(root, f"{run_dir}/topology") or "")


def _safe(root: str, path: str, *, executable: bool) -> Iterator[Remark]:
    """Yield a remark if a file is missing or, with ``executable``, not executable. Yield a remark for the file and each folder
    above it that others than root can write, because root runs or reads the file."""
    full = os.path.join(root, path.lstrip("/"))
    try:
        st = os.stat(full)
    except OSError as e:
        yield Remark(level="wrong", what=f"{path}: {e.strerror}", fix="run `fairlead provision` for this node")
        return
    if executable and not st.st_mode & stat.S_IXUSR:
        yield Remark(level="wrong", what=f"{path} is not executable", why="Slurm cannot run it", fix=f"chmod 755 {path}")
    folder = path
    while True:
        st = os.stat(os.path.join(root, folder.lstrip("/")))
        if st.st_uid != 0 or (st.st_mode & 0o022 and not st.st_mode & stat.S_ISVTX):
            yield Remark(
                level="wrong",
                what=f"{folder} can be written by others than root (uid {st.st_uid}, mode {stat.S_IMODE(st.st_mode):04o})",
                why="anybody who can write it runs commands as root on every node",
                fix=f"chown root {folder}; chmod go-w {folder}",
            )
        if folder in {"/", ""}:
            return
        folder = os.path.dirname(folder)


def _installation(root: str, document_path: str, conf: slurm_conf.SlurmConf) -> Iterator[Remark]:
    for hook in HOOKS:
        yield from _safe(root, hook, executable=True)
    try:
        document = config.load_document(os.path.join(root, document_path.lstrip("/")))
    except FairleadError as e:
        yield Remark(level="wrong", what=str(e), fix=e.hint or "run `fairlead provision` for this node")
        return
    yield from _safe(root, document_path, executable=False)
    yield Remark(level="ok", what=f"document generation {document.generation}, profile {document.profile or 'none'}")
    names = [n.get("nodename", "") for n in conf.nodes]
    if names and not any(_in_nodelist(document.slurm_node, n) for n in names):
        yield Remark(
            level="wrong",
            what=f"no NodeName line of {conf.path} names {document.slurm_node}",
            why="drains would name a node that Slurm does not know",
            fix=f'set slurm.node_name under [nodes."{document.node}"] in site.toml',
        )
    folder = document.agent.state_dir
    if root == "/" and (memory := lost_at_reboot(Root(root), folder)):
        yield Remark(
            level="warn",
            what=lost_words(folder, memory),
            why="after a reboot only `fairlead resume --adopt` lifts a drain of fairlead, and nobody counts strikes",
            fix="name a folder on a disk in agent.state_dir of site.toml, or mount one there (docs/how-to/stateless.md)",
        )
    if _text(root, "/etc/fairlead/disabled") is not None:
        yield Remark(level="warn", what="/etc/fairlead/disabled exists", why="it stops every hook and every drain on this node")


def _in_nodelist(name: str, nodelist: str) -> bool:
    """Return whether a nodelist of a NodeName line contains a node. Compares prefix and number, so that no library is needed."""
    for part in re.findall(r"[^,\[]+(?:\[[^\]]*\])?[^,]*", nodelist):
        match = re.fullmatch(r"([^\[]*)\[([^\]]*)\](.*)", part)
        if not match:
            if part == name:
                return True
            continue
        prefix, ranges, suffix = match.groups()
        if not (name.startswith(prefix) and name.endswith(suffix)):
            continue
        middle = name[len(prefix) : len(name) - len(suffix) or None]
        for span in ranges.split(","):
            low, _, high = span.partition("-")
            if middle.isdigit() and low.isdigit() and int(low) <= int(middle) <= int(high or low):
                return True
    return False


def _diff(args: argparse.Namespace, path: str, conf: slurm_conf.SlurmConf, plugstack: str) -> ExitCode:
    text = _text(args.root, path) or ""
    amended = amend(text, conf, pyxis="pyxis" in plugstack)
    old, new = (t.splitlines(keepends=True) for t in (text, amended.text))
    diff = "".join(difflib.unified_diff(old, new, path, path))
    if args.json:
        print_json(DoctorDiff(slurm_conf=path, diff=diff, notes=list(amended.notes)))
        return ExitCode.OK
    if slurm_conf.is_slurmds_copy(path):
        print(f"note: {path} is slurmd's copy: apply this to slurm.conf on the controller", file=sys.stderr)
    for note in amended.notes:
        print(f"note: {note}", file=sys.stderr)
    sys.stdout.write(diff)
    if not diff:
        print(f"{path}: nothing to change", file=sys.stderr)
    return ExitCode.OK


def run(args: argparse.Namespace) -> ExitCode:
    path = _conf_path(args.root, args.slurm_conf)
    conf = slurm_conf.parse(path, lambda p: _text(args.root, p))
    plugstack = plugstack_text(plugstack_path(conf), lambda p: _text(args.root, p), lambda p: _matching(args.root, p))
    if args.diff:
        return _diff(args, path, conf, plugstack)
    remarks = [*review(conf, hooks=HOOKS, plugstack=plugstack, version=_version(args.root))]
    remarks += _copy(args.root, path)
    remarks += gres_remarks(_text(args.root, f"{os.path.dirname(path)}/gres.conf") or "")
    remarks += _mig_lines(args.root, path, args.document)
    remarks += _container_runtimes(args.root, path, args.document, plugstack)
    remarks += _installation(args.root, args.document, conf)
    levels = {r.level for r in remarks}
    if args.json:
        print_json(DoctorReport(slurm_conf=path, remarks=remarks))
    else:
        print(f"fairlead doctor: {path}")
        for r in remarks:
            print(f"{_MARK[r.level]}  {r.what}")
            for label, text in (("why", r.why), ("do", r.fix), ("source", r.source)):
                if text:
                    print(f"         {label}: {text}")
    if "wrong" in levels:
        return ExitCode.DRAIN
    return ExitCode.WARN if "warn" in levels else ExitCode.OK


def json_types() -> dict[str, object]:
    """Return the type of what --json prints (json_schema.py)."""
    return {"": DoctorReport, "--diff": DoctorDiff}
