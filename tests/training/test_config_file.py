"""Flags override the file, which overrides defaults; mistakes are named; the saved file repeats the run."""

import json
import re
from pathlib import Path

import pytest
import yaml

from vaswani.distillation.config import DistillationConfig
from vaswani.distillation.stack_arguments import (
    CausalDistillationConfig,
    MaskedDistillationConfig,
    TaskDistillationConfig,
)
from vaswani.errors import UserError
from vaswani.training.config.arguments import RunConfig
from vaswani.training.config.config_file import load_config
from vaswani.training.config.finetuning_arguments import FinetuningConfig
from vaswani.training.config.options import FIELDS_WITHOUT_EFFECT
from vaswani.training.config.pretraining_arguments import MaskedLMConfig, PretrainingConfig

# A few hundred characters of YAML, and millions when written out.
BOMB = "[&l0 [x], " + ", ".join(f"&l{i + 1} [{', '.join([f'*l{i}'] * 10)}]" for i in range(6)) + "]"


@pytest.fixture
def write(tmp_path):
    def write_yaml(text: str) -> Path:
        path = tmp_path / "run.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write_yaml


def test_file_gives_defaults_and_flags_override(write):
    path = write("d_model: 64\ndropout: 0.3\nlearning_rate: 1e-3\nseed: 7\n")
    config = load_config(path, ["--dropout", "0.2", "--learning_rate=5e-4", "--max-steps", "9"])
    assert (config.model.d_model, config.model.dropout, config.model.encoder_layers) == (64, 0.2, 6)
    assert (config.training.learning_rate, config.training.seed, config.training.max_steps) == (5e-4, 7, 9)


def test_a_flag_for_another_objective_ignores_the_keys_of_the_old_one(write):
    path = write("objective: gap_sentences\ngap_sentence_ratio: 0.4\nmax_length: 99\n")
    config = load_config(path, ["--objective", "span_denoising"], PretrainingConfig)
    assert (config.data.max_length, config.task.noise_density) == (99, 0.15)
    with pytest.raises(UserError, match="unknown flag '--gap_sentence_ratio'"):
        load_config(path, ["--objective", "span_denoising", "--gap_sentence_ratio", "0.4"], PretrainingConfig)
    path = write("objective: gap_sentences\ngap_sentence_ration: 0.4\n")
    with pytest.raises(UserError, match="unknown key 'gap_sentence_ration'"):
        load_config(path, ["--objective", "span_denoising"], PretrainingConfig)


def test_columns_have_no_effect_on_two_text_files(write):
    files = ["--train_file", "a.en", "b.de"]
    with pytest.raises(
        UserError, match="source_field=de has no effect with two text files, the first of which"
    ):
        load_config(None, [*files, "--source_field", "de"])
    path = write("source_field: de\ntarget_field: en\n")  # of other data
    assert load_config(path, files).data.train_file == ["a.en", "b.de"]
    assert (
        load_config(None, ["--train_file", "a.tsv", "b.tsv", "--source_field", "de"]).data.source_field
        == "de"
    )


def test_flags_replace_the_corpus_of_the_file_as_a_whole(write):
    path = write("dataset: org/corpus\ndataset_config: de-en\nsource_field: de\n")
    data = load_config(path, ["--train_file", "a.jsonl", "--test_file=b.jsonl"]).data
    assert (data.dataset, data.dataset_config, data.train_file, data.test_file) == (
        None,
        None,
        ["a.jsonl"],
        ["b.jsonl"],
    )
    assert data.source_field == "de"
    data = load_config(path, ["--dataset", "folder"]).data
    assert (data.dataset, data.dataset_config) == ("folder", None)
    data = load_config(write("dataset_config: de-en\n"), ["--dataset", "org/corpus"]).data
    assert (data.dataset, data.dataset_config) == ("org/corpus", "de-en")

    path = write("train_file: a.jsonl\nvalidation_file: b.jsonl\n")
    data = load_config(path, ["--dataset", "org/corpus"]).data
    assert (data.dataset, data.train_file, data.validation_file) == ("org/corpus", [], [])
    data = load_config(path, ["--train_file", "c.jsonl"]).data
    assert (data.train_file, data.validation_file) == (["c.jsonl"], ["b.jsonl"])


FACTS = {"language": ["en", "de"], "data_name": "Corpus", "data_url": "https://a.org", "data_license": "mit"}


