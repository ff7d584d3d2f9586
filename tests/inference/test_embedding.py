"""`Embedder` compared with plain loops over the states of one text at a time."""

import json
from collections.abc import Callable
from itertools import count, islice
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest
import torch
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from sentence_transformers.util import semantic_search
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForMaskedLM,
    ByT5Tokenizer,
    FSMTConfig,
    FSMTForConditionalGeneration,
    GPT2Config,
    GPT2LMHeadModel,
    LEDConfig,
    LEDForConditionalGeneration,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaModel,
    T5Config,
    T5ForConditionalGeneration,
    XLNetConfig,
    XLNetModel,
)

from toy_translation import WORDS, toy_model, toy_sources, toy_tokenizer
from vaswani import VaswaniDecoderConfig, VaswaniEncoderConfig, VaswaniForCausalLM, VaswaniForMaskedLM
from vaswani.data.text_codec import for_languages
from vaswani.data.tokenization import byte_tokenizer, train_tokenizer
from vaswani.errors import RunError, UserError
from vaswani.inference.embed import embedding
from vaswani.inference.embed.embedding import Embedder, load_scalar_mix
from vaswani.inference.embed.scalar_mix import ScalarMix
from vaswani.inference.embed.word_vectors import stack_word_vectors
from vaswani.model.compatibility import CACHE_NAME

LAYERS, WIDTH = 3, 16
TEXTS = [*toy_sources(8, seed=-1), *toy_sources(2, seed=-2, longest=20), "", "one", "one", "日本 🙂", "é"]
SHAPE: dict[str, Any] = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": 2}
SHAPE |= {"vocab_size": 400, "intermediate_size": 24, "max_position_embeddings": 64}
KINDS = ["bert", "gpt2", "t5", "fsmt", "vaswani", "vaswani_encoder", "vaswani_decoder"]


def model_of(kind: str) -> PreTrainedModel:
    """A model with a head and random weights, in float64; its states differ widely."""
    torch.manual_seed(1)
    ours = {"vocab_size": 400, "d_model": WIDTH, "max_position_embeddings": 64}
    sizes = {"layers": LAYERS, "attention_heads": 2, "ffn_dim": 24}
    encoder, decoder = (
        {f"{side}_{name}": size for name, size in sizes.items()} for side in ("encoder", "decoder")
    )
    gpt2 = {"vocab_size": 400, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": 2, "n_positions": 64}
    gpt2 |= {"bos_token_id": 1, "eos_token_id": 2}
    t5 = {"vocab_size": 400, "d_model": WIDTH, "d_kv": 8, "d_ff": 24, "num_layers": LAYERS, "num_heads": 2}
    fsmt = {"langs": ["en", "de"], "src_vocab_size": 400, "tgt_vocab_size": 400, "d_model": WIDTH}
    makers: dict[str, Callable[[], PreTrainedModel]] = {
        "bert": lambda: BertForMaskedLM(BertConfig(**SHAPE, initializer_range=0.5)),
        "gpt2": lambda: GPT2LMHeadModel(GPT2Config(**gpt2, initializer_range=0.5)),
        "t5": lambda: T5ForConditionalGeneration(T5Config(**t5, initializer_factor=2.0)),
        "fsmt": lambda: FSMTForConditionalGeneration(FSMTConfig(**fsmt, **encoder, **decoder, init_std=0.5)),
        "vaswani": lambda: toy_model(encoder_layers=LAYERS),
        "vaswani_encoder": lambda: VaswaniForMaskedLM(
            VaswaniEncoderConfig(**ours, **encoder, initializer_range=0.5)
        ),
        "vaswani_decoder": lambda: VaswaniForCausalLM(
            VaswaniDecoderConfig(**ours, **decoder, initializer_range=0.5)
        ),
    }
    return makers[kind]().double().eval()


def bert_tokenizer() -> PreTrainedTokenizerBase:
    """Letters and pairs of them, [CLS] and [SEP] around each text."""
    letters = sorted(set("".join(WORDS)))
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *letters, *(f"##{letter}" for letter in letters)]
    tokens += ["on", "##ne", "##ree", "two"]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_input_names=inputs, **special)


