"""A machine as a drawing (SVG 1.1, no scripts, light): for a ticket to a vendor. What the audit found is marked in it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from itertools import combinations
from xml.sax.saxutils import escape

from fairlead.model.facts import Node
from fairlead.model.finding import Finding, Level
from fairlead.topology.audit.layout_audit import audit
from fairlead.topology.audit.machine_view import MachineView
from fairlead.topology.distances.path_classes import links_between
from fairlead.topology.picture.svg_layout import LEAF, NUMA_BOX_HIGH, NUMA_BOX_TOP, TOP, DeviceBox, SvgLayout, layout

RED, AMBER, INK, FAINT = "#c62828", "#e08e00", "#37474f", "#78909c"
FILL = {"gpu": "#dcedc8", "nic": "#cfe3f7", "nvme": "#eceff1", "switch": "#ffe8c6", "root": "#ffffff"}
EDGE = {"gpu": "#558b2f", "nic": "#1e6fb8", "nvme": "#90a4ae", "switch": "#c77700", "root": FAINT}
HIGH = {"gpu": 50, "nic": 50, "nvme": 50, "switch": 34, "root": 20}
GREEN = "#558b2f"


def draw(node: Node) -> str:
    """Return the drawing of one machine as SVG."""
    view = MachineView(node)
    found = audit(node)
    marks = _marks(found)
    plan = layout(view)
    body: list[str] = [_text(24, 26, f"{node.name}: {_what(view)}", size=16, weight="bold")]
    body += _numa_boxes(plan)
    for box in plan.boxes():
        body += _lines(view, box, marks)
    for box in plan.boxes():
        body += _device_box(box, marks)
    below, bottom = _nvlinks(view, plan)
    body += below
    legend, bottom = _legend(plan, bottom)
    body += legend
    texts, bottom = _texts(found, plan, bottom)
    body += texts
    size = f'width="{plan.wide:.0f}" height="{bottom:.0f}" viewBox="0 0 {plan.wide:.0f} {bottom:.0f}"'
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="Helvetica, Arial, sans-serif">\n'
        f"<title>{_clean(node.name)}</title>\n"
        f'<rect width="{plan.wide:.0f}" height="{bottom:.0f}" fill="#ffffff"/>\n' + "\n".join(body) + "\n</svg>\n"
    )


def _what(view: MachineView) -> str:
    names: dict[str, int] = {}
    for gpu in view.gpus:
        names[gpu.name] = names.get(gpu.name, 0) + 1
    parts = [f"{count} x {name}" for name, count in names.items()] or ["no GPU"]
    if view.nics:
        parts.append(f"{len(view.nics)} NIC{'s' if len(view.nics) > 1 else ''}")
    return ", ".join(parts)


def _marks(found: tuple[Finding, ...]) -> dict[str, list[tuple[int, str]]]:
    """Return by device the number of each of its findings in the list, and its colour."""
    marks: dict[str, list[tuple[int, str]]] = {}
    for number, f in _numbered(found):
        if f.device:
            marks.setdefault(f.device, []).append((number, AMBER if f.level == Level.OK else RED))
    return marks


def _numbered(found: tuple[Finding, ...]) -> Iterable[tuple[int, Finding]]:
    """Yield the findings with their numbers, from 1; findings that say the same of several devices share a number."""
    numbers: dict[tuple[str, str], int] = {}
    for f in found:
        key = (f.check, f.summary.replace(f.device, "*") if f.device else f.summary)
        yield numbers.setdefault(key, len(numbers) + 1), f


def _numa_boxes(plan: SvgLayout) -> list[str]:
    out = []
    for number, left, wide in plan.packages:
        if number >= 0:
            out.append(_rect(left - 8, TOP, wide + 16, NUMA_BOX_HIGH + 38, "#eceff7", "#9fa8c9", 10))
            out.append(_text(left, TOP + 18, f"package {number}", size=12, weight="bold"))
    for numa_box in plan.numa_boxes:
        known = numa_box.package >= 0
        fill, edge = ("#ffffff", "#7986b5") if known else ("#fff8e1", AMBER)
        out.append(_rect(numa_box.x, NUMA_BOX_TOP, numa_box.wide, NUMA_BOX_HIGH, fill, edge, 6, dash="" if known else "6 4"))
        for i, line in enumerate(numa_box.lines):
            text, size = fit(line, numa_box.wide - 14, 11 if i else 13, bold=not i)
            out.append(_text(numa_box.x + 8, NUMA_BOX_TOP + 18 + 17 * i, text, size=size, weight="" if i else "bold"))
    return out


def _lines(view: MachineView, box: DeviceBox, marks: dict[str, list[tuple[int, str]]]) -> list[str]:
    """Return the lines from a host bridge to its NUMA node, or from a box to those below with the link's width and generation."""
    out = []
    if box.kind == "root":
        out.append(_path(f"M{box.x:.1f} {NUMA_BOX_TOP + NUMA_BOX_HIGH} V{box.y - 10:.1f}", FAINT, 1.5))
    for child in box.below:
        link = view.link(child.address)
        bad = _colour(marks, child.address, view)
        start, end = box.y + HIGH[box.kind] / 2, child.y - HIGH[child.kind] / 2
        middle = start + 10
        lanes = link.width if link is not None else 0
        thick = 3.2 if bad else 1 + (lanes or 4) / 10
        way = f"M{box.x:.1f} {start:.1f} V{middle:.1f} H{child.x:.1f} V{end:.1f}"
        out.append(_path(way, bad or INK, thick))
        if link is not None and (link.width or link.width_able):
            width = link.width or link.width_able
            label = f"x{width}" + (f" Gen{link.gen_able}" if link.gen_able else "")
            if link.width and link.width < link.width_able:
                label = f"x{width} of x{link.width_able}"
            label += "".join(f" #{number}" for number, _ in marks.get(_port(view, child.address), ()))
            out.append(_text(child.x + 4, end - 5, label, size=9, fill=bad or INK))
    return out


