"""A toy language pair whose words are known to belong together, and a model that has learned it.

"one two three" means "3 2 1": word i of n is aligned to word n - 1 - i.
"""

from functools import cache

import torch

from toy_translation import SHAPE, toy_rows, toy_tokenizer
from vaswani import VaswaniConfig, VaswaniForConditionalGeneration
from vaswani.data.tokenization import save_tokenizers

TRAINING_STEPS = 400  # takes a few seconds


def reversed_rows(rows: int, seed: int, turned: bool = False) -> list[tuple[str, str]]:
    """Sources and targets; from digits to words if `turned`."""
    pairs = [
        (source, " ".join(reversed(target.split()))) for source, target in toy_rows(rows, seed, longest=6)
    ]
    return [(target, source) for source, target in pairs] if turned else pairs


@cache
def _weights(turned: bool) -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    model, tokenizer = _model(), toy_tokenizer()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    falls = torch.optim.lr_scheduler.LinearLR(
        optimizer, 1.0, 0.0, TRAINING_STEPS
    )  # so that all seeds learn it
    for step in range(TRAINING_STEPS):
        sources, targets = zip(*reversed_rows(32, seed=step, turned=turned), strict=True)
        batch = tokenizer(list(sources), padding=True, return_tensors="pt")
        labels = tokenizer(list(targets), padding=True, return_tensors="pt")
        labels = labels["input_ids"].masked_fill(labels["attention_mask"] == 0, -100)
        model(**batch, labels=labels).loss.backward()
        optimizer.step()
        falls.step()
        optimizer.zero_grad()
    return model.state_dict()


def _model() -> VaswaniForConditionalGeneration:
    shape = {**SHAPE, "decoder_layers": 2, "dropout": 0.0}
    return VaswaniForConditionalGeneration(VaswaniConfig(**shape, vocab_size=len(toy_tokenizer())))


def reversing_model(turned: bool = False) -> VaswaniForConditionalGeneration:
    """A model of its own for each test, with weights trained once for all."""
    model = _model()
    model.load_state_dict(_weights(turned))
    return model.eval()


def save_reversing_checkpoint(folder, turned: bool = False):
    """A folder as a training writes it."""
    reversing_model(turned).save_pretrained(folder)
    save_tokenizers(toy_tokenizer(), toy_tokenizer(), folder)
    return folder
