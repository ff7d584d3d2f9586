"""Classifiers, encoders and causal models that ONNX Runtime computes find what PyTorch finds."""

import json
import shutil
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DynamicCache,
)

import toy_prompting
from exported_toys import CAUSAL, exported_toys, save_bare_encoder, saved_toys
from tiny_causal import gpt2_like
from toy_labels import (
    TASKS,
    toy_rows,
    toy_tokenizer,
    write_jsonl,
    write_toy_rows,
)
from toy_questions import toy_questions
from vaswani import Classifier, Embedder, TextGenerator
from vaswani.cli import run
from vaswani.errors import UserError
from vaswani.inference.align.aligner import Aligner
from vaswani.inference.answer.answering import QuestionAnswerer
from vaswani.inference.onnx.loading import load_onnx
from vaswani.inference.onnx.one_stack import OnnxCausalModel, OnnxModel
from vaswani.inference.prompt.prompting import Prompter
from vaswani.interop import export_folder
from vaswani.interop.to_onnx import MODEL
from vaswani.model.compatibility import CACHE_NAME

__all__ = ["exported_toys", "saved_toys"]

pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.slow  # an export takes seconds

SPANISH = [f" {word}" for word in toy_prompting.NUMERALS["Spanish"]]
PROMPTS = ["the cat sat on", "is that right? yes, no, maybe; it is a very good cat", "maybe", "1 2", "the "]


def loaded(of_class: Any, folders: tuple[Path, Path], **options: Any) -> tuple[Any, Any]:
    """A model by PyTorch and by ONNX Runtime."""
    return (
        of_class.from_pretrained(folders[0], device="cpu", **options),
        of_class.from_pretrained(folders[1], engine="onnx", **options),
    )


def near(expected: Any) -> Any:
    """What is compared with numbers that differ by rounding."""
    if isinstance(expected, dict):
        return {key: near(value) for key, value in expected.items()}
    if isinstance(expected, list):
        return [near(value) for value in expected]
    return pytest.approx(expected, abs=1e-4) if isinstance(expected, float) else expected


@pytest.mark.parametrize("task", TASKS)
def test_labels_and_their_probabilities(task, exported_toys):
    texts = [row["text"] for row in toy_rows(task, 20, seed=5)]
    texts = texts if task == "tagging" else [*texts, "", ("the film was great", "bob was in oslo")]
    expected, found = (
        each(texts) for each in loaded(Classifier, exported_toys(task), max_tokens_per_batch=60)
    )
    for by_torch, by_onnx in zip(expected, found, strict=True):
        assert vars(by_onnx) == near(vars(by_torch))
    assert len({str(prediction) for prediction in found}) > 9


@pytest.mark.parametrize("name", ["answerer", "decoder_answerer"])
def test_answers_to_questions(name, exported_toys):
    pairs = [(row["question"], row["context"]) for row in toy_questions(9, seed=3, words=40)]
    expected, found = (list(each.answer(pairs)) for each in loaded(QuestionAnswerer, exported_toys(name)))
    for by_torch, by_onnx in zip(expected, found, strict=True):
        assert by_onnx.text == by_torch.text
        assert by_onnx.null_odds == pytest.approx(by_torch.null_odds, abs=1e-3)


@pytest.mark.parametrize("name", ["encoder", "decoder", "translator"])
def test_vectors(name, exported_toys):
    texts = ["the great film", "", "ann was in rome and the film was awful"]
    for pooling in ("mean", "cls"):
        by_torch, by_onnx = loaded(Embedder, exported_toys(name), pooling=pooling, max_tokens_per_batch=30)
        torch.testing.assert_close(by_onnx.embed(texts), by_torch.embed(texts), atol=1e-4, rtol=0)
    for expected, found in zip(by_torch.embed_words(texts), by_onnx.embed_words(texts), strict=True):
        torch.testing.assert_close(found.vectors, expected.vectors, atol=1e-4, rtol=0)


