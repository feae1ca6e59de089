"""`make chaos`: see bench/chaos/__init__.py, and docs/benchmarks.md for what was seen."""

import argparse
import random
import sys

import msgspec
import uvloop
from rich.console import Console

from bench.chaos.report import show
from bench.chaos.run import Storm, chaos

# Workers, streams, readers by HTTP and programs at a time: what each engine can bear.
DEFAULTS = {"simulated": (4, 100, 8, 12), "sglang": (2, 4, 1, 1), "mixed": (3, 24, 4, 4)}


def main() -> int:
    """The exit status: 0 when nothing was lost, repeated, different or left behind; else 1, and the seed that brings the storm back."""
    parser = argparse.ArgumentParser(prog="make chaos", description="A storm of signals on a whole fleet while streams and workflows run.")
    parser.add_argument("--seed", type=int, help="which storm (default: another one each time)")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long blows fall (default: 60)")
    parser.add_argument("--engine", choices=("simulated", "sglang", "mixed"), default="simulated")
    parser.add_argument("--workers", type=int, help="default: 4, with SGLang 2; mixed: 3, and 2 with SGLang beside them")
    parser.add_argument("--streams", type=int, help="at a time (default: 100, with SGLang 4; mixed: 24, and 4 of SGLang)")
    parser.add_argument("--logs", default="", metavar="DIR", help="copy the logs of all processes there")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of tables")
    given = parser.parse_args()
    if not 1 <= given.seconds <= 3_600:
        parser.error("--seconds: from 1 to 3600")
    for name in ("workers", "streams"):
        if (value := getattr(given, name)) is not None and not 1 <= value <= 1_000:
            parser.error(f"--{name}: from 1 to 1000")
    storm = chosen(given)
    say = Console(stderr=True)
    say.print(f"seed {storm.seed}: {storm.seconds:g} s, {storm.workers} workers, {storm.streams} streams at a time")
    report = uvloop.run(chaos(storm, lambda line: say.print(line, soft_wrap=True, highlight=False)))
    if given.json:
        print(msgspec.json.encode(report).decode())
    else:
        show(report, Console(width=160))
    if not report.sound:
        again = f"python -m bench.chaos --seed {storm.seed} --seconds {storm.seconds:g} --engine {storm.engine}"
        say.print(f"NOT SOUND. Again: {again} --workers {storm.workers} --streams {storm.streams}", soft_wrap=True)
    return 0 if report.sound else 1


def chosen(given: argparse.Namespace) -> Storm:
    """With defaults that the engine can bear."""
    seed = random.SystemRandom().randrange(10**6) if given.seed is None else given.seed
    workers, streams, http, programs = DEFAULTS[given.engine]
    return Storm(
        seed=seed,
        seconds=given.seconds,
        engine=given.engine,
        workers=given.workers or workers,
        streams=given.streams or streams,
        http=http,
        programs=programs,
        logs=given.logs,
    )


if __name__ == "__main__":
    sys.exit(main())
