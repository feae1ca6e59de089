"""Starts the KV registry alone: `python -m services.kv_registry --help`."""

import sys

from services.kv_registry.service import run
from shared.runtime.lifecycle import start

if __name__ == "__main__":
    sys.exit(start("kv_registry", run))
