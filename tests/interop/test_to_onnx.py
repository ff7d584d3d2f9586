"""Models exported to ONNX give the same results, for any batch size and length."""

import dataclasses
import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from library_models import randomize
from transformers import BertConfig, BertModel

import vaswani
from toy_translation import save_toy_checkpoint, toy_model, toy_tokenizer, toy_tokenizers
from vaswani import (
    VaswaniConfig,
    VaswaniEncoderModel,
    VaswaniForCausalLM,
    VaswaniForConditionalGeneration,
    VaswaniForTokenClassification,
    VaswaniModel,
)
from vaswani.cli import run
from vaswani.data.tokenization import load_tokenizers, save_tokenizers
from vaswani.errors import UserError
from vaswani.interop import export_folder
from vaswani.interop.folders import convert_folder
from vaswani.interop.to_onnx import (
    DECODER,
    DECODER_WITH_PAST,
    ENCODER,
    EXAMPLE_SIZES,
    GRAPHS,
    MODEL,
    SOURCE,
    TARGET,
    export_to_onnx,
)
from vaswani.model.compatibility import CACHE_NAME

onnxruntime = pytest.importorskip("onnxruntime")

SHAPE: dict[str, Any] = {
    "vocab_size": 61,
    "d_model": 32,
    "encoder_layers": 1,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_layers": 1,
    "decoder_attention_heads": 2,
    "decoder_ffn_dim": 40,
    "max_position_embeddings": 50,
}

GENERATORS = ("VaswaniForConditionalGeneration", "VaswaniForCausalLM")


def choices(field: str) -> tuple[str, ...]:
    types = {each.name: each.type for each in dataclasses.fields(VaswaniConfig)}
    return get_args(types[field])


def matrix() -> list[dict[str, Any]]:
    """All pairs of norm order and kind of positions; each value of the other fields in one of them."""
    orders, positions = choices("norm_order"), choices("position_embedding")
    cases: dict[tuple[str, str], dict[str, Any]] = {
        (order, kind): {
            "norm_order": order,
            "position_embedding": kind,
            **({"decoder_vocab_size": 47} if (i + j) % 2 else {"decoder_layers": 2}),
        }
        for (i, order), (j, kind) in itertools.product(enumerate(orders), enumerate(positions))
    }
    cases["post", "sinusoidal"] |= {
        "sinusoidal_layout": "tensor2tensor",
        "sinusoidal_offset": 2,
        "position_from_mask": False,
        "embedding_norm": True,
        "activation_function": "gelu_new",
        "final_norm": True,
    }
    cases["pre", "sinusoidal"] |= {
        "sinusoidal_layout": "concatenated",
        "lm_head_bias": True,
        "scale_embedding": False,
        "attention_bias": False,
        "norm_bias": False,
        "tie_word_embeddings": False,
        "key_dim": 6,
    }
    return [*cases.values()]


def sessions(folder: Path) -> list[Any]:
    return [
        onnxruntime.InferenceSession(folder / name, providers=["CPUExecutionProvider"])
        for name in (ENCODER, DECODER, DECODER_WITH_PAST)
    ]


def names_of(values: list[Any]) -> list[str]:
    return [value.name for value in values]


def logits_in_steps(
    folder: Path, ids: torch.Tensor, mask: torch.Tensor, target: torch.Tensor, first: int
) -> np.ndarray:
    """Logits of all target tokens: of the first so many without a cache, then with one."""
    encoder, decoder, with_past = sessions(folder)
    (states,) = encoder.run(None, {"input_ids": ids.numpy(), "attention_mask": mask.numpy()})
    inputs = {"encoder_attention_mask": mask.numpy(), "encoder_hidden_states": states}
    logits, *present = decoder.run(None, {**inputs, "input_ids": target[:, :first].numpy()})
    present = dict(zip(names_of(decoder.get_outputs())[1:], present, strict=True))
    found = [logits]
    for tokens in [target[:, first : first + 3], *target[:, first + 3 :].split(1, dim=1)]:
        past = {f"past_key_values.{name.removeprefix('present.')}": value for name, value in present.items()}
        inputs = {"encoder_attention_mask": mask.numpy(), "input_ids": tokens.numpy(), **past}
        logits, *new = with_past.run(None, inputs)
        present |= dict(zip(names_of(with_past.get_outputs())[1:], new, strict=True))
        found.append(logits)
    return np.concatenate(found, axis=1)


