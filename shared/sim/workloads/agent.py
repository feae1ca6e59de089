"""The loop of an agent with tools, as copilot and autonomous have it: call, run the tool, add its result, call again.

Lengths and times are those of five recorded sessions of Claude Code (123 calls, 2026): a first prompt of some 15,000 tokens, of which
11,000 are the same in all sessions; a result adds 770 tokens in the mean and 250 in the middle; an answer has 116 and 60 (from the lengths
of its texts, 4 characters a token); a tool takes 2.1 s in the mean, 0.1 s in the middle and two minutes at worst.
"""

from shared.sim.programs import Call, Segment
from shared.sim.workloads.chance import Random
from shared.sim.workloads.conversation import Conversation
from shared.sim.workloads.lengths import Lognormal
from shared.sim.workloads.settings import Arriving, Count, Tokens
from shared.sim.workloads.source import Source


class Agent(Arriving, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the loop goes by. While there is still room for it in `context_max` tokens, the model is asked for a summary, and goes on from
    there: system prompt, task, summary. That is how Claude Code compacts a context; the numbers are own assumptions."""

    system_tokens: Tokens = 11_000
    system_prompts: Count = 1
    task: Lognormal = Lognormal(median=4_000, sigma=0.3, max=32_000)
    result: Lognormal = Lognormal(median=250, sigma=1.5, max=20_000)
    output: Lognormal = Lognormal(median=60, sigma=1.15, max=4_096)
    tool_s: Lognormal = Lognormal(median=0.1, sigma=2.5, max=600)
    context_max: Tokens = 131_072
    summary: Lognormal = Lognormal(median=2_000, sigma=0.3, max=8_000)

    def __post_init__(self) -> None:
        needed = self.system_tokens + self.task.median + 2 * self.summary.max
        if self.context_max < needed:
            raise ValueError(
                f"context_max {self.context_max} is too small: system prompt, task and two longest summaries are {needed:.0f} tokens"
            )


def loop(settings: Agent, source: Source, system: tuple[Segment, ...], count: int, random: Random) -> list[Call]:
    """`count` calls, summaries included."""
    room = settings.context_max - round(settings.summary.max)
    opening = (*system, source.fresh(settings.task.tokens(random)))
    talk = Conversation(source, opening)
    talk.ask(settings.output.tokens(random))
    while len(talk.calls) < count:
        result, output, tool_s = settings.result.tokens(random), settings.output.tokens(random), settings.tool_s.draw(random)
        if talk.tokens + result + output > room:
            summary = talk.ask(settings.summary.tokens(random), tool_s)
            talk.begin_again((*opening, summary.output))
        else:
            talk.say(result)
            talk.ask(output, tool_s)
    return talk.calls
