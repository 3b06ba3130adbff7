"""The xid check: what each kind of record comes to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import ValidationError, convert
from msgspec.structs import replace

from fairlead.checks.xid import Params, check
from fairlead.model.check_definition import KernelRecord, Past
from fairlead.model.facts import unreadable
from fairlead.model.finding import Action, Finding, Level, Service
from tests.checks.nodes import ADDRESSES, BOOT, NA, UNSUPPORTED, gpu, log, node, records

WHERE = "NVRM: Xid (PCI:0000:1b:00)"


def judged(*texts: str, **more: object) -> list[Finding]:
    return list(check.findings(node(), log(*texts), Params(**more)))


@pytest.mark.parametrize(
    ("text", "level", "action", "service"),
    [
        ("79, pid=1, name=x, GPU has fallen off the bus.", Level.DRAIN, Action.REBOOT_NODE, Service.DRAIN_NOW),
        ("48, pid='<unknown>', name=<unknown>, An uncorrectable", Level.DRAIN, Action.RESET_GPU, Service.DRAIN_NOW),
        ("64, Row remapping failure", Level.DRAIN, Action.RESET_GPU, Service.DRAIN_NOW),
        ("74, NVLink: fatal error", Level.DRAIN, Action.CHECK_FABRIC, Service.DRAIN_NOW),
        ("95, Uncontained", Level.DRAIN, Action.RESET_GPU, Service.DRAIN_NOW),
        ("119, pid=1, name=a, Timeout after 45s", Level.DRAIN, Action.RESET_GPU, Service.DRAIN_NOW),
        ("120, GSP task exception", Level.DRAIN, Action.RESET_GPU, Service.DRAIN_NOW),
        ("140, ", Level.DRAIN, Action.RESET_GPU, Service.DRAIN_NOW),
        ("63, Row Remapper: New row marked", Level.DRAIN, Action.RESET_GPU, Service.DRAIN_AFTER_JOB),
        ("94, Contained: SM (0x1)", Level.DRAIN, Action.RESET_GPU, Service.DRAIN_AFTER_JOB),
        ("13, Graphics Exception", Level.WARN, Action.RESTART_APP, Service.KEEP),
        ("31, pid=1, name=exe, Ch 0000000a", Level.WARN, Action.RESTART_APP, Service.KEEP),
        ("43, pid=1, name=exe, Ch 00000008", Level.WARN, Action.NONE, Service.KEEP),
        ("149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 14 (0x0215c5c6 0x0)", Level.DRAIN, Action.RESET_GPU, Service.DRAIN_NOW),
        ("149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 14 (0x1)", Level.DRAIN, Action.CHECK_FABRIC, Service.DRAIN_NOW),
        ("145, RLW_RXPIPE Nonfatal XC0 i0 Link 11 (0x1)", Level.WARN, Action.CHECK_FABRIC, Service.KEEP),
        ("149, Placeholder message", Level.WARN, Action.CHECK_FABRIC, Service.KEEP),
        (
            "154, GPU recovery action changed from 0x0 (None) to 0x2 (OS Reboot)",
            Level.DRAIN,
            Action.REBOOT_NODE,
            Service.DRAIN_NOW,
        ),
        (
            "154, GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)",
            Level.DRAIN,
            Action.RESET_GPU,
            Service.DRAIN_AFTER_JOB,
        ),
    ],
)
def test_each_code_comes_to_its_service(text: str, level: Level, action: Action, service: Service) -> None:
    (finding,) = judged(f"{WHERE}: {text}")
    assert (finding.level, finding.action, finding.service, finding.device) == (level, action, service, "0000:1b:00.0")
    assert finding.evidence_id == f"{BOOT}:100"


def test_the_summary_names_gpu_code_and_action() -> None:
    (finding,) = judged(f"{WHERE}: 79, GPU has fallen off the bus.")
    assert finding.summary == "Xid 79 on GPU 0000:1b:00.0 (fallen off the bus): reboot_node"


@pytest.mark.parametrize(
    "text",
    [
        f"{WHERE}: 45, pid=12723, Ch 00000000",
        f"{WHERE}: 106, test",
        f"{WHERE}: 162, Power smoothing",
        f"{WHERE}: 174, ",
        f"{WHERE}: 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)",
        "NVRM: GPU at PCI:0000:9b:00: GPU-509665ad-b600-ac93-3616-d754b23d636d",
        "Out of memory: Killed process 22222 (NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus).",
        " NVRM: Xid (PCI:0000:1b:00): 79, indented by somebody",
        "x NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.",
        "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Severity 1 Engine instance 62 Sub-engine instance 00",
    ],
)
def test_harmless_lines_raise_nothing(text: str) -> None:
    assert judged(text) == []


def test_hundreds_of_lines_of_one_fault_are_one_finding_that_does_not_drain() -> None:
    found = judged(*(f"{WHERE}: 31, pid={n}, name=train, Ch {n:08x}" for n in range(500)))
    assert [(f.level, f.evidence_id) for f in found] == [(Level.WARN, f"{BOOT}:599")]


def test_a_job_s_own_fault_is_forgotten_after_a_while_a_lost_gpu_is_not() -> None:
    old = log(f"{WHERE}: 31, Ch 1", f"{WHERE}: 79, GPU has fallen off the bus.", seconds=1000.0)
    assert [f.summary[:6] for f in check.findings(node(), old, Params())] == ["Xid 79"]


def test_45_follows_its_cause_even_when_the_cause_s_own_line_was_lost() -> None:
    assert [f.summary[:7] for f in judged(f"{WHERE}: 45, pid=9, name=python3, Ch 00000002 caused by previous Xid 48")] == [
        "Xid 48 "
    ]
    both = judged(f"{WHERE}: 48, DBE", f"{WHERE}: 45, pid=9, name=python3, Ch 00000002 caused by previous Xid 48")
    assert [f.evidence_id for f in both] == [f"{BOOT}:100"]
    assert judged(f"{WHERE}: 45, pid=9, name=python3, Ch 00000002 caused by previous Xid 31")[0].level is Level.WARN


def test_162_cancels_an_earlier_163_of_the_same_gpu_only() -> None:
    assert judged(f"{WHERE}: 163, off", f"{WHERE}: 162, on") == []
    assert len(judged(f"{WHERE}: 163, off", "NVRM: Xid (PCI:0000:43:00): 162, on")) == 1
    assert len(judged(f"{WHERE}: 162, on", f"{WHERE}: 163, off")) == 1


def test_the_last_154_of_a_gpu_counts() -> None:
    reset, none = "to 0x1 (GPU Reset Required)", "to 0x0 (None)"
    change = f"{WHERE}: 154, GPU recovery action changed from 0x3 (x)"
    assert judged(f"{change} {reset}", f"{change} {none}") == []
    assert judged(f"{change} {none}", f"{change} {reset}")[0].action is Action.RESET_GPU


def test_fallen_off_the_bus_without_an_xid() -> None:
    (one,) = judged("NVRM: GPU 0000:43:00.0: GPU has fallen off the bus.")
    assert one.summary == "Xid 79 on GPU 0000:43:00.0 (fallen off the bus): reboot_node"
    three = (
        "NVRM: The NVIDIA GPU 0000:43:00.0",
        "mlx5_core 0000:ab:00.0 mlx5_5: Port: 1 Link ACTIVE",
        "NVRM: (PCI ID: 10de:26b5) installed in this system has",
        "NVRM: fallen off the bus and is not responding to commands.",
    )
    assert [f.summary for f in judged(*three)] == [one.summary]
    assert judged(*three[:3]) == []
    assert judged(*three[1:]) == []
    assert len(judged("NVRM: GPU 0000:43:00.0: GPU has fallen off the bus.", *three, "NVRM: Xid (PCI:0000:43:00): 79, x")) == 1


def test_the_order_in_which_history_hands_records_over_does_not_matter() -> None:
    change = f"{WHERE}: 154, GPU recovery action changed from 0x3 (x) to"
    made = records(f"{change} 0x1 (x)", f"{WHERE}: 163, off", f"{WHERE}: 162, on", f"{change} 0x0 (None)")
    assert list(check.findings(node(), Past(available=True, records=made[::-1]), Params())) == []


def test_the_cause_is_told_before_what_follows_from_it() -> None:
    change = f"{WHERE}: 154, GPU recovery action changed from 0x0 (None) to 0x2 (x)"
    found = judged(change, f"{WHERE}: 95, Uncontained", f"{WHERE}: 79, GPU has fallen off the bus.")
    assert [f.summary[:7].strip() for f in found][:2] == ["Xid 79", "Xid 95"] and "reboot" in found[2].summary
    assert len(found) == 3


def test_evidence_says_when_how_often_and_on_which_instance() -> None:
    (one,) = judged("NVRM: Xid (PCI:0000:1b:00 GPU-I:05 GPU-CI:01): 94, Contained: SM (0x1)")
    assert one.evidence == ("kernel log at 9990.0 s, record 100 GPU-I:5 GPU-CI:1: Contained: SM (0x1)",)
    (three,) = judged(*[f"{WHERE}: 119, pid=1, name=secret, Timeout after 45s"] * 3)
    assert three.evidence == ("kernel log at 9990.0 s, record 102, 3 lines",)


def test_a_link_that_turns_fatal_is_fatal() -> None:
    soft, hard = (f"{WHERE}: 149, NETIR {word} XC0 i0 Link 3 (0x1)" for word in ("Nonfatal", "Fatal"))
    for texts in ((soft, hard), (hard, soft)):
        assert [f.level for f in judged(*texts)] == [Level.DRAIN]
    assert len(judged(soft, f"{WHERE}: 149, NETIR Fatal XC0 i0 Link 4 (0x1)")) == 2


def test_the_cause_s_own_line_replaces_the_hint_of_an_xid_45() -> None:
    hint = f"{WHERE}: 45, pid=9, name=python3, Ch 00000002 caused by previous Xid 149"
    assert [f.level for f in judged(hint)] == [Level.WARN]
    found = judged(hint, f"{WHERE}: 79, caused", f"{WHERE}: 45, pid=9, name=p, Ch 1 caused by previous Xid 79")
    assert {f.evidence_id for f in found if f.level is Level.DRAIN} == {f"{BOOT}:101"}
    (dbe,) = judged(f"{WHERE}: 45, pid=9, name=p, Ch 1 caused by previous Xid 48", f"{WHERE}: 48, An uncorrectable DBE")
    assert dbe.evidence_id == f"{BOOT}:101" and "named by" not in dbe.evidence[0]


def test_records_and_nodes_without_a_boot_id_still_count() -> None:
    text = f"{WHERE}: 79, x"
    assert len(list(check.findings(node(), Past(available=True, records=records(text, boot="")), Params()))) == 1
    blind = replace(node(), boot_id=unreadable("no /proc"))
    for boot, expected in ((BOOT, f"{BOOT}:100"), ("", ":100")):
        (finding,) = check.findings(blind, Past(available=True, records=records(text, boot=boot)), Params())
        assert finding.evidence_id == expected


def test_a_fatal_sxid_drains_and_names_the_switch() -> None:
    (finding,) = judged("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 62 LTSSM Fault Up")
    assert finding.summary == "SXid 20034 on NVSwitch 0000:05:00.0 (link training fault, fatal, link 62): check_fabric"
    assert judged("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 11004, Non-fatal, Link 40 ingress")[0].level is Level.WARN


def test_the_lines_that_go_on_about_an_sxid_are_no_second_one() -> None:
    """Also where the site's own choice would drain for each of them."""
    start = "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, "
    texts = [start + rest for rest in ("Fatal, Link 62 LTSSM", "Severity 1 Engine instance 62", "Data {0x0}")]
    assert len(judged(*texts)) == len(judged(*texts, services={"sxid 20034": Service.DRAIN_NOW})) == 1


