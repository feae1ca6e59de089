"""Fleets that are only thought: scenarios, the world that plays them with the real deciders, and reports."""
