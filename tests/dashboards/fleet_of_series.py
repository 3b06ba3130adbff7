"""The series of a fleet of 1,000 nodes: what one node's agent exports, a thousand times, with faults and jobs here and there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import promql_parser as promql

from fairlead import checks, settings
from fairlead.daemon.loop.readers import _recorded
from fairlead.daemon.publishing.metrics import GpuOfJob, Metrics, MetricsInput
from fairlead.host.gather import gather
from fairlead.host.root import Root
from fairlead.model.finding import Finding, Level
from fairlead.model.verdict import State
from fairlead.policy.drain_limits import DrainLimit, LimitKind
from tests.dashboards import prometheus
from tests.lab.trees import MACHINES

NODES, DRAWN = 1000, 100
SERIES = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)$")
ONE_NODE = r'(,\s*)?instance="\$instance"'
#: What ten of the nodes each show, by the metric and the last two digits of the node: for a time, how many seconds ago it is.
BAD = {
    ("fairlead_sweep_timestamp_seconds", 1): 400,
    ("fairlead_source_timestamp_seconds", 2): 400,
    ("fairlead_gpu_remapped_rows", 3): 3,
    ("fairlead_gpu_row_remap_banks", 4): 2,
    ("gpu_job:fairlead_gpu_busy:ratio1h", 5): 0,
}
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Series(NamedTuple):
    name: str
    labels: Mapping[str, str]
    value: float


@cache
def of_one_node() -> tuple[Series, ...]:
    """Return the series of a node of eight GPUs with jobs on all of them, four findings, two held, one Xid and a drift."""
    root = Root(str(MACHINES / "hgx-h100"))
    node = gather(root, _recorded(root.path))
    assert isinstance(node.gpus, tuple)
    pcis = [gpu.pci for gpu in node.gpus]
    found = tuple(
        Finding(check=check, level=level, device=pcis[n], summary="x")
        for n, (check, level) in enumerate(
            [("xid", Level.DRAIN), ("ecc", Level.DRAIN), ("pcie_link", Level.WARN), ("setting.numa_balancing", Level.WARN)]
        )
    )
    view = MetricsInput(
        version="1",
        slurm_node="NODE",
        generation=3,
        profile="hgx-h100",
        state=State.DRAIN,
        sweep_unix=1.0,
        sources=tuple((name, 1.0) for name in ("nvml", "kmsg", "sysfs", "host", "pci", "slurmctld")),
        checks=tuple((name, "observe") for name in (*checks.load(), *(f"setting.{name}" for name in settings.load()))),
        findings=found,
        suppressed=found[:2],
        drained=True,
        limit=DrainLimit(kind=LimitKind.PARTITION, name="gpu", text="x"),
        job_gpus=tuple(GpuOfJob(1, pci) for pci in pcis),
        node=node,
        ladder=(("xid.79/1", "contact_support"),),
        strikes=(("1", 1),),
        xids=(("xid", pcis[1], "79", 1),),
    )
    out = []
    for line in Metrics(view).render().decode().splitlines():
        if (read := SERIES.match(line)) is not None:
            out.append(Series(read[1], dict(LABEL.findall(read[2] or "")), float(read[3])))
    out.append(Series("up", {"fairlead": "expected", "job": "gpu-nodes"}, 1.0))
    return (*out, *_recorded_series(out))


def _recorded_series(node: Sequence[Series]) -> Iterator[Series]:
    """Yield what the recording rules make of a node's series: as many as the labels before the rule's first colon say."""
    of = {
        "instance": [Series("", {}, 0)],
        "gpu": [s for s in node if s.name == "fairlead_gpu_info"],
        "gpu_job": [s for s in node if s.name == "fairlead_job_gpu"],
        "gpu_xid": [s for s in node if s.name == "fairlead_xids_total"],
        "job": [Series("", {"job": "1"}, 0)],
        "state": [Series("", {"state": state}, 0) for state in ("ok", "warn", "drain", "unknown", "silent")],
    }
    for name in recorded_names():
        yield from (Series(name, series.labels, 0.9) for series in of[name.partition(":")[0]])


@cache
def recorded_names() -> tuple[str, ...]:
    return tuple(re.findall(r"- record: (\S+)", prometheus.RULES.read_text()))


def selectors(query: str) -> Iterator[promql.VectorSelector]:
    """Yield each selector of a query."""
    ahead = [promql.parse(query)]
    while ahead:
        part = ahead.pop()
        if isinstance(part, promql.VectorSelector):
            yield part
        else:
            names = ("lhs", "rhs", "expr", "args", "vector_selector", "vs", "param")
            inside = [getattr(part, name) for name in names if getattr(part, name, None) is not None]
            ahead += [p for p in inside if not isinstance(p, list)] + [p for p in inside if isinstance(p, list) for p in p]


def matches(selector: promql.VectorSelector, series: Series) -> bool:
    if selector.name and selector.name != series.name:
        return False
    for matcher in selector.matchers.matchers:
        has = series.name if matcher.name == "__name__" else series.labels.get(matcher.name, "")
        kind = str(matcher.op).rsplit(".", 1)[-1]
        fits = re.fullmatch(matcher.value, has) is not None if kind in ("Re", "NotRe") else has == matcher.value
        if fits != (kind in ("Equal", "Re")):
            return False
    return True


def touched(query: str) -> int:
    """Return how many series of the fleet a panel's query reads. A query with ``$instance`` reads one node's."""
    one = "$instance" in query
    read = {
        number
        for selector in selectors(re.sub(ONE_NODE, "", query))
        for number, series in enumerate(of_one_node())
        if matches(selector, series)
    }
    return len(read) * (1 if one else NODES)


def samples(panels: Sequence[tuple[str, str]], end_unix: float, hours: float) -> Iterator[str]:
    """Yield what 1,000 nodes have exported, of all series that a panel reads, each minute. ``panels``: kind and query of each.
    Series that no panel draws over time have ten minutes, because a query of one moment reads no more of them. So have those that
    are drawn of one node, except on the node DRAWN. A hundredth of the nodes is drained, and has findings, an Xid and strikes. A
    job has 64 GPUs."""
    over_time = [query for kind, query in panels if kind in ("lines", "states")]
    drawn, read = _read([query for query in over_time if "$instance" not in query]), _read([query for _, query in panels])
    of_one = _read(over_time)
    rare = ("fairlead_findings", "fairlead_held", "fairlead_ladder", "fairlead_strikes", "fairlead_drain_l", "fairlead_xids")
    for number, series in enumerate(of_one_node()):
        if number not in read:
            continue
        for node in range(NODES):
            if node % 100 and (series.name.startswith(rare) or "xid" in series.name):
                continue
            if (series.name.startswith("job:") and node % 8) or (series.name.startswith("state:") and node):
                continue
            long = number in drawn or (node == DRAWN and number in of_one)
            yield from _over_time(series, node, end_unix, int(60 * hours) if long else 10)


def _over_time(series: Series, node: int, end_unix: float, minutes: int) -> Iterator[str]:
    labels = {key: str(node // 8) if key == "job" and value == "1" else value for key, value in series.labels.items()}
    if not series.name.startswith(("job:", "state:")):
        labels["instance"] = f"n{node}:9477"
    if "node" in labels:
        labels["node"] = f"n{node}"
    if "uuid" in labels:
        labels["uuid"] = f"{labels['uuid'][:-4]}{node:04}"
    text = ",".join(f'{key}="{value}"' for key, value in labels.items())
    grows = series.name.endswith("_total")
    well = node % 100 and series.name in ("fairlead_drained", "fairlead_verdict_state")
    strange = BAD.get((series.name, node % 100))
    for ago in range(minutes, -1, -1):
        at = end_unix - 60 * ago
        value = series.value + (60 * (minutes - ago) if grows else 0) if strange is None else strange
        if series.name.endswith("_timestamp_seconds"):
            value = at - (strange or 0)
        yield f"{series.name}{{{text}}} {1 - value if well else value:.15g} {at:.0f}"


def _read(queries: Sequence[str]) -> set[int]:
    """Return the numbers of the series that some queries read."""
    found = [selector for query in queries for selector in selectors(re.sub(ONE_NODE, "", query))]
    return {n for n, series in enumerate(of_one_node()) if any(matches(selector, series) for selector in found)}
