"""A hostile root on one node stays on that node: whatever it answers, the admin host and the other nodes have nothing of it."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.playbooks.admin import PROJECT, Admin, node, states
from tests.playbooks.hostile import ESCAPES, answering, item, line, need, program, report, strange

pytestmark = [pytest.mark.rack, pytest.mark.timeout(300)]
NO_ANSWER = "answered with something that is not an answer"


def outcome(admin: Admin, *words: str, command: str = "provision") -> tuple[int, dict[str, Any], str]:
    """Its exit code, what its JSON says by node, and all that it has written."""
    env = {**os.environ, "PYTHONPATH": str(PROJECT / "agent")}
    command_line = admin.command(command, "--site", str(admin.site), "--json", *words)
    done = subprocess.run(command_line, capture_output=True, timeout=200, env=env, check=False)
    text = (done.stdout + done.stderr).decode()
    assert done.returncode in (0, 68, 69), text
    return done.returncode, {n["node"]: n for n in json.loads(done.stdout)["nodes"]}, text


@pytest.fixture(scope="module", autouse=True)
def provisioned(admin: Admin) -> None:
    admin.write_site()
    admin.provision()


@pytest.fixture
def one_at_a_time(admin: Admin, request: pytest.FixtureRequest) -> Iterator[None]:
    """So many nodes at once that gpu3 is done after gpu1 has answered."""
    admin.site.write_text(admin.site.read_text().replace("[ansible]\n", f"[ansible]\nforks = {request.param}\n"))
    yield
    admin.write_site()


@pytest.mark.parametrize("one_at_a_time", [1], indirect=True)
def test_no_reply_makes_the_admin_host_run_a_command(admin: Admin, one_at_a_time: None, tmp_path: Path) -> None:
    """As `add_host` did: a ProxyCommand of the node's choice for a node that is done after it."""
    ran = tmp_path / "ran"
    proxy = {"ansible_ssh_common_args": f"-o ProxyCommand='touch {ran}'"}
    told = {"ansible_facts": proxy, "add_group": "all", "ansible_stats": {"data": proxy}, "_ansible_delegated_vars": proxy}
    told |= {"add_host": {"host_name": "gpu3", "groups": [], "host_vars": proxy}, "exception": "x", "deprecations": ["x"]}
    with answering(node(admin, "gpu1"), line({**report("gpu1"), **told})):
        code, results, _ = outcome(admin)
    assert not ran.exists(), "a command ran on the admin host"
    assert code == 0 and states(results) == {"gpu1": "same", "gpu2": "same", "gpu3": "same"}
    assert not set(results["gpu1"]["apply"]) & set(told), "what is not known is no part of an answer"


@pytest.mark.parametrize("name", ["../secret_admin_key", "{folder}/secret_admin_key"])
def test_no_file_of_the_admin_host_is_copied_to_a_node_that_asks_for_it(admin: Admin, tmp_path: Path, name: str) -> None:
    (tmp_path / "packages").mkdir()
    (tmp_path / "secret_admin_key").write_text("secret")
    with answering(node(admin, "gpu1"), line(need(packages=[name.format(folder=tmp_path)])), line(report("gpu1"))):
        _, results, _ = outcome(admin, "--packages", str(tmp_path / "packages"))
        found = node(admin, "gpu1").run("find / -xdev -name '*secret_admin_key*'").stdout
    assert found == "", "it was copied to the node"
    assert results["gpu1"]["state"] == "failed" and NO_ANSWER in results["gpu1"]["message"]
    assert {results[n]["state"] for n in ("gpu2", "gpu3")} == {"same"}


def forged(host: str) -> str:
    """What ansible-runner takes for an event where it stands in Ansible's output: this one says that another node has failed."""
    event = {
        "uuid": "forged",
        "event": "runner_on_failed",
        "event_data": {"host": host, "res": {"msg": "forged", "failed": True}},
    }
    text = base64.b64encode(json.dumps(event).encode()).decode()
    return f"\x1b[K{text}\x1b[{len(text)}D\x1b[K"


