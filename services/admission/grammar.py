"""Rule: what can be seen to be wrong with a grammar without compiling it is said at the door. Pure.

Whether a regular expression or an EBNF is well-formed, and which parts of JSON Schema are understood, only the engine knows: it fails the
step at its first attempt, and says why.
"""

from typing import Any

import msgspec

from services.admission.refusal import invalid
from shared.contracts.outcomes import Problem
from shared.contracts.steps import GRAMMARS, Sampling

SCHEMA_DEPTH_MAX = 64  # levels of JSON. XGrammar 0.2.9 takes 0.8 s to compile 150 levels, and minutes for 1,000


def grammar_problem(sampling: Sampling) -> Problem | None:
    """Why the output cannot have the form that is asked for; None where it can, or where none is asked for."""
    given = [name for name in GRAMMARS if getattr(sampling, name) is not None]
    if not given:
        return None
    if len(given) > 1:
        return invalid(f"give one of {', '.join(GRAMMARS)}; there are {' and '.join(given)}", f"sampling.{given[1]}")
    for name in ("min_tokens", "ignore_eos"):
        if getattr(sampling, name):
            return invalid(f"{given[0]} says where the output ends; leave out {name}", f"sampling.{name}")
    return None if sampling.json_schema is None else _schema_problem(sampling.json_schema)


def _schema_problem(text: str) -> Problem | None:
    param = "sampling.json_schema"
    try:
        schema = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError) as error:
        return invalid(f"json_schema is no JSON: {error}", param)
    except RecursionError:
        return _too_deep(param)
    if not isinstance(schema, dict):
        return invalid("json_schema should be the text of a JSON object", param)
    return _too_deep(param) if _depth(schema) > SCHEMA_DEPTH_MAX else None


def _too_deep(param: str) -> Problem:
    return invalid(f"json_schema is nested too deeply: at most {SCHEMA_DEPTH_MAX} levels are taken", param)


def _depth(value: Any) -> int:
    """Levels of a JSON value; 1 for a scalar."""
    depth, level = 0, [value]
    while level:
        depth += 1
        level = [child for node in level for child in _children(node)]
    return depth


def _children(node: Any) -> list[Any]:
    if isinstance(node, dict):
        return list(node.values())
    return node if isinstance(node, list) else []
