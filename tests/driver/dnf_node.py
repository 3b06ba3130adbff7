"""A plain node for packages that is like EL: dnf and rpm of a Debian root, rpm's database, no dpkg, no network.

``DnfNode(folder)`` is near EL9, ``DnfNode(folder, "trixie")`` near EL10 (``tests/lab/el_roots.py``). ``repository()`` puts the
lab's stand-ins (``el_repository``) on it: the folder /srv/nvidia, and dnf's repository ``nvidia``, which is switched off.
"""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from tests.driver import el_repository
from tests.driver.apt_node import PackageNode
from tests.lab import el_roots

LIST = "/etc/dnf/plugins/versionlock.list"
REPOSITORY = "[nvidia]\nname=nvidia\nbaseurl=file:///srv/nvidia\nenabled=0\ngpgcheck=0\nmodule_hotfixes=1\n"
#: Debian's rpm says this on standard error at each install.
ADVICE = ("rpm: RPM should not be used directly install RPM packages", "rpm: However assuming you know what you are doing")
_INSTALLED = "%{NAME} %{EPOCHNUM}:%{VERSION}-%{RELEASE}\\n"


class DnfNode(PackageNode):
    """A node like EL."""

    def __init__(self, folder: Path, suite: str = "bookworm") -> None:
        super().__init__(folder)
        self.suite = suite
        self.major = el_roots.RELEASES[suite]

    def lower(self) -> Path:
        return el_roots.el_root(self.suite)

    def repository(self) -> None:
        """Put the stand-ins on the node as a repository that only --enablerepo=nvidia (or --repo nvidia) uses."""
        self.bring(el_repository.repository(self.suite), "/srv/nvidia")
        script = "cat > /etc/yum.repos.d/nvidia.repo"
        subprocess.run(self.words("sh", "-c", script), input=REPOSITORY.encode(), check=True, timeout=60)

    def bring(self, folder: Path, to: str) -> None:
        """Copy a folder of this machine to the node."""
        self.run("mkdir", "-p", to)
        with subprocess.Popen(["tar", "-C", str(folder), "-c", "."], stdout=subprocess.PIPE) as pack:
            subprocess.run(self.words("tar", "-C", to, "-x"), stdin=pack.stdout, check=True, timeout=120)

    def rpm(self, *words: str, code: int | None = 0) -> list[str]:
        """The lines that rpm prints, without Debian's advice about alien."""
        return [line for line in self.run("rpm", *words, code=code).splitlines() if not line.startswith(ADVICE)]

    def versions(self, *names: str) -> dict[str, str]:
        """Version by name of what is installed; the versions of a name that is there twice are joined by a blank."""
        found: dict[str, str] = {}
        for name, version in (line.split(" ") for line in self.rpm("-qa", "--qf", _INSTALLED)):
            found[name] = f"{found[name]} {version}" if name in found else version
        return {n: v for n, v in found.items() if not names or n in names}

    def locked(self) -> str:
        """dnf's versionlock list, as it is."""
        return self.run("sh", "-c", f"cat {LIST} 2>/dev/null || :")

    def processes(self, *names: str) -> list[int]:
        """Process ids on this machine of the node's programs of these names; without names all but its holder."""
        inside = os.stat(f"/proc/{self.pid}/ns/pid").st_ino
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal() and int(entry.name) != self.pid:
                try:
                    if os.stat(entry / "ns/pid").st_ino == inside and (
                        not names or (entry / "comm").read_text().strip() in names
                    ):
                        found.append(int(entry.name))
                except OSError:
                    continue
        return found

    def reset(self) -> None:
        """All that runs there but its holder ends at once, as in a power cut."""
        for _ in range(50):
            left = self.processes()
            if not left:
                return
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
