"""Starts the scheduler alone: `python -m services.scheduler --help`."""

import sys

from services.scheduler.service import run
from shared.runtime.lifecycle import start

if __name__ == "__main__":
    sys.exit(start("scheduler", run))
