"""The gateway over real HTTP and a real nats-server, with OpenAI's own client: answers and refusals."""

import asyncio
import gzip
import hashlib
import json
from collections.abc import AsyncIterator

import openai
import pytest
from gateway_place import HELLO, WORDS, Place, gateway

from shared.contracts.outcomes import Problem, Reason, Status
from shared.runtime.ids import new_trace

# --- chat and completions ----------------------------------------------------------------------------------------------------


async def test_a_chat_comes_back_whole(place: Place) -> None:
    reply = await place.client.chat.completions.create(model="words", messages=HELLO, max_tokens=9, temperature=0, seed=3)
    step = await place.submitted()
    assert reply.choices[0].message.content == "".join(WORDS)
    assert reply.choices[0].finish_reason == "stop"
    assert (reply.id, reply.model, reply.object) == (f"chatcmpl-{step}", "words", "chat.completion")
    usage = reply.usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (7, 5, 12)
    assert usage.prompt_tokens_details.cached_tokens == 4
    sampling = place.fleet.submissions[step].sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.seed) == (9, 0.0, 3)


async def test_a_chat_streams(place: Place) -> None:
    stream = await place.client.chat.completions.create(model="words", messages=HELLO, stream=True, stream_options={"include_usage": True})
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "".join(WORDS)
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices] == [None] * len(WORDS) + ["stop"]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.usage is not None for chunk in chunks] == [False] * (len(WORDS) + 1) + [True]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len(WORDS)


