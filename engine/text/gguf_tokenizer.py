"""Builds a tokenizer from GGUF metadata (``tokenizer.ggml.*``). Torch-free.

Owns what those keys mean: kinds of tokens, pre-tokenizers by name, merges from SentencePiece scores.
Each pre-tokenizer is the one of the published ``tokenizer.json`` of the models that carry the name.
Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from engine.errors import ModelError
from engine.loader.fields import show
from engine.text.token_table import META_SPACE

_MAX_TOKENS = 1 << 20
_MAX_PIECE_CHARS = 512

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace("{1,3}", "")
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
#: What llama.cpp does to a file that names no pre-tokenizer.
_DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")


class TokenType(IntEnum):
    """``tokenizer.ggml.token_type``."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """How byte-level BPE cuts a text before merging: at digits, then by each pattern in turn."""

    patterns: tuple[str, ...]
    single_digits: bool = False
    nfc: bool = False
    #: A cut that is a token is taken whole, whatever the merges say.
    ignore_merges: bool = False
    add_bos: bool = False


_SMOLLM = PreTokenizer((_GPT2,), single_digits=True)
_LLAMA_BPE = PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True)
_QWEN = PreTokenizer((_QWEN2,), nfc=True)

#: ``tokenizer.ggml.pre`` -> pre-tokenizer.
PRE_TOKENIZERS: Mapping[str, PreTokenizer] = {
    "default": PreTokenizer(_DEFAULT),
    "gpt-2": PreTokenizer((_GPT2,)),
    "smollm": _SMOLLM,
    "starcoder": _SMOLLM,
    "llama-bpe": _LLAMA_BPE,
    "llama3": _LLAMA_BPE,
    "llama-v3": _LLAMA_BPE,
    "qwen2": _QWEN,
    "deepseek-r1-qwen": PreTokenizer((_QWEN2,), nfc=True, add_bos=True),
    "tekken": PreTokenizer((_TEKKEN,), ignore_merges=True, add_bos=True),
}


@dataclass(frozen=True, slots=True)
class GgufTokenizer:
    """A built tokenizer and the ids that GGUF states beside it."""

    core: Tokenizer
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]


def build_gguf_tokenizer(metadata: Mapping[str, Any]) -> GgufTokenizer:
    """Builds the tokenizer that GGUF metadata describes.

    Raises:
        ModelError: keys are missing or contradict each other, or the kind is not supported.
    """
    vocab = _Vocabulary(metadata)
    kind = metadata.get("tokenizer.ggml.model")
    try:
        if kind == "gpt2":
            core, add_bos = _build_byte_level(metadata, vocab)
        elif kind == "llama":
            core, add_bos = _build_sentencepiece(metadata, vocab), True
        else:
            raise ModelError(
                f"The GGUF tokenizer model is {show(kind)}; supported are 'gpt2' (byte-level BPE) and 'llama' "
                "(SentencePiece BPE). Start with --skip-tokenizer-init to use token ids."
            )
        core.add_special_tokens(vocab.added(TokenType.CONTROL, TokenType.UNKNOWN))
        core.add_tokens(vocab.added(TokenType.USER_DEFINED))
        bos = vocab.id_at("bos_token_id")
        eos = vocab.id_at("eos_token_id")
        _add_post_processor(
            core, vocab, _flag(metadata, "add_bos_token", add_bos), _flag(metadata, "add_eos_token", False)
        )
    except ModelError:
        raise
    except Exception:  # The tokenizers package raises bare Exception, whatever is wrong.
        raise ModelError("The GGUF tokenizer's vocabulary and merges do not fit; download the file again.") from None
    ends = (eos, vocab.id_at("eot_token_id"), vocab.id_at("eom_token_id"))
    return GgufTokenizer(core, bos, tuple(dict.fromkeys(i for i in ends if i is not None)))


class _Vocabulary:
    """The checked token list."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        tokens = metadata.get("tokenizer.ggml.tokens")
        if not isinstance(tokens, list) or not tokens or not all(isinstance(token, str) for token in tokens):
            raise ModelError("The GGUF file has no tokenizer (tokenizer.ggml.tokens); use a file that has one.")
        if len(tokens) > _MAX_TOKENS:
            raise ModelError(f"The GGUF tokenizer has {len(tokens)} tokens; at most {_MAX_TOKENS} are supported.")
        types = metadata.get("tokenizer.ggml.token_type", [TokenType.NORMAL] * len(tokens))
        if not isinstance(types, list) or len(types) != len(tokens):
            raise ModelError("The GGUF tokenizer's token_type does not fit its tokens; download the file again.")
        self.tokens: list[str] = tokens
        self.types: list[int] = types
        self.ids = {token: token_id for token_id, token in enumerate(tokens)}
        if len(self.ids) != len(tokens):
            raise ModelError("The GGUF tokenizer has the same token twice; download the file again.")
        self._metadata = metadata

    def id_at(self, name: str) -> int | None:
        """The token id that a metadata key holds; ``None`` without the key."""
        value = self._metadata.get(f"tokenizer.ggml.{name}")
        if value is not None and not (type(value) is int and 0 <= value < len(self.tokens)):
            raise ModelError(f"tokenizer.ggml.{name} is {show(value)}; it must be an id below {len(self.tokens)}.")
        return value

    def added(self, *types: TokenType) -> list[AddedToken]:
        """The tokens that are matched in the text itself, before any merging."""
        special = TokenType.USER_DEFINED not in types
        return [
            AddedToken(token, special=special, normalized=False)
            for token, kind in zip(self.tokens, self.types, strict=True)
            if kind in types and token
        ]


