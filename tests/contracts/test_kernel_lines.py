"""No user writes a record that a check heeds: every pattern of every check against every message that holds a user's text.

The patterns are found in the folder of checks: a check that heeds kernel records cannot be added without being tried here.
Names are made from the patterns themselves: what begins a record is cut to the 15 bytes of a task's name, and what follows is
given to an executable. Records are written as the kernel writes them to /dev/kmsg (kernel/printk/printk.c, msg_add_ext_text).
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from functools import cache
from types import ModuleType

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairlead import checks
from fairlead.checks.kernel_log import Params as Declared
from fairlead.checks.kernel_log import Pattern
from fairlead.host.kmsg import parse
from fairlead.model.check_definition import Past
from fairlead.model.finding import Finding
from fairlead.model.kernel_text import NAME_FIRST, NAME_MAX, begins_with_a_name
from fairlead.xid import line as xid_line
from tests.checks.hosts import host_node

LOADED = checks.load()
HEEDING = sorted(name for name, check in LOADED.items() if check.wakes_on)
ELSEWHERE = {"xid": (xid_line,)}  # patterns that are not in the check's own module
#: The site's own patterns, as the documentation shows them.
SITE = Declared(
    patterns=(
        Pattern(name="evicted", regex=r"LustreError: \d+-\d: .*evicted"),
        Pattern(name="nfs", regex=r"nfs: server .* not responding"),
    )
)

#: Messages of the kernel that begin with words of its own and hold a user's text further on. They are no forgeries; what
#: stands in the user's text must change nothing. {name}: a task's; {file}: an executable's or folder's; {iface}: an interface's.
FIXED_FIRST = (
    "INFO: task {name}:4711 blocked for more than 120 seconds.",  # kernel/hung_task.c
    "INFO: task {name}:4711 is blocked on a mutex likely owned by task {name}:4712.",
    "watchdog: BUG: soft lockup - CPU#0 stuck for 22s! [{name}:4711]",  # kernel/watchdog.c
    "x86/split lock detection: #AC: {name}/4711 took a split_lock trap at address: 0x401136",  # arch/x86/kernel/cpu/intel.c
    "Out of memory: Killed process 4711 ({name}) total-vm:1kB, anon-rss:1kB, file-rss:1kB, shmem-rss:0kB, UID:1000",  # oom_kill.c
    "Memory cgroup out of memory: Killed process 4711 ({name}) total-vm:1kB, anon-rss:1kB",
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset={file},mems_allowed=0,task_memcg=/{file},task={name},pid=1,uid=1",
    "[   4711]  1000  4711     1000      100    50000        0             0 {name}",  # mm/oom_kill.c, dump_task
    "Memory cgroup stats for /user.slice/{file}:",  # mm/memcontrol.c
    "Memory failure: 0x12345: Sending SIGBUS to {name}:4711 due to hardware memory corruption",  # mm/memory-failure.c
    "MCE: Killing {name}:4711 due to hardware memory corruption fault at 401136",  # arch/x86/mm/fault.c
    "GHES: {name}:4711: synchronous unrecoverable error (SIGBUS)",  # drivers/acpi/apei/ghes.c
    "CPU: 0 PID: 4711 Comm: {name} Not tainted 6.1.0 #1",  # lib/dump_stack.c
    "File: /tmp/{file} PID: 4711 Comm: {name}",  # mm/filemap.c
    "process '/tmp/{file}' started with executable stack",  # fs/exec.c
    "process '{name}' launched '/tmp/{file}' with NULL argv: empty string added",
    "capability: warning: `{name}' uses 32-bit capabilities (legacy support in use)",  # kernel/capability.c
    "BUG: Bad page state in process {name}  pfn:12345",  # mm/page_alloc.c
    "BUG: scheduling while atomic: {name}/4711/0x00000002",  # kernel/sched/core.c
    "Process 4711({name}) has RLIMIT_CORE set to 1",  # fs/coredump.c
    'ptrace attach of "{name}"[4711] was attempted by "{name}"[4712]',  # security/yama/yama_lsm.c
    "random: {name}: uninitialized urandom read (16 bytes read)",  # drivers/char/random.c
    "sctp: {name} (pid 4711) Use of int in maxseg socket option.",  # net/sctp/socket.c
    "netlink: 4 bytes leftover after parsing attributes in process `{name}'.",  # lib/nlattr.c
    "fscrypt: {name} (pid 4711) is setting deprecated v1 encryption policy; recommend upgrading to v2.",  # fs/crypto/policy.c
    "JBD2: {name} wants too many credits credits:1 rsv_credits:1 max:1",  # fs/jbd2/transaction.c
    "EXT4-fs error (device sda1): htree_dirblock_to_tree:1080: inode #2: comm {name}: Directory block failed checksum",  # fs/ext4
    "EXT4-fs warning (device sda1): ext4_dirblock_csum_verify:405: inode #2: comm {name}: No space for directory leaf checksum.",
    "BTRFS warning (device sda1): checksum error at logical 1 on dev /dev/sda1, sector 8, root 5, inode 257 (path: {file})",
    "tmpfs: Unknown parameter '{file}'",  # fs/fs_context.c: a mount that a user may make in a namespace of his own
    "fuse: Unknown parameter '{file}'",
    "overlayfs: unrecognized mount option \"{file}\" or missing value",
    "audit: type=1701 audit(1.1:1): auid=1000 uid=1000 gid=1000 ses=1 pid=4711 comm={name} exe={file} sig=11 res=1",
    "{iface}: renamed from {iface}",  # net/core/dev.c: an interface in a network namespace of his own
    "{iface}: port 1({iface}) entered blocking state",
    "device {iface} entered promiscuous mode",
    "IPv6: ADDRCONF(NETDEV_CHANGE): {iface}: link becomes ready",
    " in {file}[401000+1000]",  # a fragment that could not be appended
)  # fmt: skip


def _patterns(value: object) -> Iterator[re.Pattern[str]]:
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, tuple | list | dict):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _patterns(inner)


def _modules(name: str) -> tuple[ModuleType, ...]:
    return (importlib.import_module(f"fairlead.checks.{name}"), *ELSEWHERE.get(name, ()))


def patterns_of(name: str) -> list[re.Pattern[str]]:
    return [p for module in _modules(name) for value in vars(module).values() for p in _patterns(value)]


def kmsg(text: str, flag: str = "-", more: str = "") -> bytes:
    """One record as /dev/kmsg gives it."""
    given = text.encode("utf-8", "surrogateescape")
    raw = b"".join(b"\\x%02x" % c if c < 32 or c >= 127 or c == 92 else bytes((c,)) for c in given)
    return f"6,1000,5000000,{flag};".encode() + raw + b"\n" + more.encode()


def task_name(text: str) -> str:
    """What of a text is a task's name: 15 bytes."""
    return text.encode("utf-8", "surrogateescape").replace(b"\0", b"")[:NAME_MAX].decode("utf-8", "surrogateescape")


