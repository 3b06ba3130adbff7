"""Runs the system's programs that make changes: systemctl, modprobe, and the boot loader's tool. Each has a time limit."""

from __future__ import annotations

import subprocess

from fairlead.errors import HostError
from fairlead.host.root import Root
from fairlead.model.change import BootLoader, Module, Unit

SYSTEMCTL_SECONDS = 60.0
MODPROBE_SECONDS = 60.0
BOOT_LOADER_SECONDS = 120.0


def commands(change: Unit) -> list[list[str]]:
    """Return the arguments of systemctl, one list for each run. ``enable`` and ``disable`` reload the unit files themselves."""
    commands = [["daemon-reload"]] if change.daemon_reload and change.enabled is None else []
    if change.enabled is not None:
        commands.append(["enable" if change.enabled else "disable", change.name])
    if change.restart:
        commands.append(["restart", change.name])
    elif change.active is not None:
        commands.append(["start" if change.active else "stop", change.name])
    return commands


def is_image(root: Root) -> bool:
    """Return whether ``root`` is an image, which is a system that does not run: it has systemd, and its /proc is empty."""
    return not root.is_live and root.exists("/usr/lib/systemd/system") and not root.exists("/proc/sys")


def enable_in_image(change: Unit, root: Root) -> None:
    """Enable or disable a unit in an image. This changes symbolic links only, and starts nothing. Raises HostError."""
    systemctl([f"--root={root.path}", "enable" if change.enabled else "disable", change.name])


def systemctl(arguments: list[str]) -> None:
    """Run systemctl with a time limit. Raises HostError with systemctl's error message."""
    run(["systemctl", "--no-ask-password", *arguments], SYSTEMCTL_SECONDS, "this node does not run systemd")


def made_anew(change: Module | BootLoader) -> None:
    """Load the module, or let the boot loader's tool write its configuration. Raises HostError with the tool's error message."""
    if isinstance(change, Module):
        run(["modprobe", "--", change.name], MODPROBE_SECONDS, "install kmod")
    elif change.tool == "grubby":
        words = [f"--args={' '.join(change.words)}"] if change.words else []
        words += [f"--remove-args={' '.join(change.without)}"] if change.without else []
        run(["grubby", "--update-kernel=ALL", *words], BOOT_LOADER_SECONDS, "install grubby")
    else:
        run([change.tool], BOOT_LOADER_SECONDS, f"install {change.tool}")


def run(command: list[str], seconds: float, missing: str) -> None:
    words = " ".join(w for w in command if w not in ("--no-ask-password", "--"))
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, check=False)
    except FileNotFoundError:
        raise HostError(f"{command[0]}: not installed; {missing}") from None
    except subprocess.TimeoutExpired:
        raise HostError(f"{words}: no answer within {seconds:.0f} s") from None
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise HostError(f"{words}: {said[0] if said else f'exit code {done.returncode}'}")
