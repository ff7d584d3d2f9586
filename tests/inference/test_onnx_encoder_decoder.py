"""An encoder-decoder that ONNX Runtime computes translates as PyTorch does."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import DynamicCache

from exported_toys import ExportedToys, exported_toys, saved_toys
from toy_translation import save_toy_checkpoint, toy_model, toy_sources, toy_tokenizer, toy_tokenizers
from vaswani import Translator
from vaswani.cli import run
from vaswani.data.tokenization import load_tokenizers
from vaswani.errors import UserError
from vaswani.inference.onnx.loading import load_onnx
from vaswani.interop.to_onnx import DECODER, DECODER_WITH_PAST, ENCODER
from vaswani.model.compatibility import CACHE_NAME

__all__ = ["exported_toys", "saved_toys"]

pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.slow  # an export takes twenty seconds

SENTENCES = toy_sources(60, seed=4242, longest=12)


@pytest.fixture(scope="module", params=[False, True], ids=["shared", "separate"])
def models(request: pytest.FixtureRequest, exported_toys: ExportedToys) -> tuple[Any, Any, Path]:
    """A model that was trained, the same by ONNX Runtime, and the exported folder."""
    _, exported = exported_toys("translator_of_two_vocabularies" if request.param else "translator")
    return toy_model(separate=request.param), load_onnx(exported, threads=1), exported


@pytest.fixture
def folder(models: tuple[Any, Any, Path], tmp_path: Path) -> Path:
    """A copy of the exported folder."""
    return shutil.copytree(models[2], tmp_path / "copy")


def batch(folder: Path) -> dict[str, torch.Tensor]:
    encoded = load_tokenizers(folder)[0](SENTENCES, padding=True, return_tensors="pt")
    return {name: encoded[name] for name in ("input_ids", "attention_mask")}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_beams": 4},
        {"num_beams": 4, "num_return_sequences": 3, "length_penalty": 2.0},
        {"num_beams": 2, "no_repeat_ngram_size": 2, "repetition_penalty": 1.3},
        {"do_sample": True, "top_k": 5},
        {"use_cache": False},
    ],
    ids=str,
)
def test_tokens_are_equal(options, models):
    reference, model, folder = models
    found = []
    for each in (reference, model):
        torch.manual_seed(1)
        found.append(each.generate(**batch(folder), max_new_tokens=20, **options))
    assert torch.equal(*found)
    assert len(found[0].unique(dim=0)) > 30  # the translations depend on the source


@pytest.mark.parametrize("num_beams", [1, 4])
def test_translations_and_their_scores_are_equal(num_beams, models):
    reference, model, folder = models
    translations = [
        [
            *Translator(
                each, *load_tokenizers(folder), num_beams=num_beams, max_tokens_per_batch=700
            ).translate(SENTENCES, n_best=num_beams)
        ]
        for each in (reference, model)
    ]
    for expected, found in zip(*translations, strict=True):
        assert [each.text for each in found.hypotheses] == [each.text for each in expected.hypotheses]
        assert [each.complete for each in found.hypotheses] == [each.complete for each in expected.hypotheses]
        for each, other in zip(expected.hypotheses, found.hypotheses, strict=True):
            assert each.log_prob == pytest.approx(other.log_prob, abs=1e-4)


def test_a_started_target_is_continued(models):
    reference, model, folder = models
    prompts = torch.tensor([[reference.config.decoder_start_token_id, 9, 7]]).expand(len(SENTENCES), -1)
    options = {**batch(folder), "decoder_input_ids": prompts, "max_new_tokens": 9, "num_beams": 2}
    found = model.generate(**options)
    assert torch.equal(found, reference.generate(**options))
    assert torch.equal(found[:, :3], prompts)


def test_logits_are_equal_with_and_without_the_cache(models):
    reference, model, folder = models
    target = torch.randint(3, 270, (len(SENTENCES), 8))
    with torch.no_grad():
        expected = reference(**batch(folder), decoder_input_ids=target).logits
    torch.testing.assert_close(
        model(**batch(folder), decoder_input_ids=target).logits, expected, atol=1e-4, rtol=0
    )
    first = model(**batch(folder), decoder_input_ids=target[:, :3], use_cache=True)
    encoded = model.get_encoder()(**batch(folder))
    rest = model(
        encoder_outputs=encoded,
        attention_mask=batch(folder)["attention_mask"],
        decoder_input_ids=target[:, 3:],
        past_key_values=first[CACHE_NAME],
    )
    torch.testing.assert_close(torch.cat([first.logits, rest.logits], 1), expected, atol=1e-4, rtol=0)
    assert rest.get(CACHE_NAME) is None


def test_wrong_inputs_are_refused(models):
    _, model, _ = models
    ids, target = torch.full((2, 4), 5), torch.full((2, 3), 5)
    with pytest.raises(ValueError, match=r"input_ids holds -1, and the model knows 0 to"):
        model(input_ids=ids - 6, decoder_input_ids=target)
    with pytest.raises(ValueError, match=r"decoder_input_ids holds 9999, and the model knows 0 to"):
        model(input_ids=ids, decoder_input_ids=target + 9994)
    with pytest.raises(ValueError, match="takes no padding of the target"):
        model(input_ids=ids, decoder_input_ids=target, decoder_attention_mask=torch.eye(2, 3))
    with pytest.raises(ValueError, match="decoder_input_ids have 4 rows and the encoder's output 2"):
        model(input_ids=ids, decoder_input_ids=target.repeat(2, 1))
    with pytest.raises(ValueError, match="decoder_input_ids are missing"):
        model(input_ids=ids)
    with pytest.raises(ValueError, match="attention_mask holds 2; expected 1 for tokens to be seen"):
        model(input_ids=ids, attention_mask=torch.full((2, 4), 2), decoder_input_ids=target)
    cache = DynamicCache([(torch.zeros(2, 2, 1, 4), torch.zeros(2, 2, 1, 4))])
    with pytest.raises(ValueError, match="past_key_values is a DynamicCache of another model"):
        model(input_ids=ids, decoder_input_ids=target, past_key_values=cache)


def test_threads_are_those_of_pytorch_or_as_given(folder):
    assert load_onnx(folder).first_step.get_session_options().intra_op_num_threads == torch.get_num_threads()
    model = load_onnx(folder, threads=2)
    for session in (model.encoder.session, model.first_step, model.next_step):
        assert session.get_session_options().intra_op_num_threads == 2
    with pytest.raises(UserError, match="threads=0 must be at least 1"):
        load_onnx(folder, threads=0)


def change_type(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "bart"}))


def change_setting(folder: Path, name: str, value: Any) -> None:
    path = folder / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), name: value}))


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no export": (
        lambda folder: [path.unlink() for path in folder.glob("*.onnx")],
        "holds no model in ONNX .*; export one with: vaswani export --to onnx MODEL FOLDER",
    ),
    "no folder": (shutil.rmtree, "holds no model"),
    **{
        name: (
            lambda folder, name=name: (folder / name).unlink(),
            f"{name} is missing; export the model again",
        )
        for name in (ENCODER, DECODER, DECODER_WITH_PAST)
    },
    "damaged": (
        lambda folder: (folder / DECODER).write_bytes((folder / DECODER).read_bytes()[:5000]),
        f"{DECODER} cannot be read .*; export the model again",
    ),
    "no settings": (
        lambda folder: (folder / "generation_config.json").unlink(),
        "generation_config.json is missing",
    ),
    "another end": (
        lambda folder: change_setting(folder, "eos_token_id", 20),
        "eos_token_id=20, and config.json has eos_token_id=2",
    ),
    "another file": (
        lambda folder: shutil.copyfile(folder / ENCODER, folder / DECODER),
        f"{DECODER} is not the model that config.json beside it describes",
    ),
    "no configuration": (lambda folder: (folder / "config.json").unlink(), "config.json"),
    "another type": (change_type, "holds a model of type 'bart'; expected one of vaswani"),
}


@pytest.mark.parametrize(("fault", "message"), FAULTS.values(), ids=FAULTS)
def test_an_incomplete_export_raises_a_one_line_error(fault, message, folder):
    fault(folder)
    with pytest.raises(UserError, match=message) as raised:
        load_onnx(folder)
    assert len(str(raised.value).splitlines()) == 1


def test_without_onnx_runtime_the_error_says_how_to_install_it(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(UserError, match=r'install it with: pip install "vaswani\[onnx\]"$'):
        load_onnx(folder)


@pytest.mark.parametrize("options", [{}, {"num_beams": 1}, {"temperature": 1.0, "top_k": 5}], ids=str)
def test_the_engine_translates_as_torch(options, models):
    separate = (models[2] / "target_tokenizer").is_dir()
    expected = list(Translator(models[0], *toy_tokenizers(separate), **options).translate(SENTENCES))
    found = list(Translator.from_pretrained(models[2], engine="onnx", **options).translate(SENTENCES))
    for ours, theirs in zip(expected, found, strict=True):
        assert ours.text == theirs.text
        assert theirs.hypotheses[0].score == pytest.approx(ours.hypotheses[0].score, rel=1e-4)


def test_the_command_gives_the_same_output_as_with_torch(models, tmp_path):
    save_toy_checkpoint(tmp_path / "toy", separate=(models[2] / "target_tokenizer").is_dir())
    (tmp_path / "in.txt").write_text("".join(f"{sentence}\n" for sentence in SENTENCES))
    for engine, folder in (("torch", tmp_path / "toy"), ("onnx", models[2])):
        arguments = ["--model", str(folder), "--engine", engine, "--input", str(tmp_path / "in.txt")]
        assert run(["translate", *arguments, "--output", str(tmp_path / engine)]) == 0
    assert (tmp_path / "torch").read_text() == (tmp_path / "onnx").read_text()


@pytest.mark.parametrize(
    ("engine", "options", "message"),
    [
        ("torch", {}, "holds a model in ONNX, which runs with engine=onnx"),
        ("onnx", {"device": "cuda"}, "device 'cuda' cannot be used by engine=onnx; it runs on the 'cpu'"),
        ("onnx", {"dtype": "float16"}, "dtype=float16 has no effect with engine=onnx"),
        ("onnx", {"revision": "main"}, "revision='main' applies to models on the Hub"),
        ("onnx", {"alignments": True}, "a model in ONNX .* which alignments needs; .* or use engine=torch"),
        ("onnx", {"coverage_penalty": 0.2}, r"which coverage_penalty=0\.2 needs; .* or use engine=torch"),
    ],
)
def test_an_engine_refuses_folders_and_options_it_cannot_use(engine, options, message, folder):
    with pytest.raises(UserError, match=message):
        Translator.from_pretrained(folder, engine=engine, **options)


def test_tokenizers_of_another_model_are_refused(folder):
    toy_tokenizer(259).save_pretrained(folder)
    with pytest.raises(UserError, match="they do not belong together"):
        Translator.from_pretrained(folder, engine="onnx")
    Translator.from_pretrained(folder, engine="onnx", allow_mismatch=True)
