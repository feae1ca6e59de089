"""LoRA adapters in an engine: at most so many are loaded at once, and a request runs only while its own is.

Rule: an adapter that is not loaded takes a free place, or that of the least recently used one that no running request needs; loading it
costs time before the request's first iteration. A request whose adapter finds no place waits, and those behind it go on.

Source: S-LoRA (Sheng et al., 2023) keeps adapters in host memory and loads those of the running batch. A fixed number of places, and
passing over requests that find none, are vLLM's (`max_loras`) and SGLang's (`--max-loras-per-batch`). S-LoRA prefetches; here nothing
hides the loading. Pure.
"""

from collections import OrderedDict


class Adapters:
    """`loaded <= most`. The empty name is the model without an adapter: it needs no place."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._users: dict[str, int] = {}  # running requests, of each that has some
        self._idle: OrderedDict[str, None] = OrderedDict()  # loaded without users, least recently used first

    @property
    def loaded(self) -> int:
        return len(self._users) + len(self._idle)

    def names(self) -> list[str]:
        """Those that are loaded."""
        return [*self._users, *self._idle]

    def has_room(self, name: str) -> bool:
        """Whether a request with that adapter could run now."""
        return not name or name in self._users or len(self._users) < self.most

    def hold(self, name: str) -> bool:
        """A request with that adapter runs from now on. True: it has to be loaded first. There is room for it."""
        if not name:
            return False
        users = self._users.get(name, 0)
        known = users > 0 or name in self._idle
        self._idle.pop(name, None)
        if not known and self.loaded == self.most:
            self._idle.popitem(last=False)
        self._users[name] = users + 1
        return not known

    def release(self, name: str) -> None:
        """A request with that adapter no longer runs."""
        if not name:
            return
        self._users[name] -= 1
        if self._users[name] == 0:
            del self._users[name]
            self._idle[name] = None
