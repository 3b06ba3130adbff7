"""What a node's answers mean for its maintenance: identity, verdict, findings, the provisioning run's report."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fairlead import config
from fairlead.config.site import AnsibleOptions, Site
from fairlead.model.verdict import State, Verdict
from fairlead.provision.inventory import Target
from fairlead.provision.maintain.controller import jobs_by_node
from fairlead.provision.maintain.maintenance_steps import ApplyOutcome, NodeReading
from fairlead.provision.maintain.node_access import SshNodeAccess, apply_outcome, parse_reading
from fairlead.provision.provision_report import NodeResult, node_result
from tests.slurm.maintained import document

BOOT = "/proc/sys/kernel/random/boot_id"
SERIAL = "/sys/class/dmi/id/product_serial"


def answer(status: dict[str, Any] | None = None, **parts: str) -> bytes:
    said = {"slurm_node": "n1", "boot_id": "b1", "sweep": {"boot_seconds": 90.0}, **(status or {})}
    files = {
        "/run/fairlead/verdict": Verdict(state=State.OK, expires=200, sequence=1).to_line(),
        "/proc/uptime": "100.0 1.0\n",
        "/run/fairlead/status.json": json.dumps(said),
        BOOT: "b1\n",
        SERIAL: "S123\n",
        "/etc/machine-id": "m1\n",
        **parts,
        "/dev/null": "",
    }
    return "".join(f"\n==> {name} <==\n{text}" for name, text in files.items()).encode()


def test_a_node_that_is_well() -> None:
    reading = parse_reading(b"Welcome to gpu land\n" + answer(), "n1")
    assert reading == NodeReading(
        boot="b1", machine="product_serial S123", verdict="ok", text="", age_seconds=10.0, verdict_boot="b1"
    )


@pytest.mark.parametrize("serial", ["", "To Be Filled By O.E.M.", "None", "0000000", "Default string", "Not Specified"])
def test_a_board_without_a_serial_goes_by_its_machine_id(serial: str) -> None:
    assert parse_reading(answer(**{SERIAL: serial + "\n"}), "n1").machine == "machine-id m1"


def test_findings_that_speak_against_service() -> None:
    findings = [
        {"id": "1", "check": "gpu_count", "level": "drain", "mode": "enforce", "summary": "7 of 8"},
        {"id": "2", "check": "ecc", "level": "drain", "mode": "observe", "summary": "errors"},
        {"id": "3", "check": "clock", "level": "unknown", "mode": "observe", "summary": "not read"},
        {"id": "4", "check": "temperature", "level": "warn", "mode": "enforce", "summary": "hot"},
        {"id": "5", "check": "xid", "level": "drain", "mode": "enforce", "summary": "known"},
    ]
    reading = parse_reading(answer({"findings": findings, "acknowledged": ["5"]}), "n1")
    assert reading.worse == ("gpu_count: 7 of 8",)
    assert reading.bad == ("gpu_count: 7 of 8", "ecc: errors", "clock: not read")


def test_answers_that_are_not_the_nodes() -> None:
    assert parse_reading(answer({"slurm_node": "n2"}), "n1").stranger == "the node there is n2"
    assert parse_reading(b"", "n1").trouble == "its answer is cut short"
    assert parse_reading(answer(**{BOOT: ""}), "n1").trouble == "it does not say its boot id"
    none = parse_reading(answer(**{"/run/fairlead/verdict": "", "/run/fairlead/status.json": ""}), "n1")
    assert (none.verdict, none.age_seconds) == ("none", None) and "fairlead-agent.service" in none.text


@pytest.mark.parametrize(
    "status",
    [
        "[1]",
        '{"acknowledged": 7}',
        '{"acknowledged": [[]]}',
        '{"findings": 7}',
        '{"findings": [7]}',
        '{"boot_id": 7}',
        "[" * 100_000,
    ],
)
def test_a_status_that_no_agent_writes_is_no_answer_and_ends_no_run(status: str) -> None:
    reading = parse_reading(answer(**{"/run/fairlead/status.json": status}), "n1")
    assert reading.verdict == "none" and not reading.boot and "answered with something that is not an answer" in reading.trouble
    strange = answer({"slurm_node": "\x1b[2Jn2\n", "boot_id": "\x1b[2J"}, **{BOOT: "\x1b[2Jb1\n", SERIAL: "\x9bS\n"})
    assert "\x1b" not in str(parse_reading(strange, "n1"))


def test_a_node_that_never_ends_its_answer_is_told_as_one_in_trouble(tmp_path: Path) -> None:
    endless = ssh(tmp_path, "while :; do printf %065536d 0; done")
    assert "it does not end" in endless.read("n1").trouble
    assert endless.reboot("n1", "b1") == ""  # whether it was ordered the boot id will tell


def item(setting: str, state: str, pending: str = "", message: str = "why") -> dict[str, Any]:
    return {"setting": setting, "state": state, "pending": pending, "message": message, "steps": [], "hint": ""}


def test_what_a_provisioning_run_means() -> None:
    def of(*items: dict[str, Any]) -> ApplyOutcome:
        return apply_outcome(node_result("n1", "runner_on_ok", "t", {"changes": [], "apply": {"items": list(items)}}))

    assert of(item("nccl", "same")) == ApplyOutcome()
    assert of(item("nccl", "changed")) == ApplyOutcome(changed=("nccl: why",))
    assert of(item("kernel_cmdline", "deferred", "reboot")) == ApplyOutcome(pending=("kernel_cmdline: why",))
    assert of(item("nvidia_module", "deferred", "drain")) == ApplyOutcome(waiting=("nvidia_module: why",))
    assert of(item("nccl", "failed")).trouble == "nccl: why"
    assert apply_outcome(NodeResult(node="n1", state="unreachable", message="No route to host")).trouble == "No route to host"


def ssh(folder: Path, script: str) -> SshNodeAccess:
    program = folder / "ssh"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    site = Site(file="", generation=1, layer={}, classes=(), nodes={}, ansible=AnsibleOptions(user="admin"))
    return SshNodeAccess(site, {"n1": Target(node="n1", address="10.0.0.1", document=document("n1"))}, program=str(program))


def test_what_ssh_says(tmp_path: Path) -> None:
    other = ssh(tmp_path, "echo '@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @' >&2; exit 255")
    assert other.read("n1").stranger == "10.0.0.1 has another host key"
    assert ssh(tmp_path, "echo 'no route' >&2; exit 255").read("n1") == NodeReading(trouble="no route")
    assert ssh(tmp_path, "exit 3").read("n1").trouble == "ssh ended with 3"
    assert ssh(tmp_path, "echo 'sudo: a password is required' >&2; exit 1").reboot("n1", "b1") == "sudo: a password is required"
    assert ssh(tmp_path, "exit 255").reboot("n1", "b1") == ""  # cut off by the reboot itself
    told = ssh(tmp_path, f'echo "$@" >{tmp_path}/told')
    assert told.reboot("n1", "b1") == ""
    words = (tmp_path / "told").read_text()
    assert "-o ControlPath=none" in words and "-l admin 10.0.0.1 sudo -n /bin/sh -c" in words and "systemctl reboot" in words


def test_an_ansible_that_ends_without_a_word_names_a_next_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed = tmp_path / "ansible-playbook"  # as the kernel does where memory is short
    killed.write_text("#!/bin/sh\nkill -9 $$\n")
    killed.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    (tmp_path / "site.toml").write_text('schema = 1\n[classes.h100]\nnodes = "n1"\nprofile = "hgx-h100"\n')
    side = SshNodeAccess(config.load_site(str(tmp_path / "site.toml")), {})
    said = side.apply(["n1"], check=False)["n1"].trouble
    assert said.startswith("ansible-playbook ended failed: no output; next: `fairlead provision n1 --check` on this admin host")
    assert "`journalctl -k` there" in said and "\n" not in said


def test_jobs_and_their_ends() -> None:
    found = jobs_by_node("12|R|1795311504|n[1-2]\n13|CG|N/A|n2\n")
    assert found == {"n1": [1795311504.0], "n2": [1795311504.0, float("inf")]}


#: Eight threads read their first answer at the same time, as those of `fairlead maintain` do.
TOGETHER = """
import sys, threading
from fairlead.provision.agent_status import account_of, status_of
sys.setswitchinterval(1e-6)
begin = threading.Barrier(8)
def read():
    begin.wait()
    assert status_of(b'{"node": "n1", "findings": []}')["node"] == "n1"
    assert account_of(b'{"agent": {"installed": true}}')
threads = [threading.Thread(target=read) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


@pytest.mark.parametrize("run", range(8))
def test_the_first_answers_of_several_nodes_can_be_read_at_once(run: int) -> None:
    """msgspec analyses a type at its first use. With several threads at once half of all processes ended with SIGSEGV."""
    done = subprocess.run([sys.executable, "-c", TOGETHER], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"run {run}: {done.returncode}\n{done.stderr}"
