"""``LLM``: a model in a script or a notebook, without a server. Torch-free.

Owns the synchronous face of an engine: names and shapes as vLLM's users know them, order of
outputs, progress and interruption. It knows an engine only as an ``EngineClient``; accepted
prompts are ``prompts.py``'s business.
"""

from __future__ import annotations

import asyncio
import difflib
import itertools
import logging
import os
import time
import typing
import weakref
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import fields
from types import TracebackType
from typing import Any, Self

from engine import capabilities
from engine.api import GenerateRequest, RequestOutput, SamplingParams
from engine.api.outputs import merge
from engine.api.request import check_request
from engine.client import EngineClient
from engine.config import EngineArgs
from engine.config.engine_args import DEFAULT_MODEL
from engine.config.resolve import resolve
from engine.entrypoints.event_loop_thread import EventLoopThread
from engine.entrypoints.progress import Progress
from engine.entrypoints.prompts import Conversation, EncodedPrompt, Prompt, PromptEncoder, naming
from engine.errors import ConfigError, EngineDeadError, RequestError
from engine.metrics.stats import EngineStats
from engine.select import EngineDecision, EngineName, create_client, decide
from engine.text.chat_encoding import ChatEncoder
from engine.text.chat_template import load_chat_template
from engine.text.tokenizer import Tokenizer, load_tokenizer

log = logging.getLogger(__name__)

Params = SamplingParams | Sequence[SamplingParams] | None
#: ``True`` draws with tqdm, ``False`` draws nothing, a function makes a bar as ``tqdm`` does.
UseTqdm = bool | Callable[..., Any]


class LLM:
    """One model on one engine, whose process lives as long as this object.

    ``ENGINE_V1`` chooses the engine, as for the server. ``close`` ends it; so do leaving a
    ``with`` block, losing the last reference, and the end of the interpreter. May be used from
    several threads; their requests share the engine's batches.

    Args:
        model: as ``--model`` of the server.
        engine_args: any other field of ``EngineArgs`` by name, e.g. ``max_model_len=2048``.

    Raises:
        StartupError: an option, the model or the engine does not work; the text says what would.
    """

    #: Which engine runs, and why.
    engine_decision: EngineDecision

    def __init__(self, model: str | os.PathLike[str] = DEFAULT_MODEL, **engine_args: Any) -> None:
        decision = decide()
        config = resolve(_engine_args(os.fspath(model), engine_args, decision.chosen), decision.chosen)
        source = config.model.source
        tokenizer = None if config.model.skip_tokenizer_init else load_tokenizer(source)
        template = None if tokenizer is None else load_chat_template(source)
        chat_encoder = None if tokenizer is None or template is None else ChatEncoder(tokenizer, template)
        log.info("engine: %s (%s)", decision.chosen.upper(), "; ".join(decision.reasons))
        max_open = config.scheduler.max_num_seqs + config.scheduler.max_num_waiting
        self._start(
            create_client(decision, config, tokenizer), decision, PromptEncoder(tokenizer, chat_encoder), max_open
        )

    @classmethod
    def _from_client(
        cls, client: EngineClient, decision: EngineDecision, encoder: PromptEncoder, max_open: int
    ) -> Self:
        """An ``LLM`` over any client that has not been started; how tests make one."""
        llm = cls.__new__(cls)
        llm._start(client, decision, encoder, max_open)
        return llm

    def _start(self, client: EngineClient, decision: EngineDecision, encoder: PromptEncoder, max_open: int) -> None:
        """``max_open``: the most requests the engine takes at a time; more wait here."""
        self.engine_decision = decision
        self._client = client
        self._encoder = encoder
        self._request_ids = itertools.count()
        self._open = asyncio.Semaphore(max_open)
        self._loop = EventLoopThread("llm")
        # The finalizer must not know self, or self would never be collected.
        self._finalizer = weakref.finalize(self, self._loop.close, client.close)
        try:
            self._limits = self._loop.run(client.start())
        except BaseException:
            self._finalizer()
            raise

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: Params = None,
        *,
        use_tqdm: UseTqdm = True,
    ) -> list[RequestOutput]:
        """Continues each prompt; one output a prompt, in the order of the prompts.

        Everything is checked before anything runs: one bad prompt of a list raises, is named, and
        no request was started.

        Args:
            prompts: a text, ``{"prompt": text}`` or ``{"prompt_token_ids": ids}``, or a list of them.
            sampling_params: for all prompts, or a list with one for each; default ``SamplingParams()``.
            use_tqdm: show a progress bar.

        Raises:
            RequestError: a prompt or its parameters cannot work with this model.
            EngineDeadError: the engine ended, or this object is closed.
        """
        return self._complete(self._encoder.encode(prompts), sampling_params, use_tqdm)

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: Params = None,
        use_tqdm: UseTqdm = True,
        *,
        add_generation_prompt: bool = True,
    ) -> list[RequestOutput]:
        """Answers one conversation or a list of them, with the model's chat template.

        Args:
            messages: ``{"role": ..., "content": ...}`` each, or a list of such lists.
            add_generation_prompt: begin the assistant's turn, so that the model answers.

        Raises:
            RequestError, EngineDeadError: as ``generate``.
        """
        return self._complete(self._encoder.encode_chats(messages, add_generation_prompt), sampling_params, use_tqdm)

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer; ``RequestError`` if it was not loaded."""
        return self._encoder.tokenizer

    def stats(self) -> EngineStats:
        """A fresh snapshot of the engine."""
        self._check_open()
        return self._loop.run(self._client.stats())

    def close(self) -> None:
        """Ends the engine process. Idempotent."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _complete(self, prompts: list[EncodedPrompt], params: Params, use_tqdm: UseTqdm) -> list[RequestOutput]:
        self._check_open()
        requests = self._requests(prompts, params)
        progress = Progress(len(requests), use_tqdm)
        try:
            return self._loop.run(_run_all(self._client, self._open, requests, progress))
        finally:
            progress.close()

    def _check_open(self) -> None:
        if not self._finalizer.alive:
            raise EngineDeadError("This LLM is closed; make a new one.")

    def _requests(self, prompts: list[EncodedPrompt], params: Params) -> list[GenerateRequest]:
        """Checks all prompts; none is submitted yet."""
        now = time.time()
        requests = []
        for prompt, wished in zip(prompts, _params_list(params, len(prompts)), strict=True):
            with naming(prompt.name if len(prompts) > 1 else None):
                if wished.stop:
                    self._encoder.tokenizer  # noqa: B018 (stop strings need one; for its error)
                checked = check_request(prompt.token_ids, wished, self._limits)
            request_id = f"llm-{next(self._request_ids)}"
            requests.append(GenerateRequest(request_id, prompt.token_ids, checked, now, prompt.text))
        return requests


