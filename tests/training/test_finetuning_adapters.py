"""Fine-tunings that train an adapter (LoRA), or only a part of the model, with the head of their task."""

import json
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from jsonl import write_jsonl
from tiny_runs import as_flags, datasets_cache, leave_out_slow_parts
from toy_labels import save_toy_decoder, save_toy_encoder, write_toy_rows
from toy_questions import toy_questions
from vaswani import Classifier
from vaswani.cli import run as run_command
from vaswani.errors import UserError
from vaswani.hub.checkpoint import load_checkpoint
from vaswani.training.config.config_file import load_config
from vaswani.training.config.finetuning_arguments import FinetuningConfig
from vaswani.training.runs.completion import CompletionRun
from vaswani.training.runs.finetuning import FinetuningRun, finetune
from vaswani.training.runs.question_answering import QuestionAnsweringRun

__all__ = ["datasets_cache"]

leave_out_slow_parts()

QUICK: dict[str, Any] = {"use_cpu": True, "disable_tqdm": True, "learning_rate": 2e-2, "max_steps": 4}
QUICK |= {"max_tokens_per_batch": 400, "eval_strategy": "no", "max_length": 36, "lora_rank": 2}
TOKENS = torch.tensor([[5, 6, 7, 8, 9, 10]])
CLASSES: dict[str, Any] = {
    "classification": AutoModelForSequenceClassification,
    "tagging": AutoModelForTokenClassification,
    "question_answering": AutoModelForQuestionAnswering,
    "completion": AutoModelForCausalLM,
}
RUNS: dict[str, Any] = {"question_answering": QuestionAnsweringRun, "completion": CompletionRun}
# Tasks, models, and the modules of the head that are trained in full.
KINDS = [
    ("classification", "encoder", {"classifier", "pooler"}),
    ("classification", "decoder", {"score"}),
    ("tagging", "bert", {"classifier"}),
    ("question_answering", "bert", {"qa_outputs"}),
    ("completion", "gpt2", set()),
]