@pytest.mark.exhaustive(after=2)
@pytest.mark.slow
@pytest.mark.parametrize("fields", matrix(), ids=str)
def test_logits_are_equal_at_any_batch_and_length(fields, tmp_path):
    config = VaswaniConfig(**{**SHAPE, **fields})
    model = randomize(VaswaniForConditionalGeneration(config)).eval()
    export_to_onnx(model, tmp_path)
    longest = 50 if config.position_embedding == "learned" else 1100  # beyond the table of sinusoids
    generator = np.random.default_rng(0)
    shapes = [(1, 1, 5), (4, longest, 12), *(generator.integers(5, 45, 3) for _ in range(3))]
    assert all(
        length > EXAMPLE_SIZES[axis] for length, axis in zip(shapes[1][1:], (SOURCE, TARGET), strict=True)
    )
    for rows, source, target in shapes:
        ids = torch.randint(3, config.vocab_size, (rows, source))
        mask = torch.rand(rows, source).gt(0.3).long()  # left, right and in holes
        mask[:, source // 2] = 1
        tokens = torch.randint(3, config.decoder_vocab_size, (rows, target))
        with torch.no_grad():
            expected = model(input_ids=ids, attention_mask=mask, decoder_input_ids=tokens).logits
        found = logits_in_steps(tmp_path, ids, mask, tokens, first=min(2, target))
        np.testing.assert_allclose(found, expected, atol=1e-4)


def one_stack(model_class: Any, **fields: Any) -> Any:
    config_class = model_class.config_class
    shape = {name: value for name, value in SHAPE.items() if hasattr(config_class, name)}
    return randomize(model_class(config_class(**{**shape, **fields}))).eval()


FIELDS = {
    "VaswaniDecoderForTokenClassification": {"position_embedding": "none", "norm_order": "post"},
    "VaswaniDecoderForQuestionAnswering": {"decoder_layers": 2},
}


@pytest.mark.exhaustive(after=5)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "fields"),
    [
        *((name, FIELDS.get(name, {})) for name in GRAPHS if name not in GENERATORS),
        ("VaswaniEncoderModel", {"position_embedding": "sinusoidal", "norm_order": "pre", "pooler": False}),
        (
            "VaswaniForSequenceClassification",
            {"classifier_pooling": "mean", "position_from_mask": False, "token_type_vocab_size": 0},
        ),
    ],
    ids=str,
)
def test_outputs_of_one_stack_are_equal(name, fields, tmp_path):
    model = one_stack(getattr(vaswani, name), **fields)
    export_to_onnx(model, tmp_path)
    session = onnxruntime.InferenceSession(tmp_path / MODEL, providers=["CPUExecutionProvider"])
    given = names_of(session.get_inputs())
    assert ("token_type_ids" in given) == bool(getattr(model.config, "token_type_vocab_size", 0))
    for shape in [(1, 1), (1, 8), (5, 23), (2, 50)]:
        shape = (shape[0], 4, shape[1]) if "MultipleChoice" in name else shape
        mask = torch.rand(shape).gt(0.3).long()
        mask[..., shape[-1] // 2] = 1
        inputs = {"input_ids": torch.randint(3, 61, shape), "attention_mask": mask}
        if "token_type_ids" in given:
            inputs["token_type_ids"] = torch.randint(2, shape)
        with torch.no_grad():
            outputs = model(**inputs)
        expected = {key: value for key, value in outputs.items() if key != CACHE_NAME}
        found = session.run(None, {key: value.numpy() for key, value in inputs.items()})
        assert names_of(session.get_outputs()) == [*expected]
        for each, other in zip(found, expected.values(), strict=True):
            np.testing.assert_allclose(each, other, atol=1e-4)


@pytest.mark.exhaustive(after=2)
@pytest.mark.slow
@pytest.mark.parametrize(
    "fields",
    [
        {"position_embedding": "learned", "norm_order": "pre", "decoder_layers": 2},
        {"position_embedding": "sinusoidal", "norm_order": "post"},
        {"position_embedding": "none", "norm_order": "pre", "key_dim": 6},
        {"position_embedding": "learned", "norm_order": "pre", "position_from_mask": False},
    ],
    ids=str,
)
def test_a_causal_model_continues_from_its_cache(fields, tmp_path):
    model = one_stack(VaswaniForCausalLM, **fields)
    export_to_onnx(model, tmp_path)
    session = onnxruntime.InferenceSession(tmp_path / MODEL, providers=["CPUExecutionProvider"])
    counts_all = fields.get("position_from_mask") is False
    assert ("position_ids" in names_of(session.get_inputs())) == counts_all
    longest = 1100 if fields["position_embedding"] == "sinusoidal" else 50
    for rows, length, first_steps in [
        (1, 1, [1]),
        (3, 30, [1, 1, 1]),
        (2, 20, [7, 1, 1]),
        (2, longest, [40]),
    ]:
        steps = [*first_steps, *([length - sum(first_steps)] * (length > 1))]
        ids = torch.randint(3, 61, (rows, length))
        mask = torch.ones_like(ids)
        mask[0, : length // 3] = 0  # on the left
        with torch.no_grad():
            expected = model(input_ids=ids, attention_mask=mask).logits
        names = names_of(session.get_inputs())
        past = {
            each.name: np.zeros((rows, 2, 0, each.shape[3]), np.float32)
            for each in session.get_inputs()
            if each.name.startswith("past_key_values")
        }
        positions = torch.arange(length).expand_as(ids)
        found, end = [], 0
        for step in steps:
            start, end = end, end + step
            inputs = {"input_ids": ids[:, start:end].numpy(), "attention_mask": mask[:, :end].numpy()}
            if "position_ids" in names:
                inputs["position_ids"] = positions[:, start:end].numpy()
            logits, *present = session.run(None, {**inputs, **past})
            past = dict(zip(past, present, strict=True))
            found.append(logits)
        seen = mask.bool().numpy()
        np.testing.assert_allclose(np.concatenate(found, 1)[seen], expected.numpy()[seen], atol=1e-4)


@pytest.mark.slow
def test_a_model_of_labels_is_exported_with_its_head(tmp_path, capsys):
    tokenizer, _ = toy_tokenizers()
    model = one_stack(VaswaniForTokenClassification, num_labels=5)
    model.resize_token_embeddings(len(tokenizer))
    model.save_pretrained(tmp_path / "tagger")
    tokenizer.save_pretrained(tmp_path / "tagger")
    arguments = ["export", "--to", "onnx", str(tmp_path / "tagger"), str(tmp_path / "out")]
    assert run([*arguments, "--quantization", "int8"]) == 0
    assert "VaswaniForTokenClassification for ONNX Runtime, int8" in capsys.readouterr().out
    session = onnxruntime.InferenceSession(tmp_path / "out" / MODEL, providers=["CPUExecutionProvider"])
    assert session.get_outputs()[0].shape == ["batch_size", "sequence_length", 5]
    ids = torch.randint(3, 61, (3, 20))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": ids % 2}
    (found,) = session.run(None, {name: value.numpy() for name, value in inputs.items()})
    with torch.no_grad():
        expected = model(**inputs).logits
    difference = np.abs(found - expected.numpy()).max()
    assert 1e-3 < difference < 0.1 * expected.abs().max()
    assert len(load_tokenizers(tmp_path / "out")[0]) == len(tokenizer)


@pytest.fixture(scope="module")
def half_precision() -> VaswaniForConditionalGeneration:
    """A trained model in bfloat16 with the kernel `sdpa`, which its export must not change."""
    model = toy_model(separate=True).bfloat16()
    model.set_attn_implementation("sdpa")
    return model


@pytest.fixture(scope="module")
def exported(half_precision, tmp_path_factory) -> Path:
    """It in float32."""
    folder = tmp_path_factory.mktemp("exported")
    before = {name: tensor.clone() for name, tensor in half_precision.state_dict().items()}
    export_to_onnx(half_precision, folder)
    assert all(torch.equal(before[name], tensor) for name, tensor in half_precision.state_dict().items())
    return folder


@pytest.mark.slow
def test_inputs_and_outputs_have_the_names_of_optimum(half_precision, exported):
    assert half_precision.dtype == torch.bfloat16
    assert half_precision.config._attn_implementation == "sdpa"
    encoder, decoder, with_past = sessions(exported)
    assert [(i.name, i.shape) for i in encoder.get_inputs()] == [
        ("input_ids", ["batch_size", "encoder_sequence_length"]),
        ("attention_mask", ["batch_size", "encoder_sequence_length"]),
    ]
    assert names_of(encoder.get_outputs()) == ["last_hidden_state"]
    assert names_of(decoder.get_inputs()) == ["encoder_attention_mask", "input_ids", "encoder_hidden_states"]
    assert [(o.name, o.shape, o.type) for o in decoder.get_outputs()][:2] == [
        ("logits", ["batch_size", "decoder_sequence_length", 280], "tensor(float)"),
        ("present.0.decoder.key", ["batch_size", 2, "decoder_sequence_length", 16], "tensor(float)"),
    ]
    states = [f"0.{stack}.{part}" for stack in ("decoder", "encoder") for part in ("key", "value")]
    assert names_of(decoder.get_outputs()) == ["logits", *(f"present.{name}" for name in states)]
    assert names_of(with_past.get_inputs()) == [
        *("encoder_attention_mask", "input_ids"),
        *(f"past_key_values.{name}" for name in states),
    ]
    assert names_of(with_past.get_outputs()) == ["logits", "present.0.decoder.key", "present.0.decoder.value"]


@pytest.mark.slow
def test_a_folder_is_exported_to_int8_with_tokenizers_and_settings(
    half_precision, exported, tmp_path, capsys, caplog
):
    half_precision.save_pretrained(tmp_path / "toy")
    save_tokenizers(*toy_tokenizers(separate=True), tmp_path / "toy")
    capsys.readouterr()  # of saving
    caplog.clear()
    out = tmp_path / "out"
    arguments = ["export", "--to", "onnx", str(tmp_path / "toy"), str(out), "--quantization", "int8"]
    assert run(arguments) == 0
    captured = capsys.readouterr()
    assert "VaswaniForConditionalGeneration for ONNX Runtime, int8, " in captured.out
    assert not captured.err
    assert not [record for record in caplog.records if record.levelname != "DEBUG"]
    assert len(load_tokenizers(out)[0]) != len(load_tokenizers(out)[1])
    config = json.loads((out / "config.json").read_text())
    assert (config["model_type"], config["decoder_vocab_size"]) == ("vaswani", 280)
    assert (out / "generation_config.json").is_file()
    assert run(arguments) == 2
    assert "is not an empty folder" in capsys.readouterr().err

    # Smaller files, and nearly the same scores.
    for name in (ENCODER, DECODER, DECODER_WITH_PAST):
        assert (out / name).stat().st_size < 0.9 * (exported / name).stat().st_size
    files = [{path.name for path in folder.glob("*model*")} for folder in (out, exported)]
    assert files[0] == files[1]
    ids, target = torch.randint(3, 270, (4, 9)), torch.randint(3, 270, (4, 8))
    mask = torch.ones_like(ids)
    int8, float32 = (logits_in_steps(folder, ids, mask, target, first=3) for folder in (out, exported))
    difference = np.abs(int8 - float32).max()
    assert 1e-3 < difference < 0.05 * np.abs(float32).max()


def test_export_to_marian_equals_convert(tmp_path, capsys):
    save_toy_checkpoint(tmp_path / "toy")
    assert run(["export", "--to", "marian", str(tmp_path / "toy"), str(tmp_path / "out")]) == 0
    assert "MarianMTModel as a MarianMT" in capsys.readouterr().out
    convert_folder(str(tmp_path / "toy"), tmp_path / "converted", "marian")
    files = {path.name: path.read_bytes() for path in (tmp_path / "converted").iterdir()}
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == files


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--to", "tensorrt"], "unknown format 'tensorrt'; expected one of ctranslate2, marian, onnx"),
        (["--to", "onnx", "--quantization", "int16"], "unknown quantization 'int16' for ONNX; choose one of"),
        (
            ["--to", "marian", "--quantization", "int8"],
            "quantization='int8' is an option of ctranslate2 and onnx",
        ),
        (
            ["--to", "marian", "--max_positions", "9"],
            "max_positions=9 is an option of ctranslate2, not of marian",
        ),
        (
            ["--to", "onnx", "--max_positions", "9"],
            "max_positions=9 is an option of ctranslate2, not of onnx",
        ),
    ],
)
def test_options_of_other_formats_are_refused_before_anything_is_written(options, message, tmp_path, capsys):
    save_toy_checkpoint(tmp_path / "toy")
    capsys.readouterr()  # of saving
    assert run(["export", str(tmp_path / "toy"), str(tmp_path / "out"), *options]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"encoder_attention": "sparse"},
            "encoder_attention='sparse' is not supported: ONNX models have full .* the model itself",
        ),
        ({"decoder_attention": ["sparse"]}, r"decoder_attention=\['sparse'\] is not supported"),
    ],
)
def test_sparse_layers_are_refused(fields, message, tmp_path):
    model = VaswaniForConditionalGeneration(VaswaniConfig(**{**SHAPE, "decoder_layers": 1, **fields}))
    with pytest.raises(UserError, match=message):
        export_to_onnx(model, tmp_path)
    assert not [*tmp_path.iterdir()]