def _colour(marks: dict[str, list[tuple[int, str]]], address: str, view: MachineView) -> str:
    """Return the colour of the line above a device: of its own marks, or those of the port right above it; "" for none."""
    found = [colour for _, colour in (*marks.get(address, ()), *marks.get(_port(view, address), ()))]
    return RED if RED in found else AMBER if found else ""


def _port(view: MachineView, address: str) -> str:
    """Return the port right above a device; "" when its path was not read."""
    device = view.devices.get(address)
    return device.path[-2] if device is not None and len(device.path) > 1 else ""


def _device_box(box: DeviceBox, marks: dict[str, list[tuple[int, str]]]) -> list[str]:
    own = marks.get(box.address, [])
    high = HIGH[box.kind]
    edge = RED if any(c == RED for _, c in own) else AMBER if own else EDGE[box.kind]
    left, top = box.x - box.wide / 2, box.y - high / 2
    out = [_rect(left, top, box.wide, high, FILL[box.kind], edge, 4, thick=2.5 if own else 1.2)]
    lines = [line for line in box.lines if line]
    first = box.y - 6.5 * (len(lines) - 1) + 4
    for i, line in enumerate(lines):
        bold = "bold" if i == 0 and box.kind in ("gpu", "nic") else ""
        size = 12 if bold else 9 if box.kind == "root" or (box.kind == "gpu" and i == 1) else 10
        text, size = fit(line, box.wide - 6, size, bold=bool(bold))
        out.append(_text(box.x, first + 13 * i, text, size=size, weight=bold, middle=True))
    for i, (number, colour) in enumerate(dict.fromkeys(own)):
        at = left + 2 + 18 * i
        out.append(f'<circle cx="{at:.1f}" cy="{top + high - 1:.1f}" r="8" fill="{colour}"/>')
        out.append(_text(at, top + high + 2.5, str(number), size=10, weight="bold", fill="#ffffff", middle=True))
    return out


def _nvlinks(view: MachineView, plan: SvgLayout) -> tuple[list[str], float]:
    """Return the NVLinks below the row of leaves (a bar for NVSwitch, arcs between GPUs), and the y where they end."""
    where = {box.address: box.x for box in plan.boxes() if box.kind == "gpu"}
    floor = plan.leaf_y + 25
    out: list[str] = []
    switched = [g for g in view.gpus if isinstance(g.nvlinks, tuple) and any(link.remote == "switch" for link in g.nvlinks)]
    if switched:
        bar = floor + 46
        xs = [where[g.pci] for g in switched if g.pci in where]
        out.append(_rect(min(xs) - LEAF / 2, bar, max(xs) - min(xs) + LEAF, 22, "#dcedc8", GREEN, 4))
        out.append(_text((min(xs) + max(xs)) / 2, bar + 15, "NVSwitch", size=11, weight="bold", middle=True))
        for gpu in switched:
            links = gpu.nvlinks if isinstance(gpu.nvlinks, tuple) else ()
            active = sum(1 for link in links if link.active is True)
            bad = active < len(links)
            colour = RED if bad else GREEN
            out.append(_path(f"M{where[gpu.pci]:.1f} {floor:.1f} V{bar:.1f}", colour, 3, dash="5 4" if bad else ""))
            label = f"{active} of {len(links)}" if bad else f"NV{active}"
            out.append(_text(where[gpu.pci] + 5, floor + 26, label, size=10, fill=colour))
        return out, bar + 40
    pairs = [(a, b, links_between(a, b)) for a, b in combinations(view.gpus, 2) if a.pci in where and b.pci in where]
    pairs = [p for p in pairs if p[2]]
    if not pairs:
        return out, floor + 24
    spans = sorted({abs(where[a.pci] - where[b.pci]) for a, b, _ in pairs})
    deepest = 0.0
    for a, b, count in pairs:
        left, right = sorted((where[a.pci], where[b.pci]))
        depth = 34 + 26 * spans.index(right - left)
        deepest = max(deepest, depth)
        low = floor + depth * 1.33
        out.append(
            _path(
                f"M{left:.1f} {floor:.1f} C{left:.1f} {low:.1f} {right:.1f} {low:.1f} {right:.1f} {floor:.1f}",
                GREEN,
                1 + count / 3,
            )
        )
        out.append(
            _text(
                (left + right) / 2,
                floor + depth - 4,
                f"{'XGMI' if a.vendor == 'AMD' else 'NV'}{count}",
                size=10,
                fill=GREEN,
                middle=True,
            )
        )
    return out, floor + deepest + 30


