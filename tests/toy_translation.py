"""A toy language pair, and a model that has half learned it: "one two three" means "1 2 3".

Half is enough for translations that depend on the source, differ in length and mostly end by themselves, and
leaves the model unsure enough for beams that differ.
"""

import random
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import MarianConfig, MarianMTModel, PreTrainedTokenizerBase

from vaswani import Translator, VaswaniConfig, VaswaniForConditionalGeneration
from vaswani.data.tokenization import save_tokenizers, train_tokenizer

WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
SHAPE: dict[str, Any] = {
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "dropout": 0.1,
}
TRAINING_STEPS = 100  # takes about a second


def toy_rows(rows: int, seed: int, longest: int = 8) -> list[tuple[str, str]]:
    """Sources and targets of 1 to `longest` digits."""
    generator = random.Random(seed)
    digits = [generator.choices(range(10), k=generator.randint(1, longest)) for _ in range(rows)]
    return [(" ".join(WORDS[digit] for digit in row), " ".join(map(str, row))) for row in digits]


def toy_sources(rows: int, seed: int, longest: int = 8) -> list[str]:
    return [source for source, _ in toy_rows(rows, seed, longest)]


@cache
def toy_tokenizer(vocab_size: int = 304) -> PreTrainedTokenizerBase:
    return train_tokenizer([" ".join(WORDS), " ".join(map(str, range(10)))] * 4, vocab_size)


def toy_tokenizers(separate: bool = False) -> tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase]:
    """One tokenizer for source and target, or two with vocabularies of different sizes."""
    return toy_tokenizer(), toy_tokenizer(280) if separate else toy_tokenizer()


def toy_model(separate: bool = False, **fields: Any) -> VaswaniForConditionalGeneration:
    """A model of its own for each test, with weights trained once for all."""
    source, target = toy_tokenizers(separate)
    sizes = {"vocab_size": len(source), "decoder_vocab_size": len(target) if separate else None}
    model = VaswaniForConditionalGeneration(VaswaniConfig(**{**SHAPE, **sizes, **fields}))
    model.load_state_dict(_trained_weights(separate, tuple(fields.items())))
    return model.eval()


@cache
def _trained_weights(separate: bool, fields: tuple[tuple[str, Any], ...]) -> dict[str, torch.Tensor]:
    source, target = toy_tokenizers(separate)
    sizes = {"vocab_size": len(source), "decoder_vocab_size": len(target) if separate else None}
    torch.manual_seed(0)
    model = VaswaniForConditionalGeneration(VaswaniConfig(**{**SHAPE, **sizes, **dict(fields)}))
    _train(model, source, target)
    return model.state_dict()


@cache
def toy_marian() -> MarianMTModel:
    """A model of the library that has half learned the language; one for all tests, not to be changed."""
    torch.manual_seed(0)
    tokens: dict[str, Any] = {"pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 0}
    shape = {name: value for name, value in SHAPE.items() if name != "dropout"}
    sizes = {"vocab_size": len(toy_tokenizer()), "max_position_embeddings": 256, "init_std": 0.1}
    model = MarianMTModel(MarianConfig(**shape, **sizes, **tokens, forced_eos_token_id=None))
    _train(model, toy_tokenizer(), toy_tokenizer())
    return model.eval()


@cache
def toy_reverse_model() -> VaswaniForConditionalGeneration:
    """A model of the other direction, from digits to words; one for all tests, not to be changed."""
    torch.manual_seed(1)
    model = VaswaniForConditionalGeneration(VaswaniConfig(**SHAPE, vocab_size=len(toy_tokenizer())))
    _train(model, toy_tokenizer(), toy_tokenizer(), is_turned=True)
    return model.eval()


def _train(
    model: Any, source: PreTrainedTokenizerBase, target: PreTrainedTokenizerBase, is_turned: bool = False
) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for step in range(TRAINING_STEPS):
        sources, targets = zip(*toy_rows(32, seed=step), strict=True)
        if is_turned:
            sources, targets = targets, sources
        batch = source(list(sources), padding=True, return_tensors="pt")
        labels = target(list(targets), padding=True, return_tensors="pt")
        labels = labels["input_ids"].masked_fill(labels["attention_mask"] == 0, -100)
        model(**batch, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


TRANSLATING = {"toy": toy_model, "marian": toy_marian}  # a model of ours and one of the library


def translator_of(kind: str, **options: Any) -> Translator:
    return Translator(TRANSLATING[kind](), toy_tokenizer(), **{"max_length": 30, **options})


def save_toy_reverse_checkpoint(directory: Path) -> Path:
    """A folder of the model of the other direction."""
    toy_reverse_model().save_pretrained(directory)
    save_tokenizers(*toy_tokenizers(), directory)
    return directory


def save_toy_checkpoint(directory: Path, separate: bool = False, **fields: Any) -> Path:
    """A folder as a training writes it."""
    toy_model(separate, **fields).save_pretrained(directory)
    save_tokenizers(*toy_tokenizers(separate), directory)
    return directory