def test_other_models_are_refused(tmp_path):
    with pytest.raises(UserError, match="VaswaniModel cannot be exported to ONNX; these can: VaswaniFor"):
        export_to_onnx(VaswaniModel(VaswaniConfig(**SHAPE)), tmp_path)
    BertModel(
        BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
    ).save_pretrained(tmp_path / "bert")
    with pytest.raises(
        UserError, match=r"is a 'bert' model, and vaswani models are exported; .* or use Optimum"
    ):
        export_folder(str(tmp_path / "bert"), tmp_path / "out", "onnx")


@pytest.mark.parametrize("package", ["onnx", "onnxruntime", "onnxscript"])
def test_a_missing_package_is_named_with_the_command_that_installs_it(package, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=r'install it with: pip install "vaswani\[onnx\]"$'):
        export_folder(str(tmp_path), tmp_path / "out", "onnx")


def test_onnx_runtime_is_imported_in_one_place_and_reports_nothing():
    """The setting must precede the first import, so no other module may import it."""
    source = Path(vaswani.__file__).parent
    direct = re.compile(r"^ *(import onnxruntime|from onnxruntime import)", re.MULTILINE)
    found = [path.name for path in source.rglob("*.py") if direct.search(path.read_text(encoding="utf-8"))]
    assert found == ["onnx_runtime.py"]
    program = "import os; from vaswani.interop.to_onnx import check_onnx; check_onnx(None); "
    program += "print(os.environ['ORT_DISABLE_TELEMETRY'])"
    environment = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "1\n"


