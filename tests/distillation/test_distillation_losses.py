"""Each loss compared with its definition, token by token, and with other implementations where they exist."""

import itertools

import pytest
import torch

from vaswani.distillation.losses import (
    DIVERGENCES,
    cosine_loss,
    forward_kl,
    relation_loss,
    reverse_kl,
    soft_target_loss,
)


def divergence_of_one(name: str, student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """By definition, of two probability distributions [V]."""

    def kl(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        return sum(p[i] * (p[i] / q[i]).log() for i in range(len(p)))

    mixture = (student + teacher) / 2
    return {
        "forward_kl": lambda: kl(teacher, student),
        "reverse_kl": lambda: kl(student, teacher),
        "jensen_shannon": lambda: (kl(student, mixture) + kl(teacher, mixture)) / 2,
    }[name]()


@pytest.fixture
def soft_batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits of a student and of a teacher [2, 4, 7], and which positions are kept."""
    kept = torch.tensor([[True, True, True, False], [True, False, False, False]])
    return 2 * torch.randn(2, 4, 7), 2 * torch.randn(2, 4, 7), kept


def soft_loss(student, teacher, kept, temperature=1.0, divergence="forward_kl", num_tokens=None, k=None):
    """The loss of the kept tokens, from a teacher's logits; with k, from so many tokens and the rest."""
    log_probs, tokens = (teacher[kept] / temperature).log_softmax(-1), None
    if k is not None:
        sorted_log_probs, order = log_probs.sort(-1, descending=True)
        tail = sorted_log_probs[..., k:].logsumexp(-1, keepdim=True)
        log_probs, tokens = torch.cat([sorted_log_probs[..., :k], tail], -1), order[..., :k]
    return soft_target_loss(
        student[kept],
        log_probs,
        temperature=temperature,
        divergence=DIVERGENCES[divergence],
        num_tokens=num_tokens,
        teacher_tokens=tokens,
    )


@pytest.mark.parametrize("divergence", DIVERGENCES)
@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_soft_targets_follow_the_definition(soft_batch, divergence, temperature):
    student, teacher, kept = soft_batch
    total = sum(
        divergence_of_one(
            divergence,
            (student[place] / temperature).softmax(-1),
            (teacher[place] / temperature).softmax(-1),
        )
        for place in map(tuple, kept.nonzero().tolist())
    )
    loss = soft_loss(student, teacher, kept, temperature, divergence)
    torch.testing.assert_close(loss, temperature**2 * total / 4)
    torch.testing.assert_close(
        soft_loss(student, teacher, kept, temperature, divergence, num_tokens=11), loss * 4 / 11
    )


def test_divergences_differ_and_are_zero_for_equal_distributions(soft_batch):
    student, teacher, kept = soft_batch
    losses = [soft_loss(student, teacher, kept, divergence=name) for name in DIVERGENCES]
    assert len({round(float(loss), 4) for loss in losses}) == len(losses)
    for name in DIVERGENCES:
        torch.testing.assert_close(soft_loss(teacher, teacher, kept, divergence=name), torch.zeros(()))


@pytest.mark.parametrize("divergence", DIVERGENCES)
def test_top_k_divergence_grows_with_k_to_the_full_divergence(soft_batch, divergence):
    """Putting classes together can only lower a divergence, and none is put together when k = V."""
    student, teacher, kept = soft_batch
    whole = soft_loss(student, teacher, kept, divergence=divergence)
    cached = [soft_loss(student, teacher, kept, divergence=divergence, k=k) for k in (1, 2, 4, 7)]
    assert all(less <= more + 1e-6 for less, more in itertools.pairwise(cached))
    assert cached[0] < whole - 1e-3
    torch.testing.assert_close(cached[-1], whole)


@pytest.mark.parametrize("divergence", DIVERGENCES)
@pytest.mark.parametrize("k", [None, 3, 7])
def test_gradients_of_soft_targets_are_exact(soft_batch, divergence, k):
    student, teacher, kept = (
        tensor.double() if tensor.is_floating_point() else tensor for tensor in soft_batch
    )
    student = student.float().requires_grad_()
    soft_loss(student, teacher.float(), kept, 2.0, divergence, k=k).backward()
    step = 1e-3
    for place in [(0, 0, 0), (0, 2, 5), (1, 0, 6), (1, 3, 2)]:
        ends = []
        for sign in (1, -1):
            moved = student.detach().double()
            moved[place] += sign * step
            ends.append(float(soft_loss_double(moved, teacher, kept, 2.0, divergence, k)))
        expected = (ends[0] - ends[1]) / (2 * step)
        assert float(student.grad[place]) == pytest.approx(expected, abs=2e-5)


def soft_loss_double(student, teacher, kept, temperature, divergence, k):
    """The definition in float64, with what is beyond the first k put together."""
    total = 0.0
    for place in map(tuple, kept.nonzero().tolist()):
        order = teacher[place].argsort(descending=True)
        probs = [(logits[place] / temperature).softmax(-1)[order] for logits in (student, teacher)]
        if k is not None and k < len(order):
            probs = [torch.cat([p[:k], p[k:].sum()[None]]) for p in probs]
        total += divergence_of_one(divergence, *probs)
    return temperature**2 * total / kept.sum()


def test_a_certain_teacher_gives_finite_losses_and_gradients():
    """Probabilities that are 0 in float32, as a sure teacher has them."""
    teacher = torch.tensor([[[200.0, 0.0, -200.0]]])
    for name in DIVERGENCES:
        for k in (None, 1, 3):
            student = torch.zeros(1, 1, 3, requires_grad=True)
            soft_loss(student, teacher, torch.ones(1, 1, dtype=torch.bool), divergence=name, k=k).backward()
            assert student.grad.isfinite().all(), (name, k)


def test_the_forward_divergence_covers_and_the_reverse_one_keeps_to_a_mode():
    teacher = torch.tensor([0.49, 0.49, 0.02]).log()
    wide, narrow = torch.tensor([0.34, 0.33, 0.33]).log(), torch.tensor([0.97, 0.01, 0.02]).log()
    assert forward_kl(wide, teacher) < forward_kl(narrow, teacher)
    assert reverse_kl(wide, teacher) > reverse_kl(torch.tensor([0.9, 0.08, 0.02]).log(), teacher)


def test_cosines_follow_the_definition_and_ignore_length():
    student, teacher = torch.randn(2, 3, 5), torch.randn(2, 3, 5)
    kept = torch.tensor([[True, True, False], [True, False, False]])
    total = 0.0
    for place in map(tuple, kept.nonzero().tolist()):
        product = (student[place] * teacher[place]).sum()
        total += 1 - product / (student[place].norm() * teacher[place].norm())
    loss = cosine_loss(student, teacher, kept, num_tokens=None)
    torch.testing.assert_close(loss, total / 3)
    torch.testing.assert_close(cosine_loss(3 * student, teacher, kept, num_tokens=6), loss / 2)
    torch.testing.assert_close(cosine_loss(teacher, teacher, kept, num_tokens=None), torch.zeros(()))


@pytest.mark.parametrize("num_heads", [1, 2, 4])
def test_relations_follow_the_definition_for_any_widths_and_heads(num_heads):
    student, teacher = ((torch.randn(2, 5, width), torch.randn(2, 5, width)) for width in (8, 12))
    kept = torch.tensor([[True] * 5, [True, True, False, False, False]])
    visible = (kept[:, :, None] & kept[:, None]).tril()
    total = 0.0
    for row, query in kept.nonzero().tolist():
        keys = visible[row, query].nonzero().flatten()
        for head in range(num_heads):
            relations = []
            for a, b in (student, teacher):
                width = a.shape[-1] // num_heads
                part = slice(head * width, (head + 1) * width)
                scores = b[row, keys, part] @ a[row, query, part] / width**0.5
                relations.append(scores.softmax(-1))
            total += divergence_of_one("forward_kl", *relations) / num_heads
    loss = relation_loss(student, teacher, visible, num_heads=num_heads, num_tokens=None)
    torch.testing.assert_close(loss, total / 7)
    torch.testing.assert_close(
        relation_loss(student, teacher, visible, num_heads=num_heads, num_tokens=14), loss / 2
    )


def test_the_number_of_relation_heads_moves_the_loss():
    student, teacher = ((torch.randn(1, 4, 8), torch.randn(1, 4, 8)) for _ in range(2))
    visible = torch.ones(1, 4, 4, dtype=torch.bool)
    losses = {
        round(float(relation_loss(student, teacher, visible, num_heads=heads, num_tokens=None)), 5)
        for heads in (1, 2, 4)
    }
    assert len(losses) == 3


def test_without_kept_tokens_losses_are_zero_and_finite():
    states, nothing = torch.randn(1, 2, 4, requires_grad=True), torch.zeros(1, 2, dtype=torch.bool)
    pair = (states, states)
    loss = (
        soft_loss(states, torch.randn(1, 2, 4), nothing)
        + cosine_loss(states, torch.randn(1, 2, 4), nothing, num_tokens=None)
        + relation_loss(
            pair,
            (torch.randn(1, 2, 4),) * 2,
            nothing[:, :, None].expand(1, 2, 2),
            num_heads=2,
            num_tokens=None,
        )
    )
    loss.backward()
    assert loss == 0
    assert not states.grad.isnan().any()


ROWS, TOKENS = torch.randn(4, 7), torch.arange(3).expand(4, 3)
STATES, KEPT = torch.randn(2, 5, 8), torch.ones(2, 5, dtype=torch.bool)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda of: of(ROWS, ROWS[:1]), r"teacher_log_probs has the shape \[1, 7\]; expected \[4, 7\]"),
        (lambda of: of(ROWS, ROWS[:, :4], TOKENS[:1]), r"teacher_tokens .* \[1, 3\]; expected \[4, 3\]"),
        (lambda of: of(ROWS, ROWS[:, :3], TOKENS), r"teacher_log_probs .* \[4, 3\]; expected \[4, 4\]"),
        (lambda _: cosine_loss(STATES, STATES[:1], KEPT, num_tokens=None), "teacher_states has the shape"),
        (lambda _: cosine_loss(STATES, STATES, KEPT[:1], num_tokens=None), r"kept has .* expected \[2, 5\]"),
        (lambda _: cosine_loss(STATES, STATES, KEPT.long(), num_tokens=None), "kept has the dtype"),
    ],
)
def test_tensors_that_do_not_belong_together_raise_an_error(loss, message):
    def of_logits(student, teacher, tokens=None):
        options = {"temperature": 1.0, "divergence": forward_kl, "num_tokens": None}
        return soft_target_loss(student, teacher, teacher_tokens=tokens, **options)

    with pytest.raises(ValueError, match=message):
        loss(of_logits)
