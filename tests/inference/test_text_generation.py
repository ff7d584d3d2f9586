"""Continuations compared with a loop over single tokens: batches, limits and options."""

import json
import math
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    RecurrentGemmaConfig,
    RecurrentGemmaForCausalLM,
    RobertaConfig,
    RobertaForCausalLM,
)

from tiny_causal import ALL_MODELS, TEXT, bart, gpt2, gpt2_like, llama, ours, sparse
from vaswani.data.text.completions import RowBuilder
from vaswani.data.tokenization import train_tokenizer
from vaswani.errors import RunError, UserError
from vaswani.inference.continuing import before_stop, counts_prompts, reads_padding
from vaswani.inference.generate.generation import GeneratedText, Generation, TextGenerator
from vaswani.inference.generation_options import GenerationOptions
from vaswani.inference.language_model import LanguageModel

LONG = "is that right?\n\nthe cat is a very, very good cat. is it?"
PROMPTS = ["the cat sat on", LONG, "maybe", "1 2", "the"]
NEW_TOKENS = 12
TEMPLATE = (
    "{% for message in messages %}<s>{{ message.role }}: {{ message.content }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant: {% endif %}"
)
CHAT = [{"role": "user", "content": "is that"}, {"role": "assistant", "content": "yes"}]


def ours_like() -> PreTrainedTokenizerBase:
    """As `vaswani pretrain` trains it: with `<s>` in front, and "▁" for spaces."""
    return train_tokenizer([TEXT] * 3, 320, purpose="causal")


def loop(
    model: PreTrainedModel,
    token_ids: list[int],
    count: int = NEW_TOKENS,
    change: Callable[[list[int], torch.Tensor], torch.Tensor] = lambda written, scores: scores,
) -> list[int]:
    """The likeliest tokens, one after the other."""
    written: list[int] = []
    while len(written) < count:
        with torch.no_grad():
            scores = change(written, model(torch.tensor([token_ids + written])).logits[0, -1])
        token = int(scores.argmax())
        if token == model.generation_config.eos_token_id:
            break
        written.append(token)
    return written


def texts_of(found: list[Generation]) -> list[list[str]]:
    return [[one.text for one in generation.continuations] for generation in found]


# Greedy search.


@pytest.mark.parametrize("max_tokens_per_batch", [1, 60, 10_000])
@pytest.mark.parametrize("tokenizer", [gpt2_like, ours_like], ids=["bytes", "pieces"])
@pytest.mark.parametrize("make", ALL_MODELS)
def test_a_prompt_with_its_continuation_is_the_text_of_all_tokens(
    make: Callable[[], PreTrainedModel],
    tokenizer: Callable[[], PreTrainedTokenizerBase],
    max_tokens_per_batch: int,
) -> None:
    model, encoder = make().double().eval(), tokenizer()
    expected = []
    for prompt in PROMPTS:
        token_ids = encoder(prompt)["input_ids"]
        expected.append(encoder.decode(token_ids + loop(model, token_ids), skip_special_tokens=True))
    generator = TextGenerator(
        model, encoder, max_new_tokens=NEW_TOKENS, max_tokens_per_batch=max_tokens_per_batch
    )
    found = [prompt + text for prompt, text in zip(PROMPTS, generator(PROMPTS), strict=True)]
    assert found == expected
    assert len(set(found)) == len(PROMPTS)


def test_the_log_probability_is_that_of_the_generated_tokens() -> None:
    model, tokenizer = gpt2().double().eval(), gpt2_like()
    generator = TextGenerator(model, tokenizer, max_new_tokens=5)
    for generation in generator.generate(PROMPTS):
        token_ids = tokenizer(generation.prompt)["input_ids"]
        total = 0.0
        for token in loop(model, token_ids, 5):
            with torch.no_grad():
                total += model(torch.tensor([token_ids])).logits[0, -1].log_softmax(-1)[token].item()
            token_ids = [*token_ids, token]
        (one,) = generation.continuations
        assert one.log_prob == pytest.approx(total, abs=1e-10)
        assert not one.complete
        assert generation.cut_off
    assert [
        generation.continuations[0].log_prob for generation in generator.generate(["the"], with_scores=False)
    ] == [None]


