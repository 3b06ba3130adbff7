"""The quickstart that only observes, typed as it is shown, on nodes with real Slurm. Nothing but fairlead's own files changes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contracts.documented_commands import ROOT, blocks
from tests.lab import roots
from tests.playbooks.admin import PROJECT, Admin, node

pytestmark = [pytest.mark.rack, pytest.mark.timeout(600)]
PAGE = ROOT / "docs/tutorial/observe-only.md"
#: What the settings of the profile would change: kernel values, files, and how slurmd is started. Counters are left out.
STATE = (
    "sysctl -a 2>/dev/null | grep -E '^(vm|kernel.numa|net.core|net.ipv4.tcp)' | grep -v -e tcp_fastopen_key -e tcp_mem | sort;"
    " cat /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor 2>/dev/null;"
    " ls /etc/sysctl.d /etc/modprobe.d /etc/modules-load.d /etc/systemd/system/slurmd.service.d /etc/nccl.conf 2>/dev/null;"
    " systemctl show -p MainPID -p LimitMEMLOCK slurmd; cat /etc/slurm/slurm.conf"
)


@pytest.fixture
def fresh(admin: Admin) -> Iterator[Admin]:
    """Nodes without fairlead. Afterwards as well, for the next files of this folder."""
    admin.write_site()
    admin.run("provision", "--site", str(admin.site), "--uninstall", "--undo")
    yield admin
    admin.run("provision", "--site", str(admin.site), "--uninstall", "--undo")


def shell(admin: Admin, tmp_path: Path) -> list[str]:
    """A shell on the admin host, where ``fairlead`` is this checkout, and knows the lab's ssh and Slurm as a site's ssh would."""
    ssh = f"-F {admin.rack.ssh_config} -o ControlMaster=no -o ControlPath=none"
    words = f"--ssh-args '{ssh}' --private-key '{roots.ssh_key()}' --bin-dir {admin.rack.bin} --slurm-conf /etc/slurm/slurm.conf"
    slurm = f"--bin-dir {admin.rack.bin} --slurm-conf /etc/slurm/slurm.conf"
    program = tmp_path / "bin/fairlead"
    program.parent.mkdir()
    program.write_text(f"""#!/bin/sh
export PYTHONPATH={PROJECT / "agent"}
case $1 in
init) set -- "$@" {words} ;;
fleet) set -- "$@" {slurm} ;;
why) set -- "$@" --bin-dir {admin.rack.bin} ;;
esac
exec {sys.executable} -m fairlead "$@"
""")
    program.chmod(0o755)
    return [*admin.rack.enter, "env", f"PATH={program.parent}:{os.environ['PATH']}", "SLURM_CONF=/etc/slurm/slurm.conf", "bash"]


def test_as_shown(fresh: Admin, tmp_path: Path) -> None:
    typed = shell(fresh, tmp_path)
    here = tmp_path / "empty"
    here.mkdir()

    def run(script: str) -> str:
        done = subprocess.run([*typed, "-ec", script], cwd=here, capture_output=True, text=True, timeout=280, check=False)
        assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    declare, observe, provision, look, remove = [
        "\n".join(lines) for _, lines, language in blocks(PAGE.read_text()) if language == "sh"
    ]
    host = node(fresh, "gpu1")
    before = host.run(STATE).stdout
    assert "profile hgx-h100" in run(declare)
    run(observe)
    check, one, all_nodes = provision.splitlines()
    assert "3 nodes: 3 would change" in run(check) and host.run("ls /opt/fairlead", check=False).stdout == ""
    assert "gpu1" in run(one)
    assert "1 the same, 2 changed" in run(all_nodes)
    after = host.run(STATE).stdout
    assert after == before, "no setting was changed"
    fleet, why = look.splitlines()
    assert "gpu[1-3]" in run(fleet) and "gpu1" in run(why)
    run(remove)
    assert host.run("ls -d /opt/fairlead /etc/fairlead", check=False).stdout == "", "as the page says: nothing stays"
