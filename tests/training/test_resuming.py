"""On resuming, each changed setting is refused, or takes effect and is announced."""

import copy
import dataclasses
import json
import typing
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import yaml
from run_records import assert_same_weights, logged
from transformers.utils import logging

import tiny_runs
from tiny_runs import TINY_RUN, as_flags
from vaswani import TrainingArguments
from vaswani.distillation import run as distillation_run
from vaswani.distillation.config import DistillationConfig
from vaswani.distillation.run import DistillationRun
from vaswani.distillation.stack_arguments import TaskDistillationConfig
from vaswani.errors import UserError
from vaswani.files.run_files import checkpoints
from vaswani.hub.card import LISTED_SETTINGS
from vaswani.training.config.arguments import RunConfig
from vaswani.training.config.config_file import load_config
from vaswani.training.config.finetuning_arguments import FinetuningConfig
from vaswani.training.config.options import UNSAVED_FIELDS, BaseConfig, sections
from vaswani.training.config.pretraining_arguments import PretrainingConfig
from vaswani.training.config.schedule import inverse_sqrt_factor
from vaswani.training.runs.pretraining import CausalLMRun, MaskedLMRun
from vaswani.training.runs.translation import TrainingRun, train
from vaswani.training.trainer.allowed_changes import MAY_CHANGE, NUM_PROCESSES
from vaswani.training.trainer.checkpoints import (
    fault_of,
    finish_checkpoint,
    unfinished_checkpoint,
)
from vaswani.training.trainer.publishing import PLACES, hide_folders
from vaswani.training.trainer.resuming import check_resumable, manifest_of

KINDS: dict[str, tuple[type[BaseConfig], dict[str, Any]]] = {
    "train": (RunConfig, {"share_encoder_decoder_embeddings": True}),
    "distill": (DistillationConfig, {"teacher": "t", "share_encoder_decoder_embeddings": True}),
    "masked": (PretrainingConfig, {"objective": "masked"}),
    "causal": (PretrainingConfig, {"objective": "causal"}),
    "spans": (PretrainingConfig, {"objective": "span_denoising", "share_encoder_decoder_embeddings": True}),
    "gaps": (PretrainingConfig, {"objective": "gap_sentences", "share_encoder_decoder_embeddings": True}),
    "continued masked": (PretrainingConfig, {"objective": "masked", "model": "m"}),
    "continued causal": (PretrainingConfig, {"objective": "causal", "model": "m"}),
    "finetune": (FinetuningConfig, {"model": "m", "lr_scheduler_type": "constant", "warmup_steps": 0}),
    "questions": (
        FinetuningConfig,
        {"task": "question_answering", "model": "m", "lr_scheduler_type": "constant", "warmup_steps": 0},
    ),
}
# transformers derives them from other fields.
DERIVED = {"do_eval", "gradient_checkpointing", "gradient_checkpointing_kwargs"}
# Fields whose other value is not told by their type, with the fields that it needs.
OTHER_VALUES: dict[str, dict[str, Any]] = {
    "accelerator_config": {"accelerator_config": {"split_batches": True}},
    "activation_checkpointing_kwargs": {"activation_checkpointing_kwargs": {"use_reentrant": False}},
    "classifier_pooling": {"classifier_pooling": "mean"},
    "data_seed": {"data_seed": 1},
    "dataloader_pin_memory": {"dataloader_pin_memory": True, "use_cpu": False},
    "dataloader_prefetch_factor": {"dataloader_prefetch_factor": 3, "dataloader_num_workers": 1},
    "debug": {"debug": "underflow_overflow"},
    "directions": {"directions": ["en-de"]},
    "divergence": {"divergence": "reverse_kl"},
    "eval_strategy": {"eval_strategy": "epoch"},
    "fsdp": {"fsdp": True},
    "fsdp_config": {"fsdp_config": {"version": 2}},
    "generation_config": {"generation_config": "elsewhere"},
    "hub_strategy": {"hub_strategy": "end"},
    "include_num_input_tokens_seen": {"include_num_input_tokens_seen": "all"},
    "label_smoothing_factor": {"label_smoothing_factor": 0.2},
    "log_level": {"log_level": "info"},
    "log_level_replica": {"log_level_replica": "info"},
    "language": {"language": ["fr"]},
    "load_best_model_at_end": {
        "load_best_model_at_end": True,
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
    },
    "logging_strategy": {"logging_strategy": "epoch"},
    "lr_scheduler_kwargs": {"lr_scheduler_kwargs": {"a": 1}, "lr_scheduler_type": "constant"},
    "lr_scheduler_type": {"lr_scheduler_type": "linear"},
    "max_steps": {"max_steps": 3},
    "optim": {"optim": "adamw_torch"},
    "report_to": {"report_to": ["tensorboard"]},
    "retention_metric": {"retention_metric": "chrf"},
    "save_strategy": {"save_strategy": "epoch"},
    "teacher_top_k": {"teacher_top_k": 3},
    "torch_compile_backend": {"torch_compile_backend": "inductor"},
    "torch_compile_mode": {"torch_compile_mode": "default"},
    "train_sampling_strategy": {"train_sampling_strategy": "sequential"},
    "vocabulary": {"vocabulary": "own", "soft_target_weight": 0.0},
}
# Fields that cannot be given another value here: it needs other hardware, processes or packages, or another
# kind of run.
NOT_MADE_HERE = (
    *("objective", "ddp_backend", "deepspeed", "parallelism_config", "fp16", "tf32"),
    *("gradient_accumulation_steps", "tensor_parallel_size", "early_stopping_patience"),  # and need others
    *("model", "teacher", "student"),  # and may move alone
)


