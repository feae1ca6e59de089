"""Scenarios that are shipped: `legato simulate --list`."""
