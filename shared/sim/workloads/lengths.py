"""How long prompts, answers and waits are: log-normal, as nearly all published traces are in their body, and cut off at both ends."""

import math
from typing import Annotated

import msgspec
from msgspec import Meta

from shared.sim.workloads.chance import Random

Amount = Annotated[float, Meta(ge=0, le=1e9)]


class Lognormal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Half of all draws are above `median`, in tokens or seconds. `sigma` is the logarithm's standard deviation. 0: always the median; 1:
    one in 20 is above five times that; 2.5: one in 20 above sixty times. What is below `min` or above `max` becomes that."""

    median: Annotated[float, Meta(gt=0, le=1e9)]
    sigma: Annotated[float, Meta(ge=0, le=5)] = 0.0
    min: Amount = 0.0
    max: Amount = 1e9

    def __post_init__(self) -> None:
        if self.min > self.max:
            raise ValueError(f"min {self.min:g} is more than max {self.max:g}")

    def draw(self, random: Random) -> float:
        return min(self.max, max(self.min, random.lognormvariate(math.log(self.median), self.sigma)))

    def tokens(self, random: Random) -> int:
        """At least one."""
        return max(1, round(self.draw(random)))

    @property
    def mean(self) -> float:
        """Of what is drawn: the part between both ends, and both ends with what was beyond them."""
        if not self.sigma:
            return min(self.max, max(self.min, self.median))
        low = math.log(self.min / self.median) / self.sigma if self.min else -math.inf
        high = math.log(self.max / self.median) / self.sigma if self.max else -math.inf
        inside = self.median * math.exp(self.sigma**2 / 2) * (_normal(high - self.sigma) - _normal(low - self.sigma))
        return self.min * _normal(low) + inside + self.max * (1 - _normal(high))


def _normal(x: float) -> float:
    """The standard normal distribution's share below x."""
    return (1 + math.erf(x / math.sqrt(2))) / 2
