"""One engine, started, measured and ended: the child of ``benchmarks.smoke``.

``ENGINE_V1`` chooses the engine, as everywhere. Prints one JSON object, a ``ChildReport``, on
stdout.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence

import msgspec
import uvloop

from benchmarks.stream_stats import Stream
from engine import cli
from engine.api import GenerateRequest, ModelLimits, SamplingParams
from engine.api.request import check_request
from engine.client import EngineClient
from engine.config import EngineArgs
from engine.config.resolve import resolve
from engine.errors import StartupError
from engine.select import create_client, decide
from engine.text.chat_encoding import ChatEncoder
from engine.text.chat_template import load_chat_template
from engine.text.tokenizer import load_tokenizer

QUESTIONS = (
    "What is the capital of France?",
    "Write a short poem about the sea.",
    "Explain how a bicycle stays upright.",
    "List five fruits and one fact about each of them.",
    "Why is the sky blue? Answer as you would to a child.",
    "Give me a recipe for pancakes, step by step.",
    "Summarise the story of Romeo and Juliet in three sentences.",
    "What should I see in Rome if I have only one day, and in which order?",
)
WARM_UP_TOKENS = 8


class ChildReport(msgspec.Struct, frozen=True):
    """What one life of an engine gave."""

    engine: str
    #: From making the client until the engine can serve.
    start_s: float
    #: One list of streams, one a question, for each batch.
    batches: list[list[Stream]]
    #: What the first batch generated, one list a question.
    token_ids: list[list[int]]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.smoke_child", description=__doc__)
    parser.add_argument("--model", default=EngineArgs().model)
    parser.add_argument("--batches", type=int, required=True)
    parser.add_argument("--max-tokens", type=int, required=True)
    arguments = parser.parse_args(argv)
    report = uvloop.run(_measure(EngineArgs(model=arguments.model), arguments.batches, arguments.max_tokens))
    sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
    return 0


async def _measure(args: EngineArgs, num_batches: int, max_tokens: int) -> ChildReport:
    decision = decide()
    config = resolve(args, decision.chosen)
    tokenizer = load_tokenizer(config.model.source)
    template = load_chat_template(config.model.source)
    if template is None:
        raise StartupError("This benchmark chats; give a model with a chat template.")
    encoder = ChatEncoder(tokenizer, template)
    prompts = [encoder.encode([{"role": "user", "content": question}]).token_ids for question in QUESTIONS]
    client = create_client(decision, config, tokenizer)
    began = time.perf_counter()
    try:
        limits = await client.start()
        start_s = time.perf_counter() - began
        await _batch(client, limits, prompts, WARM_UP_TOKENS, "warm-up")
        results = [await _batch(client, limits, prompts, max_tokens, f"batch-{n}") for n in range(num_batches)]
    finally:
        await client.close()
    return ChildReport(decision.chosen, start_s, [streams for streams, _ in results], results[0][1])


async def _batch(
    client: EngineClient, limits: ModelLimits, prompts: list[list[int]], max_tokens: int, name: str
) -> tuple[list[Stream], list[list[int]]]:
    """All prompts at once; what was measured and what was generated."""
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)

    async def one(index: int, ids: list[int]) -> tuple[Stream, list[int]]:
        checked = check_request(ids, params, limits)
        arrivals: list[tuple[float, int]] = []
        generated: list[int] = []
        submitted = time.perf_counter()
        async for delta in client.generate(GenerateRequest(f"{name}-{index}", ids, checked, time.time())):
            new = delta.outputs[0].token_ids
            if new:
                arrivals.append((time.perf_counter(), len(new)))
                generated += new
        return Stream(submitted, tuple(arrivals)), generated

    done = await asyncio.gather(*(one(index, ids) for index, ids in enumerate(prompts)))
    return [stream for stream, _ in done], [generated for _, generated in done]


if __name__ == "__main__":
    sys.exit(cli.guarded(main))
