"""How admission words what it refuses. Pure."""

from shared.contracts.outcomes import Problem, Reason

MESSAGE_CHARS_MAX = 500


def invalid(message: str, param: str = "") -> Problem:
    """The caller's mistake. Text that came from outside is cut, and shown without control characters."""
    return Problem(reason=Reason.INVALID, message=plain(message), param=plain(param))


def plain(text: str) -> str:
    """Printable, on one line, and not too long: for text that quotes what somebody sent."""
    return "".join(c if c.isprintable() else " " for c in text[:MESSAGE_CHARS_MAX])
