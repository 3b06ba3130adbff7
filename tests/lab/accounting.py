"""slurmdbd and MariaDB for a lab: a layer over a Debian root with both, their configuration, and what a test asks of them.

The layer is built once for each suite, on demand, and the roots of other labs stay as they are. ``Cluster(accounting=True)`` and
``Rack(accounting=True)`` lay it over their root (a rack: over the controller's). The database is empty at each start, and ends
with the lab. It listens on a socket in the lab's own /run only. Its users log in by their user number (unix_socket), so that
there is no password. ``alice`` has an account, ``oscar`` is a Slurm operator (AdminLevel=Operator), ``nadia`` is neither.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import time
from pathlib import Path

from tests.lab import roots
from tests.lab.clients import SlurmClients
from tests.lab.pause import pause
from tests.lab.roots import USER, LabError

PACKAGES = ("mariadb-server", "slurmdbd")
#: What programs of a controller need and the root lacks: the ssh server of forky no longer brings the client.
MORE_PACKAGES = {"forky": ("openssh-client",)}
#: A user with Slurm's right AdminLevel=Operator, and one without any right.
OPERATOR, STRANGER = "oscar", "nadia"
DATABASE = "slurm_acct_db"
#: Small: a lab has some dozen jobs, and this machine's memory is shared by several labs. slurmdbd does not support snapshot
#: isolation, which is MariaDB's default from 11.6 on.
MARIADB = """\
[mariadbd]
skip-networking
skip-log-bin
performance-schema=off
innodb-buffer-pool-size=32M
innodb-log-file-size=8M
innodb-lock-wait-timeout=900
innodb-flush-log-at-trx-commit=0
innodb-use-native-aio=0
loose-innodb-snapshot-isolation=OFF
key-buffer-size=1M
aria-pagecache-buffer-size=8M
"""
# $1: the root, $2: an empty folder, in which "up" becomes the layer. A cluster runs slurmdbd as root, a rack as slurm.
BUILD = r"""
mkdir "$2/up" "$2/work" "$2/root"
mount -t overlay overlay -o "lowerdir=$1,upperdir=$2/up,workdir=$2/work" "$2/root"
mount -t proc proc "$2/root/proc"
mount --rbind /dev "$2/root/dev"
mount -t tmpfs tmpfs "$2/root/run"
mkdir -p "$2/root/etc/mysql/mariadb.conf.d"
cat "$2/mariadb.conf" > "$2/root/etc/mysql/mariadb.conf.d/99-lab.cnf"
cat /etc/resolv.conf > "$2/root/etc/resolv.conf" || true
printf '#!/bin/sh\nexit 101\n' > "$2/root/usr/sbin/policy-rc.d"
chmod 755 "$2/root/usr/sbin/policy-rc.d"
exec chroot "$2/root" /bin/sh -ec '
export PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive
apt() { apt-get -qq -oAPT::Sandbox::User=root -oAcquire::Check-Valid-Until=false -oDpkg::Options::=--force-unsafe-io "$@"; }
apt update
version=$(dpkg-query -W -f "\${Version}" slurmctld)
apt install -y --no-install-recommends --no-upgrade mariadb-server "slurmdbd=$version" </dev/null
useradd --uid 2002 --create-home oscar
useradd --uid 2003 --create-home nadia
install -d -o mysql -g mysql /run/mysqld
setpriv --reuid=mysql --regid=mysql --clear-groups /usr/sbin/mariadbd &
tries=0
until mariadb-admin --silent ping; do tries=$((tries + 1)); [ $tries -lt 300 ] || exit 1; sleep 0.1; done
mariadb -e "CREATE DATABASE slurm_acct_db; CREATE USER slurm@localhost IDENTIFIED VIA unix_socket;
  GRANT ALL ON slurm_acct_db.* TO slurm@localhost"