def file_name(text: str) -> str:
    """What of it is a file's: 255 bytes without a slash."""
    raw = text.encode("utf-8", "surrogateescape").replace(b"\0", b"").replace(b"/", b"_")[:255]
    return raw.decode("utf-8", "surrogateescape")


def interface(text: str) -> str:
    """What of it is an interface's: no blank, slash or colon (net/core/dev.c, dev_valid_name)."""
    return task_name(re.sub(r"[\s/:]", "_", text))


def heeded(text: str) -> list[str]:
    return [name for name in HEEDING if text.startswith(LOADED[name].wakes_on) and LOADED[name].heeds(text)]


HOST = host_node()


def past(record_text: bytes) -> Past:
    record = parse(record_text, names_devices=False)
    return Past(available=True, records=(record,) if record is not None else ())


def findings(record_text: bytes) -> list[Finding]:
    seen = past(record_text)
    found = [f for name in HEEDING for f in LOADED[name].findings(HOST, seen, LOADED[name].params())]
    return found + site_findings(seen)


def site_findings(seen: Past) -> list[Finding]:
    return list(LOADED["kernel_log"].findings(HOST, seen, SITE))


@cache
def quiet() -> frozenset[str]:
    """What the checks say of the node alone."""
    return frozenset(repr(f) for f in findings(kmsg("nothing")))


