"""The change executor: whole files or none, read-back, one line per failure, a way back."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from fairlead.errors import HostError
from fairlead.host import change
from fairlead.host.change import gpus
from fairlead.host.root import Root
from fairlead.model.change import File, KernelValue, Layer, Nvml, PciBits, Unit


def a_file(path: str = "/etc/x.conf", content: str | None = "new\n", mode: int = 0o640) -> File:
    return File(setting="s", why="w", path=path, content=content, mode=mode, layer=Layer.PERSISTED)


def test_a_file_gets_content_and_mode_and_leaves_no_other_file(tmp_path: Path) -> None:
    (outcome,) = change.execute([a_file("/etc/deep/er/x.conf")], Root(str(tmp_path)))
    assert outcome.done
    path = tmp_path / "etc/deep/er/x.conf"
    assert path.read_text() == "new\n" and stat.S_IMODE(path.stat().st_mode) == 0o640
    assert os.listdir(path.parent) == ["x.conf"]


def test_removing_a_file_that_is_not_there_is_no_failure(tmp_path: Path) -> None:
    assert change.execute([a_file(content=None)], Root(str(tmp_path)))[0].done


def test_a_left_over_of_a_killed_run_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/.x.conf.fairlead-new").symlink_to("/nowhere")
    assert change.execute([a_file()], Root(str(tmp_path)))[0].done
    assert os.listdir(tmp_path / "etc") == ["x.conf"]


def test_a_folder_in_the_way_is_one_line_and_the_other_changes_go_on(tmp_path: Path) -> None:
    (tmp_path / "etc/x.conf/inside").mkdir(parents=True)
    first, second = change.execute([a_file(), a_file("/etc/y.conf")], Root(str(tmp_path)))
    assert not first.done and "\n" not in first.message and first.message.startswith("/etc/x.conf: ")
    assert second.done


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/x.conf").write_text("old\n")
    program = f"""
        import resource, signal
        from fairlead.host import change
        from fairlead.host.root import Root
        from fairlead.model.change import File
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        o, = change.execute([File(setting="s", why="w", path="/etc/x.conf", content="n" * 10000)], Root({str(tmp_path)!r}))
        print(o.done, o.message)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], env=ENV, capture_output=True, text=True, check=True)
    assert done.stdout == "False /etc/x.conf: File too large\n"
    assert (tmp_path / "etc/x.conf").read_text() == "old\n"
    assert os.listdir(tmp_path / "etc") == ["x.conf"]


ENV = {"PYTHONPATH": str(Path(change.__file__).parents[3]), "PATH": "/usr/bin:/bin"}