@pytest.fixture(scope="module")
def toys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of the tasks, and models that have learned nothing."""
    folder = tmp_path_factory.mktemp("toys")
    for task in ("classification", "tagging"):
        write_toy_rows(folder / task, task, train=40, validation=10, test=10)
    for split, seed in (("train", 0), ("test", 1)):
        (folder / "question_answering").mkdir(exist_ok=True)
        write_jsonl(folder / "question_answering" / f"{split}.jsonl", list(toy_questions(30, seed)))
        rows = [
            {"prompt": f"the film {word}", "completion": " good and great"} for word in ("was", "in", "saw")
        ]
        (folder / "completion").mkdir(exist_ok=True)
        write_jsonl(folder / "completion" / f"{split}.jsonl", rows * 5)
    save_toy_encoder(folder / "encoder")
    save_toy_encoder(folder / "bert", library=True)
    save_toy_decoder(folder / "decoder")
    save_toy_decoder(folder / "gpt2", library=True)
    return folder


def options_for(toys: Path, task: str, model: str, output: Path, **more: Any) -> dict[str, Any]:
    files = {f"{split}_file": toys / task / f"{split}.jsonl" for split in ("train", "test")}
    lengths = {"max_question_length": 8, "doc_stride": 4} if task == "question_answering" else {}
    options = {**QUICK, "task": task, "model": toys / model, **files, **lengths, "output_dir": output, **more}
    return {name: value for name, value in options.items() if value is not None}


def config_for(*args: Any, **more: Any) -> Any:
    return load_config(None, as_flags(options_for(*args, **more)), FinetuningConfig)


def outputs(model: Any) -> torch.Tensor:
    types = {"token_type_ids": TOKENS % 2} if model.config.model_type == "bert" else {}
    with torch.no_grad():
        found = model.eval()(input_ids=TOKENS, **types)
    return found.start_logits if "start_logits" in found else found.logits


@pytest.mark.exhaustive(after=2)
@pytest.mark.slow
@pytest.mark.parametrize(("task", "model", "head"), KINDS)
def test_an_adapter_trains_resumes_loads_merges_and_scores_the_same(
    task: str, model: str, head: set[str], toys: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    run = tmp_path / "run"
    before = load_file(toys / model / "model.safetensors")
    scores = finetune(config_for(toys, task, model, run, save_steps=2))
    assert not (run / "model.safetensors").exists()
    adapter = load_file(run / "adapter_model.safetensors")
    assert any(weights.any() for name, weights in adapter.items() if "lora_B" in name)
    whole = [name for name in adapter if ".lora_" not in name]
    assert {part for part in head for name in whole if f".{part}." in name} == head
    assert all(any(f".{part}." in name for part in head) for name in whole)

    (run / "adapter_model.safetensors").unlink()
    (run / "checkpoint-4").rename(tmp_path / "away")
    finetune(config_for(toys, task, model, run, save_steps=2, resume_from_checkpoint="true"))
    resumed = load_file(run / "adapter_model.safetensors")
    assert resumed.keys() == adapter.keys()
    assert all(torch.equal(weights, resumed[name]) for name, weights in adapter.items())

    unchanged = load_file(toys / model / "model.safetensors")
    assert all(torch.equal(unchanged[name], weights) for name, weights in before.items())
    assert run_command(["merge", str(run), str(tmp_path / "merged")]) == 0
    ours = outputs(load_checkpoint(run, device="cpu", auto_class=None)[0])
    merged = outputs(CLASSES[task].from_pretrained(tmp_path / "merged"))
    torch.testing.assert_close(merged, ours, rtol=0, atol=0)
    settings = [(folder / "training_config.yaml").read_text() for folder in (run, tmp_path / "merged")]
    assert settings[0] == settings[1]  # columns and lengths for `predict` and `evaluate`
    evaluations = [(folder / "evaluation.json").read_bytes() for folder in (run, tmp_path / "merged")]
    assert evaluations[0] == evaluations[1]
    card = (tmp_path / "merged" / "README.md").read_text()
    assert f"fine-tuned from {model} on" in card
    assert "library_name: transformers" in card

    data = str(toys / task / "test.jsonl")
    capsys.readouterr()
    assert run_command(["evaluate", "--model", str(run), "--data", data, "--json"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    name = {"classification": "accuracy", "tagging": "f1", "question_answering": "f1"}.get(task, "perplexity")
    found = told["metrics"][name]["value"] if task == "completion" else told[name]
    assert found == pytest.approx(scores[f"test_{name}"])


@pytest.mark.slow
@pytest.mark.parametrize(("task", "model"), [(task, model) for task, model, _ in KINDS])
def test_plain_peft_loads_an_adapter_as_the_card_says(
    task: str, model: str, toys: Path, tmp_path: Path
) -> None:
    finetune(config_for(toys, task, model, tmp_path / "run", max_steps=2))
    card = (tmp_path / "run" / "README.md").read_text()
    assert "library_name: peft" in card
    stored = load_file(tmp_path / "run" / "adapter_model.safetensors")
    held = f"{sum(weights.numel() for weights in stored.values()):,} parameters"
    assert f"This is an adapter (LoRA) of rank 2 for `{model}`, which it needs. It holds {held}." in card
    assert (f"| Adapter | {held} |" in card) == (model in ("encoder", "decoder"))  # the others have no table
    assert "| `lora_rank` | 2 |" in card
    assert "PeftModel.from_pretrained(base, " in card
    shape = AutoConfig.from_pretrained(tmp_path / "run")
    assert shape.architectures == [CLASSES[task].from_config(shape).__class__.__name__]
    base = CLASSES[task].from_pretrained(toys / model, config=shape)
    before = outputs(base)
    found = outputs(peft.PeftModel.from_pretrained(base, str(tmp_path / "run")))
    ours = outputs(load_checkpoint(tmp_path / "run", device="cpu", auto_class=None)[0])
    torch.testing.assert_close(found, ours, rtol=1e-4, atol=1e-5)
    assert (found - before).abs().max() > 1e-4


def built(toys: Path, task: str, model: str, output: Path, **more: Any) -> Any:
    """The model of a run, before training."""
    run = RUNS.get(task, FinetuningRun)(config_for(toys, task, model, output, **more))
    run.check()
    return run.build_model(run.build_tokenizers(run.load()))


def adapted_layers(model: Any) -> set[str]:
    names = (name for name, weights in model.named_parameters() if weights.requires_grad)
    return {name.partition(".lora_")[0].rpartition(".")[2] for name in names if ".lora_" in name}


@pytest.mark.parametrize(
    ("task", "model", "layers"),
    [
        ("classification", "encoder", {"q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"}),
        ("tagging", "bert", {"query", "key", "value", "dense"}),
        ("completion", "gpt2", {"c_attn", "c_proj", "c_fc"}),
    ],
)
def test_all_linear_layers_below_the_head_are_adapted(
    task: str, model: str, layers: set[str], toys: Path, tmp_path: Path
) -> None:
    adapted = built(toys, task, model, tmp_path / "run")
    assert adapted_layers(adapted) == layers
    config = adapted.peft_config["default"]
    assert (config.r, config.lora_alpha, config.lora_dropout) == (2, 4, 0)


def test_each_option_changes_the_adapter(toys: Path, tmp_path: Path) -> None:
    options = {"lora_rank": 3, "lora_alpha": 6, "lora_dropout": 0.5, "lora_targets": ["query", "value"]}
    adapted = built(toys, "classification", "bert", tmp_path / "run", **options)
    assert adapted_layers(adapted) == {"query", "value"}
    config = adapted.peft_config["default"]
    assert (config.r, config.lora_alpha, config.lora_dropout) == (3, 6, 0.5)


@pytest.mark.parametrize(
    ("task", "model", "options", "told"),
    [
        (
            "classification",
            "encoder",
            {"lora_targets": "query"},
            "lora_targets=query is no linear layer.*q_proj",
        ),
        ("classification", "encoder", {"lora_targets": "classifier"}, "lora_targets=classifier is no linear"),
        ("completion", "decoder", {"lora_targets": "lm_head"}, "lora_targets=lm_head is no linear layer"),
        (
            "tagging",
            "bert",
            {"lora_rank": None, "lora_alpha": 3},
            "lora_alpha=3.0 has no effect without lora_rank",
        ),
        ("classification", "decoder", {"lm_loss_weight": 0.5}, "lm_loss_weight=0.5 .* lora_rank keeps"),
        (
            "classification",
            "decoder",
            {"lora_rank": None, "freeze": "encoder", "lm_loss_weight": 0.5},
            "lm_loss_weight=0.5 .* freeze=encoder keeps",
        ),
        ("classification", "gpt2", {}, "lora_rank needs a model with a padding token"),
        ("question_answering", "bert", {"from_scratch": True}, "from_scratch has none"),
        ("tagging", "bert", {"freeze": "embeddings"}, "leave out freeze"),
        (
            "tagging",
            "bert",
            {"lora_rank": None, "freeze": "embeddings", "from_scratch": True},
            "freeze=embeddings keeps weights as they are, and from_scratch makes them random",
        ),
        ("completion", "decoder", {"fsdp_size": 2}, "fsdp_size"),
        ("completion", "decoder", {"average_checkpoints": 2}, "cannot be combined with an adapter"),
        ("classification", "encoder", {"push_to_hub": True}, "nobody else can use an adapter"),
    ],
)
def test_invalid_options_raise_an_error_before_reading_the_corpus(
    task: str, model: str, options: dict[str, Any], told: str, toys: Path, tmp_path: Path
) -> None:
    config = config_for(toys, task, model, tmp_path / "run", **options)
    with pytest.raises(UserError, match=told):
        RUNS.get(task, FinetuningRun)(config).check()


@pytest.fixture(scope="module")
def adapter(toys: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an adapter that classifies."""
    folder = tmp_path_factory.mktemp("adapter") / "run"
    finetune(config_for(toys, "classification", "encoder", folder, max_steps=2))
    return folder


