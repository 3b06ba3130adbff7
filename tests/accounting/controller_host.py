"""A rack whose controller runs fairlead's own units for jobs: real systemd, real munge, real ssh to a node that keeps records."""

from __future__ import annotations

import shutil
import subprocess
import time
import zipfile
from pathlib import Path

from fairlead.jobs.usage_record import encoded
from tests.jobs.job_reports import record_of
from tests.lab.accounting import OPERATOR, STRANGER, query, wait_in_database
from tests.lab.host import Host
from tests.lab.rack import Rack
from tests.lab.wheels import admin_wheels, wheelhouse

ROOT = Path(__file__).resolve().parents[2]
HOME = "/var/lib/fairlead-collect"
PROGRAM = "/opt/fairlead/current/bin/fairlead"
PYTHON = "/opt/fairlead/current/bin/python"
START = f"#!{PYTHON} -I\nimport sys\nfrom fairlead.cli import main\nsys.exit(main())\n"
SITE = """schema = 1
generation = 1

[classes.all]
nodes = "gpu[1-2]"
profile = "hgx-h100"

[ansible]
user = "root"
"""
KEY = """\
install -d -m 0700 -o fairlead -g fairlead {home}/.ssh
ssh-keygen -q -t ed25519 -N '' -f {home}/.ssh/id_ed25519
ssh-keyscan {nodes} > {home}/.ssh/known_hosts 2>/dev/null
chown -R fairlead:fairlead {home}/.ssh
cat {home}/.ssh/id_ed25519.pub
"""


def install(host: Host, suite: str) -> None:
    """Make /opt/fairlead/current of a running host: an environment of its own Python, with the package as it is here."""
    host.run(["/usr/bin/python3", "-m", "venv", "--without-pip", "/opt/fairlead/current"])
    (packages,) = host.path("/opt/fairlead/current/lib").glob("python3*/site-packages")
    shutil.copytree(ROOT / "agent/fairlead", packages / "fairlead", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("slurm", "templates", "playbooks"):
        shutil.copytree(ROOT / name, packages / "fairlead/_data" / name)
    cluster_shell = admin_wheels().glob("clustershell-*.whl")  # of fairlead[provision], for collect; it is Python only
    for wheel in (*wheelhouse(suite).glob("*.whl"), *cluster_shell):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(packages)
    (program := host.path(PROGRAM)).write_text(START)
    program.chmod(0o755)
    host.run([PYTHON, "-m", "compileall", "-q", "/opt/fairlead/current/lib"])


def add_account(rack: Rack) -> None:
    """Make the account on the controller with the number that useradd chooses, and on the nodes with the same number.

    On trixie, useradd would choose 999 on the controller, which has an account of MariaDB, and 990 on the nodes.
    """
    rack.ctl(f"useradd --system --home-dir {HOME} --create-home --shell /usr/sbin/nologin fairlead")
    number = rack.ctl("id -u fairlead").strip()
    for host in rack.nodes:
        host.run(f"useradd --system --uid {number} --no-create-home --shell /usr/sbin/nologin fairlead")


def set_up(rack: Rack) -> None:
    """Do what the how-to says: the account, its right in Slurm, its key on the nodes, the units."""
    for host in rack.hosts:
        install(host, rack.suite)
    add_account(rack)
    for number, name in ((2002, OPERATOR), (2003, STRANGER)):
        for host in rack.nodes:
            host.run(f"useradd --uid {number} --create-home {name}")
    rack.ctl("sacctmgr -iQ add user fairlead account=research adminlevel=Operator")
    names = " ".join(host.name for host in rack.nodes)
    key = rack.ctl(KEY.format(home=HOME, nodes=names)).strip()
    for host in rack.nodes:
        line = f'restrict,command="{PROGRAM} usage-records --asked" {key}\n'
        host.run("install -d -m 0700 /root/.ssh; cat >> /root/.ssh/authorized_keys", stdin=line)
    rack.ctl("install -d /etc/fairlead")
    rack.controller.path("/etc/fairlead/site.toml").write_text(SITE)
    rack.ctl(f"{PROGRAM} collect --units /etc/systemd/system && systemctl daemon-reload")


def start_units(rack: Rack) -> None:
    """Start the timer and the socket. Call it when there is an ended job, so that the first round finds its records."""
    rack.ctl("systemctl enable -q --now fairlead-collect.timer fairlead-job.socket")


def ended_job(rack: Rack, seconds: int = 3600) -> int:
    """A job of alice that has ended, for which its nodes keep records. By the database it ran for some time."""
    job = rack.submit("#!/bin/sh\ntrue\n", "-N2", "--gres=gpu:2", "--time=2:00:00")
    rack.wait_job(job, "COMPLETED")
    wait_in_database(rack, job)
    end = int(time.time())
    query(rack, f"UPDATE lab_job_table SET time_start={end - seconds}, time_end={end} WHERE id_job={job}")
    for host in rack.nodes:
        times = {"begin_unix": float(end - seconds), "end_unix": float(end), "written_unix": float(end)}
        made = record_of(host.name, float(seconds), 2, job=job, uid=None, **times)
        host.run("install -d /var/lib/fairlead/usage")
        host.path(f"/var/lib/fairlead/usage/{job}-{end - seconds}.json").write_bytes(encoded(made))
    return job


def ask(host: Host, user: str, *words: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """``fairlead job`` of a user on a host."""
    return host.run([PROGRAM, "job", *words], user=user, check=False, timeout=timeout)
