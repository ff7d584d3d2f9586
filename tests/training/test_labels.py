"""Targets, losses and predictions of each task."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers.loss.loss_utils import LOSS_MAPPING

from toy_labels import toy_config
from vaswani.errors import UserError
from vaswani.training.trainer.labels import TASKS, Classification, LabelTask, MultiLabel, Regression, Tagging

NAMES = ["bad", "good", "so so"]


def test_names_are_sorted_and_numbers_by_their_size():
    assert Classification.names_in(["b", "a", "b"]) == ["a", "b"]
    assert Classification.names_in(["10", "9", "-1"]) == ["-1", "9", "10"]
    assert Classification.names_in(["10", "9", "a"]) == ["10", "9", "a"]
    assert MultiLabel.names_in([["b", "a"], [], ["c"]]) == ["a", "b", "c"]
    assert Tagging.names_in([["O", "B-PER"], ["O"]]) == ["B-PER", "O"]
    assert Regression.names_in([1.0]) == []


@pytest.mark.parametrize(
    ("task", "labels", "found"),
    [
        (Classification, ["a", "a"], "only 'a'"),
        (MultiLabel, [[], []], "none"),
        (Tagging, [["O"], ["O"]], "only 'O'"),
    ],
)
def test_one_label_is_none(task, labels, found):
    with pytest.raises(UserError, match=f"train must have two labels or more, and it has {found}; see label"):
        task.names_in(labels)


def test_a_zero_or_one_for_each_label_is_not_a_label_name():
    with pytest.raises(UserError, match=r"each row of train has all of the labels 0, 1, .* not a 0 or 1 for"):
        MultiLabel.names_in([["1", "0"], ["0", "1"]])
    assert MultiLabel.names_in([["1", "0"], ["0"]]) == ["0", "1"]


def test_labels_not_seen_in_training_are_named():
    task = MultiLabel(NAMES)
    task.check_known([["bad", "so so"], []], "validation")
    with pytest.raises(
        UserError, match=r"test has the label 'fine', which .*those have 'bad', 'good', 'so so'"
    ):
        task.check_known([["bad", "fine"]], "test")
    with pytest.raises(UserError, match=r"'0', '1', .*'29' and 10 more"):
        Classification(list(map(str, range(40)))).check_known(["40"], "test")
    Regression().check_known([3.5], "test")


def library_loss(task: LabelTask, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """As the library's models compute it, the mean over a batch."""
    config = toy_config(library=True, **task.config_fields())
    if isinstance(task, Tagging):
        return LOSS_MAPPING["ForTokenClassification"](logits, labels, config)
    return LOSS_MAPPING["ForSequenceClassification"](labels, logits, config)


def some_labels(kind: str) -> tuple[LabelTask, torch.Tensor, torch.Tensor]:
    """A task, with logits and targets of five rows."""
    torch.manual_seed(0)
    task = TASKS[kind]([] if kind == "regression" else NAMES)
    rows = {"classification": "good", "multi_label": ["bad", "so so"], "regression": -1.5}
    if kind == "tagging":
        rows[kind] = ["good", "bad"]
    encoded = {"label": rows[kind], "input_ids": [1, 2, 3, 4], "word_starts": [1, 3]}
    target = torch.tensor([task.target(encoded)] * 5)
    shape = (5, 4) if kind == "tagging" else (5,)
    return task, torch.randn(*shape, task.num_outputs, requires_grad=True), target


@pytest.mark.parametrize("kind", TASKS)
def test_the_loss_is_that_of_the_librarys_models(kind):
    task, logits, labels = some_labels(kind)
    counted = int(labels.ne(-100).sum())
    loss = task.loss(logits, labels, counted, smoothing=0.0)
    expected = library_loss(task, logits, labels)
    torch.testing.assert_close(loss, expected)
    gradient, reference = (torch.autograd.grad(value, logits)[0] for value in (loss, expected))
    torch.testing.assert_close(gradient, reference)
    torch.testing.assert_close(task.loss(logits, labels, 2 * counted, smoothing=0.0), expected / 2)


@pytest.mark.parametrize("kind", [name for name, task in TASKS.items() if task.smooths])
def test_labels_are_smoothed(kind):
    task, logits, labels = some_labels(kind)
    kept = labels.ne(-100)
    loss = task.loss(logits, labels, int(kept.sum()), smoothing=0.2)
    expected = F.cross_entropy(logits[kept], labels[kept], label_smoothing=0.2)
    torch.testing.assert_close(loss, expected)
    assert not torch.isclose(loss, library_loss(task, logits, labels))


def test_each_task_converts_labels_to_targets():
    assert Classification(NAMES).target({"label": "so so"}) == 2
    assert MultiLabel(NAMES).target({"label": ["so so", "bad"]}) == [1.0, 0.0, 1.0]
    assert Regression().target({"label": 0.25}) == 0.25
    row = {"label": ["bad", "good"], "input_ids": [0, 5, 6, 7, 2], "word_starts": [1, 3]}
    assert Tagging(NAMES).target(row) == [-100, 0, -100, 1, -100]
    assert Tagging(NAMES).target({**row, "label": ["bad", "good", "so so"]}) == [-100, 0, -100, 1, -100]


def test_a_target_equal_to_the_ignore_index_is_shifted_by_one_bit():
    target = Regression().target({"label": -100.0})
    assert target != -100
    assert target == pytest.approx(-100, abs=1e-4)
    assert torch.tensor([target]).ne(-100).all()


@pytest.mark.parametrize("kind", TASKS)
def test_confident_logits_predict_the_targets(kind):
    task, logits, labels = some_labels(kind)
    if kind == "regression":
        sure = labels[:, None]
    elif kind == "multi_label":
        sure = labels - 0.5
    else:
        sure = F.one_hot(labels.clamp(min=0), task.num_outputs).float()
    outputs = task.outputs(sure).numpy()
    references = task.references(labels.numpy())
    assert task.predictions(outputs, labels.numpy()) == references
    one = {"classification": "good", "multi_label": ["bad", "so so"], "regression": -1.5}
    assert references == [one.get(kind, ["good", "bad"])] * 5
    unsure = task.predictions(task.outputs(logits.detach()).numpy(), labels.numpy())
    assert unsure != references


def test_tags_are_those_of_the_first_tokens():
    task = Tagging(NAMES)
    labels = np.array([[-100, 0, -100, 1], [-100, 2, -100, -100]])
    outputs = np.array([[1, 2, 0, 1], [0, 0, 1, 1]])
    assert task.predictions(outputs, labels) == [["so so", "good"], ["bad"]]
    assert task.references(labels) == [["bad", "good"], ["so so"]]


@pytest.mark.parametrize("kind", TASKS)
def test_the_configuration_names_the_labels(kind):
    task = TASKS[kind]([] if kind == "regression" else NAMES)
    config = toy_config(**task.config_fields())
    assert config.num_labels == task.num_outputs
    if task.names:
        assert config.id2label == dict(enumerate(NAMES))
        assert config.label2id == {name: number for number, name in enumerate(NAMES)}