@pytest.mark.parametrize(
    ("corpus", "flags", "are_kept"),
    [
        ("dataset: org/corpus", ["--dataset", "org/corpus"], True),
        ("dataset: org/corpus", ["--max_steps", "9"], True),
        ("dataset: org/corpus", ["--dataset", "other"], False),
        ("dataset: org/corpus", ["--train_file", "a.fi", "a.es"], False),
        ("train_file: a.jsonl", ["--validation_file", "b.jsonl"], True),
        ("train_file: a.jsonl", ["--train_file", "a.jsonl"], True),
        ("train_file: a.jsonl", ["--train_file", "b.jsonl"], False),
        ("train_file: a.jsonl", ["--dataset", "other"], False),
        ("d_model: 64", ["--dataset", "other"], True),  # of no data set in the file
    ],
)
def test_replacing_the_corpus_drops_its_description(write, corpus: str, flags: list[str], are_kept: bool):
    path = write("\n".join([corpus, *(f"{name}: {json.dumps(value)}" for name, value in FACTS.items())]))
    stated = load_config(path, flags).card
    found = {name: getattr(stated, name) for name in FACTS}
    assert found == (FACTS if are_kept else {**dict.fromkeys(FACTS), "language": []})
    given = load_config(path, [*flags, "--data_name", "Mine"]).card
    assert given.data_name == "Mine"


def test_flags_replace_the_length_of_the_file(write):
    path = write("max_steps: 500\n")
    training = load_config(path, ["--num_train_epochs", "2"]).training
    assert (training.max_steps, training.num_train_epochs) == (-1, 2)
    assert load_config(path, []).training.max_steps == 500


TRAIN, DISTILL = ["--learning_rate", "1e-3"], ["--teacher", "runs/a", "--targets", "references"]
STATES = ["--soft_target_weight=0", "--cosine_weight=1"]
UNUSED = [
    (RunConfig, ["--position_embedding=learned"], "--sinusoidal_layout=concatenated"),
    (RunConfig, [], "--max_position_embeddings=99"),
    (RunConfig, ["--encoder_attention=sparse", "--sparse_random_blocks=0"], "--sparse_seed=3"),
    *((RunConfig, [], f"--sparse_{name}=1") for name in ("block_size", "random_blocks", "global_tokens")),
    (RunConfig, ["--tokenizer=gpt2"], "--vocab_size=9"),
    (RunConfig, ["--tokenizer=gpt2"], "--tokenizer_rows=9"),
    (RunConfig, ["--tokenizer=gpt2"], "--source_tags=<de>"),
    *((DistillationConfig, DISTILL, flag)
      for flag in ("--vocab_size=900", "--tokenizer_kind=char", "--shared_vocab=false")),
    (RunConfig, ["--max_steps=9"], "--num_train_epochs=2"),
    (RunConfig, [*TRAIN, "--lr_scheduler_type=constant"], "--warmup_steps=9"),
    (RunConfig, ["--no_evaluate_test"], "--max_test_rows=9"),
    (RunConfig, ["--eval_strategy=no"], "--eval_steps=9"),
    (RunConfig, ["--save_strategy=epoch"], "--save_steps=9"),
    (RunConfig, ["--logging_strategy=epoch"], "--logging_steps=9"),
    (MaskedLMConfig, ["--tokenizer=gpt2"], "--vocab_size=9"),
    (MaskedLMConfig, [], "--sparse_window_blocks=1"),
    (FinetuningConfig, ["--model=a", "--learning_rate=1e-3"], "--label_separator=;"),
    (DistillationConfig, DISTILL, "--teacher_num_beams=2"),
    (DistillationConfig, [*DISTILL, *STATES], "--temperature=2"),
    (DistillationConfig, [*DISTILL, *STATES], "--divergence=reverse_kl"),
    (DistillationConfig, DISTILL, "--relation_heads=2"),
    (DistillationConfig, DISTILL, "--teacher_cache=kept"),
    *((TaskDistillationConfig, [*DISTILL[:2], "--task=regression"], flag)
      for flag in ("--divergence=reverse_kl", "--temperature=2")),
    (MaskedDistillationConfig, [*DISTILL[:2], *STATES],
     "--soft_target_tokens=masked"),
    (CausalDistillationConfig, DISTILL, "--prompt_tokens=4"),
    (CausalDistillationConfig, [*DISTILL[:2], "--targets=both", "--generation_temperature=0"],
     "--generation_top_p=0.5"),
]  # fmt: skip


@pytest.mark.parametrize(("config_class", "others", "flag"), UNUSED)
def test_a_flag_without_effect_raises_an_error(config_class, others, flag, write):
    """In a file, such an option is allowed."""
    name, _, value = flag.removeprefix("--").partition("=")
    with pytest.raises(UserError, match=f"^{name}=.* has no effect with .*; leave it out$"):
        load_config(None, [*others, flag], config_class)
    load_config(write(f"{name}: {value}\n"), others, config_class)
    load_config(None, others, config_class)


