"""Describes the dashboard of provisioning: settings that drifted, documents that are behind, drivers that differ."""

from __future__ import annotations

from release.dashboards.panel import NONE, Dashboard, Panel, Row

DRIFT = 'fairlead_findings{check=~"setting[.].+"}'
NOW = (
    Panel(
        kind="stat", title="Nodes with drift", text="Nodes on which a setting is not as the node's document declares it.",
        query=f"count(count by (instance) ({DRIFT})) {NONE}",
    ),
    Panel(
        kind="stat", title="Settings that drifted", text="The number of different settings with drift on any node.",
        query=f"count(count by (check) ({DRIFT})) {NONE}",
    ),
    Panel(
        kind="stat", title="Documents behind", text="Nodes whose document has a lower generation than the newest of their hardware profile.",
        query=f"count(fairlead_document_generation < on (profile) group_left max by (profile) (fairlead_document_generation)) {NONE}",
    ),
    Panel(
        kind="stat", title="Driver versions", text="The number of different kernel modules of NVIDIA on all nodes.",
        query="count(count by (module) (fairlead_driver_info))",
    ),
)  # fmt: skip
EACH = (
    Panel(
        kind="table", title="Drift by setting", text="The number of nodes with drift of each setting. `fairlead plan` says what would change.",
        query=f"sort_desc(count by (check) (count by (check, instance) ({DRIFT})))",
    ),
    Panel(
        kind="table", title="Drift by node", text="The settings with drift on each node.",
        query=f"count by (instance, check) ({DRIFT})", hidden=("Value",),
    ),
    Panel(
        kind="lines", title="Nodes with drift", text="The number of nodes with drift of each setting over time.", legend="{{check}}",
        query=f"count by (check) (count by (check, instance) ({DRIFT}))", wide=True,
    ),
    Panel(
        kind="table", title="Documents", text="The number of nodes with each generation of the document, by hardware profile.",
        query='count_values by (profile) ("generation", fairlead_document_generation)',
    ),
    Panel(
        kind="table", title="Drivers", text="The kernel module, the loaded library and the library on disk, with the number of nodes.",
        query="count by (module, library, library_on_disk) (fairlead_driver_info)",
    ),
)  # fmt: skip
DASHBOARD = Dashboard(
    name="drift",
    title="fairlead: provisioning",
    text="Nodes that are not as their document declares them.",
    rows=(Row(title="Now", panels=NOW), Row(title="Where", panels=EACH)),
)
