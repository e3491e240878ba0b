"""Every rope scaling computes what transformers computes beyond the original context."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models.harness import paged_logits
from tests.models.tiny import hf_logits, hf_model, random_tokens, save_and_load

ORIGINAL = 32
LENGTH = 120

#: name -> (rope_parameters, max_position_embeddings); dynamic scaling's maximum is the original context.
SCALINGS: dict[str, tuple[dict[str, Any], int]] = {
    "default": ({"rope_type": "default"}, 128),
    "linear": ({"rope_type": "linear", "factor": 4.0}, 128),
    "dynamic": ({"rope_type": "dynamic", "factor": 4.0}, ORIGINAL),
    "llama3": (
        {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        | {"original_max_position_embeddings": ORIGINAL},
        128,
    ),
    "yarn": ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": ORIGINAL}, 128),
    "yarn-tuned": (
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": ORIGINAL}
        | {"attention_factor": 1.3, "beta_fast": 4.0, "beta_slow": 0.1},
        128,
    ),
}


@pytest.mark.parametrize("scaling", SCALINGS)
def test_logits_equal_transformers_beyond_the_original_context(scaling: str, tmp_path: Path) -> None:
    rope, max_position = SCALINGS[scaling]
    rope = rope | {"rope_theta": 500.0}
    reference = hf_model("llama", rope_parameters=rope, max_position_embeddings=max_position)
    model, config = save_and_load(reference, tmp_path, max_model_len=LENGTH)
    [tokens] = random_tokens([LENGTH])
    [ours] = paged_logits(model, config, [tokens])
    torch.testing.assert_close(ours, hf_logits(reference, tokens), rtol=1e-4, atol=1e-4)


def test_dynamic_scaling_within_the_original_context_is_plain(tmp_path: Path) -> None:
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 500.0}
    reference = hf_model("llama", rope_parameters=rope, max_position_embeddings=ORIGINAL)
    model, config = save_and_load(reference, tmp_path, max_model_len=20)
    [tokens] = random_tokens([20])
    [ours] = paged_logits(model, config, [tokens])
    torch.testing.assert_close(ours, hf_logits(reference, tokens), rtol=1e-4, atol=1e-4)