def bare_tokenizer() -> PreTrainedTokenizerBase:
    """A token a word and no special ones, so that an empty text has none."""
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, "zero"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def embedder_of(kind: str = "bert", **options: Any) -> Embedder:
    tokenizer = bert_tokenizer() if kind == "bert" else toy_tokenizer()
    return Embedder(model_of(kind), tokenizer, **options)


def states_alone(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, text: str) -> list[torch.Tensor]:
    """All layers' states of one text, [T, d] each, by the library's own way through the model."""
    encoded = tokenizer(text, return_tensors="pt")
    body = model.base_model.get_encoder() if model.config.is_encoder_decoder else model.base_model
    with torch.no_grad():
        return [states[0] for states in body(**encoded, output_hidden_states=True).hidden_states]


def assert_equal(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10)


# Vectors of texts.


def pooled_by_loops(states: torch.Tensor, pooling: str) -> list[float]:
    features = [[state[feature].item() for state in states] for feature in range(states.shape[1])]
    of_one = {"mean": lambda values: sum(values) / len(values), "max": max}
    of_one |= {"cls": lambda values: values[0], "last": lambda values: values[-1]}
    return [of_one[pooling](values) for values in features]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pooling", ["mean", "max", "cls", "last"])
def test_a_text_in_a_batch_has_the_pooled_states_of_the_text_alone(kind: str, pooling: str) -> None:
    embedder = embedder_of(kind, pooling=pooling)
    model, tokenizer = model_of(kind), embedder.tokenizer
    expected = [pooled_by_loops(states_alone(model, tokenizer, text)[-1], pooling) for text in TEXTS]
    vectors = embedder.embed(TEXTS)
    assert_equal(vectors, torch.tensor(expected, dtype=torch.float64))
    assert vectors.shape == (len(TEXTS), embedder.dimension)


@pytest.mark.parametrize("padding_side", ["left", "right"])
@pytest.mark.parametrize("kind", ["bert", "gpt2", "vaswani_decoder"])
def test_neither_batches_nor_order_nor_the_side_of_padding_change_a_vector(
    kind: str, padding_side: str
) -> None:
    expected = torch.cat([embedder_of(kind).embed([text]) for text in TEXTS])
    for max_tokens_per_batch in (1, 60, 10**6):
        embedder = embedder_of(kind, max_tokens_per_batch=max_tokens_per_batch)
        embedder.tokenizer.padding_side = padding_side
        assert_equal(embedder.embed(TEXTS), expected)
        assert_equal(embedder.embed(TEXTS[::-1]), expected.flip(0))


def test_dropout_is_off_even_if_the_model_was_training() -> None:
    embedder = Embedder(model_of("bert").train(), bert_tokenizer())
    assert_equal(embedder.embed(TEXTS), embedder_of().embed(TEXTS))


def test_an_empty_text_pools_its_special_tokens_or_is_zero() -> None:
    states = states_alone(model_of("bert"), bert_tokenizer(), "")[-1]
    assert len(states) == 2
    assert_equal(embedder_of().embed([""])[0], states.mean(dim=0))
    for pooling in embedding.POOLINGS:
        embedder = Embedder(model_of("gpt2"), bare_tokenizer(), pooling=pooling)
        vectors = embedder.embed(["", "one", " "])
        assert vectors.any(dim=1).tolist() == [False, True, False]
        assert embedder.embed([""]).tolist() == [[0.0] * WIDTH]
    assert embedder.embed([]).shape == (0, WIDTH)


def test_token_types_of_the_tokenizer_reach_the_model() -> None:
    kinds = bert_tokenizer()("one")["token_type_ids"]
    assert 0 < sum(kinds) < len(kinds)
    without = bert_tokenizer()
    without.model_input_names = ["input_ids", "attention_mask"]
    vectors = Embedder(model_of("bert"), without).embed(["one"])
    assert not torch.allclose(vectors, embedder_of().embed(["one"]))


def test_normalized_vectors_have_length_1_or_are_zero_for_empty_texts() -> None:
    plain, normalized = (Embedder(model_of("gpt2"), bare_tokenizer(), normalize=on) for on in (False, True))
    vectors = normalized.embed(["one two", "", "three"])
    assert_equal(vectors.norm(dim=1), torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64))
    of_plain = plain.embed(["one two"])[0]
    assert_equal(vectors[0], of_plain / of_plain.norm())
    assert_equal(normalized.embed_words(["one two"])[0].vectors.norm(dim=1), torch.ones(2).double())