def _legend(plan: SvgLayout, top: float) -> tuple[list[str], float]:
    out, at = [], 24.0
    for kind, word in (("gpu", "GPU"), ("nic", "NIC"), ("nvme", "NVMe disk"), ("switch", "PCIe switch"), ("root", "host bridge")):
        out.append(_rect(at, top, 14, 14, FILL[kind], EDGE[kind], 3))
        out.append(_text(at + 20, top + 11, word, size=11))
        at += 34 + 6.6 * len(word)
    for colour, word in ((RED, "to put right"), (AMBER, "worth knowing")):
        out.append(_path(f"M{at:.1f} {top + 7:.1f} h16", colour, 3))
        out.append(_text(at + 22, top + 11, word, size=11))
        at += 42 + 6.6 * len(word)
    if plan.detached:
        out.append(_text(24, top + 36, plan.detached, size=11))
        top += 22
    return out, top + 40


def _texts(found: tuple[Finding, ...], plan: SvgLayout, top: float) -> tuple[list[str], float]:
    """Return the audit's text below the drawing, numbered as in it, and the y where it ends."""
    groups: dict[int, list[Finding]] = {}
    for number, f in _numbered(found):
        groups.setdefault(number, []).append(f)
    out = [_text(24, top, "Layout audit" if groups else "Layout audit: nothing to say", size=13, weight="bold")]
    top += 22
    for number, alike in groups.items():
        first = alike[0]
        colour = AMBER if first.level == Level.OK else RED
        more = f" (and {len(alike) - 1} more: {', '.join(f.device for f in alike[1:])})" if len(alike) > 1 else ""
        out.append(f'<circle cx="32" cy="{top - 4:.1f}" r="8" fill="{colour}"/>')
        out.append(_text(32, top - 0.5, str(number), size=10, weight="bold", fill="#ffffff", middle=True))
        for line in textwrap.wrap(first.summary + more, max(60, int((plan.wide - 80) / 6.1))):
            out.append(_text(48, top, line, size=11))
            top += 16
        top += 6
    return out, top + 8


def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """Return roughly how many pixels wide a text gets, in the widest of the usual fonts (DejaVu Sans)."""
    return len(text) * size * (0.71 if bold else 0.61)


def fit(text: str, wide: float, size: int, *, bold: bool = False) -> tuple[str, int]:
    """Return the text and its size as it fits into ``wide`` pixels: in a smaller size, not below 7; then without its end."""
    while size > 7 and text_width(text, size, bold=bold) > wide:
        size -= 1
    if text_width(text, size, bold=bold) > wide:
        text = text[: max(1, int(wide / text_width("x", size, bold=bold)) - 1)] + "\N{HORIZONTAL ELLIPSIS}"
    return text, size


def _clean(text: str) -> str:
    """Return text that is safe in XML: names come from firmware."""
    return escape("".join(c for c in text if c.isprintable()))


def _text(x: float, y: float, text: str, *, size: int, weight: str = "", fill: str = "#263238", middle: bool = False) -> str:
    more = f' font-weight="{weight}"' if weight else ""
    more += ' text-anchor="middle"' if middle else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{fill}"{more}>{_clean(text)}</text>'


def _rect(  # noqa: PLR0917 - the order of SVG's own attributes
    x: float, y: float, w: float, h: float, fill: str, edge: str, r: int, *, thick: float = 1.2, dash: str = ""
) -> str:
    more = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}" rx="{r}" fill="{fill}" stroke="{edge}" '
        f'stroke-width="{thick}"{more}/>'
    )


def _path(way: str, colour: str, thick: float, *, dash: str = "") -> str:
    more = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<path d="{way}" fill="none" stroke="{colour}" stroke-width="{thick:.1f}"{more}/>'
