"""Every option of every kind of run, with every awkward value: refused before the corpus is read, or used.

The cases are made from the dataclasses, so that a new field, ours or one of a later transformers, is tested
as it appears.
"""

import math
import typing
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import pytest

from tiny_runs import as_flags
from toy_labels import save_toy_encoder
from toy_texts import toy_documents
from vaswani import (
    VaswaniConfig,
    VaswaniDecoderConfig,
    VaswaniForCausalLM,
    VaswaniForConditionalGeneration,
    VaswaniForSequenceClassification,
)
from vaswani.data.text.span_denoising import sentinel_names
from vaswani.data.tokenization import load_tokenizers, save_tokenizers, train_tokenizer
from vaswani.distillation.config import DistillationConfig
from vaswani.distillation.run import DistillationRun
from vaswani.distillation.stack_arguments import (
    CausalDistillationConfig,
    MaskedDistillationConfig,
    TaskDistillationConfig,
)
from vaswani.distillation.stack_run import CausalLMDistillation, MaskedLMDistillation, TaskRun
from vaswani.errors import UserError
from vaswani.training.config import config_file
from vaswani.training.config.arguments import ContinuedRunConfig, RunConfig
from vaswani.training.config.completion_arguments import CompletionConfig
from vaswani.training.config.config_file import load_config
from vaswani.training.config.finetuning_arguments import FinetuningConfig
from vaswani.training.config.options import INHERITED_BOUNDS, BaseConfig, sections
from vaswani.training.config.pretraining_arguments import (
    CausalLMConfig,
    ContinuedCausalLMConfig,
    ContinuedGapSentencesConfig,
    ContinuedMaskedLMConfig,
    ContinuedSpanDenoisingConfig,
    GapSentencesConfig,
    MaskedLMConfig,
    PretrainingConfig,
    SpanDenoisingConfig,
)
from vaswani.training.config.training_arguments import TrainingArguments
from vaswani.training.runs.base import BaseRun
from vaswani.training.runs.completion import CompletionRun
from vaswani.training.runs.denoising import GapSentencesRun, SpanDenoisingRun
from vaswani.training.runs.finetuning import FinetuningRun
from vaswani.training.runs.pretraining import CausalLMRun, MaskedLMRun
from vaswani.training.runs.translation import ContinuedRun, TrainingRun

AWKWARD = ("nan", "inf", "-inf", "-1", "0", "1e30", str(10**12))
COMMON = {"use_cpu": True, "disable_tqdm": True, "learning_rate": 1e-3}


class CorpusReached(Exception):  # noqa: N818 - no error
    """All checks before reading the corpus have passed."""


@dataclass(frozen=True)
class Kind:
    """A kind of run, and the least that it must be told."""

    command: type[BaseConfig]
    config: type[BaseConfig]
    run: type[BaseRun]
    options: dict[str, Any]


TEXTS = {"dataset": "texts", "max_length": 24, "objective": "masked"}
SPANS, GAPS = {"objective": "span_denoising"}, {"objective": "gap_sentences"}
KINDS = {
    "train": Kind(RunConfig, RunConfig, TrainingRun, {"dataset": "dates"}),
    "more pairs": Kind(RunConfig, ContinuedRunConfig, ContinuedRun, {"dataset": "dates"}),
    "distill": Kind(DistillationConfig, DistillationConfig, DistillationRun, {"dataset": "dates"}),
    "masked": Kind(PretrainingConfig, MaskedLMConfig, MaskedLMRun, TEXTS),
    "causal": Kind(PretrainingConfig, CausalLMConfig, CausalLMRun, TEXTS | {"objective": "causal"}),
    "more masked": Kind(PretrainingConfig, ContinuedMaskedLMConfig, MaskedLMRun, TEXTS),
    "more causal": Kind(
        PretrainingConfig, ContinuedCausalLMConfig, CausalLMRun, TEXTS | {"objective": "causal"}
    ),
    "spans": Kind(PretrainingConfig, SpanDenoisingConfig, SpanDenoisingRun, TEXTS | SPANS),
    "gaps": Kind(PretrainingConfig, GapSentencesConfig, GapSentencesRun, TEXTS | GAPS),
    "more spans": Kind(PretrainingConfig, ContinuedSpanDenoisingConfig, SpanDenoisingRun, TEXTS | SPANS),
    "more gaps": Kind(PretrainingConfig, ContinuedGapSentencesConfig, GapSentencesRun, TEXTS | GAPS),
    "distill masked": Kind(DistillationConfig, MaskedDistillationConfig, MaskedLMDistillation, TEXTS),
    "distill causal": Kind(
        DistillationConfig,
        CausalDistillationConfig,
        CausalLMDistillation,
        TEXTS | {"objective": "causal", "targets": "teacher"},
    ),
    "distill task": Kind(
        DistillationConfig,
        TaskDistillationConfig,
        TaskRun,
        {"dataset": "x", "max_length": 24, "task": "classification"},
    ),
    "finetune": Kind(FinetuningConfig, FinetuningConfig, FinetuningRun, {"dataset": "x", "max_length": 24}),
    "complete": Kind(
        FinetuningConfig,
        CompletionConfig,
        CompletionRun,
        {"dataset": "x", "max_length": 24, "task": "completion"},
    ),
}


