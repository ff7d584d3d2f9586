"""Half-written checkpoints are recognised, and no run overwrites another."""

import logging
import re

import pytest

from vaswani.errors import UserError
from vaswani.training.checkpoints import checkpoint_to_resume, is_complete, last_complete_checkpoint


def make_checkpoint(folder, step, state='{"global_step": 1}', weights=True):
    checkpoint = folder / f"checkpoint-{step}"
    checkpoint.mkdir(parents=True)
    if weights:
        (checkpoint / "model.safetensors").touch()
    if state is not None:
        (checkpoint / "trainer_state.json").write_text(state)
    return checkpoint


@pytest.mark.parametrize(
    "options", [{"state": None}, {"state": '{"global_st'}, {"state": ""}, {"state": "[]"}, {"weights": False}]
)
def test_what_is_not_all_there_is_not_complete(tmp_path, options):
    assert not is_complete(make_checkpoint(tmp_path, 1, **options))


def test_the_last_complete_checkpoint_is_found_by_its_number(tmp_path):
    assert last_complete_checkpoint(tmp_path) is None
    make_checkpoint(tmp_path, 9)
    wanted = make_checkpoint(tmp_path, 10)
    make_checkpoint(tmp_path, 11, state=None)
    (tmp_path / "checkpoint-12").touch()  # a file
    (tmp_path / "checkpoint-best").mkdir()
    assert last_complete_checkpoint(tmp_path) == wanted


def test_a_half_written_checkpoint_is_passed_over_and_said_so(tmp_path, caplog):
    wanted = make_checkpoint(tmp_path, 2)
    half = make_checkpoint(tmp_path, 4, state=None)
    with caplog.at_level(logging.WARNING):
        logging.getLogger("transformers").addHandler(caplog.handler)
        assert checkpoint_to_resume(tmp_path, "true") == wanted
    logging.getLogger("transformers").removeHandler(caplog.handler)
    assert f"{half} is half-written and is not used." in caplog.text
    assert f"Resuming from {wanted}." in caplog.text
    assert half.is_dir()  # nothing is deleted


def test_a_run_without_a_complete_checkpoint_starts_anew(tmp_path):
    make_checkpoint(tmp_path, 4, state=None)
    (tmp_path / "training_config.yaml").touch()
    assert checkpoint_to_resume(tmp_path, "true") is None


def test_nothing_to_resume_is_an_error_with_its_remedy(tmp_path):
    with pytest.raises(UserError, match="holds no run to resume; leave out --resume_from_checkpoint"):
        checkpoint_to_resume(tmp_path / "nowhere", "true")


def test_a_given_checkpoint_must_be_complete(tmp_path):
    whole, half = make_checkpoint(tmp_path, 2), make_checkpoint(tmp_path, 4, state=None)
    assert checkpoint_to_resume(tmp_path / "other", str(whole)) == whole
    with pytest.raises(
        UserError, match=f"complete checkpoint; the last complete one is {re.escape(str(whole))}"
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
def test_a_folder_with_nothing_of_ours_is_free(tmp_path, choice):
    (tmp_path / "notes.txt").touch()
    assert checkpoint_to_resume(tmp_path, choice) is None


def test_an_output_dir_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="is a file; choose a directory"):
        checkpoint_to_resume(tmp_path / "file", None)
