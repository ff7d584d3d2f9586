"""Checks of `generate` that the suite can honestly have.

transformers' own `GenerationTesterMixin` is not in the source distribution. The class of that name here
stands in for it, because `ModelTesterMixin` insists on it for a model that generates. The checks are this
project's, and MarianMT and BART pass them too. Each compares `generate` with the forward pass, or with
another way to the same tokens.
"""

from collections.abc import Iterator

import torch
from transformers import set_seed
from transformers.testing_utils import torch_device

NEW_TOKENS = 6
SOURCES = 4
COMMON_ENDS = list(range(3, 40))  # with so many of the words ending a sequence, beams end at different steps


class GenerationTesterMixin:
    """Mix into a test case that has `model_tester` and `all_generative_model_classes`."""

    def generative_models(self) -> Iterator[tuple[torch.nn.Module, dict[str, torch.Tensor]]]:
        """Each model that generates, in evaluation mode, with inputs of a few rows."""
        for model_class in self.all_generative_model_classes:
            config, inputs = self.model_tester.prepare_config_and_inputs_for_common()
            model = model_class(config).to(torch_device).eval()
            model.generation_config.max_new_tokens = NEW_TOKENS
            model.generation_config.eos_token_id = None  # random weights would end at random places
            yield model, self.prompts(model, inputs)

    @torch.no_grad()
    def test_generate_assisted_equals_greedy(self):
        for model, inputs in self.generative_models():
            inputs = {name: tensor[:1] for name, tensor in inputs.items()}  # assistance takes one row
            expected = model.generate(**inputs).tolist()
            (assistant, _), *_ = self.generative_models()
            for options in ({"assistant_model": assistant}, {"prompt_lookup_num_tokens": 2}):
                with self.subTest(**options):
                    assert model.generate(**inputs, **options).tolist() == expected


