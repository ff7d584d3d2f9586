"""Losses of distillation as pure functions of tensors that return a scalar.

Each loss is a sum over the kept tokens divided by `num_tokens`. The caller chooses the divisor: micro-batches
that are divided by the tokens of their whole accumulated step add up to the loss of one large batch.

B batch · T tokens · N tokens that count · V vocabulary · C classes: V, or k tokens and the rest · D width ·
R relation heads
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F

from vaswani.kernels.known_gradient import with_known_gradient
from vaswani.kernels.soft_targets_native import can_compute, divergence_and_gradient
from vaswani.model.input_checks import check_shape
from vaswani.model.losses import per_token

Divergence = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def forward_kl(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """KL(teacher ‖ student) of log-probabilities [N, C] -> [N]: the student covers all modes of the teacher.

    Hinton et al. (2015), arXiv:1503.02531, section 2.
    """
    return _kl(teacher, student)


def reverse_kl(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """KL(student ‖ teacher) of log-probabilities [N, C] -> [N]: the student keeps to modes of the teacher.

    Gu et al. (2024), arXiv:2306.08543, section 2.
    """
    return _kl(student, teacher)


def jensen_shannon(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """The mean of both KL divergences to the mixture of student and teacher, [N, C] -> [N]; at most log 2.

    Lin (1991), equation 4.1; as a loss of distillation Wen et al. (2023), arXiv:2307.15190.
    """
    log_half = student.new_tensor(0.5).log()
    mixture = torch.logaddexp(student, teacher) + log_half
    return (_kl(student, mixture) + _kl(teacher, mixture)) / 2


DIVERGENCES: dict[str, Divergence] = {
    "forward_kl": forward_kl,
    "reverse_kl": reverse_kl,
    "jensen_shannon": jensen_shannon,
}


def _kl(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Σ p · (log p − log q) over the last dimension; a class of probability zero adds nothing."""
    lowest = torch.finfo(p.dtype).min  # in place of −inf, whose difference with itself is NaN
    return (p.exp() * (p.clamp(min=lowest) - q.clamp(min=lowest))).sum(-1)


def soft_target_loss(
    student_logits: torch.Tensor,
    teacher_log_probs: torch.Tensor,
    *,
    temperature: float,
    divergence: Divergence,
    num_tokens: torch.Tensor | int | None,
    teacher_tokens: torch.Tensor | None = None,
) -> torch.Tensor:
    """T² · divergence(student, teacher), in nats per token, of softmax(logits / T).

    The factor keeps the size of the gradients while T changes (Hinton et al., 2015, section 2).

    Args:
        student_logits: [N, V], of the tokens that count, any floating dtype; computed in float32.
        teacher_log_probs: float32, at the same temperature: [N, V], or [N, k + 1], of k tokens and, in the
            last place, of all the others together.
        temperature: T, above 0.
        divergence: one of `DIVERGENCES`.
        num_tokens: the divisor of the summed loss; `None` means N.
        teacher_tokens: int64 [N, k], the ids of the k tokens; `None` for the whole vocabulary.

    Returns:
        A float32 scalar.

    Raises:
        ValueError: the shapes do not belong together.
    """
    num_rows, classes = student_logits.shape
    if teacher_tokens is not None:
        classes = teacher_tokens.shape[-1] + 1
        check_shape("teacher_tokens", teacher_tokens, (num_rows, classes - 1))
    check_shape("teacher_log_probs", teacher_log_probs, (num_rows, classes))
    if divergence is forward_kl and can_compute(student_logits, teacher_log_probs, teacher_tokens):
        summed = with_known_gradient(
            student_logits,
            lambda logits, wants_gradient: divergence_and_gradient(
                logits, teacher_log_probs, teacher_tokens, temperature, wants_gradient
            ),
        )
    else:
        student = (student_logits.float() / temperature).log_softmax(-1)
        if teacher_tokens is not None:
            student = _bucketed(student, teacher_tokens)
        summed = divergence(student, teacher_log_probs).sum()
    return per_token(summed * temperature**2, len(student_logits), num_tokens)


def _bucketed(log_probs: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Log-probabilities [N, V] of k tokens [N, k] and, last, of all the others together: [N, k + 1]."""
    rest = log_probs.scatter(-1, tokens, torch.finfo(log_probs.dtype).min).logsumexp(-1, keepdim=True)
    return torch.cat([log_probs.gather(-1, tokens), rest], dim=-1)


def cosine_loss(
    student_states: torch.Tensor,
    teacher_states: torch.Tensor,
    kept: torch.Tensor,
    *,
    num_tokens: torch.Tensor | int | None,
) -> torch.Tensor:
    """1 − cos(student, teacher) per token, of hidden states [B, T, D].

    As in DistilBERT (arXiv:1910.01108, section 3). `kept` is bool [B, T]. `num_tokens` divides the sum;
    `None` means the number of kept positions. Returns a float32 scalar. Raises `ValueError` for shapes that
    differ, or another dtype of `kept`.
    """
    check_shape("teacher_states", teacher_states, student_states.shape)
    check_shape("kept", kept, student_states.shape[:-1])
    if kept.dtype != torch.bool:
        raise ValueError(f"kept has the dtype {kept.dtype}; expected torch.bool.")
    similarity = F.cosine_similarity(student_states.float(), teacher_states.float(), dim=-1)
    return per_token((1 - similarity)[kept].sum(), kept.sum(), num_tokens)


def relation_loss(
    student: tuple[torch.Tensor, torch.Tensor],
    teacher: tuple[torch.Tensor, torch.Tensor],
    visible: torch.Tensor,
    *,
    num_heads: int,
    num_tokens: torch.Tensor | int | None,
) -> torch.Tensor:
    """KL(teacher ‖ student) of the relations between tokens, per token and relation head.

    A relation is softmax(A Bᵀ / sqrt(width of a head)). With queries and keys it is the attention itself
    (MiniLM, arXiv:2002.10957, equation 7); with values and values it is the value relation (equation 9).
    Student and teacher may have different widths and numbers of heads, because both are split into R
    relation heads (MiniLMv2, arXiv:2012.15828, section 3.1).

    Args:
        student: A and B, both [B, T, width of the student], any floating dtype; computed in float32.
        teacher: A and B, both [B, T, width of the teacher].
        visible: bool [B, T, T], True where a query may attend to a key; queries without keys do not count.
        num_heads: R, which divides both widths.
        num_tokens: the divisor of the summed loss; `None` means the number of queries that count.

    Returns:
        A float32 scalar.
    """
    log_student = _log_relations(*student, visible, num_heads)
    log_teacher = _log_relations(*teacher, visible, num_heads)
    kept = visible.any(-1)  # [B, T]
    per_query = _kl(log_teacher, log_student).mean(1)  # [B, T]
    return per_token(per_query[kept].sum(), kept.sum(), num_tokens)


def _log_relations(a: torch.Tensor, b: torch.Tensor, visible: torch.Tensor, num_heads: int) -> torch.Tensor:
    """[B, T, D] twice -> log-probabilities [B, R, T, T]."""
    a, b = (states.float().unflatten(-1, (num_heads, -1)).transpose(1, 2) for states in (a, b))
    scores = a @ b.transpose(-2, -1) * a.shape[-1] ** -0.5
    return scores.masked_fill(~visible[:, None], torch.finfo(scores.dtype).min).log_softmax(-1)
