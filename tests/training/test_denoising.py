"""Pre-training of encoder-decoders: the results, resuming, each field, and errors."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from refusals import refusal
from run_records import assert_same_weights, logged, weights
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    T5Config,
    T5ForConditionalGeneration,
    T5Tokenizer,
)

from jsonl import write_jsonl
from tiny_runs import TINY_MODEL, as_flags, datasets_cache, leave_out_slow_parts, resolved
from toy_texts import write_texts
from vaswani.cli import run as command_line
from vaswani.data.text.denoising import DenoisingCollator
from vaswani.data.text.sequences import make_sequences
from vaswani.data.text.span_denoising import SpanDenoising, SpanNoise, SpanPieces, sentinel_ids
from vaswani.data.tokenization import save_tokenizers, train_tokenizer
from vaswani.errors import UserError
from vaswani.training.config.pretraining_arguments import PretrainingConfig
from vaswani.training.runs.pretraining import pretrain

__all__ = ["datasets_cache"]

leave_out_slow_parts()

SPANS, GAPS = {"objective": "span_denoising"}, {"objective": "gap_sentences"}
KINDS = {"spans": SPANS, "gaps": GAPS, "random gaps": {**GAPS, "gap_sentence_strategy": "random"}}
TINY = {
    "vocab_size": 420,
    "max_length": 40,
    "learning_rate": 3e-3,
    "warmup_steps": 4,
    "max_steps": 6,
    "max_tokens_per_batch": 400,
    "logging_steps": 1,
    "save_steps": 3,
    "use_cpu": True,
    "disable_tqdm": True,
}


@pytest.fixture(scope="session")
def texts(tmp_path_factory) -> dict[str, str]:
    return write_texts(tmp_path_factory.mktemp("texts"), train=60, validation=10, test=12)


@pytest.fixture
def tiny(texts, tmp_path) -> dict:
    return {**TINY, **TINY_MODEL, **texts, "output_dir": str(tmp_path / "run")}


def run(options: dict, **more) -> dict[str, float]:
    return pretrain(resolved({**options, **more}, PretrainingConfig))


def continued(tiny: dict, model: Path, **more) -> dict:
    kept = {name: value for name, value in tiny.items() if name not in (*TINY_MODEL, "vocab_size")}
    return {**kept, "model": str(model), **more}


# ------------------------------------------------------------------------------------------ what a run leaves


@pytest.mark.parametrize("kind", ["spans", "gaps"])
def test_a_run_leaves_a_model_that_plain_transformers_loads(tiny, kind, capsys):
    scores = {"loss", "perplexity", "accuracy"}
    found = run(tiny, **KINDS[kind], eval_strategy="steps", eval_steps=3, metric_for_best_model="accuracy")
    assert {name.removeprefix("test_") for name in found} >= scores
    folder = Path(tiny["output_dir"])
    for directory in (folder, folder / "checkpoint-3"):
        model, loading = AutoModelForSeq2SeqLM.from_pretrained(directory, output_loading_info=True)
        assert not loading["missing_keys"]
        tokenizer = AutoTokenizer.from_pretrained(directory)
        assert len(tokenizer) == model.config.vocab_size == model.config.decoder_vocab_size
        assert model.config.share_encoder_decoder_embeddings
    assert (tokenizer.mask_token is None) == (kind == "spans")
    assert len(sentinel_ids(tokenizer)) == (100 if kind == "spans" else 0)
    assert logged(folder, "eval_loss")
    record = json.loads((folder / "evaluation.json").read_text())
    assert record["metrics"].keys() == scores
    for name in scores:
        metric = record["metrics"][name]
        assert metric["low"] <= metric["value"] <= metric["high"]
        assert metric["value"] == found[f"test_{name}"]
    assert "test (" in capsys.readouterr().out
    card = (folder / "README.md").read_text()
    removed = "spans of tokens" if kind == "spans" else "sentences"
    assert f"to write {removed} that were removed from a text" in card
    assert "vaswani train --model" in card
    # Plain calls of `generate` write as much as targets hold.
    written = model.generate(**tokenizer("The dog", return_tensors="pt"), eos_token_id=None, do_sample=False)
    assert written.shape[1] == model.generation_config.max_length > 9


@pytest.mark.slow
def test_the_scores_are_those_of_the_targets(tiny):
    """Computed row by row, of the noise of the first epoch."""
    found = run(tiny, **SPANS)
    model = AutoModelForSeq2SeqLM.from_pretrained(tiny["output_dir"]).eval()
    tokenizer = AutoTokenizer.from_pretrained(tiny["output_dir"])
    lines = Path(tiny["test_file"]).read_text().splitlines()
    rows = make_sequences(
        Dataset.from_dict({"text": [json.loads(line)["text"] for line in lines]}), tokenizer, SpanPieces(40)
    )
    denoise = SpanDenoising(SpanNoise(), sentinel_ids(tokenizer))
    collator = DenoisingCollator(tokenizer, model.config.decoder_start_token_id, denoise, seed=42)
    nats, right, labels = 0.0, 0, 0
    for row in rows:
        batch = collator([row])
        with torch.no_grad():
            logits = model(**batch).logits
        nats += torch.nn.functional.cross_entropy(logits[0], batch["labels"][0], reduction="sum").item()
        right += (logits.argmax(-1) == batch["labels"]).sum().item()
        labels += batch["labels"].numel()
    assert found["test_loss"] == pytest.approx(nats / labels, rel=1e-5)
    assert found["test_accuracy"] == pytest.approx(100 * right / labels)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["spans", "gaps"])
def test_the_command_line_fine_tunes_a_pretrained_model_with_its_tokenizer(tiny, tmp_path, capfd, kind):
    assert command_line(["pretrain", *as_flags({**tiny, **KINDS[kind]})]) in (0, None)
    first, second = Path(tiny["output_dir"]), tmp_path / "fine"
    pairs = tmp_path / "pairs.jsonl"
    rows = [json.loads(line) for line in Path(tiny["train_file"]).read_text().splitlines()]
    pairs.write_text(
        "".join(json.dumps({**row, "summary": row["text"].split("\n")[0]}) + "\n" for row in rows)
    )
    files = {"source_field": "text", "target_field": "summary"}
    options = {"model": first, "task": "summarization", "train_file": pairs, "output_dir": second, **files}
    options |= {"max_steps": 3, "use_cpu": True, "disable_tqdm": True, "max_tokens_per_batch": 2000}
    assert command_line(["train", *as_flags(options)]) in (0, None)
    before, after = (AutoTokenizer.from_pretrained(folder) for folder in (first, second))
    assert before.get_vocab() == after.get_vocab()
    assert weights(first).keys() == weights(second).keys()
    search = ["--num_beams", "1", "--max_length", "8", "--device", "cpu"]
    source = tmp_path / "texts.txt"
    source.write_text("The dog sleeps.\n")
    assert command_line(["summarize", "--model", str(second), "--input", str(source), *search]) in (0, None)
    flags = ["--model", str(second), "--data", str(pairs), "--task", "summarization", *search]
    flags += ["--max_rows", "3", *as_flags(files)]
    assert command_line(["evaluate", *flags]) in (0, None)
    assert "rouge1" in capfd.readouterr().out


def test_streamed_rows_that_fit_no_batch_are_reported(tiny, caplog):
    del tiny["test_file"], tiny["validation_file"]
    run(tiny, **SPANS, streaming=True, max_tokens_per_batch=40, max_steps=80, save_strategy="no")
    assert "fit no batch of max_tokens_per_batch=40 are left out, as one of 4" in caplog.text
    assert re.search(
        r"Pass 1 over the stream has ended: kept \d+ of \d+ rows; left out: \d+ over-long", caplog.text
    )


# -------------------------------------------------------------------------------- repeating and resuming


@pytest.mark.slow
def test_workers_draw_the_same_noise(tiny, tmp_path):
    """More than two epochs, of which each has other noise. (Persistent workers change what is dropped.)"""
    del tiny["test_file"], tiny["validation_file"]
    options = {**tiny, **SPANS, "max_steps": 30, "dropout": 0}
    for workers in (0, 2):
        more = {"output_dir": tmp_path / str(workers), "dataloader_num_workers": workers}
        run(options, **more, dataloader_persistent_workers=workers > 0)
    assert_same_weights(tmp_path / "0", tmp_path / "2")


# --------------------------------------------------------------------------------------------------- options


@pytest.fixture(scope="module")
def trained(texts, tmp_path_factory) -> dict[str, Path]:
    """A run of each objective."""
    folders = {}
    for name in ("spans", "gaps"):
        folders[name] = tmp_path_factory.mktemp("trained") / name
        run({**TINY, **TINY_MODEL, **texts, "output_dir": folders[name]}, **KINDS[name])
    return folders


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "option"),
    [
        ("spans", {"noise_density": 0.4}),
        ("spans", {"mean_noise_span_length": 1}),
        ("gaps", {"gap_sentence_ratio": 0.6}),
        ("gaps", {"gap_sentence_strategy": "random"}),
        ("gaps", {"gap_sentence_strategy": "lead"}),
        ("gaps", {"gap_sentence_kept": 0.5}),
        ("gaps", {"max_length": 24}),
        ("gaps", {"encoder_attention": ["sparse"], "sparse_block_size": 2, "sparse_random_blocks": 1}),
        ("gaps", {"share_encoder_decoder_embeddings": False}),
        ("gaps", {"tokenizer_kind": "byte", "max_length": 100}),
        ("spans", {"streaming": True}),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else value,
)
def test_each_option_changes_the_weights(tiny, trained, kind, option):
    del tiny["test_file"], tiny["validation_file"]
    run(tiny, **{**KINDS[kind], "save_strategy": "no", **option})
    before, after = weights(trained[kind]), weights(Path(tiny["output_dir"]))
    same_shapes = {name: each.shape for name, each in before.items()} == {
        name: each.shape for name, each in after.items()
    }
    assert not same_shapes or any(not torch.equal(before[name], after[name]) for name in before)


# ------------------------------------------------------------------------------------- tokenizers and models


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["spans", "gaps"])
def test_a_model_is_trained_further_on_longer_sequences(tiny, trained, kind, capsys):
    longer = {"max_length": 60, "learning_rate": 1e-9, "warmup_steps": 0}
    run(continued(tiny, trained[kind], **KINDS[kind], **longer))
    assert "new weights" not in capsys.readouterr().out
    before, after = weights(trained[kind]), weights(Path(tiny["output_dir"]))
    for name, weight in before.items():
        torch.testing.assert_close(after[name], weight, rtol=0, atol=1e-6)
    old, new = (AutoTokenizer.from_pretrained(folder) for folder in (trained[kind], tiny["output_dir"]))
    assert new.get_vocab() == old.get_vocab()


def t5_tokenizer(folder: Path, sentinels: int = 12) -> Path:
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", -2.0), ("▁", -2.0)]
    letters = [(letter, -3.0) for letter in "abcdefghijklmnopqrstuvwxyzT."]
    T5Tokenizer(vocab=[*pieces, *letters], extra_ids=sentinels).save_pretrained(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("sentinels", "expected"), [(12, 12), (2, 100)])
def test_sentinels_of_a_given_tokenizer_are_kept_and_missing_ones_added(tiny, tmp_path, sentinels, expected):
    given = AutoTokenizer.from_pretrained(t5_tokenizer(tmp_path / "t5", sentinels))
    del tiny["vocab_size"]
    run({**tiny, "tokenizer": tmp_path / "t5"}, **SPANS)
    saved = AutoTokenizer.from_pretrained(tiny["output_dir"])
    assert sentinel_ids(saved)[:sentinels].tolist() == sentinel_ids(given).tolist()
    assert len(sentinel_ids(saved)) == expected
    assert saved("The dog").input_ids == given("The dog").input_ids
    model = AutoModelForSeq2SeqLM.from_pretrained(tiny["output_dir"])
    assert model.config.vocab_size == len(saved)
    assert model.config.decoder_start_token_id == given.pad_token_id


@pytest.mark.slow
def test_a_mask_is_added_to_a_given_tokenizer(tiny, tmp_path):
    tokenizer = train_tokenizer(["The dog sleeps."], 300)
    save_tokenizers(tokenizer, tokenizer, tmp_path / "plain")
    del tiny["vocab_size"]
    run({**tiny, "tokenizer": tmp_path / "plain"}, **GAPS)
    saved = AutoTokenizer.from_pretrained(tiny["output_dir"])
    assert saved.mask_token_id == len(tokenizer)
    assert len(saved) == len(tokenizer) + 1


@pytest.mark.slow
def test_t5_of_the_library_is_trained_further(tiny, tmp_path):
    folder = t5_tokenizer(tmp_path / "t5")
    size = len(AutoTokenizer.from_pretrained(folder))
    shape = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
    T5ForConditionalGeneration(T5Config(vocab_size=size, decoder_start_token_id=0, **shape)).save_pretrained(
        folder
    )
    found = run(continued(tiny, folder, **SPANS))
    assert found["test_loss"] < logged(Path(tiny["output_dir"]), "loss")[0]
    saved = AutoModelForSeq2SeqLM.from_pretrained(tiny["output_dir"])
    assert type(saved) is T5ForConditionalGeneration
    assert (saved.shared.weight != AutoModelForSeq2SeqLM.from_pretrained(folder).shared.weight).any()


# ------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("spans", {"noise_density": 0}, "noise_density=0.0 must be above 0"),
        ("spans", {"noise_density": 1}, "noise_density=1.0 must be .*below 1"),
        ("spans", {"mean_noise_span_length": 0.5}, "mean_noise_span_length=0.5 must be at least 1"),
        ("spans", {"mean_noise_span_length": 41}, "mean_noise_span_length=41.0 is longer than max_length=40"),
        ("gaps", {"gap_sentence_ratio": 1}, "gap_sentence_ratio=1.0 must be .*below 1"),
        ("gaps", {"gap_sentence_ratio": 0}, "gap_sentence_ratio=0.0 must be above 0"),
        ("gaps", {"gap_sentence_kept": 1.5}, "gap_sentence_kept=1.5 must be .*at most 1"),
        ("gaps", {"gap_sentence_strategy": "best"}, "gap_sentence_strategy: invalid choice: 'best'"),
        ("gaps", {"noise_density": 0.2}, "unknown flag '--noise_density'"),
        ("spans", {"vocab_size": 300}, "vocab_size=300 is too small: it must hold 256 bytes and 103 special"),
        ("gaps", {"max_length": 500}, "max_tokens_per_batch=400 is too small for a sequence"),
        ("gaps", {"label_smoothing_factor": 0.1}, "label_smoothing_factor .*has no effect"),
        (
            "spans",
            {"position_embedding": "learned", "max_position_embeddings": 40, "noise_density": 0.9},
            "makes targets of up to 42 tokens, and max_position_embeddings has 40 positions",
        ),
    ],
)
def test_invalid_options_give_an_error_before_writing_files(tiny, capsys, kind, options, message):
    assert re.search(message, refusal("pretrain", tiny | KINDS[kind] | options, capsys))


def test_a_model_without_markers_is_refused(tiny, trained):
    for kind, other, message in [
        (
            "spans",
            "gaps",
            r"has no sentinels \(<extra_id_0> ...\); give a model that was trained on span_den",
        ),
        ("gaps", "spans", "has no mask for a sentence; give a model that was trained on gap_sentences"),
    ]:
        with pytest.raises(UserError, match=message):
            run(continued(tiny, trained[other], **KINDS[kind]))
    options = {"max_length": 3000, "max_tokens_per_batch": 4000}
    with pytest.raises(
        UserError, match=r"max_length=3000 needs 151 sentinels, and the tokenizer in .* has 100"
    ):
        run(continued(tiny, trained["spans"], **SPANS, **options))


def test_two_vocabularies_are_refused(tiny, tmp_path, trained):
    folder = shutil.copytree(trained["gaps"], tmp_path / "two")
    save_tokenizers(AutoTokenizer.from_pretrained(folder), train_tokenizer(["The dog sleeps."], 300), folder)
    for options in [continued(tiny, folder, **GAPS), {**tiny, **GAPS, "tokenizer": folder}]:
        with pytest.raises(UserError, match="one vocabulary for sources and another for targets"):
            run(options)


def test_texts_of_one_sentence_cannot_be_trained_on(tiny, tmp_path):
    path = tmp_path / "short.jsonl"
    path.write_text('{"text": "The dog sleeps."}\n' * 3)
    with pytest.raises(
        UserError,
        match="train has nothing but 3 pieces of one sentence, 12 tokens, from which none can be removed",
    ):
        run({**tiny, "train_file": path}, **GAPS)


# ------------------------------------------------------------------------------------- texts of one sentence


def without_marks(texts: dict[str, str], tmp_path: Path, every: int) -> dict[str, str]:
    """The texts, of which some have no mark that ends a sentence."""
    files = {}
    for name, path in texts.items():
        rows = [json.loads(line) for line in Path(path).read_text().splitlines()]
        for row in rows[::every]:
            row["text"] = re.sub(r"[.!?\n]+", " ", row["text"])
        files[name] = str(tmp_path / f"{name}.jsonl")
        write_jsonl(Path(files[name]), rows)
    return files


def test_pieces_without_a_sentence_to_remove_are_counted(tiny, texts, tmp_path, capsys, caplog):
    run({**tiny, **without_marks(texts, tmp_path, every=2)}, **GAPS)
    told = re.search(
        r"train: kept 60 .*; left out: ([\d,]+) pieces of one sentence, ([\d,]+) tokens",
        capsys.readouterr().out,
    )
    assert int(told[1]) >= 30
    assert "of the tokens of train are left out" in caplog.text
    with pytest.raises(UserError, match=r"train has nothing but .* set objective=span_denoising"):
        run({**tiny, **without_marks(texts, tmp_path, every=1)}, **GAPS, output_dir=str(tmp_path / "other"))


def test_a_stream_leaves_out_pieces_without_a_sentence_to_remove(tiny, texts, tmp_path):
    files = without_marks(texts, tmp_path, every=2)
    scores = run({**tiny, **files}, **GAPS, streaming=True)
    assert 0 < scores["test_loss"] < 100