def said(record_text: bytes) -> str:
    return "\n".join(r for r in map(repr, findings(record_text)) if r not in quiet())


said_of_plain = cache(said)  # the same few texts in each example


ANY_NAME = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=NAME_MAX).map(task_name)
ANY_FILE = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=255).map(file_name)
SAMPLES = st.sampled_from([p for name in HEEDING for p in patterns_of(name)]).flatmap(
    lambda p: st.from_regex(re.compile(rf"\A(?:{p.pattern})", p.flags), fullmatch=False)
)
OFTEN = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


def test_every_check_that_heeds_records_has_patterns_that_are_tried() -> None:
    for name in HEEDING:
        assert patterns_of(name), f"{name} heeds kernel records by no pattern that this test finds: add its module to ELSEWHERE"
        assert LOADED[name].kind is not None, f"{name} says of no record what kind it is: a flood would push others out"


@OFTEN
@given(name=st.one_of(ANY_NAME, SAMPLES.map(task_name)), file=st.one_of(ANY_FILE, SAMPLES.map(file_name)))
def test_what_begins_with_a_name_is_dropped(name: str, file: str) -> None:
    for form in NAME_FIRST:
        text = form.sample.format(name=name, file=file)
        assert parse(kmsg(text)) is None, f"{form.source}: {text!r}"


@OFTEN
@given(sample=SAMPLES, other=SAMPLES)
def test_a_kind_says_first_what_happened_in_words_of_the_check_s_own(sample: str, other: str) -> None:
    """History keeps so many of each: it must not be the record that says how many there are."""
    for name in HEEDING:
        kind = LOADED[name].kind
        assert kind is not None
        said = [told.partition(" ")[0] for told in (kind(sample), kind(other)) if told]
        source = inspect.getsource(_modules(name)[0])
        assert all(word.isalpha() and word in source for word in said), said


@OFTEN
@given(prefix=SAMPLES.map(lambda text: text[:127]))
def test_what_a_firewall_of_a_user_s_own_namespace_logs_is_dropped(prefix: str) -> None:
    for rest in (
        "IN= OUT=lo SRC=10.0.0.1 DST=10.0.0.1 LEN=84",
        "IN=eth0 OUT= MAC=00:11:22 SRC=::1 DST=::1 LEN=84",
        "IN=eth0 OUT= ARP HTYPE=1 ",
    ):
        assert parse(kmsg(f"{prefix}{rest}")) is None


@pytest.mark.parametrize("name", HEEDING)
def test_no_pattern_takes_a_name_for_a_driver_s_word(name: str) -> None:
    """Without the list of messages that begin with a name: there will be one that is not on it. Only the list holds against the
    name of a cgroup right behind the task's, which kernels before 5.0 printed."""
    forms = sorted({form.sample for form in NAME_FIRST} | {s for s in FIXED_FIRST if "{iface}" in s})
    forms.remove("{name} cpuset=/slurm/{file} mems_allowed=0-1")

    @settings(OFTEN, max_examples=60)
    @given(sample=st.sampled_from(patterns_of(name)).flatmap(lambda p: st.from_regex(re.compile(rf"\A(?:{p.pattern})", p.flags))))
    def try_it(sample: str) -> None:
        sample = sample.replace("\0", "")
        for cut in range(NAME_MAX + 1):
            for form in forms:
                user, rest = task_name(sample[:cut]), file_name(sample[cut:])
                text = form.format(name=user, file=rest, iface=interface(user))
                assert name not in heeded(text), f"{text!r} of {form!r}"

    try_it()


@OFTEN
@given(name=st.one_of(ANY_NAME, SAMPLES.map(task_name)), file=st.one_of(ANY_FILE, SAMPLES.map(file_name)))
def test_what_stands_behind_the_kernel_s_own_words_changes_nothing(name: str, file: str) -> None:
    for form in FIXED_FIRST:
        plain = kmsg(form.format(name="python3", file="python3", iface="eth0"))
        hostile = kmsg(form.format(name=name, file=file, iface=interface(name) or "x"))
        record, other = parse(plain), parse(hostile)
        assert other is None or record is not None
        if other is not None and record is not None:
            assert heeded(other.text) == heeded(record.text), form
        assert said(hostile) in (said_of_plain(plain), ""), form


