"""A bare cluster with two slurmctlds on one StateSaveLocation: the primary may vanish, and the backup takes over.

The second slurmctld runs on a host of its own name and address, as far as Slurm can see: it has its own UTS namespace, and each
slurmctld listens on its own address only (CommunicationParameters=NoCtldInAddrAny).
"""

from __future__ import annotations

import shlex
import subprocess
import time

from tests.lab.cluster import Cluster
from tests.lab.pause import pause
from tests.lab.roots import LabError

FIRST, SECOND = "10.77.0.1", "10.77.0.2"
CONF = "CommunicationParameters=NoCtldInAddrAny\nSlurmctldTimeout=4\nReturnToService=1\n"
_PID = "/run/second/slurmctld.pid"


class TwoControllers(Cluster):
    """``extra_conf`` comes after what two controllers need."""

    def __init__(self, suite: str, *, extra_conf: str = "", **options: object) -> None:
        super().__init__(
            suite,
            extra_conf=CONF + extra_conf,
            controllers=(f"lab({FIRST})", f"lab2({SECOND})"),
            **options,  # type: ignore[arg-type]
        )
        self.shared = (self.folder / "etc",)  # so that a client of this machine reads the file that Slurm's commands read

    @property
    def conf(self) -> str:
        """slurm.conf under a name that is the same on this machine and inside."""
        return str(self.folder / "etc/slurm.conf")

    def _open_box(self, lower: str) -> None:
        super()._open_box(lower)
        for address in (FIRST, SECOND):
            self.ip(f"addr add {address}/32 dev lo")
        self._exec(f"printf '{FIRST} lab\\n{SECOND} lab2\\n' >>/etc/hosts")

    def ip(self, words: str) -> None:
        """ip(8) in the cluster's network."""
        command = ["nsenter", "-t", str(self.pid), "-n", "ip", *words.split()]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise LabError(f"ip {words}: {done.stderr.strip()}")

    def start_backup(self) -> None:
        """Start the second slurmctld; the first one has been started before."""
        inside = (
            f"hostname lab2; mkdir -p /run/second; touch {_PID}; mount --bind {_PID} /run/slurmctld.pid; exec /usr/sbin/slurmctld"
        )
        self._exec(f"exec unshare --uts --mount --propagation private /bin/sh -ec {shlex.quote(inside)}")

    def stop_backup(self, *, kill: bool = False) -> None:
        """Stop the second slurmctld and wait for its end."""
        self._stop(_PID, kill)

    def silence_first(self) -> None:
        """The first controller's host is gone: nothing answers there, nobody says that nothing is there."""
        self.ip(f"addr del {FIRST}/32 dev lo")
        self.ip("link add hole type veth peer name hole2")
        for end in ("hole", "hole2"):
            self.ip(f"link set {end} up")
        self.ip(f"route add {FIRST}/32 dev hole")
        self.ip(f"neigh add {FIRST} lladdr 02:00:00:00:00:01 dev hole nud permanent")

    def unsilence_first(self) -> None:
        """Its host is back, without slurmctld."""
        self.ip("link del hole")
        self.ip(f"addr add {FIRST}/32 dev lo")

    def wait_in_control(self, seconds: float = 60) -> None:
        """Wait until a slurmctld answers for the nodes."""
        deadline = time.monotonic() + seconds
        while True:
            began = time.monotonic()
            done = self.run(["/usr/bin/sinfo", "-h", "-N", "-o", "%N %T"], check=False)
            if done.returncode == 0 and "unk" not in done.stdout and done.stdout.strip():
                return
            if time.monotonic() > deadline:
                raise LabError(f"{self.name}: no slurmctld in control after {seconds:g} s: {done.stderr.strip()}")
            pause(began)
