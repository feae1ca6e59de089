"""The clock may go back: it is set, or a process on another machine takes over."""

from services.scheduler.book import State, computed_ns


def set_back(state: State, now_ns: int) -> None:
    """Nothing was heard, placed or reported in the future: what is dated behind `now_ns` was now. Else no lease would end, and nothing be
    reported, until the clock has caught up."""
    for table in (state.heard, state.awaiting, state.revoked, state.early_cancels, state.recent):
        for key, at_ns in table.items():
            if at_ns > now_ns:
                table[key] = now_ns  # type: ignore[index]  # each table with a key of its own
    state.heard_ns, state.matched_ns = min(state.heard_ns, now_ns), min(state.matched_ns, now_ns)
    state.reported_ns = min(state.reported_ns, now_ns)
    state.gaps = [(min(end_ns, now_ns), length_ns) for end_ns, length_ns in state.gaps]
    for step in state.steps.values():
        step.routed_ns, step.placed_ns = min(step.routed_ns, now_ns), min(step.placed_ns, now_ns)
        step.seen_ns, step.failed_ns = min(step.seen_ns, now_ns), min(step.failed_ns, now_ns)
        step.waits_ns = min(step.waits_ns, now_ns)
    for worker in state.workers.values():
        worker.strangers = {step: min(since_ns, now_ns) for step, since_ns in worker.strangers.items()}
        worker.computed_ns = min(worker.computed_ns, computed_ns(worker, now_ns))
        state.fleet.changed[worker.id] = None
