"""Describes the machine by names of software: distribution, kernel, libc, init, cgroups, Slurm, driver."""

from __future__ import annotations

import os
import platform
import re
import subprocess

from fairlead.host import kernel
from fairlead.host.root import Root
from fairlead.host.software import software
from fairlead.model.facts import Missing
from fairlead.selftest.selftest_report import MachineSoftware

_OS_RELEASE = ("/etc/os-release", "/usr/lib/os-release")  # os-release(5)
#: The values of ID and VERSION_CODENAME that are known. A site may have invented another one, which could name the site.
_DISTRIBUTIONS = frozenset({
    "debian", "ubuntu", "rhel", "rocky", "almalinux", "centos", "fedora", "ol", "amzn", "sles", "sled", "opensuse-leap",
    "opensuse-tumbleweed", "azurelinux", "mariner", "alpine", "arch", "gentoo", "nixos", "scientific", "eurolinux", "openEuler",
})  # fmt: skip
_CODE_NAMES = frozenset({"bullseye", "bookworm", "trixie", "forky", "duke", "sid"})
_INITS = frozenset({"systemd", "init", "openrc-init", "runit", "s6-svscan", "tini", "docker-init", "dumb-init", "sh", "bash"})
_LINE = re.compile(r"^(ID|VERSION_ID|VERSION_CODENAME)=[\"']?([A-Za-z0-9._-]{1,40})", re.MULTILINE)
#: The number, and the words of distributions. A site that builds its own kernel may put its own name after them.
_RELEASE = re.compile(
    r"\d+\.\d+(?:\.\d+)*(?:[-.~+_](?:\d+(?:\.\d+)*|el\d+(?:_\d+)*|deb\d+u?\d*|bpo|amd64|arm64|cloud|generic|azure|aws|gcp|oracle"
    r"|default|rt)(?![A-Za-z0-9]))*"
)
_SYSTEMD = re.compile(r"systemd (\d+)")
_SLURM = re.compile(r"slurm\S* (\d+\.\d+(?:\.\d+)?)")
_SECONDS = 5.0
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def describe(root: Root) -> MachineSoftware:
    """Return the names and versions of the machine's software. What is not found is ""."""
    names = os_release(root)
    module, installed = kernel.module_version(root), software(root)
    library = installed.library_file
    return MachineSoftware(
        distribution=names.get("ID", ""),
        version=names.get("VERSION_ID", ""),
        kernel=kernel_release(os.uname().release),
        architecture=os.uname().machine,
        python=platform.python_version(),
        libc=" ".join(filter(None, platform.libc_ver())),
        init=init if (init := _text(root, "/proc/1/comm")) in _INITS else "other",
        systemd=_said(_SYSTEMD, "systemctl", "--version"),
        cgroup=cgroup(root),
        selinux={"1": "enforcing", "0": "permissive"}.get(_text(root, "/sys/fs/selinux/enforce"), "off"),
        slurm=_said(_SLURM, "slurmd", "-V") or _said(_SLURM, "scontrol", "--version"),
        driver="" if isinstance(module, Missing) else module[:40],
        library="" if isinstance(library, Missing) or not library else library[:40],
    )


def os_release(root: Root) -> dict[str, str]:
    """Return ID ("other" if it is not known) and VERSION_ID. Debian testing has no VERSION_ID, so its code name is returned."""
    for path in _OS_RELEASE:
        text = root.read_text(path)
        if isinstance(text, str):
            found = dict(_LINE.findall(text))
            name, code = found.get("ID", ""), found.get("VERSION_CODENAME", "")
            version = found.get("VERSION_ID", "")
            version = version if re.fullmatch(r"[0-9.]+", version) else code if code in _CODE_NAMES else ""
            return {"ID": name if name in _DISTRIBUTIONS else "other", "VERSION_ID": version}
    return {}


def kernel_release(release: str) -> str:
    """Return the part of a kernel's release that distributions give: ``6.1.0-13-amd64``, and ``6.1.9`` for ``6.1.9-uni-x``."""
    match = _RELEASE.match(release)
    return match[0][:60] if match else ""


def cgroup(root: Root) -> str:
    """Return the version of the cgroup hierarchy that this process is in (cgroups(7), /proc/PID/cgroup): 1, 2, hybrid (both),
    or "" for none. The hierarchy of version 2 has the number 0, and systemd's own one of version 1 has no controller."""
    text = root.read_text("/proc/self/cgroup")
    lines = [line.split(":", 2) for line in text.splitlines() if line.count(":") >= 2] if isinstance(text, str) else []
    first = any(number != "0" and controllers and not controllers.startswith("name=") for number, controllers, _ in lines)
    second = any(number == "0" for number, _, _ in lines)
    return "hybrid" if first and second else "1" if first else "2" if second else ""


def _text(root: Root, path: str) -> str:
    text = root.read_text(path)
    return text.strip()[:40] if isinstance(text, str) else ""


def _said(pattern: re.Pattern[str], *command: str) -> str:
    """Return what a program says about its version. slurmd and scontrol ask no other program for this."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
            env={"PATH": _PATH, "LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    match = pattern.search(done.stdout[:4096].decode("utf-8", "replace"))
    return match[1] if match else ""
