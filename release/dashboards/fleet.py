"""Describes the dashboard of all nodes: verdicts, drains with their reason, drain limits, agents that are silent."""

from __future__ import annotations

from release.dashboards.panel import FRESH, NONE, Dashboard, Panel, Row

BY_STATE = (
    f"sum by (state) (fairlead_verdict_state and {FRESH})"
    ' or label_replace(sum(time() - fairlead_sweep_timestamp_seconds >= bool 300), "state", "silent", "", "")'
)

VERDICTS = (
    Panel(
        kind="stat", title="Nodes by verdict", legend="{{state}}",
        text="The number of nodes with each verdict. silent: the agent has not finished a sweep for five minutes.",
        query=BY_STATE, wide=True,
    ),
    Panel(
        kind="stat", title="Drained by fairlead", text="Nodes with a drain that fairlead has set in slurmctld.",
        query="sum(fairlead_drained)",
    ),
    Panel(
        kind="stat", title="Findings held", text="Nodes on which a finding would drain the node, and something delays or suppresses it.",
        query=f"count(fairlead_held_findings > 0) {NONE}",
    ),
    Panel(
        kind="stat", title="Agents silent", text="Nodes whose agent has not finished a sweep for five minutes.",
        query=f"count(time() - fairlead_sweep_timestamp_seconds > 300) {NONE}",
    ),
    Panel(
        kind="stat", title="Agents missing",
        text="Scrape targets with the label fairlead=\"expected\" that show no metrics of an agent.",
        query='count(up{fairlead="expected"} unless on (instance) fairlead_build_info) or 0 * count(up{fairlead="expected"})',
    ),
    Panel(
        kind="lines", title="Verdicts", text="The number of nodes with each verdict over time.", legend="{{state}}",
        query="state:fairlead_nodes:count", wide=True,
    ),
)  # fmt: skip
DRAINS = (
    Panel(
        kind="table", title="Drained nodes and what was found", wide=True,
        text="Each finding of level drain on a node that fairlead has drained. `fairlead why NODE` says more.",
        query='(fairlead_findings{level="drain"} and on (instance) fairlead_drained == 1) * on (instance) group_left (node) fairlead_node_info',
        hidden=("Value", "level"),
    ),
    Panel(
        kind="table", title="Would drain, and does not", text="Nodes with findings that are held, with the number of findings.",
        query="(fairlead_held_findings > 0) * on (instance) group_left (node) fairlead_node_info",
    ),
    Panel(
        kind="table", title="Drain limits",
        text="The limits that delay drains now, with the number of nodes that wait: partition, switch, block, common_cause, suspect_job.",
        query="count by (limit, name) (fairlead_drain_limited == 1)",
    ),
    Panel(
        kind="lines", title="Findings by check", text="The number of nodes on which each check reports a finding of any level.",
        query="count by (check) (count by (check, instance) (fairlead_findings))", legend="{{check}}", wide=True,
    ),
)  # fmt: skip
AGENTS = (
    Panel(
        kind="table", title="Silent agents", unit="seconds",
        text="Nodes whose agent has not finished a sweep for five minutes, and for how long.",
        query="time() - fairlead_sweep_timestamp_seconds > 300",
    ),
    Panel(
        kind="table", title="Sources that do not answer", unit="seconds",
        text="The driver (nvml), the kernel log, /proc and /sys (host) or the disk of the agent's state, where the agent itself runs.",
        query="time() - fairlead_source_timestamp_seconds > 300 and on (instance) time() - fairlead_sweep_timestamp_seconds < 300",
    ),
    Panel(
        kind="table", title="Nodes by class", text="The number of nodes with each hardware profile.",
        query="count by (profile) (fairlead_document_generation)",
    ),
    Panel(
        kind="table", title="Not ok by class",
        text="The number of nodes whose last verdict is drain, warn or unknown, by hardware profile.",
        query='count by (profile, state) ((fairlead_verdict_state{state!="ok"} == 1) * on (instance) group_left (profile) fairlead_document_generation)',
    ),
    Panel(
        kind="table", title="Agents by version", text="The number of nodes with each version of fairlead.",
        query="count by (version) (fairlead_build_info)",
    ),
    Panel(
        kind="table", title="Drivers", text="The number of nodes with each version of the NVIDIA kernel module.",
        query="count by (module) (fairlead_driver_info)",
    ),
)  # fmt: skip
DASHBOARD = Dashboard(
    name="fleet",
    title="fairlead: fleet",
    text="All nodes with a fairlead agent: verdicts, drains, limits and silent agents.",
    rows=(
        Row(title="Verdicts", panels=VERDICTS),
        Row(title="Drains", panels=DRAINS),
        Row(title="Agents and classes", panels=AGENTS),
    ),
)
