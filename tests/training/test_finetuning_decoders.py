"""Fine-tuning of decoders, as GPT's: the end token of a text is classified; the texts may be learned too."""

import json
import re
from pathlib import Path

import pytest
import torch
from refusals import refusal
from run_records import logged, weights
from torch.nn.functional import cross_entropy
from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline

from jsonl import write_jsonl
from tiny_runs import as_flags
from toy_labels import POSITIONS, save_toy_decoder, save_toy_encoder, toy_rows, write_toy_rows
from vaswani.cli import run as run_command
from vaswani.errors import UserError
from vaswani.inference.classify.classification import Classifier
from vaswani.training.config.config_file import load_config
from vaswani.training.config.finetuning_arguments import FinetuningConfig
from vaswani.training.runs.finetuning import FinetuningRun, finetune

QUICK = {"use_cpu": True, "disable_tqdm": True, "max_length": POSITIONS, "learning_rate": 5e-3}
QUICK |= {"max_tokens_per_batch": 300, "logging_steps": 1}
LEARNED = {"classification": "accuracy", "multi_label": "micro_f1", "regression": "pearson"}
OF_TEXTS = list(LEARNED)


@pytest.fixture(scope="session")
def toys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("decoders")
    for task in OF_TEXTS:
        write_toy_rows(folder / task, task)
    save_toy_decoder(folder / "ours")
    save_toy_decoder(folder / "library", library=True)
    save_toy_decoder(folder / "without dropout", dropout=0.0, attention_dropout=0.0)
    save_toy_encoder(folder / "encoder")
    return folder


@pytest.fixture
def options(toys: Path, tmp_path: Path) -> dict:
    """Of a fine-tuning of some updates, for one label."""
    place = {"dataset": toys / "classification", "model": toys / "ours", "output_dir": tmp_path / "run"}
    return {**QUICK, **place, "max_steps": 6}


def run(options: dict, **more: object) -> dict[str, float]:
    return finetune(load_config(None, as_flags({**options, **more}), FinetuningConfig))


# ---------------------------------------------------------------------------------- what is learned, and left


@pytest.mark.exhaustive(after=2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "task"), [*(("ours", task) for task in OF_TEXTS), ("library", "classification")]
)
def test_a_decoder_learns_each_task_of_texts(toys, tmp_path, model, task):
    options = {**QUICK, "task": task, "model": toys / model, "dataset": toys / task, "output_dir": tmp_path}
    assert run_command(["finetune", *as_flags(options | {"num_train_epochs": 25})]) == 0
    record = json.loads((tmp_path / "evaluation.json").read_text())
    assert record["metrics"][LEARNED[task]]["value"] > (0.95 if task == "regression" else 95)
    assert f"fine-tuned from {model}" in (tmp_path / "README.md").read_text()


@pytest.mark.parametrize(("model", "begins"), [("ours", 1), ("library", 0)])
def test_the_saved_tokenizer_ends_texts_and_pairs(toys, options, model, begins):
    before = AutoTokenizer.from_pretrained(toys / model)
    run(options, model=toys / model)
    tokenizer = AutoTokenizer.from_pretrained(options["output_dir"])
    config = json.loads((options["output_dir"] / "config.json").read_text())
    assert config["pad_token_id"] == tokenizer.pad_token_id != tokenizer.eos_token_id
    assert config["vocab_size"] == len(tokenizer)
    first, second = (before(text, add_special_tokens=False).input_ids for text in ("the film", "was good"))
    begin, end = [before.bos_token_id] * begins, [before.eos_token_id]
    assert tokenizer("the film").input_ids == [*begin, *first, *end]
    assert tokenizer("the film", "was good").input_ids == [*begin, *first, *end, *second, *end]
    assert "token_type_ids" not in tokenizer("the film")


@pytest.mark.parametrize("model", ["ours", "library"])
def test_training_and_pipelines_see_the_same_tokens(toys, options, monkeypatch, model):
    """The predictions of the run are those of a plain pipeline, one text at a time and in a batch."""
    seen = {}
    monkeypatch.setattr(FinetuningRun, "evaluate", _remember(FinetuningRun.evaluate, seen))
    run(options, model=toys / model)
    rows = seen["test"]
    tokenizer = AutoTokenizer.from_pretrained(options["output_dir"])
    assert [list(row) for row in rows["input_ids"]] == tokenizer(rows["text"][:]).input_ids
    classify = pipeline("text-classification", str(options["output_dir"]), device="cpu")
    examples = json.loads((options["output_dir"] / "evaluation.json").read_text())["examples"]
    texts = [example["text"] for example in examples]
    for size in (1, len(texts)):
        labels = [answer["label"] for answer in classify(texts, batch_size=size)]
        assert labels == [example["prediction"] for example in examples]