def nullable(config: type[BaseConfig]) -> list[str]:
    """The fields of a configuration that may be None."""
    return [
        name
        for section in sections(config).values()
        for name, hint in typing.get_type_hints(section).items()
        if type(None) in typing.get_args(hint)
        and name not in config.without_effect
        and name in {one.name for one in fields(section) if one.init}
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_a_flag_can_set_any_nullable_field_to_none(kind):
    from_flags = config_file._Fields(KINDS[kind].config).from_flags
    names = nullable(KINDS[kind].config)
    assert {"learning_rate", "max_test_rows"} & {*names}
    for name in names:
        assert from_flags([(f"--{name}", name, ["none"])]) == {name: None}, name
        assert from_flags([(f"--{name}", name, ["None"])]) == {name: None}, name


def test_none_overrides_a_file(tmp_path):
    (tmp_path / "run.yaml").write_text("dataset: dates\nmax_validation_rows: 3\n")
    flags = ["--max_validation_rows", "none"]
    config = load_config(tmp_path / "run.yaml", flags)
    assert config.data.max_validation_rows is None
    with pytest.raises(UserError, match="seed: invalid int value: 'none'"):
        load_config(None, ["--seed", "none"])


def save_teacher(folder: Path) -> Path:
    """A translator that has learned nothing."""
    tokenizer = train_tokenizer(toy_documents(5), 400, markers=["<mask>", *sentinel_names(100)])
    shape = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 32}
    config = VaswaniConfig(vocab_size=len(tokenizer), decoder_ffn_dim=32, **shape)
    VaswaniForConditionalGeneration(config).save_pretrained(folder)
    save_tokenizers(tokenizer, tokenizer, folder)
    return folder


def save_classifier(folder: Path, encoder: Path) -> Path:
    """An encoder with a head that has learned nothing."""
    VaswaniForSequenceClassification.from_pretrained(encoder).save_pretrained(folder)
    tokenizer = load_tokenizers(encoder)[0]
    save_tokenizers(tokenizer, tokenizer, folder)
    return folder


