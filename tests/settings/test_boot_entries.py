"""The kernel command line on the EL family: boot entries, $kernelopts of EL8, grubby's words, NVIDIA's nvidia-kmod-common."""

from __future__ import annotations

import pytest

from fairlead.errors import ConfigError
from fairlead.model.change import BootLoader, File
from fairlead.model.facts import Missing, unreadable
from fairlead.settings import kernel_cmdline
from fairlead.settings.kernel_cmdline import GRUB, GRUB2_CFG, GRUB_CFG, GRUBENV, KMOD_COMMON, KernelCmdlineWant, Observed
from tests.settings.test_kernel_settings import texts

EL = 'GRUB_CMDLINE_LINUX="crashkernel=1G rhgb quiet"\nGRUB_ENABLE_BLSCFG=true\n'
ENV = "# GRUB Environment Block\nsaved_entry=f5c-5.14\nkernelopts=root=/dev/sda1 ro quiet {}\nboot_success=0\n###"
#: What NVIDIA's package leaves in the entries.
NVIDIA = "rd.driver.blacklist=nouveau nouveau.modeset=0 nvidia-drm.modeset=1"


def boot(*options: str, **files: str | Missing | None) -> Observed:
    """A node with one boot entry for each of ``options``."""
    paths: dict[str, str | Missing | None] = {kernel_cmdline.CMDLINE: "ro quiet\n", kernel_cmdline.FILE: None, GRUB: EL}
    paths |= {GRUB_CFG: None, GRUB2_CFG: "blscfg\n", GRUBENV: ENV.format(""), KMOD_COMMON: None}
    for number, line in enumerate(options):
        entry = f"title Rocky\nversion 5.14\nlinux /vmlinuz-5.{number}\noptions {line}\ngrub_users $grub_users\n"
        paths[f"/boot/loader/entries/f5c-5.{number}.conf"] = entry
    observed = kernel_cmdline.observe(texts({**paths, **files}))
    assert isinstance(observed, Observed), observed
    return observed


def words(want: tuple[str, ...], observed: Observed) -> tuple[str, ...]:
    """The words that grubby gets, or () where the entries are as wanted."""
    changes = [c for c in kernel_cmdline.plan(KernelCmdlineWant(words=want), observed) if isinstance(c, BootLoader | File)]
    if not changes:
        return ()
    (change,) = changes
    assert isinstance(change, BootLoader) and change.tool == "grubby"
    return change.words


def by_grubby(line: str, args: tuple[str, ...]) -> str:
    """What grubby makes of one line. This is a stand-in, written after the description of ``update_args``: a word without the
    part behind its last ``=`` is a key, and every word with that key goes."""
    keys = [word.rpartition("=")[0] or word for word in args]
    left = [w for w in line.split() if not any(w == key or w.startswith(f"{key}=") for key in keys)]
    return " ".join((*left, *args))


def test_el8_has_the_words_in_grubenv() -> None:
    """Its entries only name the variable; without grubenv the setting would ask grubby for the words at every visit."""
    line = "$kernelopts $tuned_params"
    assert words(("iommu=pt",), boot(line, line)) == ("iommu=pt",)
    assert words(("iommu=pt",), boot(line, line, **{GRUBENV: ENV.format("iommu=pt")})) == ()
    assert words(("iommu=pt",), boot(line, "root=/dev/sda1 ro", **{GRUBENV: ENV.format("iommu=pt")})) == ("iommu=pt",)


def test_el9_and_el10_have_the_words_in_each_entry() -> None:
    assert words(("iommu=pt",), boot("ro iommu=pt", "ro")) == ("iommu=pt",)
    assert words(("iommu=pt",), boot("ro iommu=pt", "ro iommu=pt $tuned_params")) == ()