def test_the_end_token_completes_a_text() -> None:
    model, tokenizer = gpt2().double().eval(), gpt2_like()
    written = loop(model, tokenizer("the cat")["input_ids"])
    place = next(place for place in range(2, NEW_TOKENS) if written[place] not in written[:place])
    model.generation_config.eos_token_id = written[place]
    (found,) = TextGenerator(model, tokenizer, max_new_tokens=NEW_TOKENS).generate(["the cat"])
    assert found.text == tokenizer.decode(written[:place])
    assert found.continuations[0].complete
    assert not found.cut_off


def test_the_model_can_end_without_writing_text() -> None:
    model, tokenizer = gpt2().double().eval(), gpt2_like()
    model.generation_config.eos_token_id = loop(model, tokenizer("the cat")["input_ids"], 1)[0]
    (found,) = TextGenerator(model, tokenizer).generate(["the cat"])
    assert found == Generation("the cat", (GeneratedText("", True, 0.0),))


def test_a_text_ends_before_the_first_stop_text() -> None:
    model, tokenizer = gpt2().eval(), gpt2_like()
    (whole,) = TextGenerator(model, tokenizer, max_new_tokens=NEW_TOKENS)(["the cat"])
    options = {"max_new_tokens": NEW_TOKENS, "stop": [whole[6:9], whole[3:5], "never"]}
    (found,) = TextGenerator(model, tokenizer, **options).generate(["the cat"])
    assert found.text == whole[: min(whole.find(whole[6:9]), whole.find(whole[3:5]))]
    assert found.continuations[0].complete


@pytest.mark.parametrize("make", [gpt2_like, ours_like], ids=["bytes", "pieces"])
def test_scores_and_texts_up_to_a_stop_text_do_not_depend_on_the_batch(
    make: Callable[[], PreTrainedTokenizerBase],
) -> None:
    model, tokenizer = gpt2().double().eval(), make()
    prompts = [*PROMPTS, "the cat "]
    whole = TextGenerator(model, tokenizer, max_new_tokens=NEW_TOKENS)(prompts)
    stop = [text[4:6] for text in whole if text[4:6].strip()]
    generator = TextGenerator(model, tokenizer, max_new_tokens=NEW_TOKENS, stop=stop)
    together = list(generator.generate(prompts))
    assert any(one.continuations[0].complete for one in together)
    assert [generation.text for generation in together] == [before_stop(text, stop) for text in whole]
    for prompt, generation in zip(prompts, together, strict=True):
        (alone,) = generator.generate([prompt])
        assert alone.continuations[0].complete == generation.continuations[0].complete
        log_prob = alone.continuations[0].log_prob
        assert generation.continuations[0].log_prob == pytest.approx(log_prob, abs=1e-10)
    stopped = next(place for place, one in enumerate(together) if one.continuations[0].complete)
    (prompt,) = generator.language_model.encode([prompts[stopped]])
    written = loop(model, list(prompt.token_ids))
    for count in range(1, NEW_TOKENS):  # the first tokens whose text has a stop text
        part = tokenizer.decode([*prompt.token_ids, *written[:count]])
        if any(text in part[len(tokenizer.decode(prompt.token_ids)) :] for text in stop):
            break
    expected = 0.0
    for place, token in enumerate(written[:count]):
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt.token_ids, *written[:place]]])).logits[0, -1]
        expected += logits.log_softmax(-1)[token].item()
    assert together[stopped].continuations[0].log_prob == pytest.approx(expected, abs=1e-10)


def test_stop_texts_of_the_model_itself_are_kept() -> None:
    model, tokenizer = gpt2().eval(), gpt2_like()
    whole = TextGenerator(model, tokenizer, max_new_tokens=NEW_TOKENS)(PROMPTS)
    model.generation_config.stop_strings = [whole[0][3:5]]
    found = TextGenerator(model, tokenizer, max_new_tokens=NEW_TOKENS)(PROMPTS)
    assert found == [before_stop(text, [whole[0][3:5]]) for text in whole]
    assert found[0] != whole[0]


# A space at the end of a prompt.


