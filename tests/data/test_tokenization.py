"""Byte-level BPE tokenizers, as plain AutoTokenizer loads them."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from vaswani.data.bpe_dropout import BpeDropout
from vaswani.data.text_codec import TextCodec, text_options
from vaswani.data.tokenization import (
    SPECIAL_TOKENS,
    _in_fixed_order,
    check_tags,
    load_tokenizers,
    save_tokenizers,
    train_tokenizer,
)
from vaswani.errors import UserError

ENGLISH = [
    "A dog runs through the snow.",
    "Two men are standing near the water, and a dog is watching.",
    "The dog, the man and the children are playing outside.",
    "A woman doesn't see the 12 birds of 1999!",
] * 5
GERMAN = [
    "Ein Hund rennt durch den Schnee.",
    "Zwei Männer stehen am Wasser, und ein Hund schaut zu.",
    "Der Hund, der Mann und die Kinder spielen draußen.",
    "Eine Frau sieht die 12 Vögel von 1999 nicht!",
] * 5
SPACES_AND_CONTROLS = [" ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u3000", "\x00", "\x1f", "\x7f", "\ufeff"]
MARKS_AND_JOINERS = [
    "\u200b",
    "\u200d",
    "\u200f",
    "\u0301",
    "\u0941",
    "e\u0301",
    "é",
    "\U0001f469\u200d\U0001f467",
]
WORDS = [
    "dog",
    "Hund",
    "don't",
    "1999",
    "...",
    ".",
    ",",
    "नमस्ते",
    "مرحبا",
    "你好",
    "😀",
    "ﬁ",
    "Ġ",
    "Ċ",
    "\U0010ffff",
]
AWKWARD_PIECES = [*SPECIAL_TOKENS, *SPACES_AND_CONTROLS, *MARKS_AND_JOINERS, *WORDS]


def mixed() -> Iterator[str]:
    for pair in zip(ENGLISH, GERMAN, strict=True):
        yield from pair


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    tokenizer = train_tokenizer(mixed(), 400)
    save_tokenizers(tokenizer, tokenizer, path)
    return path


@pytest.fixture(scope="module")
def tokenizer(directory) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(directory)


def round_trip(tokenizer: PreTrainedTokenizerBase, text: str) -> str:
    codec = TextCodec(tokenizer)
    return codec.decode(codec.token_ids([text]))[0]


# --- encode and decode ----------------------------------------------------------------------------


@settings(max_examples=500, deadline=None)
@given(text=st.text() | st.lists(st.sampled_from(AWKWARD_PIECES)).map("".join))
def test_every_text_survives_a_round_trip(tokenizer, text):
    assert round_trip(tokenizer, text) == text
    ids = tokenizer(text).input_ids  # the same, but for special tokens in the text
    assert ids == tokenizer.encode(text)
    is_plain = not any(token in text for token in SPECIAL_TOKENS)
    assert (ids == TextCodec(tokenizer).token_ids([text])[0]) == is_plain


@settings(max_examples=200, deadline=None)
@given(
    texts=st.lists(st.text() | st.sampled_from(AWKWARD_PIECES), min_size=1, max_size=4),
    p=st.floats(0.01, 1.0),
)
def test_every_text_survives_a_round_trip_with_padding_and_dropout(tokenizer, texts, p):
    batch = tokenizer(texts, padding=True, **text_options(tokenizer))
    assert tokenizer.batch_decode(batch.input_ids, skip_special_tokens=True) == texts
    dropout, rows = BpeDropout(tokenizer, p), TextCodec(tokenizer).token_ids(texts)
    split = dropout.split(rows, dropout.word_starts(rows), np.random.default_rng(0))
    assert tokenizer.batch_decode(split, skip_special_tokens=True) == texts


def test_text_that_looks_like_a_special_token_is_text(tokenizer):
    text = "a </s> b <pad> c <s>"
    (ids,) = TextCodec(tokenizer).token_ids([text])
    assert TextCodec(tokenizer).decode([ids]) == [text]
    assert ids.count(tokenizer.eos_token_id) == 1
    assert ids[-1] == tokenizer.eos_token_id
    assert tokenizer.pad_token_id not in ids
    assert tokenizer.bos_token_id not in ids


def test_special_tokens_in_a_text_are_encoded_as_special_tokens(tokenizer):
    """As TRL, which ends each text by `eos_token`, chat templates, and tokens that are added."""
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.add_special_tokens({"extra_special_tokens": ["<sep>"]})
    for token in ("</s>", "<pad>", "<sep>"):
        ids = tokenizer(f"one{token} two", add_special_tokens=False).input_ids
        assert ids.count(tokenizer.convert_tokens_to_ids(token)) == 1
    tokenizer.chat_template = "{% for message in messages %}<s>{{ message.content }}</s>{% endfor %}"
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "one two"}])["input_ids"]
    assert (ids[0], ids[-1]) == (tokenizer.bos_token_id, tokenizer.eos_token_id)


def test_special_tokens_in_the_corpus_do_not_become_merged_tokens():
    tokenizer = train_tokenizer(["hello</s>", "<s>hello <pad>"] * 50, 320)
    assert tokenizer.tokenize("hello</s>", split_special_tokens=True) == ["Ġhello", "<", "/", "s", ">"]
    assert tokenizer.tokenize("<pad>", split_special_tokens=True) == ["Ġ<", "pad", ">"]


def test_each_sequence_ends_with_one_end_token(tokenizer):
    assert tokenizer.convert_ids_to_tokens([0, 1, 2]) == ["<pad>", "<s>", "</s>"] == list(SPECIAL_TOKENS)
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1, 2)
    assert tokenizer.encode("") == [2]
    assert tokenizer.encode("dog", add_special_tokens=False) == tokenizer.encode("dog")[:-1]
    assert tokenizer("dog", text_target="dog").labels == tokenizer.encode("dog")


def test_a_batch_is_padded_right_with_a_mask_and_nothing_else(tokenizer):
    batch = tokenizer(["dog", "the dog and the children"], padding=True)
    assert set(batch) == {"input_ids", "attention_mask"}
    short, long = batch.input_ids
    assert short == tokenizer.encode("dog") + [0] * (len(long) - len(tokenizer.encode("dog")))
    assert batch.attention_mask[0] == [int(token != 0) for token in short]


# --- pieces: what may be one token ----------------------------------------------------------------


def test_a_word_is_the_same_token_at_the_beginning_and_inside(tokenizer):
    assert tokenizer.tokenize("dog and dog")[0] == tokenizer.tokenize("dog and dog")[2] == "Ġdog"
    assert tokenizer.tokenize("dog, dog.") == ["Ġdog", ",", "Ġdog", "."]


def test_each_digit_is_a_token(tokenizer):
    assert tokenizer.tokenize("of 1999") == ["Ġof", "Ġ1", "9", "9", "9"]


@pytest.mark.parametrize("word", ["नमस्ते", "می\u200cخواهم", "e\u0301te\u0301", "draußen"])
def test_marks_and_joiners_do_not_cut_a_word(tokenizer, word):
    pieces = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str(f" {word} {word}")
    assert len(pieces) == 2


def test_each_punctuation_mark_is_split_off(tokenizer):
    pieces = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str(' he said: "no!"')
    assert [piece for piece, _ in pieces] == ["Ġhe", "Ġsaid", ":", 'Ġ"', "no", "!", '"']


# --- training -------------------------------------------------------------------------------------


def test_the_vocabulary_has_the_requested_size():
    assert len(train_tokenizer(mixed(), 300)) == 300
    assert len(train_tokenizer(mixed(), 259)) == 259
    assert round_trip(train_tokenizer(mixed(), 259), "A dog!") == "A dog!"


def test_a_larger_vocabulary_gives_shorter_sequences():
    small, large = train_tokenizer(mixed(), 270), train_tokenizer(mixed(), 400)
    assert len(large.encode(ENGLISH[0])) < len(small.encode(ENGLISH[0]))


def test_min_frequency_keeps_rare_pairs_apart():
    texts = ["dog"] * 5 + ["cat"]
    assert train_tokenizer(texts, 300, min_frequency=1).tokenize("cat") == ["Ġcat"]
    assert train_tokenizer(texts, 300, min_frequency=2).tokenize("cat") != ["Ġcat"]
    assert train_tokenizer(texts, 300, min_frequency=2).tokenize("dog") == ["Ġdog"]


def test_model_max_length_is_where_truncation_cuts():
    text = "the dog and the children"
    assert len(train_tokenizer(mixed(), 400, model_max_length=3)(text, truncation=True).input_ids) == 3
    assert train_tokenizer(mixed(), 400)(text).input_ids == train_tokenizer(mixed(), 400).encode(text)


def test_batches_from_a_generator_give_the_same_tokenizer():
    def batches() -> Iterator[list[str]]:
        texts = list(mixed())
        for start in range(0, len(texts), 7):
            yield texts[start : start + 7]

    expected = train_tokenizer(list(mixed()), 400).backend_tokenizer.to_str()
    assert train_tokenizer(batches(), 400).backend_tokenizer.to_str() == expected
    assert train_tokenizer(mixed(), 400).backend_tokenizer.to_str() == expected


@pytest.mark.parametrize("kind", ["bpe", "unigram", "char"])
def test_the_same_texts_give_the_same_tokenizer(kind):
    """The library's hash tables have another order each time."""
    found = [train_tokenizer(mixed(), 400, kind=kind).backend_tokenizer.to_str() for _ in range(4)]
    assert found == found[:1] * 4


