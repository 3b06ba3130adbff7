"""Changes that a program of the system makes: systemctl, modprobe, the boot loader's own. Each with a deadline."""

from __future__ import annotations

import subprocess

from fairlead.errors import HostError
from fairlead.host.root import Root
from fairlead.model.change import BootLoader, Module, Unit

SYSTEMCTL_SECONDS = 60.0
MODPROBE_SECONDS = 60.0
BOOT_LOADER_SECONDS = 120.0


def commands(change: Unit) -> list[list[str]]:
    commands = [["daemon-reload"]] if change.daemon_reload else []
    if change.enabled is not None:
        commands.append(["enable" if change.enabled else "disable", change.name])
    if change.restart:
        commands.append(["restart", change.name])
    elif change.active is not None:
        commands.append(["start" if change.active else "stop", change.name])
    return commands


def is_image(root: Root) -> bool:
    """A system that does not run: systemd is installed below ``root``, and there is no kernel's /proc."""
    return not root.is_live and root.exists("/usr/lib/systemd/system") and not root.exists("/proc/sys")


def enable_in_image(change: Unit, root: Root) -> None:
    """By symbolic link only: nothing is asked of a running systemd, and nothing is started. Raises HostError."""
    systemctl([f"--root={root.path}", "enable" if change.enabled else "disable", change.name])


def systemctl(arguments: list[str]) -> None:
    """Run systemctl with a deadline. Raises HostError with its own words."""
    run(["systemctl", "--no-ask-password", *arguments], SYSTEMCTL_SECONDS, "this node does not run systemd")


def made_anew(change: Module | BootLoader) -> None:
    """Load the module, or have the boot loader's configuration written. Raises HostError with the tool's own words."""
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
