"""Half-written checkpoints are recognised, and no run overwrites another."""

import logging
import random
import re

import pytest

from vaswani.errors import UserError
from vaswani.training.trainer.checkpoints import (
    check_same_data,
    check_writable,
    checkpoint_to_resume,
    fault_of,
    finish_checkpoint,
    last_complete_checkpoint,
    unfinished_checkpoint,
)

STATE = ("optimizer.pt", "scheduler.pt", "rng_state.pth")


def make_checkpoint(folder, step, state='{"global_step": 1}', files=("model.safetensors", *STATE)):
    checkpoint = folder / f"checkpoint-{step}"
    checkpoint.mkdir(parents=True)
    for name in files:
        (checkpoint / name).touch()
    if state is not None:
        (checkpoint / "trainer_state.json").write_text(state)
    return checkpoint


@pytest.mark.parametrize(
    "options", [{"state": None}, {"state": '{"global_st'}, {"state": ""}, {"state": "[]"}, {"files": STATE}]
)
def test_a_checkpoint_with_missing_parts_is_incomplete(tmp_path, options):
    assert fault_of(make_checkpoint(tmp_path, 1, **options))


def test_the_last_complete_checkpoint_is_found_by_its_number(tmp_path):
    assert last_complete_checkpoint(tmp_path) is None
    make_checkpoint(tmp_path, 9)
    wanted = make_checkpoint(tmp_path, 10)
    make_checkpoint(tmp_path, 11, state=None)
    (tmp_path / "checkpoint-12").touch()  # a file
    (tmp_path / "checkpoint-best").mkdir()
    assert last_complete_checkpoint(tmp_path) == wanted


def test_a_half_written_checkpoint_is_skipped_with_a_warning(tmp_path, caplog):
    wanted = make_checkpoint(tmp_path, 2)
    half = make_checkpoint(tmp_path, 4, state=None)
    with caplog.at_level(logging.WARNING):
        logging.getLogger("transformers").addHandler(caplog.handler)
        assert checkpoint_to_resume(tmp_path, "true") == wanted
    logging.getLogger("transformers").removeHandler(caplog.handler)
    assert f"{half} is not used: trainer_state.json is missing or damaged." in caplog.text
    assert f"Resuming from {wanted}." in caplog.text
    assert half.is_dir()  # nothing is deleted


def test_a_run_without_a_complete_checkpoint_starts_anew(tmp_path):
    make_checkpoint(tmp_path, 4, state=None)
    (tmp_path / "training_config.yaml").touch()
    assert checkpoint_to_resume(tmp_path, "true") is None


@pytest.mark.parametrize("missing", STATE)
def test_a_checkpoint_without_the_state_of_its_training_is_not_resumed(tmp_path, missing):
    files = ["model.safetensors", *(name for name in STATE if name != missing)]
    model = make_checkpoint(tmp_path, 4, files=files)
    (tmp_path / "training_config.yaml").touch()
    fault = rf"it holds a model without the state of its training \({missing} is missing\)"
    with pytest.raises(
        UserError, match=f"checkpoint-4 cannot be resumed: {fault}.*; start a new run in another"
    ):
        checkpoint_to_resume(tmp_path, "true")
    with pytest.raises(
        UserError, match=f"not a complete checkpoint: {fault}; there is no complete one beside"
    ):
        checkpoint_to_resume(tmp_path, str(model))
    before = make_checkpoint(tmp_path, 2)
    assert checkpoint_to_resume(tmp_path, "true") == before


def test_the_state_may_be_deepspeeds_or_of_several_processes(tmp_path):
    assert fault_of(make_checkpoint(tmp_path, 1, files=["model.safetensors", "latest"])) is None
    several = ["optimizer.pt", "scheduler.pt", "rng_state_0.pth", "rng_state_1.pth"]
    assert fault_of(make_checkpoint(tmp_path, 2, files=["model.safetensors", *several])) is None


def test_the_folder_of_a_finished_run_cannot_be_resumed(tmp_path):
    (tmp_path / "model.safetensors").touch()
    (tmp_path / "trainer_state.json").write_text('{"global_step": 4}')
    (tmp_path / "training_config.yaml").touch()
    with pytest.raises(UserError, match="cannot be resumed: it holds a model without the state"):
        checkpoint_to_resume(tmp_path, "true")
    checkpoint = make_checkpoint(tmp_path, 4)
    with pytest.raises(UserError, match=f"without the state .* the last complete one is {checkpoint}"):
        checkpoint_to_resume(tmp_path, str(tmp_path))


def test_resuming_into_a_folder_that_holds_another_run_is_refused(tmp_path):
    checkpoint = make_checkpoint(tmp_path / "one", 4)
    make_checkpoint(tmp_path / "other", 4)
    with pytest.raises(UserError, match="other already holds a run"):
        checkpoint_to_resume(tmp_path / "other", str(checkpoint))
    assert checkpoint_to_resume(tmp_path / "new", str(checkpoint)) == checkpoint


