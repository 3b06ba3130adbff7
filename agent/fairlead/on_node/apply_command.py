"""Runs `fairlead apply` with the code of the release that the admin host wants, and reads its report.

If the program already runs in that release's Python, it calls the command in this process, which saves another start of Python.
Otherwise the release's own interpreter runs the command.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from typing import Any

from .installed_release import Release
from .stop import Stop

APPLY_SECONDS = 2400.0  # apt and dkms need minutes to build a kernel module


def apply(request: dict[str, Any], release: Release, *, sent: bool, document_differs: bool) -> dict[str, Any] | None:
    """Run `fairlead apply`. Return its report, or None if no release is installed and none was ``sent``. Raises Stop.

    document_differs: the document on this node is not the wanted document. A check does not replace it, but passes the wanted
    document to the command.
    """
    document = request["documents"][0]["content"]
    words = ["apply", "--json"] + ["--dry-run"] * request["check"] + ["--drained"] * request["drained"]
    words += ["--only", ",".join(request["only"])] if request["only"] else []
    if not release.installed():
        return _unpacked_apply(release, words, document) if sent else None
    if request["check"] and document_differs:
        import tempfile

        with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
            f.write(document)
            f.flush()
            return run([release.program, *words, "--document", f.name])
    if os.path.realpath(sys.prefix) == release.path:
        return _called(words)
    return run([release.program, *words])


def _unpacked_apply(release: Release, words: list[str], document: str) -> dict[str, Any]:
    """Check a node without a release. The release that would be installed is unpacked for this call only. Return the report.
    Raises Stop."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="fairlead-check.", dir=release.scratch()) as folder:
        venv = os.path.join(folder, "venv")
        os.mkdir(venv)
        release.unpack(venv)
        path = os.path.join(folder, "node.json")
        with open(path, "w") as f:
            f.write(document)
        return run([venv + "/bin/python", "-I", "-m", "fairlead", *words, "--document", path])


def _called(words: list[str]) -> dict[str, Any]:
    """Call the command of the release in which this process runs, and return its report. Raises Stop."""
    from fairlead.cli import main

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    return read_report(code, out.getvalue(), err.getvalue())


def run(command: list[str]) -> dict[str, Any]:
    """Run a command of fairlead, and return the JSON that the command writes. Raises Stop."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=APPLY_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise Stop(f"fairlead apply: no answer within {APPLY_SECONDS:.0f} s") from None
    return read_report(done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace"))


def read_report(code: int, out: str, err: str) -> dict[str, Any]:
    """Return the report in the command's output. If there is no report, raise Stop with the error that the command printed."""
    try:
        return dict(json.loads(out))
    except ValueError:
        lines = err.strip().splitlines() or [f"exit code {code}"]
        hint = [line.split("next:", 1)[1].strip() for line in lines if "next:" in line]
        if "Traceback" in err:  # the error is the last line before "this is a bug"
            lines = [line for line in lines if "this is a bug in fairlead" not in line][-1:]
            hint = ["this is a bug in fairlead: `fairlead apply` on the node shows all of it; please report that"]
        said = lines[0]
        raise Stop("fairlead apply: " + said.replace("fairlead apply: ", "", 1), hint[0] if hint else "") from None
