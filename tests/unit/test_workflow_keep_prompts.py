"""Since when prompts are kept."""

from services.workflow.config import WorkflowConfig
from services.workflow.policies.keep_prompts import kept_since_ns

S = 1_000_000_000
NOW = 1_700_000_000 * S
CONFIG = WorkflowConfig(prompts_kept_s=60)


def test_without_an_open_step_the_grace_is_kept() -> None:
    assert kept_since_ns(NOW, (), CONFIG) == NOW - 60 * S


def test_an_open_step_and_the_grace_before_it_are_kept_by_the_earlier_of_its_times() -> None:
    assert kept_since_ns(NOW, (NOW - 100 * S,), CONFIG) == NOW - 160 * S
    assert kept_since_ns(NOW, (NOW - 100 * S, NOW - 300 * S), CONFIG) == NOW - 360 * S
    assert kept_since_ns(NOW, (NOW + 500 * S, NOW - 100 * S), CONFIG) == NOW - 160 * S


def test_a_step_of_the_future_keeps_what_is_not_recorded_yet() -> None:
    assert kept_since_ns(NOW, (NOW + 500 * S,), CONFIG) == NOW - 60 * S


def test_the_grace_is_longer_than_the_window_in_which_a_second_prompt_is_taken_for_a_copy() -> None:
    from shared.contracts.streams import PROMPTS

    assert WorkflowConfig().prompts_kept_s > PROMPTS.duplicate_window_s + 30
