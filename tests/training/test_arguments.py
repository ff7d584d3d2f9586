"""Arguments of a run, and errors before it starts."""

from dataclasses import MISSING, fields
from importlib.util import find_spec

import pytest
import torch
from transformers import PreTrainedConfig
from transformers.trainer_utils import IntervalStrategy

from vaswani import VaswaniConfig, VaswaniDecoderConfig, VaswaniEncoderConfig
from vaswani.data.sources.corpus_spec import CorpusSpec
from vaswani.errors import UserError
from vaswani.evaluation import score_names
from vaswani.training.config.arguments import DataArguments, ModelArguments
from vaswani.training.config.pretraining_arguments import DecoderArguments, EncoderArguments
from vaswani.training.config.schedule import paper_peak_learning_rate
from vaswani.training.config.training_arguments import TrainingArguments, names_of_dictionaries

DERIVED_FROM_THE_DATA = {"vocab_size", "decoder_vocab_size", "token_type_vocab_size"}
OF_THE_LIBRARY = {"use_cache", "is_encoder_decoder", "decoder_start_token_id"}
OF_THE_LIBRARY |= {"pad_token_id", "bos_token_id", "eos_token_id"}
OF_IMPORTED_MODELS = {"final_norm", "sinusoidal_offset", "position_from_mask", "attention_output_bias"}
OF_FINE_TUNING = {"classifier_activation", "classifier_dropout", "classifier_pooling"}


def defaults(section) -> dict:
    return {
        field.name: field.default if field.default is not MISSING else field.default_factory()
        for field in fields(section)
    }


@pytest.mark.parametrize(
    ("arguments", "config"),
    [
        (ModelArguments, VaswaniConfig),
        (EncoderArguments, VaswaniEncoderConfig),
        (DecoderArguments, VaswaniDecoderConfig),
    ],
)
def test_model_arguments_are_the_fields_of_the_model_with_its_defaults(arguments, config):
    of_the_library = {field.name for field in fields(PreTrainedConfig)} | OF_THE_LIBRARY
    theirs = {
        field.name: field.default
        for field in fields(config)
        if field.name not in of_the_library | DERIVED_FROM_THE_DATA | OF_IMPORTED_MODELS | OF_FINE_TUNING
    }
    for name in theirs.keys() & {"encoder_attention", "decoder_attention"}:
        theirs[name] = [theirs[name]]  # one word may stand for all layers
    found = defaults(arguments)
    del found["attn_implementation"]  # changes the speed alone and is not saved
    assert found == theirs


def test_data_arguments_are_those_of_the_loader_with_its_defaults():
    arguments = defaults(DataArguments)
    assert {name: arguments[name] for name in defaults(CorpusSpec)} == defaults(CorpusSpec)


def test_training_defaults_are_the_papers():
    args = TrainingArguments()
    assert (args.adam_beta1, args.adam_beta2, args.adam_epsilon) == (0.9, 0.98, 1e-9)
    assert (args.warmup_steps, args.label_smoothing_factor) == (4000, 0.1)
    assert (args.generation_num_beams, args.generation_length_penalty) == (4, 0.6)
    args.resolve_learning_rate(512)
    assert args.learning_rate == paper_peak_learning_rate(512, 4000)


def test_the_best_model_has_the_lowest_loss_or_the_highest_score(tmp_path):
    names = {"loss", *score_names.ALL}
    lower = {"loss", "mse", "perplexity", "bits_per_byte"}
    assert lower <= names
    for name in names:
        arguments = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, metric_for_best_model=name)
        assert arguments.greater_is_better is (name not in lower), name


def test_a_given_learning_rate_is_the_peak():
    args = TrainingArguments(learning_rate=2e-3)
    args.resolve_learning_rate(512)
    assert args.learning_rate == 2e-3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"early_stopping_patience": 3}, "early_stopping_patience needs an eval_strategy, which is no"),
        (
            {"load_best_model_at_end": True, "save_strategy": "no"},
            "load_best_model_at_end needs an eval_strategy, which is no",
        ),
        (
            {"early_stopping_patience": 3, "load_best_model_at_end": True, "save_strategy": "best"},
            r"which is loss; or give --early_stopping_patience none --save_strategy steps "
            r"--load_best_model_at_end false$",
        ),
        (
            {"load_best_model_at_end": True, "save_strategy": "no", "eval_strategy": IntervalStrategy.EPOCH},
            "the same save_strategy and eval_strategy, which are no and epoch; give --save_strategy epoch",
        ),
        (
            {"early_stopping_patience": 3, "eval_strategy": "epoch"},
            "and a metric_for_best_model, which is None; or give --early_stopping_patience none$",
        ),
        ({"early_stopping_patience": 0}, "early_stopping_patience=0 must be at least 1"),
        ({"report_to": ["tensorbord"]}, "report_to=tensorbord is unknown; choose among none, .*tensorboard"),
        ({"max_tokens_per_batch": 0}, "max_tokens_per_batch=0 must be at least 1"),
        ({"label_smoothing_factor": 1.0}, "label_smoothing_factor=1.0 must be at least 0 and below 1"),
        ({"lr_scheduler_kwargs": {"timescale": 3}}, "inverse_sqrt takes no lr_scheduler_kwargs"),
    ],
)
def test_invalid_arguments_raise_an_error(options, message):
    with pytest.raises(UserError, match=message):
        TrainingArguments(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"load_best_model_at_end": True, "eval_strategy": "epoch", "save_strategy": "best"},
        {"early_stopping_patience": 3, "eval_strategy": "epoch", "lr_scheduler_type": "reduce_lr_on_plateau"},
    ],
)
def test_models_are_ranked_by_their_loss_by_default(options):
    assert TrainingArguments(**options).metric_for_best_model == "loss"


def test_the_library_reads_the_same_options_as_json():
    assert set(names_of_dictionaries(TrainingArguments)) == set(TrainingArguments._VALID_DICT_FIELDS)
    for name in names_of_dictionaries(TrainingArguments):
        with pytest.raises(UserError, match=f"{name}='1': expected JSON such as"):
            TrainingArguments(**{name: "1"})


@pytest.mark.parametrize("package", ["tensorboard", "trackio"])
def test_a_missing_reporting_package_is_named_with_its_remedy(package, monkeypatch):
    monkeypatch.setattr(
        "vaswani.training.config.training_arguments.importlib.util.find_spec",
        lambda name: None if name == package else find_spec(name),
    )
    with pytest.raises(UserError, match=rf"report_to={package} .*pip install 'vaswani\[{package}\]'"):
        TrainingArguments(report_to=[package])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr_scheduler_type": "linear"}, "lr_scheduler_type=linear needs a learning_rate"),
        ({"warmup_steps": 0.1}, "warmup_steps of at least 1, but warmup_steps=0.1"),
    ],
)
def test_schedules_without_a_formula_need_a_learning_rate(options, message):
    with pytest.raises(UserError, match=message):
        TrainingArguments(**options).resolve_learning_rate(512)


@pytest.mark.skipif(torch.accelerator.is_available(), reason="THERE IS A GPU")
def test_half_precision_without_a_gpu_says_what_it_needs():
    with pytest.raises(UserError, match="bf16=true finds no GPU; add use_cpu=true"):
        TrainingArguments(bf16=True)
    assert TrainingArguments(bf16=True, use_cpu=True).bf16