def test_the_pooling_of_sentence_transformers_is_kept(tmp_path):
    pytest.importorskip("sentence_transformers")
    save_bare_encoder(tmp_path / "model")
    kinds = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for number, (kind, path) in enumerate(kinds.items())
    ]
    (tmp_path / "model" / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "model" / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 32, "pooling_mode_cls_token": True}
    (tmp_path / "model" / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    export_folder(str(tmp_path / "model"), tmp_path / "onnx", "onnx")
    by_torch, by_onnx = loaded(Embedder, (tmp_path / "model", tmp_path / "onnx"))
    assert by_onnx.pooling == "cls"
    vectors = by_onnx.embed(["the great film", "ann"])
    torch.testing.assert_close(vectors, by_torch.embed(["the great film", "ann"]), atol=1e-4, rtol=0)
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(2))


@pytest.mark.parametrize("options", [{}, {"temperature": 0.8, "top_k": 20, "stop": ["a"]}], ids=str)
@pytest.mark.parametrize("name", CAUSAL)
def test_continuations_and_their_scores(name, options, exported_toys):
    by_torch, by_onnx = loaded(TextGenerator, exported_toys(name), max_new_tokens=12, **options)
    samples = 2 if options else 1
    expected = list(by_torch.generate(PROMPTS, num_samples=samples))
    found = list(by_onnx.generate(PROMPTS, num_samples=samples))
    for one, other in zip(expected, found, strict=True):
        assert [each.text for each in other.continuations] == [each.text for each in one.continuations]
        scores = [each.log_prob for each in one.continuations]
        assert [each.log_prob for each in other.continuations] == pytest.approx(scores, abs=1e-3)
    assert len({each.text for each in found}) > 3


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"num_beams": 2, "use_cache": False}], ids=str)
@pytest.mark.parametrize("name", CAUSAL)
def test_generate_takes_padding_on_the_left(name, options, exported_toys):
    tokenizer = AutoTokenizer.from_pretrained(exported_toys(name)[0], pad_token="<pad>")
    inputs = tokenizer(
        PROMPTS, padding=True, padding_side="left", return_tensors="pt", return_token_type_ids=False
    )
    reference = AutoModelForCausalLM.from_pretrained(exported_toys(name)[0]).eval()
    model = load_onnx(exported_toys(name)[1], threads=1)
    assert isinstance(model, OnnxCausalModel)
    expected = reference.generate(**inputs, max_new_tokens=10, **options)
    assert torch.equal(model.generate(**inputs, max_new_tokens=10, **options), expected)


def test_other_positions_than_those_of_the_file_raise_an_error(exported_toys):
    ids, positions = torch.tensor([[5, 6, 7]]), torch.tensor([[0, 1, 2]])
    counts_shown, counts_all = (
        load_onnx(exported_toys(name)[1]) for name in ("causal", "causal_counting_all")
    )
    assert torch.equal(
        counts_shown(ids, position_ids=positions).logits, counts_shown(ids, position_ids=None).logits
    )
    with pytest.raises(ValueError, match="position_ids have other positions; leave them out"):
        counts_shown(ids, position_ids=positions + 1)
    moved = counts_all(ids, position_ids=positions + 1).logits
    reference = AutoModelForCausalLM.from_pretrained(exported_toys("causal_counting_all")[0])
    torch.testing.assert_close(moved, reference(ids, position_ids=positions + 1).logits, atol=1e-4, rtol=0)
    assert not torch.equal(moved, counts_all(ids).logits)


def test_the_cache_of_another_model_is_refused(exported_toys):
    model = load_onnx(exported_toys("causal")[1])
    ids = torch.tensor([[5, 6, 7]])
    reference = AutoModelForCausalLM.from_pretrained(exported_toys("causal")[0])
    cache = reference(ids, use_cache=True).past_key_values
    with pytest.raises(ValueError, match="past_key_values is a DynamicCache of another model"):
        model(ids, torch.ones(1, 6), past_key_values=cache)
    assert torch.equal(model(ids, past_key_values=DynamicCache()).logits, model(ids).logits)