def test_unigram_scores_are_those_of_the_library():
    trained = Tokenizer(models.Unigram())
    bytes_ = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.UnigramTrainer(vocab_size=400, initial_alphabet=bytes_, show_progress=False)
    trained.train_from_iterator(["aaa bb", "aab bab"], trainer)
    expected = json.loads(trained.to_str())["model"]["vocab"]
    found = dict(_in_fixed_order(expected))
    assert found.keys() == dict(expected).keys()
    assert sorted(found.values()) == pytest.approx(sorted(score for _, score in expected))
    for piece, score in expected:
        if set(piece) <= set("ab") or piece == " b":
            assert found[piece] == pytest.approx(score)
    unused = [piece for piece in found if not set(piece) & set("ab")]
    assert unused == sorted(unused)


def test_an_error_in_the_corpus_is_not_swallowed():
    def broken() -> Iterator[str]:
        yield "a dog"
        raise UserError("row 2 cannot be read")

    with pytest.raises(UserError, match="row 2"):
        train_tokenizer(broken(), 300)


@pytest.mark.parametrize("texts", [[], iter(())])
def test_an_empty_corpus_is_an_error(texts):
    with pytest.raises(UserError, match="no texts"):
        train_tokenizer(texts, 300)


def test_a_vocabulary_without_room_for_the_bytes_is_an_error():
    with pytest.raises(UserError, match=r"vocab_size=258 .* vocab_size=259 or more"):
        train_tokenizer(ENGLISH, 258)