@pytest.mark.parametrize("call", ["write", "fsync", "rename"])
def test_sigkill_at_any_call_leaves_old_or_new_and_the_next_run_completes(call: str, tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/x.conf").write_text("old\n")
    program = f"""
        import os, signal
        from fairlead.host import change
        from fairlead.host.root import Root
        from fairlead.model.change import File
        real, calls = os.{call}, []
        def kill(*a):
            calls.append(a)
            if len(calls) == 2:  # the first one writes the undo record
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*a)
        os.{call} = kill
        change.execute([File(setting="s", why="w", path="/etc/x.conf", content="new\\n")], Root({str(tmp_path)!r}))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], env=ENV, check=False, timeout=30)
    assert done.returncode == -signal.SIGKILL
    assert (tmp_path / "etc/x.conf").read_text() in ("old\n", "new\n")
    root = Root(str(tmp_path))
    assert change.execute([a_file()], root)[0].done
    assert (tmp_path / "etc/x.conf").read_text() == "new\n" and os.listdir(tmp_path / "etc") == ["x.conf"]
    assert change.undo_all(root)[0].done
    assert (tmp_path / "etc/x.conf").read_text() == "old\n"


def test_a_kernel_value_that_does_not_stay_is_a_failure(tmp_path: Path) -> None:
    value = KernelValue(setting="s", why="w", path="/dev/null", value="1", before="0")  # takes anything, keeps nothing
    (outcome,) = change.execute([value], Root("/"), undo=str(tmp_path / "undo"))
    assert not outcome.done and outcome.message == "/dev/null: reads back '' after '1' was written"


def test_an_absent_kernel_file_is_never_created(tmp_path: Path) -> None:
    (outcome,) = change.execute([KernelValue(setting="s", why="w", path="/proc/sys/none", value="1")], Root(str(tmp_path)))
    assert not outcome.done and outcome.message == "/proc/sys/none: No such file or directory"


CHOICES = [("always [madvise] never\n", "madvise"), ("0\n", "0"), ("1 2  3", "1 2 3"), ("", "")]


@pytest.mark.parametrize(("text", "value"), CHOICES)
def test_current_choice(text: str, value: str) -> None:
    assert change.current_choice(text) == value


def test_pci_bits_keep_their_neighbours_and_short_config_space_is_said(tmp_path: Path) -> None:
    device = tmp_path / "sys/bus/pci/devices/0000:03:00.0"
    device.mkdir(parents=True)
    (device / "config").write_bytes(bytes(0x104) + b"\x5f\x00\x1d\x00" + bytes(10))
    bits = PciBits(setting="s", why="w", address="0000:03:00.0", offset=0x106, mask=0x0C, value=0, before=0x1D, what="ACSCtl")
    root = Root(str(tmp_path))
    (outcome,) = change.execute([bits], root)
    assert outcome.done and outcome.message == "0000:03:00.0 ACSCtl: 0x001d -> 0x0011"
    assert (device / "config").read_bytes()[0x104:0x108] == b"\x5f\x00\x11\x00"
    (device / "config").write_bytes(bytes(64))
    (outcome,) = change.execute([bits], root)
    assert not outcome.done and "config space ends before 0x106" in outcome.message


def test_nvml_goes_through_the_callable_and_its_absence_is_a_failure(tmp_path: Path) -> None:
    asked: list[tuple[str, str, int]] = []
    one = Nvml(setting="s", why="w", pci="0000:1b:00.0", what="persistence", value=1, before=0)
    assert change.execute([one], Root(str(tmp_path)), nvml_set=lambda *a: asked.append(a))[0].done
    assert asked == [("0000:1b:00.0", "persistence", 1)]
    assert not change.execute([one], Root(str(tmp_path)))[0].done


def test_units_are_left_alone_in_a_tree(tmp_path: Path) -> None:
    (outcome,) = change.execute([Unit(setting="s", why="w", name="x.service", restart=True)], Root(str(tmp_path)))
    assert outcome.done and outcome.skipped


def test_the_first_state_is_remembered_not_the_last(tmp_path: Path) -> None:
    root = Root(str(tmp_path))
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/x.conf").write_bytes(b"caf\xe9\n")
    (tmp_path / "etc/x.conf").chmod(0o604)
    for content in ("1\n", "2\n"):
        change.execute([a_file(content=content)], root)
    assert all(o.done for o in change.undo_all(root))
    assert (tmp_path / "etc/x.conf").read_bytes() == b"caf\xe9\n"
    assert stat.S_IMODE((tmp_path / "etc/x.conf").stat().st_mode) == 0o604


def test_diff_shows_both_sides() -> None:
    text = change.diff(File(setting="s", why="w", path="/etc/x", content="a\nb\n", before="a\n"))
    assert "+b" in text and "/etc/x" in text
    bits = PciBits(setting="s", why="w", address="0000:03:00.0", offset=6, mask=0x0C, value=0, before=0x1D)
    assert "- 0x001d\n+ 0x0011\n" in change.diff(bits)


def test_for_mig_the_agent_lets_go_of_nvml_and_a_gpu_in_use_is_tried_again(tmp_path: Path) -> None:
    asked = tmp_path / "nvml-release"
    calls: list[tuple[str, bool]] = []

    def nvml_set(pci: str, what: str, value: int | str) -> None:
        calls.append((what, asked.exists()))
        if len(calls) < 3:
            raise HostError(f"{pci}: cannot set {what}: NVML IN_USE (19)")

    root = Root("/")
    with gpus.setting(nvml_set, root, str(tmp_path)) as make:
        assert make
        with pytest.raises(HostError):
            make("0000:1b:00.0", "power_limit_milliwatts", 1)
        make("0000:1b:00.0", "mig", "off")
        make("0000:43:00.0", "mig", "off")
    assert calls == [("power_limit_milliwatts", False), *[("mig", True)] * 3]
    assert not asked.exists()


def test_an_interrupt_that_its_driver_manages_is_said_to_be_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = "/proc/irq/64/smp_affinity_list"
    (tmp_path / path[1:]).parent.mkdir(parents=True)
    (tmp_path / path[1:]).write_text("0-7\n")

    def kernel(fd: int, data: bytes) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    real = os.write
    asked = [KernelValue(setting="irq_affinity", why="w", path=path, value="0", before="0-7")]
    monkeypatch.setattr(os, "write", lambda fd, data: kernel(fd, data) if data == b"0\n" else real(fd, data))
    (outcome,) = change.execute(asked, Root(str(tmp_path)))
    assert not outcome.done and outcome.message.endswith("name the device in settings.irq_affinity.skip")


@pytest.mark.parametrize(("free", "done"), [(1024, True), (40, False)], ids=["enough memory", "too little memory"])
def test_huge_pages_that_the_kernel_reserves_in_parts_are_all_reserved(
    free: int, done: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel ends early when a signal comes, and says that it has succeeded (mm/hugetlb.c, set_max_huge_pages). `fairlead
    apply` gets a signal each second, with which it says that it still works."""
    path = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
    file = tmp_path / path[1:]
    file.parent.mkdir(parents=True)
    file.write_text("5\n")
    real, reserved = os.write, [5]

    def kernel(fd: int, data: bytes) -> int:
        reserved.append(min(int(data), reserved[-1] + 30, free))
        return real(fd, b"%d\n" % reserved[-1])

    asked = [KernelValue(setting="hugepages", why="w", path=path, value="128", before="5")]
    monkeypatch.setattr(os, "write", lambda fd, data: kernel(fd, data) if data == b"128\n" else real(fd, data))
    (outcome,) = change.execute(asked, Root(str(tmp_path)))
    assert outcome.done is done, outcome.message
    assert reserved == ([5, 35, 65, 95, 125, 128] if done else [5, 35, 40, 40]), "it ends when nothing more is reserved"
    assert done or "reads back '40'" in outcome.message
