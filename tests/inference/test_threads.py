"""Eight threads that share a tokenizer get what one thread gets."""

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

import toy_prompting
from toy_translation import WORDS, toy_model, toy_tokenizer
from vaswani import Embedder, Prompter, Translator, VaswaniEncoderConfig, VaswaniEncoderModel

THREADS = 8
CALLS = 48  # of each class, on texts of their own


def texts(seed: int) -> list[str]:
    """Some of these are cut off, some are not, and no two calls have the same ones."""
    generator = random.Random(seed)
    return [
        " ".join(generator.choices(WORDS, k=generator.randint(1, 30))) for _ in range(generator.randint(1, 3))
    ]


def encoder() -> VaswaniEncoderModel:
    """One whose learned positions cut off most texts."""
    torch.manual_seed(0)
    sizes = {"d_model": 16, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 16}
    positions = {"max_position_embeddings": 12, "vocab_size": len(toy_tokenizer())}
    return VaswaniEncoderModel(VaswaniEncoderConfig(**sizes, **positions, pooler=False))


def embedder(pooling: str) -> Callable[[int], Any]:
    embedder = Embedder(encoder(), toy_tokenizer(), truncation=True, pooling=pooling)
    return lambda number: [[round(x, 4) for x in row] for row in embedder.embed(texts(number)).tolist()]


def translator(**options: Any) -> Callable[[int], Any]:
    translator = Translator(toy_model(), toy_tokenizer(), num_beams=1, max_length=8, **options)
    return lambda number: [
        (translation.text, translation.source_cut_off)
        for translation in translator.translate(texts(number), with_scores=False)
    ]


def prompter() -> Callable[[int], Any]:
    prompter = Prompter(toy_prompting.toy_model(), toy_prompting.toy_tokenizer())
    rows = toy_prompting.numeral_rows()
    tasks = [toy_prompting.numeral_task(test=rows[digit : digit + 2], max_new_tokens=2) for digit in range(9)]
    return lambda number: [
        answer.given for answer in prompter.answer(tasks[number % 9], shots=1, seed=number).answers
    ]


def test_threads_that_share_tokenizers_get_what_one_thread_gets() -> None:
    shared = [embedder("mean"), embedder("last"), translator(max_source_length=7), translator(), prompter()]
    calls = [(call, number) for number in range(CALLS) for call in shared]
    alone = [call(number) for call, number in calls]
    with ThreadPoolExecutor(THREADS) as threads:
        together = list(threads.map(lambda of: of[0](of[1]), calls))
    assert together == alone


def test_embedders_count_what_threads_cut_off() -> None:
    counts = []
    for threads in (1, THREADS):
        embedder = Embedder(encoder(), toy_tokenizer(), truncation=True)
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda number, embedder=embedder: embedder.embed(texts(number)), range(CALLS)))
        counts.append(embedder.truncated)
    assert counts[0] == counts[1] > CALLS / 2
