"""Starts the workflow alone: `python -m services.workflow --help`."""

import sys

from services.workflow.service import run
from shared.runtime.lifecycle import start

if __name__ == "__main__":
    sys.exit(start("workflow", run))
