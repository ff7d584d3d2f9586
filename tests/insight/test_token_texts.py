"""The texts of tokens, for every way in which vocabularies mark words."""

from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, models
from transformers import PreTrainedTokenizerFast

from given_tokenizers import bert, gpt2
from library_tokenizers import KINDS, SOURCES, TARGETS
from vaswani.data.text_codec import TextCodec
from vaswani.data.tokenization import load_tokenizers, train_tokenizer
from vaswani.insight.token_texts import TokenTexts, token_texts, word_parts


def texts_of(tokenizer, text: str, side: str = "source") -> TokenTexts:
    codec = TextCodec(tokenizer, side)
    return token_texts(codec, codec.token_ids([text])[0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("side", ["source", "target"])
def test_words_are_those_of_the_text(kind: str, side: str, tmp_path: Path) -> None:
    """Of SentencePiece, with one vocabulary or two, and of merges with "</w>"; special tokens stay single."""
    KINDS[kind](tmp_path)
    tokenizer = load_tokenizers(tmp_path)[0]
    text = SOURCES[0] if side == "source" else TARGETS[0]
    found = texts_of(tokenizer, text, side)
    special = {tokenizer.eos_token, tokenizer.sep_token, "en_XX", "de_DE", "__en__", "__de__"}
    special |= {"eng_Latn", "deu_Latn", "</s>"}
    assert [word for word in found.words if word not in special] == text.split()
    assert [word for word in found.words if word in special]
    assert not any(mark in token for token in found.tokens for mark in ("▁", "</w>"))
    if kind != "fsmt":
        assert len(found.tokens) > len(found.words)


@pytest.mark.parametrize("kind", ["bpe", "unigram", "char", "byte"])
def test_bytes_become_characters_and_words(kind: str) -> None:
    tokenizer = train_tokenizer([SOURCES + TARGETS], 300, kind=kind)
    found = texts_of(tokenizer, "große 中文 мир don't 2024-03-05, مرحبا हिन्दी")
    words = ["große", "中", "文", "мир", "don't", "2024", "-", "03", "-", "05", ",", "مرحبا", "हिन्दी", "</s>"]
    assert [*found.words] == words
    start = found.tokens.index("中 1/3")
    assert [*found.tokens[start : start + 3]] == ["中 1/3", "中 2/3", "中 3/3"]
    assert [found.words[number] for number in found.word_of[start : start + 3]] == ["中"] * 3


def test_word_pieces_join_and_unknown_tokens_stay_single(tmp_path: Path) -> None:
    tokenizer = bert(tmp_path)
    tokenizer.add_tokens(["##les"])
    ids = tokenizer.convert_tokens_to_ids(["[CLS]", "the", "cat", "##les", "[UNK]", "[UNK]", "[SEP]"])
    found = token_texts(TextCodec(tokenizer), ids)
    assert found.tokens == ("[CLS]", "the", "cat", "les", "[UNK]", "[UNK]", "[SEP]")
    assert found.words == ("[CLS]", "the", "catles", "[UNK]", "[UNK]", "[SEP]")


def test_tokens_without_text_are_visible(tmp_path: Path) -> None:
    """A line feed, a space at the end, and a byte of no character; a space joins the word that follows."""
    tokenizer = gpt2(tmp_path)
    ids = tokenizer("a\nb ")["input_ids"]
    ids += tokenizer.convert_tokens_to_ids(["Ã"])
    found = token_texts(TextCodec(tokenizer), ids)
    assert found.tokens == ("a", "↵", "b", "␣", "0xC3")
    assert found.words == ("a", "↵", "b", "�")


def test_invisible_characters_are_shown_by_their_code_points(tmp_path: Path) -> None:
    """Alone or in several bytes; an override of the direction would turn the number of its token around."""
    tokenizer = gpt2(tmp_path)
    tokenizer.add_tokens(["\u200d", "\ufe0f", "cat\u200d", "\u202ecat", "\u2060\u200b"])
    ids = tokenizer.convert_tokens_to_ids(["\u200d", "\ufe0f", "cat\u200d", "\u202ecat", "\u2060\u200b"])
    found = token_texts(TextCodec(tokenizer), ids)
    assert found.tokens == ("U+200D", "U+FE0F", "cat\u200d", "\u202ecat", "U+2060 U+200B")
    of_bytes = texts_of(train_tokenizer([SOURCES], 300, kind="byte"), "\u202e")
    assert of_bytes.tokens[:3] == ("U+202E 1/3", "U+202E 2/3", "U+202E 3/3")
    assert of_bytes.words[0] == "U+202E"


def test_no_tokens_give_no_texts(tmp_path: Path) -> None:
    assert token_texts(TextCodec(gpt2(tmp_path)), []) == TokenTexts((), (), ())


def test_parts_of_words_are_told_from_words(tmp_path: Path) -> None:
    pieces = word_parts(TextCodec(bert(tmp_path)))
    assert [pieces(token) for token in ("the", "##ing", "[SEP]")] == [
        ("the", False),
        ("ing", True),
        ("[SEP]", False),
    ]
    tokenizer = gpt2(tmp_path)
    tokenizer.add_tokens(AddedToken("##", normalized=False))  # no mark of a part there
    of_bytes = word_parts(TextCodec(tokenizer))
    assert [of_bytes(token) for token in ("Ġthe", "the", "##", "<|end|>")] == [
        ("the", False),
        ("the", True),
        ("##", True),
        ("<|end|>", False),
    ]
    plain = Tokenizer(models.WordLevel({"<unk>": 0, "the": 1}, unk_token="<unk>"))
    unmarked = word_parts(TextCodec(PreTrainedTokenizerFast(tokenizer_object=plain, unk_token="<unk>")))
    assert unmarked("the") == ("the", False)
