"""Runs `fairlead fleet --watch`. On a terminal it shows a live table. Elsewhere it prints a line for each change."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from fairlead.cli.fleet_poll import FleetPoll, FleetPoller
from fairlead.cli.fleet_table import changes, lines, summary, table
from fairlead.cli.output import columns
from fairlead.errors import ExitCode, SlurmUnavailable
from fairlead.model.plain_text import page
from fairlead.provision.terminal_frame import Screen, drawable

if TYPE_CHECKING:
    from rich.console import Group

#: The columns that are left out on a narrow terminal, in this order, until the column WHY has WHY_LEAST characters.
GIVEN_UP, WHY_LEAST = ("SLURMD", "AGENT", "DRIVER", "PROFILE", "SWEPT", "SINCE"), 30
STYLES = {"ok": "green", "warn": "yellow", "drain": "red", "unknown": "magenta", "stale": "magenta"}


def watch(poller: FleetPoller, every: float, *, each: bool, as_json: bool) -> ExitCode:
    """Poll until Ctrl-C. If slurmctld does not answer, show an error and poll again."""
    try:
        if as_json:
            _again(poller, every, _json, _print_error)
        elif drawable(sys.stdout):
            _live(poller, every, each=each)
        else:
            _plain(poller, every)
    except KeyboardInterrupt:
        pass
    return ExitCode.OK


def repeat(poller: FleetPoller, every: float, show: Callable[[FleetPoll], None]) -> ExitCode:
    """Poll until Ctrl-C, and show each poll by ``show``."""
    try:
        _again(poller, every, show, _print_error)
    except KeyboardInterrupt:
        pass
    return ExitCode.OK


def _again(
    poller: FleetPoller,
    every: float,
    show: Callable[[FleetPoll], None],
    fail: Callable[[str], None],
    pause: Callable[[float], None] = time.sleep,
) -> None:
    while True:
        began = time.monotonic()
        try:
            show(poller.poll())
        except SlurmUnavailable as e:
            fail(str(e))
        pause(max(0.0, began + every - time.monotonic()))


def _print_error(error: str) -> None:
    sys.stderr.write(f"fairlead fleet: {error}\n")
    sys.stderr.flush()


def _json(poll: FleetPoll) -> None:
    sys.stdout.write(msgspec.json.encode(poll.data()).decode() + "\n")
    sys.stdout.flush()


def _plain(poller: FleetPoller, every: float) -> None:
    before: list[FleetPoll] = []

    def show(poll: FleetPoll) -> None:
        said = changes(before[0].rows, poll.rows, poll.at) if before else [*lines(poll.folds()), summary(poll.rows, poll.seconds)]
        before[:] = [poll]
        for line in said:
            print(line, flush=True)

    _again(poller, every, show, _print_error)


def _live(poller: FleetPoller, every: float, *, each: bool) -> None:
    last: list[FleetPoll] = []
    failed = [""]
    with Screen() as screen:

        def draw() -> None:
            if last or failed[0]:
                screen.draw(frame(last, failed[0], screen.width, screen.height, each=each))

        def show(poll: FleetPoll) -> None:
            last[:], failed[0] = [poll], ""
            draw()

        def fail(error: str) -> None:
            failed[0] = error
            draw()

        def pause(seconds: float) -> None:
            until = time.monotonic() + seconds
            while (left := until - time.monotonic()) > 0:
                time.sleep(min(left, 0.25))
                if screen.resized():
                    draw()

        _again(poller, every, show, fail, pause)


def frame(last: Sequence[FleetPoll], failed: str, width: int, height: int, *, each: bool) -> Group:
    """Return what to draw: at most ``height`` lines, each cut at ``width``."""
    from rich.console import Group
    from rich.text import Text

    drawn: list[Text] = []
    for poll in last:
        head, rows = narrowed(*table(poll.folds(each=each), time.time()), width)
        at = head.index("VERDICT") if "VERDICT" in head else -1
        lines = columns(rows, head).splitlines()
        room = height - 1 - bool(failed)
        cut = lines if len(lines) <= room else lines[: room - 1]
        drawn += [Text(page(line), no_wrap=True, overflow="ellipsis") for line in cut]
        drawn[0].stylize("bold")
        if at >= 0:
            column = lines[0].index("VERDICT")
            for line, row in zip(drawn[1:], rows, strict=False):
                line.stylize(STYLES.get(row[at], "bold red"), column, column + len(row[at]))
        if len(cut) < len(lines):
            drawn.append(Text(f"... and {len(lines) - len(cut)} more rows: use a higher window or a nodelist", style="dim"))
        clock = time.strftime("%H:%M:%S", time.localtime(poll.at))
        drawn.append(Text(f"{clock}  {summary(poll.rows, poll.seconds)}", style="dim"))
    if failed:
        drawn.append(Text(page(failed), style="bold red"))
    for line in drawn:
        line.no_wrap, line.overflow = True, "ellipsis"
        line.truncate(width, overflow="ellipsis")
    return Group(*drawn)


def narrowed(head: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> tuple[list[str], list[list[str]]]:
    """Return the head and the rows without the least important columns.

    Columns are left out until the rest, with WHY_LEAST characters of WHY, fits into ``width``.
    """
    kept = list(range(len(head)))

    def taken() -> int:
        return sum(WHY_LEAST if head[i] == "WHY" else 2 + max(len(head[i]), *(len(r[i]) for r in rows)) for i in kept)

    for name in GIVEN_UP:
        if rows and taken() > width:
            kept = [i for i in kept if head[i] != name]
    return [head[i] for i in kept], [[r[i] for i in kept] for r in rows]
