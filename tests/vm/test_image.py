"""What stands in the way of a guest is one line with the next step; and nothing is left of a guest or a build."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.lab import clean, linux
from tests.lab.ledger import RUN
from tests.lab.roots import LabError
from tests.vm import accelerator, emulator
from tests.vm import image as images
from tests.vm.guest import Guest
from tests.vm.qemu import arguments

PROJECT = Path(__file__).resolve().parents[2]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for images."""
    monkeypatch.setenv("FAIRLEAD_LAB_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_another_release_is_refused_with_those_that_there_are_and_nothing_is_made(cache: Path) -> None:
    command = [sys.executable, "-m", "tests.vm.image", "--known", "bookworm"]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (69, "")
    assert done.stderr == "vm: no image of the release 'bookworm'; run: make vm SUITE=trixie|forky\n"
    assert not cache.exists()


def test_make_vm_with_a_broken_qemu_is_one_line_and_nothing_is_made(cache: Path) -> None:
    """These are the two commands that `make vm` runs before its tests."""
    for words in (["--known", "trixie"], ["trixie"]):
        command, environment = [sys.executable, "-m", "tests.vm.image", *words], {**os.environ, "FAIRLEAD_VM_QEMU": "/bin/false"}
        done = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, check=False)
        said = "vm: FAIRLEAD_VM_QEMU=/bin/false: it does not start: exit status 1; name another program, or unset the variable\n"
        assert (done.returncode, done.stdout, done.stderr) == (69, "", said)
        assert not cache.exists()


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """A folder as a build leaves it, with a small disk."""
    folder = tmp_path / "trixie-1"
    folder.mkdir()
    (folder / "fakegpu.ko").write_bytes(b"module")
    (folder / "disk.img").write_bytes(bytes(4096))
    disk = (folder / "disk.img").stat()
    made = {"suite": "trixie", "kernel": "6.12", "python": "3.13", "disk_bytes": 4096, "disk_mtime_ns": disk.st_mtime_ns}
    (folder / "made.json").write_text(json.dumps(made))
    return folder


def test_an_image_as_its_build_left_it_is_used(finished: Path) -> None:
    assert images.damage(finished, "trixie") == ""


def test_a_disk_that_was_cut_or_written_to_is_noticed(finished: Path) -> None:
    os.truncate(finished / "disk.img", 1024)
    assert images.damage(finished, "trixie") == "disk.img was changed since it was built"


def test_an_image_of_another_release_is_noticed(finished: Path) -> None:
    assert images.damage(finished, "forky") == "this is an image of trixie"


@pytest.mark.parametrize("lost", ["disk.img", "made.json", "fakegpu.ko"])
def test_an_image_that_lacks_a_file_is_noticed(finished: Path, lost: str) -> None:
    (finished / lost).unlink()
    assert lost in images.damage(finished, "trixie")


def test_an_image_has_another_name_when_what_it_is_made_of_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    before = images.image_path("trixie")
    assert before != images.image_path("forky")
    monkeypatch.setattr(images, "PACKAGES", (*images.PACKAGES, "htop"))
    assert images.image_path("trixie") != before


def test_without_kvm_the_guest_is_emulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "accelerator").write_text("kvm\n")
    monkeypatch.setattr(accelerator, "KVM", tmp_path / "no-kvm")
    assert accelerator.chosen(tmp_path) == "tcg"
    accelerator.choose(tmp_path)
    assert (tmp_path / "accelerator").read_text() == "tcg\n"


def test_a_kvm_without_vt_x_or_amd_v_is_not_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerator, "KVM", tmp_path)
    monkeypatch.setattr(accelerator, "CPUINFO", tmp_path / "cpuinfo")
    (tmp_path / "cpuinfo").write_text("flags\t\t: fpu sse2 hypervisor\nvmx flags\t: vnmi\n")
    said = accelerator.obstacle(tmp_path, program="no-such-qemu")
    assert "neither VT-x nor AMD-V" in said and "\n" not in said


@pytest.mark.parametrize("flag", ["vmx", "svm"])
@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'KVM internal error. Suberror: 1' >&2; exec sleep 60", "QEMU said: KVM internal error. Suberror: 1"),
        ("exit 1", "its console said: nothing"),
    ],
)
def test_a_kvm_that_does_not_boot_the_kernel_is_told_in_one_line(
    script: str, said: str, flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accelerator, "KVM", tmp_path)
    monkeypatch.setattr(accelerator, "CPUINFO", tmp_path / "cpuinfo")
    (tmp_path / "cpuinfo").write_text(f"flags\t\t: fpu {flag} sse2\n")
    told = accelerator.obstacle(tmp_path, program=executable(tmp_path / "qemu", script))
    assert told.endswith(said) and "\n" not in told


def test_an_unknown_accelerator_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRLEAD_VM_ACCEL", "xen")
    with pytest.raises(LabError, match=r"^FAIRLEAD_VM_ACCEL=xen: write kvm or tcg$"):
        accelerator.chosen(tmp_path)


def test_the_guest_never_writes_to_its_image(tmp_path: Path) -> None:
    words = " ".join(arguments(tmp_path / "disk.img", 1, tmp_path / "console", "tcg"))
    assert "snapshot=on" in words and "restrict=on" in words, "nor reaches a network"


