"""One example of every message, with every field set. They stand in the AsyncAPI document, and their bytes are the golden bytes of the
tests.

They follow one step, which fails on its first worker and succeeds on the second.
"""

from typing import Any

import msgspec

from shared.contracts import costs, fleet, journal, kv, output, steps, workflows
from shared.contracts.ids import CellId, ConversationId, MessageId, ModelName, StepId, TenantId, WorkerId, WorkflowId
from shared.contracts.outcomes import FinishReason, Problem, Reason, Status, Usage

STEP = StepId("0199d0a4-6c1e-7b52-8f0e-3d5a9c6b7e21")
TENANT, WORKFLOW = TenantId("acme"), WorkflowId("quarterly-report")
CELL, WORKER, SPARE = CellId("local"), WorkerId("worker-1"), WorkerId("worker-2")
MODEL = ModelName("smollm2-135m")
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
NOW_NS = 1_760_000_000_000_000_000
SHA256 = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
CONVERSATION = ConversationId("5f1c9a0e7b3d48626d1f0c9be8a7345d")
HASHES = [-7_046_029_254_386_353_131, 1_442_695_040_888_963_407]


def _about(number: int, sender: str) -> dict[str, Any]:
    """The envelope of the example with that number."""
    return {
        "id": MessageId(f"{sender}.{CELL}.3.{number}.0"),
        "step": STEP,
        "workflow": WORKFLOW,
        "tenant": TENANT,
        "cause": MessageId(f"{sender}.{CELL}.3.{number - 1}.0"),
        "time_ns": NOW_NS + number * 1_000_000,
        "trace": TRACE,
    }


