"""engine/v1/worker/features: what a request finds when it takes a slot, new or back from a preemption."""

import numpy as np
import torch

from engine.api import SamplingParams
from engine.v1.core.step import NewRequest
from engine.v1.worker.features.min_tokens import MinTokens
from engine.v1.worker.features.penalties import Penalties
from engine.v1.worker.input_batch import make_layout
from engine.v1.worker.layout import BatchLayout
from engine.v1.worker.slots import WorkerSlots
from tests.v1.helpers import EOS, make_config

CPU = torch.device("cpu")


def request(slot: int, prompt: list[int], output: list[int], **params: object) -> NewRequest:
    return NewRequest(slot, prompt + output, len(prompt), SamplingParams(**params), [])


def layout_of(*sampled: int) -> BatchLayout:
    """A batch in which ``sampled`` decode."""
    slots = WorkerSlots(make_config(), CPU)
    slots.lengths[:] = 1
    return make_layout(np.array(sampled), np.ones(len(sampled), np.int32), slots)


def test_min_tokens_count_what_was_generated_before_a_preemption() -> None:
    feature, layout = MinTokens((EOS,), CPU), layout_of(1, 3)
    feature.add(request(3, [5, 6], [7, 8], min_tokens=4, max_tokens=9, stop_token_ids=(9,)))
    for _ in range(2):
        banned = feature.banned(layout)
        assert banned is not None
        assert (banned.rows.tolist(), banned.token_ids.tolist()) == ([1, 1], [9, EOS])
        feature.sampled(layout_of(1), torch.zeros(1))  # a step in which slot 3 is not sampled does not count
        feature.sampled(layout, torch.zeros(2))
    assert feature.banned(layout) is None
    feature.add(request(3, [5], [7, 8, 9, 10], min_tokens=4))
    assert feature.banned(layout) is None


def test_penalties_of_a_slot_start_from_its_own_tokens() -> None:
    feature, layout = Penalties(4, 16, CPU), layout_of(0, 2)
    feature.add(request(2, [1, 2, 2], [3, 3], presence_penalty=0.5))
    feature.sampled(layout, torch.tensor([9, 4]))
    feature.remove(2)
    feature.add(request(2, [5], [6, 6, 7], frequency_penalty=1.5, repetition_penalty=1.1))
    feature.flush()
    feature.sampled(layout, torch.tensor([9, 6]))
    batch = feature.batch(layout)
    assert batch is not None
    assert batch.rows.tolist() == [1]
    assert batch.prompt_mask.nonzero().tolist() == [[0, 5]]
    assert {i: int(n) for i, n in enumerate(batch.output_counts[0]) if n} == {6: 3, 7: 1}
    assert (float(batch.presence), float(batch.frequency)) == (0.0, 1.5)
    assert abs(float(batch.repetition) - 1.1) < 1e-6
    assert feature.batch(layout_of(0)) is None
