"""Seeded chance. The one module of the workloads that may import `random`, whose shared generator no seed binds: nobody here uses that."""

from random import Random

__all__ = ["Random"]