def test_resuming_without_a_run_raises_an_error_with_the_remedy(tmp_path):
    with pytest.raises(UserError, match="holds no run to resume; leave out --resume_from_checkpoint"):
        checkpoint_to_resume(tmp_path / "nowhere", "true")


def test_a_given_checkpoint_must_be_complete(tmp_path):
    whole, half = make_checkpoint(tmp_path, 2), make_checkpoint(tmp_path, 4, state=None)
    assert checkpoint_to_resume(tmp_path / "other", str(whole)) == whole
    with pytest.raises(
        UserError, match=f"complete checkpoint: .*; the last complete one is {re.escape(str(whole))}"
    ):
        checkpoint_to_resume(tmp_path, str(half))
    with pytest.raises(UserError, match="is not a directory; give true or the path of a checkpoint"):
        checkpoint_to_resume(tmp_path, "yes")


@pytest.mark.parametrize("name", ["checkpoint-3/x", "model.safetensors"])
def test_a_new_run_does_not_mix_with_an_earlier_one(tmp_path, name):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.touch()
    with pytest.raises(
        UserError, match=r"already holds a run .* --resume_from_checkpoint true, or choose another"
    ):
        checkpoint_to_resume(tmp_path, None)


@pytest.mark.parametrize("choice", [None, "false", "False"])
def test_a_folder_without_a_run_can_be_used(tmp_path, choice):
    (tmp_path / "notes.txt").touch()
    assert checkpoint_to_resume(tmp_path, choice) is None


def test_an_output_dir_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="is a file; choose a directory"):
        check_writable(tmp_path / "file")


def finished_checkpoint(folder, step, **facts):
    """As a trainer writes one, with a folder in it."""
    unfinished = unfinished_checkpoint(folder, step)
    (unfinished / "target_tokenizer").mkdir(parents=True)
    (unfinished / "trainer_state.json").write_text(f'{{"global_step": {step}}}')
    for name in ("model.safetensors", *STATE, "target_tokenizer/tokenizer.json"):
        (unfinished / name).write_bytes(random.Random(f"{step} {name}").randbytes(2000))
    return finish_checkpoint(unfinished, facts)


def test_an_unfinished_checkpoint_is_ignored_and_a_finished_one_replaces_another(tmp_path):
    finished = finished_checkpoint(tmp_path, 3)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-3"]
    assert fault_of(finished) is None
    unfinished_checkpoint(tmp_path, 4).mkdir(parents=True)
    assert last_complete_checkpoint(tmp_path) == finished
    (finished / "of an older run").touch()
    assert not (finished_checkpoint(tmp_path, 3) / "of an older run").exists()


FILES = (
    *("model.safetensors", "optimizer.pt", "target_tokenizer/tokenizer.json", "trainer_state.json"),
    "manifest.json",
)


@pytest.mark.parametrize("name", FILES)
def test_any_damaged_file_is_detected_and_the_previous_checkpoint_used(tmp_path, caplog, name):
    good, damaged = finished_checkpoint(tmp_path, 3), finished_checkpoint(tmp_path, 6)
    content = (damaged / name).read_bytes()
    generator = random.Random(name)
    cuts = [content[: generator.randrange(len(content))] for _ in range(20)]
    place = generator.randrange(len(content))
    flipped = content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
    for broken in [*cuts, flipped, b""]:
        (damaged / name).write_bytes(broken)
        assert fault_of(damaged) is not None, (name, len(broken))
        assert checkpoint_to_resume(tmp_path, "true") == good
    (damaged / name).unlink()
    # Without a manifest it might be that of transformers' own trainer, which has none.
    assert (fault_of(damaged) is None) == (name == "manifest.json")


DATA = {"train": {"files": [{"sha256": "a"}]}, "validation": {"files": [{"sha256": "b"}]}}


@pytest.mark.parametrize("split", ["train", "validation"])
def test_a_corpus_that_changed_is_an_error(tmp_path, split):
    checkpoint = finished_checkpoint(tmp_path, 3, data=DATA)
    check_same_data(checkpoint, DATA)
    for changed in ({**DATA, split: {"files": [{"sha256": "c"}]}}, {k: DATA[k] for k in DATA if k != split}):
        with pytest.raises(
            UserError, match=rf"the data changed since .*checkpoint-3 was saved \({split}\); restore it"
        ):
            check_same_data(checkpoint, changed)


def test_an_unwritable_folder_raises_an_error(tmp_path):
    check_writable(tmp_path / "new" / "run")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"run cannot be written to \(Not a directory\); choose another"):
        check_writable(tmp_path / "file" / "run")
