"""Legato: the client of a fleet of LLM inference engines. See `legato.Client`; the command line is `legato --help`."""

from importlib.metadata import version

from legato.client import Client, Step
from legato.outcome import Failed, NotEnded, Refused, Result, StepError
from legato.served import Served
from legato.tools import DEMANDED, Call, Parsed, call_form, parse
from legato.workflow import InputChanged, Workflow, WorkflowError
from shared.contracts.outcomes import FinishReason, Problem, Reason, Status, Usage
from shared.contracts.output import Output
from shared.core.errors import LegatoError

__all__ = [
    "DEMANDED",
    "Call",
    "Client",
    "Failed",
    "FinishReason",
    "InputChanged",
    "LegatoError",
    "NotEnded",
    "Output",
    "Parsed",
    "Problem",
    "Reason",
    "Refused",
    "Result",
    "Served",
    "Status",
    "Step",
    "StepError",
    "Usage",
    "Workflow",
    "WorkflowError",
    "call_form",
    "parse",
]

__version__ = version("legato")
