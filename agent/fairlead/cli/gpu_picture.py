"""Draws the GPUs of a node by NUMA node, with the GPUs that findings name marked by colour and by the form of the line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from fairlead.provision.node_details import GpuSlot

WIDE, HIGH, GAP, LABEL = 130, 58, 10, 26


def gpu_picture(gpus: Sequence[GpuSlot], findings: Sequence[Mapping[str, Any]] | None) -> str:
    """Return the picture as SVG. ``findings``: with ``device``, ``check`` and ``level``; a device may be a PCI address. None: the
    findings are not known, so that no GPU is drawn as well."""
    groups: dict[int | None, list[GpuSlot]] = {}
    for gpu in gpus:
        groups.setdefault(gpu.numa, []).append(gpu)
    columns = min(4, max(map(len, groups.values())))
    width = columns * (WIDE + GAP) + GAP
    out, y = [], 0
    for numa in sorted(groups, key=lambda n: (n is None, n or 0)):
        members = groups[numa]
        rows = -(-len(members) // columns)
        height = LABEL + rows * (HIGH + GAP)
        name = f"NUMA node {numa}" if numa is not None else "NUMA node not known"
        out.append(f'<rect class="box" x="1" y="{y + 1}" width="{width - 2}" height="{height - 2}" rx="4"/>')
        out.append(f'<text x="{GAP}" y="{y + 18}" font-size="13">{name}</text>')
        for i, gpu in enumerate(members):
            out += _gpu(gpu, findings, GAP + i % columns * (WIDE + GAP), y + LABEL + i // columns * (HIGH + GAP))
        y += height + GAP
    said = f"{len(gpus)} GPUs on {len(groups)} NUMA nodes"
    return f'<svg viewBox="0 0 {width} {y}" width="{width}" role="img" aria-label="{said}">{"".join(out)}</svg>'


def _gpu(gpu: GpuSlot, findings: Sequence[Mapping[str, Any]] | None, x: int, y: int) -> list[str]:
    own = [f for f in findings or () if gpu.pci in str(f.get("device", ""))]
    drains = any(f.get("level") == "drain" for f in own)
    style = "gpu bad" if drains else "gpu warned" if own else "gpu" if findings is not None else "gpu unknown"
    checks = ", ".join(dict.fromkeys(str(f.get("check", "")) for f in own))
    name = f"GPU {gpu.index}" if gpu.index is not None else "GPU"
    said = checks[:18] + ("..." if len(checks) > 18 else "") if own else "no finding" if findings is not None else "not known"
    sign = "✗ " if drains else "! " if own else "" if findings is not None else "? "
    box = f'<rect class="{style}" x="{x}" y="{y}" width="{WIDE}" height="{HIGH}" rx="4">'
    return [
        f"{box}<title>{escape(checks or said)}</title></rect>",
        f'<text x="{x + 8}" y="{y + 18}" font-size="13">{sign}{name}</text>',
        f'<text x="{x + 8}" y="{y + 34}" font-size="11">{gpu.pci}</text>',
        f'<text x="{x + 8}" y="{y + 50}" font-size="11">{escape(said)}</text>',
    ]
