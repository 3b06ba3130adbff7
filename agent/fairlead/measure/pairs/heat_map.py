"""Draws the table of pairs as SVG 1.1 without scripts: one cell for each pair of nodes, in the order of the leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

from fairlead.measure.pairs.fabric_text import lines, part_line
from fairlead.measure.pairs.fabric_verdict import FabricVerdict, PairLimits, PartKind
from fairlead.measure.pairs.pair_table import Leaves, Pair, PairValue, figure_text, whole
from fairlead.model.nodelist import in_order
from fairlead.model.plain_text import printable

#: Colours that people with a colour deficiency can tell apart (Okabe and Ito).
FAST, SLOW, BAD, FAILED, NOT_MEASURED = "#56b4e9", "#f0e442", "#d55e00", "#000000", "#f4f5f7"
INK, FAINT, RED = "#172b4d", "#97a0af", "#bf2600"
SIZES = ((24, 34), (64, 14), (128, 9), (256, 5))  # up to so many nodes: a cell of so many pixels
SMALLEST = 2
SLOW_SMALLEST = 4  # a slow pair is drawn at least so large
NAMES_MAX = 128  # with more nodes, only the leaves are named
FIGURES_MAX = 24  # with more nodes, the cells have no figures
MARGIN, TOP = 12, 46


def draw(values: Sequence[PairValue], leaves: Leaves, verdict: FabricVerdict, limits: PairLimits, title: str) -> str:
    """Return the drawing. Names are cleaned and escaped."""
    order = [node for leaf in in_order(set(leaves.of.values())) for node in in_order(leaves.nodes()[leaf])]
    at = {node: i for i, node in enumerate(order)}
    cell = next((size for most, size in SIZES if len(order) <= most), SMALLEST)
    named = len(order) <= NAMES_MAX
    left = MARGIN + (7 * max(map(len, order), default=0) + 8 if named else 0) + _leaf_room(leaves)
    top = TOP + (7 * max(map(len, order), default=0) + 8 if named else 16)
    grid = cell * len(order)
    wide, high = max(left + grid + MARGIN, 560), top + grid + 44
    body = [
        _text(MARGIN, 22, title, size=15, bold=True),
        f'<rect x="{left}" y="{top}" width="{grid}" height="{grid}" fill="{NOT_MEASURED}"/>',
        *_cells(values, at, verdict, limits, (left, top, cell)),
        *_frames(leaves, at, (left, top, cell)),
        *(_names(order, verdict, (left, top, cell)) if named else []),
        *_legend(verdict, limits, MARGIN, top + grid + 18),
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{high}" viewBox="0 0 {wide} {high}"'
        f' font-family="Helvetica, Arial, sans-serif" role="img" aria-label="{_clean(title)}">\n'
        f'<rect width="{wide}" height="{high}" fill="#ffffff"/>\n' + "\n".join(body) + "\n</svg>\n"
    )


Grid = tuple[int, int, int]  # x and y of the first cell, and the size of a cell


def _cells(
    values: Sequence[PairValue], at: Mapping[str, int], verdict: FabricVerdict, limits: PairLimits, grid: Grid
) -> list[str]:
    """Return two cells for each pair, one on each side of the diagonal. A pair that was measured twice shows its best figure."""
    best: dict[Pair, PairValue] = {}
    for v in whole(values):
        if v.pair not in best or v.speed > best[v.pair].speed:
            best[v.pair] = v
    left, top, cell = grid
    slow_size = max(cell, SLOW_SMALLEST)
    out = []
    for (a, b), v in sorted(best.items(), key=lambda item: (-item[1].speed, item[0])):  # the slow pairs are drawn on top
        if a not in at or b not in at:
            continue
        fill = colour(v.speed, verdict.expected_gbps, limits)
        size = cell if fill == FAST else slow_size
        said = f"{a} - {b}: {figure_text(v.speed)}, round {v.round}{f' ({v.stage})' if v.stage else ''}"
        for one, other in ((a, b), (b, a)):
            x, y = left + cell * at[other], top + cell * at[one]
            edge = ' stroke="#ffffff"' if cell > SIZES[1][1] else ""
            rect = f'<rect x="{x}" y="{y}" width="{size}" height="{size}" fill="{fill}"{edge}'
            out.append(f"{rect}><title>{_clean(said)}</title></rect>" if size > SMALLEST else f"{rect}/>")
            if len(at) <= FIGURES_MAX:
                ink, words = "#ffffff" if fill in (FAILED, BAD) else INK, f"{v.speed:.3g}" if v.speed else "x"
                out.append(_text(x + cell / 2, y + cell / 2 + 3, words, size=9, fill=ink, middle=True))
    return out


def colour(speed: float, expected: float, limits: PairLimits) -> str:
    """Return the colour of a figure."""
    if not speed or not expected:
        return FAILED
    return FAST if speed >= limits.warn * expected else SLOW if speed >= limits.fail * expected else BAD


def _frames(leaves: Leaves, at: Mapping[str, int], grid: Grid) -> list[str]:
    """Return a frame around the pairs inside each leaf, with the leaf's name at the left."""
    left, top, cell = grid
    out = []
    for leaf, names in leaves.nodes().items():
        first, count = min(at[n] for n in names), len(names)
        x, y, size = left + cell * first, top + cell * first, cell * count
        out.append(f'<rect x="{x}" y="{y}" width="{size}" height="{size}" fill="none" stroke="{INK}" stroke-width="1.5"/>')
        if leaf and size >= 10:
            out.append(_text(MARGIN, y + size / 2 + 4, leaf, size=11, bold=True))
    return out


