"""The peers pass this project's own checks; the library itself runs the mixins on them."""

import unittest

import pytest

from . import peers

CASES = (peers.MarianTest, peers.BartTest, peers.BertTest, peers.GPT2Test)


def checks_of_ours(case: type[unittest.TestCase]) -> list[str]:
    """The tests that are written here, and the one that takes its batch from here."""
    names = unittest.TestLoader().getTestCaseNames(case)
    here = __package__ + "."
    ours = [name for name in names if getattr(case, name).__module__.startswith(here)]
    return [*ours, "test_training_overfit"] if case is peers.MarianTest else ours


@pytest.mark.parametrize(("case", "name"), [(case, name) for case in CASES for name in checks_of_ours(case)])
def test_a_peer_passes(case: type[unittest.TestCase], name: str) -> None:
    result = unittest.TestResult()
    case(name).run(result)
    assert result.testsRun == 1
    assert result.wasSuccessful(), result.failures + result.errors
    assert not result.skipped
