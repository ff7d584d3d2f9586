"""Complete runs of a second: their files, reproducibility, and the effect of each option."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from refusals import refusal
from tokenizers import normalizers
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from jsonl import write_jsonl
from tiny_runs import TINY_MODEL, TINY_RUN, as_flags, resolved, weights
from vaswani import VaswaniConfig
from vaswani.cli import run as command_line
from vaswani.data.text_codec import has_one_vocabulary
from vaswani.data.tokenization import load_tokenizers, train_tokenizer
from vaswani.errors import UserError
from vaswani.files import named_configs
from vaswani.insight.curves import save_curves
from vaswani.training.config.config_file import load_config
from vaswani.training.runs import base as base_run
from vaswani.training.runs import translation as training_run
from vaswani.training.runs.models import new_model
from vaswani.training.runs.translation import TrainingRun, model_config, train

CONFIGS = named_configs.FOLDER


def run(options: dict, **more) -> dict[str, float]:
    return train(resolved({**options, **more}))


@pytest.mark.slow
def test_resuming_deletes_the_scores_of_the_earlier_model(tiny_run):
    run(tiny_run, evaluate_test=False, max_steps=3, save_steps=3)
    folder = Path(tiny_run["output_dir"])
    assert "validation_loss" in json.loads((folder / "all_results.json").read_text())
    run(tiny_run, resume_from_checkpoint=True, max_steps=6, save_steps=3)
    found = json.loads((folder / "all_results.json").read_text())
    assert found == json.loads((folder / "test_results.json").read_text())
    assert not (folder / "validation_results.json").exists()


@pytest.mark.slow
def test_a_run_saves_a_model_with_everything_needed_to_use_it(tiny_run, capsys):
    scores = run(tiny_run, eval_strategy="steps", eval_steps=3)
    folder = Path(tiny_run["output_dir"])
    assert {"test_loss", "test_bleu", "test_chrf", "test_exact_match"} <= scores.keys()
    assert json.loads((folder / "test_results.json").read_text()).keys() >= scores.keys()
    for directory in (folder, folder / "checkpoint-3", folder / "checkpoint-6"):
        config = VaswaniConfig.from_pretrained(directory)
        assert len(AutoTokenizer.from_pretrained(directory)) == config.vocab_size == 300
        assert config.use_cache is True
    provenance = json.loads((folder / "corpus.json").read_text())
    assert provenance["rows"]["train"] == "kept 400 of 400 rows"
    assert len(provenance["train"]["files"][0]["sha256"]) == 64

    printed = capsys.readouterr().out
    assert "train: kept 400 of 400 rows" in printed
    assert "test (40 rows): loss " in printed
    assert "nrefs:1|case:mixed" in printed
    assert printed.count("  →  ") == 8


@pytest.mark.slow
def test_a_test_split_that_is_also_trained_on_gives_a_warning(tiny_run, tmp_path, capsys):
    copied = shutil.copy(tiny_run["train_file"], tmp_path / "copied.jsonl")
    run(tiny_run, max_steps=1, test_file=copied, max_test_rows=2, eval_strategy="no")
    told = "is also a training file: its scores do not show how the model does on unseen texts"
    printed = capsys.readouterr().out
    assert f"test {told}" in printed
    assert "test: kept 400 of 400 rows, of which 2 are used; also in the training split: 400" in printed
    run({**tiny_run, "output_dir": tmp_path / "other"}, max_steps=1, max_test_rows=2, eval_strategy="no")
    assert told not in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_saves_its_curves(tiny_run, monkeypatch):
    monkeypatch.setattr(base_run, "save_curves", save_curves)  # which the other tests leave out
    run(tiny_run)
    assert (Path(tiny_run["output_dir"]) / "curves.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "longest"),
    [
        ({"max_target_length": 30}, 31),
        ({"position_embedding": "learned", "max_position_embeddings": 24, "max_target_length": 24}, 24),
    ],
)
def test_generate_defaults_to_the_lengths_of_the_training(tiny_run, options, longest):
    run(tiny_run, max_source_length=24, max_steps=1, **options)
    model = AutoModelForSeq2SeqLM.from_pretrained(tiny_run["output_dir"])
    assert model.generation_config.max_source_length == 24  # where `Translator` finds how far training went
    model.generation_config.eos_token_id = None  # a model that never ends by itself
    assert model.generate(torch.tensor([[5, 6, 2]])).shape[1] == longest


@pytest.mark.slow
def test_sparse_layers_are_options_of_a_run(tiny_run):
    sparse = {"sparse_block_size": 1, "sparse_global_blocks": 1, "sparse_random_blocks": 1}
    folders = {}
    for name, options in {
        "full": {},
        "encoder": {"encoder_attention": "sparse"},
        "decoder": {"decoder_attention": ["sparse"]},
        "other seed": {"encoder_attention": "sparse", "sparse_seed": 1},
    }.items():
        folders[name] = f"{tiny_run['output_dir']}-{name}"
        run({**tiny_run, **sparse, **options, "output_dir": folders[name]}, max_steps=2)
    assert VaswaniConfig.from_pretrained(folders["encoder"]).encoder_attention == "sparse"
    trained = [weights(folder) for folder in folders.values()]
    assert not any(torch.equal(trained[0], other) for other in trained[1:])
    assert not torch.equal(trained[1], trained[3])


@pytest.mark.slow
def test_long_rows_can_be_cut_off(tiny_run, capsys):
    run(
        tiny_run,
        max_steps=1,
        max_source_length=8,
        save_strategy="no",
        output_dir=f"{tiny_run['output_dir']}-0",
    )
    left_out = capsys.readouterr().out
    scores = run(tiny_run, max_steps=1, max_source_length=8, truncate=True)
    printed = capsys.readouterr().out
    assert "over-long" in left_out
    assert "train: kept 400 of 400 rows, " in printed
    assert "over-long" not in printed
    assert "peak memory: " in printed
    assert scores.keys() >= {"test_loss"}
    # One validation row that no batch holds, beyond those that are used.
    rows = Path(tiny_run["validation_file"]).read_text().splitlines()
    long = json.dumps({"source": "27. Januar 1999 " * 60, "target": "1999-01-27"})
    path = Path(tiny_run["output_dir"]).parent / "long.jsonl"
    path.write_text("\n".join([*rows[:1], long, *rows[1:7]]) + "\n")
    options = {**tiny_run, "validation_file": str(path), "max_tokens_per_batch": 300, "max_source_length": 40}
    options |= {"max_target_length": 40, "max_steps": 1, "output_dir": f"{tiny_run['output_dir']}-1"}
    with pytest.raises(
        UserError, match=r"validation has a row of .* tokens; raise it, or set truncate=true, which"
    ):
        run(options)
    run(options, max_validation_rows=2)
    with pytest.raises(UserError, match="truncate=true and bpe_dropout exclude each other"):
        run(tiny_run, max_steps=1, truncate=True, bpe_dropout=0.1)
    with pytest.raises(UserError, match="and tokenizer_kind=unigram has none"):
        run(tiny_run, max_steps=1, tokenizer_kind="unigram", bpe_dropout=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["long_summarization", "long_classification"])
def test_the_long_configurations_train(name, tmp_path, capsys):
    rows = [{"text": f"{i} " + "a long story " * 40, "summary": "a story", "label": "pos"} for i in range(40)]
    for split in ("train", "validation"):
        write_jsonl(tmp_path / f"{split}.jsonl", rows)
    small = {**TINY_MODEL, "vocab_size": 260, "max_steps": 2, "eval_steps": 2, "save_steps": 2}
    small |= {"max_tokens_per_batch": 4096, "generation_max_length": 4, "max_source_length": 256}
    flags = as_flags({**small, "dataset": tmp_path, "output_dir": tmp_path / "run", "use_cpu": True})
    scores = train(load_config(CONFIGS / f"{name}.yaml", flags))
    metrics = {
        "long_summarization": ("rouge1", "rouge2", "rougeL", "rougeLsum"),
        "long_classification": ("exact_match",),
    }
    assert scores.keys() >= {f"validation_{metric}" for metric in ("loss", *metrics[name])}
    record = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert record["metrics"].keys() >= set(metrics[name])
    assert ("rouge-score" in record["versions"]) == (name == "long_summarization")
    assert VaswaniConfig.from_pretrained(tmp_path / "run").encoder_attention == "sparse"
    assert "40 of them cut off" in capsys.readouterr().out


@pytest.fixture(scope="module")
def trained_base(dates, tmp_path_factory) -> torch.Tensor:
    folder = tmp_path_factory.mktemp("base")
    run(TINY_RUN, train_file=dates["train_file"], output_dir=folder, save_strategy="no")
    return weights(folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    "option",
    [
        {"seed": 7},
        {"vocab_size": 290},
        {"tokenizer_rows": 20},
        {"max_source_length": 10},
        {"bpe_dropout": 0.3},
        {"streaming": True},
        {"max_tokens_per_batch": 600},
        {"label_smoothing_factor": 0.0},
        {"dropout": 0.0},
        {"attention_dropout": 0.2},
        {"activation_dropout": 0.2},
        {"word_dropout": 0.2},
        {"norm_order": "pre"},
        {"embedding_norm": True},
        {"layer_norm_eps": 1e-2},
        {"norm_bias": False},
        {"position_embedding": "learned"},
        {"position_embedding": "none"},
        {"sinusoidal_layout": "concatenated"},
        {"sinusoidal_layout": "tensor2tensor"},
        {"lm_head_bias": True},
        {"initializer_range": 0.1},
        {"activation_function": "gelu"},
        {"scale_embedding": False},
    ],
    ids=lambda option: next(iter(option)),
)
def test_each_option_changes_the_weights(tiny_run, trained_base, option):
    del tiny_run["test_file"], tiny_run["validation_file"]
    run(tiny_run, save_strategy="no", **option)
    moved = weights(tiny_run["output_dir"])
    assert moved.shape != trained_base.shape or not torch.equal(moved, trained_base)


def test_every_model_field_reaches_the_model(tiny_run):
    other: dict = dict.fromkeys(
        ("attention_bias", "ffn_bias", "scale_embedding", "tie_word_embeddings"), False
    )
    other |= {"d_model": 24, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4}
    other |= {"decoder_attention_heads": 6, "encoder_ffn_dim": 20, "decoder_ffn_dim": 28, "dropout": 0.25}
    other |= {"attention_dropout": 0.2, "activation_dropout": 0.15, "activation_function": "silu"}
    other |= {"norm_order": "pre", "position_embedding": "learned", "sinusoidal_layout": "concatenated"}
    other |= {"max_position_embeddings": 99, "share_encoder_decoder_embeddings": False}
    other |= {"embedding_norm": True, "layer_norm_eps": 1e-3, "norm_bias": False, "lm_head_bias": True}
    other |= {"initializer_range": 0.1, "word_dropout": 0.3}
    config = resolved({**tiny_run, **other, "attn_implementation": "eager"})
    shape = model_config(config.model, 50, 60, one_vocabulary=False)
    model = new_model(config, AutoModelForSeq2SeqLM, shape)
    assert {name: getattr(model.config, name) for name in other} == other
    assert (model.config.vocab_size, model.config.decoder_vocab_size) == (50, 60)
    assert model.config._attn_implementation == "eager"


@pytest.mark.slow
def test_separate_vocabularies_are_saved_with_each_checkpoint(tiny_run):
    run(tiny_run, shared_vocab=False)
    for name in (".", "checkpoint-3"):
        source, target = load_tokenizers(Path(tiny_run["output_dir"]) / name)
        assert source is not target
        assert target.decode(target("2001-02-03")["input_ids"], skip_special_tokens=True) == "2001-02-03"
    config = VaswaniConfig.from_pretrained(tiny_run["output_dir"])
    assert (config.vocab_size, config.decoder_vocab_size) == (len(source), len(target))


@pytest.mark.slow
def test_two_vocabularies_of_one_size_have_two_embeddings(tiny_run, capsys):
    run(tiny_run, shared_vocab=False, vocab_size=261)
    folder = Path(tiny_run["output_dir"])
    config = VaswaniConfig.from_pretrained(folder)
    assert config.vocab_size == config.decoder_vocab_size == 261
    assert config.share_encoder_decoder_embeddings is False
    settings = yaml.safe_load((folder / "training_config.yaml").read_text())
    assert settings["share_encoder_decoder_embeddings"] is False
    assert "embeddings of 261 source and 261 target tokens" in capsys.readouterr().out
    source, target = (model_part.embed_tokens.weight for model_part in parts(folder))
    assert not torch.equal(source, target)


def parts(folder: Path) -> tuple:
    model = AutoModelForSeq2SeqLM.from_pretrained(folder).model
    return model.encoder, model.decoder


def test_one_vocabulary_has_one_embedding_and_this_is_recorded(tiny_run, capsys):
    run(tiny_run)
    settings = yaml.safe_load((Path(tiny_run["output_dir"]) / "training_config.yaml").read_text())
    assert settings["share_encoder_decoder_embeddings"] is True
    assert "embeddings of 300 tokens" in capsys.readouterr().out
    source, target = (model_part.embed_tokens.weight for model_part in parts(Path(tiny_run["output_dir"])))
    assert source is target


def test_vocabularies_are_compared_token_by_token():
    def tokenizer(text):
        return train_tokenizer([text] * 4, 262)

    assert has_one_vocabulary(tokenizer("one two"), tokenizer("one two"))
    assert not has_one_vocabulary(tokenizer("one two"), tokenizer("eins zwei"))


def test_one_embedding_for_two_vocabularies_is_refused_before_the_corpus_is_read(tiny_run):
    with pytest.raises(UserError, match="share_encoder_decoder_embeddings=true needs one vocabulary"):
        run(
            tiny_run,
            shared_vocab=False,
            share_encoder_decoder_embeddings=True,
            train_file="is-not-read.jsonl",
        )


@pytest.mark.slow
def test_an_old_run_with_one_embedding_for_two_vocabularies_is_resumed(tiny_run, caplog):
    options = {**tiny_run, "shared_vocab": False, "vocab_size": 261}
    with pytest.MonkeyPatch.context() as earlier_version:
        earlier_version.setattr(training_run, "has_one_vocabulary", lambda source, target: True)
        run(options)
    folder = Path(options["output_dir"])
    assert VaswaniConfig.from_pretrained(folder).share_encoder_decoder_embeddings is True
    (folder / "model.safetensors").unlink()
    before = weights(folder / "checkpoint-6")
    run(options, resume_from_checkpoint=folder / "checkpoint-3")
    assert "was begun with one embedding for two vocabularies" in caplog.text
    assert torch.equal(weights(folder), before)


def test_training_leaves_out_long_rows_and_evaluation_does_not(tiny_run, capsys):
    run(tiny_run, max_source_length=12)
    printed = capsys.readouterr().out
    assert "over-long" in next(line for line in printed.splitlines() if line.startswith("train: "))
    assert "test: kept 40 of 40 rows" in printed


def test_validation_rows_can_be_limited(tiny_run, capsys):
    run(tiny_run, max_validation_rows=10, eval_strategy="steps", eval_steps=6)
    assert "validation: kept 30 of 30 rows, of which 10 are used" in capsys.readouterr().out


def test_test_rows_can_be_limited_or_left_alone(tiny_run, capsys):
    run(tiny_run, max_test_rows=7)
    assert "test: kept 40 of 40 rows, of which 7 are used" in capsys.readouterr().out
    record = json.loads((Path(tiny_run["output_dir"]) / "evaluation.json").read_text())
    assert (record["split"], record["rows"]) == ("test", 7)
    scores = run(tiny_run, evaluate_test=False, output_dir=f"{tiny_run['output_dir']}2")
    assert "test:" not in capsys.readouterr().out
    assert "validation_loss" in scores


@pytest.mark.slow
def test_the_best_model_is_kept_and_training_stops_early(tiny_run):
    """A learning rate that destroys the model: the first evaluation is the best."""
    options = {
        **tiny_run,
        "learning_rate": 30.0,
        "lr_scheduler_type": "constant",
        "warmup_steps": 0,
        "max_steps": 40,
    }
    options |= {"save_steps": 2, "eval_strategy": "steps", "eval_steps": 2, "max_validation_rows": 5}
    options |= {"load_best_model_at_end": True, "metric_for_best_model": "loss"}
    options |= {"early_stopping_patience": 2, "generation_max_length": 4}
    run(options)
    folder = Path(tiny_run["output_dir"])
    state = json.loads((folder / "trainer_state.json").read_text())
    assert state["global_step"] < 40
    best = Path(state["best_model_checkpoint"])
    assert best != folder / f"checkpoint-{state['global_step']}"
    assert torch.equal(weights(folder), weights(best))

    # A run that stopped early is finished: resuming it adds nothing.
    run(options, resume_from_checkpoint="true")
    assert json.loads((folder / "trainer_state.json").read_text())["global_step"] == state["global_step"]
    assert torch.equal(weights(folder), weights(best))


@pytest.mark.slow
def test_tensorboard_is_written(tiny_run):
    pytest.importorskip("tensorboard")
    run(tiny_run, report_to="tensorboard", max_steps=2)
    assert list(Path(tiny_run["output_dir"]).rglob("events.out.tfevents.*"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"d_model": 18, "encoder_attention_heads": 4},
            "d_model=18 must be divisible by encoder_attention_heads=4",
        ),
        ({"activation_function": "rellu"}, "activation_function='rellu' is unknown"),
        ({"streaming": True, "max_steps": -1}, "streaming=true needs max_steps"),
        ({"streaming": True, "dataloader_num_workers": 2}, "not in dataloader_num_workers=2"),
        ({"attn_implementation": "fast"}, "fast"),
        ({"vocab_size": 100}, "vocab_size=100 is too small"),
        ({"source_field": "src"}, "source_field: .* has no field 'src'; it has 'source', 'target'"),
        ({"train_file": "nowhere.jsonl"}, "no such file: nowhere.jsonl"),
        ({"max_target_length": 5}, "none of 400 rows fits within .* at most 5 tokens of a target; raise max"),
        (
            {"max_tokens_per_batch": 20},
            "max_tokens_per_batch=20 is too small: train has a row of .* tokens; raise it",
        ),
        (
            {"metric_for_best_model": "rouge"},
            "metric_for_best_model=rouge is not computed; choose one of loss, bleu",
        ),
        (
            {"metric_for_best_model": "bleu", "task": "summarization"},
            "metric_for_best_model=bleu is not computed; choose one of loss, rouge1, rouge2, rougeL, rouge",
        ),
        ({"task": "summary"}, "summary"),
        (
            {"metric_for_best_model": "bleu", "predict_with_generate": False},
            "metric_for_best_model=bleu is not computed; choose one of loss$",
        ),
        (
            {"lr_scheduler_type": "linear", "learning_rate": None},
            "lr_scheduler_type=linear needs a learning_rate",
        ),
    ],
)
def test_invalid_options_give_an_error_before_writing_files(tiny_run, capsys, options, message):
    assert re.search(message, refusal("train", tiny_run | options, capsys))


def test_evaluation_without_a_validation_split_is_refused(tiny_run):
    del tiny_run["validation_file"]
    with pytest.raises(UserError, match="needs a validation split; give a validation_file"):
        run(tiny_run, eval_strategy="epoch")


def test_a_second_run_in_the_same_folder_is_refused(tiny_run):
    run(tiny_run)
    with pytest.raises(UserError, match="already holds a run"):
        run(tiny_run)


def test_resuming_with_another_model_is_refused(tiny_run):
    run(tiny_run)
    with pytest.raises(
        UserError, match=r"cannot change encoder_ffn_dim=64 \(it was trained with 32\); resume"
    ):
        run(tiny_run, encoder_ffn_dim=64, resume_from_checkpoint="true")


def test_without_test_and_validation_a_run_trains_and_reports_nothing(tiny_run):
    del tiny_run["test_file"], tiny_run["validation_file"]
    assert run(tiny_run) == {}
    assert (Path(tiny_run["output_dir"]) / "model.safetensors").is_file()


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_limit_that_leaves_only_special_tokens_is_refused_before_the_corpus_is_read(tiny_run, side):
    options = {**tiny_run, "train_file": "absent", f"max_{side}_length": 1, "truncate": True}
    with pytest.raises(UserError, match=f"max_{side}_length=1 must be at least 2"):
        run(options)


@pytest.mark.slow
def test_targets_changed_by_the_tokenizer_are_reported_and_scored(tiny_run, caplog, capfd):
    def lossy(run, corpus):
        tokenizer = train_tokenizer(corpus.split("train")["target"][:], 280)
        tokenizer.backend_tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Prepend(" "), normalizers.Replace("-", "")]
        )
        return tokenizer, tokenizer

    with pytest.MonkeyPatch.context() as other_tokenizers:
        other_tokenizers.setattr(TrainingRun, "build_tokenizers", lossy)
        run(tiny_run, max_steps=1)
    (warning,) = (record.message for record in caplog.records if "decoded" in record.message)
    assert re.fullmatch(
        r"100 of 100 targets change when they are encoded and decoded: "
        r"'(\d{4})-(\d\d)-(\d\d)' becomes '\1\2\3'\.",
        warning,
    )
    folder = tiny_run["output_dir"]
    found = json.loads((Path(folder) / "evaluation.json").read_text())
    assert all("-" in example["reference"] for example in found["examples"])
    flags = ["--model", folder, "--data", tiny_run["test_file"]]
    assert command_line(["evaluate", *flags, "--json"]) == 0
    expected = json.loads(capfd.readouterr().out.splitlines()[-1])
    for name, score in found["metrics"].items():
        assert score["value"] == pytest.approx(expected[name]), name


@pytest.mark.slow
def test_targets_unchanged_by_the_tokenizer_are_not_reported(tiny_run, caplog):
    run(tiny_run, max_steps=1)
    assert "come back" not in caplog.text
