"""Reads the traces that follow "INFO: task ... blocked" in the kernel log, and says which of those tasks wait for a FUSE
server.

One report is several records in this order (kernel/hung_task.c, check_hung_task; kernel/sched/core.c, sched_show_task): the
name of the task, its state and process id, "Call Trace:", and one function per record, the innermost first. Records of other
CPUs may come in between.

Functions that every wait runs through (scheduler, locks, page cache) are skipped. The first other function decides whether the
task waits for FUSE. A function that the kernel marks as uncertain ("? name") is ignored. If a record is missing, or if the
trace is of another task, the task counts as hung.
"""

from __future__ import annotations

import re

from fairlead.model.check_definition import KernelRecord
from fairlead.model.hung_tasks import HUNG, WAITS, record_text, waits_for_server

_LINES_MAX = 64
_TASK = re.compile(r"task:.{15,40}? state:\S.{0,40}? pid:(\d{1,10})\b")
_CALLS = re.compile(r"Call [Tt]race:\s*")
_FRAME = re.compile(
    r" {1,8}([A-Za-z_][A-Za-z0-9_.]{0,120})\+0x[0-9a-f]+/0x[0-9a-f]+(?: \[[a-z0-9_-]{1,60}(?: [A-Za-z0-9()_ -]{1,60})?\])?\s*"
)
_FIRST = re.compile(r"__schedule|__switch_to|schedule")
#: Every wait runs through these functions on its way to the scheduler.
_GENERAL = re.compile(
    r"_*(?:switch_to|schedule|io_schedule|preempt_schedule|rt_mutex_schedule|bit_wait|wait_on_bit|out_of_line_wait_on_bit|wait_on_page|"
    r"wait_for_completion|wait_for_common|wait_woken|lock_page|lock_folio|folio_lock|folio_wait|folio_put_wait|filemap|"
    r"generic_file_read|generic_file_buffered_read|generic_file_mmap|do_read_cache|read_cache|read_pages|page_cache|ondemand_readahead|"
    r"force_page_cache|do_page_cache|mutex_lock|ww_mutex_lock|down_read|down_write|rwsem_down|schedule_preempt|"
    r"invalidate_inode_pages|truncate_inode_pages|truncate_pagecache)[a-z0-9_.]*"
)


class HungTrace:
    """Follows one log, record after record, and remembers the hung task whose trace may still come."""

    def __init__(self) -> None:
        self._hung: KernelRecord | None = None
        self._pid = ""
        self._last = 0
        self._began = False
        self._frames = 0

    @property
    def follows(self) -> bool:
        """Return whether the next record may still belong to the last hung task. If so, ``take`` must get that record."""
        return self._hung is not None

    def take(self, sequence: int, record: KernelRecord | None) -> KernelRecord | None:
        """Read the next record, or None for a record that was dropped.

        If it shows that the last hung task waits for a FUSE server, return a record (made by fairlead) with this fact. Else
        return None.
        """
        if record is not None and (found := HUNG.match(record.text)):
            self._hung, self._pid, self._last = record, found[1], sequence
            self._began, self._frames = False, 0
            return None
        if self._hung is None:
            return None
        if sequence != self._last + 1 or sequence - self._hung.sequence > _LINES_MAX:
            self._hung = None
            return None
        self._last = sequence
        return None if record is None else self._line(record, self._hung)

    def _line(self, record: KernelRecord, hung: KernelRecord) -> KernelRecord | None:
        if header := _TASK.match(record.text):
            self._hung = hung if header[1] == self._pid and not self._began else None
        elif _CALLS.fullmatch(record.text):
            self._hung = None if self._began else hung
            self._began = True
        elif self._began and (frame := _FRAME.fullmatch(record.text)):
            self._frames += 1
            if self._frames == 1 and not _FIRST.fullmatch(frame[1]):
                self._hung = None  # a task that does not sleep: another CPU printed this trace
            elif not _GENERAL.fullmatch(frame[1]):
                self._hung = None
                if waits_for_server(frame[1]):
                    return KernelRecord(
                        sequence=record.sequence,
                        seconds=record.seconds,
                        priority=record.priority,
                        text=record_text(hung.sequence, self._pid),
                        boot_id=record.boot_id,
                    )
        return None


def is_ours(record: KernelRecord) -> bool:
    """Return whether a record of the log has the text of a record that only this module may make."""
    return WAITS.match(record.text) is not None
