"""Assignment of tokens to words, with any white space, overlaps and gaps between them."""

import pytest
import torch

from vaswani.inference.embed.word_vectors import (
    SUBTOKEN_POOLINGS,
    Sentence,
    WordVectors,
    as_sentence,
    stack_word_vectors,
    tokens_of_words,
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("one two", ["one", "two"]),
        ("  one\t\u3000two \n", ["one", "two"]),
        ("héllo, 日本!", ["héllo,", "日本!"]),
        ("", []),
        (" ", []),
    ],
)
def test_white_space_separates_words(text: str, words: list[str]) -> None:
    sentence = as_sentence(text)
    assert (sentence.text, sentence.words) == (text, words)


@pytest.mark.parametrize("words", [["one", "two"], ["a b", "c"], ["", "one", ""], [" ", " "], []])
def test_given_words_are_kept_as_they_are(words: list[str]) -> None:
    sentence = as_sentence(words)
    assert (sentence.text, sentence.words) == (" ".join(words), words)


def test_a_reversed_text_has_its_words_in_their_order() -> None:
    backward = as_sentence("one  two").reversed()
    assert (backward.text, backward.words) == ("owt  eno", ["eno", "owt"])


@pytest.mark.parametrize(
    ("spans", "offsets", "expected"),
    [
        ([(0, 3), (4, 7)], [(0, 2), (2, 3), (4, 7)], [[0, 1], [2]]),
        ([(0, 3), (4, 7)], [(0, 3), (3, 7)], [[0], [1]]),  # the space belongs to the token after it
        ([(0, 3), (4, 7)], [(0, 0), (0, 3), (3, 4), (4, 7), (0, 0)], [[1], [3]]),  # special tokens; a space
        ([(0, 3), (4, 7)], [(0, 7)], [[0], [0]]),  # one token spells both
        ([(0, 3), (4, 7)], [(4, 7)], [[], [0]]),  # the tokenizer dropped the first
        ([(0, 3), (3, 3)], [(0, 3)], [[0], []]),  # an empty word
        ([(0, 1)], [(0, 1), (0, 1), (0, 1)], [[0, 1, 2]]),  # bytes of one character
    ],
)
def test_tokens_are_assigned_to_words_by_their_characters(
    spans: list[tuple[int, int]], offsets: list[tuple[int, int]], expected: list[list[int]]
) -> None:
    assert tokens_of_words(Sentence("one two", spans), offsets) == expected


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [("first", [1.0, 2.0]), ("last", [5.0, 0.0]), ("first_last", [1.0, 2.0, 5.0, 0.0]), ("mean", [3.0, 2.0])],
)
def test_a_word_gets_one_vector_of_its_tokens(pooling: str, expected: list[float]) -> None:
    states = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 0.0]])
    assert SUBTOKEN_POOLINGS[pooling](states).tolist() == expected


def test_vectors_of_several_models_are_concatenated() -> None:
    parts = [
        [WordVectors(["a", "b"], torch.zeros(2, 3)), WordVectors([], torch.zeros(0, 3))],
        [WordVectors(["a", "b"], torch.ones(2, 1)), WordVectors([], torch.ones(0, 1))],
    ]
    two, none = stack_word_vectors(parts)
    assert two.words == ["a", "b"]
    assert two.vectors.tolist() == [[0, 0, 0, 1]] * 2
    assert (none.words, none.vectors.shape) == ([], (0, 4))
    parts = [[WordVectors(["a"], torch.tensor([[3.0]]))], [WordVectors(["a"], torch.tensor([[0.0, 4.0]]))]]
    (one,) = stack_word_vectors(parts, normalize=True)
    torch.testing.assert_close(one.vectors, torch.tensor([[0.6, 0.0, 0.8]]))