def _flag(metadata: Mapping[str, Any], name: str, default: bool) -> bool:
    value = metadata.get(f"tokenizer.ggml.{name}", default)
    if not isinstance(value, bool):
        raise ModelError(f"tokenizer.ggml.{name} is {show(value)}; it must be true or false.")
    return value


def _build_byte_level(metadata: Mapping[str, Any], vocab: _Vocabulary) -> tuple[Tokenizer, bool]:
    """Byte-level BPE, and whether a text begins with BOS unless the file says otherwise."""
    name = metadata.get("tokenizer.ggml.pre", "default")
    pre = PRE_TOKENIZERS.get(name) if isinstance(name, str) else None
    if pre is None:
        raise ModelError(
            f"The GGUF pre-tokenizer is {show(name)}; supported are {', '.join(PRE_TOKENIZERS)}. "
            "Use the model's Hugging Face directory instead."
        )
    lines = metadata.get("tokenizer.ggml.merges")
    if not isinstance(lines, list):
        raise ModelError("The GGUF tokenizer has no merges (tokenizer.ggml.merges); download the file again.")
    merges = [tuple(line.split(" ", 1)) for line in lines]
    core = Tokenizer(models.BPE(vocab.ids, merges, ignore_merges=pre.ignore_merges))
    if pre.nfc:
        core.normalizer = normalizers.NFC()
    cuts: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if pre.single_digits else []
    cuts += [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in pre.patterns]
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    core.decoder = decoders.ByteLevel()
    return core, pre.add_bos


def _build_sentencepiece(metadata: Mapping[str, Any], vocab: _Vocabulary) -> Tokenizer:
    """SentencePiece BPE with byte fallback; its scores become ranked merges."""
    scores = metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(vocab.tokens):
        raise ModelError("The GGUF tokenizer's scores do not fit its tokens; download the file again.")
    unknown = vocab.id_at("unknown_token_id")
    core = Tokenizer(
        models.BPE(
            vocab.ids,
            _merges_from_scores(vocab, scores),
            unk_token=None if unknown is None else vocab.tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    spaces = normalizers.Replace(" ", META_SPACE)
    text = [decoders.Replace(META_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if _flag(metadata, "add_space_prefix", True):
        core.normalizer = normalizers.Sequence([normalizers.Prepend(META_SPACE), spaces])
        text.append(decoders.Strip(" ", 1, 0))
    else:
        core.normalizer = spaces
    core.decoder = decoders.Sequence(text)
    return core


def _merges_from_scores(vocab: _Vocabulary, scores: list[float]) -> list[tuple[str, str]]:
    """Every way to join two pieces into a third, best score first; only normal pieces are made by joining."""
    ids = vocab.ids
    merges: list[tuple[float, int, int, str, str]] = []
    for token, kind, score in zip(vocab.tokens, vocab.types, scores, strict=True):
        if kind != TokenType.NORMAL or len(token) > _MAX_PIECE_CHARS:
            continue
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in ids and right in ids:
                merges.append((-score, ids[left], ids[right], left, right))
    merges.sort()
    return [(left, right) for *_, left, right in merges]


def _add_post_processor(core: Tokenizer, vocab: _Vocabulary, add_bos: bool, add_eos: bool) -> None:
    """BOS and EOS around a text that is encoded with its special tokens."""
    around = [("bos_token_id", add_bos), ("eos_token_id", add_eos)]
    names: list[tuple[str, int]] = []
    for name, wanted in around:
        token_id = vocab.id_at(name)
        if wanted and token_id is None:
            raise ModelError(f"The GGUF tokenizer adds a token it does not name; tokenizer.ggml.{name} is missing.")
        if wanted and token_id is not None:
            names.append((vocab.tokens[token_id], token_id))
    if not names:
        return
    first = [names[0][0]] if add_bos else []
    last = [names[-1][0]] if add_eos else []
    core.post_processor = processors.TemplateProcessing(
        single=[*first, "$A", *last], special_tokens=list(dict.fromkeys(names))
    )