def resolved(kind: str, **more: Any) -> BaseConfig:
    config, required = KINDS[kind]
    options = {"use_cpu": True, "output_dir": "o", "learning_rate": 0.1, **required, **more}
    return tiny_runs.resolved(options, config)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[BaseConfig, Path]]:
    """For each kind a configuration, and a checkpoint as a run with it saves one."""
    folder = tmp_path_factory.mktemp("saved")
    configs = {kind: resolved(kind) for kind in KINDS}
    return {kind: (config, save(folder / kind, config)) for kind, config in configs.items()}


def save(folder: Path, config: Any, update: int = 2, epoch: float = 0.5, **more: Any) -> Path:
    unfinished = unfinished_checkpoint(folder, update)
    unfinished.mkdir(parents=True)
    for name in ("model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth"):
        (unfinished / name).write_text(name)
    state = {"global_step": update, "epoch": epoch}
    (unfinished / "trainer_state.json").write_text(json.dumps(state))
    return finish_checkpoint(unfinished, manifest_of(config) | more)


def fields_of(config: BaseConfig) -> Iterator[tuple[str, dataclasses.Field]]:
    for section, kind in sections(type(config)).items():
        hints = typing.get_type_hints(kind)
        for field in dataclasses.fields(kind):
            has_one = (
                typing.get_origin(hints[field.name]) is typing.Literal
                and len(typing.get_args(hints[field.name])) == 1
            )  # which tells kinds of runs apart
            if field.init and not has_one and field.name not in (*UNSAVED_FIELDS, *NOT_MADE_HERE, *DERIVED):
                yield section, field


def other_values(section: Any, field: dataclasses.Field) -> dict[str, Any]:
    """A valid value that differs, and what it needs."""
    if field.name in OTHER_VALUES:
        return OTHER_VALUES[field.name]
    value = getattr(section, field.name)
    hint = typing.get_type_hints(type(section))[field.name]
    return {field.name: _other(value, hint)}


def _other(value: Any, hint: Any) -> Any:
    kinds = [kind for kind in (typing.get_args(hint) or (hint,)) if kind is not type(None)]
    if typing.get_origin(hint) is typing.Literal:
        return next(choice for choice in kinds if choice != value)
    if isinstance(value, Enum):
        return next(choice for choice in type(value) if choice != value)
    if isinstance(value, bool) or bool in kinds:
        return not value
    if isinstance(value, float):
        return value / 2 or 0.5
    if isinstance(value, int) or {int, float} & set(kinds):
        return (value or 1) + 1
    if isinstance(value, list) or any(typing.get_origin(kind) is list for kind in kinds):
        return [*(value or []), "x"]
    return f"{value or ''}x"


