"""Random and directed sequences on real Slurm: a batch is one sequence on each node of a cluster at the same time.

A seed names one sequence: ``bookworm:17:n3`` is what happens to n3 in batch 17 on that release, together with what happens to
slurmctld in that batch. Alone: ``python -m tests.slurm.sequences bookworm:17:n3``. A directed one goes by its name, as
``bookworm:same evidence``.

Many: ``python -m tests.slurm.sequences --random 200 bookworm`` runs 200 random ones, some at the same time, prints the seed of
each and the story of what broke, and says at the end how many ran and which promises broke how often.
"""

from __future__ import annotations

import argparse
import random
import shlex
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests import memory
from tests.lab.cluster import Cluster
from tests.slurm import moves
from tests.slurm.promises import Broken, judge, status
from tests.slurm.record import Record, sampler
from tests.slurm.ward import REBOOT_PROGRAM, Ward

PROJECT = Path(__file__).resolve().parents[2]
SAMPLE_SECONDS = 0.2
MOVES_EACH = 10
AT_ONCE = 10
#: What an agent does at last it has done within this, after the last move.
REST_SECONDS = 30


@dataclass
class Ended:
    """One sequence and what was broken in it."""

    seed: str
    record: Record
    broken: list[Broken] = field(default_factory=list)

    def __str__(self) -> str:
        reported = "\n".join(f"  {b.promise}\n    {b.at - self.record.began:.2f}: {b.how}" for b in self.broken)
        alone = f"python -m tests.slurm.sequences {shlex.quote(self.seed)}"
        return f"seed {self.seed} (alone: {alone}): {len(self.broken)} broken promises\n{reported}\n{self.record.text()}"


@contextmanager
def cluster_of_wards(suite: str, names: Sequence[str]) -> Iterator[tuple[Cluster, list[Ward]]]:
    """A cluster with an agent's folder for each named node, and with somebody who watches all nodes."""
    conf = "ReturnToService=2\n"
    made = Cluster(
        suite, nodes=max(int(name[1:]) for name in names), cores=4, prolog=PROJECT / "slurm/prolog", nohold=True,
        reboot="/etc/slurm/reboot", extra_conf=conf, files={"/etc/slurm/reboot": REBOOT_PROGRAM},
    )  # fmt: skip
    with made as cluster, memory.folder() as folder:
        cluster.run(["/bin/chmod", "1777", "/run/lab-nodes"])
        words = ["/bin/bash", "-c", f"setsid bash -c '{sampler('/var/log/slurm/samples', SAMPLE_SECONDS)}' > /dev/null 2>&1 &"]
        cluster.run(words)
        wards = []
        for name in names:
            (folder / name).mkdir()
            wards.append(Ward(cluster, name, folder / name))
        try:
            yield cluster, wards
        finally:
            for ward in wards:
                if ward.agent.process is not None:
                    ward.agent.process.kill()
                    ward.agent.process.wait()
    if cluster._hold is not None and cluster._hold.stdout is not None:
        cluster._hold.stdout.close()


def _rest(ward: Ward) -> None:
    """Everything that was begun is ended, and the agent may come to its end; then it is asked why."""
    chance = random.Random(0)
    for what, end in (("slow", moves.slow), ("hold", moves.hold)):
        if what in ward.begun:
            end(ward, chance)
    ward.agent_up()
    ward.submit()
    began = time.time()
    ward.tell("-- rest")

    def settled() -> bool:
        now = ward.now()
        if now is None or time.time() < began + min(ward.record.reconcile_seconds, 5) + 2:
            return False
        due = any(status(ward.record, fault, time.time()) == "due" for fault in ward.record.faults)
        return not due or "DRAIN" in now.states or "DOWN" in now.states

    ward.until(settled, REST_SECONDS)
    time.sleep(2)
    ward.hear(why=True)


def one(ward: Ward, seed: str, script: Callable[[Ward, random.Random], None], reconcile_seconds: float = 2.0) -> Ended:
    """One sequence on one node, and its judgement."""
    chance = random.Random(seed)
    ward.start(reconcile_seconds)
    try:
        script(ward, chance)
        _rest(ward)
    except Exception:
        ward.tell(traceback.format_exc())
        record = ward.stop()
        return Ended(seed, record, [Broken("the sequence itself came to its end", time.time(), traceback.format_exc())])
    record = ward.stop()
    return Ended(seed, record, judge(record))