def test_vectors_have_at_least_float32_precision() -> None:
    halved = Embedder(model_of("bert").bfloat16(), bert_tokenizer()).embed(TEXTS)
    assert halved.dtype == torch.float32
    torch.testing.assert_close(halved.double(), embedder_of().embed(TEXTS), rtol=0.1, atol=0.1)


# Layers.


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("layers", "numbers"),
    [("last", [3]), ("all", [0, 1, 2, 3]), ([0], [0]), ([-1, 1], [3, 1]), ([-4, -2], [0, 2])],
)
def test_layers_are_concatenated_or_averaged(kind: str, layers: str | list[int], numbers: list[int]) -> None:
    model = model_of(kind)
    concatenated, averaged = (
        Embedder(model, toy_tokenizer(), layers=layers, combine=combine, pooling="last")
        for combine in ("concat", "mean")
    )
    for text in ["one two", "three"]:
        states = states_alone(model, toy_tokenizer(), text)
        chosen = [states[number][-1] for number in numbers]
        assert_equal(concatenated.embed([text])[0], torch.cat(chosen))
        assert_equal(averaged.embed([text])[0], sum(chosen) / len(chosen))
    assert concatenated.dimension == len(numbers) * averaged.dimension


def trained_mix(num_layers: int = LAYERS + 1) -> ScalarMix:
    mix = ScalarMix(num_layers).double()
    with torch.no_grad():
        mix.layer_weights.normal_()
        mix.gamma.fill_(1.5)
    return mix


def test_a_scalar_mix_weighs_the_layers() -> None:
    mix = trained_mix()
    vectors = embedder_of(layers="all", combine=mix).embed(TEXTS)
    model, tokenizer = model_of("bert"), bert_tokenizer()
    expected = [mix(states_alone(model, tokenizer, text)).mean(dim=0) for text in TEXTS]
    assert_equal(vectors, torch.stack(expected).detach())
    assert not vectors.requires_grad


def test_a_mix_trains_on_vectors_of_all_layers_and_then_mixes_inside() -> None:
    embedder = embedder_of(layers="all", subtoken_pooling="mean")
    words = torch.cat([sentence.vectors for sentence in embedder.embed_words(TEXTS)])
    mix = trained_mix()
    mixed = mix(words.unflatten(1, (LAYERS + 1, WIDTH)).unbind(dim=1))
    mixed.square().sum().backward()
    assert mix.layer_weights.grad.abs().min() > 0
    assert mix.gamma.grad != 0
    inside = embedder_of(layers="all", subtoken_pooling="mean", combine=mix).embed_words(TEXTS)
    assert_equal(torch.cat([sentence.vectors for sentence in inside]), mixed.detach())


def test_a_scalar_mix_is_loaded_from_a_file(tmp_path: Path) -> None:
    mix, path = trained_mix(), tmp_path / "mix.safetensors"
    save_file(mix.float().state_dict(), path)
    assert torch.equal(load_scalar_mix(path).layer_weights, mix.layer_weights)
    save_file({"weights": torch.zeros(4)}, path)
    with pytest.raises(UserError, match=r"mix\.safetensors holds no scalar mix \('layer_weights'\)"):
        load_scalar_mix(path)
    path.write_bytes(b"nothing")
    with pytest.raises(UserError, match="holds no scalar mix"):
        load_scalar_mix(path)


# Vectors of tokens and of words.


@pytest.mark.parametrize("kind", KINDS)
def test_token_vectors_are_the_states_of_the_tokens(kind: str) -> None:
    embedder = embedder_of(kind)
    for text, result in zip(TEXTS, embedder.embed_tokens(TEXTS), strict=True):
        assert_equal(result.vectors, states_alone(model_of(kind), embedder.tokenizer, text)[-1])
        token_ids = embedder.tokenizer(text)["input_ids"]
        assert result.tokens == embedder.tokenizer.convert_ids_to_tokens(token_ids)