@pytest.mark.parametrize("make", [gpt2_like, ours_like], ids=["bytes", "pieces"])
def test_a_trailing_space_belongs_to_the_next_word_as_in_training(
    make: Callable[[], PreTrainedTokenizerBase],
) -> None:
    model, tokenizer = ours().double().eval(), make()
    tokenizer.eos_token = "</s>"
    row = RowBuilder(tokenizer, "train").row({"prompt": "the cat ", "completion": "sat"})
    prompt = row.token_ids[: row.prompt_length]
    tokens = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    spaced = torch.zeros(320, dtype=torch.bool)
    spaced[[place for place, token in enumerate(tokens) if token[0] in "Ġ▁"]] = True
    spaced[model.generation_config.eos_token_id] = True

    def change(written: list[int], scores: torch.Tensor) -> torch.Tensor:
        return scores if written else scores.masked_fill(~spaced, -math.inf)

    written = loop(model, prompt, change=change)
    assert written != loop(model, prompt)  # else nothing had to be excluded
    generator = TextGenerator(model, tokenizer, max_new_tokens=NEW_TOKENS)
    (found,) = generator(["the cat "])
    assert "the cat " + found == tokenizer.decode(prompt + written, skip_special_tokens=True)
    assert generator(["the cat ", "the cat", "the cat"]) == [found, *generator(["the cat"] * 2)]


def wordpiece_like() -> PreTrainedTokenizerBase:
    """It drops white space at the end of a text."""
    words = ["[UNK]", "[PAD]", "the", "cat", "sat", "on", "a", "##s", "mat"]
    tokenizer = Tokenizer(models.WordPiece({word: number for number, word in enumerate(words)}))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]", eos_token="[PAD]"
    )


def with_line_feeds() -> PreTrainedTokenizerBase:
    """As GPT-2's, it has a token for two line feeds, which are two tokens where a word follows."""
    tokenizer = gpt2_like()
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    state["model"]["merges"].append(["Ċ", "Ċ"])
    state["model"]["vocab"]["ĊĊ"] = len(state["model"]["vocab"])
    made = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(state)), eos_token="</s>")
    assert made.tokenize("a\n\n")[-1] == "ĊĊ"
    assert made.tokenize("a\n\na")[-3:] == ["Ċ", "Ċ", "a"]
    return made


@pytest.mark.parametrize("end", [" ", "  ", "\n", "\n\n", "\t", " \n", "\n "])
@pytest.mark.parametrize("make", [gpt2_like, with_line_feeds, ours_like, wordpiece_like])
def test_trailing_white_space_is_tokenized_as_before_a_word(
    make: Callable[[], PreTrainedTokenizerBase], end: str
) -> None:
    tokenizer = make()
    model = ours().eval()
    (prompt,) = LanguageModel(model, tokenizer).encode([f"the cat{end}"])
    whole = tokenizer(f"the cat{end}sat")["input_ids"]
    assert whole[: len(prompt.token_ids)] == list(prompt.token_ids)
    missing = tokenizer.decode(whole).removeprefix(tokenizer.decode(prompt.token_ids))
    assert missing == (" sat" if prompt.before_space else "sat")
    (text,) = TextGenerator(model, tokenizer, max_new_tokens=4)([f"the cat{end}"])
    assert not text.startswith(" ") or prompt.before_space


def test_a_tokenizer_that_keeps_spaces_apart_changes_nothing() -> None:
    tokenizer = gpt2_like()
    tokenizer.backend_tokenizer.pre_tokenizer = None  # no spaces are joined to words
    tokenizer.backend_tokenizer.model = type(tokenizer.backend_tokenizer.model)(
        vocab={chr(number): number for number in range(32, 127)} | {"a b": 300}, merges=[]
    )
    generator = TextGenerator(gpt2().eval(), tokenizer)
    (prompt,) = generator.language_model.encode(["the cat "])
    assert not prompt.before_space
    assert tokenizer.decode(prompt.token_ids).endswith(" ")


# Sampling.


@pytest.mark.parametrize("make", [gpt2, sparse])
def test_samples_do_not_depend_on_batches_and_buffers(make: Callable[[], PreTrainedModel]) -> None:
    model = make().double().eval()
    found = []
    for size, buffer_size in ((10_000, 100), (1, 100), (60, 2), (60, 1)):
        options = {"temperature": 0.9, "top_p": 0.95, "seed": 3, "max_tokens_per_batch": size}
        generator = TextGenerator(model, gpt2_like(), max_new_tokens=6, **options)
        found.append(list(generator.generate(PROMPTS * 2, num_samples=3, buffer_size=buffer_size)))
    for other in found[1:]:
        assert texts_of(other) == texts_of(found[0])
    texts = [tuple(texts) for texts in texts_of(found[0])]
    assert len(set(texts)) == 2 * len(PROMPTS)  # equal prompts have their own random numbers
    assert all(len(set(of_prompt)) > 1 for of_prompt in texts)