def save_sentence_model(folder: Path, **fields: Any) -> Path:
    """As sentence-transformers saves a model with pooling, a layer and normalization."""
    tokenizer = toy_tokenizer()
    one_stack(VaswaniEncoderModel, vocab_size=len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    kinds = {"Transformer": "", "Pooling": "1_Pooling", "Dense": "2_Dense", "Normalize": "3_Normalize"}
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for number, (kind, path) in enumerate(kinds.items())
    ]
    for path in ("1_Pooling", "2_Dense"):
        (folder / path).mkdir()
        (folder / path / "config.json").write_text(json.dumps({"of": path}))
    (folder / "modules.json").write_text(json.dumps(fields.get("modules", modules)))
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 12}')
    return folder


@pytest.mark.parametrize("to", ["onnx", "ctranslate2"])
def test_modules_of_sentence_transformers_are_kept_and_reported(to, tmp_path, capsys):
    folder = save_sentence_model(tmp_path / "model")
    assert run(["export", str(folder), str(tmp_path / "out"), "--to", to]) == 0
    told = capsys.readouterr().out
    assert "not part of the export: Pooling, Dense, Normalize; apply them to its token states" in told
    for name in ("modules.json", "sentence_bert_config.json", "1_Pooling/config.json", "2_Dense/config.json"):
        assert (tmp_path / "out" / name).read_text() == (folder / name).read_text()
    assert not (tmp_path / "out" / "3_Normalize").exists()


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        ({}, None),
        ([3], "lists no modules of sentence-transformers; correct or remove it"),
        ([{"type": "a", "path": ""}, {"type": "b", "path": "../other"}], "names ../other, which is outside"),
        ([{"type": "a", "path": ""}, {"type": "b", "path": "/etc"}], "names /etc, which is outside"),
    ],
)
def test_an_invalid_list_of_modules_raises_an_error(modules, message, tmp_path):
    folder = save_sentence_model(tmp_path / "model", modules=modules)
    (tmp_path / "other").mkdir()
    if message is None:
        assert export_folder(str(folder), tmp_path / "out", "onnx").modules == ()
        return
    with pytest.raises(UserError, match=message):
        export_folder(str(folder), tmp_path / "out", "onnx")
    assert not (tmp_path / "out").exists()


def test_an_adapter_is_merged_first(tmp_path):
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    for work in (export_folder, convert_folder):
        with pytest.raises(UserError, match="holds an adapter, and a whole model is needed: vaswani merge"):
            work(str(tmp_path / "adapter"), tmp_path / "out")