@pytest.mark.parametrize(
    ("line", "wanted", "named"),
    [
        ("ro console=tty0 console=ttyS0,115200", ("console=ttyS1",), ("console=tty0", "console=ttyS0,115200", "console=ttyS1")),
        ("ro pci=nomsi", ("pci=realloc=on",), ("pci=nomsi", "pci=realloc=on")),
        (f"ro {NVIDIA}", ("rd.driver.blacklist=ast",), ("rd.driver.blacklist=nouveau", "rd.driver.blacklist=ast")),
        ("ro iommu=off", ("iommu=pt",), ("iommu=pt",)),
        ("ro modprobe.blacklist=nouveau", ("iommu=pt",), ("iommu=pt",)),
    ],
)
def test_grubby_does_not_take_words_that_add_up(line: str, wanted: tuple[str, ...], named: tuple[str, ...]) -> None:
    assert words(wanted, boot(line)) == named
    made = by_grubby(line, named)
    assert words(wanted, boot(made)) == (), made
    kept = [w for w in line.split() if w.partition("=")[0] in kernel_cmdline.ADD_UP]
    assert set(kept) <= set(made.split())


def test_the_declared_words_win_over_nvidia_s_package() -> None:
    """It sets its words at each driver move, and the setting is planned again after that."""
    want = ("nvidia-drm.modeset=0", "rd.driver.blacklist=ast")
    line = by_grubby("ro", words(want, boot("ro")))
    moved = by_grubby(line, tuple(NVIDIA.split()))
    assert words(want, boot(moved, **{KMOD_COMMON: "x"})) == (
        "rd.driver.blacklist=nouveau", "nvidia-drm.modeset=0", "rd.driver.blacklist=ast",
    )  # fmt: skip
    again = by_grubby(moved, words(want, boot(moved)))
    assert words(want, boot(again)) == () and "nouveau.modeset=0" in again


@pytest.mark.parametrize("word", ["nomodeset", "nouveau.modeset=1", "nouveau.modeset=2"])
def test_words_that_bring_nouveau_back_are_named(word: str) -> None:
    node = boot(f"ro {NVIDIA}", **{KMOD_COMMON: "options nvidia\n"})
    with pytest.raises(ConfigError, match=rf"{word} contradicts the words of NVIDIA's package nvidia-kmod-common"):
        kernel_cmdline.plan(KernelCmdlineWant(words=("iommu=pt", word)), node)
    assert words((word,), boot("ro")) == (word,), "without NVIDIA's package it is the site's own matter"
    assert words(("nouveau.modeset=0", "nvidia-drm.modeset=1"), node) == ()


@pytest.mark.parametrize("options", [(), ("ro",)])
def test_a_menu_without_boot_entries_is_refused_on_el(options: tuple[str, ...]) -> None:
    """EL's grub2-mkconfig reads no drop-ins, so one there would do nothing."""
    node = boot(*options, **{GRUB: EL.replace("=true", "=false")})
    with pytest.raises(ConfigError, match="GRUB uses no boot entries here") as refused:
        kernel_cmdline.plan(KernelCmdlineWant(words=("iommu=pt",)), node)
    assert "grub2-switch-to-blscfg" in refused.value.hint
    assert kernel_cmdline.plan(KernelCmdlineWant(), node) == ()


def test_debian_s_grub_counts_where_it_uses_no_boot_entries() -> None:
    node = boot("ro", **{GRUB: "GRUB_ENABLE_BLSCFG=false\n", GRUB_CFG: "linux /vmlinuz ro\n", GRUB2_CFG: None, GRUBENV: None})
    first, second = kernel_cmdline.plan(KernelCmdlineWant(words=("iommu=pt",)), node)[:2]
    assert isinstance(first, File) and isinstance(second, BootLoader) and second.tool == "update-grub"


@pytest.mark.parametrize("path", [GRUBENV, GRUB2_CFG, KMOD_COMMON])
def test_what_cannot_be_read_is_unreadable(path: str) -> None:
    paths: dict[str, str | Missing | None] = dict.fromkeys((GRUB, GRUB_CFG, GRUB2_CFG, GRUBENV, KMOD_COMMON, kernel_cmdline.FILE))
    found = kernel_cmdline.observe(texts({**paths, kernel_cmdline.CMDLINE: "ro\n", path: unreadable("EIO")}))
    assert isinstance(found, Missing)
