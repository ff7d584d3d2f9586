"""Tokenizers of several libraries, made of a few sentences."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import sentencepiece
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import BertTokenizer, PreTrainedTokenizerFast

from library_tokenizers import SOURCES, TARGETS

TEXTS = [*SOURCES, *TARGETS]


def write_sentencepiece(file: Path, texts: Sequence[str] = TEXTS, **options: Any) -> Path:
    content = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=content,
        **{"vocab_size": 70, "hard_vocab_limit": False, "minloglevel": 2, **options},
    )
    file.write_bytes(content.getvalue())
    return file


def bert(folder: Path) -> Any:
    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *sorted({word for text in TEXTS for word in text.split()}),
    ]
    (folder / "vocab.txt").write_text("\n".join(words))
    return BertTokenizer(vocab=str(folder / "vocab.txt"), do_lower_case=False)


def gpt2(folder: Path, begins: bool = False) -> Any:
    """Neither pads nor ends a text; with `begins`, it begins one, as Llama's does."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<|end|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    if begins:
        special = [("<|end|>", 0)]
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<|end|> $A", pair="<|end|> $A $B", special_tokens=special
        )
    end = "<|end|>"
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=end, eos_token=end, unk_token=end)
