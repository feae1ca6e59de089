"""How bugs are planted: real code is changed in this process, for a while."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

Patch = tuple[Any, str, Any]  # of what, which name, what instead


class Mutation(NamedTuple):
    """`what`: the bug, in words."""

    what: str
    patches: Callable[[], list[Patch]]


MUTATIONS: dict[str, Mutation] = {}  # filled by mutations.py


def planted(what: str) -> Callable[[Callable[[], list[Patch]]], Callable[[], list[Patch]]]:
    """A function that gives a bug's patches makes it known, under its name."""

    def add(patches: Callable[[], list[Patch]]) -> Callable[[], list[Patch]]:
        MUTATIONS[patches.__name__.replace("_", "-")] = Mutation(what, patches)
        return patches

    return add


@contextmanager
def patched(where: Any, name: str, value: Any) -> Iterator[None]:
    """Another value under a name, for a while."""
    before = getattr(where, name)
    setattr(where, name, value)
    try:
        yield
    finally:
        setattr(where, name, before)


@contextmanager
def mutated(name: str | None) -> Iterator[None]:
    """With the bug of that name; None: with none."""
    with ExitStack() as stack:
        for patch in MUTATIONS[name].patches() if name else ():
            stack.enter_context(patched(*patch))
        yield


def nothing(*_: Any, **__: Any) -> None:
    """Does not do what it should."""
