"""Runs the command line for `python -m fairlead`."""

import sys

from fairlead.cli import main

sys.exit(main())
