"""Research by several agents: a lead plans, some look things up side by side, it reads what they found and plans again, and writes."""

from collections.abc import Iterator

from shared.sim.programs import Call, Program
from shared.sim.workloads.chance import Random
from shared.sim.workloads.conversation import Conversation
from shared.sim.workloads.lengths import Lognormal
from shared.sim.workloads.settings import Arriving, Span, Tenant, Tokens
from shared.sim.workloads.source import Source, generated


class Research(Arriving, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The shape is that of a published system ("How we built our multi-agent research system", Anthropic, 2025: a lead that starts 3 to 5
    agents at a time, in rounds). Rounds and steps are own assumptions, so that it is about 50 calls: 3 times (1 plan and 4 branches of 4
    steps) and the report, 52 in the mean; so are lengths and the times of searches."""

    system_tokens: Tokens = 3_000  # of the lead, and another one of the branches
    question: Lognormal = Lognormal(median=200, sigma=0.8, max=8_000)
    rounds: Span = Span(least=2, most=4)
    branches: Span = Span(least=3, most=5)
    steps: Span = Span(least=3, most=5)
    plan: Lognormal = Lognormal(median=400, sigma=0.5, max=4_096)
    query: Lognormal = Lognormal(median=80, sigma=0.6, max=1_024)  # what a branch says until its last step
    found: Lognormal = Lognormal(median=2_500, sigma=0.8, max=16_000)  # what a search brings
    finding: Lognormal = Lognormal(median=500, sigma=0.5, max=4_096)  # what a branch reports
    report: Lognormal = Lognormal(median=2_000, sigma=0.4, max=8_192)
    search_s: Lognormal = Lognormal(median=1.5, sigma=1.0, max=120)


def programs(settings: Research, source: Source) -> Iterator[Program]:
    """Research agents: about 50 calls, in rounds of parallel branches that a lead plans and joins."""

    def calls(tenant: Tenant, random: Random) -> list[Call]:
        made: list[Call] = []
        lead = Conversation(source, source.system(tenant, 1, settings.system_tokens, random), "lead")
        lead.say(settings.question.tokens(random))
        system = (source.shared(f"branch of {tenant.name}", settings.system_tokens),) if settings.system_tokens else ()
        ends: list[Call] = []
        for turn in range(random.randint(settings.rounds.least, settings.rounds.most)):
            made.append(plan := _joined(lead, ends, settings.plan.tokens(random)))
            ends = []
            for branch in range(random.randint(settings.branches.least, settings.branches.most)):
                talk = Conversation(source, system, f"round-{turn + 1}-branch-{branch + 1}")
                made += _branch(settings, talk, plan, random)
                ends.append(made[-1])
        made.append(_joined(lead, ends, settings.report.tokens(random)))
        return made

    return generated(settings, source, calls)


def _joined(lead: Conversation, ends: list[Call], output_tokens: int) -> Call:
    """The lead's next call, which reads what the branches reported."""
    lead.quote(end.output for end in ends)
    return lead.ask(output_tokens, after=[end.key for end in ends])


def _branch(settings: Research, talk: Conversation, plan: Call, random: Random) -> list[Call]:
    """Steps of one branch: it is given a part of the plan, searches, and reports."""
    talk.say(settings.question.tokens(random))
    last = random.randint(settings.steps.least, settings.steps.most)
    for step in range(1, last + 1):
        output = settings.finding if step == last else settings.query
        if step > 1:
            talk.say(settings.found.tokens(random))
            talk.ask(output.tokens(random), settings.search_s.draw(random))
        else:
            talk.ask(output.tokens(random), after=[plan.key])
    return talk.calls