def test_the_vocabulary_of_a_unigram_model_is_as_small_as_asked_for():
    with pytest.raises(UserError, match=r"vocab_size=259 .* vocab_size=260 or more"):
        train_tokenizer(ENGLISH, 259, kind="unigram")
    assert len(train_tokenizer(ENGLISH, 260, kind="unigram")) == 260


# --- files ----------------------------------------------------------------------------------------


def test_a_shared_tokenizer_is_one_object(directory):
    source, target = load_tokenizers(directory)
    assert source is target
    assert len(source) == 400


def test_separate_tokenizers_load_with_plain_auto_tokenizer(tmp_path):
    save_tokenizers(train_tokenizer(ENGLISH, 300), train_tokenizer(GERMAN, 310), tmp_path)
    assert len(AutoTokenizer.from_pretrained(tmp_path)) == 300
    assert len(AutoTokenizer.from_pretrained(tmp_path, subfolder="target_tokenizer")) == 310
    source, target = load_tokenizers(tmp_path)
    assert (len(source), len(target)) == (300, 310)
    assert target.tokenize("Hund") == ["ĠHund"] != source.tokenize("Hund")


def test_a_source_tokenizer_saved_without_its_target_raises_an_error(tmp_path):
    """`Seq2SeqTrainer` saves its `processing_class` alone, and both vocabularies may be of one size."""
    save_tokenizers(train_tokenizer(ENGLISH, 300), train_tokenizer(GERMAN, 300), tmp_path / "trained")
    AutoTokenizer.from_pretrained(tmp_path / "trained").save_pretrained(tmp_path / "again")
    with pytest.raises(UserError, match=r"the tokenizer of sources alone.* copy the folder target_tokenizer"):
        load_tokenizers(tmp_path / "again")
    source, target = load_tokenizers(tmp_path / "trained")
    for saved in (source, target):
        save_tokenizers(saved, saved, tmp_path / "shared")
        assert load_tokenizers(tmp_path / "shared")[1].get_vocab() == saved.get_vocab()