def word_by_loops(states: list[torch.Tensor], pooling: str) -> torch.Tensor:
    mean = sum(states) / len(states)
    ends = {"first": states[0], "last": states[-1], "first_last": torch.cat([states[0], states[-1]])}
    return {**ends, "mean": mean}[pooling]


def tokenizer_of(name: str) -> PreTrainedTokenizerBase:
    return bert_tokenizer() if name == "bert" else train_tokenizer(WORDS, 262, min_frequency=1, purpose=name)


@pytest.mark.parametrize("tokenizer_name", ["bert", "translation", "masked", "causal"])
@pytest.mark.parametrize("pooling", ["first", "last", "first_last", "mean"])
def test_word_vectors_pool_the_vectors_of_their_subwords(pooling: str, tokenizer_name: str) -> None:
    texts = ["one two three", "", "seven", "two nine two"]
    model, tokenizer = model_of("bert"), tokenizer_of(tokenizer_name)
    embedder = Embedder(model, tokenizer, subtoken_pooling=pooling)
    for text, result in zip(texts, embedder.embed_words(texts), strict=True):
        states = states_alone(model, tokenizer, text)[-1]
        at = 0 if tokenizer_name == "translation" else 1  # after [CLS] or <s>
        expected = []
        for number, word in enumerate(text.split()):
            space = " " if tokenizer_name == "causal" and number else ""  # else the tokenizer adds it
            pieces = tokenizer(space + word, add_special_tokens=False)["input_ids"]
            of_word = list(states[at : at + len(pieces)])
            if not tokenizer.decode(pieces[:1]).strip():
                del of_word[0]  # the space in front of the word
            expected.append(word_by_loops(of_word, pooling))
            at += len(pieces)
        assert at == len(states) - (tokenizer_name != "causal")  # [SEP] or </s>
        assert result.words == text.split()
        width = (2 if pooling == "first_last" else 1) * WIDTH
        empty = torch.zeros(0, width, dtype=torch.float64)
        assert_equal(result.vectors, torch.stack(expected) if expected else empty)


@pytest.mark.parametrize("tokenizer_name", ["bert", "translation", "causal"])
def test_words_of_the_prefix_are_left_out(tokenizer_name: str) -> None:
    prefix = "seven nine "
    tokenizer, _ = for_languages(*[tokenizer_of(tokenizer_name)] * 2, source_prefix=prefix)
    model, text = model_of("bert"), "one two"
    (found,) = Embedder(model, tokenizer).embed_words([text])
    (whole,) = Embedder(model, tokenizer_of(tokenizer_name)).embed_words([prefix + text])
    assert found.words == ["one", "two"]
    assert_equal(found.vectors, whole.vectors[2:])


def test_words_may_be_given_as_lists() -> None:
    lists = [text.split() for text in TEXTS]
    for given, found in zip(embedder_of().embed_words(lists), embedder_of().embed_words(TEXTS), strict=True):
        assert given.words == found.words
        assert_equal(given.vectors, found.vectors)
    assert_equal(embedder_of().embed(lists), embedder_of().embed([" ".join(words) for words in lists]))


def test_a_word_that_tokenizes_to_nothing_has_a_zero_vector() -> None:
    words, vectors = embedder_of(subtoken_pooling="first_last").embed_words([["one", "\u0007", "", "two"]])[0]
    assert words == ["one", "\u0007", "", "two"]
    assert vectors.any(dim=1).tolist() == [True, False, False, True]


@pytest.mark.parametrize("text", ["one two", " héllo, 日本 🙂 x", "é"])
@pytest.mark.parametrize("purpose", ["masked", "causal", "translation", "no merges"])
def test_characters_of_a_byte_level_model_are_found_by_counting_bytes(text: str, purpose: str) -> None:
    """The states at the first byte of a word's first character and at the last byte of its last."""
    trained = purpose == "no merges"  # which puts a space in front of the text, not <s>
    tokenizer = train_tokenizer(WORDS, 259) if trained else byte_tokenizer(purpose=purpose)
    model = model_of("gpt2")
    states = states_alone(model, tokenizer, text)[-1]
    in_front = 0 if purpose == "translation" else 1
    assert len(states) == in_front + len(text.encode()) + (purpose != "causal")  # with </s> behind
    ends, starts, at = [], [], in_front
    for before, character, after in zip(f" {text[:-1]}", text, f"{text[1:]} ", strict=True):
        if before == " " != character:
            starts.append(states[at])
        at += len(character.encode())
        if after == " " != character:
            ends.append(states[at - 1])
    both = Embedder(model, tokenizer, subtoken_pooling="first_last").embed_words([text])[0]
    assert both.words == text.split()
    assert_equal(both.vectors, torch.cat([torch.stack(starts), torch.stack(ends)], dim=1))