def changed(config: BaseConfig, section: str, values: dict[str, Any]) -> BaseConfig:
    other = copy.copy(config)
    setattr(other, section, dataclasses.replace(getattr(config, section), **values))
    return other


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_setting_that_changes_is_announced_or_refused(saved, kind, capsys, subtests):
    config, checkpoint = saved[kind]
    before = manifest_of(config)
    for section, field in fields_of(config):
        with subtests.test(field.name):
            now = changed(config, section, other_values(getattr(config, section), field))
            value, other = (
                {**manifest["library_defaults"], **manifest["settings"]}[field.name]
                for manifest in (before, manifest_of(now))
            )
            assert value != other
            if field.name in MAY_CHANGE:
                check_resumable(checkpoint, now)
                assert f"{field.name}: {value} → {other}\n" in capsys.readouterr().err
            else:
                with pytest.raises(UserError) as raised:
                    check_resumable(checkpoint, now)
                assert f"{field.name}={other} (it was trained with {value}" in str(raised.value)
                assert "\n" not in str(raised.value)
                assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", [*NOT_MADE_HERE, NUM_PROCESSES])
def test_recorded_settings_that_cannot_change_here_are_checked_too(saved, tmp_path, name, capsys):
    kinds = {"objective": "masked", "model": "finetune", "teacher": "distill", "student": "distill"}
    kind = kinds.get(name, "train")
    config = saved[kind][0]
    manifest = manifest_of(config)
    place = next(
        (part for part in ("settings", "library_defaults") if name in manifest[part]), None
    )  # else at its top
    (manifest[place] if place else manifest)[name] = 7
    checkpoint = save(tmp_path, config, **manifest)
    if name in MAY_CHANGE and MAY_CHANGE[name] is MAY_CHANGE["save_steps"]:
        check_resumable(checkpoint, config)
        assert f"{name}: 7 → " in capsys.readouterr().err
    else:
        with pytest.raises(UserError, match=rf"cannot change {name}=.* \(it was trained with 7"):
            check_resumable(checkpoint, config)


def test_the_table_names_settings_that_exist(saved):
    known = {field.name for config, _ in saved.values() for _, field in all_fields(config)}
    assert not MAY_CHANGE.keys() - known - {NUM_PROCESSES}
    of_task = sections(TaskDistillationConfig).values()
    assert not set(PLACES) - known - {field.name for part in of_task for field in dataclasses.fields(part)}
    assert not (OTHER_VALUES.keys() | set(NOT_MADE_HERE)) - known


def all_fields(config: BaseConfig) -> Iterator[tuple[str, dataclasses.Field]]:
    for section, kind in sections(type(config)).items():
        yield from ((section, field) for field in dataclasses.fields(kind))


@dataclasses.dataclass
class LaterArguments(TrainingArguments):
    """As a later version of transformers may have them."""

    warp_factor: int = 1


def test_a_new_field_of_a_later_version_must_have_its_default(saved):
    config, checkpoint = saved["train"]
    given = {name: getattr(config.training, name) for name in ("output_dir", "learning_rate", "use_cpu")}
    later = copy.copy(config)
    later.training = LaterArguments(**given)
    check_resumable(checkpoint, later)
    later.training = LaterArguments(**given, warp_factor=9)
    with pytest.raises(UserError, match=r"cannot change warp_factor=9 \(it was trained with 1\)"):
        check_resumable(checkpoint, later)


def test_a_dropped_field_of_an_earlier_version_must_have_its_default(saved, tmp_path):
    config, _ = saved["train"]
    manifest = manifest_of(config)
    unused = manifest | {"library_defaults": {**manifest["library_defaults"], "warp_factor": 1}}
    check_resumable(save(tmp_path / "unused", config, **unused), config)
    used = manifest | {"settings": {**manifest["settings"], "warp_factor": 9}}
    with pytest.raises(UserError, match=r"cannot change warp_factor=not a setting \(it was trained with 9\)"):
        check_resumable(save(tmp_path / "used", config, **used), config)


