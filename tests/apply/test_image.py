"""`fairlead apply --root IMAGE`: files and links only; and a lab node that boots the image has nothing left to change."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fairlead import config
from fairlead.cli import main
from fairlead.config.document import resolve_layers
from tests.lab import linux
from tests.lab.host import Host
from tests.lab.ledger import own_name
from tests.lab.rack import Rack
from tests.lab.roots import root_path
from tests.playbooks.admin import PROJECT
from tests.playbooks.test_convergence import Admin, wait

WANTS: dict[str, dict[str, object]] = {
    "cpu_governor": {},
    "memlock": {},
    "nofile": {},
    "nccl": {},
    "numa_balancing": {},
    "sysctl": {"values": {"vm.swappiness": 10, "net.ipv4.tcp_congestion_control": "bbr"}},
    "kernel_modules": {"load": ["nvidia_peermem"]},
    "kernel_cmdline": {"words": ["iommu=pt"]},
    "journald": {},
    "tuned": {"profile": "hpc-compute"},
    "persistence": {},
    "transparent_hugepage": {},
}


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """What an image builder has in its hands: a system's files, nothing of a kernel."""
    tree = tmp_path / "image"
    for folder in ("proc", "sys", "usr/lib/systemd/system", "etc/default", "etc/systemd/system"):
        (tree / folder).mkdir(parents=True)
    (tree / "etc/default/grub").write_text("")
    (tree / "usr/lib/systemd/system/tuned.service").write_text(
        "[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n"
    )
    return tree


@pytest.mark.skipif(not shutil.which("systemctl"), reason="units are enabled by systemctl --root")
def test_an_image_gets_files_and_links_and_the_rest_is_left_for_the_boot(
    image: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "node.json"
    path.write_bytes(config.encode_document(resolve_layers("gpu1", [("test", {"settings": WANTS})])[0]))
    asked = ["apply", "--root", str(image), "--document", str(path), "--json"]
    assert main([*asked, "--dry-run"]) == 0
    capsys.readouterr()
    assert not list((image / "etc/systemd/system").iterdir()) and not (image / "etc/fairlead").exists()
    assert main(asked) == 0
    told = capsys.readouterr()
    items = {i["setting"]: i for i in json.loads(told.out)["items"]}
    left = {"cpu_governor", "persistence", "transparent_hugepage", "nccl"}
    assert {name for name, i in items.items() if i["state"] == "left"} == left
    assert {i["state"] for name, i in items.items() if name not in left} == {"changed"}
    assert {i["effective"] for i in items.values()} == {"unknown"}, "no kernel, no effect: never said to have one"
    assert "no /opt/fairlead/current in this image" in told.err
    assert (image / "etc/fairlead/left-for-boot").read_text() == "nccl\n"
    wants = image / "etc/systemd/system/multi-user.target.wants"
    assert {p.name for p in wants.iterdir()} == {"fairlead-agent.service", "fairlead-apply.service", "tuned.service"}
    assert all(p.is_symlink() and str(image) not in os.readlink(p) for p in wants.iterdir())
    assert (image / "etc/sysctl.d/90-fairlead-sysctl.conf").read_text().endswith("vm.swappiness = 10\n")
    assert (image / "etc/modules-load.d/90-fairlead.conf").exists() and (image / "etc/slurm/prolog.d/50-fairlead").exists()
    assert main(asked) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["changed"] == 0 and {i["state"] for i in again["items"]} == {"same", "left"}


@pytest.mark.skipif(not shutil.which("systemctl"), reason="units are enabled by systemctl --root")
def test_an_image_with_the_package_keeps_the_hooks_and_units_of_the_package(
    image: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = image / "usr/lib/fairlead"
    (home / "bin").mkdir(parents=True)
    (home / "release").write_text("0.0.0-test\n")
    (home / "bin/fairlead").touch()
    (image / "opt/fairlead").mkdir(parents=True)
    (image / "opt/fairlead/current").symlink_to("../../usr/lib/fairlead")
    for source in (PROJECT / "templates/etc/systemd/system").iterdir():
        shutil.copy(source, image / "usr/lib/systemd/system")
    path = tmp_path / "node.json"
    path.write_bytes(config.encode_document(resolve_layers("gpu1", [("test", {})])[0]))
    assert main(["apply", "--root", str(image), "--document", str(path), "--json"]) == 0
    assert capsys.readouterr().err == ""
    assert not (image / "etc/slurm").exists() and not list((image / "etc/systemd/system").glob("*.service"))
    wants = image / "etc/systemd/system/multi-user.target.wants"
    assert {p.name: os.readlink(p) for p in wants.iterdir()} == {
        name: f"/usr/lib/systemd/system/{name}" for name in ("fairlead-agent.service", "fairlead-apply.service")
    }


@contextmanager
def disk_of(host: Host) -> Iterator[Path]:
    """The whole root of a node that is off, as an image builder would have it."""
    merged = host.folder / "image"
    merged.mkdir()
    data = f"lowerdir={root_path('bookworm')},upperdir={host.folder}/disk/up,workdir={host.folder}/disk/wk"
    linux.mount("overlay", merged, "overlay", data=data)
    try:
        yield merged
    finally:
        subprocess.run(["umount", str(merged)], check=True)


@pytest.mark.rack
@pytest.mark.timeout(300)
def test_a_node_that_boots_the_image_has_nothing_left_to_change(tmp_path: Path) -> None:
    with Rack(nodes_wanted=2, name=own_name("image")) as rack:
        builder, host = rack.nodes
        admin = Admin(rack, tmp_path)
        admin.write_site(more='[classes.h100.settings.sysctl.values]\n"vm.swappiness" = 10\n')
        admin.provision("-l", "gpu1")  # the release that the image gets: a copy of an installed one
        document = tmp_path / "node.json"
        shown = admin.run("config", "show", "--site", str(admin.site), "--node", "gpu2", "--json").stdout
        document.write_text(shown)
        before = host.boot_id()
        host.power("off")
        wait(lambda: not (host.folder / "init").exists())
        with disk_of(host) as image:
            shutil.copytree(builder.folder / "disk/up/opt/fairlead", image / "opt/fairlead", symlinks=True)
            (image / "usr/local/bin/fairlead").symlink_to("/opt/fairlead/current/bin/fairlead")
            report = json.loads(admin.run("apply", "--root", str(image), "--document", str(document), "--json").stdout)
        assert {i["setting"] for i in report["items"] if i["state"] == "changed"} >= {"numa_balancing", "memlock", "sysctl"}
        host.power("on")
        host.wait_boot(before)
        host.run("systemctl is-system-running --wait", check=False)
        said = host.run("journalctl --sync; journalctl -b -o cat -u fairlead-apply").stdout
        assert host.run("systemctl show -p Result --value fairlead-apply").stdout == "success\n", said
        changed = {line.split()[1] for line in said.splitlines() if line.startswith("changed")}
        assert changed == {"cpu_governor", "nccl", "pcie_acs", "persistence"}, "what a reboot loses, and what the hardware says"
        assert host.run("ls /etc/fairlead").stdout == "hooks\nnode.json\n", "nothing is left for a boot any more"
        assert host.run("sysctl -n vm.swappiness kernel.numa_balancing").stdout == "10\n0\n"
        assert host.run("systemctl is-active fairlead-agent").stdout == "active\n"
        result = admin.provision("-l", "gpu2")["gpu2"]
        assert (result["state"], result["changes"]) == ("same", [])
