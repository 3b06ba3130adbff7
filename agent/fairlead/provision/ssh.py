"""Sets how ssh on the admin host reaches the nodes: it never prompts, never waits long, and keeps connections open."""

from __future__ import annotations

import os
import selectors
import shlex
import subprocess
import time
from collections.abc import Sequence

from msgspec import Struct

ANSWER_MAX_BYTES = 8 << 20  # the limit for one answer of a node; no honest answer is so long

# ssh uses the first value of an option, so these options come after the site's own. If a node dies, its ssh ends within about a
# minute. A node gets no access to the admin's session: no ssh agent, no display, no forwarded port.
SSH_ARGS = (
    "-o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=15 -o ServerAliveCountMax=4"
    " -o ForwardAgent=no -o ForwardX11=no -o PermitLocalCommand=no -o ClearAllForwardings=yes"
)
_SHARED = "-o ControlMaster=auto -o ControlPersist=60"


def shared_connections(ssh_args: str, address: str) -> str:
    """Return the ssh options that keep a connection open for a minute, so that the next run can use it. Return "" if the ssh
    options or the ssh configuration of the admin already say what to do with shared connections."""
    if "control" in ssh_args.lower():
        return ""
    try:
        words = ["ssh", *shlex.split(ssh_args), "-G", address]
        said = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=10, check=False).stdout
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return ""  # the run itself then reports the error
    settings = dict(line.partition(" ")[::2] for line in said.splitlines())
    if settings.get("controlmaster") != "false" or settings.get("controlpath", "none") != "none":
        return ""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    home = runtime if os.path.isdir(runtime) else os.path.expanduser("~/.ssh")
    return f"{_SHARED} -o ControlPath={home}/fairlead-%C" if os.path.isdir(home) and " " not in home and len(home) < 40 else ""


def ssh_options(ssh_args: str, private_key: str, address: str, program: str = "ssh") -> str:
    """Return all options for ssh as one line: the site's own, its key, those of fairlead, and those of a shared connection.

    ``address``: any node's address, for which the admin's ssh configuration is read. Only the real ssh shares connections.
    """
    shared = shared_connections(ssh_args, address) if program == "ssh" else ""
    return " ".join(filter(None, (ssh_args, f"-i {shlex.quote(private_key)}" if private_key else "", SSH_ARGS, shared)))


class SshAnswer(Struct, frozen=True):
    """Holds the output of ssh and its exit status. code: None if ssh was killed. endless: ssh was killed because of the length
    of its output, and not because of its time."""

    code: int | None
    out: bytes = b""
    err: str = ""
    endless: bool = False


def ask(words: Sequence[str], seconds: float) -> SshAnswer:
    """Run ssh for at most ``seconds``, and return its answer. ssh is killed if its output is longer than ANSWER_MAX_BYTES. Raises
    OSError if ssh cannot be started.

    ssh runs in a session of its own, so that Ctrl-C in the terminal reaches only this program.
    """
    end = time.monotonic() + seconds
    kept = (bytearray(), bytearray())
    with (
        subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        ) as process,
        selectors.DefaultSelector() as pipes,
    ):
        for pipe, into in zip((process.stdout, process.stderr), kept, strict=True):
            pipes.register(pipe, selectors.EVENT_READ, into)  # type: ignore[arg-type]
        ended = False
        while pipes.get_map() and (left := end - time.monotonic()) > 0:
            ready = pipes.select(min(left, 0.05))
            for key, _ in ready:
                chunk = os.read(key.fd, 1 << 16)
                key.data.extend(chunk)
                if not chunk:
                    pipes.unregister(key.fileobj)
            if sum(map(len, kept)) > ANSWER_MAX_BYTES:
                process.kill()
                return SshAnswer(None, endless=True)
            if ended and not ready:  # a shared connection that stays open still has these pipes open
                break
            ended = process.poll() is not None
        try:
            code = process.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            return SshAnswer(None)
    return SshAnswer(code, bytes(kept[0]), kept[1].decode("utf-8", "replace"))
