"""Starts the gateway alone: `python -m services.gateway --help`."""

import sys

from services.gateway.service import run
from shared.runtime.lifecycle import start

if __name__ == "__main__":
    sys.exit(start("gateway", run))