@pytest.mark.parametrize(("former", "kind"), [("bpe", "bpe"), ("bytes", "byte")])
def test_the_tokenizer_field_of_an_earlier_version_is_understood(tmp_path, former, kind):
    config = resolved("masked", tokenizer_kind=kind)
    manifest = manifest_of(config)
    settings = {name: value for name, value in manifest["settings"].items() if name != "tokenizer_kind"}
    checkpoint = save(tmp_path / "run", config, **manifest | {"settings": settings | {"tokenizer": former}})
    assert not check_resumable(checkpoint, config).changes
    recorded = tmp_path / "earlier.yaml"
    recorded.write_text(f"output_dir: x\nlearning_rate: 0.1\nobjective: masked\ntokenizer: {former}\n")
    data = load_config(recorded, [], PretrainingConfig).data
    assert (data.tokenizer, data.tokenizer_kind) == (None, kind)


def test_a_tokenizer_with_the_name_of_a_kind_is_used(tmp_path, monkeypatch):
    (tmp_path / "bytes").mkdir()
    recorded = tmp_path / "named.yaml"
    recorded.write_text("output_dir: x\nlearning_rate: 0.1\nobjective: masked\ntokenizer: bytes\n")
    monkeypatch.chdir(tmp_path)
    assert load_config(recorded, [], PretrainingConfig).data.tokenizer == "bytes"


STREAM = {"streaming": True, "max_steps": 9}
PLATEAU = {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "epoch"}


@pytest.mark.parametrize(
    ("before", "now", "reason"),
    [
        ({"max_steps": 9}, {"max_steps": 1}, "max_steps=1 (it was trained with 9; 2 updates have been made)"),
        ({"max_steps": 9}, {"max_steps": 2}, None),
        ({}, {"num_train_epochs": 0.25}, "0.5 epochs have been made"),
        ({}, {"num_train_epochs": 4}, None),
        ({"max_steps": 9}, {"max_steps": 9, "num_train_epochs": 4}, "max_steps=9 decides the length"),
        (
            {"max_steps": 9},
            {"max_steps": -1, "num_train_epochs": 0.25},
            "max_steps=-1 (it was trained with 9; 0.5",
        ),
        (
            {"max_steps": 9, "lr_scheduler_type": "cosine"},
            {"max_steps": 10, "lr_scheduler_type": "cosine"},
            "lr_scheduler_type=cosine depends on it",
        ),
        (
            {"max_steps": 9, "warmup_steps": 0.1},
            {"max_steps": 10, "warmup_steps": 0.1},
            "warmup_steps=0.1 depends on it",
        ),
        ({}, {"gradient_accumulation_steps": 2}, "an update would be of 2 batches and not of 1"),
        ({"gradient_accumulation_steps": 2}, {NUM_PROCESSES: 2}, None),
        ({"gradient_accumulation_steps": 2}, {NUM_PROCESSES: 4}, "would be of 4 batches"),
        ({}, {NUM_PROCESSES: 2, "tensor_parallel_size": 2}, None),
        ({}, {"generation_num_beams": 2}, None),
        (
            {"metric_for_best_model": "bleu"},
            {"metric_for_best_model": "bleu", "generation_num_beams": 2},
            "evaluations before and after would be compared by bleu",
        ),
        (
            PLATEAU,
            PLATEAU | {"max_validation_rows": 2},
            "would be compared by loss",
        ),
        ({"train_file": "a"}, {"train_file": "b"}, None),
        (
            STREAM | {"train_file": "a"},
            STREAM | {"train_file": "b"},
            "what a stream holds cannot be compared",
        ),
        (STREAM | {"train_file": "a"}, STREAM | {"train_file": "elsewhere/a"}, None),
    ],
)
def test_some_settings_can_change_under_a_condition(tmp_path, monkeypatch, before, now, reason):
    def with_processes(settings: dict[str, Any]) -> BaseConfig:
        monkeypatch.setattr(TrainingArguments, "world_size", settings.get(NUM_PROCESSES, 1))
        return resolved("train", **{name: settings[name] for name in settings if name != NUM_PROCESSES})

    checkpoint = save(tmp_path, with_processes(before))
    goes_on = with_processes(now)
    if reason is None:
        check_resumable(checkpoint, goes_on)
    else:
        with pytest.raises(UserError) as raised:
            check_resumable(checkpoint, goes_on)
        assert reason in str(raised.value)


