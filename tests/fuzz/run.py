"""One target under atheris: ``python -m tests.fuzz.run TARGET SECONDS CORPUS``.

Ends with 0 after SECONDS; anything else is a crash, an input that took longer than HANG_SECONDS, or more memory than
MEMORY_MB (libFuzzer's own exit codes). The input that did it is left in CORPUS as crash-*, timeout-* or oom-*.
"""

from __future__ import annotations

import sys

import atheris

HANG_SECONDS = 10
MEMORY_MB = 512
INPUT_MAX = 8192


def main() -> None:
    name, seconds, corpus = sys.argv[1:4]
    atheris.enabled_hooks.add("RegEx")
    with atheris.instrument_imports(include=["fairlead"]):
        from tests.fuzz.targets import SEEDS, TARGETS
    for number, seed in enumerate(SEEDS[name]):
        with open(f"{corpus}/seed-{number}", "wb") as f:
            f.write(seed)
    limits = [f"-max_total_time={seconds}", f"-timeout={HANG_SECONDS}", f"-rss_limit_mb={MEMORY_MB}", f"-max_len={INPUT_MAX}"]
    atheris.Setup([sys.argv[0], *limits, f"-artifact_prefix={corpus}/", "-seed=1", corpus], TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
