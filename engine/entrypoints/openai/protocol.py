"""Request schemas of the HTTP API: closed msgspec Structs, every field named, typed and bounded.

Owns what a body may contain. ``parsing.py`` turns bytes into these, ``responses.py`` has the
way back, and the meaning of the sampling fields belongs to ``engine.api.SamplingParams``.

A field of the OpenAI API that is not supported yet is declared with the type ``NotYet`` and listed in
``NEUTRAL`` with the values that ask for nothing. Any other value is refused by name, and so is any
field not declared here.

Source: https://platform.openai.com/docs/api-reference/chat/create and .../completions/create; extra
sampling fields are named as in vLLM's server.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from engine.api.sampling_params import (
    MAX_LOGPROBS,
    MAX_SEED,
    MAX_STOP_STRING_CHARS,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    MAX_TOKENS_LIMIT,
)

MAX_PROMPTS = 128
MAX_MESSAGES = 4096
MAX_CONTENT_PARTS = 1024
MAX_LABEL_CHARS = 512
#: Longer texts and id lists do not fit in a body of the default size.
MAX_TEXT_CHARS = 8 << 20
MAX_TOKEN_IDS = 4 << 20

Label = Annotated[str, Meta(max_length=MAX_LABEL_CHARS)]
Text = Annotated[str, Meta(max_length=MAX_TEXT_CHARS)]
#: The upper bound that counts is the model's vocabulary; ``check_request`` knows it.
TokenId = Annotated[int, Meta(ge=0, le=MAX_TOKENS_LIMIT)]
TokenIds = Annotated[list[TokenId], Meta(max_length=MAX_TOKEN_IDS)]
MaxTokens = Annotated[int, Meta(ge=1, le=MAX_TOKENS_LIMIT)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
StopString = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_STRING_CHARS)]
StopStrings = Annotated[list[StopString], Meta(max_length=MAX_STOP_STRINGS)]
Logprobs = Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)]
NotYet = Annotated[Any, Meta(description="Known but not supported yet: leave it out.")]


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """What a stream carries beside the text; only valid with ``stream: true``."""

    NEUTRAL: ClassVar[dict[str, tuple[object, ...]]] = {"include_obfuscation": (False,)}

    #: One more event before ``[DONE]``, with the usage of the whole request and no choices.
    include_usage: bool | None = None
    #: Usage so far on every event (vLLM).
    continuous_usage_stats: bool | None = None
    include_obfuscation: NotYet = None


class GenerationFields(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Fields that chat and text completions share. ``None`` means the default of ``SamplingParams``."""

    NEUTRAL: ClassVar[dict[str, tuple[object, ...]]] = {}

    model: Label | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    #: A label for the log, nothing else.
    user: Label | None = None
    #: Adds ``prompt_token_ids`` and ``token_ids`` to the answer (vLLM).
    return_token_ids: bool | None = None

    max_tokens: MaxTokens | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=MAX_TOKENS_LIMIT)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=MAX_TOKENS_LIMIT)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=100)] | None = None
    seed: Annotated[int, Meta(ge=-MAX_SEED, le=MAX_SEED)] | None = None
    stop: StopString | StopStrings | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=MAX_STOP_TOKEN_IDS)] | None = None
    ignore_eos: bool | None = None
    detokenize: bool | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None

    n: NotYet = None
    logit_bias: NotYet = None


class ContentPart(msgspec.Struct, forbid_unknown_fields=True):
    """One part of a message; parts that are not text are recognised so that they can be refused by name."""

    type: Label
    text: Text | None = None
    refusal: NotYet = None
    image_url: NotYet = None
    input_audio: NotYet = None
    audio_url: NotYet = None
    video_url: NotYet = None
    file: NotYet = None


