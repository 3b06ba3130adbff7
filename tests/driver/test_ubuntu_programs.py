"""Programs that Ubuntu runs after apt: needrestart does what the environment of fairlead's apt says."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from fairlead.host.change import package_command
from tests.lab import packages


@pytest.fixture(scope="module")
def needrestart() -> Path:
    return packages.alone("bookworm", "needrestart")


def test_needrestart_is_suspended_and_else_it_only_lists(needrestart: Path) -> None:
    """apt's hook ends before it starts the program, and the program takes its mode from the environment."""
    environment = package_command._ENVIRONMENT
    hook = (needrestart / "usr/lib/needrestart/apt-pinvoke").read_text()
    program = (needrestart / "usr/sbin/needrestart").read_text()
    assert environment["NEEDRESTART_SUSPEND"] and 'if [ -n "$NEEDRESTART_SUSPEND" ]' in hook
    assert "$ENV{NEEDRESTART_MODE}" in program and environment["NEEDRESTART_MODE"] == "l"


@pytest.mark.root
def test_apt_s_hook_starts_nothing(needrestart: Path, tmp_path: Path) -> None:
    """The real hook in a mount namespace, where the program that it would start is one that writes down that it ran."""
    script = (needrestart / "usr/lib/needrestart/apt-pinvoke").read_text()
    ran, hook, program = tmp_path / "ran", tmp_path / "hook", tmp_path / "needrestart"
    program.write_text(f"#!/bin/sh\ntouch {ran}\n")
    program.chmod(0o755)
    hook.write_text(script.replace("/usr/sbin/needrestart", str(program)))
    setup = 'mount -t tmpfs tmpfs /run && mkdir /run/needrestart && touch /run/needrestart/unpacked && exec sh "$0"'
    words = ["unshare", "-m", "sh", "-c", setup, str(hook)]
    for environment, there in (({"PATH": package_command._ENVIRONMENT["PATH"]}, True), (package_command._ENVIRONMENT, False)):
        ran.unlink(missing_ok=True)
        subprocess.run(words, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=30, check=False)
        assert ran.exists() is there, environment