def at_random(ward: Ward, chance: random.Random) -> None:
    """``MOVES_EACH`` random moves."""
    ward.submit()
    asked = chance.randrange(MOVES_EACH)
    for number in range(MOVES_EACH):
        move = chance.choices(list(moves.MOVES), list(moves.MOVES.values()))[0]
        own = random.Random(chance.random())
        with suppress(subprocess.TimeoutExpired):
            move(ward, own)
        time.sleep(chance.choice((0.0, 0.1, 0.6, 1.2, 2.5)))
        ward.hear(why=number == asked)


def batch(cluster: Cluster, wards: Sequence[Ward], number: int, *, events: bool = True) -> list[Ended]:
    """One sequence on each node, and events of slurmctld meanwhile."""
    ended: list[Ended] = []
    threads = []
    for ward in wards:
        seed = f"{cluster.suite}:{number}:{ward.node}"
        threads.append(threading.Thread(target=lambda w=ward, s=seed: ended.append(one(w, s, at_random))))  # type: ignore[misc]
    chance = random.Random(f"{cluster.suite}:{number}")
    plan = sorted((chance.uniform(6, 30), chance.choices(list(moves.EVENTS), list(moves.EVENTS.values()))[0]) for _ in range(2))
    kept = chance.uniform(3, 12)
    for thread in threads:
        thread.start()
    wait_until(lambda: all(w.record.began and time.time() - w.record.began < 600 for w in wards))
    began = time.time()
    for at, event in [*([(kept, None)]), *plan] if events else []:
        while time.time() < began + at and any(thread.is_alive() for thread in threads):
            time.sleep(0.1)
        if event is None:
            moves.keep(cluster)
        elif any(thread.is_alive() for thread in threads):
            event(cluster, wards, random.Random(f"{cluster.suite}:{number}:{at}"))
    for thread in threads:
        thread.join()
    return ended


def wait_until(met: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not met() and time.monotonic() < deadline:
        time.sleep(0.05)


def many(suite: str, count: int, *, at_once: int, first: int, minutes: float) -> int:
    """So many random sequences, in batches; no batch is begun after so many minutes."""
    began, ended, broken = time.monotonic(), 0, Counter[str]()
    with cluster_of_wards(suite, [f"n{i}" for i in range(1, 1 + at_once)]) as (cluster, wards):
        for number in range(first, first + -(-count // at_once)):
            if time.monotonic() > began + minutes * 60:
                print(f"{suite}: {minutes:g} minutes are over before batch {number}", flush=True)
                break
            for each in batch(cluster, wards[: count - ended], number):
                ended += 1
                broken.update({b.promise for b in each.broken})
                print(each if each.broken else f"{each.seed}: kept", flush=True)
    took = (time.monotonic() - began) / 60
    print(f"\n{suite}: {ended} of {count} sequences ran in {took:.1f} minutes, {at_once} at once; broken:")
    print("\n".join(f"  {times} x {promise}" for promise, times in broken.most_common()) or "  none")
    return 1 if broken or ended < count else 0


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.slurm.sequences", description=__doc__)
    parser.add_argument("seeds", nargs="+", help="seeds; with --random the releases (bookworm, trixie, forky)")
    parser.add_argument("--random", type=int, metavar="N", help="so many random sequences of each release")
    parser.add_argument("--at-once", type=int, default=AT_ONCE, metavar="N", help="nodes of a cluster, a sequence on each")
    parser.add_argument("--first", type=int, default=1, metavar="N", help="the number of the first batch")
    parser.add_argument("--minutes", type=float, default=60, help="no batch of a release is begun after that")
    args = parser.parse_args(words)
    if args.random is None:
        return named(args.seeds)
    runs = [many(s, args.random, at_once=args.at_once, first=args.first, minutes=args.minutes) for s in args.seeds]
    return max(runs)


def named(seeds: Sequence[str]) -> int:
    """Each named sequence alone, with its story; a seed without a node: the whole batch."""
    from tests.slurm import directed

    broken = 0
    for seed in seeds:
        suite, what, *node = seed.split(":")
        events = {event.__name__: event for event in moves.EVENTS}
        count = AT_ONCE if what.isdigit() else len(directed.BEFORE) if what in events else 1
        names = node if node and what.isdigit() else [f"n{i}" for i in range(1, 1 + count)]
        with cluster_of_wards(suite, names) as (cluster, wards):
            if what.isdigit():
                made = batch(cluster, wards, int(what))
            else:
                made = (
                    directed.together(cluster, wards, events[what]) if what in events else directed.alone(cluster, wards, [what])
                )
            for ended in made:
                broken += bool(ended.broken)
                print(ended if ended.broken or len(names) == 1 else f"{ended.seed}: kept", flush=True)
    return min(broken, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
