"""The picture of a machine: valid, harmless, everything in it, nothing on top of anything else."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from itertools import combinations

import pytest
from msgspec.structs import replace

from fairlead.model.facts import Missing, Node, unreadable
from fairlead.topology.audit.layout_audit import audit
from fairlead.topology.audit.machine_view import MachineView
from fairlead.topology.picture.machine_report import matrix
from fairlead.topology.picture.machine_svg import RED, draw, fit, text_width
from fairlead.topology.picture.svg_layout import Box, layout
from tests.topology.build import hgx, link
from tests.topology.topology_nodes import NAMES
from tests.topology.topology_nodes import node as node_of

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
    for number in {f"NUMA {n.id}" for n in node.numa if set(n.cpus) & {c.id for c in node.cpus if c.online}}:
        assert number in text
    drawn = layout(view)
    boxes = drawn.boxes()
    assert all(box.address in text for box in boxes if box.kind != "root"), "an address is never cut"
    for box in (*boxes, *drawn.numa_boxes, *drawn.packages):
        assert box.x >= 0 and box.x + box.wide <= wide and box.y + box.high < high
    for kind in (boxes, drawn.numa_boxes, drawn.packages):
        for a, b in combinations(kind, 2):
            apart = a.x + a.wide <= b.x or b.x + b.wide <= a.x or a.y + a.high <= b.y or b.y + b.high <= a.y
            assert apart, (a, b)
    for numa_box in drawn.numa_boxes:
        assert all(within(inner, numa_box) for root in numa_box.roots for inner in root.tree())
    assert all(within(numa_box, package) for package in drawn.packages for numa_box in package.numa_boxes)
    assert_texts_fit(root)


def within(inner: Box, outer: Box) -> bool:
    return (
        outer.x <= inner.x
        and inner.x + inner.wide <= outer.x + outer.wide
        and outer.y <= inner.y
        and inner.y + inner.high <= outer.y + outer.high
    )


@pytest.mark.parametrize("name", NAMES)
def test_it_is_readable_at_the_width_of_a_readme(name: str) -> None:
    """A README shows a picture 830 pixels wide, and scales a wider one down."""
    root = ET.fromstring(draw(node_of(name)).encode())
    assert float(root.get("width", "inf")) <= 830
    assert min(float(e.get("font-size", "0")) for e in root.iter(f"{SVG}text")) >= 11


def assert_texts_fit(root: ET.Element) -> None:
    """No text in a box reaches beyond it, no two lines of text lie on each other, none ends beyond the picture."""
    boxes = [{key: float(e.get(key, "0")) for key in ("x", "y", "width", "height")} for e in root.iter(f"{SVG}rect")]
    places: list[tuple[float, float, float, str]] = []
    for e in root.iter(f"{SVG}text"):
        x, y, size = (float(e.get(key, "0")) for key in ("x", "y", "font-size"))
        wide = text_width(e.text or "", size, bold=e.get("font-weight") == "bold")
        left, right = (x - wide / 2, x + wide / 2) if e.get("text-anchor") == "middle" else (x, x + wide)
        # Sentences are narrower than names.
        assert left >= 0 and x + (right - x) * 0.9 <= float(root.get("width", "0")), e.text
        for box in boxes:
            if box["x"] < x < box["x"] + box["width"] and box["y"] < y < box["y"] + box["height"] - 2 and box["height"] < 60:
                assert left >= box["x"] - 0.5 and right <= box["x"] + box["width"] + 0.5, (e.text, box)
        if e.get("fill") != "#ffffff":  # the numbers in circles may cover an edge
            places.append((left, right, y, e.text or ""))
    for (left, right, y, text), (other_left, other_right, other_y, other) in combinations(places, 2):
        assert abs(y - other_y) >= 11 or right <= other_left + 8 or other_right <= left + 8, (text, other)


def test_long_names_are_made_to_fit() -> None:
    assert fit("mlx5_0", 86, 12, bold=True) == ("mlx5_0", 12)
    assert fit("mlx5_X_0000101b", 120, 12, bold=True) == ("mlx5_X_0000101b", 11)
    text, size = fit("a-very-long-name-of-a-network-interface", 144, 12, bold=True)
    assert size == 11 and text.endswith("\N{HORIZONTAL ELLIPSIS}") and len(text) > 12
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


def test_what_only_nvml_knows_is_said_to_be_missing() -> None:
    """On a GH200 without NVML no NVLink and no GPU memory is drawn, and that is no machine without NVLink."""
    node = node_of("alps-gh200")
    assert "NVLink and GPU memory are not known: NVML did not answer" not in words(draw(node))
    assert "NUMA nodes without CPUs (GPU memory): 4-35" in words(draw(node))
    unknown = replace(node, gpus=unreadable("no NVML library"))
    assert "NVLink and GPU memory are not known: NVML did not answer" in words(draw(unknown))
    assert "note: NVML's answer is missing: NVLink, GPU memory and lost GPUs are not shown" in matrix(unknown)
    assert not [word for word in words(draw(unknown)) if re.fullmatch(r"NV\d+", word)]


def test_a_lost_gpu_is_marked_in_its_box() -> None:
    node = hgx()
    assert not isinstance(node.gpus, Missing)
    lost = (replace(node.gpus[0], lost=True), *node.gpus[1:])
    assert words(draw(replace(node, gpus=lost))).count("lost") == 1


def acs_everywhere(control: int = 0x1D) -> Node:
    node = hgx()
    return replace(node, pci=tuple(replace(d, acs_control=control) if d.bridge_role else d for d in node.pci))


def test_bridges_with_acs_redirect_are_one_line_and_each_is_marked() -> None:
    node = acs_everywhere()
    (found,) = audit(node)
    assert found.device == "" and found.summary.startswith("16 bridges have ACS redirect (ReqRedir+CmpltRedir), ")
    assert "setpci -s $b ECAP_ACS+6.w=0:2c" in found.summary and len(found.evidence) == 16
    assert all(port in found.summary for port in ("0000:12:00.0", "0000:4a:01.0"))
    (line,) = [line for line in matrix(node).splitlines() if "ACS" in line]
    assert line.strip() == found.summary
    svg = draw(node)
    assert words(svg).count("#1") == 16, "each link below a bridge names the finding"
    assert [e.text for e in ET.fromstring(svg.encode()).iter(f"{SVG}text") if e.get("fill") == "#ffffff"] == ["1"]


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
