"""Lets commands speak with the agent: they read its status, wake it, and put requests into its spool."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import time
from typing import Any

from fairlead.cli.status import read_status
from fairlead.daemon.publishing.status_json import remembered
from fairlead.daemon.requests import spool
from fairlead.history.sqlite_file import FILE
from fairlead.host.process import command, real_uid
from fairlead.model.json_text import NOT_JSON
from fairlead.policy.policy_state import state_of
from fairlead.policy.state_requests import Request

WAIT_SECONDS = 20.0


def node_status(state_dir: str, run_dir: str) -> dict[str, Any]:
    """Return the status that the agent has published since the boot. If there is none, return the status in the agent's state
    on disk, or {} if there is no state."""
    status = read_status(run_dir)
    if "standing" in status:
        return status
    try:
        db = sqlite3.connect(f"file:{os.path.join(state_dir, FILE)}?mode=ro", uri=True, timeout=1.0)
        try:
            row = db.execute("SELECT value FROM kept WHERE key = 'state'").fetchone()
        finally:
            db.close()
        state = state_of(row[0])[0] if row else None
    except (*NOT_JSON, sqlite3.Error, TypeError):
        return {}
    return {**remembered(state)} if state is not None else {}


def agent_pid(run_dir: str) -> int:
    """Return the pid of the running agent, or 0 if none runs."""
    pid = read_status(run_dir).get("pid")
    if not isinstance(pid, int) or pid <= 1:
        return 0
    owner = real_uid(pid)
    if owner is None:
        return pid if _hidden(pid) else 0
    # reading another user's command line may block for ever
    words = command(pid).split(b"\0") if owner in (0, os.geteuid()) else []
    return pid if b"agent" in words and any(b"fairlead" in word for word in words) else 0


def _hidden(pid: int) -> bool:
    """Return whether a process exists although /proc does not show it to this user (hidepid, proc(5))."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return False


def wake_agent(run_dir: str) -> bool:
    """Ask the agent to sweep and to read its spool now. Return whether an agent runs."""
    pid = agent_pid(run_dir)
    if pid:
        try:
            os.kill(pid, signal.SIGUSR1)
        except OSError:
            return False
        return True
    command = ["/usr/bin/systemctl", "kill", "--kill-who=main", "--signal=USR1", "fairlead-agent.service"]
    try:  # an agent that has published nothing yet may run
        return subprocess.run(command, capture_output=True, timeout=5, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def ask(state_dir: str, run_dir: str, request: Request) -> str:
    """Put a request into the spool and wait until a running agent has taken it up.

    Return "taken up", or why the request is not taken up. Raise HostError if the spool cannot be written.
    """
    path = spool.put(state_dir, run_dir, request)
    if not wake_agent(run_dir):
        return "the agent does not run; it takes this up when it starts"
    deadline = time.monotonic() + WAIT_SECONDS
    while os.path.exists(path):
        if request.id in read_status(run_dir).get("requests", []):
            return (
                "taken up"
                if not os.path.exists(path)
                else "taken up; kept in the spool too, until the agent's history is on disk"
            )
        if time.monotonic() > deadline:
            return "the agent has not taken it up yet; it will at its next sweep"
        time.sleep(0.02)
    return "the agent refused it: its log says why" if os.path.exists(path + ".bad") else "taken up"
