"""Starts the worker alone: `python -m services.worker --help`."""

import sys

from services.worker.service import run
from shared.runtime.lifecycle import start

if __name__ == "__main__":
    sys.exit(start("worker", run))
