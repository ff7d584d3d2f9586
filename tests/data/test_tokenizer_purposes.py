"""Tokenizers of language models: special tokens, masks, pairs of texts, and the bytes of tokens."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from toy_texts import toy_documents
from vaswani.data.text_codec import TextCodec
from vaswani.data.tokenization import (
    byte_tokenizer,
    bytes_in_front,
    bytes_of_tokens,
    save_tokenizers,
    train_tokenizer,
)
from vaswani.errors import UserError

TEXTS = [*toy_documents(40), "the capital of France is Paris, and (the) cat's 12 dogs."]


@pytest.fixture(scope="module", params=["trained", "bytes"])
def make(request, tmp_path_factory):
    """Makes a tokenizer for a purpose, as plain `AutoTokenizer` loads it."""

    def make_one(purpose: str, **options) -> PreTrainedTokenizerBase:
        if request.param == "bytes":
            tokenizer = byte_tokenizer(purpose=purpose, **options)
        else:
            tokenizer = train_tokenizer(TEXTS, 400, purpose=purpose, **options)
        folder = tmp_path_factory.mktemp("tokenizer")
        save_tokenizers(tokenizer, tokenizer, folder)
        return AutoTokenizer.from_pretrained(folder)

    return make_one


def test_an_encoder_reads_one_text_or_two(make):
    tokenizer = make("masked", token_types=True)
    one = tokenizer("the dog")
    assert tokenizer.decode(one.input_ids).startswith("<s>")
    assert one.input_ids[0] == tokenizer.cls_token_id == tokenizer.bos_token_id == 1
    assert one.input_ids[-1] == tokenizer.sep_token_id == tokenizer.eos_token_id == 2
    first, second = len(one.input_ids), len(tokenizer("cat").input_ids) - 1
    two = tokenizer("the dog", "cat")
    assert two.input_ids == one.input_ids + tokenizer("cat").input_ids[1:]
    assert two.token_type_ids == [0] * first + [1] * second
    assert "token_type_ids" not in make("masked")("the dog", "cat")
    assert tokenizer.get_special_tokens_mask(two.input_ids, already_has_special_tokens=True).count(1) == 3


def test_causal_tokenizers_add_a_begin_token_and_no_end_token(make):
    tokenizer = make("causal")
    (ids,) = TextCodec(tokenizer).token_ids(["the </s> dog"])
    assert ids[0] == tokenizer.bos_token_id
    assert tokenizer.eos_token_id not in ids
    assert tokenizer.mask_token is None
    assert tokenizer.decode(ids, skip_special_tokens=True) == "the </s> dog"


@settings(max_examples=200, deadline=None)
@given(prompt=st.text(), more=st.text() | st.sampled_from([" is Paris", "is", " "]))
def test_decoded_continuations_join_their_prompt_exactly(prompt, more):
    """A text's tokens, wherever they are cut between characters, are decoded to its parts."""
    tokenizer = trained_once("causal")
    first, second = TextCodec(tokenizer).token_ids([prompt, more], add_special_tokens=False)
    assert tokenizer.decode(first) + tokenizer.decode(second) == prompt + more


def test_a_mask_stands_for_a_word(make):
    tokenizer = make("masked")
    assert tokenizer.mask_token_id == 3
    text = "the capital of France is <mask>, and (<mask>) cat"
    ids = tokenizer(text).input_ids
    assert ids.count(3) == 2
    parts = ["the capital of France is", ", and (", ") cat"]
    found = tokenizer.decode(ids, skip_special_tokens=True)
    spaces = "".join(parts) if len(tokenizer) > 300 else "the capital of France is , and () cat"
    assert found == spaces
    in_corpus = tokenizer(text, split_special_tokens=True).input_ids  # as it is tokenized for training
    assert 3 not in in_corpus
    assert tokenizer(text).input_ids == ids


def test_tokens_after_a_mask_are_those_of_running_text():
    tokenizer = train_tokenizer(TEXTS * 4, 600, purpose="masked")
    whole = tokenizer("the capital of France, and").input_ids
    masked = tokenizer("the <mask> of France, and").input_ids
    assert masked == [*whole[:2], tokenizer.mask_token_id, *whole[3:]]


@settings(max_examples=200, deadline=None)
@given(text=st.text(min_size=1))
def test_byte_tokens_survive_a_round_trip_and_are_counted(text):
    tokenizer = byte_tokenizer(purpose="causal")
    (ids,) = TextCodec(tokenizer).token_ids([text])
    assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert len(ids) == 1 + len(text.encode())
    assert bytes_of_tokens(tokenizer)[ids].sum() == len(text.encode())
    assert bytes_in_front(tokenizer) == 0


@settings(max_examples=200, deadline=None)
@given(text=st.text(min_size=1) | st.sampled_from(TEXTS))
@pytest.mark.parametrize(("purpose", "in_front"), [("causal", 0), ("translation", 1)])
def test_the_bytes_of_trained_tokens_are_counted(purpose, in_front, text):
    tokenizer = trained_once(purpose)
    assert bytes_in_front(tokenizer) == in_front
    (ids,) = TextCodec(tokenizer).token_ids([text])
    assert bytes_of_tokens(tokenizer)[ids].sum() - in_front == len(text.encode())


@cache
def trained_once(purpose: str) -> PreTrainedTokenizerBase:
    return train_tokenizer(TEXTS, 500, purpose=purpose)


def test_a_byte_tokenizer_has_bytes_and_special_tokens_alone():
    assert len(byte_tokenizer(purpose="masked")) == 260
    assert len(byte_tokenizer(purpose="causal")) == 259
    tokenizer = byte_tokenizer(purpose="masked", model_max_length=8)
    assert tokenizer.model_max_length == 8
    assert len(tokenizer("a long text", truncation=True).input_ids) == 8


def test_a_vocabulary_has_room_for_the_mask():
    with pytest.raises(UserError, match="256 bytes and 4 special tokens; give vocab_size=260 or more"):
        train_tokenizer(TEXTS, 259, purpose="masked")
    assert len(train_tokenizer(TEXTS, 260, purpose="masked")) == 260