def test_an_adapter_predicts_but_cannot_be_the_base_of_another_training(adapter: Path, toys: Path) -> None:
    predictions = Classifier.from_pretrained(adapter, device="cpu")(["the great film"])
    assert predictions[0].label in ("good", "bad")
    for more in ({"lora_rank": 2}, {"lora_rank": None}):
        options = options_for(toys, "classification", "encoder", adapter.parent / "other", **more)
        config = load_config(None, as_flags({**options, "model": adapter}), FinetuningConfig)
        with pytest.raises(UserError, match="vaswani merge"):
            FinetuningRun(config).check()


def test_an_adapter_without_its_head_is_refused(adapter: Path, tmp_path: Path) -> None:
    from shutil import copytree

    from safetensors.torch import save_file

    folder = copytree(adapter, tmp_path / "damaged")
    weights = load_file(folder / "adapter_model.safetensors")
    save_file(
        {name: tensor for name, tensor in weights.items() if ".classifier." not in name},
        folder / "adapter_model.safetensors",
    )
    (folder / "model_hashes.json").unlink()
    with pytest.raises(UserError, match="lack 2 of the model's, such as classifier"):
        load_checkpoint(folder, device="cpu", auto_class=None)


# ----------------------------------------------------------------------------------------------- frozen parts


def trained(model: Any) -> set[str]:
    return {name for name, weights in model.named_parameters() if weights.requires_grad}


@pytest.mark.parametrize(("task", "model"), [("classification", "encoder"), ("classification", "decoder")])
def test_with_a_frozen_encoder_the_head_alone_is_trained(
    task: str, model: str, toys: Path, tmp_path: Path
) -> None:
    names = trained(built(toys, task, model, tmp_path, lora_rank=None, freeze="encoder"))
    head = ("classifier.", "model.pooler.") if model == "encoder" else ("score.",)
    assert names
    assert all(name.startswith(head) for name in names)


@pytest.mark.parametrize(("task", "model"), [("question_answering", "bert"), ("completion", "gpt2")])
def test_frozen_embeddings_do_not_change(task: str, model: str, toys: Path, tmp_path: Path) -> None:
    config = config_for(toys, task, model, tmp_path / "run", lora_rank=None, freeze="embeddings", max_steps=3)
    finetune(config)
    before, after = (
        CLASSES[task].from_pretrained(folder).state_dict() for folder in (toys / model, tmp_path / "run")
    )
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    embedding = next(name for name in before if name.endswith(("word_embeddings.weight", "wte.weight")))
    assert embedding not in moved
    assert len(moved) > 5