WRONG_INPUTS: dict[str, tuple[str, dict[str, Any], str]] = {
    "mask of 2": ("encoder", {"attention_mask": torch.full((2, 3), 2)}, "holds 2; expected 1 for tokens"),
    "additive mask": ("causal", {"attention_mask": torch.zeros(2, 1, 3, 3)}, "a mask of padding alone"),
    "short mask": ("causal", {"attention_mask": torch.ones(2, 2)}, r"shape \[2, 2\]; expected \[2, 3\]"),
    "packed": ("causal_counting_all", {"position_ids": torch.tensor([[0, 1, 0]])}, "restart within a row"),
    "negative": (
        "causal_counting_all",
        {"position_ids": torch.full((2, 3), -1)},
        "counted from 0",
    ),
    "a row": ("encoder", {"input_ids": torch.ones(3, dtype=torch.long)}, r"expected \[rows, tokens\]"),
    "floats": ("encoder", {"input_ids": torch.ones(2, 3)}, "expected integers"),
    "nothing": (
        "encoder",
        {"input_ids": torch.ones(2, 0, dtype=torch.long)},
        "give one row of one token or more",
    ),
    "a list": ("encoder", {"input_ids": [[3, 4]]}, "input_ids is a list"),
    "too long": ("encoder", {"input_ids": torch.full((1, 41), 5)}, "41 tokens is longer than max_position"),
    "too long a text": ("causal_counting_all", {"input_ids": torch.full((1, 65), 5)}, "65 tokens is longer"),
    "unknown argument": (
        "causal",
        {"inputs_embeds": torch.ones(1)},
        "inputs_embeds cannot be used",
    ),
    "without effect": ("causal", {"head_mask": torch.ones(1)}, "head_mask has no effect on this model"),
}


@pytest.mark.parametrize(("name", "given", "message"), WRONG_INPUTS.values(), ids=WRONG_INPUTS)
def test_inputs_that_the_file_would_compute_wrongly_raise_an_error(name, given, message, exported_toys):
    model = load_onnx(exported_toys(name)[1])
    inputs = {"input_ids": torch.tensor([[5, 6, 7], [8, 9, 5]])}
    assert isfinite(float(model(**inputs)[0].sum()))
    with pytest.raises((ValueError, TypeError), match=message):
        model(**inputs | given)


def test_int32_inputs_and_broadcast_positions_are_accepted(exported_toys):
    model, ids = load_onnx(exported_toys("causal_counting_all")[1]), torch.tensor([[5, 6, 7], [8, 9, 5]])
    expected = model(ids, position_ids=torch.tensor([[2, 3, 4], [2, 3, 4]])).logits
    assert torch.equal(model(ids.int(), position_ids=torch.tensor([[2, 3, 4]])).logits, expected)


def test_a_decoder_that_classifies_finds_the_padding_as_pytorch_does(exported_toys):
    rows = torch.tensor([[5, 6, 7], [8, 9, 0]])
    reference = AutoModelForSequenceClassification.from_pretrained(exported_toys("decoder_classifier")[0])
    model = load_onnx(exported_toys("decoder_classifier")[1])
    assert reference.config.pad_token_id == 0
    expected = reference(rows).logits
    torch.testing.assert_close(model(rows).logits, expected, atol=1e-4, rtol=0)
    assert not torch.allclose(model(rows, torch.ones(2, 3)).logits[1], expected[1], atol=1e-3)


def test_an_exported_model_cannot_be_saved_or_converted(exported_toys, tmp_path):
    model = load_onnx(exported_toys("encoder")[1])
    assert model.to("cpu") is model.to(torch.float32) is model.eval().float() is model
    with pytest.raises(ValueError, match="copy the folder that it was loaded from"):
        model.save_pretrained(tmp_path)
    changes: list[Any] = [model.half, model.bfloat16, model.double, model.cuda, partial(model.to, "meta")]
    for change in changes:
        with pytest.raises(ValueError, match="runs on the CPU, with the types of its export"):
            change()