def test_values_take_the_types_of_their_fields(write):
    path = write(
        "learning_rate: 1e-3\n"  # a text, to YAML
        "eval_strategy: no\n"  # false, to YAML
        "bf16: false\n"
        "train_file: corpus.jsonl\n"
        "test_file: [test.de, test.en]\n"
        "report_to: tensorboard\n"
        "early_stopping_patience: null\n"
        "dataset_config: 7\n"
        "accelerator_config: {split_batches: false}\n"
    )
    config = load_config(path)
    assert config.training.learning_rate == 1e-3
    assert config.training.eval_strategy == "no"
    assert config.data.train_file == ["corpus.jsonl"]
    assert config.data.test_file == ["test.de", "test.en"]
    assert config.data.dataset_config == "7"
    assert config.training.report_to == ["tensorboard"]
    assert config.training.early_stopping_patience is None


def test_boolean_flags_stand_alone_take_a_value_or_are_negated():
    assert load_config(None, ["--streaming"]).data.streaming
    assert not load_config(None, ["--ffn_bias", "false"]).model.ffn_bias
    assert not load_config(None, ["--no_ffn_bias"]).model.ffn_bias
    assert not load_config(None, ["--no-ffn-bias"]).model.ffn_bias


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("learing_rate: 1e-3", "unknown key 'learing_rate' in .*run.yaml; did you mean 'learning_rate'?"),
        ("zzz: 1", "unknown key 'zzz' in .*run.yaml; see vaswani train --help"),
        ("1: 2", "unknown key '1'"),
        ("learning_rate: fast", "learning_rate in .*run.yaml: invalid float value: 'fast'"),
        ("max_steps: 1.5", "max_steps in .*run.yaml: invalid int value: '1.5'"),
        ("d_model: true", "d_model in .*run.yaml: invalid int value: 'True'"),
        ("bf16: maybe", "bf16 in .*run.yaml: expected true or false, got 'maybe'"),
        ("norm_order: middle", "norm_order in .*run.yaml: invalid choice: 'middle' .*'post', 'pre'"),
        ("lr_scheduler_type: sqrt", "lr_scheduler_type in .*: invalid choice: 'sqrt' .*inverse_sqrt"),
        ("dropout: [0.1, 0.2]", r"dropout in .*run.yaml: expected one value, got \[0.1, 0.2\]"),
        ("dropout: {p: 0.1}", "dropout in .*run.yaml: expected one value, got {'p': 0.1}"),
        ("train_file: [[a]]", r"train_file in .*run.yaml: expected a list of values, got \[\['a'\]\]"),
        ("dropout: " + BOMB, "dropout in .*run.yaml: expected one value, got .{,500}$"),
        ("train_file: " + BOMB, "train_file in .*run.yaml: expected a list of values, got .{,500}$"),
        ("dropout: null", "dropout in .*run.yaml: null is not possible"),
        ("- dropout", "must hold `key: value` lines, not ..dropout.."),
        ("a: b: c", "run.yaml cannot be read: mapping values are not allowed here"),
        ("seed: 1\nd_model: 2\n'seed': 3", "run.yaml cannot be read: seed is given twice, in lines 1 and 3"),
        ("fsdp_config: {a: 1, a: 2}", "run.yaml cannot be read: a is given twice, in lines 1 and 1"),
        ("a: " + "[" * 3000, "run.yaml cannot be read: it is nested too deeply"),
        (
            "load_best_model_at_end: true",
            "load_best_model_at_end needs an eval_strategy, which is no .give steps or epoch.*"
            "or give --load_best_model_at_end false$",
        ),
    ],
)
def test_mistakes_in_a_file_are_named(write, text, message):
    with pytest.raises(UserError, match=message) as raised:
        load_config(write(text))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--learing_rate", "1e-3"], "unknown flag '--learing_rate'; did you mean '--learning_rate'?"),
        (["--learning-rat=1"], "unknown flag '--learning-rat'; did you mean '--learning_rate'?"),
        (["--learning_rate", "fast"], "learning_rate: invalid float value: 'fast'"),
        (["--learning_rate"], "learning_rate: expected one argument"),
        (["--train_file"], "train_file: expected at least one argument"),
        (["--seed", "1", "2"], "unexpected argument '2'"),
        (["--seed=1", "2"], "unexpected argument '2'"),
        (["--seed", "1", "--seed=2"], "--seed is given more than once; give it once"),
        (["--ffn_bias", "--no_ffn_bias"], "--no_ffn_bias is given more than once; give it once"),
        (["--no_dropout"], "unknown flag '--no_dropout'; did you mean '--dropout'?"),
        (["--learn", "1e-3"], "unknown flag '--learn'; did you mean '--learning_rate'?"),
        (["--num_beams", "1"], "unknown flag '--num_beams'; did you mean '--generation_num_beams'?"),
        (["--heads", "2"], "unknown flag '--heads'; did you mean '--encoder_attention_heads'?"),
        (["--x", "1"], "unknown flag '--x'; see vaswani train --help"),
        (["--", "1"], "unknown flag '--'; see vaswani train --help"),
        (["corpus.jsonl"], "unexpected argument 'corpus.jsonl'"),
    ],
)
def test_mistakes_in_flags_are_named(flags, message):
    with pytest.raises(UserError, match=message):
        load_config(None, flags)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--eval_strategy", "no", "--save_steps", "10"],
            "load_best_model_at_end needs an eval_strategy, which is no (give steps or epoch), and a "
            "metric_for_best_model, which is bleu; or give --load_best_model_at_end false",
        ),
        (
            ["--eval_strategy", "steps"],
            "load_best_model_at_end needs the same save_strategy and eval_strategy, which are epoch and "
            "steps; give --save_strategy steps, or --load_best_model_at_end false",
        ),
        (["--save_steps", "10"], "save_steps=10.0 has no effect with save_strategy=epoch; leave it out"),
    ],
)
def test_flags_that_do_not_fit_a_shipped_configuration_are_named(flags, message):
    with pytest.raises(UserError) as raised:
        load_config("finetune_translation", ["--dataset", "texts", *flags])
    assert str(raised.value) == message


