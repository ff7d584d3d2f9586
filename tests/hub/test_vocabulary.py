"""Tokenizers of other models are refused; padded embeddings are accepted."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from toy_translation import save_toy_checkpoint, toy_model, toy_tokenizer
from vaswani.data.tokenization import save_tokenizers
from vaswani.errors import UserError
from vaswani.hub.checkpoint import load_checkpoint
from vaswani.hub.vocabulary import max_unused_rows

SIZE = len(toy_tokenizer())


def folder_with(tmp_path: Path, **fields: Any) -> Path:
    """A model whose fields do not fit its tokenizer."""
    toy_model(**fields).save_pretrained(tmp_path)
    save_tokenizers(toy_tokenizer(), toy_tokenizer(), tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("rows", "tokens", "is_ours", "belong"),
    [
        (37_000, 37_000, True, True),
        (32_128, 32_100, True, True),  # T5, and a student with its embeddings
        (32_128, 32_100, False, True),
        (128_112, 128_104, False, True),  # M2M100
        (256_206, 256_204, True, True),  # NLLB, and a student with its embeddings
        (50_400, 50_257, False, True),  # GPT-J
        (51_200, 50_295, False, True),  # Phi-2
        (151_936, 151_665, False, True),  # Qwen2.5
        (1_500, 300, True, False),
        (1_500, 300, False, False),
        (8_192, 300, False, False),
        (304, 280, True, False),
        (37_000, 36_000, True, False),
        (50_257, 40_478, False, False),  # GPT-2 with the tokenizer of GPT
    ],
)
def test_a_padded_vocabulary_is_distinguished_from_another_tokenizer(
    rows: int, tokens: int, is_ours: bool, belong: bool
) -> None:
    assert (rows - tokens <= max_unused_rows(rows, is_ours)) == belong


@pytest.mark.slow
def test_a_much_smaller_tokenizer_needs_allow_mismatch(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, vocab_size=1500, decoder_vocab_size=1500)
    words = rf"the tokenizer in {folder} has {SIZE} tokens but the model embeds 1500; they do not belong"
    with pytest.raises(UserError, match=words):
        load_checkpoint(folder)
    assert load_checkpoint(folder, allow_mismatch=True)[0].config.vocab_size == 1500


def test_padded_embeddings_are_accepted(tmp_path: Path) -> None:
    load_checkpoint(folder_with(tmp_path, vocab_size=SIZE + 16, decoder_vocab_size=SIZE + 16))


@pytest.fixture
def separate(tmp_path: Path) -> Path:
    return save_toy_checkpoint(tmp_path / "separate", separate=True)


def test_a_target_tokenizer_of_another_model_raises_an_error(separate: Path) -> None:
    load_checkpoint(separate)
    toy_tokenizer(270).save_pretrained(separate / "target_tokenizer")
    with pytest.raises(UserError, match=r"the target tokenizer in .* has 270 tokens but .* predicts 280"):
        load_checkpoint(separate)
    load_checkpoint(separate, allow_mismatch=True)
    toy_tokenizer(290).save_pretrained(separate / "target_tokenizer")
    with pytest.raises(UserError, match=r"the target tokenizer in .* has 290 tokens but .* predicts 280"):
        load_checkpoint(separate, allow_mismatch=True)


def test_a_missing_target_tokenizer_raises_an_error(separate: Path) -> None:
    shutil.rmtree(separate / "target_tokenizer")
    with pytest.raises(
        UserError, match=r"has the tokenizer of sources alone.*copy the folder target_tokenizer"
    ):
        load_checkpoint(separate)


@pytest.mark.parametrize("name", ["pad_token_id", "eos_token_id"])
def test_special_tokens_of_another_model(tmp_path: Path, name: str) -> None:
    folder = save_toy_checkpoint(tmp_path)
    for file in (folder / "config.json", folder / "generation_config.json"):
        file.write_text(json.dumps({**json.loads(file.read_text()), name: 7}))
    ours = getattr(toy_tokenizer(), name)
    words = rf"the tokenizer in {folder} has {name}={ours} and the model {name}=7; they do not belong"
    with pytest.raises(UserError, match=words):
        load_checkpoint(folder)
    load_checkpoint(folder, allow_mismatch=True)
