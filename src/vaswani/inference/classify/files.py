"""Predict the labels of a file or a stream, in bounded memory, as lines of JSON."""

from __future__ import annotations

from collections.abc import Callable
from itertools import tee
from typing import Any

from vaswani.inference.batches import BUFFERED_TEXTS
from vaswani.inference.classify.classification import Classifier, Prediction
from vaswani.inference.inputs import LineReport, Texts

ADDED = ["prediction", "probability", "probabilities", "cut_off"]  # fields added to the rows of a table


def predict_texts(
    classifier: Classifier,
    texts: Texts,
    write: Callable[[str], None],
    *,
    top_k: int | None = None,
    buffer_size: int = BUFFERED_TEXTS,
    progress: Callable[[int], object] | None = None,
) -> LineReport:
    """Predict the labels of each text of an input.

    Args:
        classifier: the model with its options.
        texts: the texts of the input (see `open_texts`).
        write: receives a JSON object for each text, in order: the `text`, the `words` (for a tagger) or the
            table row, with the `prediction`, its `probability` (see `Prediction`) and, for a truncated text,
            `cut_off`.
        top_k: add the `probabilities` of this many labels, most probable first.
        buffer_size: number of texts to read ahead; smaller at the beginning.
        progress: is called with the number of texts of each finished batch.
    """
    report = texts.report
    given, kept = tee(texts)
    found = classifier.stream(given, buffer_size=buffer_size, progress=progress)
    for prediction, text in zip(found, kept, strict=True):
        texts.take()
        report.empty += prediction.label is None
        report.source_cut_off += prediction.cut_off
        fields = _fields(prediction, top_k)
        if prediction.words is not None and isinstance(text, str) and "words" not in (texts.row or ()):
            fields = {"words": prediction.words, **fields}
        elif texts.row is None:
            fields = {"text": text, **fields}
        write(texts.record(**fields))
    return report


def _fields(prediction: Prediction, top_k: int | None) -> dict[str, Any]:
    fields: dict[str, Any] = {"prediction": prediction.label}
    if prediction.probabilities is not None or prediction.label is None:
        fields["probability"] = prediction.probability
    if top_k is not None and prediction.probabilities is not None:
        fields["probabilities"] = _most_probable(prediction.probabilities, top_k)
    if prediction.cut_off:
        fields["cut_off"] = True
    return fields


def _most_probable(probabilities: Any, top_k: int) -> Any:
    if isinstance(probabilities, list):  # one mapping for each word
        return [each and _most_probable(each, top_k) for each in probabilities]
    return dict(list(probabilities.items())[:top_k])
