"""Draws a machine as SVG 1.1 without scripts, on a light background, for a ticket to a vendor. The drawing marks the audit's
findings."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from itertools import combinations
from xml.sax.saxutils import escape

from fairlead.model.facts import Missing, Node
from fairlead.model.finding import Finding, Level
from fairlead.topology.audit.layout_audit import audit
from fairlead.topology.audit.machine_view import MachineView
from fairlead.topology.audit.peer_audit import redirecting_ports
from fairlead.topology.distances.accelerators import Accelerator
from fairlead.topology.distances.path_classes import links_between
from fairlead.topology.picture.svg_layout import INDENT, LINE_HIGH, MARGIN, NUMA_PAD, DeviceBox, SvgLayout, layout

RED, AMBER, INK, FAINT = "#c62828", "#e08e00", "#37474f", "#78909c"
FILL = {"gpu": "#dcedc8", "nic": "#cfe3f7", "nvme": "#eceff1", "switch": "#ffe8c6", "root": "#ffffff"}
EDGE = {"gpu": "#558b2f", "nic": "#1e6fb8", "nvme": "#90a4ae", "switch": "#c77700", "root": FAINT}
GREEN = "#558b2f"
#: The marks of each device: for each finding, its number in the list below the picture, and its colour.
Marks = dict[str, list[tuple[int, str]]]
SMALL = 11  # the smallest text size that a person can read if the picture is not scaled
CELL_WIDE, CELL_HIGH = 46, 20  # the size of a cell in the table of NVLinks


def draw(node: Node) -> str:
    """Return the drawing of one machine as SVG."""
    view = MachineView(node)
    found = audit(node)
    marks = _marks(view, found)
    plan = layout(view)
    title, size = fit(f"{node.name}: {_what(view)}", plan.wide - 2 * MARGIN, 16, bold=True)
    body: list[str] = [_text(MARGIN, 26, title, size=size, weight="bold")]
    body += _frames(plan)
    for box in plan.boxes():
        body += _lines(view, box, marks)
    badges = _badges(view)
    for box in plan.boxes():
        body += _device_box(view, box, marks, badges.get(box.address))
    for box in plan.boxes():
        body += _numbers(box, marks)
    below, bottom = _nvlinks(view, plan)
    body += below
    legend, bottom = _legend(plan, bottom)
    body += legend
    texts, bottom = _texts(found, plan, bottom)
    body += texts
    area = f'width="{plan.wide:.0f}" height="{bottom:.0f}" viewBox="0 0 {plan.wide:.0f} {bottom:.0f}"'
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<svg xmlns="http://www.w3.org/2000/svg" {area} font-family="Helvetica, Arial, sans-serif">\n'
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


def _marks(view: MachineView, found: tuple[Finding, ...]) -> Marks:
    """Return for each device its findings' numbers in the list below the picture, and their colours."""
    marks: Marks = {}
    for number, f in _numbered(found):
        several = [port.address for port in redirecting_ports(view)] if f.check == "topology.acs_redirect" else []
        for device in [f.device] if f.device else several:
            marks.setdefault(device, []).append((number, AMBER if f.level == Level.OK else RED))
    return marks


def _numbered(found: tuple[Finding, ...]) -> Iterable[tuple[int, Finding]]:
    """Yield the findings with their numbers, from 1. Findings with the same text about several devices have the same number."""
    numbers: dict[tuple[str, str], int] = {}
    for f in found:
        key = (f.check, f.summary.replace(f.device, "*") if f.device else f.summary)
        yield numbers.setdefault(key, len(numbers) + 1), f


