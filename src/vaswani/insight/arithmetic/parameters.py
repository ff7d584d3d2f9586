"""Count the parameters of a model by part, and the parameters that each of several devices holds."""

from __future__ import annotations

from fnmatch import fnmatch

from torch import nn
from transformers import PreTrainedModel

from vaswani.model.stacks import tensor_parallel_plan

PARTS = {
    "self_attn": "self-attention",
    "encoder_attn": "attention to the source",
    "fc1": "feed-forward",
    "fc2": "feed-forward",
}
NORMS = "norms"
ORDER = (
    "embeddings",
    *(
        f"{stack} {part}"
        for stack in ("encoder", "decoder")
        for part in dict.fromkeys((*PARTS.values(), NORMS))
    ),
    "head",
)
EMBEDDINGS = ("embed_tokens", "embed_positions", "embed_token_types")


def parameters_by_part(model: PreTrainedModel) -> dict[str, int]:
    """Return the number of parameters of each part. Shared weights count once; the sum is the model's number.

    Args:
        model: a model of this project; it may be on the meta device.

    Returns:
        Embeddings, then attention, feed-forward layers and norms of each stack, then the head.
    """
    counts: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        part = part_of(name)
        counts[part] = counts.get(part, 0) + parameter.numel()
    return {part: counts[part] for part in ORDER if part in counts}


def part_of(name: str) -> str:
    """Return the part of a parameter by its name."""
    places = name.split(".")
    if set(EMBEDDINGS) & set(places):
        return "embeddings"
    stack = next((place for place in places if place in ("encoder", "decoder")), None)
    if stack is None:
        return "head"
    component = places[places.index("layers") + 2] if "layers" in places else "norm"
    return f"{stack} {PARTS.get(component, NORMS)}"


def parameters_of_device(model: nn.Module, devices: int) -> dict[str, int]:
    """Return the number of parameters that each device holds under tensor parallelism, by name.

    Tied parameters are listed under each name. Attention heads and inner features are divided; embeddings,
    norms, the model's head, and biases added to sums stay whole.
    """
    plan = {**tensor_parallel_plan("encoder"), **tensor_parallel_plan("decoder", cross_attention=True)}
    styles = {f"*{module}": style for module, style in plan.items()}

    def held(name: str, size: int) -> int:
        module, _, kind = name.rpartition(".")
        style = next((style for pattern, style in styles.items() if fnmatch(module, pattern)), None)
        divided = style == "colwise" or (style == "rowwise" and kind == "weight")
        return size // devices if divided else size

    named = model.named_parameters(remove_duplicate=False)
    return {name: held(name, parameter.numel()) for name, parameter in named}
