"""SIGTERM at any moment of a run: exit status 143, and one line on what was saved and how to continue.

Ctrl-C does the same in the updates of a training, with exit status 130.
"""

import hashlib
import multiprocessing
import os
import re
import signal
import threading
from collections.abc import Sequence
from hashlib import pbkdf2_hmac
from importlib import import_module
from pathlib import Path

import pytest

from rank_processes import CONTEXT, begin_copy, log_of
from tiny_runs import as_flags
from vaswani.data.tokenization import _in_thread, train_tokenizer
from vaswani.training.config.config_file import load_config
from vaswani.training.runs.translation import TrainingRun
from vaswani.training.trainer.seq2seq import Trainer

pytestmark = pytest.mark.process

AFTER_TRAINING = "after training; the model is saved in {folder} and has no scores yet: "
EVALUATES = AFTER_TRAINING + "--resume_from_checkpoint true evaluates it without further training"
NOTHING = "before training began; no checkpoint "

# Where the signal comes: as this function is called, and what the message says after "stopped by SIGTERM".
MOMENTS = {
    "vaswani.training.runs.base:load_corpus": NOTHING,
    "vaswani.training.runs.base:trained_tokenizer": NOTHING,
    "vaswani.training.runs.translation:TrainingRun.build_trainer": NOTHING,
    "transformers:Trainer._inner_training_loop": "after update 1; it is saved in {folder}: continue with",
    "transformers:Trainer._finish_current_push": EVALUATES,  # after the last update
    "vaswani.training.trainer.seq2seq:Trainer.save_model": EVALUATES,  # the final model is written whole
    "vaswani.training.runs.translation:TrainingRun.evaluate": EVALUATES,
    "vaswani.training.runs.base:publish": "(the last complete checkpoint is {folder}/checkpoint-6",
}


def train(options: dict, moment: str | None, numbers: Sequence[int]) -> None:
    """`vaswani train` in this process, which gets these signals at that moment, and its workers too."""
    from vaswani.cli import run

    begin_copy(log_of(options["output_dir"], 0))
    if moment is not None:
        module, _, path = moment.partition(":")
        *owners, name = path.split(".")
        owner = import_module(module)
        for each in owners:
            owner = getattr(owner, each)
        function = getattr(owner, name)

        def signalled(*args: object, **kwargs: object) -> object:
            if name != "save_model" or len(args) == 1:  # not those of checkpoints
                for number in numbers:
                    for child in multiprocessing.active_children():
                        os.kill(int(child.pid or 0), number)
                    os.kill(os.getpid(), number)
            return function(*args, **kwargs)

        setattr(owner, name, signalled)
    os._exit(run(["train", *as_flags(options)]))


def outcome(
    options: dict, moment: str | None = None, numbers: Sequence[int] = (signal.SIGTERM,)
) -> tuple[int | None, str]:
    log = log_of(options["output_dir"], 0)
    log.unlink(missing_ok=True)  # of the run before
    process = CONTEXT.Process(target=train, args=(options, moment, numbers))
    process.start()
    process.join(60)
    return process.exitcode, log.read_text()


@pytest.mark.parametrize("moment", MOMENTS)
def test_sigterm_at_any_moment_stops_with_one_line(tiny_run, moment):
    folder = Path(tiny_run["output_dir"])
    status, log = outcome(tiny_run, moment)
    assert status == 128 + signal.SIGTERM, log
    assert "Traceback" not in log
    assert (
        log.strip()
        .splitlines()[-1]
        .startswith(f"vaswani: stopped by SIGTERM {MOMENTS[moment].format(folder=folder)}")
    )
    if MOMENTS[moment] == NOTHING:
        assert not (folder / ".lock").exists()
        return
    weights = folder / "model.safetensors"
    sha256 = hashlib.sha256(weights.read_bytes()).hexdigest() if weights.exists() else None
    status, log = outcome(tiny_run | {"resume_from_checkpoint": "true"})
    assert status == 0, log
    assert (folder / "evaluation.json").is_file()
    if MOMENTS[moment] == EVALUATES:  # and nothing else
        assert "'grad_norm'" not in log
        assert hashlib.sha256(weights.read_bytes()).hexdigest() == sha256


AFTER_UPDATE_1 = "after update 1; it is saved in {folder}: continue with"
IN_AN_UPDATE = "vaswani.training.trainer.base:BaseTrainer.training_step"
AFTER_AN_UPDATE = "vaswani.training.trainer.callbacks:LogAtCheckpoints.on_step_end"  # after `StopOnSignal`


@pytest.mark.parametrize(
    ("moment", "more", "told"),
    [
        (IN_AN_UPDATE, {}, AFTER_UPDATE_1),
        (IN_AN_UPDATE, {"dataloader_num_workers": 1}, AFTER_UPDATE_1),
        (AFTER_AN_UPDATE, {"max_steps": 1}, EVALUATES),
    ],
)
def test_ctrl_c_in_the_training_saves_and_stops_as_sigterm_does(tiny_run, moment, more, told):
    options = tiny_run | more
    status, log = outcome(options, moment, [signal.SIGINT])
    assert status == 128 + signal.SIGINT, log
    assert "\nstopping after this update; Ctrl-C again stops at once\n" in log
    last = log.strip().splitlines()[-1]
    assert last.startswith(f"vaswani: stopped by Ctrl-C {told.format(folder=tiny_run['output_dir'])}")
    status, log = outcome(options | {"resume_from_checkpoint": "true"})
    assert status == 0, log


def test_a_second_ctrl_c_stops_at_once(tiny_run):
    status, log = outcome(tiny_run, IN_AN_UPDATE, [signal.SIGINT, signal.SIGINT])
    assert status == 1, log
    last = log.strip().splitlines()[-1]
    assert last == "vaswani: interrupted; no checkpoint to resume from had been saved"


def test_sigterm_in_the_final_evaluation_names_the_command_for_the_scores(tiny_run):
    del tiny_run["save_steps"]
    options = tiny_run | {"save_strategy": "no"}
    status, log = outcome(options, "vaswani.training.runs.translation:TrainingRun.evaluate")
    assert status == 128 + signal.SIGTERM
    folder = tiny_run["output_dir"]
    expected = f"{AFTER_TRAINING.format(folder=folder)}vaswani evaluate --model {folder} computes them"
    assert re.search(rf"^vaswani: stopped by SIGTERM {re.escape(expected)}$", log, re.MULTILINE)


def test_tokenizers_are_trained_in_another_thread_so_that_ctrl_c_works():
    threads = set()

    def texts():
        threads.add(threading.current_thread())
        yield "some text"

    train_tokenizer(texts(), 300)
    assert threading.main_thread() not in threads

    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        _in_thread(lambda: pbkdf2_hmac("sha256", b"", b"", 8_000_000))  # seconds without Python
    assert "tokenizer training" in {thread.name for thread in threading.enumerate()}


def test_a_failed_training_restores_the_signal_handler(
    tiny_run: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise ValueError("no loss")

    monkeypatch.setattr(Trainer, "compute_loss", fail)
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    *_, trainer = TrainingRun(load_config(None, as_flags(tiny_run)))._prepare()
    with pytest.raises(ValueError, match="no loss"):
        trainer.train()
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