def _frames(plan: SvgLayout) -> list[str]:
    """Return the frames of the packages, and in them the frames of the NUMA nodes with texts about these nodes."""
    out = []
    for package in plan.packages:
        if package.number >= 0:
            out.append(_rect(package.x, package.y, package.wide, package.high, "#eceff7", "#9fa8c9", 10))
            out.append(_text(package.x + 10, package.y + 18, f"package {package.number}", size=12, weight="bold"))
    for box in plan.numa_boxes:
        known = box.package >= 0
        fill, edge = ("#ffffff", "#7986b5") if known else ("#fff8e1", AMBER)
        out.append(_rect(box.x, box.y, box.wide, box.high, fill, edge, 6, dash="" if known else "6 4"))
        for i, line in enumerate(box.lines):
            text, size = fit(line, box.wide - 2 * NUMA_PAD, SMALL if i else 13, bold=not i)
            weight = "" if i else "bold"
            out.append(_text(box.x + NUMA_PAD, box.y + NUMA_PAD + 12 + LINE_HIGH * i, text, size=size, weight=weight))
    return out


def _lines(view: MachineView, box: DeviceBox, marks: Marks) -> list[str]:
    """Return the lines from a box to the boxes below it. The lines that the audit has marked are drawn last, on top."""
    good, bad = [], []
    x = box.x + INDENT / 2
    for child in box.below:
        link = view.link(child.address)
        way = f"M{x:.1f} {box.y + box.high:.1f} V{child.y + child.high / 2:.1f} H{child.x:.1f}"
        if colour := _colour(marks, child.address, view):
            bad.append(_path(way, colour, 3.2))
        else:
            good.append(_path(way, INK, 1 + ((link.width if link is not None else 0) or 4) / 10))
    return good + bad


def _link_label(view: MachineView, address: str) -> str:
    """Return the width and generation of the link above a device, or "" if they are not known."""
    link = view.link(address)
    if link is None or not (link.width or link.width_able):
        return ""
    if link.width and link.width < link.width_able:
        return f"x{link.width} of x{link.width_able}"
    return f"x{link.width or link.width_able}" + (f" Gen{link.gen_able}" if link.gen_able else "")


def _colour(marks: Marks, address: str, view: MachineView) -> str:
    """Return the colour of the line above a device: the colour of the marks of the device or of the port directly above it, else
    ""."""
    found = [colour for _, colour in (*marks.get(address, ()), *marks.get(_port(view, address), ()))]
    return RED if RED in found else AMBER if found else ""


def _port(view: MachineView, address: str) -> str:
    """Return the port directly above a device, or "" if its path was not read."""
    device = view.devices.get(address)
    return device.path[-2] if device is not None and len(device.path) > 1 else ""


def _device_box(view: MachineView, box: DeviceBox, marks: Marks, badge: tuple[str, str] | None) -> list[str]:
    """Return a drawn box with its lines of text.

    The first line ends with the GPU's NVLinks (``badge``: text and colour), and the last line with the PCIe link. The line before
    the last one ends with the numbers of the findings about the port above.
    """
    own = marks.get(box.address, [])
    edge = RED if any(c == RED for _, c in own) else AMBER if own else EDGE[box.kind]
    out = [_rect(box.x, box.y, box.wide, box.high, FILL[box.kind], edge, 4, thick=2.5 if own else 1.2)]
    ends = {0: badge}
    if box.kind != "root":
        colour = _colour(marks, box.address, view) or INK
        ends[len(box.lines) - 2] = ends.get(len(box.lines) - 2) or _port_numbers(view, box.address, marks)
        ends[len(box.lines) - 1] = (_link_label(view, box.address), colour)
    first = box.y + (box.high - 14 * (len(box.lines) - 1)) / 2 + 4
    for i, line in enumerate(box.lines):
        bold = i == 0 and box.kind in ("gpu", "nic")
        room = box.wide - 10
        if (end := ends.get(i)) and end[0]:
            wide = text_width(end[0], SMALL)
            out.append(_text(box.x + box.wide - 5 - wide / 2, first + 14 * i, end[0], size=SMALL, fill=end[1], middle=True))
            room -= wide + 3
        text, size = fit(line, room, 12 if bold else SMALL, bold=bold)
        out.append(_text(box.x + 5, first + 14 * i, text, size=size, weight="bold" if bold else ""))
    return out