def test_a_missing_file_is_named():
    with pytest.raises(UserError, match=r"configuration file nowhere\.yaml does not exist"):
        load_config("nowhere.yaml")


@pytest.mark.parametrize("name", FIELDS_WITHOUT_EFFECT)
def test_fields_that_would_be_ignored_are_refused(write, name):
    with pytest.raises(
        UserError, match=re.escape(f"{name} has no effect here: {FIELDS_WITHOUT_EFFECT[name]}")
    ):
        load_config(write(f"{name}: 1"))
    with pytest.raises(UserError, match=f"{name} has no effect here"):
        load_config(None, [f"--{name}", "1"])


def test_fields_of_a_file_that_would_be_ignored_are_named_together(write):
    told = "the model that training continues with keeps its own; leave it out"
    with pytest.raises(
        UserError, match=rf"d_model, vocab_size each has no effect here: {told} \(in \S+yaml\)"
    ):
        load_config(write("d_model: 16\nseed: 1\nvocab_size: 300"), ["--model", "runs/dates"])
    told += " of a copy, which vaswani configs show multi30k prints"
    with pytest.raises(UserError, match=rf"^vocab_size, .*, d_model, .* each has no effect here: {told}"):
        load_config("multi30k", ["--model", "runs/dates"])


def comparable(config) -> dict:
    state = {name: value for name, value in vars(config.training).items() if name != "distributed_state"}
    return {"model": config.model, "data": config.data, **state}


def test_the_saved_configuration_resolves_to_itself(write, tmp_path):
    path = write(
        "train_file: [a.de, a.en]\nlearning_rate: 0.1234567890123456789\nadam_epsilon: 1e-9\n"
        "eval_strategy: steps\neval_steps: 10\nsave_strategy: steps\nsave_steps: 20\n"
        "load_best_model_at_end: true\n"
        "metric_for_best_model: bleu\nearly_stopping_patience: 2\nreport_to: [tensorboard]\nmax_steps: 40\n"
        "share_encoder_decoder_embeddings: false\nlabel_smoothing_factor: 0\nactivation_checkpointing: true\n"
        "accelerator_config: {split_batches: true}\nhub_token: secret\n"
    )
    config = load_config(path, ["--output_dir", str(tmp_path / "run"), "--run_name", "Grüße"])
    config.save(tmp_path / "saved.yaml")
    again = load_config(tmp_path / "saved.yaml")
    assert again.training.hub_token is None
    assert comparable(again) | {"hub_token": "secret"} == comparable(config)
    assert again.to_dict() == config.to_dict()


def test_the_saved_configuration_holds_what_was_resolved_and_no_secret(tmp_path):
    config = load_config(None, ["--hub_token", "secret", "--resume_from_checkpoint", "true", "--seed", "3"])
    config.save(tmp_path / "saved.yaml")
    saved = yaml.safe_load((tmp_path / "saved.yaml").read_text())
    assert saved["d_model"] == 512
    assert saved["warmup_steps"] == 4000
    assert saved["seed"] == 3
    assert "weight_decay" not in saved  # of transformers, and at its default
    assert not {"hub_token", "resume_from_checkpoint"} & saved.keys()
