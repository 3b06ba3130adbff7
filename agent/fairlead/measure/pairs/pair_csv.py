"""Reads and writes a table of pairs as CSV, so that a site can judge a recorded run again with other limits.

The columns are round, node_a, node_b, rail and gbps, and stage if it is known. A header line may name them. rail is empty if all
rails were measured together. gbps is a number, or ``failed``. Lines that begin with # are comments.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

from fairlead.errors import DataError
from fairlead.measure.pairs.pair_table import PairValue, Stage
from fairlead.model.nodelist import is_name
from fairlead.model.plain_text import one_line

COLUMNS = ("round", "node_a", "node_b", "rail", "gbps", "stage")
FAILED = "failed"
DOWN = "down"
ROWS_MAX = 1_000_000
ROUND_MAX = 9999
RAIL_MAX = 32  # characters of a rail's name
GBPS_MAX = 1e6
MISTAKES_MAX = 20  # the most mistakes that are printed
_DOWN_WORDS = " went down"
_STAGES = {stage.value: stage for stage in Stage}


def render(values: Iterable[PairValue], gone: Collection[str] = ()) -> str:
    """Return the table as CSV. Other pairs that were planned and not measured are left out. gone: the nodes that went down."""
    lines = [",".join(COLUMNS)]
    for v in values:
        lost = sorted(set(v.pair) & set(gone))
        if v.measured or lost:
            figure = f"{v.gbps:.6g}" if v.gbps is not None else FAILED if v.failed else ":".join((DOWN, *lost))
            lines.append(f"{v.round},{v.node_a},{v.node_b},{v.rail},{figure},{v.stage or ''}")
    return "".join(f"{line}\n" for line in lines)


def went_down(values: Iterable[PairValue]) -> dict[str, str]:
    """Return the nodes that went down by a table that ``parse`` returned, and why."""
    lost = {name for v in values if not v.measured for name in v.pair if name in v.why.removesuffix(_DOWN_WORDS).split(", ")}
    return dict.fromkeys(sorted(lost), "the table says so")


def parse(text: str, source: str) -> tuple[PairValue, ...]:
    """Return the rows of a table. Raises one DataError that names every mistake with its line."""
    found: list[PairValue] = []
    mistakes: list[str] = []
    seen: dict[tuple[int, str, str, str], int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = [word.strip() for word in line.split(",")]
        if not line.strip() or line.lstrip().startswith("#") or (not found and tuple(words) == COLUMNS[: len(words)]):
            continue
        if len(found) >= ROWS_MAX:
            mistakes.append(f"line {number}: more than {ROWS_MAX} rows")
            break
        row, wrong = _row(words)
        if row is not None and (earlier := seen.setdefault((row.round, *row.pair, row.rail), number)) != number:
            wrong = [f"the same pair and rail as in line {earlier}, in the same round"]
        mistakes += [f"line {number}: {each}" for each in wrong]
        if row is not None and not wrong:
            found.append(row)
    if text and not text.endswith("\n"):
        mistakes.append(f"line {len(text.splitlines())}: cut off: the line has no end")
    if not found and not mistakes:
        mistakes.append("it has no row")
    if mistakes:
        more = f"; and {len(mistakes) - MISTAKES_MAX} more" if len(mistakes) > MISTAKES_MAX else ""
        hint = "the columns are round,node_a,node_b,rail,gbps[,stage]; gbps is a number, failed or down:NODE"
        raise DataError(f"{source}: {'; '.join(mistakes[:MISTAKES_MAX])}{more}", hint=hint)
    return tuple(found)


def _row(words: list[str]) -> tuple[PairValue | None, list[str]]:
    """Return the row, or None and what is wrong with it."""
    if len(words) not in (len(COLUMNS) - 1, len(COLUMNS)):
        return None, [f"{len(words)} columns, and there must be 5 or 6"]
    round_, a, b, rail, figure, stage = [*words, ""][: len(COLUMNS)]
    wrong = []
    if not (round_.isascii() and round_.isdecimal() and len(round_) <= 4 and 0 < int(round_) <= ROUND_MAX):
        wrong.append(f"round {_quoted(round_)} is no number from 1 to {ROUND_MAX}")
    wrong += [f"{_quoted(name)} is no name of a node" for name in (a, b) if not is_name(name)]
    if a == b:
        wrong.append(f"{_quoted(a)} is measured with itself")
    if rail and (len(rail) > RAIL_MAX or not is_name(rail)):
        wrong.append(f"rail {_quoted(rail)} is no name")
    word, *lost = figure.split(":")
    down = word == DOWN and bool(lost) and set(lost) <= {a, b}
    gbps = None if figure == FAILED or down else _number(figure)
    if gbps is None and figure != FAILED and not down:
        wrong.append(f"gbps {_quoted(figure)} is neither {FAILED}, {DOWN}:NODE nor a number from 0 to {GBPS_MAX:g}")
    if stage and stage not in _STAGES:
        wrong.append(f"stage {_quoted(stage)} is none of {', '.join(_STAGES)}")
    if wrong:
        return None, wrong
    why = f"{', '.join(sorted(lost))}{_DOWN_WORDS}" if down else ""
    failed, of_stage = figure == FAILED, _STAGES.get(stage)
    return PairValue(round=int(round_), node_a=a, node_b=b, rail=rail, gbps=gbps, failed=failed, stage=of_stage, why=why), []


def _number(text: str) -> float | None:
    try:
        value = float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) and 0 <= value <= GBPS_MAX else None


def _quoted(text: str) -> str:
    return repr(one_line(text, 40))
