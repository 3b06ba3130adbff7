"""Hands one event to the site's program, or posts it to an address. Each is a process of its own, with a deadline.

The program has taken the event if it ends with exit code 0, and the address if it answers with 2xx. Everything else is tried
again. At the deadline, or when the program has written too much, its whole process group is ended.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import selectors
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import msgspec

from fairlead.controller.event_post import Post
from fairlead.errors import ConfigError, HostError
from fairlead.fleet.event_options import EventsOptions
from fairlead.model.plain_text import one_line

OUTPUT_MAX_BYTES = 64 << 10
SAID_MAX = 200
KEY_MIN_BYTES, KEY_MAX_BYTES = 16, 4096
CREDENTIAL = "events.key"  # the name under which the unit gets the key (systemd.exec(5), LoadCredential)
NO_KEY = b"-"  # what the unit has in place of a key that is not there
_ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
_PROXIES = ("http_proxy", "https_proxy", "no_proxy")


class EventChannel(Protocol):
    name: str

    def deliver(self, identity: str, body: bytes) -> str:
        """Deliver an event. Return "" if it was taken, else in one line why it was not."""


class SiteCommand:
    """Runs the site's program with the event on standard input, and its id and kind in the environment."""

    name = "command"

    def __init__(self, command: Sequence[str], seconds: float) -> None:
        self._command, self._seconds = tuple(command), seconds

    def deliver(self, identity: str, body: bytes) -> str:
        return ran(self._command, body, self._seconds, {**_ENVIRONMENT, "FAIRLEAD_EVENT": identity})


class Webhook:
    """Posts the event to an address, signed with HMAC-SHA256 over the body."""

    name = "webhook"

    def __init__(self, url: str, key: bytes, seconds: float) -> None:
        self._url, self._key, self._seconds = url, key, seconds

    def deliver(self, identity: str, body: bytes) -> str:
        headers = {
            "Content-Type": "application/json",
            "X-Fairlead-Event": identity,
            "Idempotency-Key": identity,
            "X-Fairlead-Signature-256": f"sha256={signature(self._key, body)}",
        }
        post = Post(url=self._url, headers=headers, body=body.decode(), seconds=self._seconds)
        proxies = {name: os.environ[name] for name in _PROXIES if name in os.environ}
        package = str(Path(__file__).resolve().parents[2])
        command = (sys.executable, "-P", "-m", "fairlead.controller.event_post")
        return ran(command, msgspec.json.encode(post), self._seconds, {**_ENVIRONMENT, **proxies, "PYTHONPATH": package})


def signature(key: bytes, body: bytes) -> str:
    return hmac.new(key, body, hashlib.sha256).hexdigest()


def channels_of(options: EventsOptions, where: str) -> dict[str, EventChannel]:
    """Return the channels that a site declares, by name. Raises ConfigError for a program without a path and for a key that is
    missing, too short, or that others may read."""
    found: dict[str, EventChannel] = {}
    if options.command:
        if not options.command[0].startswith("/"):
            raise ConfigError(
                where, "events.command", "its first word must be the path of a program, such as /etc/fairlead/event"
            )
        found["command"] = SiteCommand(options.command, options.deadline_seconds)
    if options.url:
        found["webhook"] = Webhook(options.url, _key(options, where), options.deadline_seconds)
    return found


def _key(options: EventsOptions, where: str) -> bytes:
    """Return the key from systemd's credential, or from the file."""
    hint = f"head -c 32 /dev/urandom | base64 >{options.key_file}; chmod 0400 {options.key_file}"
    folder = os.environ.get("CREDENTIALS_DIRECTORY", "")
    if folder:
        with suppress(OSError):
            key = _content(os.path.join(folder, CREDENTIAL))
            if key != NO_KEY:
                return _long_enough(key, options, where, hint)
    try:
        found = os.stat(options.key_file)
        key = _content(options.key_file)
    except PermissionError as e:
        hint = (
            f"systemd hands the key to the unit; if it cannot: chown fairlead {options.key_file}; chmod 0400 {options.key_file}"
        )
        raise ConfigError(where, "events.key_file", f"{options.key_file}: {e.strerror}", hint=hint) from None
    except OSError as e:
        raise ConfigError(where, "events.key_file", f"{options.key_file}: {e.strerror}", hint=hint) from None
    if not stat.S_ISREG(found.st_mode) or found.st_mode & 0o027:
        words = f"{options.key_file}: others may read or change it (mode {stat.S_IMODE(found.st_mode):04o})"
        raise ConfigError(where, "events.key_file", words, hint=f"chmod 0400 {options.key_file}")
    return _long_enough(key, options, where, hint)