class ChatMessage(msgspec.Struct, forbid_unknown_fields=True):
    """One turn. An assistant message of an earlier answer can be sent back as it came."""

    NEUTRAL: ClassVar[dict[str, tuple[object, ...]]] = {
        "name": (),
        "refusal": (),
        "audio": (),
        "annotations": ([],),
        "function_call": (),
        "tool_calls": ([],),
        "tool_call_id": (),
    }

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Text | Annotated[list[ContentPart], Meta(max_length=MAX_CONTENT_PARTS)] | None = None
    name: NotYet = None
    refusal: NotYet = None
    audio: NotYet = None
    annotations: NotYet = None
    function_call: NotYet = None
    tool_calls: NotYet = None
    tool_call_id: NotYet = None


Messages = Annotated[list[ChatMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]


class ChatCompletionRequest(GenerationFields, kw_only=True):
    """Body of ``POST /v1/chat/completions``."""

    NEUTRAL: ClassVar[dict[str, tuple[object, ...]]] = {
        "n": (1,),
        "logit_bias": ({},),
        "audio": (),
        "function_call": ("none", "auto"),
        "functions": ([],),
        "metadata": ({},),
        "modalities": (["text"],),
        "moderation": (),
        "parallel_tool_calls": (False, True),
        "prediction": (),
        "prompt_cache_key": (),
        "prompt_cache_options": (),
        "prompt_cache_retention": (),
        "reasoning_effort": (),
        "response_format": ({"type": "text"},),
        "safety_identifier": (),
        "service_tier": ("auto", "default"),
        "store": (False,),
        "tool_choice": ("none", "auto"),
        "tools": ([],),
        "verbosity": (),
        "web_search_options": (),
    }

    messages: Messages
    #: OpenAI's newer name of ``max_tokens``; sending both is an error unless they agree.
    max_completion_tokens: MaxTokens | None = None
    logprobs: bool | None = None
    top_logprobs: Logprobs | None = None
    #: Ends the prompt where the assistant begins (vLLM).
    add_generation_prompt: bool | None = None

    audio: NotYet = None
    function_call: NotYet = None
    functions: NotYet = None
    metadata: NotYet = None
    modalities: NotYet = None
    moderation: NotYet = None
    parallel_tool_calls: NotYet = None
    prediction: NotYet = None
    prompt_cache_key: NotYet = None
    prompt_cache_options: NotYet = None
    prompt_cache_retention: NotYet = None
    reasoning_effort: NotYet = None
    response_format: NotYet = None
    safety_identifier: NotYet = None
    service_tier: NotYet = None
    store: NotYet = None
    tool_choice: NotYet = None
    tools: NotYet = None
    verbosity: NotYet = None
    web_search_options: NotYet = None


class CompletionRequest(GenerationFields, kw_only=True):
    """Body of ``POST /v1/completions``."""

    NEUTRAL: ClassVar[dict[str, tuple[object, ...]]] = {
        "n": (1,),
        "logit_bias": ({},),
        "best_of": (1,),
        "echo": (False,),
        "suffix": ("",),
    }

    #: A text, token ids, or a list of either: at most ``MAX_PROMPTS`` prompts in one call.
    prompt: Text | Annotated[list[Text | TokenId | TokenIds], Meta(min_length=1, max_length=MAX_TOKEN_IDS)]
    logprobs: Logprobs | None = None
    #: Whether the tokenizer adds its own (a beginning of sequence, say) to text prompts (vLLM).
    add_special_tokens: bool | None = None

    best_of: NotYet = None
    echo: NotYet = None
    suffix: NotYet = None


class TokenizeRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Body of ``POST /tokenize``: exactly one of ``prompt`` and ``messages``."""

    NEUTRAL: ClassVar[dict[str, tuple[object, ...]]] = {}

    model: Label | None = None
    prompt: Text | None = None
    messages: Messages | None = None
    #: Default: true for a prompt; false for messages, whose template has them already.
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Body of ``POST /detokenize``."""

    NEUTRAL: ClassVar[dict[str, tuple[object, ...]]] = {}

    tokens: TokenIds
    model: Label | None = None