VALUES: dict[str, Any] = {
    "no_repeat_ngram_size": 1,
    "repetition_penalty": 5.0,
    "temperature": 3.0,
    "top_k": 1,
    "top_p": 0.01,
    "seed": 7,
    "max_new_tokens": 3,
    "stop": ["j"],
}


def test_every_generation_option_is_tested() -> None:
    assert {field.name for field in fields(GenerationOptions)} <= {*VALUES}


@pytest.mark.parametrize("name", VALUES)
def test_every_option_changes_the_text(name: str) -> None:
    given: dict[str, Any] = {"temperature": 1.0} if name in ("top_k", "top_p", "seed") else {}
    model, tokenizer = gpt2().double().eval(), gpt2_like()
    plain = TextGenerator(model, tokenizer, **{"max_new_tokens": NEW_TOKENS, **given})(PROMPTS)
    changed = TextGenerator(model, tokenizer, **{"max_new_tokens": NEW_TOKENS, **given, name: VALUES[name]})(
        PROMPTS
    )
    assert changed != plain


@pytest.mark.parametrize("place", ["option", "model"])
@pytest.mark.parametrize("name", ["repetition_penalty", "no_repeat_ngram_size"])
def test_penalties_count_the_tokens_of_the_text_and_no_padding(name: str, place: str) -> None:
    model, tokenizer = gpt2().double().eval(), gpt2_like()
    tokenizer.pad_token = None  # shorter prompts would be padded with token 0
    with torch.no_grad():
        model.lm_head.weight[0] = model.lm_head.weight.abs().mean(0)  # a likely token
    if place == "model":
        setattr(model.generation_config, name, VALUES[name])
    options = {name: VALUES[name]} if place == "option" else {}
    generator = TextGenerator(model, tokenizer, max_new_tokens=NEW_TOKENS, **options)
    alone = [generator([prompt])[0] for prompt in PROMPTS]
    assert generator(PROMPTS) == alone
    if name == "no_repeat_ngram_size":
        for prompt in PROMPTS[:1]:
            written = tokenizer(prompt)["input_ids"]

            def change(tokens: list[int], scores: torch.Tensor, before: list[int] = written) -> torch.Tensor:
                return scores.index_fill(0, torch.tensor(before + tokens), -math.inf)

            assert tokenizer.decode(written + loop(model, written, change=change)) == prompt + alone[0]


SETTINGS = {
    "min_length": 12,
    "forced_bos_token_id": 7,
    "encoder_repetition_penalty": 5.0,
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_of_the_model_that_count_tokens_do_not_count_padding(name: str) -> None:
    model, tokenizer = gpt2().double().eval(), gpt2_like()
    model.generation_config.eos_token_id = loop(model, tokenizer(PROMPTS[3])["input_ids"])[2]
    plain = TextGenerator(model, tokenizer, max_new_tokens=NEW_TOKENS)
    prompts = [*PROMPTS, "1"]
    before = plain(prompts)
    setattr(model.generation_config, name, SETTINGS[name])
    generator = TextGenerator(model, tokenizer, max_new_tokens=NEW_TOKENS)
    found = generator(prompts)
    assert found == [generator([prompt])[0] for prompt in prompts]
    assert found != before


@pytest.mark.parametrize("name", [*SETTINGS, "encoder_no_repeat_ngram_size"])
def test_settings_that_count_tokens_are_detected(name: str) -> None:
    model = gpt2()
    assert not counts_prompts(model, GenerationOptions())
    setattr(model.generation_config, name, SETTINGS.get(name, 2))
    assert counts_prompts(model, GenerationOptions())


def test_settings_that_change_the_form_of_the_result_are_ignored() -> None:
    model, tokenizer = gpt2().double().eval(), gpt2_like()
    generator = TextGenerator(model, tokenizer, max_new_tokens=NEW_TOKENS)
    expected = generator(PROMPTS)
    others = {"return_dict_in_generate": True, "prompt_lookup_num_tokens": 2, "forced_eos_token_id": 3}
    others |= {"do_sample": True, "num_return_sequences": 3, "max_time": 1e-9, "eos_token_id": [2, 99_999]}
    for name, value in others.items():
        setattr(model.generation_config, name, value)
    assert generator([*PROMPTS, "the "])[:-1] == expected


def test_settings_that_need_more_than_a_model_are_refused() -> None:
    model = gpt2().eval()
    model.generation_config.token_healing = True
    with pytest.raises(
        UserError, match=r"generate refuses the model or its generation_config: .*token healing"
    ):
        TextGenerator(model, gpt2_like())(PROMPTS)


def recurrent() -> PreTrainedModel:
    """Two recurrent layers and one of attention."""
    shape = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 48}
    return RecurrentGemmaForCausalLM(
        RecurrentGemmaConfig(vocab_size=320, **shape, lru_width=24, attention_window_size=16)
    )


