"""A second cluster beside a bare one: a slurmctld with another ClusterName, the same slurmdbd, and nodes of the same names.

Both are in one box. The second one's slurm.conf lies over /etc/slurm for its own daemons. Clients choose by SLURM_CONF.
"""

from __future__ import annotations

import shlex

from tests.lab.cluster import Cluster, NodeDirs
from tests.lab.roots import USER, LabError

SECOND = "lab2"
_PORT, _OWN_PORT, _OWN_NODE_PORT = 6817, 6827, 6950
ADD = f"""\
sacctmgr -iQ add cluster {SECOND}
sacctmgr -iQ add account research cluster={SECOND}
sacctmgr -iQ add user {USER} account=research cluster={SECOND}
"""


class TwoClusters(Cluster):
    """``lab`` is what any Cluster is. ``second_conf``: SLURM_CONF of the second one, the same path inside and on this machine."""

    def __init__(self, suite: str, **options: object) -> None:
        super().__init__(suite, accounting=True, **options)  # type: ignore[arg-type]
        self._second = self.folder / "second"
        self.second_conf = str(self._second / "slurm.conf")
        self.shared = (self._second,)

    def write_conf(self, **changes: object) -> None:
        super().write_conf(**changes)
        self._second.mkdir(exist_ok=True)
        text = (self.folder / "etc/slurm.conf").read_text()
        own = {
            "ClusterName=lab\n": f"ClusterName={SECOND}\nSlurmctldPort={_OWN_PORT}\n",
            "/var/spool/slurm/": "/var/spool/second/",
            "/run/slurm": "/run/second.slurm",
            "/var/log/slurm/slurm": "/var/log/slurm/second.slurm",
        }
        for old, new in own.items():
            text = text.replace(old, new)
        for number, node in enumerate(self.slurm_nodes, 1):
            text = text.replace(f"Port={node.port} ", f"Port={_OWN_NODE_PORT + number} ")
        (self._second / "slurm.conf").write_text(text)
        for name in ("gres.conf", "cgroup.conf"):
            (self._second / name).write_text((self.folder / "etc" / name).read_text())

    def second_dirs(self, name: str) -> NodeDirs:
        """What ``node_dirs`` is, of a node of the second cluster."""
        base = self._second / name
        return NodeDirs(base / "run", base / "etc", base / "var")

    def start_second(self) -> None:
        """Make the second cluster known to slurmdbd, start its daemons, and wait until its nodes are idle."""
        self._exec(ADD)
        self._exec(f"mkdir -p /var/spool/second/state; {self._beside('/usr/sbin/slurmctld')}")
        for node in self.slurm_nodes:
            places = zip(("run", "etc", "var"), ("/run/fairlead", "/etc/fairlead", "/var/lib/fairlead"), strict=True)
            mounts = []
            for own, place in places:
                (self._second / node.name / own).mkdir(parents=True)
                mounts.append(f"mount --bind {self._second}/{node.name}/{own} {place}")
            self._exec(self._beside(f"/usr/sbin/slurmd -N {node.name}", *mounts))
        for name in self.node_names:
            self._exec(
                f'n=0; until [ "$(SLURM_CONF={self.second_conf} sinfo --local -h -n {name} -o %T)" = idle ]; do '
                "n=$((n+1)); [ $n -lt 300 ] || exit 1; sleep 0.1; done"
            )

    def _beside(self, command: str, *mounts: str) -> str:
        inside = "; ".join((f"mount --bind {self._second} /etc/slurm", *mounts, f"exec {command}"))
        return f"unshare --mount --propagation private /bin/sh -ec {shlex.quote(inside)}"

    def second(self, *command: str, user: str = "", stdin: str = "") -> str:
        """Run one of Slurm's commands as in the second cluster, and return what it printed."""
        return self.run(
            [f"/usr/bin/{command[0]}", *command[1:]], user=user, env={"SLURM_CONF": self.second_conf}, stdin=stdin
        ).stdout

    def submit_second(self, script: str, *options: str) -> int:
        """sbatch in the second cluster as the lab's user."""
        words = ("sbatch", "--parsable", "--output=/tmp/second-%j.out", "--chdir=/tmp", *options)
        said = self.second(*words, user=USER, stdin=script).strip()
        if not said.split(";")[0].isdigit():
            raise LabError(f"sbatch said {said}")
        return int(said.split(";")[0])
