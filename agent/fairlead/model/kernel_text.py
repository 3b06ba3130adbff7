"""Finds kernel records that begin with a text that a user chooses. Such records are dropped before any check sees them.

The kernel prints a task's name at the beginning of some messages (``comm``, up to 15 bytes of any kind: include/linux/sched.h,
TASK_COMM_LEN). Some messages have the name of the executable further on (up to 255 bytes). If a process that is called
"EDAC MC0: 1 UE " crashes, the record of facility kernel therefore begins like a record of EDAC. ``NAME_FIRST`` lists the
messages that begin with a task's name, with the place in the kernel's source that prints each message. The messages were read
in Linux 6.1. If 4.18 or newer versions print a different text, both texts match.

Each form requires a certain text after at most 15 characters. No message of a driver that fairlead reads has this text there.
An Xid line ends with a task's name, but begins with more than 15 characters of fixed text, so no Xid is lost. Messages that
begin with the kernel's own words ("INFO: task NAME:PID blocked", "Out of memory: Killed process PID (NAME)") need no form. A
check's pattern for such a message must not match text after the name.

Some drivers print with dev_printk() only. Then /dev/kmsg names the device in a line of its own (" DEVICE=+pci:0000:1b:00.0";
Documentation/ABI/testing/dev-kmsg). If a record begins like a message of such a driver (``BY_DEVICE``) and names no device, it
does not come from that driver.
"""

from __future__ import annotations

import re

from msgspec import Struct

from fairlead.model.plain_text import printable

NAME_MAX = 15  # bytes of a task's name, which never has more characters than bytes
_LOG_PREFIX_MAX = 128  # size of a prefix in the netfilter log: NF_LOG_PREFIXLEN, include/net/netfilter/nf_log.h


class Form(Struct, frozen=True):
    """Describes one message. after: what follows the name, as a regular expression. before: what comes before the name.

    sample: a whole message, with {name} and, where the kernel prints it, {file}. source: the place in the kernel's source.
    """

    after: str
    sample: str
    source: str
    before: str = ""


_MODULE = r"(?:[a-z0-9_]{2,12}: )?"  # pr_fmt() adds this, and not every kernel has it in the same files
_XFS = r"XFS(?: \([^()\s]{1,32}\))?: "

