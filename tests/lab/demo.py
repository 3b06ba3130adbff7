"""`make demo`: fairlead's whole job on a rack of four simulated GPU nodes under real Slurm; every step is checked.

    python -m tests.lab.demo [--keep] [--suite bookworm] [--name demo]

A step that does not hold ends the demo with status 1 and says what was expected and what was seen. Ctrl-C at any time
takes everything down.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.lab import demo_steps
from tests.lab.demo_stage import Stage, StepFailed
from tests.lab.rack import Rack
from tests.lab.roots import LabError


def _interrupted(signum: int, frame: object) -> None:
    raise KeyboardInterrupt


def tear_down(stage: Stage, rack: Rack) -> None:
    """End everything and prove that nothing stays."""
    rack.down()
    stage.check("no cgroup stays", not rack.cgroup.exists(), "none", str(rack.cgroup))
    names = [p.name for p in Path("/run/netns").glob("*")] if Path("/run/netns").is_dir() else []
    left = [n for n in names if rack.name in n]
    stage.check("no network namespace stays", not left, "none", ", ".join(left))
    mounts = [ln.split()[1] for ln in Path("/proc/mounts").read_text().splitlines() if f"/racks/{rack.name}/" in ln]
    stage.check("no mount stays", not mounts, "none", ", ".join(mounts))
    stage.check("no record stays", not rack.folder.exists(), "none", str(rack.folder))


def keep(rack: Rack, site: Path) -> None:
    """How to look around in a rack that stays up."""
    enter = " ".join(rack.enter)
    print(f"""
The rack stays up. Look around:
  {enter} ssh -F {rack.ssh_config} gpu1        a shell on a node (gpu1 .. gpu4, ctl)
  {rack.bin}/sinfo -R                          Slurm
  {enter} .venv/bin/fairlead why gpu1 --site {site} --bin-dir {rack.bin}
Break things: GPU 3 of gpu1 falls off the bus; a call of the driver hangs; everything is well again
  .venv/bin/python -m tests.lab.faults {rack.nodes[0].sim}/nvml.control lost 3
  .venv/bin/python -m tests.lab.faults {rack.nodes[0].sim}/nvml.control hang nvmlDeviceGetTemperature 3
  .venv/bin/python -m tests.lab.faults {rack.nodes[0].sim}/nvml.control clear
  make lab-down                                ends the rack""")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", action="store_true", help="leave the rack up at the end")
    parser.add_argument("--suite", default="bookworm", help="Debian release of the nodes: bookworm, trixie, forky")
    parser.add_argument("--name", default="demo")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, _interrupted)
    signal.signal(signal.SIGINT, _interrupted)
    stage = Stage()
    rack = Rack(nodes_wanted=4, suite=args.suite, name=args.name)
    started = time.monotonic()
    code = 1
    try:
        demo = demo_steps.Demo(stage, rack)
        steps: list[tuple[str, Callable[[], None]]] = [
            ("A rack: one controller and four nodes with 8 H100s each (simulated)", demo.bring_up),
            ("Provisioning over ssh; the second run changes nothing", demo.provision),
            ("A job that says nothing of ours gets environment and binding", demo.job),
            ("The whole layout: 8 tasks on 2 x 56 cores", demo.whole_layout),
            ("An Xid 79 in the kernel log of gpu1", demo.xid),
            ("The driver of gpu2 hangs in a call", demo.wedged),
            ("Drift on gpu3: NUMA balancing on, an ACS bit set", demo.drift),
            ("Repair of gpu1; an admin's drain of gpu4 stands", demo.repair),
        ]
        for title, step in steps:
            with stage.step(title):
                step()
        if args.keep:
            keep(rack, demo.site)
        else:
            with stage.step("Everything is taken down"):
                tear_down(stage, rack)
        stage.summary(time.monotonic() - started)
        code = 0
    except StepFailed as e:
        print(f"\ndemo: {e}", file=sys.stderr)
    except LabError as e:
        print(f"\ndemo: the lab failed: {e}", file=sys.stderr)
        code = 69
    except KeyboardInterrupt:
        print("\ndemo: interrupted; taking everything down", file=sys.stderr)
        code = 130
    finally:
        if not (args.keep and code == 0):
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            rack.down()
    return code


if __name__ == "__main__":
    sys.exit(main())
