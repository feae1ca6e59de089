"""Money as whole numbers of nano-dollars: sums come out even, in whatever order they are made. Pure."""

NANO = 1_000_000_000
USD_MAX = 1e9  # of one budget or one bill: what is larger is a mistake, and is counted as that much
NANO_MAX = 2**62  # of a sum, so that any two fit into the 64 bits of a JSON number


def nano_usd(usd: float) -> int:
    """The nearest number of nano-dollars, from 0 to USD_MAX."""
    return round(min(max(usd, 0.0), USD_MAX) * NANO)


def spelled(nano: int) -> str:
    """For people: four decimal places, more below a cent, so that small amounts differ from nothing."""
    usd = nano / NANO
    return f"{usd:.4f}" if usd >= 0.01 or not nano else f"{usd:.3g}" if usd >= 1e-4 else f"{usd:.9f}"