def test_flair_takes_the_forward_state_after_a_word_and_the_backward_state_before_it() -> None:
    """Akbik et al. (2018), section 2.3, with a causal model for each direction."""
    tokenizer, text = byte_tokenizer(purpose="causal"), "one three two"
    forward, backward = model_of("gpt2"), model_of("vaswani_decoder")
    rightward = states_alone(forward, tokenizer, text)[-1]
    leftward = states_alone(backward, tokenizer, text[::-1])[-1]
    expected = []
    for start, end in [(0, 3), (4, 9), (10, 13)]:  # characters; token 0 is <s>
        after_last = rightward[1 + end - 1]
        before_first = leftward[1 + (len(text) - 1 - start)]
        expected.append(torch.cat([after_last, before_first]))
    embedders = [
        Embedder(forward, tokenizer, subtoken_pooling="last"),
        Embedder(backward, tokenizer, subtoken_pooling="last", backward=True),
    ]
    (words, vectors), *_ = stack_word_vectors(embedder.embed_words([text]) for embedder in embedders)
    assert words == ["one", "three", "two"]
    assert_equal(vectors, torch.stack(expected))


def test_a_backward_model_reads_whole_texts_from_their_end() -> None:
    backward, forward = (embedder_of("gpt2", pooling="last", backward=on) for on in (True, False))
    assert_equal(backward.embed(["one two"]), forward.embed(["owt eno"]))
    assert backward.embed_tokens(["one"])[0].tokens == forward.embed_tokens(["eno"])[0].tokens


def test_word_vectors_need_a_tokenizer_with_offsets() -> None:
    embedder = Embedder(model_of("t5"), ByT5Tokenizer())
    assert embedder.embed(["one"]).shape == (1, WIDTH)
    with pytest.raises(UserError, match="ByT5Tokenizer does not return the offsets of its tokens"):
        embedder.embed_words(["one"])


# Long texts, batches, buffers.


@pytest.mark.parametrize("kind", ["bert", "vaswani_encoder"])
def test_a_text_that_is_too_long_is_an_error_unless_it_may_be_cut_off(kind: str) -> None:
    texts = ["one", " ".join(["two"] * 70), "three"]
    length = len(embedder_of(kind).tokenizer(texts[1])["input_ids"])
    with pytest.raises(
        UserError, match=f"text 1, counted from 0, has {length} tokens, more than max_length=64;"
    ):
        embedder_of(kind).embed(texts)
    with pytest.raises(UserError, match="text 1, counted from 0"):
        list(embedder_of(kind).stream(texts, buffer_size=1))
    cut = embedder_of(kind, truncation=True, pooling="last")
    vectors = cut.embed(texts)
    assert cut.truncated == 1
    specials = cut.tokenizer.num_special_tokens_to_add()
    assert_equal(vectors[1:2], embedder_of(kind, pooling="last").embed([" ".join(["two"] * (64 - specials))]))
    assert_equal(vectors[::2], embedder_of(kind, pooling="last").embed(texts[::2]))
    of_words = cut.embed_words(texts)[1].vectors
    assert of_words.any(dim=1).tolist() == [True] * (64 - specials) + [False] * (6 + specials)


def test_roberta_counts_its_positions_from_its_padding() -> None:
    torch.manual_seed(0)
    model = RobertaModel(RobertaConfig(**{**SHAPE, "max_position_embeddings": 12}))  # and its padding is 1
    embedder = Embedder(model, toy_tokenizer())
    assert embedder.embed(["one" + " one" * 8]).shape == (1, WIDTH)  # and </s>
    with pytest.raises(UserError, match="has 11 tokens, more than max_length=10;"):
        embedder.embed(["one" + " one" * 9])