class Seq2SeqGenerationChecks(GenerationTesterMixin):
    """For encoder-decoders."""

    def prompts(self, model, inputs) -> dict[str, torch.Tensor]:
        """The encoder's inputs of a few sources."""
        return {name: inputs[name][:SOURCES] for name in ("input_ids", "attention_mask")}

    def assert_logits_match_forward(self, model, source, output, copies: int = 1) -> None:
        """The logits of every step are those of one forward pass over the generated tokens."""
        source = {name: tensor.repeat_interleave(copies, 0) for name, tensor in source.items()}
        expected = model(**source, decoder_input_ids=output.sequences[:, :-1], use_cache=False).logits
        torch.testing.assert_close(torch.stack(output.logits, 1), expected, atol=1e-4, rtol=1e-4)

    @torch.no_grad()
    def test_generate_greedy_takes_the_best_token(self):
        for model, source in self.generative_models():
            output = model.generate(**source, output_logits=True, return_dict_in_generate=True)
            self.assert_logits_match_forward(model, source, output)
            assert output.sequences[:, 1:].tolist() == torch.stack(output.logits, 1).argmax(-1).tolist()

    @torch.no_grad()
    def test_generate_samples_belong_to_their_source(self):
        for model, source in self.generative_models():
            options = {"do_sample": True, "num_return_sequences": 3, "output_logits": True, "top_k": 2}
            output = model.generate(**source, **options, return_dict_in_generate=True)
            assert len(output.sequences) == 3 * SOURCES
            self.assert_logits_match_forward(model, source, output, copies=3)
            allowed = torch.stack(output.logits, 1).topk(2).indices
            assert (output.sequences[:, 1:, None] == allowed).any(-1).all()

    @torch.no_grad()
    def test_generate_beam_scores_are_log_probabilities(self):
        for model, source in self.generative_models():
            options = {
                "num_beams": 3,
                "num_return_sequences": 3,
                "length_penalty": 0.6,
                "output_scores": True,
            }
            output = model.generate(**source, **options, return_dict_in_generate=True)
            sources = {name: tensor.repeat_interleave(3, 0) for name, tensor in source.items()}
            logits = model(**sources, decoder_input_ids=output.sequences[:, :-1], use_cache=False).logits
            chosen = logits.log_softmax(-1).gather(-1, output.sequences[:, 1:, None]).squeeze(-1)
            expected = chosen.sum(-1) / NEW_TOKENS**0.6
            torch.testing.assert_close(output.sequences_scores, expected, atol=1e-4, rtol=1e-4)
            scores = output.sequences_scores.view(SOURCES, 3)
            assert (scores.diff(dim=1) <= 0).all(), "the best hypothesis of a source comes first"

    @torch.no_grad()
    def test_generate_is_the_same_with_any_cache(self):
        ways = {
            "greedy": {},
            "beams": {"num_beams": 3},
            "beams that end": {"num_beams": 3, "num_return_sequences": 3, "eos_token_id": COMMON_ENDS},
            "samples": {"do_sample": True, "num_return_sequences": 2},
            "beam samples": {"do_sample": True, "num_beams": 3, "num_return_sequences": 2},
        }
        caches = {"dynamic": {}, "static": {"cache_implementation": "static"}}
        for model, source in self.generative_models():
            for way, options in ways.items():
                set_seed(0)
                expected = model.generate(**source, **options, use_cache=False).tolist()
                for cache, cache_options in caches.items():
                    with self.subTest(way=way, cache=cache):
                        set_seed(0)
                        actual = model.generate(**source, **options, **cache_options, use_cache=True).tolist()
                        assert actual == expected

    @torch.no_grad()
    def test_generate_from_encoder_outputs_or_embeddings(self):
        for model, source in self.generative_models():
            ids, mask = source["input_ids"], source["attention_mask"]
            encoder_outputs = model.get_encoder()(input_ids=ids, attention_mask=mask)
            embeddings = model.get_input_embeddings()(ids)
            for options in ({}, {"num_beams": 3}):
                expected = model.generate(**source, **options).tolist()
                for given in ({"encoder_outputs": encoder_outputs}, {"inputs_embeds": embeddings}):
                    with self.subTest(given=list(given), **options):
                        assert model.generate(**given, attention_mask=mask, **options).tolist() == expected

    @torch.no_grad()
    def test_generate_continues_a_prefix(self):
        for model, source in self.generative_models():
            for options in ({}, {"num_beams": 3}):
                whole = model.generate(**source, **options)
                prefix = whole[:, :3]
                options = {**options, "decoder_input_ids": prefix, "max_new_tokens": NEW_TOKENS - 2}
                continued = model.generate(**source, **options)
                assert continued[:, :3].tolist() == prefix.tolist()
                assert continued.tolist() == model.generate(**source, **options, use_cache=False).tolist()
                if "num_beams" not in options:  # beams with a given start may find something better
                    assert continued.tolist() == whole.tolist()

    @torch.no_grad()
    def test_generate_alone_equals_generate_in_a_batch(self):
        for model, source in self.generative_models():
            for options in ({}, {"num_beams": 3}):
                together = model.generate(**source, **options)
                for row in range(SOURCES):
                    length = int(source["attention_mask"][row].sum())
                    alone = model.generate(source["input_ids"][row : row + 1, :length], **options)
                    assert alone[0].tolist() == together[row].tolist()

    @torch.no_grad()
    def test_generate_returns_what_is_asked(self):
        """Hidden states and attentions of the source, and of each step for every row."""
        layers, heads = self.model_tester.num_hidden_layers, self.model_tester.num_attention_heads
        for model, source in self.generative_models():
            model.set_attn_implementation("eager")  # the only one that returns attention weights
            length = source["input_ids"].shape[1]
            for beams in (1, 3):
                output = model.generate(
                    **source,
                    num_beams=beams,
                    output_attentions=True,
                    output_hidden_states=True,
                    return_dict_in_generate=True,
                )
                assert len(output.encoder_hidden_states) == layers + 1
                assert len(output.encoder_attentions) == layers
                for kind in (
                    output.decoder_attentions,
                    output.cross_attentions,
                    output.decoder_hidden_states,
                ):
                    assert len(kind) == NEW_TOKENS
                for step in range(NEW_TOKENS):
                    states, past = output.decoder_hidden_states[step], output.decoder_attentions[step]
                    cross = output.cross_attentions[step]
                    rows = SOURCES * beams
                    assert {s.shape for s in states} == {(rows, 1, self.model_tester.hidden_size)}
                    assert [a.shape for a in past] == [(rows, heads, 1, step + 1)] * layers
                    assert [a.shape for a in cross] == [(rows, heads, 1, length)] * layers


