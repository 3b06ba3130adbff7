"""Write the sheet that a vendor asks for when a GPU is returned (RMA): what the card is, the evidence, and its history.

fairlead rma gpu007 0000:1b:00.0           by PCI address, from what `fairlead collect` keeps on the controller
fairlead rma gpu007 1654322006161 --json   by serial number, also of a card that was there earlier
fairlead rma gpu007 3 --from DIR           by NVML's index, from a recorded folder (see `fairlead report --help`)

The values are those that the node's agent has last sent, so a GPU that is lost still has its sheet. What could not be read is
shown as "not readable".
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from fairlead.cli.controller_paths import STORE
from fairlead.cli.output import columns, print_json
from fairlead.errors import ExitCode, InputMissing
from fairlead.model.plain_text import one_line

if TYPE_CHECKING:
    from fairlead.fleet.rma_sheet import RmaSheet

TROUBLES_SHOWN = 5
SLOW = "reading the records"  # patience.py says it


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("node", metavar="NODE", help="the NodeName")
    parser.add_argument("gpu", metavar="GPU", help="a PCI address, a serial number, a UUID, or NVML's index")
    parser.add_argument("--from", dest="folder", metavar="DIR", default="", help="read recorded inputs in place of the store")
    parser.add_argument("--store", metavar="DIR", default=STORE, help="the folder of the store (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON document (rma/1)")


def run(args: argparse.Namespace) -> ExitCode:
    from fairlead.controller import fleet_folder
    from fairlead.fleet import rma_sheet
    from fairlead.fleet.incidents import history_of
    from fairlead.fleet.machines import fleet_of
    from fairlead.host.pci import normal_address

    found = fleet_folder.from_folder(args.folder) if args.folder else fleet_folder.from_store(args.store)
    now = time.time()
    fleet = fleet_of(found.records, found.events or (), now)
    for line in found.troubles[:TROUBLES_SHOWN]:
        print(f"fairlead rma: {line}", file=sys.stderr)
    where = args.folder or args.store
    machines = rma_sheet.machines_of(fleet, args.node)
    if not machines:
        hint = "`fairlead collect` asks the nodes of the site; --from DIR reads a recorded folder"
        raise InputMissing(f"{where}: has no record of the node {one_line(args.node, 64)}", hint=hint)
    try:
        word = normal_address(args.gpu)
    except ValueError:
        word = args.gpu
    answers = [(machine, rma_sheet.address_of(machine, word)) for machine in machines]
    for machine, address in answers:
        if isinstance(address, str):
            made = rma_sheet.sheet(fleet, history_of(fleet, found.events or (), now), machine, address, word)
            break
    else:
        known = [name for _, each in answers if isinstance(each, rma_sheet.CardUnknown) for name in each.known]
        raise InputMissing(
            f"{args.node} has no GPU {one_line(word, 64)}", hint=f"it has: {', '.join(known) or 'none that is known'}"
        )
    if args.json:
        print_json(as_data(made))
    else:
        print("\n".join(text(made)))
    return ExitCode.OK


def as_data(made: RmaSheet) -> dict[str, Any]:
    """Return the sheet as JSON has it. A value that could not be read is null."""
    import msgspec

    data = msgspec.to_builtins(made)
    return {"schema": "rma/1", **data, "identity": {name.replace(" ", "_"): value for name, value in made.identity.items()}}


def text(made: RmaSheet) -> Iterator[str]:
    from fairlead.fleet.rma_sheet import NOT_READABLE

    yield f"RMA sheet: GPU {made.serial or made.pci} of node {made.node}"
    yield f"  read {_time(made.read_unix)}" if made.read_unix is not None else "  the values of the card were never read"
    yield ""
    rows = [(name, NOT_READABLE if value is None else value) for name, value in made.identity.items()]
    yield from (f"  {line}" for line in columns(rows).splitlines())
    yield from _section("active findings", [(check,) for check in made.findings], ())
    xids = [(f"{x.kind.upper()} {x.code}", str(x.count), _time(x.first_unix), _time(x.last_unix)) for x in made.xids]
    yield from _section("Xids since the card is at this address", xids, ("CODE", "RECORDS", "FIRST SEEN", "LAST SEEN"))
    incidents = [
        (
            _time(i.begin_unix),
            i.node,
            i.check,
            str(len(i.times)),
            _time(i.end_unix) if i.end_unix else "open",
            i.ended.value,
            i.how,
        )
        for i in made.incidents
    ]
    yield from _section("incidents", incidents, ("BEGIN", "NODE", "CHECK", "TIMES", "END", "ENDED BY", "HOW"))
    repairs = [(_time(r.unix), r.what, r.who, r.why) for r in made.repairs]
    yield from _section("repairs that persons reported", repairs, ("TIME", "WHAT", "WHO", "WHY"))
    cards = [(_time(c.since_unix), c.serial) for c in made.cards]
    yield from _section("cards at this address", cards, ("SINCE", "SERIAL OR UUID"))
    yield from _section("where this card was", [(name,) for name in made.where], ())


def _section(title: str, rows: Sequence[tuple[str, ...]], head: tuple[str, ...]) -> Iterator[str]:
    yield ""
    yield f"{title}: {'none known' if not rows else ''}".rstrip()
    if rows:
        yield from (f"  {line}" for line in columns(rows, head).splitlines())


def _time(unix: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(unix))


def json_types() -> dict[str, object]:
    """Return the type of what --json prints (json_schema.py)."""
    from typing import Literal

    from fairlead.cli.json_schema import extended
    from fairlead.fleet.rma_sheet import RmaSheet

    return {"": extended("PrintedSheet", RmaSheet, {"schema": Literal["rma/1"]})}