async def _run_all(
    client: EngineClient, places: asyncio.Semaphore, requests: list[GenerateRequest], progress: Progress
) -> list[RequestOutput]:
    """All outputs in order. The first error, or a cancellation, aborts what still runs."""
    tasks = [asyncio.create_task(_run_one(client, places, request, progress)) for request in requests]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _run_one(
    client: EngineClient, places: asyncio.Semaphore, request: GenerateRequest, progress: Progress
) -> RequestOutput:
    total = RequestOutput(request.request_id, request.prompt_token_ids, [], False, prompt=request.prompt)
    async with places, aclosing(client.generate(request)) as stream:
        async for delta in stream:
            progress.add_tokens(sum(len(output.token_ids) for output in delta.outputs))
            merge(total, delta)
    progress.end_request()
    return total


def _params_list(params: Params, count: int) -> list[SamplingParams]:
    if params is None:
        params = SamplingParams()
    if isinstance(params, SamplingParams):
        return [params] * count
    if len(params) != count:
        raise RequestError(
            f"There are {count} prompts and {len(params)} sampling_params; give one for each, or one for all.",
            param="sampling_params",
        )
    return list(params)


def _engine_args(model: str, given: dict[str, Any], engine: EngineName) -> EngineArgs:
    """Checks names and types; ``resolve`` checks values.

    Raises:
        ConfigError: a name is unknown, or belongs to a feature that is not built; or a type is wrong.
    """
    hints = typing.get_type_hints(EngineArgs)
    names = [item.name for item in fields(EngineArgs)]
    by_flag = {row.flag: row.name for row in capabilities.FEATURES if row.flag is not None}
    for name, value in given.items():
        if name not in names:
            flag = "--" + name.replace("_", "-")
            if flag in by_flag:
                capabilities.refuse_unsupported(engine, [by_flag[flag]])
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(names)}."
            raise ConfigError(f"LLM has no argument {name!r}; {hint}")
        hint_type = hints[name]
        if not isinstance(value, hint_type) or (isinstance(value, bool) and "bool" not in str(hint_type)):
            raise ConfigError(f"{name} must be {getattr(hint_type, '__name__', hint_type)}, not {value!r}.")
    return EngineArgs(model=model, **given)
