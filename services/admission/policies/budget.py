"""Rule: the steps of a workflow cost no more in all than its budget: what was spent, what steps under way have reserved, and what this one
would reserve must fit into it.

A step reserves, in money:
    (prompt tokens x price of a prompt token + max_tokens x price of an output token) x SLACK
    price of a token = the worker's usd_per_hour / 3600 / its tokens per second (prefill; decode of one stream), where that is dearest;
                       where no worker states its speed, what it has cost lately (prices.py)
Inputs: price and speeds that the model's workers state (WorkerRegistered), reports of attempts, the step's lengths, the workflow's account
(accounts.py).
Source: an attempt is billed its share of the engine's time (services/worker/meter.py). Alone on the engine that is prefill plus decode.
With others it takes longer and pays for a part: a batch is never slower than its members one after the other (continuous batching: Orca,
Yu et al., OSDI 2022), so its own tokens cost no more. What it may pay for besides is up to half of the prefill of others that come while it
decodes.
Constant: SLACK, own assumption, for that, for contexts longer than the stated speed was measured with, and for prompts computed again after
a loss.

Limits: it is an estimate. A step that costs more than it reserved overdraws the budget by the difference, and the next step is refused.
Nothing is reserved where no worker states a price, and none until the first report where none states its speed; such steps are admitted
until the budget is spent by those that have ended.
"""

import math

from services.admission.accounts import Budget, account_of
from services.admission.config import AdmissionConfig
from services.admission.prices import Prices
from services.admission.request import Request
from services.admission.state import State
from shared.contracts.ids import ModelName
from shared.contracts.outcomes import Problem, Reason
from shared.core.money import NANO, nano_usd, spelled

SLACK = 1.5

_NO_PRICES = Prices()


def budget_of(state: State, request: Request) -> Budget | None:
    """From which the step is to be paid: that of its workflow, if its tenant has given it one."""
    return state.accounts.budgets.get(account_of(request.tenant, request.read.workflow))


def reservation(state: State, request: Request) -> int | None:
    """In nano-dollars; None where there is no budget."""
    if budget_of(state, request) is None:
        return None
    prompt_token, output_token = token_prices(state, request.model)
    return nano_usd((request.read.prompt_tokens * prompt_token + request.max_tokens * output_token) * SLACK)


def token_prices(state: State, model: ModelName) -> tuple[float, float]:
    """Of a prompt token and of an output token, in dollars; 0 where nobody knows."""
    stated, measured = state.fleet.models.get(model), state.prices.get(model, _NO_PRICES)
    prompt_token = stated.prompt_token_usd if stated is not None else 0.0
    output_token = stated.output_token_usd if stated is not None else 0.0
    return prompt_token or measured.of_prompt_token, output_token or measured.of_output_token


def refusal(state: State, request: Request, _: AdmissionConfig) -> Problem | None:
    """What cannot fit even when all that is under way cost nothing."""
    budget, needed = budget_of(state, request), reservation(state, request)
    if budget is None or needed is None or (budget.spent < budget.limit and budget.spent + needed <= budget.limit):
        return None
    return _problem(state, request, budget, needed)


def taken(state: State, request: Request, config: AdmissionConfig) -> Problem | None:
    """What does not fit beside the reservations of steps that are under way. They may cost less, so coming back may help."""
    budget, needed = budget_of(state, request), reservation(state, request)
    if budget is None or needed is None or needed <= budget.left:
        return None
    problem = _problem(state, request, budget, needed)
    return Problem(reason=problem.reason, message=problem.message, param=problem.param, retry_after_ms=config.retry_min_ms)


def _problem(state: State, request: Request, budget: Budget, needed: int) -> Problem:
    read = request.read
    has = f"workflow {read.workflow} may cost {spelled(budget.limit)} USD: {spelled(budget.spent)} are spent"
    reserves = f"{spelled(budget.reserved)} reserved by steps under way, and this step would reserve {spelled(needed)}"
    message = f"{has}, {reserves} for {read.prompt_tokens} tokens of prompt and {request.max_tokens} of output (max_tokens)"
    fits = _max_tokens(token_prices(state, request.model), read.prompt_tokens, budget.left)
    if fits:
        message = f"{message}; max_tokens can be at most {fits} now"
    return Problem(reason=Reason.BUDGET_SPENT, message=message, param="max_tokens" if fits else "")


def _max_tokens(prices: tuple[float, float], prompt_tokens: int, left: int) -> int:
    """The longest output that would fit; 0 for none, or where its price is not known."""
    prompt_token, output_token = prices
    if not output_token or left <= 0:
        return 0
    return max(0, math.floor((left / NANO / SLACK - prompt_tokens * prompt_token) / output_token))
