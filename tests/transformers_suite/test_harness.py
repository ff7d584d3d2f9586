"""The harness itself: it notices a skip that no peer shares, and its stand-ins are whole."""

import unittest
from dataclasses import fields

from transformers import PreTrainedConfig

from . import peers as library
from . import test_vaswani, upstream


def run(case: type[unittest.TestCase], test: str) -> unittest.TestResult:
    result = unittest.TestResult()
    case(test).run(result)
    return result


def switched_off(case: type[unittest.TestCase]) -> set[str]:
    """The tests that a decorator skips before they start."""
    names = unittest.TestLoader().getTestCaseNames(case)
    return {name for name in names if getattr(getattr(case, name), "__unittest_skip__", False)}


def test_a_skip_that_the_peers_share_is_a_skip():
    class WithoutRotaryPositions(library.MarianTest):
        peers = (library.BartTest,)

    result = run(WithoutRotaryPositions, "test_model_rope_with_partial_rotation")
    assert result.skipped
    assert result.wasSuccessful()


def test_a_skip_that_a_peer_does_not_share_is_a_failure():
    class WithoutAttentions(library.MarianTest):
        peers = (library.BartTest,)
        has_attentions = False

    result = run(WithoutAttentions, "test_attention_outputs")
    assert not result.skipped
    ((_, message),) = result.failures
    assert "BartTest does not skip this test" in message


def test_ours_run_every_test_that_the_peers_run():
    peers = {
        (test_vaswani.VaswaniTest, test_vaswani.VaswaniVariantTest): (
            library.MarianTest,
            library.BartTest,
        ),
        (test_vaswani.VaswaniEncoderTest, test_vaswani.VaswaniEncoderVariantTest): (library.BertTest,),
        (test_vaswani.VaswaniDecoderTest, test_vaswani.VaswaniDecoderVariantTest): (library.GPT2Test,),
    }
    for ours, peer in (
        (ours, peer) for suites, theirs in peers.items() for ours in suites for peer in theirs
    ):
        assert peer in ours.peers
        names, expected = (unittest.TestLoader().getTestCaseNames(case) for case in (ours, peer))
        assert set(names) >= set(expected)
        assert switched_off(ours) == switched_off(peer)


def test_the_common_config_fields_are_all_given_and_none_at_its_default():
    defaults = {field.name: field.default for field in fields(PreTrainedConfig)}
    missing = set(defaults) - set(upstream.CONFIG_COMMON_KWARGS)
    assert missing == {"transformers_version"}  # written by the library alone
    for name, value in upstream.CONFIG_COMMON_KWARGS.items():
        assert name not in defaults or value != defaults[name]
