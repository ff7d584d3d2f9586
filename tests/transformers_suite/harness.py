"""Small models for the mixins to test, and the rule about skips.

A configuration written with BART's field names serves this project's encoder-decoder, MarianMT and BART
alike, so that all are tested in the same shape and with the same settings. Encoders and decoders are beside
BERT and GPT-2, whose fields have other names.
"""

import tempfile
import unittest
from typing import Any, ClassVar

import torch
from transformers import PreTrainedConfig, set_seed
from transformers.testing_utils import torch_device

from .generation_checks import CausalGenerationChecks, Seq2SeqGenerationChecks
from .upstream import ConfigTester, ModelTesterMixin, TrainingTesterMixin

PAD, START, END = 0, 1, 2
FIRST_WORD = 3

SMALL_SHAPE = {
    "vocab_size": 99,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 37,
    "decoder_ffn_dim": 37,
    "max_position_embeddings": 64,
    "pad_token_id": PAD,
    "bos_token_id": START,
    "eos_token_id": END,
    "decoder_start_token_id": START,
}


class Seq2SeqModelTester:
    """Makes configurations and inputs; the mixins read its attributes by these names."""

    batch_size = 13
    encoder_seq_length = 9
    decoder_seq_length = seq_length = 7
    hidden_size = SMALL_SHAPE["d_model"]
    num_hidden_layers = SMALL_SHAPE["encoder_layers"]
    num_attention_heads = SMALL_SHAPE["encoder_attention_heads"]
    is_training = True

    def __init__(self, config_class: type[PreTrainedConfig], settings: dict[str, object], head_class: type):
        self.config_class = config_class
        self.settings = SMALL_SHAPE | settings
        self.causal_lm_class = head_class  # the name under which `TrainingTesterMixin` finds what to train

    def get_config(self, dropout: float = 0.0) -> PreTrainedConfig:
        """Without dropout by default: the overfitting test takes that, and expects gradients to vanish."""
        return self.config_class(**self.settings, dropout=dropout, attention_dropout=dropout)

    def prepare_config_and_inputs_for_common(self) -> tuple[PreTrainedConfig, dict[str, torch.Tensor]]:
        """Random sources and targets; in both, every second row is padded on the right."""
        config = self.get_config(dropout=0.1)
        target_vocab_size = getattr(config, "decoder_vocab_size", config.vocab_size)
        source, source_mask = self.random_rows(self.encoder_seq_length, config.vocab_size)
        target, target_mask = self.random_rows(self.decoder_seq_length, target_vocab_size)
        target[:, 0] = START
        return config, {
            "input_ids": source,
            "attention_mask": source_mask,
            "decoder_input_ids": target,
            "decoder_attention_mask": target_mask,
        }

    def random_rows(self, length: int, vocab_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Token ids and their mask, int64 [batch_size, length]."""
        rows = torch.randint(FIRST_WORD, vocab_size, (self.batch_size, length), device=torch_device)
        rows[0::2, -1] = END
        rows[1::2, -3] = END
        rows[1::2, -2:] = PAD
        return rows, (rows != PAD).long()


class Suite(ModelTesterMixin, TrainingTesterMixin, unittest.TestCase):
    """The mixins' tests for one family; a subclass names the classes and their settings.

    Where `peers` are named, a test may skip only if each of them skips it too: else the skip is a failure.
    """

    config_class: type[PreTrainedConfig]
    settings: ClassVar[dict[str, object]] = {}
    peers: tuple[type[unittest.TestCase], ...] = ()
    model_tester: Any = None

    def skipTest(self, reason: str) -> None:
        """Skip, unless a peer does not."""
        for peer in self.peers:
            if not skips(peer, self._testMethodName):
                self.fail(f"skipped ({reason}), but {peer.__name__} does not skip this test")
        super().skipTest(reason)

    def test_config(self):
        ConfigTester(self, self.config_class, **self.model_tester.settings).run_common_tests()


class Seq2SeqSuite(Seq2SeqGenerationChecks, Suite):
    """For encoder-decoders."""

    all_model_classes: tuple[type, type]  # the base model, then the model with the language modelling head
    is_encoder_decoder = True

    def setUp(self):
        set_seed(0)
        head_class = self.all_model_classes[1]
        self._torch_compile_train_cls = head_class
        self.model_tester = Seq2SeqModelTester(self.config_class, self.settings, head_class)
        if self._testMethodName.startswith("test_eager_matches_sdpa_inference"):
            # It gives the decoder the source's mask, which is refused unless it has the target's length.
            self.model_tester.decoder_seq_length = self.model_tester.encoder_seq_length

    def _create_text_training_batch(
        self, batch_size: int, seq_length: int, vocab_size: int
    ) -> dict[str, torch.Tensor]:
        """The mixin's batch is a decoder's; make it an encoder-decoder's.

        The test then generates from a source of one token, the first, and expects the whole sequence, start
        token included. So training shows the encoder that token alone, and the labels are one step ahead.
        """
        tokens = super()._create_text_training_batch(batch_size, seq_length, vocab_size)["input_ids"]
        assert tokens[0, 0] == START
        first_only = torch.zeros_like(tokens)
        first_only[:, 0] = 1
        return {
            "input_ids": tokens,
            "attention_mask": first_only,
            "decoder_input_ids": tokens[:, :-1],
            "labels": tokens[:, 1:].contiguous(),
        }

    @torch.no_grad()
    def test_decoding_with_a_cache_changes_nothing(self):
        """Several new tokens at once, after a past, over padded sources and targets."""
        for model_class in self.all_model_classes:
            config, inputs = self.model_tester.prepare_config_and_inputs_for_common()
            model = model_class(config).to(torch_device).eval()
            whole = model(**inputs, use_cache=False)[0]

            target, mask = inputs.pop("decoder_input_ids"), inputs.pop("decoder_attention_mask")
            past = model(
                **inputs, decoder_input_ids=target[:, :4], decoder_attention_mask=mask[:, :4], use_cache=True
            )
            rest = model(
                **inputs,
                decoder_input_ids=target[:, 4:],
                decoder_attention_mask=mask,
                past_key_values=past.past_key_values,
            )[0]
            seen = mask[:, 4:].bool()  # what stands on padding has no meaning
            torch.testing.assert_close(rest[seen], whole[:, 4:][seen], atol=1e-5, rtol=1e-4)

    @torch.no_grad()
    def test_encoder_and_decoder_save_and_load_alone(self):
        config, inputs = self.model_tester.prepare_config_and_inputs_for_common()
        model = self.all_model_classes[0](config).to(torch_device).eval()
        expected = model(**inputs)
        reloaded = {}
        for name in ("encoder", "decoder"):
            with tempfile.TemporaryDirectory() as folder:
                stack = getattr(model, name)
                stack.save_pretrained(folder)
                reloaded[name] = type(stack).from_pretrained(folder).to(torch_device).eval()
        encoded = reloaded["encoder"](inputs["input_ids"], attention_mask=inputs["attention_mask"])[0]
        decoded = reloaded["decoder"](
            input_ids=inputs["decoder_input_ids"],
            attention_mask=inputs["decoder_attention_mask"],
            encoder_hidden_states=encoded,
            encoder_attention_mask=inputs["attention_mask"],
        )[0]
        torch.testing.assert_close(encoded, expected.encoder_last_hidden_state)
        torch.testing.assert_close(decoded, expected.last_hidden_state)


class SingleStackTester:
    """Makes configurations and inputs of an encoder or a decoder, as `Seq2SeqModelTester` does."""

    batch_size = 13
    seq_length = 7
    hidden_size = SMALL_SHAPE["d_model"]
    num_hidden_layers = 2
    num_attention_heads = 4
    num_choices = 4
    is_training = True

    def __init__(self, config_class: type[PreTrainedConfig], settings: dict[str, object]):
        self.config_class = config_class
        tokens = {"vocab_size": 99, "pad_token_id": PAD, "bos_token_id": START, "eos_token_id": END}
        self.settings = {**tokens, **settings}

    def get_config(self) -> PreTrainedConfig:
        return self.config_class(**self.settings)

    def prepare_config_and_inputs_for_common(self) -> tuple[PreTrainedConfig, dict[str, torch.Tensor]]:
        """Random rows, every second one padded on the right."""
        config = self.get_config()
        rows, mask = Seq2SeqModelTester.random_rows(self, self.seq_length, config.vocab_size)
        return config, {"input_ids": rows, "attention_mask": mask}


class EncoderSuite(Suite):
    """For encoders, with every head."""

    all_model_classes: tuple[type, ...]
    is_encoder_decoder = False

    def setUp(self):
        set_seed(0)
        self.model_tester = SingleStackTester(self.config_class, self.settings)
        # The name under which `TrainingTesterMixin` finds what to train: each token is filled in with itself.
        self.model_tester.causal_lm_class = next(
            kind for kind in self.all_model_classes if kind.__name__.endswith("ForMaskedLM")
        )

    def _prepare_for_class(self, inputs_dict, model_class, return_labels=False):
        inputs = super()._prepare_for_class(inputs_dict, model_class, return_labels)
        if return_labels and model_class.__name__.endswith("ForPreTraining"):
            rows = inputs["input_ids"]
            inputs["labels"] = torch.zeros_like(rows)
            inputs["next_sentence_label"] = torch.zeros(len(rows), dtype=torch.long, device=torch_device)
        return inputs


class DecoderSuite(CausalGenerationChecks, Suite):
    """For decoders."""

    all_model_classes: tuple[type, ...]  # the base model, the one with the language modelling head, others
    is_encoder_decoder = False

    def setUp(self):
        set_seed(0)
        self.model_tester = SingleStackTester(self.config_class, self.settings)
        self.model_tester.causal_lm_class = self.all_model_classes[1]

    @torch.no_grad()
    def test_decoding_with_a_cache_changes_nothing(self):
        """Several new tokens at once, after a past."""
        for model_class in self.all_model_classes[:2]:
            config, inputs = self.model_tester.prepare_config_and_inputs_for_common()
            model = model_class(config).to(torch_device).eval()
            ids = inputs["input_ids"]
            whole = model(ids, use_cache=False)[0]
            past = model(ids[:, :4], use_cache=True)
            rest = model(ids[:, 4:], past_key_values=past.past_key_values)[0]
            torch.testing.assert_close(rest, whole[:, 4:], atol=1e-5, rtol=1e-4)


def skips(case: type[unittest.TestCase], test: str) -> bool:
    """Whether the test of that name in `case` skips, as a whole or in a part."""
    result = unittest.TestResult()
    case(test).run(result)
    return bool(result.skipped)