def test_xlnet_has_no_limit() -> None:
    model = XLNetModel(XLNetConfig(vocab_size=400, d_model=WIDTH, n_layer=1, n_head=2, d_inner=24))
    assert Embedder(model, toy_tokenizer()).embed(["one " * 600]).shape == (1, WIDTH)


def test_max_length_defaults_to_the_model_limit() -> None:
    xlnet = XLNetModel(XLNetConfig(vocab_size=400, d_model=WIDTH, n_layer=1, n_head=2, d_inner=24))
    assert Embedder(xlnet, toy_tokenizer()).max_length == 4096
    assert Embedder(xlnet, toy_tokenizer(), max_length=5000).max_length == 5000
    assert embedder_of("bert", max_length=10**6).max_length == 64  # its positions
    assert (
        embedder_of("bert", max_length=7, truncation=True).embed_tokens(["one " * 9])[0].vectors.shape[0] == 7
    )
    with pytest.raises(UserError, match=r"has \d+ tokens, more than max_length=7;"):
        embedder_of("bert", max_length=7).embed(["one " * 9])
    with pytest.raises(UserError, match="max_length=0 must be at least 1"):
        embedder_of("bert", max_length=0)


def test_the_limit_of_the_tokenizer_counts_too() -> None:
    tokenizer = bert_tokenizer()
    tokenizer.model_max_length = 4
    with pytest.raises(UserError, match="has 5 tokens, more than max_length=4;"):
        Embedder(model_of("bert"), tokenizer).embed(["two two two"])


def recorded_batches(embedder: Embedder, texts: list[str]) -> list[torch.Tensor]:
    """The attention masks that the model receives."""
    masks = []
    hook = embedder.model.register_forward_pre_hook(
        lambda module, args, kwargs: masks.append(kwargs["attention_mask"]), with_kwargs=True
    )
    embedder.embed(texts)
    hook.remove()
    return masks


def test_batches_keep_to_the_token_budget_and_hold_like_lengths() -> None:
    masks = recorded_batches(embedder_of(max_tokens_per_batch=100), TEXTS)
    assert sum(map(len, masks)) == len(TEXTS)
    assert all(mask.numel() <= 100 or len(mask) == 1 for mask in masks)
    assert any(len(mask) > 2 for mask in masks)
    lengths = [length for mask in masks for length in mask.sum(dim=1).tolist()]
    assert lengths == sorted(lengths, reverse=True)
    assert len(recorded_batches(embedder_of(), TEXTS)) < len(masks)


def test_texts_without_tokens_never_reach_the_model() -> None:
    embedder = Embedder(model_of("gpt2"), bare_tokenizer())
    assert [mask.tolist() for mask in recorded_batches(embedder, ["", "one", ""])] == [[[1]]]
    assert recorded_batches(embedder, [""]) == []


def test_no_cache_of_keys_and_values_is_made() -> None:
    embedder, caches = embedder_of("gpt2"), []
    embedder.model.register_forward_hook(lambda module, args, outputs: caches.append(outputs.get(CACHE_NAME)))
    embedder.embed(["one"])
    assert caches == [None]


def test_an_endless_stream_is_embedded_a_buffer_at_a_time() -> None:
    numbers = count()
    vectors = embedder_of("gpt2").stream((f"one {number}" for number in numbers), buffer_size=3)
    first = list(islice(vectors, 4))
    assert_equal(torch.stack(first), embedder_of("gpt2").embed([f"one {number}" for number in range(4)]))
    assert next(numbers) == 6


def test_progress_counts_every_text_once() -> None:
    counts: list[int] = []
    list(embedder_of(max_tokens_per_batch=60).stream(TEXTS, buffer_size=9, progress=counts.append))
    assert sum(counts) == len(TEXTS)
    assert len(counts) > 5


# Loading.


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_embeds_as_the_model_that_was_saved(kind: str, tmp_path: Path) -> None:
    model_of(kind).save_pretrained(tmp_path)
    toy_tokenizer().save_pretrained(tmp_path)
    # The tokenizer is none that the model was trained with.
    embedder = Embedder.from_pretrained(tmp_path, pooling="max", device="cpu", allow_mismatch=True)
    assert_equal(embedder.embed(TEXTS), Embedder(model_of(kind), toy_tokenizer(), pooling="max").embed(TEXTS))
    halved = Embedder.from_pretrained(str(tmp_path), dtype="bfloat16", allow_mismatch=True).model
    assert {weight.dtype for weight in halved.parameters()} == {torch.bfloat16}


