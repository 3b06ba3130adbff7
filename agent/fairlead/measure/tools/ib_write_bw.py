"""Measures each RDMA adapter by itself: ib_write_bw sends from the node to its own server on the same port.

No fabric is needed, because the adapter loops the data back. So this tool finds an adapter with a bad slot or a bad link to the
host, but no bad cable. The name of a figure has the port's rate in it, because a node may have adapters of several kinds.

Source: linux-rdma/perftest, src/perftest_parameters.h (RESULT_FMT_G, REPORT_FMT); Azure/azurehpc-health-checks,
customTests/azure_ib_write_bw_gdr.nhc, which does the same with the same size.
"""

from __future__ import annotations

import re

from fairlead.measure.tool import Figure, MeasuredOutcome, Tool, ToolReading, last_line, unread

SIZE = 8388608
_DEVICE = re.compile(r"^# device (\S+) port (\d+) rate (\d+(?:\.\d+)?) Gb/sec")
_END = re.compile(r"^# devices (\d{1,9}) of (\d{1,9})$")
_HEAD = re.compile(r"^\s*#bytes\s+#iterations\s+BW peak\[(.*?)\]\s+BW average\[(.*?)\]")
_ROW = re.compile(r"^\s*(\d+)\s+(\d+)\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)\s*$")
_FAULT = re.compile(r"Completion with error|Failed status|Unable to|Couldn't|failed|syndrome", re.IGNORECASE)

# The server ends by itself after one client. A client that finds no server fails at once. With -F, the CPU's clock may change
# during the measurement.
COMMAND = f"""\
n=0 all=0
command -v ib_write_bw >/dev/null || exit 127
for port in /sys/class/infiniband/*/ports/*; do
	[ -e "$port/state" ] || continue
	all=$((all + 1))
	case $(cat "$port/state") in 4:*) ;; *) continue ;; esac
	device=${{port#/sys/class/infiniband/}} device=${{device%%/*}}
	n=$((n + 1))
	set -- -d "$device" -i "${{port##*/}}" -p $((18510 + n)) -s {SIZE} -F --report_gbits
	echo "# device $device port ${{port##*/}} rate $(cat "$port/rate")"
	timeout --foreground -k 5 60 ib_write_bw "$@" >/dev/null 2>&1 &
	server=$!
	sleep 2
	timeout --foreground -k 5 50 ib_write_bw "$@" localhost
	echo "# ended $?"
	kill $server 2>/dev/null
	wait $server
done
echo "# devices $n of $all\""""


def read(out: str, err: str) -> ToolReading:
    """Return the reading of an output. The outcome is ABSENT if there is no adapter. It is UNKNOWN if no adapter has an active
    port, or if an active port gave no figure."""
    figures: list[Figure] = []
    seen: list[str] = []
    device, rate, unit, whole, active, adapters = "", "", "", False, 0, 0
    for line in out.splitlines():
        if match := _DEVICE.match(line):
            device, rate, unit = f"{match[1]}/{match[2]}", match[3], ""
            seen.append(device)
        elif match := _HEAD.match(line):
            unit = match[2]
        elif (match := _ROW.match(line)) and device and unit:
            if unit != "Gb/sec" or float(match[4]) <= 0:
                return ToolReading(outcome=MeasuredOutcome.UNKNOWN, why=f"{device}: {match[4]} {unit}: it needs --report_gbits")
            name = f"rate_{float(rate):g}".replace(".", "_")
            figures.append(Figure(name=name, value=float(match[4]), unit="Gb/s", device=device, bytes=int(match[1])))
        elif match := _END.match(line):
            whole, active, adapters = True, int(match[1]), int(match[2])
    without = [d for d in seen if d not in {f.device for f in figures}]
    if not whole:
        return unread("incomplete output of ib_write_bw" if seen else "no output of ib_write_bw", out, err)
    if not adapters:
        return ToolReading(outcome=MeasuredOutcome.ABSENT, why="no RDMA adapter")
    if not seen:
        return ToolReading(outcome=MeasuredOutcome.UNKNOWN, why="no RDMA adapter has an active port")
    once = {(f.device, f.bytes) for f in figures}
    if not len(seen) == len(set(seen)) == active <= adapters or len(once) != len(figures):
        return unread(f"damaged output of ib_write_bw: {len(figures)} figures of {len(seen)} of {active} adapters", "", "")
    if without:
        fault = next((line.strip() for line in (err + "\n" + out).splitlines() if _FAULT.search(line)), "no figure")
        return ToolReading(outcome=MeasuredOutcome.UNKNOWN, why=f"{', '.join(without)}: {fault[:200]}", figures=tuple(figures))
    return ToolReading(outcome=MeasuredOutcome.PASS, figures=tuple(figures))


def so_far(out: str) -> str:
    """Return the adapter at which an unfinished run was."""
    seen = [m[1] for line in out.splitlines() if (m := _DEVICE.match(line))]
    return f"at {seen[-1]}" if seen else last_line(out) or "no output"


tool = Tool(
    summary="Each RDMA adapter against itself (ib_write_bw)", command=COMMAND, seconds=600, read=read, so_far=so_far, needed=False
)
