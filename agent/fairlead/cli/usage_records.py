"""Print this node's usage records of some jobs, one record a line, below the name of each file.

`fairlead collect` runs this command on the nodes over ssh. `fairlead job` runs it as a step of a running job, and there it reads
the record of that job. The ssh key of `fairlead collect` can be limited to this command, in authorized_keys on the node:
  restrict,command="/opt/fairlead/current/bin/fairlead usage-records --asked" ssh-ed25519 ...
"""

from __future__ import annotations

import argparse
import os
import re
import stat
import sys
from collections.abc import Iterator

from fairlead.cli.state_folder import add_state_dir, state_folder
from fairlead.errors import ExitCode, UsageError

FOLDER = "usage"
FILE_MAX_BYTES = 256 * 1024
JOBS_MAX = 5000
#: What `fairlead collect` asks for besides records of jobs, with the files that it means (``provision.service_record_ssh``).
RECORD = ("/run/fairlead/service-record.json",)
OLDER = ("/var/lib/fairlead/audit.jsonl.1", "/var/lib/fairlead/audit.jsonl", "/run/fairlead/status.json")
SERVICE_MAX_BYTES = 4 << 20
SERVICE = {f"exec head -v -c {SERVICE_MAX_BYTES} {' '.join(paths)} /dev/null": paths for paths in (RECORD, OLDER)}
_NAME = re.compile(r"([0-9]{1,10})-[0-9]{1,12}\.json")
_ASKED = re.compile(r"[0-9]{1,10}(?:,[0-9]{1,10})*")
SLOW = "reading the records"  # patience.py says it


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("jobs", nargs="?", default="", metavar="JOBS", help="raw job ids: 17,18")
    parser.add_argument("--asked", action="store_true", help="read the job ids from the last word of SSH_ORIGINAL_COMMAND")
    parser.add_argument("--lines", action="store_true", help="print short lines, which srun of many nodes does not mix")
    add_state_dir(parser)


def run(args: argparse.Namespace) -> ExitCode:
    asked = os.environ.get("SSH_ORIGINAL_COMMAND", "")
    if args.asked and asked in SERVICE:
        _print_files(SERVICE[asked])
        return ExitCode.OK
    words = asked.split() if args.asked else [args.jobs]
    text = words[-1] if words else ""
    if not _ASKED.fullmatch(text) or text.count(",") >= JOBS_MAX:
        raise UsageError("name jobs by their raw ids: fairlead usage-records 17,18")
    denied: list[str] = []
    found = records(os.path.join(state_folder(args.state_dir), FOLDER), {int(job) for job in text.split(",")}, denied)
    # A reader takes an answer without the last heading for torn.
    answer = b"".join(b"==> " + path.encode() + b" <==\n" + data + b"\n" for path, data in found) + b"==> /dev/null <==\n"
    if args.lines:
        from fairlead.controller.running_report import denied_line, in_lines

        node = _node(answer)
        print("\n".join((*in_lines(node, answer), *([denied_line(node)] if denied else []))), flush=True)
        return ExitCode.OK
    sys.stdout.buffer.write(answer)
    sys.stdout.buffer.flush()
    return ExitCode.OK


def _print_files(paths: tuple[str, ...]) -> None:
    """Print the files that exist, as `head -v` does."""
    for path in paths:
        try:
            with open(path, "rb") as file:
                data = file.read(SERVICE_MAX_BYTES)
        except OSError:
            continue
        sys.stdout.buffer.write(b"==> " + path.encode() + b" <==\n" + data + b"\n")
    sys.stdout.buffer.write(b"==> /dev/null <==\n")
    sys.stdout.buffer.flush()


def _node(answer: bytes) -> str:
    """Return the node that the records name, because only the agent knows its NodeName. Without a record it is the one that Slurm
    gives to a step."""
    found = re.search(rb'"node":"([A-Za-z0-9_.-]{1,64})"', answer)
    return found[1].decode() if found else os.environ.get("SLURMD_NODENAME", "-")


def records(folder: str, jobs: set[int], denied: list[str]) -> Iterator[tuple[str, bytes]]:
    """Yield path and content of each file of these jobs. A file that cannot be read is named on standard error. A file that this
    user may not read is added to ``denied`` too."""
    try:
        names = sorted(os.listdir(folder))
    except PermissionError:  # only root can list it; the records of running jobs are found by their links
        names = [name for job in sorted(jobs) if (name := _linked(folder, job))]
    except OSError as e:
        print(f"fairlead usage-records: {folder}: {e.strerror}", file=sys.stderr)
        return
    for name in names:
        found = _NAME.fullmatch(name)
        if found is None or int(found[1]) not in jobs:
            continue
        path = os.path.join(folder, name)
        try:
            yield path, content(path)
        except OSError as e:
            print(f"fairlead usage-records: {path}: {e.strerror}", file=sys.stderr)
            if isinstance(e, PermissionError):
                denied.append(path)


def _linked(folder: str, job: int) -> str:
    """Return the name of the record of a running job, or "" if there is none."""
    try:
        return os.readlink(os.path.join(folder, str(job)))
    except OSError:
        return ""


def content(path: str) -> bytes:
    """Return the bytes of a regular file, and at most one more than a record may have. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as f:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(0, "is no regular file")
        return f.read(FILE_MAX_BYTES + 1)