async def test_a_completion_comes_back_whole_and_streams(place: Place) -> None:
    reply = await place.client.completions.create(model="words", prompt="Once")
    assert reply.choices[0].text == "".join(WORDS)
    stream = await place.client.completions.create(model="words", prompt=[1, 2, 3], stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == "".join(WORDS)
    await place.submitted()
    assert place.fleet.submissions[await place.submitted()].prompt == [1, 2, 3]


async def test_logprobs_come_in_both_dialects(place: Place) -> None:
    chat = await place.client.chat.completions.create(model="words", messages=HELLO, logprobs=True, top_logprobs=2)
    content = chat.choices[0].logprobs.content if chat.choices[0].logprobs else None
    assert content is not None
    assert [token.token for token in content] == WORDS
    assert [each.logprob for each in content[0].top_logprobs] == [-0.5, -1.5]
    assert content[0].bytes == list(b"Every ")
    stream = await place.client.chat.completions.create(model="words", messages=HELLO, logprobs=True, stream=True)
    chunks = [chunk.choices[0].logprobs async for chunk in stream]
    assert [token.token for each in chunks if each and each.content for token in each.content] == WORDS
    completion = await place.client.completions.create(model="words", prompt="Once", logprobs=1)
    logprobs = completion.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens == WORDS
    assert logprobs.text_offset == [0, 6, 11, 14, 18]
    assert logprobs.top_logprobs is not None
    assert logprobs.top_logprobs[0] == {"Every ": -0.5}


async def test_the_key_crosses_the_bus_only_as_its_hash(place: Place) -> None:
    await place.client.chat.completions.create(model="words", messages=HELLO)
    step = await place.submitted()
    assert place.fleet.submissions[step].key == f"sha256:{hashlib.sha256(b'sk-secret').hexdigest()}"
    status, _, _ = await place.post({"model": "words", "messages": HELLO})
    assert status == 200
    assert place.fleet.submissions[await place.submitted()].key == ""


async def test_step_trace_and_limits_travel_in_headers(place: Place) -> None:
    trace = str(new_trace())
    headers = {"traceparent": trace, "X-Legato-Timeout-Ms": "5000", "X-Legato-Priority": "-3", "X-Legato-Workflow": "trip"}
    _, answer, _ = await place.post({"model": "words", "messages": HELLO}, **headers)
    step = await place.submitted()
    assert answer["X-Legato-Step"] == step
    assert place.fleet.headers[step]["traceparent"] == trace
    assert place.fleet.headers[step]["Nats-Msg-Id"] == f"{step}.submit"
    submission = place.fleet.submissions[step]
    assert (submission.timeout_ms, submission.priority, submission.workflow) == (5000, -3, "trip")


# --- refusals ----------------------------------------------------------------------------------------------------------------

CLASSES = {
    Reason.UNAUTHENTICATED: openai.AuthenticationError,
    Reason.MODEL_NOT_FOUND: openai.NotFoundError,
    Reason.CONTEXT_TOO_LONG: openai.BadRequestError,
    Reason.UNSUPPORTED: openai.BadRequestError,
    Reason.RATE_LIMITED: openai.RateLimitError,
    Reason.QUEUE_FULL: openai.RateLimitError,
    Reason.DEADLINE_UNREACHABLE: openai.RateLimitError,
    Reason.NO_CAPACITY: openai.InternalServerError,
    Reason.DEADLINE_PASSED: openai.InternalServerError,
    Reason.INTERNAL: openai.InternalServerError,
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("reason", list(CLASSES))
async def test_a_refusal_by_the_fleet_is_an_error_of_the_clients_class(place: Place, reason: Reason, stream: bool) -> None:
    with pytest.raises(CLASSES[reason]) as caught:
        await place.client.chat.completions.create(model=reason.value, messages=HELLO, stream=stream)
    assert isinstance(caught.value, openai.APIStatusError)
    assert caught.value.code == reason.value
    assert caught.value.param == "model"
    if caught.value.status_code in (429, 503):
        assert caught.value.response.headers["Retry-After"] == "2"
    await place.submitted()
    assert place.fleet.cancelled.empty()


async def test_an_unsupported_parameter_is_refused_by_name_and_reaches_nobody(place: Place) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await place.client.chat.completions.create(model="words", messages=HELLO, store=True)
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", "store")
    with pytest.raises(openai.BadRequestError) as caught:
        await place.client.chat.completions.create(model="words", messages=HELLO, extra_body={"guided_regex": "a*"})
    assert caught.value.param == "guided_regex"
    assert place.fleet.submitted.empty()


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"model": "words"}', b"[" * 100_000])
async def test_a_malformed_body_is_a_bad_request(place: Place, body: bytes) -> None:
    status, _, answer = await place.post(body)
    assert status == 400
    assert json.loads(answer)["error"]["type"] == "invalid_request_error"


async def test_a_body_that_cannot_be_unpacked_is_a_bad_request(place: Place) -> None:
    status, _, answer = await place.post(b"not gzip", **{"Content-Encoding": "gzip"})
    assert status == 400
    assert b"error" in answer


async def test_a_body_over_the_limit_is_refused_announced_or_not_packed_or_not(nats_url: str) -> None:
    async with gateway(nats_url, "body_bytes_max=2000") as place:
        long = {"model": "words", "messages": [{"role": "user", "content": "x" * 4000}]}
        status, _, answer = await place.post(long)
        assert (status, json.loads(answer)["error"]["code"]) == (413, "request_too_large")

        async def pieces() -> AsyncIterator[bytes]:
            yield json.dumps(long).encode()

        async with place.http.post(f"{place.url}/v1/chat/completions", data=pieces()) as response:
            assert response.status == 413
        packed = gzip.compress(json.dumps(long).encode())
        assert len(packed) < 2000
        status, _, _ = await place.post(packed, **{"Content-Encoding": "gzip"})
        assert status == 413
        assert place.fleet.submitted.empty()


async def test_unknown_paths_are_told_so_in_the_same_shape(place: Place) -> None:
    status, _, answer = await place.post({}, path="embeddings")
    assert (status, json.loads(answer)["error"]["code"]) == (404, "unknown_url")


async def test_what_is_over_the_number_of_requests_is_sent_away(nats_url: str) -> None:
    async with gateway(nats_url, "requests_max=1") as place:
        first = asyncio.create_task(place.client.chat.completions.create(model="silent", messages=HELLO))
        step = await place.submitted()
        with pytest.raises(openai.InternalServerError) as caught:
            await place.client.chat.completions.create(model="words", messages=HELLO)
        assert caught.value.status_code == 503
        assert caught.value.response.headers["Retry-After"] == "1"
        await place.fleet.end(step, Status.SUCCEEDED)
        await first
        await place.client.chat.completions.create(model="words", messages=HELLO)


# --- ends that are no success ------------------------------------------------------------------------------------------------


async def test_a_problem_after_the_first_token_is_an_event_and_no_done_follows(place: Place) -> None:
    _, _, answer = await place.post({"model": "breaks", "messages": HELLO, "stream": True})
    events = [event.removeprefix(b"data: ") for event in answer.strip().split(b"\n\n")]
    assert json.loads(events[0])["choices"][0]["delta"]["content"] == WORDS[0]
    assert json.loads(events[1])["error"]["code"] == "attempts_exhausted"
    assert len(events) == 2
    stream = await place.client.chat.completions.create(model="breaks", messages=HELLO, stream=True)
    with pytest.raises(openai.APIError, match="three workers died"):
        [chunk async for chunk in stream]


async def test_a_problem_before_anything_was_sent_is_the_status_of_a_whole_reply(place: Place) -> None:
    with pytest.raises(openai.InternalServerError) as caught:
        await place.client.chat.completions.create(model="breaks", messages=HELLO)
    assert caught.value.status_code == 503


async def test_a_step_that_nobody_ends_is_given_up_and_cancelled(nats_url: str) -> None:
    async with gateway(nats_url, "idle_timeout_ms=50") as place:
        with pytest.raises(openai.InternalServerError) as caught:
            await place.client.chat.completions.create(model="silent", messages=HELLO)
        assert (caught.value.status_code, caught.value.code) == (504, "deadline_passed")
        assert (await place.cancelled()).step == await place.submitted()


async def test_a_step_that_nobody_answers_in_its_own_time_says_what_to_look_at(nats_url: str) -> None:
    async with gateway(nats_url, "timeout_grace_ms=10") as place:
        headers = {"X-Legato-Timeout-Ms": "20"}
        with pytest.raises(openai.InternalServerError, match="legato status") as caught:
            await place.client.chat.completions.create(model="silent", messages=HELLO, extra_headers=headers)
        assert (caught.value.status_code, caught.value.code, caught.value.type) == (504, "deadline_passed", "server_error")
        assert (await place.cancelled()).step == await place.submitted()


async def test_what_an_engine_cannot_take_is_named_as_the_client_sent_it(place: Place) -> None:
    asked = asyncio.create_task(
        place.client.chat.completions.create(model="silent", messages=HELLO, response_format={"type": "json_object"})
    )
    message = "sim cannot take json_schema on this engine"
    problem = Problem(reason=Reason.UNSUPPORTED, message=message, param="sampling.json_schema")
    await place.fleet.end(await place.submitted(), Status.REFUSED, problem)
    with pytest.raises(openai.BadRequestError, match="cannot take response_format on") as caught:
        await asked
    assert caught.value.param == "response_format"


async def test_a_long_silence_is_bridged_with_comments(nats_url: str) -> None:
    async with gateway(nats_url, "keep_alive_comment_ms=20") as place:
        body = {"model": "silent", "messages": HELLO, "stream": True}
        async with place.http.post(f"{place.url}/v1/chat/completions", json=body) as response:
            assert response.status == 200
            assert await response.content.readuntil(b"\n\n") == b": keep-alive\n\n"
            step = await place.submitted()
            await place.fleet.end(step, Status.REFUSED, Problem(reason=Reason.QUEUE_FULL, message="full"))
            rest = await response.content.read()
            assert json.loads(rest.replace(b": keep-alive\n\n", b"").removeprefix(b"data: "))["error"]["code"] == "queue_full"