@pytest.mark.parametrize(
    ("kind", "run", "refused"),
    [
        ("train", TrainingRun, {"vocab_size": 500}),
        ("distill", DistillationRun, {"temperature": 3}),
        ("masked", MaskedLMRun, {"mask_probability": 0.3}),
        ("causal", CausalLMRun, {"pack": False}),
    ],
)
def test_a_refused_resumption_neither_reads_the_corpus_nor_changes_files(
    tmp_path, monkeypatch, kind, run, refused
):
    save(tmp_path, resolved(kind, output_dir=tmp_path))
    files = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr(run, "load", lambda self: pytest.fail("the corpus is read"))
    monkeypatch.setattr(distillation_run, "check_teachers", lambda config: None)
    config = resolved(kind, output_dir=tmp_path, resume_from_checkpoint=True, **refused)
    with pytest.raises(UserError, match=f"a resumed run cannot change {next(iter(refused))}="):
        run(config).run()
    assert sorted(tmp_path.rglob("*")) == files


def test_a_checkpoint_of_another_command_is_refused(saved):
    with pytest.raises(UserError, match="checkpoint-2 is of a run of vaswani distill, not of vaswani train"):
        check_resumable(saved["distill"][1], saved["train"][0])


def test_a_refusal_names_the_configuration_to_resume_with(saved, tmp_path):
    config, _ = saved["train"]
    checkpoint = save(tmp_path, config)
    with pytest.raises(UserError, match="; resume with what it was, or start a new run"):
        check_resumable(checkpoint, resolved("train", seed=1))
    config.save(tmp_path / "training_config.yaml")
    with pytest.raises(UserError, match=f"; resume with --config {tmp_path}/training_config.yaml, or"):
        check_resumable(checkpoint, resolved("train", seed=1))


def test_checkpoints_without_settings_are_compared_with_the_runs_settings(tmp_path, caplog):
    """As for checkpoints of earlier versions, or of transformers' own trainer."""
    config = resolved("train", seed=7, max_grad_norm=2)
    checkpoint = save(tmp_path, config)
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    old = {name: manifest[name] for name in ("files",)} | {"num_replicas": 1}
    (checkpoint / "manifest.json").write_text(json.dumps(old))
    check_resumable(checkpoint, resolved("train", seed=8))
    assert "does not record the settings that it was trained with" in warnings_of(caplog)
    config.save(tmp_path / "training_config.yaml")
    check_resumable(checkpoint, config)
    with pytest.raises(UserError, match=r"max_grad_norm=1.0 \(it was trained with 2.0\) and seed=8 \(.* 7\)"):
        check_resumable(checkpoint, resolved("train", seed=8))


@pytest.mark.parametrize(
    ("kind", "name"), [("finetune", "model"), ("distill", "teacher"), ("distill", "student")]
)
def test_the_initial_model_of_a_run_can_move_but_not_change_its_name(tmp_path, kind, name):
    config = resolved(kind, **{name: "/home/ada/encoder"})
    checkpoint = save(tmp_path, config)
    check_resumable(checkpoint, resolved(kind, **{name: "runs/encoder"}))
    with pytest.raises(UserError, match=f"cannot change {name}="):
        check_resumable(checkpoint, resolved(kind, **{name: "runs/other"}))


def test_a_checkpoint_with_hidden_folders_can_be_resumed(tmp_path):
    options = {
        "train_file": ["/home/ada/a.de", "/home/ada/a.en"],
        "output_dir": "/home/ada/run",
        "teacher": "/home/t",
    }
    config = resolved("distill", **options, teacher_cache="/home/ada/cache", vocab_size=99)
    changed = {"output_dir": ["/home/ada/before", "/home/ada/run"]}
    checkpoint = save(tmp_path, config, resumed=[{"update": 1, "changed": changed}])
    hide_folders(checkpoint)
    assert "/home" not in (checkpoint / "manifest.json").read_text()
    assert fault_of(checkpoint) is None
    check_resumable(checkpoint, config)
    with pytest.raises(UserError, match=r"cannot change vocab_size=98 \(it was trained with 99\)"):
        check_resumable(checkpoint, resolved("distill", **options, vocab_size=98))


def warnings_of(caplog: pytest.LogCaptureFixture) -> str:
    return " ".join(record.getMessage() for record in caplog.records)


# ----------------------------------------------------------------------------- what is announced takes effect


