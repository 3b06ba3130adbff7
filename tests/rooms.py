"""Counts the rooms of the package and draws them: what each holds, who imports whom, and what goes against the rules.

The floors are those of ``pyproject.toml`` ([tool.importlinter]); the rest is read from the syntax trees. ``make docs`` draws
``docs/images/rooms.svg``. ``python -m tests.rooms --tree DIR --svg FILE`` counts and draws any other checkout.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from xml.sax.saxutils import escape

from tests.lint.test_import_circles import circles, imports_and_calls
from tests.lint.test_purity import PURE

ROOT = Path(__file__).resolve().parents[1]
WIDTH, ROW, TOP, BOX = 1180, 104, 46, 46


@dataclass(frozen=True)
class Rooms:
    """``floors``: the rooms from the top down, siblings side by side. ``lines`` and ``files``: of each room.

    ``arrows``: the importing room, the imported room, and in how many files. ``circles``: files that import each other.
    """

    floors: tuple[tuple[str, ...], ...]
    lines: dict[str, int]
    files: dict[str, int]
    arrows: dict[tuple[str, str], int]
    circles: list[frozenset[str]]

    def floor(self, room: str) -> int:
        """Counted from the bottom, 0."""
        return next(len(self.floors) - 1 - at for at, rooms in enumerate(self.floors) if room in rooms)

    def upward(self) -> list[tuple[str, str]]:
        """The arrows that do not go down: to a floor above, or to a sibling."""
        return [(a, b) for a, b in sorted(self.arrows) if self.floor(b) >= self.floor(a)]


@cache
def rooms_of(tree: Path) -> Rooms:
    package = tree / "agent/fairlead"
    config = tomllib.loads((tree / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(c["layers"] for c in config if c["type"] == "layers" and c["containers"] == ["fairlead"])
    floors = tuple(tuple(room.strip() for room in layer.replace(":", "|").split("|")) for layer in layers)
    modules = {_dotted(path, package): path.read_text() for path in sorted(package.rglob("*.py"))}
    lines: dict[str, int] = {room: 0 for rooms in floors for room in rooms}
    files, arrows = dict(lines), dict[tuple[str, str], int]()
    for name, text in modules.items():
        room = (*name.split("."), "")[1]
        if room not in lines:
            continue  # fairlead itself and __main__ only start the command line
        lines[room] += len(text.splitlines())
        files[room] += 1
        for other in imported_rooms(text) & lines.keys() - {room}:
            arrows[room, other] = arrows.get((room, other), 0) + 1
    return Rooms(floors, lines, files, arrows, circles(modules))


def _dotted(path: Path, package: Path) -> str:
    parts = ("fairlead", *path.relative_to(package).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_rooms(text: str) -> set[str]:
    """The rooms that a file imports, wherever in it: for type checking only too, and by a name in a call of importlib."""
    found: set[str] = set()
    for node in imports_and_calls(text):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{name.name}" for name in node.names}
        elif isinstance(node, ast.Call) and "import_module" in (getattr(node.func, "attr", ""), getattr(node.func, "id", "")):
            found |= {a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)}
    return {name.split(".")[1] for name in found if name.startswith("fairlead.")}


def shortest(arrows: Mapping[tuple[str, str], int]) -> set[tuple[str, str]]:
    """The arrows that do not follow from two or more others."""
    after: dict[str, set[str]] = {}
    for a, b in arrows:
        after.setdefault(a, set()).add(b)

    def reached(start: str, without: str) -> set[str]:
        seen: set[str] = set()
        edge = [b for b in after.get(start, ()) if b != without]
        while edge:
            room = edge.pop()
            if room not in seen:
                seen.add(room)
                edge += after.get(room, ())
        return seen

    return {(a, b) for a, b in arrows if b not in reached(a, b)}


# -- the drawing --------------------------------------------------------------------------------------


def draw(rooms: Rooms, title: str) -> str:
    """An SVG: a row for each floor, pure rooms in green, thin arrows downward, thick red ones where the rule is broken."""
    at = {room: _centre(number, len(row), floor) for floor, row in enumerate(rooms.floors) for number, room in enumerate(row)}
    wide = {room: min(150.0, (WIDTH - 90) / len(row) - 14) for row in rooms.floors for room in row}
    height = TOP + ROW * len(rooms.floors)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="14">',
        '<defs><marker id="down" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 8 4 0 8z" fill="#7a869a"/></marker>'
        '<marker id="up" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
        '<path d="M0 0 8 4 0 8z" fill="#c00"/></marker></defs>',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        f'<text x="16" y="26" font-size="17" font-weight="bold" fill="#172b4d">{escape(title)}</text>',
    ]
    for floor in range(len(rooms.floors)):
        y = TOP + ROW * floor
        out.append(f'<rect x="10" y="{y}" width="{WIDTH - 20}" height="{ROW - 34}" rx="6" fill="#f4f5f7"/>')
        out.append(f'<text x="18" y="{y + 40}" font-size="12" fill="#5e6c84">floor {len(rooms.floors) - 1 - floor}</text>')
    upward = set(rooms.upward())
    downward = shortest({arrow: count for arrow, count in rooms.arrows.items() if arrow not in upward})
    out += [_arrow(at[a], at[b], up=False) for a, b in sorted(downward)]
    for room, (x, y) in at.items():
        w, colours = wide[room], 'fill="#e3fcef" stroke="#4a9a72"' if room in PURE else 'fill="#deebff" stroke="#4c6fb3"'
        out.append(f'<rect x="{x - w / 2:.0f}" y="{y - BOX / 2:.0f}" width="{w:.0f}" height="{BOX}" rx="5" {colours}/>')
        out.append(f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="middle" fill="#172b4d">{escape(room)}</text>')
        count = f"{rooms.lines[room]} lines"
        out.append(f'<text x="{x:.0f}" y="{y + 16:.0f}" text-anchor="middle" font-size="11" fill="#5e6c84">{count}</text>')
    out += [_arrow(at[a], at[b], up=True) for a, b in sorted(upward)]
    return "\n".join([*out, "</svg>", ""])


def _centre(number: int, of: int, floor: int) -> tuple[float, float]:
    return 70 + (WIDTH - 90) * (number + 0.5) / of, TOP + ROW * floor + (ROW - 34) / 2


def _arrow(start: tuple[float, float], end: tuple[float, float], *, up: bool) -> str:
    (x1, y1), (x2, y2) = start, end
    if not up:
        y1, y2 = y1 + BOX / 2, y2 - BOX / 2
    elif y1 > y2:
        y1, y2 = y1 - BOX / 2, y2 + BOX / 2
    bend = (y2 - y1) / 2
    style = 'stroke="#c00" stroke-width="3" marker-end="url(#up)"' if up else 'stroke="#7a869a" marker-end="url(#down)"'
    curve = f"M{x1:.0f} {y1:.0f}C{x1:.0f} {y1 + bend:.0f} {x2:.0f} {y2 - bend:.0f} {x2:.0f} {y2:.0f}"
    return f'<path d="{curve}" fill="none" {style}/>'


# -- the figures --------------------------------------------------------------------------------------

#: Counted by this program at 8a01a96a, before the rooms were rebuilt.
BEFORE = {
    "rooms": "19",
    "files": "402",
    "lines": "49239",
    "pairs of rooms of which one imports the other": "81",
    "arrows that go up or to a sibling": "1: provision to cli",
    "circles of files that import each other": "2, of 11 files",
}
#: Lines of each room then.
BEFORE_LINES = {
    "cli": 5736, "daemon": 6017, "apply": 394, "provision": 5250, "measure": 2039, "config": 1220, "host": 6857, "slurm": 1199,
    "checks": 4758, "settings": 3709, "policy": 1869, "jobenv": 1095, "topology": 3960, "nccl": 1068, "xid": 2074, "model": 1851,
    "assets": 26, "profiles": 1, "errors": 116,
}  # fmt: skip


def figures(rooms: Rooms) -> dict[str, str]:
    """What is counted, by its words."""
    upward = [f"{a} to {b}" for a, b in rooms.upward()]
    return {
        "rooms": str(len(rooms.lines)),
        "files": str(sum(rooms.files.values())),
        "lines": str(sum(rooms.lines.values())),
        "pairs of rooms of which one imports the other": str(len(rooms.arrows)),
        "arrows that go up or to a sibling": f"{len(upward)}: {', '.join(upward)}" if upward else "0",
        "circles of files that import each other": (
            f"{len(rooms.circles)}, of {sum(map(len, rooms.circles))} files" if rooms.circles else "0"
        ),
    }


def page_block(rooms: Rooms, says: Mapping[str, str]) -> str:
    """The tables of docs/explanation/architecture.md. ``says``: what each room is, in one sentence."""
    out = ["| floor | room | what it does | files | lines | lines before |", "|---|---|---|---|---|---|"]
    for row in rooms.floors:
        for room in row:
            cells = (
                rooms.floor(room),
                f"`{room}`",
                says[room],
                rooms.files[room],
                rooms.lines[room],
                BEFORE_LINES.get(room, "-"),
            )
            out.append(f"| {' | '.join(map(str, cells))} |")
    out += ["", "| counted | before (8a01a96a) | now |", "|---|---|---|"]
    out += [f"| {name} | {BEFORE[name]} | {value} |" for name, value in figures(rooms).items()]
    return "\n".join([*out, ""])


def room_sentences(tree: Path = ROOT) -> dict[str, str]:
    """The first sentence of each room's docstring."""
    found = {}
    for path in (tree / "agent/fairlead").iterdir():
        file = path / "__init__.py" if path.is_dir() else path
        if file.suffix == ".py" and file.is_file():
            text = ast.get_docstring(ast.parse(file.read_text())) or ""
            paragraph = " ".join(text.partition("\n\n")[0].split())  # a sentence may go over several lines
            found[path.stem] = re.split(r"(?<=\.) (?=[A-Z])", paragraph)[0].replace("|", "\\|")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tree", type=Path, default=ROOT)
    parser.add_argument("--svg", type=Path)
    parser.add_argument("--title", default="The rooms of fairlead and who imports whom")
    args = parser.parse_args()
    rooms = rooms_of(args.tree)
    if args.svg:
        args.svg.write_text(draw(rooms, args.title))
    for name, value in figures(rooms).items():
        print(f"{name}: {value}")
    for circle in rooms.circles:
        print(f"  circle: {' '.join(sorted(circle))}")
    for row in rooms.floors:
        print("  ".join(f"{room} {rooms.lines[room]}/{rooms.files[room]}" for room in row))
    return 0


if __name__ == "__main__":
    sys.exit(main())
