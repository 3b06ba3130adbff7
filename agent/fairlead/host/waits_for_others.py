"""Finds tasks that wait for another task and not for a device, and the tasks that may be that other task.

A process that dumps core waits for all its threads, and they wait for the dump (kernel/exit.c, fs/coredump.c; state I since
Linux 6.12). A page fault, mmap() and the like wait for the lock of the process's memory. A task that opens, makes or removes a
file waits for the lock of its folder. The task with the lock may itself wait for a FUSE server.

/proc does not show which task has a lock. So the other task is searched for among the threads of the same process and of all
processes of the same user, because a user's tasks can only lock what that user may use. Each sleeping task among them is
reported separately, so a task that waits for a disk is found. For a task of root, other processes are not searched, because any
user may have made this task wait.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator

from fairlead.host import mount_table
from fairlead.host.root import Root
from fairlead.host.task_files import process_of, stat_fields, status, waits_in
from fairlead.model.hung_tasks import waits_for_server

Task = tuple[str, int]  # the folder of a task, and its real user id
THREADS_MAX = 2048  # one call reads at most this many threads, which takes some 50 ms
_SYSTEM_CALL = r"(?:__(?:x64|ia32|arm64|se|do)_)?sys_"
_OTHERS = re.compile(
    r"(?:do_exit|exit_mm|coredump_task_exit|coredump_wait|do_coredump|vfs_coredump"
    r"|lock_mm_and_find_vma|do_user_addr_fault|(?:__)?do_page_fault|exc_page_fault|do_mem_abort|mmap_(?:read|write)_lock[a-z_]*"
    r"|vm_mmap_pgoff|ksys_mmap_pgoff|(?:__)?vm_munmap|vm_brk_flags|do_mprotect_pkey|do_madvise|do_mlock|(?:__)?mm_populate|acct_collect"
    rf"|{_SYSTEM_CALL}(?:brk|mmap|munmap|mremap|mprotect|madvise|mlock2?|mlockall|munlock|remap_file_pages)"
    r"|filename_create|open_last_lookups|path_openat|do_last|walk_component|(?:__)?lookup_slow|d_alloc_parallel|d_wait_lookup"
    r"|do_unlinkat|do_rmdir|vfs_unlink|vfs_rmdir|vfs_rename|do_renameat2|lock_rename(?:_child)?|lock_two_directories"
    r"|iterate_dir|wrap_directory_iterator|do_truncate|chmod_common|chown_common|vfs_utimes|utimes_common|vfs_(?:set|remove)xattr"
    r"|(?:__)?fdget_pos)(?:\.[a-z0-9_.]+)?"
)
_VFORK = re.compile(r"(?:wait_for_vfork_done|kernel_clone|_?do_fork)(?:\.[a-z0-9_.]+)?")


def waits_for_another(function: str) -> bool:
    """Return whether a task that sleeps in this function waits until another task ends, joins a core dump, or releases a lock."""
    return _OTHERS.fullmatch(function) is not None


def waits_for_vfork(function: str) -> bool:
    """Say whether the task waits until a child of vfork(2) executes a program or ends. SIGKILL ends this wait (since Linux
    3.4)."""
    return _VFORK.fullmatch(function) is not None


def beside(root: Root, waiting: Iterable[Task], pids: Iterable[int]) -> Iterator[str]:
    """Yield the folders of tasks that sleep in state D or wait for a FUSE server, and that belong to the processes and users of
    the ``waiting`` tasks.

    Tasks of the same processes come first. A wait for a FUSE server begins in state S, in which any signal ends the wait.
    """
    tasks = tuple(waiting)
    own = dict.fromkeys(process_of(folder) for folder, _ in tasks)
    uids = {uid for _, uid in tasks if uid}
    left = THREADS_MAX
    for process in (*own, *(_of(root, uids, (f"/proc/{p}" for p in pids)) if uids else ())):
        for thread in root.names(f"{process}/task"):
            left -= 1
            folder = process if process.endswith(f"/{thread}") else f"{process}/task/{thread}"
            if left >= 0 and (_state(root, folder) == "D" or waits_for_server(waits_in(root, folder))):
                yield folder
        if left <= 0:
            return


def asking(root: Root, folders: Iterable[str]) -> Iterator[Task]:
    """Yield those tasks in ``folders`` that wait for a FUSE server in state S."""
    for folder in folders:
        waits = _state(root, folder) == "S" and waits_for_server(waits_in(root, folder))
        if waits and mount_table.has_fuse(root, f"{folder}/mountinfo") and (said := status(root, folder)):
            yield folder, said.uid


def _state(root: Root, folder: str) -> str:
    fields = stat_fields(root, folder)
    return fields[0] if fields else ""


def _of(root: Root, uids: set[int], processes: Iterable[str]) -> Iterator[str]:
    for process in processes:
        try:
            owner = os.stat(root.join(process)).st_uid
        except OSError:
            continue
        # root owns the /proc folder of a process that may not be dumped (proc_pid(5))
        if owner in uids or (owner == 0 and (said := status(root, process)) and said.uid in uids):
            yield process


def excused(waiting: Iterable[Task], by: Iterable[Task]) -> frozenset[str]:
    """Return the folders of those ``waiting`` tasks that belong to the same process as a task of ``by``, or to the same user
    (except root)."""
    those = tuple(by)
    processes = {process_of(folder) for folder, _ in those}
    uids = {uid for _, uid in those if uid}
    return frozenset(folder for folder, uid in waiting if uid in uids or process_of(folder) in processes)
