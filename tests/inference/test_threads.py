"""Eight threads that share a tokenizer and a model get the results of one thread."""

import random
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertModel

import toy_prompting
from toy_translation import WORDS, toy_model, toy_tokenizer
from vaswani import (
    Embedder,
    Prompter,
    Translator,
    VaswaniEncoderConfig,
    VaswaniEncoderModel,
    VaswaniForConditionalGeneration,
)
from vaswani.inference.decoding import GNMTLengthPenalty
from vaswani.inference.translate.ensembling import Ensemble
from vaswani.interop.sparsify import sparsify
from vaswani.kernels import onednn

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


def word_embedder() -> Callable[[int], Any]:
    embedder = Embedder(encoder(), toy_tokenizer(), truncation=True)
    return lambda number: [
        (words.words, words.vectors.any(dim=1).tolist()) for words in embedder.embed_words(texts(number))
    ]


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


@pytest.mark.slow
def test_threads_that_share_tokenizers_get_what_one_thread_gets() -> None:
    shared = [
        embedder("mean"),
        embedder("last"),
        word_embedder(),
        translator(max_source_length=7),
        translator(),
        prompter(),
    ]
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


# Models: searches, weights that are packed for them, sparse attention, hidden states that are recorded.

SEARCHES = 16  # of each model
SPARSE = {"sparse_block_size": 4, "sparse_window_blocks": 1}


def searcher(model: Any, **options: Any) -> Callable[[int], Any]:
    translator = Translator(model, toy_tokenizer(), max_length=8, max_source_length=12, **options)

    def search(number: int) -> Any:
        found = translator.translate(texts(number), n_best=2)
        best = [hypothesis for translation in found for hypothesis in translation.hypotheses]
        return [one.text for one in best], [one.score for one in best]

    return search


def generator(model: VaswaniForConditionalGeneration) -> Callable[[int], Any]:
    """`generate` as users of transformers call it."""
    sources = [
        toy_tokenizer()(texts(number)[:1], return_tensors="pt").input_ids for number in range(SEARCHES)
    ]
    options = {"num_beams": 4, "length_penalty": GNMTLengthPenalty(0.6), "max_length": 9}
    return lambda number: ([], model.generate(input_ids=sources[number], **options).flatten().tolist())


def state_recorder(model: Any) -> Callable[[int], Any]:
    embedder = Embedder(model, toy_tokenizer(), layers="all", truncation=True, max_length=12)
    return lambda number: ([], embedder.embed(texts(number)).flatten().tolist())


def sparse_encoder() -> VaswaniEncoderModel:
    sizes = {"d_model": 16, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 16}
    return VaswaniEncoderModel(
        VaswaniEncoderConfig(vocab_size=304, encoder_attention="sparse", **sizes, **SPARSE)
    )


def sparse_bert() -> BertModel:
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    return sparsify(BertModel(BertConfig(vocab_size=304, **sizes)), block_size=4, window=1)


@pytest.fixture
def fast_switches() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.slow
@pytest.mark.usefixtures("fast_switches")
def test_threads_that_share_models_get_what_one_thread_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in (
        *((onednn, "MIN_PACKED_WEIGHTS"), (onednn, "MIN_PACKED_ROWS")),
        *((onednn, "MIN_ROWS"), (onednn, "MIN_MULTIPLICATIONS")),
    ):
        monkeypatch.setattr(module, name, 1)  # toys take the ways of large models
    shared = toy_model()
    calls = [
        searcher(shared),
        searcher(shared, num_beams=3),
        generator(shared),
        searcher(Ensemble([toy_model(), toy_model(encoder_layers=2)])),
        searcher(toy_model(encoder_attention="sparse", decoder_attention="sparse", **SPARSE)),
        state_recorder(sparse_encoder()),
        state_recorder(sparse_bert()),
    ]
    jobs = [(call, number) for number in range(SEARCHES) for call in calls]
    with ThreadPoolExecutor(THREADS) as threads:  # first, for a cold start
        together = list(threads.map(lambda job: job[0](job[1]), jobs))
    for (call, number), (found, numbers) in zip(jobs, together, strict=True):
        expected, numbers_alone = call(number)
        assert found == expected
        assert numbers == pytest.approx(numbers_alone, abs=1e-3)
    assert not any("forward" in vars(module) for module in shared.modules())