# Similarity and search.


def test_an_encoder_is_limited_by_its_source_positions() -> None:
    numbers = {"ffn_dim": 16, "layers": 1, "attention_heads": 2}
    sizes = {f"{side}_{name}": numbers[name] for side in ("encoder", "decoder") for name in numbers}
    positions = {"max_encoder_position_embeddings": 256, "max_decoder_position_embeddings": 32}
    config = LEDConfig(vocab_size=400, d_model=16, attention_window=16, **sizes, **positions)
    model = LEDForConditionalGeneration(config)
    assert Embedder(model, toy_tokenizer(), max_length=200).max_length == 200
    assert Embedder(model, toy_tokenizer()).max_length == 256


def embedder_in(folder: Path, **options: Any) -> Embedder:
    return Embedder.from_pretrained(folder, allow_mismatch=True, **options)  # few tokens, many embeddings


@pytest.mark.parametrize("mode", ["mean", "cls", "max", "lasttoken"])
@pytest.mark.parametrize("normalizes", [False, True])
def test_the_pooling_of_sentence_transformers_is_that_of_its_model(
    tmp_path: Path, mode: str, normalizes: bool
) -> None:
    for part in (model_of("bert").float(), bert_tokenizer()):
        part.save_pretrained(tmp_path / "bert")
    modules = [Transformer(str(tmp_path / "bert")), Pooling(WIDTH, mode), *([Normalize()] * normalizes)]
    theirs = SentenceTransformer(modules=modules, device="cpu")
    theirs.save(str(tmp_path / "theirs"))
    texts = [text for text in TEXTS if text]
    ours = embedder_in(tmp_path / "theirs")
    expected = torch.from_numpy(theirs.encode(texts))
    torch.testing.assert_close(ours.embed(texts), expected, rtol=1e-4, atol=1e-5)
    named = embedder_in(tmp_path / "theirs", pooling="max")
    plain = embedder_in(tmp_path / "bert", pooling="max")
    assert_equal(named.embed(texts), plain.embed(texts))
    # Words have vectors of their own: the settings are for texts.
    for one, other in zip(ours.embed_words(texts), plain.embed_words(texts), strict=True):
        assert_equal(one.vectors, other.vectors)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"type": "x.Dense"},
            r"has the modules 'Transformer', 'Dense', and known are 'Normalize'",
        ),
        ({"path": "nowhere"}, r"modules.json cannot be read"),
        ({"mode": "weightedmean"}, r"pooling='weightedmean' is unknown; expected one of 'mean', 'cls'"),
        ({"mode": ["cls", "max"]}, r"pooling='cls_max' is unknown; expected"),
    ],
    ids=str,
)
def test_modules_that_are_not_known_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    for part in (model_of("bert").float(), bert_tokenizer()):
        part.save_pretrained(tmp_path / "bert")
    pooling = Pooling(WIDTH, change.pop("mode", "mean"))
    theirs = SentenceTransformer(modules=[Transformer(str(tmp_path / "bert")), pooling], device="cpu")
    theirs.save(str(tmp_path / "theirs"))
    path = tmp_path / "theirs" / "modules.json"
    modules = json.loads(path.read_text())
    modules[1] |= change
    path.write_text(json.dumps(modules))
    with pytest.raises(UserError, match=message):
        embedder_in(tmp_path / "theirs")
    embedder_in(tmp_path / "theirs", pooling="mean")


