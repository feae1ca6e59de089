"""Which workflow a request belongs to, by its headers. Pure.

`X-Legato-Workflow` names the workflow, `X-Legato-Step-Key` the step within it; the other headers say what is said when it is opened, and
have no effect later; of a budget the newest counts. A session of NVIDIA Dynamo (nvext.py) groups steps under an id that follows from it.
"""

import re
from collections.abc import Mapping

import msgspec

from shared.contracts.ids import is_subject_token
from shared.core.inputs import session_workflow
from shared.core.money import USD_MAX
from shared.core.workflows import DEADLINE_MAX_S, KIND_CHARS_MAX, STEPS_PLANNED_MAX, Terms, Unfit, checked_name

WORKFLOW = "X-Legato-Workflow"
STEP_KEY = "X-Legato-Step-Key"
KIND = "X-Legato-Workflow-Kind"
DEADLINE_S = "X-Legato-Deadline-S"
STEPS_PLANNED = "X-Legato-Steps-Planned"
BUDGET_USD = "X-Legato-Budget-Usd"
SESSION_KIND = "session"
_WITH_WORKFLOW = (STEP_KEY, KIND, DEADLINE_S, STEPS_PLANNED, BUDGET_USD)
_DECIMAL = re.compile(r"[0-9]{1,12}(\.[0-9]{1,9})?")
_COUNT = re.compile(r"[0-9]{1,10}")


class Belonging(msgspec.Struct, frozen=True, kw_only=True):
    """`name` empty: a step of the workflow that nobody finds again. `session`: it only groups, and is checked by nobody."""

    workflow: str
    name: str = ""
    kind: str = ""
    terms: Terms = Terms()
    session: bool = False


def read_belonging(headers: Mapping[str, str], key: str, session: str) -> Belonging | None:
    """None: to no workflow. `key`: of the caller (`sha256:…`). Raises Unfit, with the header's name."""
    workflow = headers.get(WORKFLOW, "").strip()
    if not workflow:
        for name in _WITH_WORKFLOW:
            if name in headers:
                raise Unfit(f"{name} needs {WORKFLOW}: the id of the workflow", name)
        return Belonging(workflow=session_workflow(key, session), kind=SESSION_KIND, session=True) if session else None
    if not is_subject_token(workflow):
        raise Unfit(f"{WORKFLOW} should be 1 to 128 letters, digits, - and _", WORKFLOW)
    return Belonging(
        workflow=workflow,
        name=_name(headers),
        kind=_kind(headers.get(KIND, "").strip()),
        terms=Terms(
            deadline_s=_deadline(headers.get(DEADLINE_S, "").strip()),
            steps_planned=_planned(headers.get(STEPS_PLANNED, "").strip()),
            budget_usd=_budget(headers.get(BUDGET_USD, "").strip()),
        ),
    )


def _name(headers: Mapping[str, str]) -> str:
    if STEP_KEY not in headers:
        return ""
    try:
        return checked_name(headers[STEP_KEY].strip())
    except Unfit as error:
        raise Unfit(f"{STEP_KEY}: {error}", STEP_KEY) from error


def _kind(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise Unfit(f"{KIND} should be text in UTF-8", KIND) from error
    if len(text) > KIND_CHARS_MAX:
        raise Unfit(f"{KIND} has at most {KIND_CHARS_MAX} characters", KIND)
    return text


def _deadline(text: str) -> float | None:
    if text and not (_DECIMAL.fullmatch(text) and float(text) <= DEADLINE_MAX_S):
        raise Unfit(f"{DEADLINE_S} should be a number of seconds up to {DEADLINE_MAX_S:.0f}", DEADLINE_S)
    return float(text) if text else None


def _planned(text: str) -> int:
    if text and not (_COUNT.fullmatch(text) and int(text) <= STEPS_PLANNED_MAX):
        raise Unfit(f"{STEPS_PLANNED} should be a number up to {STEPS_PLANNED_MAX}", STEPS_PLANNED)
    return int(text or 0)


def _budget(text: str) -> float | None:
    if text and not (_DECIMAL.fullmatch(text) and 0 < float(text) <= USD_MAX):
        raise Unfit(f"{BUDGET_USD} should be a number of dollars above 0 and up to {USD_MAX:.0f}", BUDGET_USD)
    return float(text) if text else None
