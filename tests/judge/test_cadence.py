"""Which checks a look is for, what the host is asked, and which kernel records wake whom."""

from __future__ import annotations

from msgspec.structs import replace

from fairlead import checks, config
from fairlead.checks import kernel_log
from fairlead.config import Document
from fairlead.judge import judge, prefixes, quick_checks, wanted
from fairlead.model.check_definition import CheckParams, Past
from fairlead.model.facts import unreadable
from tests.checks.hosts import host_node

SLOW = {name for name, check in checks.load().items() if check.slow}


def document(**params: CheckParams) -> Document:
    known = config.profile_document("n1", "hgx-h100")
    return replace(known, checks={**known.checks, **params})


def test_between_thorough_looks_only_quick_checks_are_judged() -> None:
    known = document()
    node = host_node()
    quick = quick_checks(known)
    assert quick is not None and not quick & SLOW
    assert {"gpu_count", "nvml_responsive", "xid"} <= quick and "setting.persistence" not in quick
    blind = replace(node, host=unreadable("gone"), thorough=False)
    assert {f.check for f in judge(known, blind, Past(available=True), quick)} & SLOW == set()
    assert {f.check for f in judge(known, blind, Past(available=True))} & SLOW
    assert judge(known, blind, Past(available=True), frozenset()) == ()


def test_the_host_is_asked_for_what_enabled_checks_declare() -> None:
    assert (wanted(document()).mounts, wanted(document()).units) == ((), False)
    space, hung, units = (checks.load()[n].params for n in ("fs_space", "hung_mounts", "units"))
    asked = wanted(
        document(fs_space=space(paths=("/", "/tmp")), hung_mounts=hung(paths=("/home", "/")), units=units(wanted=("a.service",)))
    )
    assert (set(asked.mounts), len(asked.mounts), asked.units) == ({"/", "/tmp", "/home"}, 3, True)
    off = wanted(document(fs_space=space(paths=("/",), enabled=False), units=units(wanted=("a.service",), enabled=False)))
    assert (off.mounts, off.units) == ((), False)


def test_the_sites_patterns_wake_their_check() -> None:
    assert "kernel_log" not in prefixes(document())
    lockup = kernel_log.Pattern(name="lockup", regex="watchdog: BUG: soft lockup.*")
    known = prefixes(document(kernel_log=kernel_log.Params(patterns=(lockup,))))
    assert known["kernel_log"] == ("watchdog: BUG: soft lockup",)
    assert "NVRM: Xid" in known["xid"] and "EDAC MC" in known["memory_errors"]
