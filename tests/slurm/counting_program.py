#!/usr/bin/python3
"""Counts to a number, saves, and goes on from its last save: what the templates of `fairlead template sbatch` run in tests.

counting_program.py LAST EVERY MODE. It saves each EVERY steps, and with MODE "signal" also on SIGUSR1 and SIGTERM, when it ends.
MODE "crash": it ends with 7 at its first step. MODE "stuck": it never gets any further.
"""

import os
import signal
import sys
import time

FOLDER = os.environ["CHECKPOINT"]
LAST, EVERY, MODE = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
STATE = os.path.join(FOLDER, "state")


def save(count):
    with open(STATE + ".new", "w") as f:
        f.write(str(count))
    os.rename(STATE + ".new", STATE)


def say(text):
    with open(os.path.join(FOLDER, ".starts-log"), "a") as f:
        f.write(text + "\n")


count = int(open(STATE).read()) if os.path.exists(STATE) else 0  # noqa: SIM115
say("begin %d" % count)  # noqa: UP031
signals = []
if MODE == "signal":
    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, lambda got, frame: signals.append(got))
if MODE == "crash":
    sys.exit(7)
while count < LAST:
    time.sleep(0.05)
    count += MODE != "stuck"
    if MODE != "stuck" and count % EVERY == 0:
        save(count)
    if signals:
        save(count)
        say("saved %d on signal %d" % (count, signals[0]))  # noqa: UP031
        sys.exit(3)
if MODE != "stuck":
    save(count)
say("done")
