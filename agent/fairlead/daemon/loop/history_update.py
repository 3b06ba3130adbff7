"""Adds a sweep to the history: counters, which facts could be read, and the address and labels of each GPU card."""

from __future__ import annotations

from collections.abc import Collection

from fairlead import checks
from fairlead.config import Document
from fairlead.history.memory import History
from fairlead.model.device import gpu_cards_of, gpu_labels_of, readable_fields
from fairlead.model.facts import Missing, Node

KEEP_SECONDS = 60.0  # data that rarely change are added at most once in this time, like the counters
DRIVER = "driver/"  # the names of readable facts include one name with this prefix and the driver's version


def before_judging(history: History, node: Node) -> None:
    """If the driver's version has changed since the last sweep, forget which facts could be read. Another version may support
    fewer facts."""
    version, known = node.driver.library_version, history.past().readable
    if isinstance(version, str) and known and f"{DRIVER}{version}" not in known:
        history.forget_readable((), everything=True)


def after_judging(
    history: History, document: Document, node: Node, seconds: float, *, ran: Collection[str] | None, thorough: bool
) -> None:
    """Add the counters and devices of a judged sweep to the history.

    ``seconds``: CLOCK_BOOTTIME of the sweep. ``ran``: the checks that judged the sweep, or None for all checks. ``thorough``: if
    True, data that rarely change are also added. Counters are added at most once a minute, and only from thorough sweeps.
    """
    if not isinstance(node.host, Missing) and not isinstance(node.host.devices, Missing):
        history.add_devices(node.host.devices)
    for name, check in checks.load().items() if node.thorough and history.samples_due(seconds) else ():
        if check.samples is not None and document.checks[name].enabled and (ran is None or name in ran):
            history.add_samples(seconds, check.samples(node))
    if thorough:
        for name, check in checks.load().items():
            if check.daily is not None and document.checks[name].enabled:
                history.add_daily(check.daily(node))
        fields = readable_fields(node)
        if isinstance(node.driver.library_version, str) and fields:
            fields |= {f"{DRIVER}{node.driver.library_version}"}
        history.add_readable(fields)
        history.add_gpu_cards(gpu_cards_of(node))
        history.add_gpu_labels(gpu_labels_of(node))