def _names(order: Sequence[str], verdict: FabricVerdict, grid: Grid) -> list[str]:
    """Return the nodes' names at the left and above. The names of guilty nodes are red and bold."""
    left, top, cell = grid
    kinds = (PartKind.NODE, PartKind.RAIL, PartKind.GONE)
    guilty = {name for kind in kinds for name in verdict.named(kind)}
    size = min(11, max(7, cell))
    out = []
    for i, node in enumerate(order):
        fill, bold = (RED, True) if node in guilty else (INK, False)
        middle = cell * (i + 0.5) + size * 0.35
        out.append(_text(left - 4, top + middle, node, size=size, fill=fill, bold=bold, end=True))
        x, y = left + middle, top - 5
        turned = _text(x, y, node, size=size, fill=fill, bold=bold)
        out.append(turned.replace("<text ", f'<text transform="rotate(-90 {x:.1f} {y:.1f})" ', 1))
    return out


def _legend(verdict: FabricVerdict, limits: PairLimits, x: float, y: float) -> list[str]:
    expected = verdict.expected_gbps
    entries = (
        (FAST, f"from {limits.warn * expected:.4g} GB/s"),
        (SLOW, f"from {limits.fail * expected:.4g}"),
        (BAD, "below"),
        (FAILED, "failed"),
        (NOT_MEASURED, "not measured"),
    )
    out = []
    for fill, words in entries:
        out.append(f'<rect x="{x:.0f}" y="{y:.0f}" width="12" height="12" fill="{fill}" stroke="{FAINT}"/>')
        out.append(_text(x + 17, y + 10, words, size=11))
        x += 30 + 6.5 * len(words)
    return out


def _leaf_room(leaves: Leaves) -> int:
    longest = max((len(leaf) for leaf in leaves.of.values()), default=0)
    return 7 * longest + 10 if longest else 0


def _text(
    x: float, y: float, words: str, *, size: float, fill: str = INK, bold: bool = False, end: bool = False, middle: bool = False
) -> str:
    anchor = ' text-anchor="end"' if end else ' text-anchor="middle"' if middle else ""
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" fill="{fill}"{anchor}{weight}>{_clean(words)}</text>'


def _clean(words: str) -> str:
    return escape(printable(words), {'"': "&quot;"})


STYLE = """body{font:15px/1.5 sans-serif;margin:2rem auto;padding:0 1rem;max-width:90rem;color:#172b4d;background:#fff}
svg{max-width:100%;height:auto}li{margin:.2rem 0}"""


def page(values: Sequence[PairValue], leaves: Leaves, verdict: FabricVerdict, limits: PairLimits, title: str) -> str:
    """Return an HTML page with the drawing and the lines about the guilty parts. The page loads nothing and runs no script."""
    meta = '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    policy = "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
    guilty = [part_line(part) for part in verdict.parts]
    rest = [line for line in lines(verdict, leaves, values) if line not in guilty]
    items = "".join(f"<li>{_clean(line)}</li>" for line in guilty) or "<li>no guilty part</li>"
    below = "".join(f"<p>{_clean(line)}</p>" for line in rest)
    return (
        f'<!doctype html>\n<html lang="en"><head>{meta}{policy}<title>{_clean(title)}</title><style>{STYLE}</style></head>\n'
        f"<body><h1>{_clean(title)}</h1>\n<ul>{items}</ul>\n{draw(values, leaves, verdict, limits, 'GB/s of each pair')}{below}"
        "</body></html>\n"
    )
