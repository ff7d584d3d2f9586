"""Convert the tensors of another implementation ("theirs") to ours and back, by a table of rules.

Every tensor on both sides needs exactly one rule. A `{}` in a name stands for the number of a layer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import torch

from vaswani.errors import UserError

State = dict[str, torch.Tensor]
NAMED = 4  # tensors that an error names
TABLE_TOLERANCE = 1e-3  # for rounded sinusoids of other implementations
_LAYER = re.compile(r"(?<=\.)\d+(?=\.)")


@dataclass(frozen=True)
class Rule:
    """A tensor of theirs that is one of ours, several of ours concatenated, or a table of sinusoids.

    Args:
        theirs: its name; a tensor with several names has a rule for each.
        ours: the names of the parts in order; none for sinusoids, which we compute.
        transposed: theirs is [in, out] where ours is [out, in], as in GPT-2.
        row: theirs is [1, n] where ours is [n]; if ours does not exist, theirs is zero.
    """

    theirs: str
    ours: tuple[str, ...] = ()
    transposed: bool = False
    row: bool = False

    def forward(self, tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Convert theirs to ours."""
        tensor = tensor.t() if self.transposed and tensor.ndim == 2 else tensor
        tensor = tensor.squeeze(0) if self.row else tensor
        return tensor.chunk(len(self.ours))

    def backward(self, tensors: Iterable[torch.Tensor]) -> torch.Tensor:
        """Convert ours to theirs."""
        tensor = torch.cat(tuple(tensors))
        tensor = tensor[None] if self.row else tensor
        return tensor.t() if self.transposed and tensor.ndim == 2 else tensor


def linear(theirs: str, *ours: str, transposed: bool = False) -> tuple[Rule, ...]:
    """Return the rules for weight and bias of a projection or a norm."""
    return tuple(
        Rule(f"{theirs}.{part}", tuple(f"{name}.{part}" for name in ours), transposed)
        for part in ("weight", "bias")
    )


def with_prefix(prefix: str, rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """Return the rules for a base model inside a model with a head, where ours is called `model`."""
    return tuple(
        replace(rule, theirs=prefix + rule.theirs, ours=tuple(f"model.{name}" for name in rule.ours))
        for rule in rules
    )


def to_ours(
    state: Mapping[str, torch.Tensor], rules: Iterable[Rule], expected: Iterable[str], tables: Mapping
) -> State:
    """Convert their tensors to ours.

    Args:
        state: their tensors.
        rules: rules of the conversion.
        expected: the names of our tensors.
        tables: our sinusoids for each of their tables.

    Raises:
        UserError: a tensor on either side has no rule, or a value differs from what a rule expects.
    """
    by_name = {rule.theirs: rule for rule in rules}
    ours: State = {}
    sources: dict[str, str] = {}  # their name for each of ours
    unknown = []
    for name, tensor in state.items():
        rule, layer = _find(name, by_name)
        if rule is None:
            unknown.append(name)
        elif not rule.ours:
            if not _is_table(tensor, tables[name]):
                raise UserError(f"{name} does not hold the sinusoids of this type of model")
        else:
            for our_name, part in zip(_names(rule, layer), rule.forward(tensor), strict=True):
                if our_name in ours and not torch.equal(ours[our_name], part):
                    raise UserError(f"{sources[our_name]} differs from {name}, to which it should be tied")
                ours[our_name], sources[our_name] = part, name
    _check_none("the model has {} that vaswani has no place for", unknown)
    _check_none("the model lacks {} that vaswani needs", [n for n in expected if n not in ours])
    _check_none("the model has {} too many", [n for n in ours if n not in set(expected)])
    return ours


def to_theirs(
    state: Mapping[str, torch.Tensor], rules: Iterable[Rule], expected: Mapping[str, torch.Tensor]
) -> State:
    """Convert our tensors to theirs.

    Args:
        state: our tensors.
        rules: rules of the conversion.
        expected: the tensors of a new model of theirs, for sinusoids and missing biases.

    Raises:
        UserError: a tensor on either side has no rule.
    """
    by_name = {rule.theirs: rule for rule in rules}
    theirs: State = {}
    missing, used = [], set()
    for name, tensor in expected.items():
        rule, layer = _find(name, by_name)
        names = _names(rule, layer) if rule else []
        if rule is None or not (rule.row or all(our_name in state for our_name in names)):
            missing.append(name)
        elif not names:
            theirs[name] = tensor
        elif names[0] in state:
            theirs[name] = rule.backward(state[our_name] for our_name in names)
            used.update(names)
        else:
            theirs[name] = torch.zeros_like(tensor)
    _check_none("the model lacks {} that the other format needs", missing)
    _check_none("the model has {} without a place in the other format", [n for n in state if n not in used])
    return theirs


def _is_table(tensor: torch.Tensor, table: torch.Tensor) -> bool:
    tolerance = max(TABLE_TOLERANCE, torch.finfo(tensor.dtype).eps)
    return torch.allclose(tensor.double(), table.double(), atol=tolerance, rtol=0)


def _find(name: str, rules: Mapping[str, Rule]) -> tuple[Rule | None, str]:
    """Return the rule for one of their names, and the number of the layer in it."""
    layer = _LAYER.search(name)
    return rules.get(_LAYER.sub("{}", name)), layer[0] if layer else ""


def _names(rule: Rule, layer: str) -> list[str]:
    return [name.replace("{}", layer) for name in rule.ours]


def _check_none(problem: str, names: list[str]) -> None:
    """Raise a UserError that names tensors, if there are any."""
    if names:
        shown = ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
        raise UserError(problem.format(f"{len(names)} tensors ({shown})"))