NAME_FIRST = (
    *(
        Form(r"\[\d{1,10}\]:? ", sample, source, before=_MODULE)
        for sample, source in (
            ("{name}[4711]: segfault at 0 ip 401136 sp 7ffe error 4 in {file}[401000+1000] likely on CPU 3",
             "arch/x86/mm/fault.c, show_signal_msg"),
            ("{name}[4711]: unhandled exception: DABT, ESR 0x92000006 in {file}[401000+1000]",
             "arch/arm64/kernel/traps.c, arm64_show_signal; arch/riscv, arch/powerpc alike"),
            ("{name}[4711] bad frame in rt_sigreturn frame:7ffe ip:401136 sp:7ffe orax:0 in {file}[401000+1000]",
             "arch/x86/kernel/signal.c, signal_fault"),
            ("traps: {name}[4711] general protection fault ip:401136 sp:7ffe error:0 in {file}[401000+1000]",
             "arch/x86/kernel/traps.c, show_signal"),
            ("signal: {name}[4711] overflowed sigaltstack", "arch/x86/kernel/signal.c, get_sigframe"),
            ("umip: {name}[4711] ip:401136 sp:7ffe: SGDT instruction cannot be used by applications.", "arch/x86/kernel/umip.c"),
            ("{name}[4711] vsyscall fault (exploit attempt?) ip:0 cs:33 sp:0 ax:0 si:0 di:0",
             "arch/x86/entry/vsyscall/vsyscall_64.c, warn_bad_vsyscall"),
            ("{name}[4711]: memfd_create() called without MFD_EXEC or MFD_NOEXEC_SEAL set", "mm/memfd.c"),
            ("note: {name}[4711] exited with preempt_count 1", "kernel/exit.c, make_task_dead"),
        )
    ),
    *(
        Form(r" \(\d{1,10}\)[: ]", sample, source, before=_MODULE)
        for sample, source in (
            ("hugetlbfs: {name} (4711): Using mlock ulimits for SHM_HUGETLB is obsolete", "fs/hugetlbfs/inode.c"),
            ("mmap: {name} (4711): VmData 1 exceed data ulimit 1. Update limits or use boot option", "mm/mmap.c, may_expand_vm"),
            ("mmap: {name} (4711) uses deprecated remap_file_pages() syscall.", "mm/mmap.c"),
            ("printk: {name} (4711): Attempt to access syslog with CAP_SYS_ADMIN but no CAP_SYSLOG", "kernel/printk/printk.c"),
            ("{name} (4711): drop_caches: 3", "fs/drop_caches.c"),
            ("{name} (4711): /proc/4711/oom_adj is deprecated, please use /proc/4711/oom_score_adj instead.", "fs/proc/base.c"),
            ("{name} (4711) used greatest stack depth: 11111 bytes left", "kernel/exit.c, check_stack_usage"),
            ("{name} (4711): attempted to duplicate a private mapping with mremap.", "mm/mremap.c, vma_to_resize"),
            ("{name} (4711): undefined instruction: pc=401136", "arch/arm64/kernel/traps.c, EL8"),
        )
    ),
    Form(r"/\d{1,10}: reached RLIMIT_SIGPENDING", "{name}/4711: reached RLIMIT_SIGPENDING, dropped signal 34",
         "kernel/signal.c, print_dropped_signal"),
    Form(r"/\d{1,10}(?: is | just changed | \[HC|: Hash chain)", "{name}/4711 is trying to acquire lock:",
         "kernel/locking/lockdep.c"),
    Form(r" invoked oom-killer: ", "{name} invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
         "mm/oom_kill.c, dump_header"),
    Form(r": (?:page allocation|vmalloc)", "{name}: page allocation failure: order:4, mode:0xcc0(GFP_KERNEL)",
         "mm/page_alloc.c, warn_alloc"),
    Form(r": Corrupted page table at ", "{name}: Corrupted page table at address 7f0000", "arch/x86/mm/fault.c, pgtable_bad"),
    Form(r": attempt to access beyond end", "{name}: attempt to access beyond end of device\nsda1: rw=0, sector=9",
         "block/blk-core.c, bio_check_eod"),
    Form(r": (?:sending ioctl|calling unsupported) ", "{name}: sending ioctl 5310 to a partition!",
         "block/scsi_ioctl.c; block/bsg.c"),
    Form(r": \d{1,10} output lines suppressed", "{name}: 5 output lines suppressed due to ratelimiting",
         "include/linux/ratelimit.h, ratelimit_state_exit"),
    Form(r": using deprecated /proc/", "{name}: using deprecated /proc/sgi_uv/hubbed, use /sys/firmware/sgi_uv/hub_type",
         "arch/x86/kernel/apic/x2apic_uv_x.c"),
    Form(r" wrote to \S{1,64} when ", "{name} wrote to hostname when file position was not 0!\nThis will not be",
         "kernel/sysctl.c, warn_sysctl_write"),
    Form(r" calls setitimer\(\) with ", "{name} calls setitimer() with new_value NULL pointer.",
         "kernel/time/itimer.c"),
    Form(r" uses (?:obsolete|old|deprecated) ", "{name} uses obsolete (PF_INET,SOCK_PACKET)", "net/socket.c; net/ax25/af_ax25.c"),
    Form(r" sent an empty control message ", "{name} sent an empty control message without MSG_MORE.",
         "crypto/af_alg.c"),
    Form(r" using unsupported default IPA ", "{name} using unsupported default IPA limit, upgrade your VMM",
         "arch/arm64/kvm/reset.c"),
    Form(r" used emulated \S+ instruction", "{name} used emulated lwsync instruction", "arch/powerpc/kernel/traps.c"),
    Form(r" (?:tried to set rate|passes broken AGP|requested AGP)", "{name} tried to set rate=x0. Setting to x1 mode.",
         "drivers/char/agp/generic.c"),
    Form(r"\" \(\d{1,10}\) uses ", '"{name}" (4711) uses obsolete ecb(arc4) skcipher', "crypto/arc4.c; arch/arm64", before='"'),
    Form(r"/\d{1,10}\] FS: ", "[{name}/4711] FS: ext4 File: /tmp/{file} would truncate fibmap result", "fs/ioctl.c, ioctl_fibmap",
         before=r"\["),
    Form(r" cpuset=", "{name} cpuset=/slurm/{file} mems_allowed=0-1",
         "kernel/cgroup/cpuset.c, cpuset_print_current_mems_allowed, before Linux 5.0"),
    Form(r" should use fallocate; ", "XFS (sda1): {name} should use fallocate; XFS_IOC_ALLOCSP ioctl unsupported",
         "fs/xfs/xfs_ioctl.c", before=_XFS),
    Form(r"\(\d{1,10}\) possible memory ", "XFS (sda1): {name}(4711) possible memory allocation deadlock size 65552",
         "fs/xfs/kmem.c", before=_XFS),
)  # fmt: skip

