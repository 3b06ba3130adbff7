"""The table of the job environment: what a node's facts and a site's words make of it, and what is left to whom."""

from __future__ import annotations

import pytest

from fairlead import config
from fairlead.errors import ConfigError, DataError
from fairlead.jobenv.environment_text import explain, published, quoted, render
from fairlead.jobenv.never import NEVER, SITE
from fairlead.jobenv.variable_table import ROWS, FabricRow, assemble

NET = FabricRow(name="NCCL_NET", value="IB", when="nodes:4", unless="NCCL_NET_PLUGIN", why="w", source="s")
ALL = assemble(fabric=[NET], interface="eth0", scratch="/local", crosses_rails=False, master_suffix="i")


def lines(text: str) -> dict[str, list[str]]:
    """When, value and level of each."""
    return {line.split("\t")[0]: line.split("\t")[1:4] for line in text.splitlines()[1:-1]}


def test_what_the_reference_table_names_is_somewhere() -> None:
    """Set, left to the site, or never set: nothing falls between."""
    named = {
        "NCCL_NET", "NCCL_CROSS_NIC", "NCCL_IB_TIMEOUT", "NCCL_IB_QPS_PER_CONNECTION", "NCCL_DEBUG", "NCCL_SOCKET_MAGIC",
        "NCCL_RAS_ADDR", "UCX_TLS", "UCX_NET_DEVICES", "OMPI_MCA_coll_hcoll_enable", "GLOO_SOCKET_IFNAME", "OMP_NUM_THREADS",
        "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS", "NUMEXPR_MAX_THREADS", "SRUN_CPUS_PER_TASK",
        "CUDA_DEVICE_ORDER", "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_NCCL_ASYNC_ERROR_HANDLING",
        "MASTER_ADDR", "MASTER_PORT", "TMPDIR", "CUDA_CACHE_PATH", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR",
        "NCCL_PROFILER_PLUGIN", "NCCL_ALGO", "NCCL_PROTO", "NCCL_BUFFSIZE", "NCCL_NTHREADS", "NCCL_MIN_NCHANNELS",
        "NCCL_MAX_NCHANNELS", "NCCL_MIN_CTAS", "NCCL_MAX_CTAS", "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE",
        "NCCL_IB_GID_INDEX", "NCCL_CUMEM_ENABLE", "NCCL_CHECKS_DISABLE", "CUDA_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING",
        "LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONPATH", "PATH", "PYTORCH_CUDA_ALLOC_CONF", "HF_TOKEN", "HF_HOME",
        "OMP_PROC_BIND", "RANK", "WORLD_SIZE", "LOCAL_RANK",
    }  # fmt: skip
    known = {r.name for r in ALL} | NEVER.keys() | SITE.keys()
    assert named - known == set()
    assert not {r.name for r in ALL} & NEVER.keys() and not SITE.keys() & NEVER.keys()


def test_rows_of_a_nodes_facts() -> None:
    found = lines(render(ALL))
    assert found["GLOO_SOCKET_IFNAME"] == ["nodes", "eth0", "full"]
    assert found["NCCL_NET"] == ["nodes:4!NCCL_NET_PLUGIN", "IB", "full"]
    assert found["NCCL_CROSS_NIC"] == ["nodes", "0", "full"]
    assert found["MASTER_ADDR"] == ["distributed", "@first_hosti", "full"]
    assert found["TMPDIR"] == ["always", "@scratch:/local:tmp", "full"]
    assert found["TRITON_CACHE_DIR"] == ["gpu", "@scratch:/local:triton", "full"]
    assert {r.name for r in assemble()} == {r.name for r in ROWS}


def test_a_row_comes_after_the_one_it_gives_way_to() -> None:
    names = [r.name for r in ALL]
    for row in ALL:
        assert row.unless not in names or names.index(row.unless) < names.index(row.name)


@pytest.mark.parametrize("change", [{"when": "always"}, {"when": "nodes:x"}, {"unless": "a b"}, {"unless": "x!"}])
def test_conditions_of_a_fabric(change: dict[str, str]) -> None:
    with pytest.raises(DataError, match="when must be nodes or nodes:N"):
        assemble(fabric=[FabricRow(**{"name": "NCCL_NET", "value": "IB", **change})])


@pytest.mark.parametrize(
    ("jobenv", "words"),
    [
        ({"presets": {"minimal": {}}}, "jobenv.presets.minimal"),
        ({"presets": {"a": {"extra": {"PATH": "/x"}}}}, "jobenv.presets.a.extra"),
        ({"presets": {"A b": {}}}, "presets"),
        ({"fabric": [{"name": "NCCL_ALGO", "value": "Ring"}]}, "jobenv.fabric"),
        ({"scratch": "relative"}, "jobenv.scratch"),
        ({"scratch": "/a b"}, "jobenv.scratch"),
        ({"master_suffix": "i\n"}, "jobenv.master_suffix"),
    ],
)
def test_what_only_nodes_would_refuse_is_refused_at_once(jobenv: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        config.resolve_layers("n1", [("test", {"jobenv": jobenv})])


def test_what_was_published_is_read_back_with_its_reasons() -> None:
    text = render(ALL, extra={"OURS": "1"})
    rows = {r.name: r for r in published(text, ALL)}
    assert rows["NCCL_NET"].condition == "nodes:4!NCCL_NET_PLUGIN" and rows["NCCL_NET"].why == "w"
    assert rows["OURS"].what == "the site's own"
    assert render(published(text, ALL)) == text
    tables = ("A\tb\n.", "A\tsometimes\tx\tfull\t-\n.", "A\talways\tx\todd\t-\n.", "A\talways\tx\tfull\t-\n")
    for cut in (text[:-2], "", "A\talways\tx\tfull\t-\n.\n", *map(quoted, tables)):
        assert published(cut, ALL) == ()


def test_explain_says_what_the_user_overrode_and_what_nccl_conf_holds() -> None:
    env = {"NCCL_DEBUG": "INFO", "NCCL_NET": "IB", "NCCL_SOCKET_IFNAME": "mine", "FAIRLEAD_SET": "NCCL_NET:=IB"}
    value_mark = {v["name"]: v for v in explain(env, rows=ALL, conf={"NCCL_SOCKET_IFNAME": "=eth0", "NCCL_IB_HCA": "=mlx5_0"})}
    assert (value_mark["NCCL_DEBUG"]["origin"], value_mark["NCCL_DEBUG"]["overrides"]) == ("user", "WARN")
    assert (value_mark["NCCL_NET"]["origin"], value_mark["NCCL_NET"]["overrides"]) == ("fairlead", "")
    assert (value_mark["NCCL_SOCKET_IFNAME"]["origin"], value_mark["NCCL_SOCKET_IFNAME"]["overrides"]) == ("user", "=eth0")
    assert (value_mark["NCCL_IB_HCA"]["origin"], value_mark["NCCL_IB_HCA"]["now"]) == ("nccl.conf", "=mlx5_0")
    assert value_mark["GLOO_SOCKET_IFNAME"]["origin"] == "-"
