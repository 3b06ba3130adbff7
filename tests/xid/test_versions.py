"""What differs between drivers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.model.finding import Action, Service
from fairlead.xid.catalogue import ENTRIES, look_up
from fairlead.xid.decode import decode
from fairlead.xid.versions import CHANGES, NOTES, SINCE, loaded, parse_version

WHERE = "NVRM: Xid (PCI:0000:3b:00): "


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("570.172.08", (570, 172, 8)),
        ("r610", (610,)),
        ("575.51", (575, 51)),
        (" 535.129.03\n", (535, 129, 3)),
        *((bad, None) for bad in ("", "5", "570.", "570.1.2.3", "x", "570.172.08-1", "12345", "٥٧٠")),
    ],
)
def test_version(text: str, version: tuple[int, ...] | None) -> None:
    assert parse_version(text) == version


@pytest.mark.parametrize(
    ("code", "driver", "name", "action", "service"),
    [
        (139, "535.183.01", "ROBUST_CHANNEL_FAST_PATH_ERROR", Action.NONE, Service.KEEP),
        (139, "560.28.03", "ROBUST_CHANNEL_OFA1_ERROR", Action.RESTART_APP, Service.KEEP),
        (144, "550.90.07", "ROBUST_CHANNEL_KEY_ROTATION_ERROR", Action.REBOOT_NODE, Service.DRAIN_NOW),
        (144, "560.28.03", "NVLINK_SAW_ERROR", Action.CHECK_FABRIC, Service.DRAIN_NOW),
        (149, "570.172.08", "NVLINK_NETIR_ERROR", Action.CHECK_FABRIC, Service.DRAIN_NOW),
        (162, "570.172.08", "PSHC_REENGAGED", Action.NONE, Service.KEEP),  # marked unused there; nothing better is known
        (51, "610.10.01", "BAD_TSG", Action.CONTACT_SUPPORT, Service.KEEP),
        (51, "595.45.04", "SILENT_RUNNING_STRESS_TEST_FAILURE", Action.CONTACT_SUPPORT, Service.KEEP),
        (174, "590.44.01", "ROBUST_CHANNEL_RESETCHANNEL_KILL_PROCESS_SILENT", Action.NONE, Service.KEEP),
    ],
)
def test_a_code_means_what_its_driver_meant(code: int, driver: str, name: str, action: Action, service: Service) -> None:
    entry = look_up(code, driver)
    assert (entry.name, entry.action, entry.service) == (name, action, service)
    assert entry.source


def test_without_a_known_driver_the_newest_meaning_holds() -> None:
    for code, entry in ENTRIES.items():
        assert look_up(code) == look_up(code, "") == look_up(code, "not a version") == entry


def test_the_decoder_goes_by_the_driver_that_is_named_or_that_the_log_names() -> None:
    line = f"{WHERE}144, pid=1, name=x, key rotation"
    loads = "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.90.07  Fri May 31 09:35:42 UTC 2024"
    newer = "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (x@y)  Tue Sep 23 2025"
    assert [r.action for r in decode([line])] == [Action.CHECK_FABRIC]
    assert [r.action for r in decode([line], "550.90.07")] == [Action.REBOOT_NODE]
    assert [r.action for r in decode([line, loads, line, newer, line])] == [
        Action.CHECK_FABRIC,
        Action.REBOOT_NODE,
        Action.CHECK_FABRIC,
    ]
    assert [r.action for r in decode([loads, "Linux version 6.1.0", line])] == [Action.CHECK_FABRIC]  # another boot
    assert [r.action for r in decode([newer, line], "550.90.07")] == [Action.REBOOT_NODE]


def test_what_a_154_says_in_any_words() -> None:
    """r570 to r595, and r610 which changed the words."""
    for old, new, service in (
        ("0x1 (GPU Reset Required)", "0x1 (PF FLR)", Service.DRAIN_NOW),
        ("0x2 (Node Reboot Required)", "0x2 (OS Reboot)", Service.DRAIN_NOW),
    ):
        for words, driver in ((old, "580.95.05"), (new, "610.10.01"), (new, "")):
            (found,) = decode([f"{WHERE}154, GPU recovery action changed from 0x0 (None) to {words}"], driver)
            assert found.service is service


def test_rows_are_in_order_and_say_their_source() -> None:
    for change in CHANGES:
        assert change.code in ENTRIES and change.source and change.why and (not change.before or change.first < change.before)
        assert len(change.description) <= 50 and change.description.isascii()
    for code in (*SINCE, *NOTES):
        assert code in ENTRIES
    for text in SINCE.values():
        assert all(parse_version(part) for part in text.split(", "))


@given(st.text(max_size=120).map(lambda t: f"NVRM: loading NVIDIA UNIX {t}"), st.text(max_size=30))
def test_any_text(record: str, version: str) -> None:
    assert set(loaded(record)) <= set("0123456789.")
    numbers = parse_version(version)
    assert numbers is None or all(0 <= n <= 9999 for n in numbers)
