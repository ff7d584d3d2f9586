"""Windows of texts: every answer is found for any text, tokenizer and lengths."""

import itertools

import pytest
import torch
from datasets import Dataset
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from toy_labels import toy_tokenizer
from toy_questions import toy_questions
from vaswani.data.questions.question_rows import FEATURES
from vaswani.data.questions.windows import (
    Window,
    WindowCollator,
    WindowLengths,
    make_windows,
    tokenize_questions,
    windows_of,
)
from vaswani.data.sources.row_report import RowReport
from vaswani.data.tokenization import train_tokenizer
from vaswani.errors import UserError

LENGTHS = WindowLengths(max_length=24, doc_stride=5, max_question_length=6)


def last_cls() -> PreTrainedTokenizerFast:
    """Whole words, and the token for no answer at the end, as in XLNet."""
    tokenizer = Tokenizer(WordLevel({"<unk>": 0, "<sep>": 1, "<cls>": 2, "<pad>": 3, "rome": 4}, "<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(
        single="$A <sep> <cls>",
        pair="$A <sep> $B:1 <sep>:1 <cls>:2",
        special_tokens=[("<sep>", 1), ("<cls>", 2)],
    )
    names = {"unk_token": "<unk>", "sep_token": "<sep>", "cls_token": "<cls>", "pad_token": "<pad>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


TOKENIZERS = {
    "encoder": toy_tokenizer(),
    "decoder": train_tokenizer(["the film was in rome"] * 4, 400, purpose="causal"),
    "characters": train_tokenizer(["the film was in rome"] * 4, 400, purpose="masked", kind="char"),
    "last cls": last_cls(),
}
TEXTS = st.text(st.sampled_from("abz .,\n\tÄß東😀é"), min_size=1, max_size=90).filter(str.strip)


def windows(name: str, question: str, context: str, lengths: WindowLengths = LENGTHS) -> list[Window]:
    return make_windows(TOKENIZERS[name], [question], [context], lengths)


def span(window: Window, first: int, last: int) -> tuple[int, int]:
    """The characters of a span of tokens."""
    return window.offsets[first - window.first][0], window.offsets[last - window.first][1]


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(question=TEXTS, context=TEXTS, data=st.data())
def test_every_answer_is_found_in_a_window(name, question, context, data):
    """Its tokens hold all of it, and no token at either end could be left out; words are found exactly."""
    start = data.draw(st.integers(0, len(context) - 1))
    end = data.draw(st.integers(start + 1, min(len(context), start + 5)))
    text = context[start:end]
    start, end = start + len(text) - len(text.lstrip()), start + len(text.rstrip())
    found = windows(name, question, context)
    if start >= end:
        return
    (whole,) = windows(name, question, context, WindowLengths(1000, 0, 6))
    tokens = [pair for pair in whole.offsets if pair[0] < end and pair[1] > start]
    if not tokens or tokens[0][0] > start or tokens[-1][1] < end:
        return  # the tokenizer has lost a character of the answer
    marked = [(window, *window.labels(start, end)) for window in found]
    marked = [entry for entry in marked if entry[1] != entry[0].null]
    if len(tokens) <= LENGTHS.doc_stride:
        assert marked
    for window, first, last in marked:
        before, after = span(window, first, last)
        assert before <= start < end <= after
        assert window.offsets[first - window.first][1] > start
        assert window.offsets[last - window.first][0] < end


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    words=st.lists(st.sampled_from(["rome", "the", "film", "ann"]), min_size=1, max_size=40), data=st.data()
)
def test_a_word_maps_back_to_its_exact_text(name, words, data):
    number = data.draw(st.integers(0, len(words) - 1))
    start = len(" ".join([*words[:number], ""])) if number else 0
    context = " ".join(words)
    lengths = WindowLengths(max_length=30, doc_stride=9, max_question_length=6)
    found = [
        span(window, *window.labels(start, start + len(words[number])))
        for window in windows(name, "who", context, lengths)
        if window.labels(start, start + len(words[number]))[0] != window.null
    ]
    assert found
    for before, after in found:
        assert context[before:after].strip() == words[number]


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize(("max_length", "stride", "most"), [(24, 5, 6), (16, 0, 6), (40, 20, 2)])
def test_windows_cover_the_text_and_overlap_by_the_stride(name, max_length, stride, most):
    context = "the film was in rome and oslo, where ann saw bob. " * 4
    lengths = WindowLengths(max_length, stride, most)
    found = windows(name, "where was the film of rome", context, lengths)
    whole = windows(name, "where was the film of rome", context, WindowLengths(1000, 0, most))
    (every,) = [window.offsets for window in whole]
    rebuilt = list(found[0].offsets)
    for before, window in itertools.pairwise(found):
        assert len(before.columns["input_ids"]) == max_length
        assert before.offsets[len(before.offsets) - stride :] == window.offsets[:stride]
        rebuilt += window.offsets[stride:]
    assert rebuilt == every
    for window in found:
        ids = window.columns["input_ids"]
        assert len(ids) <= max_length
        assert len(window.offsets) >= 1
        texts = TOKENIZERS[name].convert_ids_to_tokens(ids[window.first : window.first + len(window.offsets)])
        assert len(texts) == len(window.offsets)
        if name == "last cls":
            assert window.null == len(ids) - 1
        else:
            assert window.null == 0


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_long_question_is_cut_and_a_short_one_is_not(name):
    def tokens(question: str, most: int) -> int:
        return windows(name, question, "rome", WindowLengths(60, 2, most))[0].first

    long, short = "the film was in rome and in oslo", "the film"
    assert tokens(long, 4) < tokens(long, 30)
    assert tokens(short, 20) == tokens(f"  {short} ", 30)
    special = tokens("", 1)
    assert tokens(long, 4) <= special + 4
    marks = [
        {window.question_cut_off for window in windows(name, question, "rome", WindowLengths(60, 2, most))}
        for question, most in ((long, 4), (long, 50), (f"  {short} ", 20))
    ]
    assert marks == [{True}, {False}, {False}]


def test_a_window_without_the_answer_is_labelled_with_the_null_token():
    window = Window(0, {}, null=0, first=3, offsets=[(5, 9), (9, 12)])
    assert window.labels(5, 12) == (3, 4)
    assert window.labels(9, 12) == (4, 4)
    assert window.labels(10, 11) == (4, 4)
    assert window.labels(4, 9) == window.labels(9, 13) == (0, 0)


def questions(count: int = 6, **options) -> Dataset:
    return Dataset.from_list(list(toy_questions(count, seed=0, **options)), features=FEATURES)


def test_rows_of_windows_keep_their_questions():
    rows = questions(unanswerable=0.5, words=30)
    tokens = tokenize_questions(rows, toy_tokenizer(), LENGTHS, with_offsets=True)
    assert len(tokens) > len(rows)
    assert sorted(set(tokens["row"])) == list(range(len(rows)))
    found = list(windows_of(tokens))
    for row, label in zip(found, tokens["labels"], strict=True):
        answers = rows[row.row]["answers"]
        if label[0] != row.null:
            before, after = span(row, *label)
            assert rows[row.row]["context"][before:after].strip() == answers["text"][0]
    answered = {window.row for window, label in zip(found, tokens["labels"], strict=True) if label[0] > 0}
    assert answered == {number for number, row in enumerate(rows) if row["answers"]["text"]}


def test_training_needs_no_offsets():
    rows = questions()
    names = {"input_ids", "token_type_ids", "labels", "length"}
    assert set(tokenize_questions(rows, toy_tokenizer(), LENGTHS, with_offsets=False).column_names) == names
    both = tokenize_questions(rows, toy_tokenizer(), LENGTHS, with_offsets=True)
    assert set(both.column_names) == names | {"row", "null", "first", "offsets", "question_cut_off"}
    assert both["length"][:] == [len(ids) for ids in both["input_ids"]]


def test_rows_with_a_cut_question_are_counted_once_and_marked():
    rows = [*toy_questions(3, seed=0, words=40)]
    rows[2]["question"] = "where was the film that ann saw"
    rows = Dataset.from_list(rows, features=FEATURES)
    report = RowReport(kept=3)
    tokens = tokenize_questions(rows, toy_tokenizer(), LENGTHS, with_offsets=True, report=report)
    assert tokens["row"][:].count(2) > 1  # windows of the long question
    assert str(report) == "kept 3 of 3 rows, 1 of them cut off"
    assert [window.question_cut_off for window in windows_of(tokens)] == [row == 2 for row in tokens["row"]]


def test_batches_are_padded_on_the_right():
    tokens = tokenize_questions(questions(), toy_tokenizer(), LENGTHS, with_offsets=True)
    batch = WindowCollator(0, with_places=True)(list(tokens))
    assert batch["labels"].tolist() == tokens["labels"][:]
    assert batch["attention_mask"].sum(1).tolist() == tokens["length"][:]
    for row, (null, first, count) in enumerate(batch["places"].tolist()):
        assert (null, first) == (tokens[row]["null"], tokens[row]["first"])
        assert 2 * count == len(tokens[row]["offsets"])
    assert WindowCollator(0)(list(tokens)).keys() == batch.keys() - {"places"}
    assert batch["input_ids"].dtype == batch["labels"].dtype == torch.int64


def test_lengths_without_room_are_refused():
    with pytest.raises(
        UserError,
        match="max_length=13 has no room for 3 special tokens, max_question_length=6, doc_stride=5 and one "
        "more token; raise it to 15 or more",
    ):
        WindowLengths(13, 5, 6).check(toy_tokenizer())
    WindowLengths(15, 5, 6).check(toy_tokenizer())


def test_a_slow_tokenizer_is_named():
    class Slow:
        is_fast = False

    with pytest.raises(UserError, match=r"question answering needs a fast tokenizer, .*; Slow is slow"):
        LENGTHS.check(Slow())  # type: ignore[arg-type]