@pytest.mark.parametrize(
    "options",
    [
        {"stop_strings": ["a"], "tokenizer": gpt2_like(with_bos=True)},
        {"prompt_lookup_num_tokens": 3},
        {"num_return_sequences": 2, "num_beams": 2},
        {"assistant": True},
    ],
    ids=["stop_strings", "prompt_lookup", "num_return_sequences", "assistant"],
)
def test_other_generation_modes_equal_those_of_pytorch(options, exported_toys):
    reference = AutoModelForCausalLM.from_pretrained(exported_toys("causal")[0]).eval()
    model, ids = load_onnx(exported_toys("causal")[1]), torch.tensor([[5, 6, 7, 5, 6]])
    both = []
    for each in (reference, model):
        given = {"assistant_model": each} if options == {"assistant": True} else options
        both.append(each.generate(ids, max_new_tokens=12, **given))
    assert torch.equal(*both)


def test_generation_continues_from_a_given_cache(exported_toys):
    for name in CAUSAL:
        model, ids = load_onnx(exported_toys(name)[1]), torch.tensor([[5, 6, 7, 9]])
        whole = model.generate(ids, max_new_tokens=8)
        cache = model(ids[:, :3], use_cache=True)[CACHE_NAME]
        assert torch.equal(model.generate(ids, max_new_tokens=8, past_key_values=cache), whole)
        cache.crop(2)
        assert cache.get_seq_length() == 2
        rest = model(ids[:, 2:], past_key_values=cache).logits
        torch.testing.assert_close(rest, model(ids).logits[:, 2:], atol=1e-4, rtol=0)


SETTINGS: dict[str, tuple[dict[str, Any], str | None]] = {
    "eos outside": ({"eos_token_id": 5000}, "eos_token_id=5000 is outside the vocabulary of 320 tokens"),
    "eos as text": ({"eos_token_id": "x"}, "eos_token_id='x' must be the number of a token"),
    "static cache": ({"cache_implementation": "static"}, None),
    "attention": ({"output_attentions": True, "output_hidden_states": True}, None),
}


@pytest.mark.parametrize(("settings", "message"), SETTINGS.values(), ids=SETTINGS)
def test_the_settings_of_generation_are_checked(settings, message, exported_toys, tmp_path):
    folder = shutil.copytree(exported_toys("causal")[1], tmp_path / "copy")
    path = folder / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))
    if message is None:
        expected = load_onnx(exported_toys("causal")[1]).generate(torch.tensor([[5, 6]]), max_new_tokens=8)
        assert torch.equal(load_onnx(folder).generate(torch.tensor([[5, 6]]), max_new_tokens=8), expected)
    else:
        with pytest.raises(UserError, match=message):
            load_onnx(folder)


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("classification", "multi_label"),
        ("classification", "answerer"),
        ("classification", "encoder"),
        ("classification", "causal"),
        ("causal", "causal_counting_all"),
        ("causal", "prompted"),
        ("causal", "decoder_classifier"),
    ],
)
def test_the_file_of_another_model_is_refused(name, other, exported_toys, tmp_path):
    folder = shutil.copytree(exported_toys(name)[1], tmp_path / "copy")
    shutil.copyfile(exported_toys(other)[1] / MODEL, folder / MODEL)
    with pytest.raises(UserError, match=r"model.onnx is not the model that config.json beside it describes"):
        load_onnx(folder)


def test_token_types_are_zeros_unless_they_are_given(exported_toys):
    model = load_onnx(exported_toys("classification")[1])
    assert isinstance(model, OnnxModel)
    ids = toy_tokenizer()("the great film", return_tensors="pt").input_ids
    types = torch.zeros_like(ids)
    logits = model(ids).logits
    assert torch.equal(logits, model(ids, torch.ones_like(ids), types).logits)
    assert not torch.equal(logits, model(ids, token_type_ids=types + 1).logits)
    with pytest.raises(ValueError, match="token_type_ids holds 2, and the model knows 0 to 1"):
        model(ids, token_type_ids=types + 2)
    with pytest.raises(ValueError, match="input_ids holds -1, and the model knows 0 to"):
        model(ids.clamp(max=0) - 1)