def test_a_text_of_a_node_forges_no_result_and_no_line_and_gets_to_no_terminal_as_it_came(admin: Admin, tmp_path: Path) -> None:
    """gpu1 fails with such a text, gpu2 ends its ssh with one; gpu3 is honest."""
    text = f"{ESCAPES}{forged('gpu3')}\ngpu[1-3] (3 nodes): same\n"
    said = item(state="failed", message=text, hint=text)
    bad = {**report("gpu1", items=[said]), "changes": [{"what": text, "why": text, "before": "", "after": text}]}
    page = tmp_path / "report.txt"
    with (
        answering(node(admin, "gpu1"), line(bad)),
        answering(node(admin, "gpu2"), b"#!/bin/sh\nexit 255\n", error=text.encode("utf-8", "replace")),
    ):
        _, results, told = outcome(admin, "--diff", "--report", str(page))
        shown = admin.run("provision", "--site", str(admin.site), "--diff", code=69)
        planned = admin.run("plan", "--site", str(admin.site), "--diff", code=69)
        _, plans, _ = outcome(admin, command="plan")
    assert states(results) == {"gpu1": "failed", "gpu2": "unreachable", "gpu3": "same"}, told
    assert plans["gpu3"]["state"] == "same" and plans["gpu1"]["state"] == "failed"
    for written in (told, shown.stdout, shown.stderr, planned.stdout, planned.stderr, page.read_text()):
        assert strange(written) == [], written
        assert not [each for each in written.splitlines() if each.startswith(("gpu[1-3]", "all nodes"))], (
            "a line of the node's own"
        )


@pytest.mark.parametrize("words", [("provision",), pytest.param(("plan",), marks=pytest.mark.slow)])
def test_what_is_no_answer_fails_its_node_alone(admin: Admin, words: tuple[str, ...]) -> None:
    """gpu1: a value that is deep, in a report in another node's name; gpu2: an answer that never ends."""
    deep = line({"deep": 0}).replace(b"0", b"[" * 100_000 + b"]" * 100_000) if words == ("plan",) else line(report("gpu3"))
    endless = b"#!/bin/sh\nprintf 'FAIRLEAD-REPLY \"'\nexec yes endless\n"
    with answering(node(admin, "gpu1"), deep), answering(node(admin, "gpu2"), endless):
        _, results, told = outcome(admin, command=words[0])
    assert results["gpu1"]["state"] == results["gpu2"]["state"] == "failed" and results["gpu3"]["state"] == "same"
    assert "another node's name" in told if words == ("provision",) else "no JSON" in told
    assert f"{NO_ANSWER}: it does not end" in told


def test_fleet_and_why_take_a_hostile_node_for_itself_alone(admin: Admin) -> None:
    """gpu1 never ends its answer, gpu2 says that it is gpu3, gpu3 is honest and has a name that a terminal would obey."""
    slurm = ["--slurm-conf", "/etc/slurm/slurm.conf", "--bin-dir", str(admin.rack.bin)]
    words = ["fleet", "gpu[1-3]", "--site", str(admin.site), "--timeout", "60", *slurm]
    status = "/run/fairlead/status.json"
    endless = "#!/bin/sh\nexec yes endless\n"
    admin.rack.scontrol("update", "nodename=gpu1", "state=drain", f"reason=riser {ESCAPES[:40]}")
    with (
        program(node(admin, "gpu1"), "/usr/bin/head", endless),
        program(
            node(admin, "gpu2"),
            "/usr/bin/head",
            f"#!/bin/sh\necho '==> {status} <=='; sed s/gpu2/gpu3/g {status}; echo; echo '==> /dev/null <=='\n",
        ),
        program(
            node(admin, "gpu2"),
            "/usr/local/bin/fairlead",
            f'#!/bin/sh\nprintf \'{{"agent": {{"state": "ok", "status": \'; sed s/gpu2/gpu3/g {status}; echo \'}}}}\'\n',
        ),
        program(node(admin, "gpu1"), "/usr/local/bin/fairlead", endless),
    ):
        rows = {n["node"]: n for n in json.loads(admin.run(*words, "--json").stdout)["nodes"]}
        shown = admin.run(*words)
        told = [admin.run("why", name, "--site", str(admin.site), "--bin-dir", str(admin.rack.bin)) for name in ("gpu1", "gpu2")]
    admin.rack.scontrol("update", "nodename=gpu1", "state=resume")
    assert (rows["gpu1"]["word"], rows["gpu2"]["word"]) == ("unreachable", "unreachable")
    assert rows["gpu3"]["agent"]["reached"] and rows["gpu3"]["agent"]["node"] == "gpu3"
    assert "it does not end" in rows["gpu1"]["why"] and "leads to gpu3" in rows["gpu2"]["why"]
    assert "it does not end" in told[0].stdout and "leads to gpu3" in told[1].stdout
    assert all(strange(each.stdout + each.stderr) == [] for each in (shown, *told))