def long_rotary() -> PreTrainedModel:
    shape = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 48}
    factors = {"short_factor": [1.0] * 4, "long_factor": [3.0] * 4}
    rope = {"rope_type": "longrope", "rope_theta": 1e4, **factors}
    limits = {"max_position_embeddings": 64, "original_max_position_embeddings": 16, "initializer_range": 0.5}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    return Phi3ForCausalLM(Phi3Config(vocab_size=320, **shape, **limits, **tokens, rope_parameters=rope))


@pytest.mark.parametrize("make", [recurrent, long_rotary, bart, sparse])
def test_models_that_read_padding_are_detected(make: Callable[[], PreTrainedModel]) -> None:
    assert reads_padding(make().eval())


def test_a_long_prompt_does_not_change_the_rotary_positions_of_others() -> None:
    generator = TextGenerator(long_rotary().double().eval(), gpt2_like(), max_new_tokens=4)
    together = list(generator.generate(PROMPTS))
    for prompt, generation in zip(PROMPTS, together, strict=True):
        (alone,) = generator.generate([prompt])
        assert alone.text == generation.text
        log_prob = alone.continuations[0].log_prob
        assert generation.continuations[0].log_prob == pytest.approx(log_prob, abs=1e-6)


@pytest.mark.parametrize("make", [gpt2, llama])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_models_that_mask_padding_are_batched(
    make: Callable[[], PreTrainedModel], dtype: torch.dtype
) -> None:
    assert not reads_padding(make().to(dtype).eval())


# Limits.


def test_a_continuation_ends_where_the_positions_end() -> None:
    model, tokenizer = ours().double().eval(), ours_like()
    positions = model.config.max_position_embeddings
    generator = TextGenerator(model, tokenizer, max_new_tokens=positions)
    for prompt in (LONG, "the"):
        (found,) = generator.generate([prompt])
        prompt_ids = tokenizer(prompt)["input_ids"]
        written = loop(model, prompt_ids, positions + 1 - len(prompt_ids))
        assert prompt + found.text == tokenizer.decode(prompt_ids + written, skip_special_tokens=True)
        assert found.cut_off
    assert generator([LONG, "the"]) == [generator([LONG])[0], generator(["the"])[0]]


def test_a_prompt_that_fills_the_positions_has_one_more_token() -> None:
    model, tokenizer = gpt2().double().eval(), gpt2_like()
    words = " ".join(["the cat"] * 100)
    prompt = tokenizer.decode(tokenizer(words)["input_ids"][:64])
    assert len(tokenizer(prompt)["input_ids"]) == 64
    (found, longer) = TextGenerator(model, tokenizer).generate([prompt, prompt + " the"])
    assert found.text == tokenizer.decode(loop(model, tokenizer(prompt)["input_ids"], 1))
    assert longer.continuations == ()
    assert longer.text == ""
    assert longer.problem == (
        "it has 65 tokens, and the model has positions for 64; shorten it, or give too_long=cut"
    )


@pytest.mark.parametrize("make", [gpt2_like, ours_like], ids=["bytes", "pieces"])
def test_a_cut_prompt_keeps_its_begin_tokens_and_its_end(
    make: Callable[[], PreTrainedTokenizerBase],
) -> None:
    model, tokenizer = ours().double().eval(), make()
    long = " ".join([TEXT] * 3)
    generator = TextGenerator(model, tokenizer, max_new_tokens=NEW_TOKENS, too_long="cut")
    found, short = generator.generate([long, "the"])
    token_ids = tokenizer(long)["input_ids"]
    leading = token_ids[: len(generator.language_model.leading)]
    read = leading + token_ids[len(token_ids) - (65 - NEW_TOKENS) + len(leading) :]
    written = loop(model, read)
    assert found.prompt_cut_off
    assert not short.prompt_cut_off
    assert tokenizer.decode(read, skip_special_tokens=True) + found.text == tokenizer.decode(
        read + written, skip_special_tokens=True
    )


