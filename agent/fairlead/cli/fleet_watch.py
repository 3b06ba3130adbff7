"""`fairlead fleet --watch`: a live table on a terminal, elsewhere a line for each change."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import msgspec

from fairlead.cli.fleet_look import Look, Looks
from fairlead.cli.fleet_table import changes, lines, summary, table
from fairlead.errors import ExitCode, SlurmUnavailable

STYLES = {"ok": "green", "warn": "yellow", "drain": "red", "unknown": "magenta", "stale": "magenta"}


def watch(looks: Looks, every: float, *, each: bool, as_json: bool) -> ExitCode:
    """Look until interrupted. A slurmctld that does not answer is told, and asked again."""
    try:
        if as_json:
            _again(looks, every, _json, _told)
        elif sys.stdout.isatty():
            _live(looks, every, each=each)
        else:
            _plain(looks, every)
    except KeyboardInterrupt:
        pass
    return ExitCode.OK


def _again(looks: Looks, every: float, show: Callable[[Look], None], fail: Callable[[str], None]) -> None:
    while True:
        began = time.monotonic()
        try:
            show(looks.look())
        except SlurmUnavailable as e:
            fail(str(e))
        time.sleep(max(0.0, began + every - time.monotonic()))


def _told(error: str) -> None:
    sys.stderr.write(f"fairlead fleet: {error}\n")
    sys.stderr.flush()


def _json(look: Look) -> None:
    sys.stdout.write(msgspec.json.encode(look.data()).decode() + "\n")
    sys.stdout.flush()


def _plain(looks: Looks, every: float) -> None:
    before: list[Look] = []

    def show(look: Look) -> None:
        said = changes(before[0].rows, look.rows, look.at) if before else [*lines(look.folds()), summary(look.rows, look.seconds)]
        before[:] = [look]
        for line in said:
            print(line, flush=True)

    _again(looks, every, show, _told)


def _live(looks: Looks, every: float, *, each: bool) -> None:
    from rich.console import Group
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

    def drawn(look: Look) -> Group:
        head, rows = table(look.folds(each=each), time.time())
        made = Table(box=None, pad_edge=False, expand=False)
        for name in head:
            made.add_column(name, no_wrap=name != "WHY", overflow="fold")
        for row in rows:
            cells = [Text(cell) for cell in row]
            cells[1].stylize(STYLES.get(row[1], "bold red"))
            made.add_row(*cells)
        at = time.strftime("%H:%M:%S", time.localtime(look.at))
        return Group(made, Text(f"{at}  {summary(look.rows, look.seconds)}", style="dim"))

    last: list[Group] = []

    with Live(auto_refresh=False, screen=False) as live:

        def show(look: Look) -> None:
            last[:] = [drawn(look)]
            live.update(last[0], refresh=True)

        def fail(error: str) -> None:
            live.update(Group(*last, Text(error, style="bold red")), refresh=True)

        _again(looks, every, show, fail)