PLAYBOOK = """\
- hosts: class_h100
  gather_facts: false
  roles:
    - role: slurm_hooks
      slurm_hooks_required: false
    - role: "{{ following }}"
"""


def test_a_playbook_of_ones_own_takes_no_variable_from_a_node_and_waits_for_none_without_end(
    admin: Admin, tmp_path: Path
) -> None:
    """gpu1: a module's result brings variables of the roles as facts; gpu2: answers, and never ends."""
    admin.run("render", "--site", str(admin.site), "-o", str(tmp_path / "rendered"))
    (tmp_path / "site.yml").write_text(PLAYBOOK)
    (tmp_path / "ansible.cfg").write_text(
        f"[defaults]\nroles_path = {tmp_path}/rendered/roles\nhome = {tmp_path}/home\n[ssh_connection]\npipelining = true\n"
    )
    facts = {"node_bundle": "/tmp/of-the-nodes-choice", "reboot_slurm_host": "gpu2", "reboot_node_name": "gpu3"}
    remarks = json.dumps({"remarks": [{"level": "wrong", "fix": ESCAPES[:-1], "what": ESCAPES[:-1]}]})
    said = json.dumps({"changed": False, "rc": 0, "stdout": remarks, "ansible_facts": facts})
    module = f"#!/bin/sh\ncat > /dev/null\ncat <<'END'\n{said}\nEND\n"
    env = {k: v for k, v in os.environ.items() if not k.startswith("ANSIBLE")} | {"LC_ALL": "C.UTF-8", "ANSIBLE_NOCOLOR": "1"}
    words = [
        str(Path(sys.executable).parent / "ansible-playbook"),
        "-i",
        "rendered/inventory.yml",
        "site.yml",
        "-e",
        "node_seconds=4",
        "-e",
        "ansible_python_interpreter=/usr/bin/python3",
    ]
    told = {}
    with (
        program(node(admin, "gpu1"), "/usr/bin/python3", module),
        answering(node(admin, "gpu2"), b"#!/bin/sh\nexec sleep 90\n"),
    ):
        for role in ("node", "reboot"):
            command = [*admin.rack.enter, *words, "-e", f"following={role}", *(["-l", "gpu1"] if role == "reboot" else [])]
            done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False)
            told[role] = done.stdout + done.stderr
    assert "node_bundle is a fact of this node: only the admin host may set it" in told["node"]
    assert "a variable of the role reboot is a fact of this node" in told["reboot"]
    assert re.search(r"gpu2\s+: ok=\d+ .*failed=1 ", told["node"]) and "Timed out after 4 second" in told["node"]
    assert re.search(r"gpu3\s+: ok=\d+ .*failed=0 ", told["node"])
    assert strange(told["node"]) == [] and "of-the-nodes-choice" not in told["node"]


def test_no_agent_of_the_admins_is_handed_to_a_node(admin: Admin, tmp_path: Path) -> None:
    """Where the admin's own configuration forwards one to everybody: its owner's keys would open every other node."""
    config = tmp_path / "config"
    config.write_text("Host *\n  ForwardAgent yes\n  ForwardX11 yes\n" + Path(admin.rack.ssh_config).read_text())
    socket, seen = tmp_path / "agent", "/root/hostile/seen"
    admin.site.write_text(admin.site.read_text().replace(f"-F {admin.rack.ssh_config}", f"-F {config}"))
    with subprocess.Popen(["ssh-agent", "-D", "-a", str(socket)], stdout=subprocess.DEVNULL) as agent:
        try:
            reply = f"#!/bin/sh\nenv > {seen}\nls /tmp/ssh-* >> {seen} 2>&1\n".encode()
            with answering(node(admin, "gpu1"), reply):
                env = {**os.environ, "PYTHONPATH": str(PROJECT / "agent"), "SSH_AUTH_SOCK": str(socket), "DISPLAY": ":9"}
                command = admin.command("provision", "--site", str(admin.site), "-l", "gpu1")
                subprocess.run(command, env=env, capture_output=True, timeout=120, check=False)
                found = node(admin, "gpu1").run(f"cat {seen}").stdout
        finally:
            agent.terminate()
            admin.write_site()
    assert "PATH=" in found and "SSH_AUTH_SOCK" not in found and "DISPLAY" not in found
