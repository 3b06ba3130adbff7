"""Partitions of site.toml: the nodes of classes, more nodes, other words of their lines; mistakes are named with their key."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead import config
from fairlead.errors import ConfigError
from fairlead.slurm_config.partition_conf import partition_line

CLASS = 'schema = 1\n[classes.h]\nnodes = "g[1-2]"\n'


def load(tmp_path: Path, text: str) -> config.Site:
    path = tmp_path / "site.toml"
    path.write_text(CLASS + text)
    return config.load_site(str(path))


def test_partitions_are_kept_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = '[partitions.z]\nclasses = ["h"]\noptions = { MaxTime = "1-0", Default = true }\n[partitions.a]\nnodes = "x1"\n'
    site = load(tmp_path, text)
    assert list(site.partitions) == ["z", "a"] and site.partitions["a"].nodes == "x1"
    assert site.partitions["z"].options == {"MaxTime": "1-0", "Default": True}
    assert load(tmp_path, "").partitions == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[partitions.x]\n", r"partitions\.x: names no nodes"),
        ('[partitions.x]\nclasses = ["no"]\n', r"partitions\.x\.classes: no class no"),
        ('[partitions."a b"]\nnodes = "x1"\n', r"partitions\.a b: not a valid partition name"),
        ('[partitions.default]\nnodes = "x1"\n', r"partitions\.default: not a valid partition name"),
        ('[partitions.x]\nnode = "x1"\n', r"partitions\.x\.node: unknown key"),
        ('[partitions.x]\nnodes = "x1"\noptions = { Nodes = "y" }\n', r"options\.Nodes: is written by"),
        ('[partitions.x]\nnodes = "x1"\noptions = { A = "1 Nodes=y" }\n', r"partitions\.x\.options"),
        ('[partitions.x]\nnodes = "x1"\noptions = { "A=b" = 1 }\n', r"partitions\.x\.options\.A=b: "),
        ("partitions = 1\n", r"partitions: must be a table of tables"),
    ],
)
def test_a_mistake_is_named_with_its_key(tmp_path: Path, text: str, words: str) -> None:
    body = text if text.startswith("[") else ""
    path = tmp_path / "site.toml"
    path.write_text(CLASS + body if body else text + CLASS)
    with pytest.raises(ConfigError, match=words):
        config.load_site(str(path))


def test_the_line_of_a_partition() -> None:
    line = partition_line("gpu", ["g2", "g1", "l1"], {"Default": True, "Hidden": False, "MaxTime": 60})
    assert line == "PartitionName=gpu Nodes=g[1-2],l1 Default=YES Hidden=NO MaxTime=60\n"


def test_every_name_that_config_promises_is_there() -> None:
    assert [name for name in config.__all__ if not hasattr(config, name)] == []
