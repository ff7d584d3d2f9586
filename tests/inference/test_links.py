"""Sets of links: symmetrization against the published pseudocode, error rates by hand, Pharaoh's format."""

import random

import pytest

from vaswani.errors import UserError
from vaswani.inference.align.links import (
    METHODS,
    AlignmentErrors,
    GoldLinks,
    check_inside,
    read_gold,
    symmetrize,
    to_pharaoh,
)

SIZE = 6


def reference(forward: set, backward: set, method: str) -> set:
    """Koehn's pseudocode of grow-diag-final (Moses, "Symmetrizing word alignments"), by tables."""
    union, aligned = forward | backward, set(forward & backward)
    cells = [(source, target) for target in range(SIZE) for source in range(SIZE)]
    around = [(-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1)]

    def source_is_free(source: int) -> bool:
        return not any((source, target) in aligned for target in range(SIZE))

    def target_is_free(target: int) -> bool:
        return not any((source, target) in aligned for source in range(SIZE))

    if method == "union":
        return union
    if method == "intersection":
        return aligned
    while True:
        before = set(aligned)
        for source, target in cells:
            if (source, target) in aligned:
                for step in around:
                    new = source + step[0], target + step[1]
                    if new in union and (source_is_free(new[0]) or target_is_free(new[1])):
                        aligned.add(new)
        if aligned == before:
            break
    if method != "grow-diag":
        both = all if method == "grow-diag-final-and" else any
        for links in (forward, backward):
            for new in cells:
                if new in links and both([source_is_free(new[0]), target_is_free(new[1])]):
                    aligned.add(new)
    return aligned


def random_links(generator: random.Random, *, by_target: bool) -> set:
    """A link for each word of one side, mostly near the diagonal."""
    links = set()
    for word in range(SIZE):
        other = min(SIZE - 1, max(0, word + generator.choice([0, 0, 0, 1, -1, generator.randrange(-5, 6)])))
        links.add((other, word) if by_target else (word, other))
    return links


@pytest.mark.parametrize("method", METHODS)
def test_symmetrization_equals_the_published_algorithm(method: str) -> None:
    generator = random.Random(0)
    for _ in range(300):
        forward = random_links(generator, by_target=True)
        backward = random_links(generator, by_target=False)
        assert symmetrize(forward, backward, method) == reference(forward, backward, method)


def test_directions_by_hand() -> None:
    forward = {(0, 0), (1, 1), (1, 2), (4, 4)}
    backward = {(0, 0), (1, 1), (2, 2), (3, 5), (4, 5)}
    expected = {
        "intersection": "0-0 1-1",
        "union": "0-0 1-1 1-2 2-2 3-5 4-4 4-5",
        "grow-diag": "0-0 1-1 1-2 2-2",  # neighbours that join a word without a link
        "grow-diag-final": "0-0 1-1 1-2 2-2 3-5 4-4 4-5",  # 4-5 joins no free word at the end ...
        "grow-diag-final-and": "0-0 1-1 1-2 2-2 3-5 4-4",  # two free words
    }
    # ... of the target, as 3-5 came first, but its source word 4 has a link too.
    expected["grow-diag-final"] = "0-0 1-1 1-2 2-2 3-5 4-4"
    found = {method: to_pharaoh(symmetrize(forward, backward, method)) for method in METHODS}
    assert found == expected


def test_a_link_that_is_added_grows_in_the_same_pass() -> None:
    forward, backward = {(0, 0), (1, 1), (2, 2), (3, 3)}, {(0, 0), (1, 3), (2, 1), (3, 3)}
    assert to_pharaoh(symmetrize(forward, backward, "grow-diag")) == "0-0 1-1 2-1 2-2 3-3"


def test_the_methods_differ_and_are_nested() -> None:
    generator = random.Random(1)
    sizes = dict.fromkeys(METHODS, 0)
    for _ in range(200):
        forward = random_links(generator, by_target=True)
        backward = random_links(generator, by_target=False)
        found = {method: symmetrize(forward, backward, method) for method in METHODS}
        assert found["intersection"] <= found["grow-diag"] <= found["grow-diag-final-and"]
        assert found["grow-diag-final"] <= found["union"]
        for method, links in found.items():
            sizes[method] += len(links)
    assert len(set(sizes.values())) == len(sizes)


def test_error_rates_by_hand() -> None:
    errors = AlignmentErrors()
    errors.add({(0, 0), (1, 1), (2, 3)}, read_gold("0-0 1p1 2-2", "line 1"))
    errors.add({(0, 1)}, read_gold("0p1", "line 2"))
    assert (errors.found, errors.sure, errors.found_sure, errors.found_possible) == (4, 2, 1, 3)
    assert errors.precision == pytest.approx(3 / 4)
    assert errors.recall == pytest.approx(1 / 2)
    assert errors.error_rate == pytest.approx(1 - (1 + 3) / (4 + 2))
    assert str(errors) == "precision 75.00, recall 50.00, alignment error rate 33.33"
    nothing = AlignmentErrors()
    assert (nothing.precision, nothing.recall, nothing.error_rate) == (1.0, 1.0, 0.0)


def test_gold_links_are_read_and_checked() -> None:
    gold = read_gold(" 0-0 10p3  2-1 ", "line 1")
    assert gold == GoldLinks(frozenset({(0, 0), (2, 1)}), frozenset({(0, 0), (2, 1), (10, 3)}))
    assert read_gold("", "line 1") == GoldLinks(frozenset(), frozenset())
    assert to_pharaoh(gold.possible) == "0-0 2-1 10-3"
    for word in ("0", "0-", "0:0", "a-b", "-1-0", "1-2-3", "٣-١"):
        with pytest.raises(UserError, match=r"line 7 holds .*; expected links such as 0-0"):
            read_gold(f"0-0 {word}", "line 7")
    check_inside(gold, 11, 4, "line 7")
    for sizes in ((10, 4), (11, 3)):
        with pytest.raises(UserError, match="line 7 links words 10 and 3, and the pair has"):
            check_inside(gold, *sizes, "line 7")


def test_an_unknown_method() -> None:
    with pytest.raises(
        UserError, match="symmetrize=grow is unknown; expected intersection, union, grow-diag"
    ):
        symmetrize(set(), set(), "grow")