REFUSED: dict[str, tuple[Any, str, dict[str, Any], str]] = {
    "no states": (
        Embedder,
        "masked",
        {},
        "returns logits, and no states to embed texts by: export",
    ),
    "layers": (
        Embedder,
        "encoder",
        {"layers": "all"},
        "layers=all: .*the states of its last layer only; give",
    ),
    "counted from the end": (
        Embedder,
        "encoder",
        {"layers": [-2]},
        r"layers=\[-2\]: a model in ONNX returns",
    ),
    "another engine": (
        Classifier,
        "classification",
        {"engine": "ctranslate2"},
        "engine=ctranslate2 cannot be used by Classifier; expected torch or onnx",
    ),
    "another class": (Aligner, "translator", {}, "engine=onnx cannot be used by Aligner; expected torch"),
    "another head": (TextGenerator, "decoder_answerer", {}, "VaswaniDecoderForQuestionAnswering; expected"),
    "an encoder": (TextGenerator, "masked", {}, "which does not continue texts; expected a causal model"),
    "dtype": (QuestionAnswerer, "answerer", {"dtype": "bfloat16"}, "dtype=bfloat16 has no effect with"),
}


@pytest.mark.parametrize(("of_class", "name", "options", "message"), REFUSED.values(), ids=REFUSED)
def test_unsupported_exports_and_options_raise_an_error(of_class, name, options, message, exported_toys):
    with pytest.raises(UserError, match=message):
        of_class.from_pretrained(exported_toys(name)[1], **{"engine": "onnx", **options})


def test_a_folder_without_engine_raises_an_error_that_names_it(exported_toys):
    with pytest.raises(UserError, match="holds a model in ONNX, which runs with engine=onnx"):
        Classifier.from_pretrained(exported_toys("classification")[1])


def test_evaluation_of_an_export_equals_that_of_the_model(exported_toys, tmp_path, capfd):
    data = write_toy_rows(tmp_path / "data", "classification")
    found = []
    for engine, folder in zip(("torch", "onnx"), exported_toys("classification"), strict=True):
        assert (
            run(["evaluate", "--model", str(folder), "--data", str(data), "--engine", engine, "--json"]) == 0
        )
        found.append(json.loads(capfd.readouterr().out.splitlines()[-1]))
    assert found[1]["accuracy"] == found[0]["accuracy"]
    assert [record["engine"] for record in found] == ["torch", "onnx"]
    table = write_jsonl(tmp_path / "texts.jsonl", [{"text": "the cat"}])
    arguments = ["--model", str(exported_toys("causal")[1]), "--data", str(table), "--engine", "onnx"]
    assert run(["evaluate", *arguments]) == 2
    assert (
        "--engine is for an encoder-decoder or a classifier or tagger or a question" in capfd.readouterr().err
    )


@pytest.mark.parametrize("options", [{}, {"choices": SPANISH}], ids=["written", "chosen"])
def test_prompted_tasks_have_the_same_answers_as_with_torch(options, exported_toys):
    task = toy_prompting.numeral_task(**options)
    expected, found = (each.answer(task, shots=2) for each in loaded(Prompter, exported_toys("prompted")))
    assert [answer.given for answer in found.answers] == [answer.given for answer in expected.answers]
    assert found.accuracy == expected.accuracy > 0.5


def test_the_options_of_generation_reach_the_search(exported_toys):
    plain, penalized = (
        TextGenerator.from_pretrained(exported_toys("causal")[1], engine="onnx", repetition_penalty=value)(
            PROMPTS
        )
        for value in (None, 2.0)
    )
    assert plain != penalized
