"""Renders how many Xids and SXids the kernel log of this boot has, by device and code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, Metric

from fairlead.daemon.publishing.gpu_labels import LABELS, Labels, labels_at


def families(
    counts: Sequence[tuple[str, str, str, int]], gpus: Sequence[Labels], known: Mapping[str, tuple[str, str]]
) -> Iterator[Metric]:
    """Yield the metric family of Xids and that of SXids.

    ``counts``: kind, PCI address, code and number of records. ``known``: the index and UUID of each GPU as last read, by PCI
    address.
    """
    xids = CounterMetricFamily(
        "fairlead_xids",
        "Xid records in the kernel log since the boot. bus_lost: off the bus without a code. other: beyond 40 codes.",
        labels=[*LABELS, "xid"],
    )
    sxids = CounterMetricFamily(
        "fairlead_sxids", "SXid records of NVSwitches in the kernel log since the boot.", labels=["pci", "sxid"]
    )
    for kind, address, code, number in counts:
        if kind == "xid":
            xids.add_metric([*labels_at(address, gpus, known), code], number)
        else:
            sxids.add_metric([address, code], number)
    yield from (xids, sxids)
