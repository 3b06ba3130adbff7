"""Runs pyslurm: it reads one JSON request per line from stdin and writes one JSON answer per line to stdout.

It is run by file name, with whichever Python has pyslurm, so it uses only the standard library. The first line that it writes
is ``{"pyslurm": "25.11.2", "slurm": [25, 11, 2]}``: pyslurm's own version, and that of the Slurm headers it was built with.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

NOT_TEXT = "(a reason that is not UTF-8)"  # no drain of ours has such a reason, because ours are ASCII
TOO_LATE = "begun too late: not written"
HAVE_NODE = ("RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "STOPPED", "STAGE_OUT", "SIGNALING")


def main() -> int:
    """Answer requests until stdin ends."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != here]  # pyslurm must not import our own modules
    try:
        import pyslurm
    except Exception as e:  # a libslurm of another release fails in many ways
        _say({"error": f"{type(e).__name__}: {e}"})
        return 1
    _say({"pyslurm": pyslurm.__version__, "slurm": list(pyslurm.slurm_api_version())})
    for line in sys.stdin:
        try:
            _say({"answer": _answer(pyslurm, json.loads(line))})
        except pyslurm.PyslurmError as e:
            _say({"error": str(e)})
        except Exception as e:
            _say({"error": f"{type(e).__name__}: {e}"})
    return 0


def _answer(pyslurm: Any, ask: dict[str, str]) -> object:
    what = ask.pop("ask")
    if what == "node":
        return [_node(pyslurm.Node.load(ask["name"]))]
    if what == "nodes":
        return [_node(node) for node in pyslurm.Nodes.load().values()]
    if what == "jobs":
        jobs = pyslurm.Jobs.load().values()
        return [[job.id, job.state, job.num_nodes or 0, job.allocated_nodes or ""] for job in jobs if job.state in HAVE_NODE]
    name, until = ask.pop("name"), float(ask.pop("until", "inf"))
    if time.clock_gettime(time.CLOCK_BOOTTIME) > until:
        raise TimeoutError(TOO_LATE)
    pyslurm.Node(name).modify(pyslurm.Node(**ask))
    return None


def _node(node: Any) -> dict[str, Any]:
    try:
        reason = node.reason
    except UnicodeDecodeError:
        reason = NOT_TEXT
    return {
        "name": node.name,
        "states": node.state,
        "reason": reason,  # pyslurm gives None also for the text "None"
        "reason_user": node.reason_user or "",
        "reason_time": node.reason_time or 0,
        "hostname": node.hostname or "",
        "partitions": node.partitions or [],
    }


def _say(said: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