class CausalGenerationChecks(GenerationTesterMixin):
    """For decoders: prompts of different lengths, padded on the left."""

    def prompts(self, model, inputs) -> dict[str, torch.Tensor]:
        """A few prompts."""
        model.generation_config.pad_token_id = 0
        prompts = inputs["input_ids"][:SOURCES].clone().clamp(min=1)
        mask = torch.ones_like(prompts)
        mask[1::2, :3] = 0
        return {"input_ids": prompts.masked_fill(mask == 0, 0), "attention_mask": mask}

    def logits_of(self, model, prompt, sequences, copies: int = 1) -> torch.Tensor:
        """What one forward pass says of each generated token: [rows, NEW_TOKENS, vocabulary]."""
        mask = prompt["attention_mask"].repeat_interleave(copies, 0)
        mask = torch.cat([mask, mask.new_ones(len(mask), NEW_TOKENS)], 1)
        positions = (mask.cumsum(1) - 1).clamp(min=0)[:, :-1]
        output = model(
            sequences[:, :-1], attention_mask=mask[:, :-1], position_ids=positions, use_cache=False
        )
        return output.logits[:, -NEW_TOKENS:]

    @torch.no_grad()
    def test_generate_greedy_takes_the_best_token(self):
        for model, prompt in self.generative_models():
            output = model.generate(**prompt, output_logits=True, return_dict_in_generate=True)
            expected = self.logits_of(model, prompt, output.sequences)
            torch.testing.assert_close(torch.stack(output.logits, 1), expected, atol=1e-4, rtol=1e-4)
            new = output.sequences[:, -NEW_TOKENS:]
            assert new.tolist() == torch.stack(output.logits, 1).argmax(-1).tolist()

    @torch.no_grad()
    def test_generate_beam_scores_are_log_probabilities(self):
        for model, prompt in self.generative_models():
            options = {
                "num_beams": 3,
                "num_return_sequences": 3,
                "length_penalty": 0.0,
                "output_scores": True,
            }
            output = model.generate(**prompt, **options, return_dict_in_generate=True)
            logits = self.logits_of(model, prompt, output.sequences, copies=3)
            chosen = logits.log_softmax(-1).gather(-1, output.sequences[:, -NEW_TOKENS:, None]).squeeze(-1)
            torch.testing.assert_close(output.sequences_scores, chosen.sum(-1), atol=1e-4, rtol=1e-4)

    @torch.no_grad()
    def test_generate_is_the_same_with_any_cache(self):
        ways = {
            "greedy": {},
            "beams": {"num_beams": 3},
            "beams that end": {"num_beams": 3, "num_return_sequences": 3, "eos_token_id": COMMON_ENDS},
            "samples": {"do_sample": True, "num_return_sequences": 2},
        }
        for model, prompt in self.generative_models():
            for way, options in ways.items():
                set_seed(0)
                expected = model.generate(**prompt, **options, use_cache=False).tolist()
                for cache_options in ({}, {"cache_implementation": "static"}):
                    with self.subTest(way=way, **cache_options):
                        set_seed(0)
                        actual = model.generate(**prompt, **options, **cache_options, use_cache=True).tolist()
                        assert actual == expected

    @torch.no_grad()
    def test_generate_from_embeddings(self):
        for model, prompt in self.generative_models():
            embeddings = model.get_input_embeddings()(prompt["input_ids"])
            for options in ({}, {"num_beams": 3}):
                expected = model.generate(**prompt, **options)[:, -NEW_TOKENS:].tolist()
                mask = prompt["attention_mask"]
                actual = model.generate(inputs_embeds=embeddings, attention_mask=mask, **options)
                assert actual[:, -NEW_TOKENS:].tolist() == expected

    @torch.no_grad()
    def test_generate_alone_equals_generate_in_a_batch(self):
        for model, prompt in self.generative_models():
            for options in ({}, {"num_beams": 3}):
                together = model.generate(**prompt, **options)
                for row in range(SOURCES):
                    shown = prompt["attention_mask"][row].bool()
                    alone = model.generate(prompt["input_ids"][row : row + 1, shown], **options)
                    assert alone[0, -NEW_TOKENS:].tolist() == together[row, -NEW_TOKENS:].tolist()
