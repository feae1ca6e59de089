"""Measurements of what the control plane costs. Timings live here, never in tests. See docs/benchmarks.md for what was seen."""