@pytest.fixture(scope="session")
def models(tmp_path_factory) -> dict[str, dict[str, Any]]:
    """What a kind of run begins with."""
    folder = tmp_path_factory.mktemp("models")
    encoder = {"model": str(save_toy_encoder(folder / "encoder"))}
    tokenizer = train_tokenizer(toy_documents(5), 300, purpose="causal")
    shape = {"d_model": 16, "decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 32}
    decoder = VaswaniForCausalLM(VaswaniDecoderConfig(vocab_size=len(tokenizer), **shape))
    decoder.save_pretrained(folder / "decoder")
    save_tokenizers(tokenizer, tokenizer, folder / "decoder")
    teacher = str(save_teacher(folder / "teacher"))
    return {
        "distill": {"teacher": teacher},
        "more pairs": {"model": teacher},
        "distill masked": {"teacher": encoder["model"]},
        "distill causal": {"teacher": str(folder / "decoder")},
        "distill task": {"teacher": str(save_classifier(folder / "classifier", Path(encoder["model"])))},
        "more masked": encoder,
        "more causal": {"model": str(folder / "decoder")},
        "more spans": {"model": teacher},
        "more gaps": {"model": teacher},
        "finetune": encoder,
        "complete": {"model": str(folder / "decoder")},
    }


@pytest.fixture
def start(models, tmp_path, monkeypatch):
    """Begin a run, and return its configuration once it asks for the corpus."""

    def load(self: BaseRun) -> None:
        raise CorpusReached

    for run in (BaseRun, FinetuningRun, CompletionRun):
        monkeypatch.setattr(run, "load", load)
    monkeypatch.chdir(tmp_path)

    def begin(kind_name: str, name: str, value: str) -> BaseConfig:
        kind = KINDS[kind_name]
        given = {**COMMON, **kind.options, **models.get(kind_name, {}), "output_dir": "run"}
        given.pop(name, None)
        config = load_config(None, [*as_flags(given), f"--{name}={value}"], kind.command)
        assert type(config) is kind.config
        with pytest.raises(CorpusReached):
            kind.run(config).run()
        return config

    return begin


def hints_of(hint: Any) -> set[Any]:
    """The types that a hint allows, those inside a list among them."""
    inner = () if typing.get_origin(hint) in (Literal, dict) else typing.get_args(hint)
    return {hint}.union(*map(hints_of, inner))


def all_fields(kinds: set[type]) -> Iterator[tuple[str, str, str]]:
    """The fields of these types, each once: the kind of run where it appears first, its section, its name."""
    seen = set()
    for name, kind in KINDS.items():
        for title, section in sections(kind.config).items():
            hints = typing.get_type_hints(section)
            for one in fields(section):
                identity = (one.name, one.metadata.get("bounds"), str(one.default))
                takes = hints_of(hints[one.name]) & kinds and one.init
                if takes and one.name not in kind.config.without_effect and identity not in seen:
                    seen.add(identity)
                    yield name, title, one.name


NUMERIC = list(all_fields({int, float}))
TEXTUAL = list(all_fields({str}))

ZERO_TURNS_OFF = {
    *("dropout", "attention_dropout", "activation_dropout", "word_dropout", "bpe_dropout"),
    "label_smoothing_factor",
    *(
        "lm_loss_weight",
        "consistency_weight",
        "weight_decay",
        "max_grad_norm",
        "neftune_noise_alpha",
        "warmup_steps",
        "eval_delay",
    ),
    *("sparse_global_blocks", "sparse_global_tokens", "sparse_random_blocks", "dataloader_num_workers"),
    *("gap_sentence_kept", "label_weight", "soft_target_weight", "cosine_weight", "relation_weight"),
    *("adam_beta1", "adam_beta2"),  # the gradient itself, and its last square
}
ACCEPTED = {
    **{(name, "0"): "turns it off" for name in ZERO_TURNS_OFF},
    **{(name, "0"): "a seed like others" for name in ("seed", "data_seed", "sparse_seed")},
    ("generation_length_penalty", "0"): "ranks by the sum of log-probabilities",
    ("generation_length_penalty", "-1"): "prefers short hypotheses",
    ("lora_dropout", "0"): "turns it off",
    ("prompt_tokens", "0"): "the teacher writes whole texts",
    ("generation_temperature", "0"): "greedy search",
    ("lm_loss_weight", "0"): "turns it off",
    ("max_steps", "-1"): "num_train_epochs decides",
    ("local_rank", "0"): "old launchers pass it",
    ("local_rank", "-1"): "the library's default",
}
# Each of them is a value that the other tests see at work, or the default.


@pytest.mark.parametrize("value", AWKWARD)
@pytest.mark.parametrize(("kind", "section", "name"), NUMERIC, ids=lambda part: part)
def test_awkward_numbers_are_refused_or_used(start, kind, section, name, value):
    if (name, value) in ACCEPTED:
        config = start(kind, name, value)
        assert getattr(getattr(config, section), name) == float(value)
        return
    with pytest.raises(UserError) as refused:
        start(kind, name, value)
    message = str(refused.value)
    assert name in message
    assert value in message or str(float(value)) in message
    assert "\n" not in message


def test_accepted_exceptions_name_existing_fields():
    assert {name for name, _ in ACCEPTED} <= {name for _, _, name in NUMERIC}


def test_every_number_of_the_library_has_bounds():
    """A field of a later transformers fails here until its bounds are known."""
    inherited = {
        name
        for kind, section, name in NUMERIC
        if "bounds" not in sections(KINDS[kind].config)[section].__dataclass_fields__[name].metadata
    }
    assert inherited <= INHERITED_BOUNDS.keys()


@pytest.mark.parametrize("name", INHERITED_BOUNDS)
def test_arguments_made_in_python_are_checked_too(name):
    with pytest.raises(UserError, match=f"{name}=nan must be"):
        TrainingArguments(**{name: math.nan})


AWKWARD = {"empty": "", "surrogate": "\ud800", "NUL": "a\0b"}
AWKWARD_TEXTS = [
    pytest.param(*place, value, id=f"{'-'.join(place)}-{awkward}")
    for place in TEXTUAL
    for awkward, value in AWKWARD.items()
    if (place[-1], value) != ("source_prefix", "")  # takes away a prefix that is saved
]


@pytest.mark.parametrize(("kind", "section", "name", "value"), AWKWARD_TEXTS)
def test_awkward_texts_are_refused(start, kind, section, name, value):
    with pytest.raises(UserError, match=name) as refused:
        start(kind, name, value)
    assert "\n" not in str(refused.value)
