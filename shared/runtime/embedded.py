"""Servers that `legato up` and the tests bring along: children that stop with their parent, each with its data in one directory."""

from shared.runtime.embedded_nats import EmbeddedNats
from shared.runtime.embedded_postgres import EmbeddedPostgres
from shared.runtime.server_directory import EmbeddedError

__all__ = ["EmbeddedError", "EmbeddedNats", "EmbeddedPostgres"]