SAMPLING = steps.Sampling(
    max_tokens=64,
    temperature=0.7,
    top_p=0.95,
    top_k=40,
    min_p=0.05,
    seed=7,
    stop=["\n\n"],
    stop_token_ids=[2],
    min_tokens=4,
    frequency_penalty=0.25,
    presence_penalty=-0.25,
    repetition_penalty=1.1,
    logit_bias={"1234": -100.0},
    logprobs=2,
    ignore_eos=True,
)
TOOL = steps.Tool(
    type="function",
    function=steps.ToolFunction(
        name="look_up",
        description="Looks up what circles a planet.",
        parameters={"type": "object", "properties": {"planet": {"type": "string"}}, "required": ["planet"]},
    ),
)
TALK = [
    steps.ChatMessage(role="user", content="What circles the earth?", name="ada"),
    steps.ChatMessage(
        role="assistant",
        reasoning_content="Better to look it up.",
        tool_calls=[{"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}],
    ),
    steps.ChatMessage(role="tool", content="moon", tool_call_id="call_1"),
]
JOB = steps.Job(
    model=MODEL,
    prompt_tokens=35,
    max_tokens=64,
    sampling=SAMPLING,
    priority=10,
    accepted_ns=NOW_NS,
    deadline_ns=NOW_NS + 30_000_000_000,
    chat=True,
)
USAGE = Usage(prompt_tokens=35, cached_tokens=32, output_tokens=3)
PROBLEM = Problem(
    reason=Reason.RATE_LIMITED, message="the tenant's limit of 60 requests a minute is reached", param="key", retry_after_ms=1_500
)
CARD = fleet.ModelCard(
    name=MODEL,
    tokenizer=SHA256,
    chat_template="{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n",
    vocab_size=49_152,
    context_tokens=8_192,
    block_tokens=16,
    eos_token_ids=[2],
    bos_token="<|im_start|>",
    eos_token="<|im_end|>",
    tool_parser="hermes",
    reasoning_parser="qwen3",
    unsupported=["logit_bias"],
)
ANSWER_TOKENS, ANSWER = [504, 2365, 30], "The moon."
ATTEMPT = steps.AttemptRecord(
    attempt=2,
    cell=CELL,
    worker=SPARE,
    why="worker-2: finishes first, 2 cached blocks",
    status=Status.SUCCEEDED,
    superseded=True,
    problem=PROBLEM,
    usage=USAGE,
    dispatched_ns=NOW_NS + 9_000_000,
    ended_ns=NOW_NS + 80_000_000,
    queued_ms=0.4,
    ttft_ms=21.5,
    total_ms=70.25,
    resumed_tokens=2,
    computed_tokens=9,
    gpu_s=0.125,
    usd=0.00025,
    estimated=True,
)

WORKFLOW_RECORD = workflows.WorkflowRecord(
    workflow=WORKFLOW,
    state=workflows.WorkflowState.SUCCEEDED,
    kind="report",
    key=f"sha256:{SHA256}",
    tenant=TENANT,
    opened_ns=NOW_NS,
    deadline_ns=NOW_NS + 600_000_000_000,
    steps_planned=12,
    closed_ns=NOW_NS + 90_000_000_000,
    score=0.9,
    why="reviewed",
    step_count=1,
    steps=[
        workflows.WorkflowStep(
            step=STEP,
            name="summary",
            input=SHA256[:32],
            status=steps.StepState.SUCCEEDED,
            model=MODEL,
            attempts=2,
            usage=USAGE,
            accepted_ns=NOW_NS,
            settled_ns=NOW_NS + 82_000_000,
            problem=PROBLEM,
        )
    ],
    value_count=1,
    values=["fetch"],
    usage=USAGE,
    budget_usd=0.5,
    spent_usd=0.003,
    estimated_usd=0.00025,
    reserved_usd=0.0125,
    problem=PROBLEM,
)

# What a user sends and asks for, beside the catalogue.
DOORS: tuple[msgspec.Struct, ...] = (
    steps.Submission(
        model=MODEL,
        messages=TALK,
        sampling=SAMPLING,
        key=f"sha256:{SHA256}",
        workflow=WORKFLOW,
        step_key="summary",
        priority=10,
        timeout_ms=30_000,
        user="ada",
    ),
    steps.Submission(model=MODEL, prompt="Once upon a time"),
    steps.Submission(model=MODEL, prompt=[1, 4093, 198]),
    steps.Submission(model=MODEL, prompt="Paris as JSON:", sampling=steps.Sampling(json_schema='{"type":"object"}')),
    steps.Submission(model=MODEL, history=CONVERSATION, key=f"sha256:{SHA256}"),
    steps.Submission(model=MODEL, messages=TALK, tools=[TOOL], chat_template_kwargs={"enable_thinking": False}),
    steps.Turn(after=CONVERSATION, messages=TALK),
    steps.HandOverAsked(**_about(28, "worker"), attempt=2, tokens=2, chars=5),
    steps.HandedOver(last_seq=12, tokens=[30], text="."),
    steps.StepRecord(
        step=STEP,
        status=steps.StepState.SUCCEEDED,
        tenant=TENANT,
        workflow=WORKFLOW,
        model=MODEL,
        trace=TRACE,
        accepted_ns=NOW_NS,
        deadline_ns=NOW_NS + 30_000_000_000,
        settled_ns=NOW_NS + 82_000_000,
        attempt=2,
        attempts=[ATTEMPT],
        redrives=1,
        finish_reason=FinishReason.STOP,
        usage=USAGE,
        tokens=ANSWER_TOKENS,
        text=ANSWER,
        problem=PROBLEM,
    ),
    WORKFLOW_RECORD,
    workflows.WorkflowList(workflows=[WORKFLOW_RECORD], problem=PROBLEM),
    costs.CostReport(
        costs=[
            costs.Cost(
                kind="report",
                tenant=TENANT,
                model=MODEL,
                tasks=2,
                successful=1,
                steps=12,
                attempts=14,
                unbilled=1,
                prompt_tokens=420,
                cached_tokens=384,
                resumed_tokens=2,
                output_tokens=36,
                gpu_s=1.5,
                usd=0.003,
                failed_usd=0.00025,
                cancelled_usd=0.0005,
                superseded_usd=0.000125,
                failed_gpu_s=0.125,
                cancelled_gpu_s=0.25,
                superseded_gpu_s=0.0625,
                lost_usd=0.00025,
                lost_gpu_s=0.125,
            )
        ],
        since_ns=NOW_NS,
        problem=PROBLEM,
    ),
    workflows.ValueFound(found=True, value=msgspec.Raw(b'{"status":200}'), problem=PROBLEM),
)

MESSAGES: tuple[msgspec.Struct, ...] = (
    steps.StepAdmitted(
        **_about(2, "admission"),
        job=JOB,
        reservation=steps.Reservation(tokens=99, tokens_ns=59_400_000, request_ns=1_000_000_000, nano_usd=500_000),
        step_key="summary",
        input=SHA256[:32],
    ),
    steps.StepRefused(**_about(2, "admission"), problem=PROBLEM),
    steps.Prompt(**_about(2, "admission"), model=MODEL, tokens=[1, 4093, 198], block_tokens=16, blocks=HASHES),
    steps.StepRouted(**_about(3, "router"), job=JOB, cell=CELL),
    kv.PrefixMatched(**_about(4, "kv_registry"), cell=CELL, model=MODEL, blocks={WORKER: 2, SPARE: 1}, block_tokens=16, others=3),
    steps.StepDispatched(
        **_about(5, "scheduler"),
        job=JOB,
        cell=CELL,
        worker=WORKER,
        attempt=1,
        cached_tokens=32,
        why="worker-1: finishes first, 2 cached blocks",
    ),
    steps.StepDispatched(**_about(26, "scheduler"), job=JOB, cell=CELL, worker=WorkerId("worker-2"), attempt=2, relieves=WORKER),
    output.Output(
        **_about(6, "worker"),
        attempt=1,
        offset=2,
        tokens=[30],
        text=".",
        logprobs=[
            output.TokenLogprob(token=30, text=".", logprob=-0.25, top=[output.TopLogprob(token=17, text="!", logprob=-1.5)]),
        ],
        end=output.End(status=Status.FAILED, finish_reason=FinishReason.ERROR, usage=USAGE, problem=PROBLEM),
    ),
    steps.StepRevoked(**_about(7, "scheduler"), cell=CELL, worker=WORKER, attempt=1, reason=Reason.CANCELLED),
    steps.CancelRequested(**_about(8, "client"), why="the reader has gone"),
    steps.AttemptEnded(
        **_about(9, "worker"),
        cell=CELL,
        worker=WORKER,
        attempt=1,
        status=Status.FAILED,
        finish_reason=FinishReason.ERROR,
        usage=USAGE,
        tokens=ANSWER_TOKENS,
        text=ANSWER,
        problem=PROBLEM,
        retryable=True,
        queued_ms=0.4,
        ttft_ms=21.5,
        total_ms=70.25,
        resumed_tokens=2,
        computed_tokens=9,
        gpu_s=0.125,
        usd=0.00025,
    ),
    steps.StepClosed(**_about(10, "scheduler"), status=Status.EXPIRED, problem=PROBLEM, attempt=2),
    steps.StepSettled(**_about(11, "workflow"), status=Status.FAILED, attempt=2, usage=USAGE, problem=PROBLEM, usd=0.0005),
    fleet.WorkerRegistered(
        **_about(12, "worker"),
        worker=WORKER,
        cell=CELL,
        pool="default",
        epoch=1,
        state=fleet.WorkerState.READY,
        card=CARD,
        hardware=fleet.Hardware(kind="H100-SXM", count=2, memory_bytes=80 * 2**30, usd_per_hour=2.5, spot=True),
        capacity=fleet.Capacity(blocks=4_096, slots=64, prefill_tokens_per_s=20_000.0, decode_tokens_per_s=120.0),
        engine="sglang 0.5.23",
    ),
    fleet.WorkerRegistered(
        **_about(27, "worker"),
        worker=WORKER,
        cell=CELL,
        pool="default",
        epoch=1,
        state=fleet.WorkerState.DRAINING,
        card=CARD,
        capacity=fleet.Capacity(blocks=4_096, slots=64),
        leaves_ns=NOW_NS + 30_000_000_000,
    ),
    fleet.WorkerBeat(
        **_about(13, "worker"),
        worker=WORKER,
        cell=CELL,
        epoch=1,
        state=fleet.WorkerState.READY,
        blocks_used=3,
        slots_used=1,
        waiting=2,
        running=[fleet.RunningStep(step=STEP, attempt=1, output_tokens=2)],
        kv_seq=17,
    ),
    fleet.WorkerGone(**_about(14, "worker"), worker=WORKER, cell=CELL, epoch=1),
    fleet.WorkerVanished(**_about(26, "scheduler"), worker=WORKER, cell=CELL),
    fleet.QueueReported(
        **_about(15, "scheduler"),
        cell=CELL,
        model=MODEL,
        depth=3,
        waiting_tokens=105,
        running=2,
        slots=64,
        workers=2,
        drain_ms=40,
        order="plas",
    ),
    fleet.ScaleTargetSet(**_about(16, "autoscaler"), cell=CELL, pool="default", workers=3, why="3 steps wait for 40 ms"),
    kv.KvChanged(
        **_about(17, "worker"),
        worker=WORKER,
        cell=CELL,
        epoch=1,
        seq=17,
        events=[kv.BlocksStored(hashes=HASHES), kv.BlocksRemoved(hashes=HASHES[:1]), kv.AllCleared()],
    ),
    kv.KvResyncRequested(**_about(18, "kv_registry"), worker=WORKER, cell=CELL),
    kv.KvSnapshot(**_about(19, "worker"), worker=WORKER, cell=CELL, epoch=1, seq=17, hashes=HASHES, part=1, parts=2),
    workflows.WorkflowOpened(
        **_about(23, "client"),
        kind="report",
        key=f"sha256:{SHA256}",
        deadline_ns=NOW_NS + 600_000_000_000,
        steps_planned=12,
        budget_usd=0.5,
    ),
    workflows.BudgetSet(**_about(29, "client"), key=f"sha256:{SHA256}", budget_usd=0.75, spent_usd=0.5),
    workflows.ValueRecorded(**_about(24, "client"), name="fetch", token=SHA256[:32], value=msgspec.Raw(b'{"status":200}')),
    workflows.WorkflowClosed(**_about(25, "client"), success=True, score=0.9, why="reviewed"),
    journal.JournalOpened(
        **_about(20, "scheduler"), service="scheduler", partition=CELL, epoch=3, after=41, config=msgspec.Raw(b'{"queue_max":4096}')
    ),
    journal.JournalBatch(
        **_about(21, "scheduler"),
        service="scheduler",
        partition=CELL,
        epoch=3,
        entries=[
            journal.Entry(
                number=42,
                now_ns=NOW_NS,
                source="LEGATO_STEPS:123",
                input=msgspec.Raw(b'{"type":"tick","time_ns":1760000000000000000}'),
                outputs=[msgspec.Raw(b'{"type":"step.closed","status":"expired","problem":{"reason":"deadline_passed","message":"late"}}')],
            )
        ],
    ),
    journal.DeadLetter(
        **_about(22, "admission"),
        service="admission",
        subject=f"legato.submit.{STEP}",
        source="LEGATO_STEPS:123",
        error="JSON is malformed: trailing comma in object (byte 17)",
        data='{"model":"smoll",}',
        caused_by=MessageId("client.1"),
    ),
)
