"""Toy texts whose labels a tiny model learns in seconds, for each task, and such models, untrained.

A word decides: good and bad ones the label, names and cities the tags. The rest says nothing.
"""

import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    BertConfig,
    GPT2Config,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
)

import given_tokenizers
from jsonl import write_jsonl
from vaswani import VaswaniDecoderConfig, VaswaniEncoderConfig
from vaswani.data.given_tokenizers import prepare_for_classification
from vaswani.data.tokenization import train_tokenizer

TASKS = ("classification", "multi_label", "regression", "tagging")
KINDS = {"good": ["good", "great", "fine"], "bad": ["bad", "awful", "poor"], "names": ["ann", "bob", "carl"]}
CITIES = ["rome", "oslo", "york"]
FILLERS = ["the", "film", "was", "saw", "in", "and"]
WORDS = [*KINDS["good"], *KINDS["bad"], *KINDS["names"], *CITIES, *FILLERS]
POSITIONS = 40
SHAPE: dict[str, Any] = {"d_model": 32, "encoder_layers": 1, "encoder_attention_heads": 2}
SHAPE |= {"encoder_ffn_dim": 64, "max_position_embeddings": POSITIONS, "initializer_range": 0.1}


def toy_rows(task: str, rows: int, seed: int) -> Iterator[dict[str, Any]]:
    """Rows with the fields `text` and `label`; those of tagging with lists of words and tags."""
    generator = random.Random(seed)
    for _ in range(rows):
        words = generator.choices(FILLERS, k=generator.randint(3, 9))
        yield _tagged(words, generator) if task == "tagging" else _labelled(words, task, generator)


def _labelled(words: list[str], task: str, generator: random.Random) -> dict[str, Any]:
    kinds = [generator.choice(["good", "bad"])]
    if task == "multi_label":
        kinds = [kind for kind in KINDS if generator.random() < 0.5]
    for kind in kinds:
        words.insert(generator.randrange(len(words)), generator.choice(KINDS[kind]))
    number = 1.5 if kinds == ["good"] else -2.0
    label = {"classification": kinds[0] if kinds else None, "multi_label": kinds, "regression": number}[task]
    return {"text": " ".join(words), "label": label}


def _tagged(words: list[str], generator: random.Random) -> dict[str, Any]:
    tags = ["O"] * len(words)
    place = generator.randrange(len(words))
    words[place:place] = generator.sample(KINDS["names"], 2)
    tags[place:place] = ["B-PER", "I-PER"]
    return {"text": [*words, generator.choice(CITIES)], "label": [*tags, "B-LOC"]}


def write_toy_rows(folder: Path, task: str, train: int = 300, validation: int = 30, test: int = 40) -> Path:
    """A folder of splits as files."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed, (split, rows) in enumerate({"train": train, "validation": validation, "test": test}.items()):
        write_jsonl(folder / f"{split}.jsonl", list(toy_rows(task, rows, seed)))
    return folder


@cache
def toy_tokenizer() -> PreTrainedTokenizerBase:
    return train_tokenizer([" ".join(WORDS)] * 4, 400, purpose="masked", token_types=True)


def toy_config(library: bool = False, **fields: Any) -> PreTrainedConfig:
    """Of our encoder, or of the library's BERT in the same shape."""
    if not library:
        return VaswaniEncoderConfig(**{**SHAPE, "vocab_size": len(toy_tokenizer()), **fields})
    return BertConfig(
        vocab_size=len(toy_tokenizer()),
        hidden_size=SHAPE["d_model"],
        num_hidden_layers=SHAPE["encoder_layers"],
        num_attention_heads=SHAPE["encoder_attention_heads"],
        intermediate_size=SHAPE["encoder_ffn_dim"],
        max_position_embeddings=POSITIONS,
        initializer_range=SHAPE["initializer_range"],
        **fields,
    )


def save_toy_encoder(folder: Path, library: bool = False, **fields: Any) -> Path:
    """A folder as a pre-training writes it, with weights that have learned nothing."""
    torch.manual_seed(0)
    AutoModelForMaskedLM.from_config(toy_config(library, **fields)).save_pretrained(folder)
    toy_tokenizer().save_pretrained(folder)
    return folder


NAMES = {"classification": ["bad", "good", "so so"], "multi_label": ["bad", "good"], "regression": ["x"]}
NAMES["tagging"] = ["O", "B-PER", "I-PER"]
PROBLEMS = {"classification": None, "multi_label": "multi_label_classification", "regression": "regression"}


def save_toy_classifier(folder: Path, task: str, library: bool = False, **fields: Any) -> Path:
    """A model with a head for labels, whose weights have learned nothing."""
    names = NAMES[task]
    labels = {"id2label": dict(enumerate(names)), "label2id": {name: at for at, name in enumerate(names)}}
    config = toy_config(library, **{**labels, "problem_type": PROBLEMS.get(task), **fields})
    kind = AutoModelForTokenClassification if task == "tagging" else AutoModelForSequenceClassification
    torch.manual_seed(0)
    kind.from_config(config).save_pretrained(folder)
    toy_tokenizer().save_pretrained(folder)
    return folder


def save_toy_answerer(folder: Path, decoder: bool = False) -> Path:
    """A model that marks answers, whose weights have learned nothing."""
    save_toy_decoder(folder) if decoder else save_toy_encoder(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    if decoder:
        tokenizer = prepare_for_classification(tokenizer, str(folder))
    torch.manual_seed(0)
    model = AutoModelForQuestionAnswering.from_pretrained(folder)
    model.config.question_answering = {"max_length": 36, "doc_stride": 4, "max_question_length": 8}
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_toy_decoder(folder: Path, library: bool = False, **fields: Any) -> Path:
    """Of ours, whose tokenizer begins texts; or the library's GPT-2, whose tokenizer only splits them."""
    torch.manual_seed(0)
    folder.mkdir(parents=True, exist_ok=True)
    if library:
        tokenizer = given_tokenizers.gpt2(folder)
        shape = {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": POSITIONS, "initializer_range": 0.1}
        config: PreTrainedConfig = GPT2Config(
            vocab_size=len(tokenizer), bos_token_id=0, eos_token_id=0, **{**shape, **fields}
        )
    else:
        # Words have tokens of their own at the beginning of a text, too.
        tokenizer = train_tokenizer([" ".join(WORDS), *WORDS] * 4, 400, purpose="causal")
        shape = {name.replace("encoder", "decoder"): value for name, value in SHAPE.items()}
        config = VaswaniDecoderConfig(**{**shape, "vocab_size": len(tokenizer), **fields})
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