def test_a_cut_chat_keeps_the_first_token_that_its_template_writes() -> None:
    model, tokenizer = ours().double().eval(), gpt2_like()
    tokenizer.bos_token = "<s>"
    tokenizer.chat_template = "{{ bos_token }}{% for message in messages %}{{ message.content }}{% endfor %}"
    generator = TextGenerator(model, tokenizer, max_new_tokens=NEW_TOKENS, too_long="cut", chat=True)
    (found,) = generator.generate([[{"role": "user", "content": " ".join([TEXT] * 3)}]])
    token_ids = tokenizer(" ".join([TEXT] * 3))["input_ids"]
    read = [tokenizer.bos_token_id, *token_ids[len(token_ids) - (65 - NEW_TOKENS) + 1 :]]
    assert found.prompt_cut_off
    assert tokenizer.decode(loop(model, read), skip_special_tokens=True) == found.text


def test_a_model_without_a_limit_reads_long_prompts() -> None:
    model = ours(position_embedding="sinusoidal").double().eval()
    (text,) = TextGenerator(model, gpt2_like(), max_new_tokens=3)([" ".join([TEXT] * 3)])
    assert text


def test_positions_after_the_padding_index_do_not_count() -> None:
    """RoBERTa counts positions from its padding index on."""
    shape = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 48}
    config = RobertaConfig(
        vocab_size=320, **shape, max_position_embeddings=34, is_decoder=True, pad_token_id=1
    )
    generator = TextGenerator(RobertaForCausalLM(config).eval(), gpt2_like(), max_new_tokens=100)
    assert generator.language_model.positions == 32
    (found,) = generator.generate(["the cat"])
    assert found.cut_off


def test_prompts_of_which_none_can_be_continued_are_left_empty() -> None:
    generator = TextGenerator(gpt2().eval(), gpt2_like(), max_new_tokens=3)
    long = " ".join([TEXT] * 3)
    assert [generation.text for generation in generator.generate(["", long], buffer_size=1)] == ["", ""]


def test_progress_counts_every_prompt_once() -> None:
    long = " ".join([TEXT] * 3)
    prompts = [*PROMPTS, "", long, *PROMPTS]
    for samples in (1, 3):
        generator = TextGenerator(
            gpt2().eval(), gpt2_like(), max_new_tokens=3, temperature=1.0, max_tokens_per_batch=40
        )
        done: list[int] = []
        found = list(generator.generate(prompts, num_samples=samples, progress=done.append, buffer_size=5))
        assert [generation.prompt for generation in found] == prompts
        assert sum(done) == len(prompts)
        assert len(done) > 3


# Chats.


@pytest.fixture(scope="module", params=["bytes", "pieces"])
def chatting(request: pytest.FixtureRequest) -> PreTrainedTokenizerBase:
    tokenizer = gpt2_like(with_bos=True) if request.param == "bytes" else ours_like()
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def test_a_chat_is_read_as_in_training(chatting: PreTrainedTokenizerBase) -> None:
    model = ours().double().eval()
    row = RowBuilder(chatting, "train").row({"messages": json.dumps(CHAT)})
    generator = TextGenerator(model, chatting, max_new_tokens=NEW_TOKENS)
    (prompt,) = generator.language_model.encode([generator._request(CHAT[:1], 0).text], rendered=True)
    assert list(prompt.token_ids) == row.token_ids[: row.prompt_length]
    texts = generator([CHAT[:1], "the cat", CHAT])
    assert texts == [*generator([CHAT[:1]]), *generator(["the cat"]), *generator([CHAT[:1]])]
    assert texts[0] != texts[1]


