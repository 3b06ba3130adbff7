"""The text that a scrape gets: family by family, only what changed made anew."""

from __future__ import annotations

from msgspec.structs import replace
from prometheus_client.exposition import generate_latest

from fairlead.daemon.loop.readers import _recorded
from fairlead.daemon.publishing.metrics import Metrics, MetricsInput
from fairlead.host.gather import gather
from fairlead.host.root import Root
from fairlead.model.facts import Ecc
from tests.lab.trees import MACHINES


def test_the_text_is_that_of_a_fresh_rendering_whatever_changed() -> None:
    root = Root(str(MACHINES / "hgx-h100"))
    node = gather(root, _recorded(root.path))
    assert isinstance(node.gpus, tuple)
    first = node.gpus[0]
    assert isinstance(first.ecc, Ecc)
    assert isinstance(first.nvlinks, tuple)
    down = (replace(first.nvlinks[0], active=False), *first.nvlinks[1:])
    worse = replace(first, ecc=replace(first.ecc, volatile_corrected=7), nvlinks=down, temperature_celsius=93)
    views = [
        MetricsInput(version="1", node=node, sequence=1),
        MetricsInput(version="1", node=node, sequence=2, sweeps=1),
        MetricsInput(version="1", node=replace(node, gpus=(worse, *node.gpus[1:])), sequence=3),
        MetricsInput(version="1", sequence=4),
        MetricsInput(version="1", node=node, sequence=5),
    ]
    metrics = Metrics(views[0])
    texts = []
    for view in views:
        metrics.view = view
        texts.append(metrics.render())
        assert texts[-1] == generate_latest(Metrics(view))  # type: ignore[arg-type]
    assert b'volatile_corrected",pci="0000:' in texts[2] and texts[2] != texts[0]
    assert len(set(texts)) == len(texts)
