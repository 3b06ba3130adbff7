"""jobenv.scratch on a node with systemd: the units of that disk, what their sandbox holds, and their end."""

from __future__ import annotations

import json

import pytest

from tests.lab.host import Host
from tests.playbooks.admin import Admin, node, wait

pytestmark = [pytest.mark.rack, pytest.mark.timeout(300)]
BASE = "/mnt/my-disk"
UNITS = [rf"fairlead-scratch@mnt-my\x2ddisk.{kind}" for kind in ("path", "timer")]
SERVICE = r"fairlead-scratch@mnt-my\x2ddisk.service"
ALICE = 2001
DECLARED = f'[nodes.gpu1.jobenv]\nscratch = "{BASE}"\n'


def hook(host: Host, name: str, job: int, **more: str) -> str:
    environment = {"SLURM_JOB_ID": str(job), "SLURM_JOB_UID": str(ALICE), "SLURM_JOB_NUM_NODES": "1", "SLURM_NTASKS": "1", **more}
    user = ["setpriv", f"--reuid={ALICE}", f"--regid={ALICE}", "--clear-groups"] if name.endswith("task-prolog") else []
    return host.run([*user, name], env=environment, timeout=60).stdout


def shown(host: Host, unit: str, *names: str) -> dict[str, str]:
    said = host.run(["systemctl", "show", unit, *(f"-p{n}" for n in names)]).stdout
    return dict(line.split("=", 1) for line in said.splitlines())


def exists(host: Host, path: str) -> bool:
    return host.run(["test", "-e", path], check=False).returncode == 0


def test_1_declared_it_is_served(admin: Admin) -> None:
    admin.write_site(more=DECLARED)
    host = node(admin, "gpu1")
    host.run(
        f"mkdir -p {BASE} && mount -t tmpfs -o mode=1777 tmpfs {BASE} && mkdir {BASE}/other && mount -t tmpfs tmpfs {BASE}/other"
    )
    admin.provision()
    for unit in UNITS:
        assert shown(host, unit, "UnitFileState", "ActiveState") == {"UnitFileState": "enabled", "ActiveState": "active"}
    assert node(admin, "gpu2").run("systemctl list-units --all --plain --no-legend 'fairlead-scratch@*'").stdout == ""
    wait(lambda: "@scratch" in host.run("cat /run/fairlead/env").stdout)
    again = admin.provision()
    assert again["gpu1"]["state"] == "same", again["gpu1"]


def test_2_a_job_gets_its_folder_and_leaves_none(admin: Admin) -> None:
    """Also a user's first job, which waits for the user's folder; and what a container of the user's leaves."""
    host = node(admin, "gpu1")
    host.run(f"echo {ALICE}:300000:65536 >>/etc/subuid && chmod 644 /etc/subuid")
    for job in (900, 901):
        hook(host, "/etc/slurm/prolog.d/50-fairlead", job)
        said = hook(host, "/etc/slurm/fairlead/task-prolog", job)
        (folder,) = [line.partition("=")[2] for line in said.splitlines() if line.startswith("export TMPDIR=")]
        assert host.run(["stat", "-c%u:%a", folder]).stdout == f"{ALICE}:700\n"
        host.run(["setpriv", f"--reuid={ALICE}", f"--regid={ALICE}", "--clear-groups", "touch", f"{folder}/file"])
        host.run(f"mkdir -p {folder}/image/etc && chown -R 300005:300005 {folder}/image && chmod 500 {folder}/image")
        hook(host, "/etc/slurm/epilog.d/50-fairlead", job)
        wait(lambda folder=folder: not exists(host, folder.removesuffix("/tmp")))  # type: ignore[misc]
    wait(lambda: shown(host, SERVICE, "ActiveState")["ActiveState"] == "inactive")
    assert shown(host, SERVICE, "Result") == {"Result": "success"}


def test_3_its_sandbox(admin: Admin) -> None:
    """Of the disk it sees that file system alone; nothing else can be written; it has three capabilities."""
    host = node(admin, "gpu1")
    drop = f"/run/systemd/system/{SERVICE}.d"
    look = "ls -A /mnt/my-disk/other; touch /etc/x /mnt/x /home/x /usr/x; grep CapBnd /proc/self/status; cat /proc/self/cgroup"
    host.run(f"mkdir -p '{drop}' && touch {BASE}/other/kept")
    host.path(f"{drop}/look.conf").write_text(
        f"[Service]\nExecStart=\nExecStart=-/bin/sh -c '({look}) >/run/fairlead/look 2>&1'\n"
    )
    try:
        host.run(["systemctl", "daemon-reload"])
        host.run(["systemctl", "start", SERVICE])
        said = host.run("cat /run/fairlead/look").stdout
    finally:
        host.run(f"rm -r '{drop}' /run/fairlead/look; systemctl daemon-reload")
    assert "kept" not in said and said.count("Read-only file system") + said.count("No such file") + said.count("denied") == 4, (
        said
    )
    assert f"{sum(1 << n for n in (0, 6, 7)):016x}" in said, said  # chown, setgid, setuid: capability.h
    assert "fairlead-scratch" in said.rpartition("CapBnd")[2]
    score = host.run(["systemd-analyze", "security", "--no-pager", SERVICE], check=False).stdout
    assert float(score.rstrip().split()[-3]) < 2.0, score[-200:]


def test_4_no_longer_declared_it_ends(admin: Admin) -> None:
    host = node(admin, "gpu1")
    admin.write_site()
    admin.provision()
    assert host.run("systemctl list-units --plain --no-legend 'fairlead-scratch@*'").stdout == ""
    assert host.run("ls /etc/systemd/system/*.wants | grep fairlead-scratch", check=False).stdout == ""
    wait(lambda: not exists(host, "/run/fairlead/scratch") and not exists(host, "/run/fairlead/ended"))
    assert "@scratch" not in host.run("cat /run/fairlead/env").stdout
    assert json.loads(host.run("cat /etc/fairlead/node.json").stdout)["jobenv"]["scratch"] == ""
    host.run(f"umount {BASE}/other {BASE}")
