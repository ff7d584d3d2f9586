"""Scoring in batches and in parts agrees with scoring one sequence at a time."""

from unittest.mock import patch

import pytest
import torch

from toy_translation import toy_model, toy_rows, toy_tokenizer
from vaswani.inference.token_log_probs import target_log_probs


@pytest.mark.parametrize("logits_at_once", [1, 1 << 26])
@pytest.mark.parametrize("targets_per_source", [1, 3])
def test_log_probs_are_the_summed_losses_of_each_pair(logits_at_once: int, targets_per_source: int) -> None:
    model, tokenizer = toy_model(), toy_tokenizer()
    sources, _ = zip(*toy_rows(4, seed=-1), strict=True)
    _, targets = zip(*toy_rows(4 * targets_per_source, seed=-2), strict=True)
    batch = tokenizer(list(sources), padding=True, return_tensors="pt")
    labels = [tokenizer(target)["input_ids"] for target in targets]
    longest = max(map(len, labels))
    rest = [torch.randint(0, 300, (longest - len(ids),)).tolist() for ids in labels]  # must not count
    sequences = torch.tensor([[1, *ids, *more] for ids, more in zip(labels, rest, strict=True)])
    lengths = torch.tensor([len(ids) for ids in labels])
    with patch("vaswani.inference.token_log_probs._LOGITS_AT_ONCE", logits_at_once):
        log_probs = target_log_probs(
            model, batch["input_ids"], batch["attention_mask"], sequences, lengths
        ).sum(1)
    expected = []
    for row, ids in enumerate(labels):
        source = tokenizer(sources[row // targets_per_source], return_tensors="pt")["input_ids"]
        with torch.no_grad():
            expected.append(-model(input_ids=source, labels=torch.tensor([ids])).loss * len(ids))
    torch.testing.assert_close(log_probs, torch.stack(expected), rtol=1e-4, atol=1e-4)
    assert log_probs.dtype == torch.float32