#: The LOG targets of netfilter print a prefix of up to 127 characters first. A user with a network namespace may set the prefix.
#: The kernel prints messages of other namespaces if net.netfilter.nf_log_all_netns is set (net/netfilter/nf_log_syslog.c).
_FIREWALL = re.compile(rf"(?s:.{{0,{_LOG_PREFIX_MAX}}}?)IN=(?s:.{{0,15}}?) OUT=(?s:.{{0,15}}?)(?:\s|\Z)")
#: With kernel.print-fatal-signals the kernel prints the name of the executable first, and then the name of the task
#: (kernel/signal.c, print_fatal_signal: "%pD: %s: potentially unexpected fatal signal %d.").
_FATAL_SIGNAL = re.compile(r"(?s:.{0,273}?): potentially unexpected fatal signal \d")
_BEFORE = tuple(dict.fromkeys(form.before for form in NAME_FIRST))
_FORMS = re.compile(
    "|".join(
        f"{before}(?s:.{{0,{NAME_MAX}}}?)(?:{'|'.join(dict.fromkeys(f.after for f in NAME_FIRST if f.before == before))})"
        for before in _BEFORE
    )
)

#: Matches the beginning of messages that only dev_printk() prints, which has the names of the driver and the device: NVMe
#: (drivers/nvme/host), AER and DPC of any PCI driver (drivers/pci/pcie), and mlx5. The messages of mlx5 come from
#: drivers/net/ethernet/mellanox/mlx5 with the name of the interface (netdev_printk()), and from drivers/infiniband/hw/mlx5
#: with the name of the RDMA device (ibdev_printk()).
BY_DEVICE = re.compile(
    r"nvme nvme\d|(?:pcieport|nvidia|mlx5_core|pci) (?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7][ :]|"
    r"\S{1,40} \S{7,16}: (?:AER|DPC): "
)


#: The NVIDIA driver appends KERN_CONT to all that it prints (kernel-open/nvidia/os-interface.c, nv_printf). So the kernel flags
#: each of its lines as a fragment, which is the continuation of another line, although the line is complete. In the report of
#: the out-of-memory killer, the text between "cpuset=" and "mems_allowed=" is the name of a cgroup (mm/oom_kill.c,
#: dump_oom_summary; kernel/cgroup/cpuset.c).
_WHOLE_FRAGMENT, _CGROUP_FOLLOWS, _AFTER_A_CGROUP = "NVRM: ", "cpuset=", "mems_allowed="


def begins_with_a_name(text: str) -> bool:
    """Return whether a user may have chosen the beginning of a kernel record's text. The text is also tested in the form in which
    the checks see it, with spaces in place of control characters."""
    shown = printable(text)
    return _begins_with_a_name(text) or (shown != text and _begins_with_a_name(shown))


def _begins_with_a_name(text: str) -> bool:
    return (
        _FORMS.match(text) is not None
        or ("IN=" in text and _FIREWALL.match(text) is not None)
        or (" fatal signal " in text and _FATAL_SIGNAL.match(text) is not None)
    )


def is_whole(fragment: str) -> bool:
    """Return whether a record that the kernel flags as a fragment is in fact a complete line of the NVIDIA driver."""
    return fragment.startswith(_WHOLE_FRAGMENT) and _AFTER_A_CGROUP not in fragment


def name_follows(text: str) -> bool:
    """Return whether this record ends where the name of a cgroup follows, because another CPU printed in between. The name then
    comes in a separate record, which is a fragment."""
    return text.rstrip().endswith(_CGROUP_FOLLOWS)


def lacks_its_device(text: str, device: str | None) -> bool:
    """Return whether a record begins like a message that names its device (``BY_DEVICE``), but names no device.

    ``device``: the device that the kernel named with the record, or "" if it named none. It is None if the source of the record
    does not report devices, such as a FIFO or a saved log.
    """
    return device == "" and BY_DEVICE.match(printable(text)) is not None