CHANGES = {  # of a run of 4 updates, with the options of `tiny_run`
    "max_steps": 9,
    "save_steps": 4,
    "save_total_limit": 2,
    "logging_steps": 2,
    "eval_strategy": "steps",
    "eval_steps": 3,
    "eval_delay": 7,
    "eval_on_start": True,
    "max_validation_rows": 5,
    "max_test_rows": 5,
    "evaluate_test": False,
    "generation_num_beams": 2,
    "generation_length_penalty": 0.3,
    "generation_max_length": 7,
    "report_to": ["tensorboard"],
    "use_cache": False,
    "attn_implementation": "eager",
    "language": ["de"],
    "license": "mit",
    "data_name": "Few dates",
    "data_url": "https://example.org/dates",
    "data_license": "cc0-1.0",
    "dataloader_num_workers": 1,
    "dataloader_persistent_workers": True,
    "dataloader_prefetch_factor": 3,
    "activation_checkpointing": True,
    # what the libraries read from the trainer's arguments as they go on
    "log_level": "error",
    "run_name": "again",
    "non_finite_loss": "skip",
    "torch_empty_cache_steps": 3,
    "hub_model_id": "ada/again",
    "hub_strategy": "end",
    "hub_always_push": True,
    "ddp_timeout": 99,
    "ddp_bucket_cap_mb": 5,
    "restore_callback_states_from_checkpoint": False,
}
# Allowed settings whose effect is tested elsewhere, and where.
SEEN_ELSEWHERE = {
    "test_trainer.py": ("early_stopping_patience",),
    "test_average_checkpoints.py": ("average_checkpoints",),
    "test_distributed.py, test_sharding.py": (
        *(NUM_PROCESSES, "gradient_accumulation_steps", "tensor_parallel_size", "fsdp_size"),
    ),
    "test_distill_run.py": ("baseline", "teacher_cache", "retention_metric", "teacher", "student"),
    "test_training_push.py": ("push_to_hub", "hub_private_repo", "hub_revision"),
    "test_faults.py": ("train_file", "validation_file", "output_dir"),
    "test_question_answering.py": ("max_answer_length", "n_best", "null_score_diff_threshold"),
}
# They have an effect where a run begins, be it anew or not: no checkpoint holds anything of them.
OF_EVERY_START = {
    *("use_cpu", "torch_compile", "torch_compile_backend", "torch_compile_mode", "ddp_backend"),
    *("ddp_find_unused_parameters", "ddp_broadcast_buffers", "ddp_static_graph", "model", "dataset"),
    *("activation_checkpointing_kwargs", "dataloader_pin_memory", "save_on_each_node", "save_only_model"),
    *("log_level_replica", "log_on_each_node", "disable_tqdm", "logging_strategy", "save_strategy"),
    *("project", "trackio_space_id", "trackio_bucket_id", "trackio_static_space_id", "test_file"),
    *("predict_with_generate", "prediction_loss_only", "ignore_data_skip", "num_train_epochs"),
}


def test_every_changeable_setting_has_a_test_of_its_effect():
    elsewhere = {name for names in SEEN_ELSEWHERE.values() for name in names}
    assert CHANGES.keys() | elsewhere | OF_EVERY_START == MAY_CHANGE.keys()


@pytest.fixture(scope="module")
def resumed(dates, tmp_path_factory) -> tuple[Path, Any]:
    """A run of four updates that was resumed with `CHANGES`, and its trainer."""
    folder = tmp_path_factory.mktemp("resumed") / "run"
    options = {**TINY_RUN, **dates, "output_dir": folder, "max_steps": 4, "save_steps": 1}
    train(load_config(None, as_flags(options)))
    trainers = []
    verbosity = logging.get_verbosity()  # of the process, which `log_level` sets
    with pytest.MonkeyPatch.context() as patch:
        evaluate = TrainingRun.evaluate
        patch.setattr(
            TrainingRun, "evaluate", lambda run, *given: trainers.append(given[0]) or evaluate(run, *given)
        )
        given = {**options, **CHANGES, "resume_from_checkpoint": True}
        train(tiny_runs.resolved(given))
    logging.set_verbosity(verbosity)
    return folder, trainers[0]


