"""Streamed pieces of a continuation join to its text."""

import io
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from tiny_causal import ALL_MODELS, TEXT, gpt2, gpt2_like, llama, ours
from vaswani.data.text_codec import TextCodec
from vaswani.data.tokenization import train_tokenizer
from vaswani.errors import RunError, UserError
from vaswani.inference.continuing import before_begun_stop
from vaswani.inference.generate.files import generate_texts, stream_texts
from vaswani.inference.generate.generation import Generation, TextGenerator
from vaswani.inference.inputs import TextLines
from vaswani.inference.streaming import complete_words, pieces_of

LONG = " ".join(TEXT.split() * 9)  # more tokens than the models have positions
PROMPTS = ["the cat sat on", "is that right?", "maybe ", "1 2", ""]
SAMPLED = {"temperature": 1.2, "seed": 4}
# A text in which the model may write anything, line breaks and halves of characters too.
ANY = {"temperature": 30.0, "seed": 2}


def ours_like() -> PreTrainedTokenizerBase:
    return train_tokenizer([TEXT] * 3, 320, purpose="causal")


def streamed(generator: TextGenerator, prompt: Any, number: int = 0) -> tuple[list[str], Generation]:
    """The pieces, and what the generator returns."""
    pieces, stream = [], generator.stream(prompt, number=number)
    while True:
        try:
            pieces.append(next(stream))
        except StopIteration as end:
            return pieces, end.value


OPTIONS: list[dict[str, Any]] = [
    *({}, SAMPLED, ANY),
    {**ANY, "stop": ["a", "\n", "th"]},
    {"stop": [" ", "cat"]},
    {"repetition_penalty": 2.0},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("tokenizer", [gpt2_like, ours_like], ids=["bytes", "pieces"])
@pytest.mark.parametrize("make", ALL_MODELS)
def test_streamed_pieces_join_to_the_continuation(
    make: Callable[[], PreTrainedModel],
    tokenizer: Callable[[], PreTrainedTokenizerBase],
    options: dict[str, Any],
) -> None:
    torch.manual_seed(1)
    generator = TextGenerator(make().double().eval(), tokenizer(), max_new_tokens=20, **options)
    prompts = PROMPTS if tokenizer is ours_like else PROMPTS[:-1]
    expected = list(generator.generate(prompts, with_scores=False))
    found = [streamed(generator, prompt, number) for number, prompt in enumerate(prompts)]
    for (pieces, generation), whole in zip(found, expected, strict=True):
        assert "".join(pieces) == whole.text
        assert generation == whole
        assert all(pieces)
    if options == SAMPLED:
        assert max(len(pieces) for pieces, _ in found) > 1


BYTE_WORDS = ["▁", "▁the", "▁cat", "a", "b", "c"]


def byte_fallback() -> PreTrainedTokenizerBase:
    """As Llama's: a byte that is no character shows as U+FFFD, and so do all bytes beside it."""
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *BYTE_WORDS]
    bpe = models.BPE({name: at for at, name in enumerate(names)}, [], unk_token="<unk>", byte_fallback=True)
    tokenizer = Tokenizer(bpe)
    joined = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(joined)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )


