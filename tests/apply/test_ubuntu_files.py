"""Ubuntu 24.04 by files: what fairlead writes stands beside what a stock server or cloud image has there, and wins.

No Ubuntu root can be built here (docs/explanation/what-was-proved-where.md), so the stock files below are written by us, with the
names and values that Ubuntu's packages give them, and what counts in the end is said by programs that are not ours: the shell
that GRUB's files are for, and systemd. Sources: grub-mkconfig sources /etc/default/grub and then /etc/default/grub.d/*.cfg;
livecd-rootfs (50-cloudimg-settings.cfg); kdump-tools (kdump-tools.cfg); procps (10-*.conf, 99-sysctl.conf); sysctl.d(5);
journald.conf(5); systemd's syslog.conf for journald, which Debian's has not in this place.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from fairlead import config
from fairlead.cli import main
from fairlead.config.document import resolve_layers

STOCK = {
    "etc/os-release": 'ID=ubuntu\nVERSION_ID="24.04"\nVERSION_CODENAME=noble\n',
    "etc/default/grub": 'GRUB_DEFAULT=0\nGRUB_TIMEOUT=0\nGRUB_CMDLINE_LINUX_DEFAULT="quiet splash"\nGRUB_CMDLINE_LINUX=""\n',
    "etc/default/grub.d/50-cloudimg-settings.cfg": (
        'GRUB_RECORDFAIL_TIMEOUT=0\nGRUB_CMDLINE_LINUX_DEFAULT="console=tty1 console=ttyS0"\nGRUB_TERMINAL=console\n'
    ),
    "etc/default/grub.d/kdump-tools.cfg": 'GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT crashkernel=2G-4G:320M"\n',
    "etc/sysctl.conf": "#kernel.sysrq=438\n",
    "etc/sysctl.d/10-console-messages.conf": "kernel.printk = 4 4 1 7\n",
    "etc/sysctl.d/10-zeropage.conf": "vm.mmap_min_addr = 65536\n",
    "etc/sysctl.d/10-map-count.conf": "vm.max_map_count = 1048576\n",
    "etc/sysctl.d/99-cloudimg-ipv6.conf": "net.ipv6.conf.all.use_tempaddr = 0\n",
    "usr/lib/sysctl.d/50-pid-max.conf": "kernel.pid_max = 4194304\n",
    "usr/lib/systemd/journald.conf.d/syslog.conf": "[Journal]\nForwardToSyslog=yes\n",
    "usr/lib/systemd/system/slurmd.service": "[Service]\nType=notify\nExecStart=/usr/sbin/slurmd --systemd\n",
    "usr/lib/systemd/system/multi-user.target": "[Unit]\n",
    "etc/systemd/system/.keep": "",
}
WANTS: dict[str, dict[str, object]] = {
    "kernel_cmdline": {"words": ["iommu=pt", "pci=realloc=off"]},
    "numa_balancing": {},
    "sysctl": {"values": {"vm.max_map_count": 2097152, "kernel.pid_max": 4000000}},
    "memlock": {},
    "nofile": {"limit": 1048576},
    "journald": {},
    "kernel_modules": {"load": ["nvidia_peermem"]},
}


@pytest.fixture
def ubuntu(tmp_path: Path) -> Path:
    tree = tmp_path / "noble"
    for name, text in STOCK.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    (tree / "etc/sysctl.d/99-sysctl.conf").symlink_to("../sysctl.conf")
    return tree


def apply(tree: Path, wants: dict[str, dict[str, object]], *words: str) -> list[str]:
    document = tree.parent / "node.json"
    document.write_bytes(config.encode_document(resolve_layers("gpu1", [("test", {"settings": wants})])[0]))
    return ["apply", "--root", str(tree), "--document", str(document), "--json", *words]


def last(tree: Path, name: str, key: str) -> str:
    """The file that has the last word on a key, by systemd's own order of them."""
    command = ["systemd-analyze", "cat-config", f"--root={tree}", name]
    text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    file = found = ""
    for line in text.splitlines():
        file = line.removeprefix(f"# {tree}") if line.startswith(f"# {tree}/") else file
        found = file if line.partition("=")[0].strip() == key else found
    return found


def words_of_grub(tree: Path) -> str:
    """What grub-mkconfig makes of the files: a shell reads them in this order."""
    script = '. ./grub; for f in ./grub.d/*.cfg; do . "$f"; done; echo "$GRUB_CMDLINE_LINUX_DEFAULT"'
    place = tree / "etc/default"
    return subprocess.run(["sh", "-c", script], cwd=place, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd says which file has the last word")
def test_what_is_written_wins_over_ubuntus_own_files(ubuntu: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(apply(ubuntu, WANTS)) == 0
    items = {i["setting"]: i["state"] for i in json.loads(capsys.readouterr().out)["items"]}
    assert items == dict.fromkeys(WANTS, "changed")
    assert words_of_grub(ubuntu) == "console=tty1 console=ttyS0 iommu=pt pci=realloc=off crashkernel=2G-4G:320M"
    assert last(ubuntu, "sysctl.d", "vm.max_map_count") == "/etc/sysctl.d/90-fairlead-sysctl.conf"
    assert last(ubuntu, "sysctl.d", "kernel.pid_max") == "/etc/sysctl.d/90-fairlead-sysctl.conf"
    assert last(ubuntu, "sysctl.d", "kernel.numa_balancing") == "/etc/sysctl.d/90-fairlead-numa-balancing.conf"
    assert last(ubuntu, "systemd/journald.conf", "SystemMaxUse") == "/etc/systemd/journald.conf.d/90-fairlead.conf"
    assert last(ubuntu, "systemd/journald.conf", "ForwardToSyslog") == "/usr/lib/systemd/journald.conf.d/syslog.conf"
    assert last(ubuntu, "systemd/system/slurmd.service", "LimitNOFILE").endswith("/slurmd.service.d/50-fairlead-nofile.conf")
    assert {name: (ubuntu / name).read_text() for name in STOCK} == STOCK, "not one of Ubuntu's own files is touched"
    assert main(apply(ubuntu, WANTS)) == 0
    assert json.loads(capsys.readouterr().out)["changed"] == 0


def test_a_value_of_the_admins_that_is_read_later_is_named(ubuntu: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """/etc/sysctl.conf is read as 99-sysctl.conf: what an admin put there is his, and has the last word."""
    (ubuntu / "etc/sysctl.conf").write_text("vm.max_map_count = 65530\n")
    assert main(apply(ubuntu, {"sysctl": WANTS["sysctl"]})) == 78
    (item,) = json.loads(capsys.readouterr().out)["items"]
    assert item["state"] == "refused" and "99-sysctl.conf" in item["message"] and "65530" in item["message"], item
