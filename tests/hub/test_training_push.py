"""`vaswani train --push_to_hub` and `Trainer.push_to_hub`: what is pushed when, also without a connection."""

from pathlib import Path

import pytest

from loopback_hub import LoopbackHub, Run
from tiny_runs import as_flags

pytestmark = pytest.mark.slow  # each training is a process of its own

MESSAGES = {
    "end": [],
    "every_save": ["In training: update 3 of 6", "In training: update 6 of 6"],
    "checkpoint": [
        "In training: update 3 of 6",
        "In training: update 3 of 6, to resume from",
        "In training: update 6 of 6",
        "In training: update 6 of 6, to resume from",
    ],
}


def train_flags(options: dict, **more: object) -> list[str]:
    options = {**options, "hub_model_id": "ada/run", "push_to_hub": True, "hub_always_push": True, **more}
    return ["train", *as_flags(options)]


def messages(hub: LoopbackHub) -> list[str]:
    return [commit.message for commit in hub.repositories["ada/run"].branches["main"][1:]]


@pytest.mark.parametrize("strategy", MESSAGES)
def test_a_training_pushes_as_its_hub_strategy_says(
    hub: LoopbackHub,
    run: Run,
    tiny_run: dict,
    strategy: str,
) -> None:
    flags = train_flags(tiny_run, hub_strategy=strategy, language=["de", "no"], license="mit")
    assert f"published {hub.url}/ada/run" in run(flags).stdout
    assert messages(hub) == [*MESSAGES[strategy], "Upload model"]
    commits = hub.repositories["ada/run"].branches["main"]
    if strategy != "end":
        card = commits[1].files["README.md"].decode()
        assert "Training is not finished: this is update 3 of 6." in card
        assert "No scores are known" in card
    resumable = {name for name in commits[-1].files if name.startswith("last-checkpoint/")}
    assert ("last-checkpoint/optimizer.pt" in resumable) is (strategy == "checkpoint")
    assert not any("training_args" in name for name in commits[-1].files.keys() - resumable)

    card = hub.card("ada/run")
    assert "fine-tuned version of" not in card
    assert "goes on" not in card
    assert "On the 40 rows of the test split of" in card
    assert "- de\n- 'no'\n" in card
    assert "| `learning_rate` | 0.003 |" in card
    assert (Path(tiny_run["output_dir"]) / "README.md").read_text() == card
    assert not list(Path(tiny_run["output_dir"]).glob("unfinished-*"))


def test_a_pushed_checkpoint_can_be_resumed_elsewhere(
    hub: LoopbackHub,
    run: Run,
    tiny_run: dict,
    tmp_path: Path,
) -> None:
    run(train_flags(tiny_run, hub_strategy="checkpoint"))
    commits = hub.repositories["ada/run"].branches["main"]
    first = next(
        commit for commit in commits if commit.message == "In training: update 3 of 6, to resume from"
    )
    folder = str(Path(tiny_run["train_file"]).parent).encode()
    assert not any(folder in content for content in first.files.values())
    checkpoint = tmp_path / "fetched"
    checkpoint.mkdir()
    for name, content in first.files.items():
        if name.startswith("last-checkpoint/") and name.count("/") == 1:
            (checkpoint / Path(name).name).write_bytes(content)
    again = {**tiny_run, "output_dir": str(tmp_path / "again"), "resume_from_checkpoint": str(checkpoint)}
    run(["train", *as_flags(again)])
    weights = (tmp_path / "again" / "model.safetensors").read_bytes()
    assert weights == hub.files("ada/run")["model.safetensors"]


def test_a_lost_connection_is_logged_and_does_not_stop_a_training(
    hub: LoopbackHub,
    run: Run,
    tiny_run: dict,
) -> None:
    ended = []  # once the training's own results are in, the network is back
    hub.cut = lambda method, path: "/preupload/" in path and not (ended or is_trained(tiny_run))
    flags = train_flags(tiny_run, hub_strategy="every_save")
    result = run(flags)
    assert "update 3 of 6 was not pushed; training goes on, and the next is pushed." in result.stderr
    assert f"the connection to {hub.url} failed" in result.stderr
    assert messages(hub)[-1] == "Upload model"
    assert "On the 40 rows of the test split of" in hub.card("ada/run")


def is_trained(options: dict) -> bool:
    return (Path(options["output_dir"]) / "evaluation.json").is_file()


def test_a_failed_final_push_keeps_the_run_and_names_the_push_command(
    hub: LoopbackHub,
    run: Run,
    tiny_run: dict,
) -> None:
    hub.cut = lambda method, path: "/commit/" in path
    folder = tiny_run["output_dir"]
    failed = run(train_flags(tiny_run, hub_strategy="end"), expected=1)
    assert failed.stderr.splitlines()[-1].startswith(
        f"vaswani: {folder} was not published: the connection to"
    )
    assert f"vaswani push --model {folder} --repo ada/run" in failed.stderr.splitlines()[-1]
    hub.cut = lambda method, path: False
    run(["push", "--model", folder, "--repo", "ada/run"])
    assert "On the 40 rows of the test split of" in hub.card("ada/run")


@pytest.mark.parametrize(
    ("token", "words"), [(None, "needs a token"), ("hf_eve", "cannot write to ada/run (403)")]
)
def test_missing_push_permission_is_reported_before_the_training(
    hub: LoopbackHub,
    run: Run,
    tiny_run: dict,
    token: str | None,
    words: str,
) -> None:
    failed = run(train_flags(tiny_run), token=token, expected=2)
    assert "vaswani: push_to_hub " in failed.stderr
    assert words in failed.stderr
    assert "Traceback" not in failed.stderr
    assert not list(Path(tiny_run["output_dir"]).glob("checkpoint-*"))


def test_a_trainer_pushes_a_library_model_with_a_vaswani_card(hub: LoopbackHub, run: Run) -> None:
    code = """
import torch, vaswani
from datasets import Dataset
from transformers import MarianConfig, MarianMTModel

shape = {"encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8, "d_model": 8}
heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
tokens = {"vocab_size": 20, "pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 0}
config = MarianConfig(**tokens, **shape, **heads)
rows = Dataset.from_list([{"input_ids": [5, 6, 2], "labels": [7, 8, 2]}] * 8)
arguments = vaswani.TrainingArguments("marian", max_steps=2, use_cpu=True, hub_model_id="ada/marian")
from vaswani.data.collation import Seq2SeqCollator

trainer = vaswani.Trainer(
    model=MarianMTModel(config), args=arguments, train_dataset=rows, data_collator=Seq2SeqCollator(0, 0)
)
trainer.train()
print(trainer.push_to_hub(language="de", license="mit", model_name="a name"))
"""
    run(["-c", code])
    card = hub.card("ada/marian")
    assert "An encoder-decoder of type marian with" in card
    assert "license: mit" in card
    assert "- de\n" in card
    assert 'AutoModelForSeq2SeqLM.from_pretrained("ada/marian")' in card
    assert "| `max_steps` | 2 |" in card
    assert not any(name.endswith(".py") for name in hub.files("ada/marian"))