def _content(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        return file.read(KEY_MAX_BYTES + 1).strip()


def _long_enough(key: bytes, options: EventsOptions, where: str, hint: str) -> bytes:
    if not KEY_MIN_BYTES <= len(key) <= KEY_MAX_BYTES:
        words = f"{options.key_file}: a key has {KEY_MIN_BYTES} to {KEY_MAX_BYTES} bytes, and this one has {len(key)}"
        raise ConfigError(where, "events.key_file", words, hint=hint)
    return key


def ran(command: Sequence[str], text: bytes, seconds: float, environment: dict[str, str]) -> str:
    """Run a program with a text on standard input. Return "" if it ended with exit code 0 in time, else why not, in one line.
    Whatever it has started is ended with it. Raises HostError if this machine cannot start any process."""
    name = command[0]
    try:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd="/",
            env=environment,
            start_new_session=True,
        )
    except (FileNotFoundError, PermissionError, NotADirectoryError, IsADirectoryError) as e:
        return f"{name}: {e.strerror}"
    except OSError as e:
        if e.errno is not None and e.strerror == "Exec format error":
            return f"{name}: {e.strerror}: it needs a first line such as #!/bin/sh"
        raise HostError(f"{name} cannot be started: {e.strerror}") from None
    try:
        said, why = _spoken_with(process, text, time.monotonic() + seconds, seconds)
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
    if why:
        return why
    last = one_line(said.decode("utf-8", "replace"), SAID_MAX)
    ended = f"exit code {process.returncode}" if process.returncode >= 0 else f"signal {-process.returncode}"
    return "" if process.returncode == 0 else f"{ended}: {last}" if last else ended


def _spoken_with(process: subprocess.Popen[bytes], text: bytes, end: float, seconds: float) -> tuple[bytes, str]:
    """Write the text and read the output until the program has ended. Return the output and why the program has to be ended."""
    if process.stdin is None or process.stdout is None:
        raise HostError("the process has no pipes")
    said, left = bytearray(), memoryview(text)
    sink, source = process.stdin.fileno(), process.stdout.fileno()
    os.set_blocking(sink, False)
    os.set_blocking(source, False)
    with selectors.DefaultSelector() as selector:
        selector.register(sink, selectors.EVENT_WRITE)
        selector.register(source, selectors.EVENT_READ)
        while process.poll() is None:
            if time.monotonic() >= end:
                return bytes(said), f"no answer in {seconds:g} s: it was ended"
            for key, _ in selector.select(min(0.05, max(0.0, end - time.monotonic()))):
                if key.fd == sink:
                    try:
                        left = left[os.write(sink, left[:4096]) :]
                    except BlockingIOError:
                        continue
                    except BrokenPipeError:  # it does not want all of it
                        left = left[:0]
                    if not left:
                        selector.unregister(sink)
                        process.stdin.close()
                    continue
                data = _read(source)
                said += data or b""
                if data == b"":
                    selector.unregister(source)
                if len(said) > OUTPUT_MAX_BYTES:
                    return bytes(said), f"wrote more than {OUTPUT_MAX_BYTES >> 10} KiB: it was ended"
    while len(said) <= OUTPUT_MAX_BYTES and (data := _read(source)):
        said += data
    return bytes(said), ""


def _read(fd: int) -> bytes | None:
    """Return what can be read, b"" at the end, None if there is nothing now."""
    try:
        return os.read(fd, 8192)
    except BlockingIOError:
        return None