def _port_numbers(view: MachineView, address: str, marks: Marks) -> tuple[str, str]:
    """Return the numbers of the findings about the port directly above a device, and their colour."""
    found = dict.fromkeys(marks.get(_port(view, address), ()))
    return " ".join(f"#{number}" for number, _ in found), RED if any(colour == RED for _, colour in found) else AMBER


def _numbers(box: DeviceBox, marks: Marks) -> list[str]:
    """Return the numbers of the findings about a device, drawn at its box."""
    out = []
    for i, (number, colour) in enumerate(dict.fromkeys(marks.get(box.address, []))):
        x, y = box.x + box.wide + 6, box.y + 9 + 19 * i
        out += _number(x, y, number, colour)
    return out


def _number(x: float, y: float, number: int, colour: str) -> list[str]:
    circle = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="9" fill="{colour}"/>'
    return [circle, _text(x, y + 4, str(number), size=SMALL, weight="bold", fill="#ffffff", middle=True)]


def _badges(view: MachineView) -> dict[str, tuple[str, str]]:
    """Return for each GPU a text and its colour: the GPU's NVLinks to switches, or that the GPU is lost."""
    badges = {}
    for gpu in _switched(view):
        links = gpu.nvlinks if isinstance(gpu.nvlinks, tuple) else ()
        active = sum(1 for link in links if link.active is True)
        badges[gpu.pci] = (f"{active} of {len(links)}", RED) if active < len(links) else (f"NV{active}", GREEN)
    lost = () if isinstance(view.node.gpus, Missing) else [gpu.pci for gpu in view.node.gpus if gpu.lost]
    return badges | dict.fromkeys(lost, ("lost", RED))


def _switched(view: MachineView) -> list[Accelerator]:
    """Return the GPUs that have NVLinks to a switch."""
    return [g for g in view.gpus if isinstance(g.nvlinks, tuple) and any(link.remote == "switch" for link in g.nvlinks)]


def _nvlinks(view: MachineView, plan: SvgLayout) -> tuple[list[str], float]:
    """Return the drawn part about NVLink, which is below the boxes, and the y at which it ends.

    It is a bar for NVSwitch, a table of the links between GPUs, or a sentence if only NVML could give the links.
    """
    top, wide = plan.bottom + 14, plan.wide - 2 * MARGIN
    if any(gpu.vendor == "NVIDIA" for gpu in view.gpus) and isinstance(view.node.gpus, Missing):
        text = "NVLink and GPU memory are not known: NVML did not answer"
        bar = _rect(MARGIN, top, wide, 24, "#fff8e1", AMBER, 4, dash="6 4")
        return [bar, _text(plan.wide / 2, top + 16, text, size=12, middle=True)], top + 44
    if switched := _switched(view):
        bar = _rect(MARGIN, top, wide, 24, FILL["gpu"], GREEN, 4)
        joined = f"joins {len(switched)} GPUs"
        name = _text(MARGIN + 10, top + 16, "NVSwitch", size=12, weight="bold")
        return [bar, name, _text(MARGIN + 90, top + 16, joined, size=12)], top + 44
    pairs = [(a, b, links_between(a, b)) for a, b in combinations(view.gpus, 2)]
    if not any(count for *_, count in pairs):
        return [], top + 10
    return _link_table(view, pairs, top)