@pytest.mark.parametrize(
    ("file", "settings", "message"),
    [
        ("config_sentence_transformers.json", {"truncate_dim": 8}, "sets truncate_dim=8, which"),
        (
            "config_sentence_transformers.json",
            {"prompts": {"query": "query: "}, "default_prompt_name": "query"},
            "sets default_prompt_name='query', which",
        ),
        (
            "config_sentence_transformers.json",
            {"prompts": {"query": ""}, "default_prompt_name": "query", "truncate_dim": None},
            None,
        ),
        ("sentence_bert_config.json", {"do_lower_case": True}, "sets do_lower_case=True, which"),
        ("sentence_bert_config.json", {"do_lower_case": False}, None),
    ],
    ids=str,
)
def test_settings_that_would_change_the_vectors_are_refused(
    tmp_path: Path, file: str, settings: dict[str, Any], message: str | None
) -> None:
    for part in (model_of("bert").float(), bert_tokenizer()):
        part.save_pretrained(tmp_path / "bert")
    modules = [Transformer(str(tmp_path / "bert")), Pooling(WIDTH, "mean")]
    SentenceTransformer(modules=modules, device="cpu").save(str(tmp_path / "theirs"))
    path = tmp_path / "theirs" / file
    saved = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps(saved | settings))
    if message:
        with pytest.raises(UserError, match=message):
            embedder_in(tmp_path / "theirs")
        embedder_in(tmp_path / "theirs", pooling="mean")
    else:
        embedder_in(tmp_path / "theirs")


@pytest.mark.parametrize("rows_at_once", [500_000, 7])
def test_semantic_search_of_sentence_transformers_accepts_the_vectors(rows_at_once: int) -> None:
    texts = list(dict.fromkeys(TEXTS))
    vectors = embedder_of().embed(texts)
    cosines = torch.nn.functional.cosine_similarity(vectors[:, None], vectors[None], dim=-1)
    found = semantic_search(vectors, vectors, top_k=3, corpus_chunk_size=rows_at_once)
    for row, results in enumerate(found):
        assert results[0]["corpus_id"] == row
        best = cosines[row].sort(descending=True).values[:3]
        scores = torch.tensor([result["score"] for result in results], dtype=torch.float64)
        torch.testing.assert_close(scores, best, rtol=0, atol=1e-6)


# What cannot be done.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pooling": "sum"}, "pooling='sum' is unknown; expected one of 'mean', 'cls', 'max', 'last'"),
        ({"subtoken_pooling": "max"}, "subtoken_pooling='max' is unknown; expected one of 'first', 'last'"),
        ({"layers": "first"}, "layers='first' is unknown; expected one of 'last', 'all'"),
        ({"layers": []}, r"layers=\[\] selects no layer"),
        ({"layers": [4]}, r"the model has no layer 4; expected 0 \(its embeddings\) to 3, or -4 to -1"),
        ({"layers": [-5]}, "the model has no layer -5"),
        ({"combine": "sum"}, "combine='sum' is unknown; expected one of 'concat', 'mean'"),
        ({"combine": ScalarMix(4)}, "the scalar mix has weights for 4 layers, and layers selects 1"),
        ({"max_tokens_per_batch": 0}, "max_tokens_per_batch=0 must be at least 1"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        embedder_of(**options)


def test_impossible_requests_are_refused_before_any_work() -> None:
    embedder = embedder_of()
    with pytest.raises(UserError, match=r"expected a list of texts, got one text: write \['one two'\]"):
        embedder.embed("one two")
    with pytest.raises(UserError, match="buffer_size=0 must be at least 1"):
        embedder.stream([], buffer_size=0)
    with patch.object(embedding, "find_spec", return_value=None):
        with pytest.raises(UserError, match=r"need sentence-transformers: pip install 'vaswani\[embed\]'"):
            embedder.embed(["one two"])
        assert embedder.embed_words(["one two"])[0].words == ["one", "two"]


def test_a_batch_that_does_not_fit_into_memory_names_its_size_and_the_remedy() -> None:
    embedder = embedder_of()
    embedder.model.forward = Mock(side_effect=torch.OutOfMemoryError("CUDA out of memory"))
    with pytest.raises(RunError, match="2 texts of up to 4 tokens; lower max_tokens_per_batch"):
        embedder.embed(["one", "two"])


def test_states_that_are_not_finite_are_no_vectors() -> None:
    model = model_of("bert").half()
    model.bert.encoder.layer[-1].output.LayerNorm.weight.data.fill_(60000)
    with pytest.raises(RunError, match=r"the model's states leave the range of torch\.float16"):
        Embedder(model, bert_tokenizer()).embed(["one"])
