"""Bad input, and nodes that cannot take what is declared: one clear line with file, key and node; the others are done."""

from __future__ import annotations

import os
import re
import subprocess
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from tests.lab import roots
from tests.playbooks.admin import PROJECT, Admin, node, states, wait

pytestmark = [pytest.mark.rack, pytest.mark.timeout(300)]
CONGESTION = '"net.ipv4.tcp_congestion_control"'
SYSCTL_FILE = "/etc/sysctl.d/90-fairlead-sysctl.conf"


@pytest.fixture(scope="module", autouse=True)
def provisioned(admin: Admin) -> None:
    admin.write_site()
    admin.provision()


def test_a_value_that_the_kernel_refuses_fails_its_node_alone(admin: Admin) -> None:
    """gpu2: one that can be known beforehand; gpu3: one that only the kernel itself refuses."""
    admin.write_site(
        more=f'[nodes.gpu2.settings.sysctl.values]\n{CONGESTION} = "brr"\n'
        '[nodes.gpu3.settings.sysctl.values]\n"net.ipv4.tcp_retries1" = 4000\n'
    )
    results = admin.provision(code=69)
    assert states(results) == {"gpu1": "same", "gpu2": "failed", "gpu3": "failed"}
    assert re.search(
        r"sysctl: \S+site\.toml nodes\.gpu2: settings\.sysctl\.values\.net\.ipv4\.tcp_congestion_control: .*'brr'",
        results["gpu2"]["message"],
    )
    assert "it has " in results["gpu2"]["hint"], "those that exist are named"
    assert re.search(r"tcp_retries1: the kernel refuses '4000'.*site\.toml nodes\.gpu3", results["gpu3"]["message"])
    for name in ("gpu2", "gpu3"):
        written = node(admin, name).run(["cat", SYSCTL_FILE], check=False).stdout  # with what the profile declares
        assert "brr" not in written and "tcp_retries1" not in written, "what the kernel refused is not persisted"
    admin.write_site()
    assert set(states(admin.provision()).values()) <= {"same", "changed"}


def test_no_space_and_a_wrong_key_fail_their_nodes_alone_and_the_next_run_completes(admin: Admin) -> None:
    full, locked = node(admin, "gpu2"), node(admin, "gpu3")
    full.run("rm -rf /opt/fairlead/current /opt/fairlead/0* && mount -t tmpfs -o size=256k none /opt/fairlead")
    locked.run("mv /root/.ssh/authorized_keys /root/.ssh/authorized_keys.away")
    try:
        results = admin.provision(code=69)
    finally:
        left = full.run("ls -A /opt/fairlead; umount /opt/fairlead").stdout.split()
        locked.run("mv /root/.ssh/authorized_keys.away /root/.ssh/authorized_keys")
    assert states(results) == {"gpu1": "same", "gpu2": "failed", "gpu3": "unreachable"}
    assert "/opt/fairlead" in results["gpu2"]["message"] and "No space left on device" in results["gpu2"]["message"]
    assert results["gpu2"]["hint"] == "make room there"
    assert "Permission denied" in results["gpu3"]["message"] and "private_key" in results["gpu3"]["hint"]
    assert "current" not in left, "nothing refers to a release that is not complete"
    results = admin.provision()
    assert states(results) == {"gpu1": "same", "gpu2": "changed", "gpu3": "same"}
    assert full.run("/usr/local/bin/fairlead version").stdout


def test_addresses_that_were_exchanged_are_named_and_nothing_is_changed(admin: Admin) -> None:
    before = [node(admin, name).run("cat /etc/fairlead/node.json").stdout for name in ("gpu2", "gpu3")]
    text = admin.site.read_text()
    two, three = (node(admin, name).address for name in ("gpu2", "gpu3"))
    crossed = text.replace(f'gpu2 = "{two}"', f'gpu2 = "{three}"').replace(f'gpu3 = "{three}"', f'gpu3 = "{two}"')
    admin.site.write_text(crossed)
    for words in ((), ("--uninstall",), ("--check",)):
        results = admin.provision(*words, "-l", "gpu[2-3]", code=69)
        assert results["gpu2"]["message"] == f"{three} leads to gpu3, which the site declares as another node"
        assert results["gpu3"]["state"] == "failed" and "[ansible] hosts" in results["gpu3"]["hint"]
    assert [node(admin, name).run("cat /etc/fairlead/node.json").stdout for name in ("gpu2", "gpu3")] == before
    admin.site.write_text(text)
    host = node(admin, "gpu2")
    host.run("hostname a-name-of-the-sites-own")
    try:
        assert admin.provision("-l", "gpu2")["gpu2"]["state"] == "same"
        host.run("rm /etc/fairlead/node.json")
        assert admin.provision("-l", "gpu2")["gpu2"]["changes"][0] == "/etc/fairlead/node.json: missing"
    finally:
        host.run("hostname gpu2")