def _link_table(view: MachineView, pairs: list[tuple[Accelerator, Accelerator, int]], top: float) -> tuple[list[str], float]:
    """Return a table of the links between GPUs, each pair once, and the y at which the table ends."""
    column = {gpu.pci: MARGIN + CELL_WIDE * (i + 1) for i, gpu in enumerate(view.gpus)}
    row = {gpu.pci: top + CELL_HIGH * (i + 1) for i, gpu in enumerate(view.gpus)}
    out = [_text(MARGIN, top + 14, "links", size=SMALL, weight="bold")]
    for gpu in view.gpus[1:]:
        out.append(_text(column[gpu.pci] + CELL_WIDE / 2, top + 14, f"to {gpu.index}", size=SMALL, middle=True))
    for gpu in view.gpus[:-1]:
        out.append(_text(MARGIN, row[gpu.pci] + 14, f"GPU{gpu.index}", size=SMALL))
    for a, b, count in pairs:
        x, y = column[b.pci], row[a.pci]
        out.append(_rect(x + 1, y + 1, CELL_WIDE - 2, CELL_HIGH - 2, FILL["gpu"] if count else "#ffffff", FAINT, 2, thick=0.6))
        if count:
            label = f"{'XGMI' if a.vendor == 'AMD' else 'NV'}{count}"
            out.append(_text(x + CELL_WIDE / 2, y + 14, label, size=SMALL, fill="#33691e", middle=True))
    return out, top + CELL_HIGH * len(view.gpus) + 20


def _legend(plan: SvgLayout, top: float) -> tuple[list[str], float]:
    out, at = [], float(MARGIN)
    for kind, word in (("gpu", "GPU"), ("nic", "NIC"), ("nvme", "NVMe disk"), ("switch", "PCIe switch"), ("root", "host bridge")):
        out.append(_rect(at, top, 14, 14, FILL[kind], EDGE[kind], 3))
        out.append(_text(at + 20, top + 11, word, size=11))
        at += 34 + 6.6 * len(word)
    for colour, word in ((RED, "to put right"), (AMBER, "worth knowing")):
        out.append(_path(f"M{at:.1f} {top + 7:.1f} h16", colour, 3))
        out.append(_text(at + 22, top + 11, word, size=11))
        at += 42 + 6.6 * len(word)
    if plan.detached:
        text, size = fit(plan.detached, plan.wide - 2 * MARGIN, SMALL)
        out.append(_text(MARGIN, top + 36, text, size=size))
        top += 22
    return out, top + 40


def _texts(found: tuple[Finding, ...], plan: SvgLayout, top: float) -> tuple[list[str], float]:
    """Return the audit's text below the drawing, with the drawing's numbers, and the y at which the text ends."""
    groups: dict[int, list[Finding]] = {}
    for number, f in _numbered(found):
        groups.setdefault(number, []).append(f)
    out = [_text(MARGIN, top, "Layout audit" if groups else "Layout audit: nothing to say", size=13, weight="bold")]
    top += 22
    for number, alike in groups.items():
        first = alike[0]
        colour = AMBER if first.level == Level.OK else RED
        more = f" (and {len(alike) - 1} more: {', '.join(f.device for f in alike[1:])})" if len(alike) > 1 else ""
        out += _number(MARGIN + 10, top - 4, number, colour)
        for line in textwrap.wrap(first.summary + more, int((plan.wide - 64) / 6.1)):
            out.append(_text(48, top, line, size=11))
            top += 16
        top += 6
    return out, top + 8


def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """Return roughly how many pixels wide a text gets, in the widest of the usual fonts (DejaVu Sans)."""
    return len(text) * size * (0.71 if bold else 0.61)


def fit(text: str, wide: float, size: int, *, bold: bool = False) -> tuple[str, int]:
    """Return the text and a size with which it fits into ``wide`` pixels. The size is not below ``SMALL``. If the text is still
    too long, it is cut at its end."""
    while size > SMALL and text_width(text, size, bold=bold) > wide:
        size -= 1
    if text_width(text, size, bold=bold) > wide:
        text = text[: max(1, int(wide / text_width("x", size, bold=bold)) - 1)] + "\N{HORIZONTAL ELLIPSIS}"
    return text, size


def _clean(text: str) -> str:
    """Return the text without anything that is unsafe in XML, because names come from firmware."""
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