def test_content_parts_are_joined_and_tool_calls_need_no_content(
    chatting: PreTrainedTokenizerBase,
) -> None:
    generator = TextGenerator(ours().eval(), chatting, max_new_tokens=4)
    parts = [{"type": "text", "text": "is "}, {"type": "text", "text": "that"}]
    assert generator([[{"role": "user", "content": parts}]]) == generator([CHAT[:1]])
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
    chatting.chat_template = TEMPLATE.replace("message.content", "message.content or message.tool_calls")
    assert generator([[call, CHAT[0]]]) != generator([[CHAT[0]]])
    chatting.chat_template = TEMPLATE
    picture = [{"role": "user", "content": [{"type": "image", "url": "x.png"}]}]
    with pytest.raises(
        UserError, match=r'prompt 1 is neither .* the content of message 1 is \[{"type": "image'
    ):
        generator([picture])


def test_a_chat_that_the_template_refuses_has_its_problem(chatting: PreTrainedTokenizerBase) -> None:
    chatting.chat_template = (
        "{% if messages | length > 1 %}{{ raise_exception('one user only') }}{% endif %}the"
    )
    generator = TextGenerator(gpt2().eval(), chatting, max_new_tokens=3)
    chats = [CHAT[:1], [*CHAT, *CHAT], CHAT[:1]]
    first, refused, last = generator.generate(chats)
    assert refused.problem is not None
    assert refused.problem.startswith("the chat template refuses it (one user only): [{")
    assert refused.continuations == ()
    assert first.text == last.text != ""
    with pytest.raises(UserError, match=r"prompt 2: the chat template refuses it \(one user only\)"):
        generator(chats)
    chatting.chat_template = TEMPLATE


# What is refused.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens=0 must be at least 1"),
        ({"max_tokens_per_batch": 0}, "max_tokens_per_batch=0 must be at least 1"),
        ({"too_long": "warn"}, "too_long=warn is unknown; expected cut or skip"),
        ({"stop": "end"}, r"stop is one text; give a list: \['end'\]"),
        ({"stop": [""]}, "stop holds an empty text, which would end every continuation"),
        ({"temperature": 0}, "temperature=0 must be above 0"),
        ({"top_p": 1.5, "temperature": 1}, "top_p=1.5 must be above 0 and at most 1"),
        ({"seed": 3}, "seed=3 is for sampling, and no temperature is given; add temperature=1"),
        ({"repetition_penalty": 0}, "repetition_penalty=0 must be above 0"),
        (
            {"max_new_tokens": 64, "too_long": "cut"},
            "max_new_tokens=64 leaves no room for a prompt: the model has positions for 64 tokens",
        ),
    ],
)
def test_contradictory_options_raise_an_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        TextGenerator(gpt2(), gpt2_like(with_bos=True), **options)


@pytest.mark.parametrize(
    ("prompts", "arguments", "message"),
    [
        ("the cat", {}, r"expected a list of prompts, got one text: write \['the cat'\]"),
        ({"role": "user", "content": "the"}, {}, "expected a list of prompts, got a dict: give one of its"),
        (["the", None], {}, "prompt 2 is neither a text nor a chat: it is no list of messages"),
        ([[{"role": "user"}]], {}, "prompt 1 is neither a text nor a chat: the content of message 1 is null"),
        ([CHAT], {}, "prompt 1 is a chat, and the tokenizer has no chat template; give texts"),
        (["\ud800"], {}, "has half of a surrogate pair"),
        (["the"], {"num_samples": 2}, "num_samples=2 needs sampling, because greedy search finds one text"),
        (["the"], {"num_samples": 0}, "num_samples=0 must be at least 1"),
        (["the"], {"buffer_size": 0}, "buffer_size=0 must be at least 1"),
    ],
)
def test_invalid_prompts_raise_an_error(prompts: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        list(TextGenerator(gpt2().eval(), gpt2_like()).generate(prompts, **arguments))


def test_an_empty_prompt_is_continued_after_the_begin_token() -> None:
    model = gpt2().double().eval()
    with pytest.raises(UserError, match="prompt 2: it is empty, and the tokenizer has no token that begins"):
        TextGenerator(model, gpt2_like())(["the", ""])
    tokenizer = gpt2_like(with_bos=True)
    (text,) = TextGenerator(model, tokenizer, max_new_tokens=4)([""])
    assert text == tokenizer.decode(loop(model, [1], 4), skip_special_tokens=True)


def test_scores_that_are_not_numbers_write_no_texts() -> None:
    model = llama()
    torch.nn.init.constant_(model.model.norm.weight, math.nan)
    with pytest.raises(RunError, match="scores are not finite numbers in float32"):
        TextGenerator(model, gpt2_like())(["the"])