@pytest.mark.parametrize(
    "text", ["EDAC MC0: 1 UE memory read error on CPU_SrcID#1_Channel#1_DIMM#1", "XFS (sda1): Filesystem has been shut down"]
)
def test_a_fragment_begins_nothing(text: str) -> None:
    """Folders of cgroups are printed so, when another CPU prints in between (kernel/cgroup/cpuset.c)."""
    assert parse(kmsg(text)) is not None
    assert parse(kmsg(text, "c")) is None and parse(kmsg(text, "c,caller=T1")) is None and parse(kmsg(text, "+")) is None


XIDS = (
    "NVRM: Xid (PCI:0000:1b:00): 79, pid=1234, name={name}, GPU has fallen off the bus.",
    "NVRM: Xid (PCI:0000:1b:00 GPU-I:05 GPU-CI:01): 95, pid=1234, name={name}, Uncontained: SM",
    "NVRM: Xid (0000:1b:00): 48, pid=1234, name={name}, An uncorrectable double bit error (DBE) has been detected on GPU",
    "NVRM: Xid (PCI:0000:1b:00): 119, pid=1234, name={name}, Timeout after 45s of waiting for RPC response from GPU4 GSP!",
    "NVRM: Xid (PCI:0000:1b:00): 145, pid=1234, name={name}, RLW_SRC_TRACK Fatal XC0 i0 Link 03 (0x1 0x8 0x0 0x0 0x0 0x0)",
)  # fmt: skip


@OFTEN
@given(
    name=st.one_of(
        ANY_NAME, SAMPLES.map(task_name), st.sampled_from(NAME_FIRST).map(lambda f: task_name(f.sample.replace("{name}", "")))
    )
)
def test_no_true_fault_is_lost_for_a_name_and_none_shows_it(name: str) -> None:
    for form in XIDS:
        plain, hostile = parse(kmsg(form.format(name="python3"))), parse(kmsg(form.format(name=name)))
        assert plain is not None and hostile is not None and not begins_with_a_name(form.format(name=name))
        line, other = xid_line.parse(plain.text), xid_line.parse(hostile.text)
        assert line is not None and other is not None
        assert (other.code, other.pci, other.gi, other.fatal, other.link) == (line.code, line.pci, line.gi, line.fatal, line.link)
        assert said(kmsg(form.format(name=name))) == said_of_plain(kmsg(form.format(name="python3"))), "the name shows"


@pytest.mark.parametrize(
    "name", [", Ch forged 12", "<unknown>, Ch z", "'<unknown>', z", "", "<unknown>", "a, GPU forged", "n, channel x"]
)
def test_no_part_of_a_name_is_taken_for_the_message(name: str) -> None:
    text = f"NVRM: Xid (PCI:0000:1b:00): 31, pid=1234, name={name}, Ch 00000008, intr 10000000"
    assert said(kmsg(text)) == said(kmsg("NVRM: Xid (PCI:0000:1b:00): 31, pid=1234, name=python3, Ch 00000008, intr 10000000"))


def test_the_site_s_patterns_see_their_own_records() -> None:
    for text in ("LustreError: 11-0: x: this client was evicted", "nfs: server x not responding"):
        assert len(site_findings(past(kmsg(text)))) == 1 + len(site_findings(past(kmsg("nothing"))))


@OFTEN
@given(text=st.sampled_from(SITE.patterns).flatmap(lambda p: st.from_regex(re.compile(rf"\A(?:{p.regex})"))))
def test_the_site_s_patterns_see_no_record_that_begins_with_a_name(text: str) -> None:
    for form in NAME_FIRST:
        forged = kmsg(form.sample.format(name=task_name(text), file=file_name(text[NAME_MAX:])))
        assert site_findings(past(forged)) == site_findings(past(kmsg("nothing")))
