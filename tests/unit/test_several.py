"""Several choices of one request: by either door the same steps, so that a program may begin by one and go on by the other."""

import pytest

from legato.request import StepRequest, choice_request, to_submission
from shared.core.several import choice, choice_key

REQUEST: StepRequest = {"model": "m", "prompt": "Hi", "max_tokens": 5, "seed": 7}
SEEDLESS: StepRequest = {"model": "m", "prompt": "Hi", "max_tokens": 5}


@pytest.mark.parametrize("asked", [REQUEST, SEEDLESS])
@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_workflows_choices_are_the_steps_that_the_gateway_makes(asked: StepRequest, index: int) -> None:
    named: StepRequest = {**asked, "workflow": "w", "step_key": "plan"}
    by_python: StepRequest = {**choice_request(asked, index), "workflow": "w", "step_key": choice_key("plan", index)}
    assert to_submission(by_python, "") == choice(to_submission(named, ""), index)
    assert to_submission(choice_request(named, index), "") == choice(to_submission(named, ""), index)


def test_choices_have_seeds_of_their_own_and_the_first_is_the_request_itself() -> None:
    seeds = [choice_request(REQUEST, index)["seed"] for index in range(100)]
    assert seeds[0] == REQUEST["seed"]
    assert len(set(seeds)) == 100