def test_a_qemu_that_is_named_and_not_there_is_refused_and_nothing_is_unpacked(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIRLEAD_VM_QEMU", "no-such-qemu")
    with pytest.raises(LabError, match=r"^FAIRLEAD_VM_QEMU=no-such-qemu: there is no such program; name another, or unset"):
        emulator.qemu()
    assert not cache.exists()


def executable(path: Path, script: str) -> str:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_a_qemu_that_is_named_is_used(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = executable(tmp_path / "qemu", "echo QEMU emulator version 11.1.0")
    monkeypatch.setenv("FAIRLEAD_VM_QEMU", program)
    assert emulator.qemu() == program
    assert not cache.exists()


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (
            "echo 'libspice.so.1: cannot open shared object file' >&2; exit 127",
            "it does not start: libspice.so.1: cannot open shared object file",
        ),
        ("kill -SEGV $$", "it does not start: signal 11"),
        ("echo something else", "it is not QEMU by the version that it prints"),
    ],
)
def test_a_named_qemu_that_does_not_start_is_one_line_with_the_next_step(
    script: str, said: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = executable(tmp_path / "qemu", script)
    monkeypatch.setenv("FAIRLEAD_VM_QEMU", program)
    with pytest.raises(LabError) as told:
        emulator.qemu()
    assert str(told.value) == (f"FAIRLEAD_VM_QEMU={program}: {said}; name another program, or unset the variable")
    assert not cache.exists()


#: Stands in for mmdebstrap(1), whose argument that ends in /root is the folder to fill.
UNPACKER = """
for word; do case $word in */root) root=$word ;; esac; done
mkdir -p $root/lib64 $root/usr/bin $root/usr/lib/x86_64-linux-gnu
cp -L /lib64/ld-linux-x86-64.so.2 $root/lib64/
cp -L /lib/x86_64-linux-gnu/libc.so.6 $root/usr/lib/x86_64-linux-gnu/
cp -L {program} $root/usr/bin/qemu-system-x86_64
echo unpacked >>{log}
"""


@pytest.fixture
def unpacked(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The log of the unpackings. What is unpacked prints its arguments, and so the word QEMU."""
    tools = tmp_path / "QEMU"
    tools.mkdir()
    executable(tools / "mmdebstrap", UNPACKER.format(program="/bin/echo", log=tools / "log"))
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setenv("FAIRLEAD_LAB_DIR", str(tools / "cache"))
    return tools / "log"


@pytest.mark.root
@pytest.mark.parametrize(
    "harm", ["rm $root/usr/lib/x86_64-linux-gnu/libc.so.6", "echo >>$root/usr/bin/qemu-system-x86_64", "rm $root/../unpacked"]
)
def test_a_damaged_qemu_is_unpacked_again_and_an_intact_one_is_not(unpacked: Path, harm: str) -> None:
    program = emulator.qemu()
    assert emulator.qemu() == program and unpacked.read_text() == "unpacked\n"
    subprocess.run(["/bin/sh", "-c", harm], env={"root": f"{Path(program).parent}/root"}, check=True)
    assert emulator.qemu() == program and unpacked.read_text() == "unpacked\n" * 2
    assert emulator.qemu() == program and unpacked.read_text() == "unpacked\n" * 2


@pytest.mark.root
def test_an_unpacked_qemu_that_does_not_start_is_one_line_with_the_next_step(unpacked: Path) -> None:
    executable(unpacked.parent / "mmdebstrap", UNPACKER.format(program="/bin/false", log=unpacked))
    with pytest.raises(
        LabError, match=r"^\S+/qemu: it does not start: exit status 1; name another QEMU: FAIRLEAD_VM_QEMU=PROGRAM$"
    ):
        emulator.qemu()


@pytest.mark.root
def test_without_mmdebstrap_one_line_says_what_to_install(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(LabError, match=r"^mmdebstrap is not installed; run: apt-get install mmdebstrap$"):
        emulator.qemu()
    assert not list(cache.rglob("qemu*"))


@pytest.mark.root
def test_a_qemu_that_does_not_start_is_told_in_its_own_words_and_leaves_nothing(tmp_path: Path) -> None:
    broken = executable(tmp_path / "qemu", "echo 'symbol lookup error: undefined symbol: spice' >&2; exit 127")
    guest = Guest("trixie", tmp_path / "disk.img", "kvm", program=broken)
    with pytest.raises(LabError) as told:
        guest.up()
    assert "symbol lookup error: undefined symbol: spice; try FAIRLEAD_VM_ACCEL=tcg, or another QEMU" in str(told.value)
    assert "\n" not in str(told.value) and not guest.ledger.folder.exists()


STARTER = """
import sys
from tests.vm.guest import Guest
from tests.vm.image import image
made = image(sys.argv[1])
guest = Guest(made.suite, made.disk, made.accelerator)
guest.wait_for_ssh = lambda: (print(guest.qemu.pid, guest.ledger.name, flush=True), sys.stdin.read())
with guest:
    pass
"""


@pytest.mark.slow
@pytest.mark.vm
@pytest.mark.root
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_when_the_test_process_is_ended_its_guest_ends_and_nothing_is_left(number: signal.Signals, suite: str) -> None:
    disk = images.image(suite).disk
    before = disk.stat()
    command = [sys.executable, "-c", STARTER, suite]
    environment = {**os.environ, "PYTHONPATH": f"{PROJECT}/agent:{PROJECT}"}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment) as starter:
        assert starter.stdout is not None
        pid, name = starter.stdout.readline().split()
        time.sleep(2)  # the guest's firmware runs
        assert linux.start_time(int(pid)) is not None
        overlay = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
        assert any(path.endswith("(deleted)") for path in overlay), "what the guest writes has no name"
        starter.send_signal(number)
        starter.wait(30)
    end = time.monotonic() + 10
    while linux.start_time(int(pid)) is not None and time.monotonic() < end:
        time.sleep(0.05)
    assert linux.start_time(int(pid)) is None, "QEMU has ended"
    if number == signal.SIGKILL:
        assert clean.clean(name) == []
    assert not (RUN / name).exists() and disk.stat() == before