def cleaning() -> PreTrainedTokenizerBase:
    """As BERT's: an apostrophe joins the words around it once the second is there."""
    names = ["[UNK]", "he", "'", "s", "it", "n", "##t", "do", "a", ".", ","]
    tokenizer = Tokenizer(models.WordPiece({name: at for at, name in enumerate(names)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(cleanup=True)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", clean_up_tokenization_spaces=True
    )


@pytest.mark.parametrize("make", [byte_fallback, cleaning])
def test_text_that_later_tokens_can_change_is_held_back(make: Callable[[], PreTrainedTokenizerBase]) -> None:
    tokenizer = make()
    codec = TextCodec(tokenizer)
    generator = random.Random(0)
    counts = set()
    for _ in range(400):
        tokens = generator.choices(range(3, len(tokenizer)), k=generator.randint(1, 9))
        if make is byte_fallback and generator.random() < 0.7:
            tokens = [3 + byte for byte in "中 国\né".encode()][: generator.randint(1, 10)]
            tokens += generator.choices(range(len(tokenizer) - len(BYTE_WORDS), len(tokenizer)), k=3)
        pieces = [*pieces_of(iter(tokens), lambda ids: codec.decode([ids])[0], codec.byte_ids)]
        assert "".join(pieces) == codec.decode([tokens])[0]
        counts.add(len(pieces))
    assert max(counts) > 3


def test_a_changed_text_is_an_error() -> None:
    texts = {1: "one two three", 2: "two two three four"}
    with pytest.raises(RunError, match="has changed the text 'one two', which is given, to 'two"):
        list(pieces_of(iter([5, 6]), lambda ids: texts[len(ids)]))


@pytest.mark.parametrize(
    ("text", "stop", "before"),
    [("x  ", ["  b"], "x"), ("a a b", ["b c", "a b c d"], "a "), ("x", ["y"], "x"), ("xy", ["y"], "xy")],
)
def test_the_longest_beginning_of_a_stop_text_is_held_back(text: str, stop: list[str], before: str) -> None:
    assert before_begun_stop(text, stop) == before


def test_pieces_arrive_early_and_closing_the_stream_stops_the_search() -> None:
    model = gpt2(n_positions=2000).eval()
    model.generation_config.eos_token_id = None
    steps = []
    model.transformer.register_forward_pre_hook(lambda *_: steps.append(1))
    generator = TextGenerator(model, gpt2_like(), max_new_tokens=1500, **ANY)
    threads = threading.active_count()
    stream = generator.stream("the cat")
    next(stream)
    stream.close()
    assert threading.active_count() == threads
    assert len(steps) < 1400


def test_lines_are_written_piece_by_piece_as_without_the_stream() -> None:
    torch.manual_seed(0)
    generator = TextGenerator(ours().eval(), ours_like(), max_new_tokens=30, **ANY)
    lines = "".join(f"{prompt}\n" for prompt in ["the cat", "", LONG, "maybe"]).encode()
    results = {}
    for way in (generate_texts, stream_texts):
        written: list[str] = []
        told: list[str] = []
        report = way(generator, TextLines(io.BytesIO(lines)), written.append, warn=told.append)
        results[way] = written, told, str(report)
    whole, pieces = results[generate_texts], results[stream_texts]
    assert "".join(pieces[0]) == "".join(f"{line}\n" for line in whole[0])
    assert pieces[1:] == whole[1:]
    assert "model has positions for 64" in pieces[1][0]
    assert len(pieces[0]) > 9


def test_the_end_of_a_prompt_is_read_if_it_is_cut() -> None:
    generator = TextGenerator(ours().eval(), ours_like(), max_new_tokens=9, too_long="cut")
    (whole,) = generator.generate([LONG], with_scores=False)
    assert whole.prompt_cut_off
    assert streamed(generator, LONG)[1] == whole


def test_a_failure_is_raised_when_iterating_over_the_pieces() -> None:
    model = llama()
    torch.nn.init.constant_(model.model.norm.weight, float("nan"))
    with pytest.raises(RunError, match="scores are not finite numbers"):
        list(TextGenerator(model, gpt2_like()).stream("the"))


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "it is empty"),
        (7, "neither a text nor a chat"),
        ([{"role": "user", "content": "a"}], "no chat template"),
    ],
)
def test_an_invalid_prompt_raises_an_error_at_once(prompt: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        TextGenerator(gpt2(), gpt2_like()).stream(prompt)


@pytest.mark.parametrize(
    ("text", "complete"),
    [
        ("one two", "one"),
        ("one two ", "one two"),
        ("one  two three", "one  two"),
        ("one\n\n", "one"),
        ("one\ntwo", "one"),
        ("one two。", "one two。"),
        ("二人の男\ufffd", "二人の男"),
        ("หมาa", "หมา"),
        ("두 사람", "두"),
        ("one", ""),
        ("", ""),
    ],
)
def test_a_word_is_complete_with_what_follows_and_a_han_character_at_once(text: str, complete: str) -> None:
    assert complete_words(text) == complete
