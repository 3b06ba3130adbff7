"""A plain node for packages: a root of the lab with a disk of its own, in namespaces of its own, without any network.

No simulated NVML library, no Slurm daemon: what the package manager does here is all that happens. It ends with the test
process. ``AptNode`` is a Debian node; ``dnf_node.DnfNode`` is one that is like EL.
"""

from __future__ import annotations

import os
import subprocess
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import msgspec

from fairlead import config
from fairlead.model.change import Package
from tests.lab import linux, roots, wheels

PROJECT = Path(__file__).resolve().parents[2]
CACHE = "var/cache/fairlead/packages"
HOLD = r"""
set -e
mount -t overlay overlay -o "lowerdir=$1,upperdir=$2/up,workdir=$2/wk" "$2/root"
cd "$2/root"
mount -t proc proc proc
mount -t tmpfs tmpfs run
mount -t tmpfs tmpfs dev
for name in null zero full random urandom tty; do touch dev/$name; mount --bind /dev/$name dev/$name; done
for n in fd:/proc/self/fd stdin:fd/0 stdout:fd/1 stderr:fd/2; do ln -s ${n#*:} dev/${n%%:*}; done
mkdir dev/pts
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
mkdir -p opt/fl opt/site
echo force-unsafe-io > etc/dpkg/dpkg.cfg.d/lab  # the disk is thrown away
mount --bind -o ro "$3" opt/fl
ip link set lo up
touch "$2/ready"
exec chroot . /bin/sleep infinity
"""


class PackageNode:
    """``run`` a command on it, ``apply`` a driver there with the code of this checkout and the root's own Python."""

    suite = "bookworm"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "root"
        self.upper = folder / "up"
        self._holder: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        lower = self.lower()
        for sub in ("up/opt/site", "wk", "root"):
            (self.folder / sub).mkdir(parents=True)
        for wheel in wheels.wheelhouse(self.suite).glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(self.upper / "opt/site")
        words = ["unshare", "--mount", "--pid", "--fork", "--net", "--uts", "--ipc", "--kill-child", "--propagation", "private"]
        words += ["sh", "-c", HOLD, "sh", str(lower), str(self.folder), str(PROJECT / "agent")]
        self._holder = subprocess.Popen(words, stdin=subprocess.DEVNULL, preexec_fn=linux.die_with_parent)
        end = time.monotonic() + 30
        while not (self.folder / "ready").exists():
            assert self._holder.poll() is None and time.monotonic() < end, "the node does not come up"
            time.sleep(0.02)
        self.pid = int(Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children").read_text().split()[0])
        while Path(f"/proc/{self.pid}/comm").read_text() != "sleep\n":  # before that, its root is still this machine's
            assert time.monotonic() < end, "the node does not come up"
            time.sleep(0.02)
        return self

    def lower(self) -> Path:
        """The root that its disk lies over."""
        return roots.root(self.suite)

    def __exit__(self, *args: object) -> None:
        if self._holder is not None:
            self._holder.kill()
            self._holder.wait(120)

    def words(self, *command: str) -> list[str]:
        """Words of this machine that run a command on the node."""
        enter = ["nsenter", "-t", str(self.pid), "-m", "-p", "-n", "-u", "-i", "-r", "-w", "env", "-i"]
        return [*enter, "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH=/opt/fl:/opt/site", "LC_ALL=C.UTF-8", *command]

    def run(self, *command: str, code: int | None = 0, timeout: float = 120) -> str:
        """What it prints, both streams. ``code``: what it must end with, None for anything."""
        words = self.words(*command)
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout, check=False)
        assert code is None or done.returncode == code, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    def serve(self, packages: Sequence[Package], files: Path) -> None:
        """The files in the node's cache, as `fairlead provision` leaves them."""
        script = 'mkdir -p "/$1"; cat > "/$1/$2"'
        for package in packages:
            with open(files / package.file, "rb") as f:
                subprocess.run(self.words("sh", "-c", script, "sh", CACHE, package.file), stdin=f, check=True, timeout=60)

    def declare(self, **driver: Any) -> None:
        """Its document: this driver, nothing else."""
        document = config.resolve_layers("gpu1", [("test", {"settings": {"driver": driver}})])[0]
        script = "mkdir -p /etc/fairlead /run/fairlead; cat > /etc/fairlead/node.json"
        subprocess.run(self.words("sh", "-c", script), input=config.encode_document(document), check=True, timeout=60)

    def apply_words(self, *more: str) -> list[str]:
        return ["python3", "-m", "fairlead", "apply", "--json", *more]

    def apply(self, *more: str, code: int | None = 0, seconds: float = 600) -> dict[str, Any]:
        """The report on the driver of one `fairlead apply`."""
        words = self.words(*self.apply_words(*more))
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds, check=False)
        assert code is None or done.returncode == code, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
        report = msgspec.json.decode(done.stdout)
        return dict(next(i for i in report["items"] if i["setting"] == "driver"), changed=report["changed"])


class AptNode(PackageNode):
    """A Debian node."""

    def versions(self, *names: str) -> dict[str, str]:
        """Version by name of what is installed and whole."""
        out = self.run("dpkg-query", "-W", "-f", "${Package} ${Version} ${Status}\\n")
        lines = (line.split(" ", 2) for line in out.splitlines())
        found = {w[0]: w[1] for w in lines if len(w) == 3 and w[2] in ("install ok installed", "hold ok installed")}
        return {n: v for n, v in found.items() if not names or n in names}

    def root_status(self) -> str:
        """dpkg's database and its journal as they are this moment, read from this machine."""
        folder = Path(f"/proc/{self.pid}/root/var/lib/dpkg")
        text = ""
        for file in (folder / "status", *folder.glob("updates/[0-9]*")):
            try:
                text += file.read_text(errors="replace")
            except OSError:
                continue
        return text

    def holds(self) -> set[str]:
        return set(self.run("apt-mark", "showhold").split())


def environment() -> dict[str, str]:
    """For `fairlead lock` on this machine: what it keeps, in the lab's folder."""
    return {**os.environ, "PYTHONPATH": str(PROJECT / "agent"), "XDG_CACHE_HOME": str(roots.lab_dir() / "build/driver")}
