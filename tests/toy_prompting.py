"""A toy language model that learns from its prompt: after "3: tres, 5: cinco, 7:" it says "siete".

Every text that it was trained on counts in one of three languages. Without a shot it cannot know in which;
one shot tells it, for all digits.
"""

import random
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase, get_linear_schedule_with_warmup

from vaswani import VaswaniDecoderConfig, VaswaniForCausalLM
from vaswani.data.tokenization import train_tokenizer
from vaswani.inference.prompt.task import Task

NUMERALS = {  # no word is of two languages
    "English": ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"],
    "Spanish": ["cero", "uno", "dos", "tres", "cuatro", "cinco", "seis", "siete", "ocho", "nueve"],
    "German": ["null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"],
}
TRAINING_STEPS = 200  # takes two or three seconds


@cache
def toy_tokenizer() -> PreTrainedTokenizerBase:
    """Of bytes, the numerals and the digits; it puts `</s>` behind every text."""
    words = [word for numerals in NUMERALS.values() for word in numerals]
    return train_tokenizer([" ".join([*words, *map(str, range(10))]) + " : ,"] * 4, 400)


def toy_text(generator: random.Random) -> str:
    numerals = NUMERALS[generator.choice(list(NUMERALS))]
    return ", ".join(f"{digit}: {numerals[digit]}" for digit in generator.sample(range(10), 5))


@cache
def toy_model() -> VaswaniForCausalLM:
    torch.manual_seed(0)
    config = VaswaniDecoderConfig(
        vocab_size=len(toy_tokenizer()),
        d_model=64,
        decoder_layers=1,
        decoder_attention_heads=8,
        decoder_ffn_dim=256,
        max_position_embeddings=64,
        initializer_range=0.1,
        dropout=0.0,
        attention_dropout=0.0,
        tie_word_embeddings=False,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = VaswaniForCausalLM(config)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    schedule = get_linear_schedule_with_warmup(optimizer, 20, TRAINING_STEPS)
    generator = random.Random(0)
    for _ in range(TRAINING_STEPS):
        texts = [toy_text(generator) for _ in range(32)]
        batch = toy_tokenizer()(texts, padding=True, return_tensors="pt")
        labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        model(**batch, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    return model.eval()


def save_toy_checkpoint(folder: Path) -> Path:
    """A folder as a training writes it."""
    toy_model().save_pretrained(folder)
    toy_tokenizer().save_pretrained(folder)
    return folder


def numeral_rows(language: str = "Spanish") -> list[dict[str, Any]]:
    """A row for each digit: its numeral in a language, and in all of them."""
    return [
        {
            "digit": digit,
            "word": NUMERALS[language][digit],
            "words": [words[digit] for words in NUMERALS.values()],
        }
        for digit in range(10)
    ]


def numeral_task(**options: Any) -> Task:
    """The model writes the numeral of each digit or, given `choices`, chooses one."""
    way = {} if "choices" in options else {"generate": True, "max_new_tokens": 8}
    rows = {"examples": numeral_rows(), "test": numeral_rows()}
    return Task(**{"prompt": "{digit}:", "answer": " {word}", "separator": ", ", **way, **rows, **options})
