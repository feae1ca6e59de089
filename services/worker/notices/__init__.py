"""Notices of planned losses: who tells that this machine will be gone, and when. `watch.py` follows them; the parsers are pure."""
