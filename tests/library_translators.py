"""Tiny translators of the library, with the tokenizers of `library_tokenizers`."""

from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForSeq2SeqLM,
    BartConfig,
    FSMTConfig,
    LEDConfig,
    M2M100Config,
    MarianConfig,
    MBartConfig,
    PegasusConfig,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
    T5Config,
)

from library_tokenizers import KINDS, SOURCES, TARGETS
from tiny_runs import TINY_MODEL
from vaswani.data.text_codec import TextCodec
from vaswani.data.tokenization import load_tokenizers, train_tokenizer

# Those that take any tokenizer: its special tokens are these.
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
OF_ANY_TOKENIZER = ("bart", "pegasus", "t5", "led")


def config_of(kind: str, tokenizer: PreTrainedTokenizerBase) -> PreTrainedConfig:
    """A tiny model for a tokenizer, with its vocabularies, its padding and its end."""
    languages = getattr(tokenizer, "lang_code_to_id", {}).values()
    source, target = (
        1 + max(*TextCodec(tokenizer, side).vocabulary().values(), *languages)
        for side in ("source", "target")
    )
    end = tokenizer.eos_token_id if tokenizer.sep_token_id is None else tokenizer.sep_token_id
    tokens: dict[str, Any] = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": end}
    tokens["decoder_start_token_id"] = tokenizer.pad_token_id if kind.startswith("marian") else end
    if kind == "fsmt":
        sizes = {"src_vocab_size": source, "tgt_vocab_size": target}
        return FSMTConfig(**TINY_MODEL, **sizes, **tokens, langs=["en", "de"], bos_token_id=0)
    if kind == "marian of two vocabularies":
        tokens |= {"decoder_vocab_size": target, "share_encoder_decoder_embeddings": False}
    classes = {"marian": MarianConfig, "mbart": MBartConfig, "mbart50": MBartConfig}
    config_class = classes.get(kind.split()[0], M2M100Config)
    whole = {"encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0}  # a dropped layer would leave nothing
    return config_class(**TINY_MODEL, **whole, vocab_size=source, **tokens, forced_eos_token_id=None)


def save_translator(kind: str, folder: Path) -> Path:
    """Write a translator that has learned nothing, with its tokenizer; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    if kind in OF_ANY_TOKENIZER:
        tokenizer: Any = train_tokenizer([SOURCES + TARGETS], 300)
        shape: Any = _config_of_any(kind, len(tokenizer))
    else:
        KINDS[kind](folder)
        tokenizer = load_tokenizers(folder)[0]
        shape = config_of(kind, tokenizer)
    AutoModelForSeq2SeqLM.from_config(shape).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _config_of_any(kind: str, vocab_size: int) -> PreTrainedConfig:
    sizes = {"vocab_size": vocab_size, **TOKENS}
    if kind == "t5":
        return T5Config(
            d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, decoder_start_token_id=0, **sizes
        )
    if kind == "led":
        positions = {"max_encoder_position_embeddings": 256, "max_decoder_position_embeddings": 64}
        return LEDConfig(**TINY_MODEL, **sizes, **positions, attention_window=4, decoder_start_token_id=2)
    config_class = {"bart": BartConfig, "pegasus": PegasusConfig}[kind]
    return config_class(
        **TINY_MODEL, **sizes, decoder_start_token_id=2, forced_eos_token_id=2, max_position_embeddings=64
    )
