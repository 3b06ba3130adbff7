"""What names a machine, its site or its users appears in no report, however it is written; what fairlead needs stays readable."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fairlead.host.root import Root
from fairlead.selftest.report_redaction import ReportRedactor, own_names
from fairlead.selftest.selftest_report import REASON_MAX, REASONS_MAX

SECRETS = (
    "gpu07.hpc.uni-example.edu",
    "gpu07",
    "hpc.uni-example.edu",
    "alice",
    "Alice Liddell",
    "1650123000123",
    "uv",
    "localhost",
)
REDACTOR = ReportRedactor(SECRETS)

#: A text, and the words that must be gone from it.
PLANTED = {
    "the host": ("cannot reach gpu07: timed out", "gpu07"),
    "in capitals": ("cannot reach GPU07.HPC.Uni-Example.EDU", "uni-example"),
    "within a word": ("xgpu07-ib0: no carrier", "gpu07"),
    "a short name": ("user uv has it", "uv"),
    "a person": ("/proc/7/environ of Alice Liddell (alice)", "lice"),
    "a serial": ("GPU 1650123000123 is lost", "1650123000123"),
    "another serial": ("drive S3Z9NB0K123456 failed", "S3Z9NB0K123456"),
    "a UUID": ("GPU-8f6b2d1c-3a4e-4b5f-9c0d-112233445566 is lost", "112233445566"),
    "a machine id": ("/boot/loader/entries/0123456789abcdef0123456789abcdef-6.1.conf", "0123456789abcdef"),
    "a GUID": ("port 506b:4b03:00ab:1234 of 0x506b4b0300ab1234", "506b4b0300ab1234"),
    "a MAC address": ("ib0 has 0c:42:a1:00:11:22", "0c:42:a1"),
    "an IP address": ("no route to 10.11.12.13:6817", "10.11.12.13"),
    "an IPv6 address": ("no route to [2001:db8::7]:6817, nor fe80::1%eth0", "db8"),
    "a long IPv6 address": ("2001:0DB8:0000:0000:0000:0000:0000:0007 is silent", "0DB8"),
    "another host": ("cannot mount nfs01:/export/home", "nfs01"),
    "a cifs server": ("//files.uni-other.org/share is gone", "uni-other"),
    "a qualified name": ("lookup of login2.cluster.lan failed", "login2"),
    "an address of mail": ("sent to bob.smith@uni-other.org", "bob"),
    "a URL": ("https://intra.example.com/x?token=abc failed", "token"),
    "a home": ("stat: cannot read '/home/bob/data': Permission denied", "bob"),
    "a site's folder": ("/lustre/projects/secret-project: Input/output error", "secret"),
    "through init": ("stat: '/proc/1/root/lustre/secret' failed", "secret"),
    "a site's file": ("/etc/sysctl.d/99-secretsite.conf: bad value", "secretsite"),
    "a unit of a user": ("/sys/fs/cgroup/user.slice/user-1001.slice/x", "1001"),
    "a long number": ("badge 4400112233 and 44001122330044", "44001122330"),
}
#: What a reader of the report needs, and what looks like a secret and is none.
KEPT = (
    "/sys/bus/pci/devices/0000:1b:00.0/current_link_speed: no such file",
    "/proc/sys/kernel/numa_balancing: Permission denied",
    "the NVML worker ended by SIGSEGV in nvmlDeviceGetMemoryInfo_v2 of 0000:61:00.0",
    "/etc/systemd/system/slurmd.service.d/50-fairlead-memlock.conf: not a directory",
    "libnvidia-ml.so.1 is in none of the usual folders",
    "NVML LIBRARY_NOT_FOUND (12) from nvmlInit_v2",
    "driver 550.54.15, kernel 5.14.0-427.13.1.el9_4.x86_64, Slurm 24.05.1",
    "systemctl show chrony.service: Failed to connect to bus: Host is down",
    "/etc/nccl.conf: Is a directory",
    "the version :: is none, and localhost is no name",
)


@pytest.mark.parametrize("name", PLANTED)
def test_what_names_the_site_is_gone(name: str) -> None:
    text, secret = PLANTED[name]
    assert secret.lower() in text.lower(), "otherwise this test says nothing"
    assert secret.lower() not in REDACTOR.text(text).lower()


@pytest.mark.parametrize("text", KEPT)
def test_what_is_no_name_stays(text: str) -> None:
    assert REDACTOR.text(text) == text


def test_a_text_is_one_line_without_escape_sequences() -> None:
    said = REDACTOR.text("a\x1b[2Jb\nc\u202ed" + "x" * 10_000)
    assert said.isprintable() and len(said) <= REASON_MAX


def test_a_name_that_a_cut_would_halve_is_gone_too() -> None:
    for at in range(REASON_MAX - 30, REASON_MAX + 30):
        assert "gpu0" not in REDACTOR.text("x " * (at // 2) + "gpu07.hpc.uni-example.edu"), at


def test_reasons_of_a_row_are_few() -> None:
    row = REDACTOR.row({"name": "nvml", "reasons": [f"reason {word} of gpu07" for word in "abcdefghi"]})
    assert len(row["reasons"]) == REASONS_MAX and row["reasons"][-1] == "and 5 more"
    assert row["name"] == "nvml" and "gpu07" not in str(row)


def test_the_names_of_this_machine_are_known(tmp_path: Path) -> None:
    """From a tree, so that every file that names a machine is there."""
    files = {
        "etc/hostname": "gpu07\n",
        "etc/hosts": "127.0.0.1 localhost\n10.0.0.7 gpu07.cluster gpu07-ib # comment\n",
        "etc/resolv.conf": "search uni-example.edu\n",
        "etc/passwd": "root:x:0:0::/root:/bin/sh\nalice:x:1001:1001:Alice Liddell,,,:/home/alice:/bin/bash\nsshd:x:100:1::/:/x\n",
        "etc/machine-id": "0123456789abcdef0123456789abcdef\n",
        "home/bob/x": "",
        "sys/class/dmi/id/product_serial": "J1005XYZ\n",
        "sys/class/net/eth0/address": "0c:42:a1:00:11:22\n",
    }
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    names = [name for some in own_names(Root(os.fspath(tmp_path))) for name in some]
    assert {"gpu07", "gpu07.cluster", "gpu07-ib", "uni-example.edu", "alice", "Alice Liddell", "bob", "J1005XYZ"} <= {*names}
    assert {"0123456789abcdef0123456789abcdef", "0c:42:a1:00:11:22"} <= {*names}
    assert not {"root", "sshd", "comment"} & {*names}
    assert os.uname().nodename in names
