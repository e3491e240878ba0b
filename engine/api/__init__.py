"""The public nouns: sampling parameters, requests and outputs. Torch-free."""

from engine.api.outputs import CompletionOutput, Logprob, PositionLogprobs, RequestOutput
from engine.api.request import GenerateRequest, ModelLimits
from engine.api.sampling_params import SamplingParams

__all__ = [
    "CompletionOutput",
    "GenerateRequest",
    "Logprob",
    "ModelLimits",
    "PositionLogprobs",
    "RequestOutput",
    "SamplingParams",
]
