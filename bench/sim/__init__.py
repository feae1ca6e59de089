"""Whole fleets in simulated worlds: the real services, workers and readers under a virtual clock, over a network, a nats-server and a
record that are models, with faults from a seed, and every invariant looked at all the time. See docs/simulation.md."""
