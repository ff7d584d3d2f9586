"""Choices that are spread evenly over a range."""

from collections import Counter
from itertools import pairwise

import pytest
from datasets import Dataset

from vaswani.data.evenly_spread import evenly_spread, limit_rows


@pytest.mark.parametrize(
    ("of", "layers"),
    [
        (12, [0, 2, 4, 7, 9, 11]),  # DistilBERT
        (12, [0, 6, 11]),  # Shleifer & Rush
        (16, [0, 5, 10, 15]),
        (6, [0, 2, 5]),
        (12, [0]),
        (1, [0]),
    ],
)
def test_layers_of_students_are_those_of_the_papers(of: int, layers: list[int]) -> None:
    assert evenly_spread(of, len(layers)) == layers


def test_choices_are_distinct_and_reach_from_first_to_last() -> None:
    for of in range(1, 30):
        for number in range(2, of + 1):
            layers = evenly_spread(of, number)
            assert layers == sorted(set(layers))
            assert (len(layers), layers[0], layers[-1]) == (number, 0, of - 1)
            gaps = [after - before for before, after in pairwise(layers)]
            assert max(gaps) - min(gaps) <= 1


def test_at_most_all_items_are_chosen() -> None:
    assert evenly_spread(10, 20) == list(range(10))
    assert evenly_spread(10, 5) == [0, 2, 4, 7, 9]


@pytest.mark.parametrize(("directions", "most"), [(3, 200), (3, 100), (6, 100)])
def test_each_direction_has_its_share_of_evenly_spread_rows(directions: int, most: int) -> None:
    names = [f"en-{number}" for number in range(directions)] * 100
    chosen = limit_rows(Dataset.from_dict({"direction": names, "row": range(len(names))}), most)
    counts = Counter(chosen["direction"][:]).values()
    assert len(counts) == directions
    assert max(counts) - min(counts) <= 1
    assert chosen["row"][:] == sorted(chosen["row"][:])
    of_one = [
        row for row, name in zip(chosen["row"][:], chosen["direction"][:], strict=True) if name == "en-0"
    ]
    gaps = [after - before for before, after in pairwise(of_one)]
    assert max(gaps) - min(gaps) <= directions  # of one row of the table
