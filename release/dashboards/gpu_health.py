"""Describes the dashboard of GPU health across the fleet: each table shows the worst GPUs first."""

from __future__ import annotations

from release.dashboards.panel import Dashboard, Panel, Row

NOW = (
    Panel(kind="stat", title="GPUs", text="The number of GPUs that agents report.", query="sum(instance:fairlead_gpus:count)"),
    Panel(
        kind="stat", title="Lost", text="GPUs that the driver calls lost.", query="sum(fairlead_gpu_lost)",
    ),
    Panel(
        kind="stat", title="Remap failed or pending", text="GPUs with a row remap that failed or waits for a reset.",
        query="sum(instance:fairlead_gpus_with_unfinished_remap:count)",
    ),
    Panel(
        kind="stat", title="Narrow PCIe links", text="GPUs whose PCIe link has fewer lanes than it could have.",
        query="sum(instance:fairlead_gpus_with_narrow_link:count)",
    ),
)  # fmt: skip
WORST = (
    Panel(
        kind="table", title="Xids of the last day", text="The GPUs with the most new Xid records of one code in a day. `fairlead explain xid N`.",
        query="topk(20, gpu_xid:fairlead_xids:new1d > 0)", hidden=("uuid",),
    ),
    Panel(
        kind="table", title="Uncorrected ECC errors of the last day", text="The GPUs with the most new uncorrected ECC errors in a day.",
        query="topk(20, gpu:fairlead_gpu_ecc_uncorrected:increase1d > 0)", hidden=("uuid",),
    ),
    Panel(
        kind="table", title="Remapped rows", text="The GPUs with the most rows remapped after uncorrected errors, over their life.",
        query='topk(20, fairlead_gpu_remapped_rows{kind="uncorrected"} > 0)', hidden=("uuid", "kind"),
    ),
    Panel(
        kind="table", title="Banks without spare rows", text="The GPUs with the most memory banks that have no spare row left.",
        query='topk(20, fairlead_gpu_row_remap_banks{left="none"} > 0)', hidden=("uuid", "left"),
    ),
    Panel(
        kind="table", title="Nearest to slowdown", unit="celsius", text="The GPUs with the fewest degrees left to their slowdown temperature.",
        query="bottomk(20, fairlead_gpu_temperature_margin_celsius)", hidden=("uuid",),
    ),
    Panel(
        kind="table", title="Most throttled", unit="percent",
        text="The GPUs whose clocks a fault or heat limited for the largest part of the last hour (hardware, thermal and power brake reasons).",
        query="topk(20, gpu:fairlead_gpu_throttled:ratio1h > 0.01)", hidden=("uuid",),
    ),
    Panel(
        kind="table", title="NVLink errors of the last day", text="The GPUs with the most new NVLink errors in a day, over all kinds.",
        query="topk(20, gpu:fairlead_gpu_nvlink_errors:increase1d > 0)", hidden=("uuid",),
    ),
    Panel(
        kind="table", title="PCIe replays of the last day", text="The GPUs with the most new PCIe replays in a day.",
        query="topk(20, gpu:fairlead_gpu_pcie_replays:increase1d > 0)", hidden=("uuid",),
    ),
    Panel(
        kind="table", title="Narrow PCIe links", text="GPUs whose PCIe link has fewer lanes than it could have, with the lanes that it has.",
        query="gpu:fairlead_gpu_narrow_link:lanes", hidden=("uuid",),
    ),
    Panel(
        kind="table", title="Strikes", text="GPU cards with the most drains in the window of the agent's rules.",
        query="topk(20, fairlead_strikes > 0)",
    ),
    Panel(
        kind="table", title="Wants hardware", text="Faults whose next step is a person at the machine.", wide=True,
        query='fairlead_ladder_step{step=~"check_hardware|contact_support"}', hidden=("Value",),
    ),
)  # fmt: skip
DASHBOARD = Dashboard(
    name="gpu-health",
    title="fairlead: GPU health",
    text="The GPUs of all nodes, the worst first.",
    rows=(Row(title="Now", panels=NOW), Row(title="Worst first", panels=WORST)),
)
