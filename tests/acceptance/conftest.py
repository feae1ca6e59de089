"""Whole fleets, as `legato up` runs them."""

from collections.abc import AsyncIterator

import pytest

from bench.fleets import running_fleet
from legato.fleet import Fleet

__all__ = ["running_fleet"]


@pytest.fixture(scope="module")
async def fleet() -> AsyncIterator[Fleet]:
    """Two workers with the simulated engine in real time; shared by the tests of a module."""
    async with running_fleet() as fleet:
        yield fleet
