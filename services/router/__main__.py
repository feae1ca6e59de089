"""Starts the router alone: `python -m services.router --help`."""

import sys

from services.router.service import run
from shared.runtime.lifecycle import start

if __name__ == "__main__":
    sys.exit(start("router", run))
