"""fairlead with a time of day that is wrong by the seconds in FILE: python -m tests.slurm.wrong_clock FILE ...

FILE is read each time that the clock is.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from fairlead.cli import main

if __name__ == "__main__":
    wrong, true = Path(sys.argv[1]), time.time
    time.time = lambda: true() + float(wrong.read_text() or 0)
    sys.exit(main(sys.argv[sys.argv.index("fairlead") + 1 :]))
