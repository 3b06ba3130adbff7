"""Describes the dashboard of one node: findings over time with drains marked, GPUs, links, clocks and errors."""

from __future__ import annotations

from release.dashboards.panel import Dashboard, Panel, Row

ON = 'instance="$instance"'
JUDGED = (
    Panel(
        kind="states", title="Verdict", text="The verdict over time.", legend="{{state}}",
        query=f"fairlead_verdict_state{{{ON}}} == 1",
    ),
    Panel(
        kind="states", title="Findings", text="The number of findings of each check and level over time. Drains are marked.",
        query=f"sum by (check, level) (fairlead_findings{{{ON}}})", legend="{{check}}: {{level}}",
    ),
    Panel(
        kind="table", title="Findings now", text="Each check and device with a finding.",
        query=f"fairlead_findings{{{ON}}}", hidden=("instance",),
    ),
    Panel(
        kind="table", title="Escalation", text="The present repair step of each fault that is remembered.",
        query=f"fairlead_ladder_step{{{ON}}}", hidden=("instance", "Value"),
    ),
)  # fmt: skip
GPUS = (
    Panel(
        kind="lines", title="Busy", unit="percent", legend="GPU {{index}}",
        text="The part of the measured time in which a kernel ran, by the driver's own samples. One small kernel makes a GPU busy.",
        query=f"rate(fairlead_gpu_busy_seconds_total{{{ON}}}[5m]) / (rate(fairlead_gpu_measured_seconds_total{{{ON}}}[5m]) > 0)",
    ),
    Panel(
        kind="lines", title="SM active", unit="percent", legend="GPU {{index}}",
        text="The part of the SMs that worked (GPM, Hopper and later). Other GPUs have no such series.",
        query=f"rate(fairlead_gpu_sm_active_seconds_total{{{ON}}}[5m]) / (rate(fairlead_gpu_gpm_seconds_total{{{ON}}}[5m]) > 0)",
    ),
    Panel(
        kind="lines", title="Temperature", unit="celsius", text="The temperature of the GPU core.", legend="GPU {{index}}",
        query=f"fairlead_gpu_temperature_celsius{{{ON}}}",
    ),
    Panel(
        kind="lines", title="Power", unit="watts", text="The power draw of the GPU card.", legend="GPU {{index}}",
        query=f"fairlead_gpu_power_draw_watts{{{ON}}}",
    ),
    Panel(
        kind="lines", title="SM clock", unit="hertz", text="The clock of the SMs.", legend="GPU {{index}}",
        query=f"fairlead_gpu_sm_clock_hertz{{{ON}}}",
    ),
    Panel(
        kind="lines", title="Throttled", unit="percent", legend="GPU {{index}}: {{reason}}",
        text="The part of the time in which each reason limited the clocks.",
        query=f'rate(fairlead_gpu_clock_event_seconds_total{{{ON}}}[5m]) > 0',
    ),
    Panel(
        kind="lines", title="Memory used", unit="bytes", text="The used frame buffer.", legend="GPU {{index}}",
        query=f"fairlead_gpu_memory_used_bytes{{{ON}}}",
    ),
    Panel(
        kind="lines", title="Jobs on GPUs", text="The running job of each GPU, by the prolog's records.", legend="GPU {{index}}: job {{job}}",
        query=f"fairlead_job_gpu{{{ON}}}",
    ),
)  # fmt: skip
ERRORS = (
    Panel(
        kind="lines", title="NVLinks up", text="The number of NVLinks of each GPU that are up.", legend="GPU {{index}}",
        query=f"fairlead_gpu_nvlinks_active{{{ON}}}",
    ),
    Panel(
        kind="lines", title="NVLink errors", text="New NVLink errors in 15 minutes by kind.", legend="GPU {{index}}: {{kind}}",
        query=f"increase(fairlead_gpu_nvlink_errors_total{{{ON}}}[15m]) > 0",
    ),
    Panel(
        kind="lines", title="PCIe link width", text="The number of PCIe lanes of each GPU.", legend="GPU {{index}}",
        query=f"fairlead_gpu_pcie_link_width_lanes{{{ON}}}",
    ),
    Panel(
        kind="lines", title="PCIe replays", text="New PCIe replays in 15 minutes.", legend="GPU {{index}}",
        query=f"increase(fairlead_gpu_pcie_replays_total{{{ON}}}[15m])",
    ),
    Panel(
        kind="lines", title="ECC errors", text="New ECC errors in 15 minutes by kind.", legend="GPU {{index}}: {{kind}}",
        query=f"increase(fairlead_gpu_ecc_errors_total{{{ON}}}[15m]) > 0",
    ),
    Panel(
        kind="lines", title="Xids", text="New Xid records of the kernel log in 15 minutes.", legend="GPU {{index}}: Xid {{xid}}",
        query=f"gpu_xid:fairlead_xids:new15m{{{ON}}}",
    ),
    Panel(
        kind="lines", title="NIC ports up", text="1 while the port is active.", legend="{{device}} port {{port}}",
        query=f"fairlead_nic_up{{{ON}}}",
    ),
    Panel(
        kind="lines", title="Sweep", unit="seconds", text="How long the agent's last full sweep took.", legend="sweep",
        query=f"fairlead_sweep_duration_seconds{{{ON}}}",
    ),
)  # fmt: skip
DASHBOARD = Dashboard(
    name="node",
    title="fairlead: node",
    text="One node: findings over time, GPUs, links, clocks and errors.",
    variables=(("instance", "label_values(fairlead_build_info, instance)"),),
    drains=f"fairlead_drained{{{ON}}} == 1 unless fairlead_drained{{{ON}}} offset 1m == 1",
    rows=(
        Row(title="Judged", panels=JUDGED),
        Row(title="GPUs", panels=GPUS),
        Row(title="Links and errors", panels=ERRORS),
    ),
)
