"""Plots of position encodings (Vaswani et al., 2017, section 3.5), computed by the model's own code.

T positions · d features
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedModel

from vaswani.errors import UserError, one_line
from vaswani.insight.figures import new_figure
from vaswani.model.configuration_vaswani import VaswaniEncoderConfig
from vaswani.model.embeddings import LearnedPositions, SinusoidalPositions
from vaswani.model.stacks import VaswaniStack

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from vaswani.insight.themed_figure import ThemedFigure

DEFAULT_LENGTH = 128
LONGEST = 4096  # positions; their dot products are drawn too
WIDEST = 4096  # features
ROW_SIZE = (11.0, 4.4)  # inches


def sinusoids(length: int, width: int, layout: str = "interleaved") -> torch.Tensor:
    """Return the sinusoids of the first positions, float32 [T, d].

    Args:
        length: T.
        width: d, an even number.
        layout: "interleaved" as in the paper, "concatenated" or "tensor2tensor" (see `VaswaniConfig`).

    Raises:
        UserError: a number or the layout is invalid.
    """
    _check(length, width)
    try:
        config = VaswaniEncoderConfig(
            d_model=width,
            encoder_attention_heads=1,
            position_embedding="sinusoidal",
            sinusoidal_layout=layout,  # type: ignore[arg-type]  # checked by the configuration
        )
    except (ValueError, StrictDataclassError) as error:
        raise UserError(one_line(error.__cause__ or error)) from error
    return _encodings(SinusoidalPositions(config), length)


def positions_of(model: PreTrainedModel, length: int | None = None) -> dict[str, torch.Tensor]:
    """Return the position encodings [T, d] of each stack of a model; only once if both are equal.

    Args:
        model: a model of vaswani.
        length: T; default: `DEFAULT_LENGTH`, or all positions if the model has learned fewer.

    Raises:
        UserError: the model has no position encodings, or fewer than `length`.
    """
    stacks = [module for module in model.modules() if isinstance(module, VaswaniStack)]
    if not stacks:
        raise UserError(
            f"{model.name_or_path} is of type {model.config.model_type!r}; plot the positions of a model of "
            "vaswani (vaswani convert makes one of MarianMT, BERT, GPT-2 and others)"
        )
    kind = model.config.position_embedding
    tables = [stack.embed_positions for stack in stacks if stack.embed_positions is not None]
    if not tables:
        raise UserError(
            f"{model.name_or_path} has no position encodings (position_embedding={kind!r}); "
            "give another model"
        )
    encodings = [_encodings(table, _length(table, length)) for table in tables]
    if len(encodings) == 2 and not torch.equal(*encodings):
        return {
            f"{kind}, {stack}": each for stack, each in zip(("encoder", "decoder"), encodings, strict=True)
        }
    return {kind: encodings[0]}


def _length(positions: LearnedPositions | SinusoidalPositions, length: int | None) -> int:
    if isinstance(positions, LearnedPositions):
        most = positions.num_embeddings
        if length is not None and length > most:
            raise UserError(f"length={length} is more than the {most} positions that the model has learned")
        return length or min(most, DEFAULT_LENGTH)
    return length or DEFAULT_LENGTH


def _encodings(positions: LearnedPositions | SinusoidalPositions, length: int) -> torch.Tensor:
    _check(length)
    with torch.no_grad():
        return positions(torch.arange(length)[None], length, torch.float32)[0].cpu()


def _check(length: int, width: int = 1) -> None:
    for name, value, most in (("length", length, LONGEST), ("width", width, WIDEST)):
        if not 1 <= value <= most:
            raise UserError(f"{name}={value} must be at least 1 and at most {most}, to be drawn")


def draw_positions(encodings: Mapping[str, torch.Tensor], *, dark: bool = False) -> ThemedFigure:
    """Plot encodings and, beside them, the dot products of all pairs of positions.

    Args:
        encodings: by title, encodings [T, d]; each gets a row.
        dark: whether the background is dark.
    """
    width, height = ROW_SIZE
    with new_figure((width, height * len(encodings)), dark=dark) as figure:
        rows = figure.subplots(len(encodings), 2, squeeze=False)
        for (left, right), (title, values) in zip(rows, encodings.items(), strict=True):
            _draw_values(left, values, f"{title}: {values.shape[0]} positions, {values.shape[1]} features")
            left.set(xlabel="feature", ylabel="position")
            _draw_values(right, values @ values.T, "dot products of positions", aspect="equal")
            right.set(xlabel="position", ylabel="position")
    return figure


def _draw_values(
    axes: Axes, values: torch.Tensor, title: str, aspect: Literal["auto", "equal"] = "auto"
) -> None:
    """Plot a matrix; 0 has the colour of the background."""
    figure = axes.get_figure()
    largest = values.abs().max().item() or 1.0
    image = axes.imshow(
        values.numpy(),
        cmap=figure.theme.diverging,  # type: ignore[union-attr]  # it is a ThemedFigure
        vmin=-largest,
        vmax=largest,
        aspect=aspect,
    )
    axes.set_title(title)
    axes.locator_params(integer=True, min_n_ticks=1)
    axes.figure.colorbar(image, ax=axes)