def test_a_shared_tokenizer_replaces_separate_ones(tmp_path):
    source = train_tokenizer(ENGLISH, 300)
    save_tokenizers(source, train_tokenizer(GERMAN, 310), tmp_path)
    save_tokenizers(source, source, tmp_path)
    loaded = load_tokenizers(tmp_path)
    assert loaded[0] is loaded[1]


def test_a_folder_without_a_tokenizer_is_an_error(tmp_path):
    with pytest.raises(UserError, match="has no tokenizer"):
        load_tokenizers(tmp_path)
    with pytest.raises(UserError, match="is not a folder"):
        load_tokenizers(tmp_path / "missing")


@pytest.mark.parametrize("content", ["", "{}", '{"version": "1.0", "trunc', None])
def test_a_half_written_tokenizer_is_an_error(tmp_path, tokenizer, content):
    save_tokenizers(tokenizer, tokenizer, tmp_path)
    file = tmp_path / "tokenizer.json"
    file.unlink() if content is None else file.write_text(content)
    with pytest.raises(UserError, match=r"cannot be read|damaged or half-written|is missing") as error:
        load_tokenizers(tmp_path)
    assert "\n" not in str(error.value)


def test_padding_and_truncation_of_the_last_call_are_not_saved(tokenizer, tmp_path):
    tokenizer(ENGLISH, padding=True, truncation=True, max_length=7)
    save_tokenizers(tokenizer, tokenizer, tmp_path)
    saved = json.loads((tmp_path / "tokenizer.json").read_text())
    assert saved["padding"] is None
    assert saved["truncation"] is None


def test_dropout_is_never_saved(tokenizer, tmp_path):
    dropping = copy.deepcopy(tokenizer)
    dropping.backend_tokenizer.model.dropout = 0.5
    save_tokenizers(dropping, dropping, tmp_path)
    assert dropping.backend_tokenizer.model.dropout == 0.5
    assert json.loads((tmp_path / "tokenizer.json").read_text())["model"]["dropout"] is None


TAGGED = ["A man in blue walks.", ">>de<< two dogs run", ">>fr<< two men walk"] * 9


@pytest.mark.parametrize("kind", ["bpe", "unigram", "byte", "char"])
def test_a_tag_is_one_token_and_changes_no_other(kind, tmp_path):
    tags = [">>de<<", ">>fr<<"]
    train_tokenizer(TAGGED, vocab_size=290, kind=kind, tags=tags).save_pretrained(tmp_path)
    tokenizer, _ = load_tokenizers(tmp_path)
    codec = TextCodec(tokenizer)
    plain, *tagged = codec.token_ids(["two men", *(f"{tag} two men" for tag in tags)])
    assert tagged == [[tokenizer.get_vocab()[tag], *plain] for tag in tags]
    assert len(tokenizer) <= 290
    assert codec.decode([plain]) == ["two men"]
    without = train_tokenizer(TAGGED, vocab_size=288, kind=kind)
    assert TextCodec(without).token_ids(["two men"])[0] == plain


@pytest.mark.parametrize("tags", [[""], [">>de<< "], ["</s>"], [">>de<<", ">>de<<"]])
def test_invalid_or_repeated_tags_raise_an_error(tags):
    with pytest.raises(UserError, match=r"^source_tags="):
        check_tags(tags)