mariadb-admin shutdown
wait
rm -rf /usr/sbin/policy-rc.d /var/cache/apt/archives/*.deb /var/lib/apt/lists/* /usr/share/doc /usr/share/man
'
"""
#: Runs in a bare cluster, as root, with munged up.
START_DATABASE = """\
install -d -o mysql -g mysql /run/mysqld
setpriv --reuid=mysql --regid=mysql --clear-groups /usr/sbin/mariadbd </dev/null >>/var/log/slurm/mariadb.log 2>&1 &
tries=0
until mariadb-admin --silent ping 2>/dev/null; do tries=$((tries + 1)); [ $tries -lt 600 ] || exit 1; sleep 0.05; done
"""
#: Waits until slurmdbd, which was started, answers.
ANSWERS = """\
tries=0
until sacctmgr -n show cluster >/dev/null 2>&1; do tries=$((tries + 1)); [ $tries -lt 200 ] || exit 1; sleep 0.05; done
"""
#: Runs where slurmctld is to run, before it, once slurmdbd answers. The cluster is known before slurmctld registers.
ADD_USERS = f"""\
[ -z "$(sacctmgr -n show cluster)" ] || exit 0
sacctmgr -iQ add cluster lab
sacctmgr -iQ add account research
sacctmgr -iQ add user {USER} account=research
sacctmgr -iQ add user {OPERATOR} account=research adminlevel=Operator
"""


def build_script(suite: str) -> str:
    """Return the script that builds the layer of ``suite``: it is part of the layer's hash, and a suite without more keeps it."""
    return BUILD.replace("mariadb-server", " ".join(("mariadb-server", *MORE_PACKAGES.get(suite, ()))))


def layer(suite: str) -> Path:
    """Return the folder of the layer of ``suite``, and build it first where it is not there (about a minute).

    Raises LabError where it cannot be built (no package mirror, another Slurm in the mirror than in the root).
    """
    root = roots.root(suite)
    packages, script = (*PACKAGES, *MORE_PACKAGES.get(suite, ())), build_script(suite)
    recipe = json.dumps([root.name, packages, MARIADB, script, 1])
    built = roots.lab_dir() / "build" / f"accounting-{suite}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"
    with roots.locked(f"accounting-{suite}"):
        if not built.is_dir():
            roots.need_room(built.parent.parent, 1 << 30)
            began = time.monotonic()
            roots.say(f"installing {' and '.join(packages)} into a layer over the {suite} root")
            fresh = built.with_name(f".{built.name}")
            shutil.rmtree(fresh, ignore_errors=True)
            fresh.mkdir(parents=True)
            try:
                (fresh / "mariadb.conf").write_text(MARIADB)
                log = roots.lab_dir() / f"accounting-{suite}.log"
                roots.isolated(["/bin/sh", "-ec", script, "build", str(root), str(fresh)], log)
                (fresh / "up").rename(built)
            finally:
                shutil.rmtree(fresh, ignore_errors=True)
            roots.say(f"{suite} accounting layer ready after {time.monotonic() - began:.0f} s")
    return built


def lower(suite: str) -> str:
    """Return the layer and the root below it, as box.Box.lower takes them. Builds both where they are not there."""
    return f"{layer(suite)}:{roots.root(suite)}"


def slurmdbd_conf(host: str, user: str) -> str:
    """Return slurmdbd.conf for slurmdbd on ``host`` (its own name) as ``user``, who alone may be able to read the file."""
    lines = [
        "AuthType=auth/munge",
        f"DbdHost={host}",
        f"SlurmUser={user}",
        "DebugLevel=info",
        "LogFile=/var/log/slurm/slurmdbd.log",
        "PidFile=/run/slurmdbd.pid",
        "StorageType=accounting_storage/mysql",
        "StorageHost=localhost",
        f"StorageUser={user}",
        f"StorageLoc={DATABASE}",
    ]
    return "\n".join(lines) + "\n"


def slurm_conf_lines(host: str) -> str:
    """Return the lines of slurm.conf, to follow others, that name slurmdbd on ``host`` and have it count GPUs."""
    named = {"AccountingStorageType": "accounting_storage/slurmdbd", "AccountingStorageHost": host}
    named["AccountingStorageTRES"] = "gres/gpu"
    return "".join(f"\n{key}={value}" for key, value in named.items()) + "\n"


def lay_out(disk: Path, host: str, user_number: int) -> None:
    """Write what a controller with systemd needs into its disk: slurmdbd.conf for user slurm (``user_number``), and the order
    of the units mariadb, slurmdbd and slurmctld."""
    conf = disk / "etc/slurm/slurmdbd.conf"
    conf.parent.mkdir(parents=True)
    conf.write_text(slurmdbd_conf(host, "slurm"))
    conf.chmod(0o600)
    os.chown(conf, user_number, user_number)
    script = disk / "usr/local/sbin/lab-add-users"
    script.parent.mkdir(parents=True)
    script.write_text(f"#!/bin/sh\nset -e\n{ANSWERS}{ADD_USERS}")
    script.chmod(0o755)
    for unit, text in (
        (
            "slurmdbd",
            "[Unit]\nAfter=mariadb.service\nRequires=mariadb.service\n[Service]\nExecStartPost=+/usr/local/sbin/lab-add-users\n",
        ),
        ("slurmctld", "[Unit]\nAfter=slurmdbd.service\n"),
    ):
        folder = disk / f"etc/systemd/system/{unit}.service.d"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "50-lab.conf").write_text(text)


def admin_comment(slurm: SlurmClients, job: int | str) -> str:
    """Return the AdminComment that sacct shows for a job id (``5``, ``5_1``, ``5+0``), '' for none."""
    words = ["/usr/bin/sacct", "--allusers", "--noheader", "--parsable2", "--allocations", "--format=admincomment"]
    return slurm.run([*words, f"--jobs={job}"]).stdout.rstrip("\n")


def set_admin_comment(slurm: SlurmClients, job: int | str, text: str, *, user: str = "") -> str:
    """Write a job's AdminComment into the database as ``user`` (root where ''), and return what sacctmgr says.

    sacctmgr of Slurm 22.05 writes the text in lower case. Raises LabError with sacctmgr's words where it refuses.
    """
    words = ["/usr/bin/sacctmgr", "-i", "modify", "job", "where", f"jobid={job}", "set", f"admincomment={text}"]
    return slurm.run(words, user=user).stdout


def wait_in_database(slurm: SlurmClients, job: int | str, *, records: int = 1, ended: bool = True, seconds: float = 60) -> None:
    """Wait until the database has ``records`` allocations of ``job`` (array tasks, het components), whole and with their end
    where ``ended``: slurmctld sends them up to some seconds late. 22.05 first sends half a record, which lacks the eligible
    time, the time limit and the memory. Raises LabError after ``seconds``.
    """
    words = [
        "/usr/bin/sacct",
        "--allusers",
        "--noheader",
        "--parsable2",
        "--allocations",
        "--format=eligible,end",
        f"--jobs={job}",
    ]
    deadline = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        rows = [line.split("|") for line in slurm.run(words).stdout.splitlines()]
        if len(rows) >= records and not (ended and {"Unknown", "None"} & {field for row in rows for field in row}):
            return
        if time.monotonic() > deadline:
            raise LabError(f"sacct shows of job {job} after {seconds:g} s, where {records} records are due: {rows}")
        pause(began)


def query(slurm: SlurmClients, statement: str) -> list[list[str]]:
    """Return the rows that MariaDB answers to one SQL statement, as root, where slurmdbd runs."""
    answered = slurm.run(["/usr/bin/mariadb", "--batch", "--skip-column-names", DATABASE, f"--execute={statement}"]).stdout
    return [line.split("\t") for line in answered.splitlines()]


def backdate(slurm: SlurmClients, job: int, seconds: int, ended_seconds_ago: int = 0) -> None:
    """Have the database say that an ended job ran for ``seconds`` and ended some seconds ago.

    Readers leave short jobs out, and no test waits an hour. Slurm's own table is changed, and Slurm's own sacct reads it.
    """
    end = int(time.time()) - ended_seconds_ago
    start = end - seconds
    times = f"time_submit={start - 1}, time_eligible={start - 1}, time_start={start}, time_end={end}"
    query(slurm, f"UPDATE lab_job_table SET {times} WHERE id_job={int(job)}")


if __name__ == "__main__":
    for each in sys.argv[1:] or ["bookworm"]:
        print(layer(each))
