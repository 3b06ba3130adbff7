"""The text that a scrape gets: family by family, only what changed made anew."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from fairlead.daemon.loop.readers import _recorded
from fairlead.daemon.publishing.metrics import Metrics, MetricsInput
from fairlead.host.gather import gather
from fairlead.host.root import Root
from fairlead.model.device import gpu_labels_of
from fairlead.model.facts import Ecc, Node, unreadable
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


def node_of(tree: str = "hgx-h100") -> Node:
    root = Root(str(MACHINES / tree))
    return gather(root, _recorded(root.path))


def series(view: MetricsInput) -> dict[str, list[Sample]]:
    found: dict[str, list[Sample]] = {}
    for family in text_string_to_metric_families(Metrics(view).render().decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample)
    return found


def test_every_series_of_a_gpu_names_it_by_address_index_and_uuid() -> None:
    node = node_of()
    assert isinstance(node.gpus, tuple)
    names = {(g.pci, str(g.index), g.uuid) for g in node.gpus}
    of_gpus = {name: samples for name, samples in series(MetricsInput(version="1", node=node)).items() if "_gpu_" in name}
    assert len(of_gpus) > 30
    for name, samples in of_gpus.items():
        assert {tuple(s.labels[label] for label in ("pci", "index", "uuid")) for s in samples} <= names, name


def test_a_gpu_that_no_longer_tells_its_uuid_keeps_its_labels() -> None:
    node = node_of()
    assert isinstance(node.gpus, tuple) and isinstance(node.gpus[3].uuid, str)
    silent = replace(node.gpus[3], lost=True, uuid=unreadable("GPU is lost"), serial=unreadable("GPU is lost"))
    dark = replace(node, gpus=(*node.gpus[:3], silent, *node.gpus[4:]))
    wanted = {"pci": silent.pci, "index": "3", "uuid": node.gpus[3].uuid}
    found = series(MetricsInput(version="1", node=dark, gpu_labels=gpu_labels_of(node)))
    assert {s.value: s.labels for s in found["fairlead_gpu_lost"]}[1.0] == wanted
    assert gpu_labels_of(dark).keys() == gpu_labels_of(node).keys() - {silent.pci}, "a lost GPU says nothing that is kept"


def test_xids_are_named_like_the_gpu_also_where_nvml_does_not_answer() -> None:
    node = node_of()
    assert isinstance(node.gpus, tuple)
    pci, away = node.gpus[2].pci, "0000:ff:00.0"
    xids = (("sxid", "0000:05:00.0", "12028", 2), ("xid", pci, "31", 300), ("xid", pci, "bus_lost", 1), ("xid", away, "79", 1))
    for facts in (node, replace(node, gpus=unreadable("NVML does not answer"))):
        view = MetricsInput(version="1", node=facts, xids=xids, gpu_labels=gpu_labels_of(node))
        found = series(view)
        name = {"pci": pci, "index": "2", "uuid": node.gpus[2].uuid}
        assert [(s.labels, s.value) for s in found["fairlead_xids_total"]] == [
            ({**name, "xid": "31"}, 300),
            ({**name, "xid": "bus_lost"}, 1),
            ({"pci": away, "index": "", "uuid": "", "xid": "79"}, 1),
        ]
        assert [(s.labels, s.value) for s in found["fairlead_sxids_total"]] == [({"pci": "0000:05:00.0", "sxid": "12028"}, 2)]


@pytest.mark.parametrize(("up", "values"), [(None, []), (True, [1.0]), (False, [0.0])])
def test_slurm_is_neither_up_nor_down_before_it_was_asked(up: bool | None, values: list[float]) -> None:
    assert [s.value for s in series(MetricsInput(version="1", slurm_up=up)).get("fairlead_slurm_up", [])] == values


def test_each_nvlink_is_shown_only_where_the_site_asks_for_it() -> None:
    node = node_of()
    assert isinstance(node.gpus, tuple)
    plain, each = (series(MetricsInput(version="1", node=node, nvlink_links=links)) for links in (False, True))
    assert "fairlead_gpu_nvlink_active" not in plain and len(each["fairlead_gpu_nvlink_active"]) == 8 * 18
    assert {s.value for s in plain["fairlead_gpu_nvlinks_active"]} == {18.0}
    for name in ("fairlead_gpu_nvlinks_active", "fairlead_gpu_nvlink_errors_total"):
        assert plain[name] == each[name] and len(plain[name]) >= 8
    assert not [name for name, samples in plain.items() if any("link" in s.labels for s in samples)]