def test_records_of_another_boot_do_not_count() -> None:
    past = Past(available=True, records=records(f"{WHERE}: 79, x", boot="99999999-0000-0000-0000-000000000000"))
    assert list(check.findings(node(), past, Params())) == []


def test_a_site_may_choose_its_own_service() -> None:
    assert judged(f"{WHERE}: 63, Row Remapper", services={"63": Service.KEEP})[0].level is Level.WARN
    assert judged(f"{WHERE}: 31, Ch 1", services={"31": Service.DRAIN_NOW})[0].level is Level.DRAIN


def test_a_site_may_choose_its_own_action() -> None:
    assert judged(f"{WHERE}: 119, x", actions={"119": Action.REBOOT_NODE})[0].action is Action.REBOOT_NODE
    assert judged(f"{WHERE}: 94, x", actions={"94": Action.CHECK_HARDWARE})[0].action is Action.CHECK_HARDWARE
    (raised,) = judged(f"{WHERE}: 174, x", actions={"174": Action.CONTACT_SUPPORT})
    assert (raised.level, raised.action) == (Level.WARN, Action.CONTACT_SUPPORT)
    line = "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 62 LTSSM Fault Up"
    own = {"actions": {"sxid 20034": Action.RESET_GPU}, "services": {"sxid 20034": Service.DRAIN_AFTER_JOB}}
    assert [(f.action, f.service) for f in judged(line, **own)] == [(Action.RESET_GPU, Service.DRAIN_AFTER_JOB)]
    (other,) = judged(line, actions={"79": Action.NONE}, services={"74": Service.KEEP})
    assert (other.action, other.service) == (Action.CHECK_FABRIC, Service.DRAIN_NOW)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"services": {"177": "keep"}}, "no such code: '177'"),
        ({"services": {"0": "keep"}}, "no such code: '0'"),
        ({"services": {"063": "keep"}}, "no such code: '063'"),
        ({"actions": {"sixty": "none"}}, "no such code: 'sixty'"),
        ({"actions": {"sxid 12": "none"}}, "no such code: 'sxid 12'"),
        ({"actions": {"xid 94": "none"}}, "no such code: 'xid 94'"),
        ({"actions": {"94": "follow_cause"}}, "follow_cause is not an action"),
        ({"actions": {"94": "provision"}}, "provision is not an action"),
        ({"actions": {"94": "RESET_GPU"}}, "Invalid enum value 'RESET_GPU'"),
        ({"services": {"94": "drain"}}, "Invalid enum value 'drain'"),
    ],
)
def test_a_site_s_choice_that_names_nothing_is_an_error(values: dict[str, object], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        convert(values, Params)
    assert convert({"services": {"63": "keep", "sxid 12028": "keep"}, "actions": {"94": "none"}}, Params)


def test_what_came_after_an_acknowledged_fatal_line_and_is_not_fatal_is_no_news() -> None:
    hard, soft = (f"{WHERE}: 149, NETIR {word} XC0 i0 Link 3 (0x1)" for word in ("Fatal", "Nonfatal"))
    assert [f.evidence_id for f in judged(hard)] == [f.evidence_id for f in judged(hard, soft, soft)] == [f"{BOOT}:100"]
    assert [f.evidence_id for f in judged(hard, soft, hard)] == [f"{BOOT}:102"]
    switch = "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034,"
    assert judged(f"{switch} Fatal, Link 62 LTSSM", f"{switch} Non-fatal, Link 62 x")[0].evidence_id == f"{BOOT}:100"


def test_a_corrected_nvlink_error_hides_no_other() -> None:
    start = f"{WHERE}: 145, RLW_REMAP Nonfatal XC0 i0 Link 3"
    corrected, app, other = (f"{start} (0x82 {status})" for status in ("0x100", "0x1", "0x40"))
    assert judged(corrected) == []
    for texts in ((corrected, other), (other, corrected), (corrected, app, other), (other, app)):
        assert [(f.level, f.action) for f in judged(*texts)] == [(Level.WARN, Action.RESET_GPU)]


def test_a_code_counts_as_the_node_s_driver_means_it() -> None:
    old = node(driver=replace(node().driver, module_version="550.90.07"))
    text = f"{WHERE}: 144, pid=1, name=x, key rotation"
    (finding,) = check.findings(old, log(text), Params())
    assert (finding.action, finding.service) == (Action.REBOOT_NODE, Service.DRAIN_NOW)
    assert judged(text)[0].level is Level.WARN  # an NVLink line that does not say Fatal
    link = f"{WHERE}: 149, NETIR_LINK_EVT Fatal XC0 i0 Link 14 (0x0215c5c6 0x0)"
    assert judged(link)[0].action is Action.RESET_GPU  # driver 570: layout V1
    new = node(driver=replace(node().driver, module_version=NA, library_version="580.95.05"))
    assert next(check.findings(new, log(link), Params())).action is Action.CHECK_FABRIC


def test_without_a_log_it_says_so_and_is_not_healthy_by_silence() -> None:
    (finding,) = check.findings(node(), Past(), Params())
    assert finding.needs_history


def test_lost_records_are_told_until_the_driver_speaks_for_them_or_a_person_does() -> None:
    here = node(uptime_seconds=9000.0)
    (lost,) = check.findings(here, Past(available=True, overrun=7, overrun_seconds=8000.0), Params())
    assert lost.level is Level.WARN and "7 kernel records" in lost.summary and "asks for nothing" in lost.evidence[0]
    assert lost.evidence_id == f"{here.boot_id}:overrun=7"
    old = Past(available=True, overrun=7, overrun_seconds=5000.0)
    assert not [*check.findings(here, old, Params())]  # every GPU's driver has been asked since
    silent = node(gpu(3, recovery_action=NA), uptime_seconds=9000.0)
    assert [f.evidence for f in check.findings(silent, old, Params()) if f.fault == "overrun"] == [
        ("no advice of the driver on 0000:61:00.0",)
    ]
    gone = replace(here, gpus=NA)
    assert [f.evidence for f in check.findings(gone, old, Params()) if f.fault == "overrun"] == [("no GPU answers",)]


def test_the_driver_s_advice_is_read_from_nvml_too() -> None:
    sick = node(gpu(2, recovery_action=1))
    (finding,) = check.findings(sick, Past(available=True), Params())
    assert (finding.device, finding.action) == ("0000:52:00.0", Action.RESET_GPU)
    told = log("NVRM: Xid (PCI:0000:52:00): 95, Uncontained")
    assert [f.summary[:6] for f in check.findings(sick, told, Params())] == ["Xid 95"]


@pytest.mark.parametrize(
    ("line", "number", "both"),
    [
        ("95, Uncontained", 2, True),  # the log asks for a reset, the driver for a reboot
        ("63, Row Remapper", 1, True),  # the log can wait for the job, the driver cannot
        ("63, Row Remapper", 4, False),
        ("79, GPU has fallen off the bus.", 1, False),
        ("79, GPU has fallen off the bus.", 2, False),
        ("74, NVLink: fatal", 5, False),
        ("74, NVLink: fatal", 2, True),
    ],
)
def test_the_driver_s_advice_is_told_beside_the_log_where_it_asks_for_more(line: str, number: int, both: bool) -> None:
    """Else an acknowledged line would hide what the driver says of the same GPU."""
    found = [f.summary for f in check.findings(node(gpu(0, recovery_action=number)), log(f"{WHERE}: {line}"), Params())]
    assert len(found) == 1 + both and (not both or "driver asks" in found[-1])


def test_no_process_name_reaches_a_finding() -> None:
    for name in ("evil name", "a, GPU: b", "x): 79, y", "n, Ch 1", "[x@y]"):
        for finding in judged(f"{WHERE}: 31, pid=1, name={name}, Ch 00000008"):
            assert name not in "".join((finding.summary, *finding.evidence, finding.evidence_id))
            assert finding.level is Level.WARN


@given(st.lists(st.text(max_size=200), max_size=8))
def test_any_log_is_judged_without_an_error(texts: list[str]) -> None:
    made = tuple(KernelRecord(sequence=i, seconds=1.0, priority=3, text=t) for i, t in enumerate(texts))
    past = Past(available=True, records=made)
    assert list(check.findings(node(), past, Params())) == list(check.findings(replace(node()), past, Params()))


def test_advice_of_the_driver_that_went_dark_is_no_repair() -> None:
    machine = node(replace(gpu(2), recovery_action=NA))
    assert [f for f in check.findings(machine, Past(available=True), Params()) if f.level is not Level.OK] == []
    past = Past(available=True, readable=frozenset({f"{ADDRESSES[2]}/recovery_action"}))
    (finding,) = check.findings(machine, past, Params())
    assert (finding.level, finding.device, finding.service) == (Level.UNKNOWN, ADDRESSES[2], Service.KEEP)
    assert list(check.findings(node(replace(gpu(2), recovery_action=NA, lost=True)), past, Params())) == []  # gpu_count says so
    excused = node(replace(gpu(2), recovery_action=UNSUPPORTED))
    assert list(check.findings(excused, past, Params())) == []


def test_a_kernel_log_that_cannot_be_read_is_no_health() -> None:
    past = Past(available=True, log=unreadable("/dev/kmsg: Operation not permitted"))
    (finding,) = check.findings(node(), past, Params())
    assert (finding.level, finding.device) == (Level.UNKNOWN, "") and "Operation not permitted" in finding.evidence[0]


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: Xid (PCI:0000:ee:00): 79, pid=1, name=x, GPU has fallen off the bus.",
        "NVRM: GPU 0000:ee:00.0: GPU has fallen off the bus.",
    ],
)
def test_a_fault_of_a_gpu_that_is_not_there_is_shown_and_drains_nothing(line: str) -> None:
    (found,) = judged(line)
    assert (found.level, found.device, found.service) == (Level.WARN, "0000:ee:00.0", Service.KEEP)
    assert found.summary == "Xid 79 on 0000:ee:00.0, where this node has no GPU: it does not count"
    assert [f.level for f in judged(line, f"{WHERE}: 79, pid=1, name=x, GPU has fallen off the bus.")] == [
        Level.WARN,
        Level.DRAIN,
    ]
    assert judged(line, remember_seconds=1) == []  # an hour later it is no news


def test_a_gpu_that_fell_off_and_is_gone_is_still_the_node_s() -> None:
    line, gone = "NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.", ADDRESSES[0]
    whole = node()
    left = tuple(g for g in whole.gpus if g.pci != gone)  # type: ignore[union-attr]
    bus = tuple(d for d in whole.pci if d.address != gone)
    levels = {
        "on the bus": check.findings(replace(whole, gpus=left), log(line), Params()),
        "in the driver's list": check.findings(replace(whole, pci=bus), log(line), Params()),
        "seen before": check.findings(replace(whole, gpus=left, pci=bus), replace(log(line), gpu_cards={gone: "1651"}), Params()),
        "the driver does not answer": check.findings(replace(whole, gpus=NA, pci=bus), log(line), Params()),
        "no bus": check.findings(replace(whole, gpus=left, pci=()), log(line), Params()),
        "a GPU without an address": check.findings(
            replace(whole, gpus=(*left, gpu(0, pci="", lost=True)), pci=bus), log(line), Params()
        ),
    }
    for where, found in levels.items():
        assert Level.DRAIN in [f.level for f in found], where
