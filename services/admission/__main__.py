"""Starts the admission alone: `python -m services.admission --help`."""

import sys

from services.admission.service import run
from shared.runtime.lifecycle import start

if __name__ == "__main__":
    sys.exit(start("admission", run))