def _remember(evaluate, seen):
    def remembering(self, trainer, splits, tokenizers):
        seen.update(splits)
        return evaluate(self, trainer, splits, tokenizers)

    return remembering


def test_padding_on_either_side_changes_nothing(options):
    run(options)
    model = AutoModelForSequenceClassification.from_pretrained(options["output_dir"]).eval()
    tokenizer = AutoTokenizer.from_pretrained(options["output_dir"])
    texts = ["the film was good", "bad", "ann saw the poor film in rome and oslo"]
    with torch.no_grad():
        alone = torch.cat([model(**tokenizer(text, return_tensors="pt")).logits for text in texts])
        for side in ("left", "right"):
            batch = tokenizer(texts, padding=True, padding_side=side, return_tensors="pt")
            assert 0 in batch.attention_mask
            torch.testing.assert_close(model(**batch).logits, alone, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_second_text_is_used_for_the_label(options, tmp_path):
    rows = [
        {"text": "the film", "second": row["text"], "label": row["label"]}
        for row in toy_rows("classification", 100, seed=0)
    ]
    file = write_jsonl(tmp_path / "pairs.jsonl", rows)
    del options["dataset"]
    options |= {"train_file": file, "test_file": file, "learning_rate": 1e-2, "max_steps": 50}
    assert run(options, text_pair_field="second")["test_accuracy"] > 95
    assert run(options, output_dir=tmp_path / "one")["test_accuracy"] < 70


@pytest.mark.slow
def test_a_tokenizer_without_padding_gets_it_for_tags_too(toys, options, tmp_path):
    write_toy_rows(tmp_path / "tagging", "tagging")
    run(options, task="tagging", model=toys / "library", dataset=tmp_path / "tagging")
    tokenizer = AutoTokenizer.from_pretrained(options["output_dir"])
    config = json.loads((options["output_dir"] / "config.json").read_text())
    assert config["pad_token_id"] == tokenizer.pad_token_id == tokenizer.eos_token_id
    tagger = Classifier.from_pretrained(options["output_dir"], device="cpu")
    (text,) = tagger([["ann", "saw", "rome"]])
    assert len(text.label) == 3


def test_a_tuned_decoder_is_tuned_again(options, tmp_path):
    """Its tokenizer stays as the first run has left it."""
    run(options)
    run(options, model=options["output_dir"], output_dir=tmp_path / "more")
    names = [(folder / "tokenizer.json").read_text() for folder in (options["output_dir"], tmp_path / "more")]
    assert names[0] == names[1]


@pytest.mark.slow
def test_from_scratch_a_decoder_has_the_same_shape(toys, options, tmp_path):
    run(options, model=toys / "library")
    run(options, model=toys / "library", from_scratch=True, output_dir=tmp_path / "scratch")
    first, second = weights(options["output_dir"]), weights(tmp_path / "scratch")
    assert {name: value.shape for name, value in first.items()} == {
        name: value.shape for name, value in second.items()
    }


# ------------------------------------------------------------------- the language-modelling loss of the texts


def trainer_of(options: dict, **more: object):
    """The trainer of a run, with its rows."""
    made = FinetuningRun(load_config(None, as_flags({**options, **more}), FinetuningConfig))
    return made._prepare()[2]


def slow_losses(trainer, batch: dict) -> tuple[torch.Tensor, torch.Tensor]:
    """The losses of labels and of tokens, row by row and token by token."""
    model = trainer.model
    embedding = model.get_input_embeddings().weight
    of_labels, of_tokens = [], []
    for ids, mask, label in zip(batch["input_ids"], batch["attention_mask"], batch["labels"], strict=True):
        ids = ids[mask.bool()][None]
        of_labels.append(cross_entropy(model(input_ids=ids).logits, label[None]))
        states = model.base_model(input_ids=ids).last_hidden_state[0]
        for place in range(1, ids.shape[1]):
            logits = embedding @ states[place - 1]
            of_tokens.append(cross_entropy(logits, ids[0, place]))
    return torch.stack(of_labels).mean(), torch.stack(of_tokens).mean()


@pytest.mark.parametrize("model", ["without dropout", "library"])
def test_the_losses_and_their_gradient_are_those_of_a_slow_reference(toys, options, model):
    trainer = trainer_of(options, model=toys / model, lm_loss_weight=0.5)
    for module in trainer.model.modules():  # GPT-2's dropout
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    padded = next(batch for batch in trainer.get_train_dataloader() if 0 in batch["attention_mask"])
    (batch,), count = trainer.get_batch_samples(iter([padded]), 1, torch.device("cpu"))
    trainer.model.train()
    loss = trainer.compute_loss(trainer.model, {**batch}, num_items_in_batch=count)
    labels, tokens = slow_losses(trainer, batch)
    torch.testing.assert_close(loss, labels + 0.5 * tokens, rtol=1e-5, atol=1e-6)
    parameters = list(trainer.model.parameters())
    fast, slow = (torch.autograd.grad(each, parameters) for each in (loss, labels + 0.5 * tokens))
    for one, other in zip(fast, slow, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_parts_of_any_size_equal_the_whole(toys, options, tmp_path):
    """Tokens that are unequally many in the parts: every one of them weighs the same."""
    rows = write_jsonl(tmp_path / "rows.jsonl", list(toy_rows("classification", 9, seed=0)))
    del options["dataset"]
    options |= {"model": toys / "without dropout", "train_file": rows, "lm_loss_weight": 0.5}
    options |= {"optim": "sgd", "learning_rate": 0.1, "max_grad_norm": 0.0, "max_steps": 3}
    run(options, max_tokens_per_batch=500)
    parts = {"max_tokens_per_batch": 42, "gradient_accumulation_steps": 4, "output_dir": tmp_path / "parts"}
    assert len(trainer_of({**options, **parts}).get_train_dataloader()) == 4
    run(options | parts)
    for what in ("loss", "lm_loss"):
        assert logged(options["output_dir"], what) == pytest.approx(
            logged(tmp_path / "parts", what), rel=1e-4
        )
    whole, parts = weights(options["output_dir"]), weights(tmp_path / "parts")
    for name, value in whole.items():
        torch.testing.assert_close(parts[name], value, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_lm_loss_weight_changes_the_weights_and_the_loss_is_logged(options, tmp_path):
    run(options)
    run(options, lm_loss_weight=0.5, output_dir=tmp_path / "with")
    plain, moved = weights(options["output_dir"]), weights(tmp_path / "with")
    assert any(not torch.equal(moved[name], plain[name]) for name in plain)
    assert logged(options["output_dir"], "lm_loss") == []
    of_texts, both = (logged(tmp_path / "with", what) for what in ("lm_loss", "loss"))
    first = logged(options["output_dir"], "loss")[0]
    assert both[0] == pytest.approx(first + 0.5 * of_texts[0], rel=1e-4)
    assert of_texts[-1] < of_texts[0]
    assert "`lm_loss_weight` | 0.5" in (tmp_path / "with" / "README.md").read_text()


# -------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tie_word_embeddings": False}, "one with an output layer of its own"),
        ({"lm_head_bias": True}, "one with a bias in its output layer"),
    ],
)
def test_a_language_loss_needs_the_embedding_as_output_layer(options, tmp_path, capsys, fields, message):
    model = save_toy_decoder(tmp_path / "decoder", **fields)
    told = refusal("finetune", options | {"model": model, "lm_loss_weight": 0.5}, capsys)
    assert "lm_loss_weight=0.5 needs a decoder" in told
    assert message in told


def test_an_encoder_has_no_language_loss(toys, options, capsys):
    told = refusal("finetune", options | {"model": toys / "encoder", "lm_loss_weight": 0.5}, capsys)
    assert "this is no decoder, but a model of type 'vaswani_encoder'; leave it out" in told


def test_a_tokenizer_without_an_end_token_is_refused(options, tmp_path, capsys):
    model = save_toy_decoder(tmp_path / "decoder", library=True)
    path = model / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    path.write_text(json.dumps({name: value for name, value in settings.items() if name != "eos_token"}))
    told = refusal("finetune", options | {"model": model}, capsys)
    assert re.search(r"the tokenizer in .* has no token that ends a text; give it an eos_token", told)


def test_classifier_pooling_is_refused_for_decoders(options, capsys):
    told = refusal("finetune", options | {"classifier_pooling": "mean"}, capsys)
    assert "classifier_pooling=mean is not supported by a model of type 'vaswani_decoder'" in told


def test_a_sharded_embedding_is_refused(options):
    config = load_config(None, as_flags({**options, "lm_loss_weight": 0.5}), FinetuningConfig)
    config.training.fsdp_size = 2
    with pytest.raises(UserError, match="this is a model whose parameters are sharded over processes; leave"):
        FinetuningRun(config)._check_lm_loss()


@pytest.mark.slow
def test_vaswani_predict_uses_the_same_tokens(toys, options, tmp_path):
    run(options, model=toys / "library")
    rows, output = toys / "classification" / "test.jsonl", tmp_path / "labels.jsonl"
    places = {"model": options["output_dir"], "input": rows, "text_field": "text", "output": output}
    assert run_command(["predict", *as_flags({**places, "device": "cpu"})]) == 0
    predicted = {row["text"]: row["prediction"] for row in map(json.loads, output.read_text().splitlines())}
    examples = json.loads((options["output_dir"] / "evaluation.json").read_text())["examples"]
    assert [predicted[row["text"]] for row in examples] == [row["prediction"] for row in examples]