def test_what_looks_like_a_template_is_never_one(admin: Admin) -> None:
    """A site's value is data: Ansible evaluates none of it, here or on the node."""
    admin.write_site(more="[nodes.gpu1.jobenv.extra]\nSITE_WORDS = \"{{ lookup('pipe', 'touch /tmp/fairlead-evaluated') }}\"\n")
    assert admin.provision("-l", "gpu1")["gpu1"]["state"] == "changed"
    host = node(admin, "gpu1")
    assert "{{ lookup('pipe'" in host.run("cat /etc/fairlead/node.json").stdout
    assert not Path("/tmp/fairlead-evaluated").exists()
    assert host.run("ls /tmp/fairlead-evaluated", check=False).stdout == ""
    admin.write_site()
    admin.provision("-l", "gpu1")


CANARY = "canary-4f0c9d17"


class Search(threading.Thread):
    """While a run goes on: everything under its private folder, and every process's command line, looked through."""

    def __init__(self, secrets: list[bytes]) -> None:
        super().__init__(daemon=True)
        self.secrets = secrets
        self.ended = threading.Event()
        self.found: set[str] = set()
        self.read_names: set[str] = set()

    def run(self) -> None:
        while not self.ended.wait(0.02):
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                self.search(path, str(path))
            for folder in Path("/dev/shm").glob("fairlead-provision.*"):
                with suppress(OSError):  # a run that has just ended
                    for path in folder.rglob("*"):
                        self.search(path, path.name)

    def search(self, path: Path, name: str) -> None:
        try:
            content = path.read_bytes() if path.name == "cmdline" or path.is_file() else b""
        except OSError:
            return
        self.read_names.add(name)
        if any(secret in content for secret in self.secrets):
            self.found.add(f"{path}: {content[:80]!r}")


def test_no_secret_gets_into_artifacts_logs_reports_or_process_lists(admin: Admin, tmp_path: Path) -> None:
    """The secrets of a run: the private key, what the caller's environment holds (a vault's or sudo's password, tokens), and
    what somebody puts into the site file where it does not belong."""
    key = tmp_path / "key"
    key.write_bytes(Path(roots.ssh_key()).read_bytes())
    key.chmod(0o600)
    body = key.read_text().splitlines()[3].encode()  # the first lines are the same in every key
    admin.write_site(key=str(key))
    node(admin, "gpu2").run("echo >> /etc/slurm/fairlead/task-prolog")
    secrets = [CANARY.encode(), body]
    env = {**os.environ, "PYTHONPATH": str(PROJECT / "agent"), "ANSIBLE_BECOME_PASS": CANARY, "VAULT_TOKEN": CANARY}
    report, page = tmp_path / "report.json", tmp_path / "report.txt"
    words = ["provision", "--site", str(admin.site), "--diff", "--report", str(report), "--report", str(page)]
    search = Search(secrets)
    search.start()
    command = admin.command(*words)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env) as run:
        admin.pids.append(run.pid)
        out, err = run.communicate(timeout=240)
    search.ended.set()
    search.join()
    assert run.returncode == 0, err
    assert not search.found
    assert {"request.json", "inventory.ini", "gpu1", "stdout"} <= search.read_names, "the run's own folder was looked through"
    written = [out, err, report.read_bytes(), page.read_bytes(), admin.site.read_bytes()]
    assert not [w for w in written if any(secret in w for secret in secrets)]
    for host in admin.rack.nodes:
        found = host.run(
            ["grep", "-rlFe", CANARY, "-e", body.decode(), "/etc", "/opt", "/run", "/var", "/root", "/tmp"], check=False
        )
        assert found.stdout == "" and found.returncode == 1
        journal = host.run("journalctl -b --no-pager").stdout
        assert CANARY not in journal and body.decode() not in journal
    wait(lambda: not list(Path("/dev/shm").glob(f"fairlead-provision.{run.pid}.*")))
    text = admin.site.read_text()
    admin.site.write_text(text.replace("[ansible]\n", f'[ansible]\npassword = "{CANARY}"\n'))
    told = admin.run("provision", "--site", str(admin.site), code=78)
    assert "ansible.password" in told.stderr or "password" in told.stderr
    assert CANARY not in told.stderr + told.stdout
    admin.write_site()
