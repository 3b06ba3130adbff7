"""The picture of a machine: valid, harmless, everything in it, nothing on top of anything else."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest
from msgspec.structs import replace

from fairlead.model.facts import Missing, Node
from fairlead.topology.audit.layout_audit import audit
from fairlead.topology.audit.machine_view import MachineView
from fairlead.topology.picture.machine_svg import RED, draw, fit, text_width
from fairlead.topology.picture.svg_layout import layout
from tests.topology.build import hgx, link
from tests.topology.trees import NAMES
from tests.topology.trees import node as node_of

SVG = "{http://www.w3.org/2000/svg}"


def words(svg: str) -> list[str]:
    return [t.text or "" for t in ET.fromstring(svg.encode()).iter(f"{SVG}text")]


@pytest.mark.parametrize("name", NAMES)
def test_a_machine_of_the_world(name: str) -> None:
    node = node_of(name)
    svg = draw(node)
    root = ET.fromstring(svg.encode())
    assert {e.tag.removeprefix(SVG) for e in root.iter()} <= {"svg", "title", "rect", "path", "text", "circle"}
    assert not re.search(r"script|href|on[a-z]+=|<!ENTITY|style", svg)
    wide, high = float(root.get("width", "0")), float(root.get("height", "0"))
    view = MachineView(node)
    text = words(svg)
    for gpu in view.gpus:
        assert f"GPU{gpu.index}" in text
        assert gpu.pci in text
    for number in {f"NUMA {n.id}" for n in node.numa if set(n.cpus) & {c.id for c in node.cpus if c.online}}:
        assert number in text
    drawn = layout(view)
    boxes = drawn.boxes()
    for box in boxes:
        assert box.x - box.wide / 2 >= 0 and box.x + box.wide / 2 <= wide
        assert box.y < high
    for i, a in enumerate(boxes):
        for b in boxes[i + 1 :]:
            isolated = abs(a.y - b.y) >= 44 or abs(a.x - b.x) >= (a.wide + b.wide) / 2 + 2
            assert isolated, (a.address, b.address)
    for a, b in zip(drawn.numa_boxes, drawn.numa_boxes[1:], strict=False):
        assert a.x + a.wide < b.x
    assert_texts_fit(root)


def assert_texts_fit(root: ET.Element) -> None:
    """No text in a box reaches beyond it (text at the middle of a box is the box's), none ends beyond the picture."""
    boxes = [{key: float(e.get(key, "0")) for key in ("x", "y", "width", "height")} for e in root.iter(f"{SVG}rect")]
    for e in root.iter(f"{SVG}text"):
        x, y, size = (float(e.get(key, "0")) for key in ("x", "y", "font-size"))
        wide = text_width(e.text or "", size, bold=e.get("font-weight") == "bold")
        left, right = (x - wide / 2, x + wide / 2) if e.get("text-anchor") == "middle" else (x, x + wide)
        # Sentences are narrower than names. The title may be as long as the machine's name is.
        assert left >= 0 and (x + (right - x) * 0.9 <= float(root.get("width", "0")) or y < 40), e.text
        for box in boxes:
            if box["height"] < 200 and box["x"] < x < box["x"] + box["width"] and box["y"] < y < box["y"] + box["height"] - 2:
                assert left >= box["x"] - 0.5 and right <= box["x"] + box["width"] + 0.5, (e.text, box)


def test_long_names_are_made_to_fit() -> None:
    assert fit("mlx5_0", 86, 12, bold=True) == ("mlx5_0", 12)
    assert fit("mlx5_X_0000101b", 86, 12, bold=True) == ("mlx5_X_0000101b", 8)
    text, size = fit("a-very-long-name-of-a-network-interface", 86, 12, bold=True)
    assert size == 7 and text.endswith("\N{HORIZONTAL ELLIPSIS}") and len(text) > 12
    node = hgx(gpus=2)
    named = replace(node, nics=tuple(replace(n, name=f"{n.name}_bonded_and_renamed_by_somebody") for n in node.nics))
    assert_texts_fit(ET.fromstring(draw(named).encode()))


def test_what_the_audit_found_is_marked_and_told() -> None:
    node = hgx()
    pci = tuple(replace(d, link=link(width=8)) if d.address == "0000:13:00.0" else d for d in node.pci)
    broken = replace(node, pci=pci)
    svg = draw(broken)
    (found,) = audit(broken)
    text = " ".join(words(svg))
    assert found.summary in text
    assert "x8 of x16" in words(svg)
    assert f'stroke="{RED}"' in svg
    assert RED not in draw(node).replace(f'stroke="{RED}" stroke-width="3.0"', "")  # but for the legend
    assert "Layout audit: nothing to say" in words(draw(node))


def test_nvlinks() -> None:
    assert words(draw(node_of("hgx-h100"))).count("NV18") == 8
    assert "NVSwitch" in words(draw(node_of("hgx-h100")))
    assert words(draw(node_of("juwels-booster"))).count("NV4") == 6
    node = hgx()
    assert not isinstance(node.gpus, Missing)
    first = node.gpus[0]
    assert not isinstance(first.nvlinks, Missing)
    lame = replace(first, nvlinks=tuple(replace(x, active=i > 3) for i, x in enumerate(first.nvlinks)))
    assert "14 of 18" in words(draw(replace(node, gpus=(lame, *node.gpus[1:]))))


def test_names_from_firmware_cannot_break_it() -> None:
    node = hgx(gpus=1)
    assert not isinstance(node.gpus, Missing)
    evil = replace(node, name="a<b>&\x01", gpus=(replace(node.gpus[0], name='"><script>\x00\x1b[31m</script>'),))
    svg = draw(evil)
    assert "<script" not in svg
    assert ET.fromstring(svg.encode()).find(f"{SVG}title").text == "a<b>&"  # type: ignore[union-attr]


def test_a_machine_without_anything() -> None:
    empty: Node = replace(hgx(gpus=0), pci=(), nics=(), cpus=(), numa=(), gpus=())
    assert "CPUs not described" in words(draw(empty))
