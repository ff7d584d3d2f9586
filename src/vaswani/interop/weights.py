"""Convert the tensors of another implementation ("theirs") to ours and back, by a table of rules.

Every tensor on both sides needs exactly one rule. A `{}` in a name stands for the number of a layer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from vaswani.errors import UserError

State = dict[str, torch.Tensor]
NAMED = 4  # tensors that an error names
TABLE_TOLERANCE = 1e-3  # for rounded sinusoids of other implementations


@dataclass(frozen=True)
class Move:
    """A tensor of theirs that is one of ours, or several of ours concatenated.

    Args:
        theirs: its name.
        ours: its name, or the names of the parts in order.
        transposed: theirs is [in, out] where ours is [out, in], as in GPT-2.
        row: theirs is [1, n] where ours is [n]; without ours, theirs is zero.
    """

    theirs: str
    ours: str | tuple[str, ...]
    transposed: bool = False
    row: bool = False

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Our names, one or several."""
        return (self.ours,) if isinstance(self.ours, str) else self.ours

    def forward(self, tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Convert theirs to ours."""
        tensor = tensor.t() if self.transposed and tensor.ndim == 2 else tensor
        tensor = tensor.squeeze(0) if self.row else tensor
        return tensor.chunk(len(self.names))

    def backward(self, tensors: Iterable[torch.Tensor]) -> torch.Tensor:
        """Convert ours to theirs."""
        tensor = torch.cat(tuple(tensors))
        tensor = tensor[None] if self.row else tensor
        return tensor.t() if self.transposed and tensor.ndim == 2 else tensor


@dataclass(frozen=True)
class Same:
    """A tensor of theirs that is a second name of another."""

    theirs: str
    of: str


@dataclass(frozen=True)
class Table:
    """A stored table of sinusoids, which we compute."""

    theirs: str


Rule = Move | Same | Table


def linear(theirs: str, ours: str | tuple[str, ...], transposed: bool = False) -> tuple[Move, Move]:
    """Return the rules for weight and bias of a projection or a norm."""
    names = (ours,) if isinstance(ours, str) else ours
    weights, biases = (tuple(f"{name}.{part}" for name in names) for part in ("weight", "bias"))
    return (
        Move(f"{theirs}.weight", weights, transposed),
        Move(f"{theirs}.bias", biases, transposed),
    )


def under(prefix: str, our_prefix: str, rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """Return the rules with prefixes, for a model inside another."""
    moved: list[Rule] = []
    for rule in rules:
        theirs = prefix + rule.theirs
        if isinstance(rule, Move):
            moved.append(replace(rule, theirs=theirs, ours=tuple(our_prefix + name for name in rule.names)))
        elif isinstance(rule, Same):
            moved.append(Same(theirs, prefix + rule.of))
        else:
            moved.append(Table(theirs))
    return tuple(moved)


def to_ours(
    state: Mapping[str, torch.Tensor], rules: Iterable[Rule], expected: Iterable[str], tables: Mapping
) -> State:
    """Convert their tensors to ours.

    Args:
        state: their tensors.
        rules: of the conversion.
        expected: the names of our tensors.
        tables: our sinusoids for each of their tables.

    Raises:
        UserError: a tensor on either side has no rule, or a value differs from what a rule expects.
    """
    ours: State = {}
    unknown = []
    matching = _Matching(rules)
    for name, tensor in state.items():
        rule, layer = matching.find(name)
        if rule is None:
            unknown.append(name)
        elif isinstance(rule, Move):
            for our_name, part in zip(rule.names, rule.forward(tensor), strict=True):
                ours[our_name.replace("{}", layer)] = part
        elif isinstance(rule, Same):
            of = rule.of.replace("{}", layer)
            if of not in state or not torch.equal(tensor, state[of]):
                raise UserError(f"{name} differs from {of}, to which it should be tied")
        elif not _is_table(tensor, tables[name]):
            raise UserError(f"{name} does not hold the sinusoids of this type of model")
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
        rules: of the conversion.
        expected: the tensors of a new model of theirs, for sinusoids and missing biases.

    Raises:
        UserError: a tensor on either side has no rule.
    """
    theirs: State = {}
    missing, used = [], set()
    matching = _Matching(rules)
    later = []
    for name, tensor in expected.items():
        rule, layer = matching.find(name)
        if isinstance(rule, Move):
            names = [our_name.replace("{}", layer) for our_name in rule.names]
            if all(our_name in state for our_name in names):
                theirs[name] = rule.backward(state[our_name] for our_name in names)
                used.update(names)
            elif rule.row:
                theirs[name] = torch.zeros_like(tensor)
            else:
                missing.append(name)
        elif isinstance(rule, Same):
            later.append((name, rule.of.replace("{}", layer)))
        elif isinstance(rule, Table):
            theirs[name] = tensor
        else:
            missing.append(name)
    theirs |= {name: theirs[of] for name, of in later}
    _check_none("the model lacks {} that the other format needs", missing)
    _check_none("the model has {} without a place in the other format", [n for n in state if n not in used])
    return theirs


def _is_table(tensor: torch.Tensor, table: torch.Tensor) -> bool:
    tolerance = max(TABLE_TOLERANCE, torch.finfo(tensor.dtype).eps)
    return torch.allclose(tensor.double(), table.double(), atol=tolerance, rtol=0)


class _Matching:
    """Finds the rule for one of their names, and the number of the layer in it."""

    def __init__(self, rules: Iterable[Rule]):
        self.rules = [(_pattern(rule.theirs), rule) for rule in rules]

    def find(self, name: str) -> tuple[Rule | None, str]:
        for pattern, rule in self.rules:
            if match := pattern.fullmatch(name):
                return rule, (match.groups() or ("",))[0]
        return None, ""


def _pattern(name: str) -> re.Pattern[str]:
    return re.compile(re.escape(name).replace(r"\{\}", r"(\d+)"))


def _check_none(problem: str, names: list[str]) -> None:
    """Raise a UserError that names tensors, if there are any."""
    if names:
        shown = ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
        raise UserError(problem.format(f"{len(names)} tensors ({shown})"))