@pytest.mark.slow
def test_changed_settings_take_effect_in_a_resumed_run(resumed):
    folder, trainer = resumed
    updates = [entry["step"] for entry in history(folder) if "grad_norm" in entry]
    assert updates == [1, 2, 3, 4, 6, 8, 9]  # 9: where it is saved and evaluated
    assert [entry["step"] for entry in history(folder) if "eval_loss" in entry] == [4, 9]
    assert [path.name for path in checkpoints(folder)] == ["checkpoint-9", "checkpoint-8"]
    assert list(folder.rglob("events.out.tfevents.*"))
    assert len(trainer.eval_dataset) == 5
    record = json.loads((folder / "evaluation.json").read_text())
    assert (record["split"], record["rows"]) == ("validation", 5)
    assert (record["search"]["num_beams"], record["search"]["length_penalty"]) == (2, 0.3)
    for name in CHANGES.keys() & {field.name for field in dataclasses.fields(trainer.args)}:
        assert getattr(trainer.args, name) == CHANGES[name], name
    config = json.loads((folder / "config.json").read_text())
    assert config["use_cache"] is False
    assert trainer.model.config._attn_implementation == "eager"
    assert trainer.model.is_gradient_checkpointing
    loader = trainer.get_train_dataloader()
    assert (loader.num_workers, loader.persistent_workers, loader.prefetch_factor) == (1, True, 3)
    card = (folder / "README.md").read_text()
    for text in ("Few dates", "https://example.org/dates", "cc0-1.0", "license: mit", "- de"):
        assert text in card


def history(folder: Path) -> list[dict[str, Any]]:
    return json.loads((folder / "trainer_state.json").read_text())["log_history"]


@pytest.mark.slow
def test_resumptions_are_recorded_in_the_saved_files(resumed):
    folder, _ = resumed
    settings = yaml.safe_load((folder / "training_config.yaml").read_text())
    resumptions = settings.pop("resumed")
    manifest = json.loads((folder / "checkpoint-9" / "manifest.json").read_text())
    assert settings == manifest["settings"]
    assert resumptions == manifest["resumed"]
    assert resumptions[0]["update"] == 4
    assert {name: now for name, (_, now) in resumptions[0]["changed"].items()} == CHANGES
    assert resumptions[0]["changed"]["max_steps"] == [4, 9]

    for state in (folder / "trainer_state.json", folder / "checkpoint-9" / "trainer_state.json"):
        values = json.loads(state.read_text())
        for name in ("max_steps", "save_steps", "eval_steps", "logging_steps"):
            assert values[name] == settings[name]
    for entry in history(folder):
        if "learning_rate" in entry:
            factor = inverse_sqrt_factor(entry["step"] - 1, warmup_steps=settings["warmup_steps"])
            assert entry["learning_rate"] == pytest.approx(settings["learning_rate"] * factor)
    card = (folder / "README.md").read_text()
    listed = [name for name in LISTED_SETTINGS if f"| `{name}` |" in card]
    assert "max_steps" in listed
    for name in listed:
        assert f"| `{name}` | {settings.get(name)} |" in card
    assert "Resumed after update 4: `max_steps` changed from 4 to 9." in card
    repeated = load_config(folder / "training_config.yaml")
    assert repeated.to_dict() == settings


@pytest.mark.slow
@pytest.mark.parametrize("evaluation", [{"eval_strategy": "no"}, {"eval_strategy": "steps", "eval_steps": 4}])
def test_a_run_extended_on_resuming_equals_a_longer_run(dates, tmp_path, evaluation):
    """Only the first part evaluates after its last update, before it saves."""
    options = {**TINY_RUN, **dates, **evaluation, "dropout": 0.3, "save_steps": 3, "max_steps": 5}
    train(load_config(None, as_flags({**options, "output_dir": tmp_path / "grown"})))
    longer = options | {"max_steps": 11}
    train(load_config(None, as_flags({**longer, "output_dir": tmp_path / "whole"})))
    grown = {**longer, "output_dir": tmp_path / "grown", "resume_from_checkpoint": True}
    train(load_config(None, as_flags(grown)))
    assert_same_weights(tmp_path / "grown", tmp_path / "whole")
    assert logged(tmp_path / "grown", "learning_rate") == logged(tmp_path / "whole", "learning_rate")
