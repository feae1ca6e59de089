"""Starts the autoscaler alone: `python -m services.autoscaler --help`."""

import sys

from services.autoscaler.service import run
from shared.runtime.lifecycle import start

if __name__ == "__main__":
    sys.exit(start("autoscaler", run))
