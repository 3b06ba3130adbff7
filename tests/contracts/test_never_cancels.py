"""The agent and the hooks never cancel, requeue or suspend a job: no file of theirs names a command that does (decision 46)."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
AGENT = ROOT / "agent/fairlead"
COMMANDS = re.compile(r"""\bscancel\b|scontrol["', ]+(?:requeue|requeuehold|suspend)\b""")
#: Measurements start jobs of their own, and cancel them. The idle program is the site's choice, on the controller.
OTHER_ROOMS = {"measure", "controller"}
OTHER_FOLDERS = {"idle", "events", "controller"}  # of slurm/: what a site runs on the controller


def test_no_file_of_the_agent_or_of_a_hook_names_such_a_command() -> None:
    modules = [path for path in AGENT.rglob("*.py") if path.relative_to(AGENT).parts[0] not in OTHER_ROOMS]
    hooks = [path for path in (ROOT / "slurm").rglob("*") if path.is_file() and path.parent.name not in OTHER_FOLDERS]
    assert len(modules) > 400 and {"prolog", "epilog", "health-check", "task-prolog"} <= {path.name for path in hooks}
    looked = [path for path in (*modules, *hooks) if path.suffix != ".md"]
    assert [str(path) for path in looked if COMMANDS.search(path.read_text(errors="replace"))] == []


def test_those_that_do_are_found_by_the_same_look() -> None:
    for name in ("agent/fairlead/measure/slurm_jobs.py", "slurm/idle/requeue", "slurm/idle/cancel"):
        assert COMMANDS.search((ROOT / name).read_text()), name
