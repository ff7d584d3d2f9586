"""Sparse attention with FlexAttention equals dense attention, and its lists of tiles are the pattern."""

import math
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import BlockMask

from sparse_reference import PADDINGS, LargestTensor, assert_equal, dense_reference, paddings, states
from vaswani.kernels import sparse_flex
from vaswani.kernels.sequence_groups import in_groups
from vaswani.kernels.sparse_flex import DROPOUT_LEVELS, TILE, keep_mask
from vaswani.model.sparse_attention import attend_by_pattern
from vaswani.model.sparse_pattern import SparsePattern

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


def flex_sparse_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    pattern: SparsePattern,
    padding_mask: torch.Tensor | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
) -> torch.Tensor:
    """The kernel with the arguments of `sparse_attention`."""
    padding = None if padding_mask is None else padding_mask.bool()
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    return sparse_flex.flex_sparse_attention(query, key, value, pattern, padding, scaling, dropout)


@pytest.fixture(autouse=True)
def gradients_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """FlexAttention refuses gradients on the CPU, though uncompiled it can compute them: let it."""
    monkeypatch.setattr("torch.nn.attention.flex_attention._validate_device", lambda query, key, value: None)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("length", [1, 15, 16, 17, 100, 129])
def test_equal_to_dense_at_any_length_and_padding(length: int, padding: str, causal: bool) -> None:
    pattern = SparsePattern(num_heads=2, block_size=16, causal=causal)
    inputs, mask = states(3, 2, length, 8), paddings(length, padding)
    assert_equal(
        flex_sparse_attention(*inputs, pattern, mask), dense_reference(*inputs, pattern, mask), inputs
    )


PATTERNS = [
    {"block_size": 16, "global_blocks": 0},
    {"block_size": 16, "random_blocks": 0},
    {"block_size": 16, "num_heads": 1},
    {"block_size": 16, "global_blocks": 0, "global_tokens": 20},
    {"block_size": 48, "window_blocks": 1},
    {"block_size": 128, "window_blocks": 1, "global_blocks": 1, "random_blocks": 1},
    {"block_size": 200, "window_blocks": 1, "global_blocks": 0, "random_blocks": 1},
]


def pattern_of(options: dict[str, int], causal: bool) -> SparsePattern:
    return SparsePattern(**{"num_heads": 2, "causal": causal, **options})


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("options", PATTERNS, ids=str)
def test_equal_to_dense_for_other_patterns(options: dict[str, int], causal: bool) -> None:
    pattern = pattern_of(options, causal)
    inputs, mask = states(3, pattern.num_heads, 300, 8), paddings(300, "holes")
    assert_equal(
        flex_sparse_attention(*inputs, pattern, mask), dense_reference(*inputs, pattern, mask), inputs
    )


def test_the_scaling_moves_the_result() -> None:
    pattern = SparsePattern(num_heads=2, block_size=16)
    query, key, value = states(1, 2, 50, 4)
    expected = flex_sparse_attention(2 * query, key, value, pattern)
    torch.testing.assert_close(flex_sparse_attention(query, key, value, pattern, scaling=1.0), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_as_exact_as_dense_attention(dtype: torch.dtype) -> None:
    pattern = SparsePattern(num_heads=2, block_size=16)
    rounded = [tensor.detach().to(dtype) for tensor in states(2, 2, 200, 16)]
    truth = dense_reference(*(tensor.double() for tensor in rounded), pattern)
    dense = torch.nn.functional.scaled_dot_product_attention(*rounded, attn_mask=pattern.to_dense(200)[None])
    sparse = flex_sparse_attention(*rounded, pattern)
    assert sparse.dtype == dtype
    assert (sparse - truth).abs().max() <= 2 * (dense - truth).abs().max()


@pytest.mark.slow
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize(
    "options", [{"global_blocks": 2}, {"global_blocks": 0, "global_tokens": 20}], ids=str
)
def test_computing_global_rows_separately_gives_the_same_results(
    options: dict[str, int], padding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pattern = SparsePattern(num_heads=2, block_size=16, **options)
    inputs, mask = states(3, 2, 150, 8), paddings(150, padding)
    lengths: list[int] = []
    attend_to_all = sparse_flex._attend_to_all

    def record(query: torch.Tensor, *arguments: Any) -> torch.Tensor:
        lengths.append(query.shape[2])
        return attend_to_all(query, *arguments)

    monkeypatch.setattr(sparse_flex, "_attend_to_all", record)
    together = flex_sparse_attention(*inputs, pattern, mask)
    assert not lengths
    monkeypatch.setattr(sparse_flex, "MANY", 0)
    apart = flex_sparse_attention(*inputs, pattern, mask)
    assert set(lengths) == {options.get("global_tokens", 32)}
    assert_equal(apart, together, inputs)


def test_global_rows_are_computed_separately_in_long_sequences() -> None:
    pattern = SparsePattern(num_heads=2)  # 2 + 3 + 3 blocks
    assert [sparse_flex._num_dense_rows(pattern, blocks, 0.0) for blocks in (1, 32, 33)] == [0, 0, 2]
    assert sparse_flex._num_dense_rows(pattern, 33, 0.1) == 0
    assert sparse_flex._num_dense_rows(SparsePattern(num_heads=2, causal=True), 33, 0.0) == 0


def tiles_of(counts: torch.Tensor, indices: torch.Tensor, num_tiles: int) -> torch.Tensor:
    """The tiles that lists name: int32 [1, H, T], [1, H, T, most] -> bool [H, T, num_tiles]."""
    is_listed = torch.arange(indices.shape[-1]) < counts[..., None]
    tiles = torch.zeros(*indices.shape[1:3], num_tiles + 1, dtype=torch.bool)
    return tiles.scatter(2, torch.where(is_listed, indices.long(), num_tiles)[0], True)[..., :num_tiles]


def as_a_kernel_reads(mask: BlockMask, heads: int) -> torch.Tensor:
    """Who sees whom, bool [H, R, n], when only listed tiles are visited and only partial ones looked up."""
    num_queries, num_keys = mask.seq_lengths
    head, query, key = torch.arange(heads), torch.arange(num_queries), torch.arange(num_keys)
    num_tiles = math.ceil(num_queries / TILE), math.ceil(num_keys / TILE)
    partial = tiles_of(mask.kv_num_blocks, mask.kv_indices, num_tiles[1])
    full = tiles_of(mask.full_kv_num_blocks, mask.full_kv_indices, num_tiles[1])
    assert not (partial & full).any()
    assert torch.equal(tiles_of(mask.q_num_blocks, mask.q_indices, num_tiles[0]), partial.mT)
    assert torch.equal(tiles_of(mask.full_q_num_blocks, mask.full_q_indices, num_tiles[0]), full.mT)
    sees = mask.mask_mod(torch.tensor(0), head[:, None, None], query[:, None], key)
    by_token = [tiles[:, query // TILE][:, :, key // TILE] for tiles in (partial, full)]
    return by_token[0] & sees | by_token[1]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("options", [{}, {"block_size": 13}, *PATTERNS], ids=str)
@pytest.mark.parametrize("length", [1, 127, 129, 640, 1000])
def test_tile_lists_equal_the_pattern(length: int, options: dict[str, int], causal: bool) -> None:
    """The CPU reads no lists: check what a kernel would see that does, of all rows and without the global."""
    pattern = pattern_of(options, causal)
    num_blocks = pattern.num_blocks(length)
    for rows in {0, pattern.num_global_rows(num_blocks)} - {num_blocks}:
        mask, first = sparse_flex._block_mask(pattern, length, rows, torch.device("cpu"))
        assert mask.seq_lengths == (length - first, length)
        assert torch.equal(as_a_kernel_reads(mask, pattern.num_heads), pattern.to_dense(length)[:, first:])


def test_fully_visible_tiles_need_no_mask() -> None:
    small, large = (
        sparse_flex._block_mask(SparsePattern(num_heads=1, block_size=size), 2048, 0, torch.device("cpu"))[0]
        for size in (64, 128)
    )
    assert small.full_kv_num_blocks.min() >= 1  # the global blocks
    assert large.full_kv_num_blocks.min() >= 5
    assert not large.kv_num_blocks.any()


@pytest.mark.parametrize("causal", [False, True])
def test_tile_lists_are_built_without_a_mask_of_all_pairs(causal: bool) -> None:
    length, pattern = 2**15, SparsePattern(num_heads=1, layer=77, causal=causal)
    rows = 0 if causal else 2
    with LargestTensor() as largest:
        mask, _ = sparse_flex._block_mask(pattern, length, rows, torch.device("cpu"))
    assert largest.size <= 2 * pattern.num_blocks(length) ** 2  # a look at every pair of blocks
    assert mask.kv_indices.shape[-1] + mask.full_kv_indices.shape[-1] <= 2 * (2 + 3 + 3)


@pytest.mark.slow
def test_tile_lists_are_cached_by_number_of_blocks() -> None:
    pattern = SparsePattern(num_heads=2, layer=99)
    masks = [
        sparse_flex._block_mask(pattern, length, 0, torch.device("cpu"))[0] for length in (961, 1000, 1024)
    ]
    assert all(mask.kv_indices is masks[0].kv_indices for mask in masks)
    before = sparse_flex._tile_lists.cache_info()
    inputs = [tensor.detach() for tensor in states(1, 2, 990, 4)]
    flex_sparse_attention(*inputs, pattern, dropout=0.5)
    flex_sparse_attention(*inputs, pattern, paddings(990, "left")[1:2])
    after = sparse_flex._tile_lists.cache_info()
    assert (after.hits - before.hits, after.misses - before.misses) == (2, 0)


def kept(seed: torch.Tensor, query: torch.Tensor, dropout: float) -> torch.Tensor:
    """The weights [B, H, n, n] that this seed keeps."""
    batch, heads, length, _ = query.shape
    sizes = [torch.arange(size, device=query.device) for size in (batch, heads, length, length)]
    return keep_mask(seed, *torch.meshgrid(*sizes, indexing="ij"), round(dropout * DROPOUT_LEVELS))


def with_the_same_dropout(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    pattern: SparsePattern,
    padding_mask: torch.Tensor | None,
    dropout: float,
) -> torch.Tensor:
    """Dense attention, whose weights are dropped like those of the kernel if it were next to draw a seed."""
    seed = torch.randint(DROPOUT_LEVELS, (), device=query.device)
    visible = pattern.to_dense(query.shape[2], query.device)[None]
    if padding_mask is not None:
        visible = visible & padding_mask[:, None, None].bool()
    scores = (query @ key.mT * query.shape[-1] ** -0.5).masked_fill(~visible, -1e300)
    weights = scores.softmax(-1).masked_fill(~visible, 0.0)
    return (weights * kept(seed, query, dropout) / (1 - dropout)) @ value


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padding", ["none", "holes", "empty"])
@pytest.mark.parametrize(("length", "dropout"), [(17, 0.9), (129, 0.1)])
def test_dropout_equals_dense_attention_with_the_same_weights_dropped(
    length: int, dropout: float, padding: str, causal: bool
) -> None:
    pattern = SparsePattern(num_heads=2, block_size=16, causal=causal)
    inputs, mask = states(3, 2, length, 8), paddings(length, padding)
    torch.manual_seed(1)
    expected = in_groups(with_the_same_dropout)(*inputs, pattern, mask, dropout)  # each group draws a seed
    torch.manual_seed(1)
    actual = flex_sparse_attention(*inputs, pattern, mask, dropout=dropout)
    assert_equal(actual, expected, inputs)
    if (length, causal) == (17, True):
        assert (expected == 0).all(-1).any()  # rows of which nothing is kept are among them


def test_dropout_follows_the_global_random_state() -> None:
    pattern = SparsePattern(num_heads=2, block_size=16)
    inputs = [tensor.detach() for tensor in states(2, 2, 60, 8)]
    first, second = (flex_sparse_attention(*inputs, pattern, dropout=0.2) for _ in range(2))
    assert not torch.equal(first, second)
    torch.manual_seed(0)
    inputs = [tensor.detach() for tensor in states(2, 2, 60, 8)]
    assert torch.equal(flex_sparse_attention(*inputs, pattern, dropout=0.2), first)


def test_dropout_does_not_change_the_mean() -> None:
    pattern = SparsePattern(num_heads=2, block_size=8)
    inputs = [tensor.detach().expand(4000, -1, -1, -1) for tensor in states(1, 2, 12, 4)]
    output = flex_sparse_attention(*inputs, pattern, dropout=0.3)  # each sequence drops others
    expected = dense_reference(*(tensor[:1] for tensor in inputs), pattern)
    error = (output.mean(0, keepdim=True) - expected).abs() / (output.std(0, keepdim=True) / 4000**0.5)
    assert error.max() < 5  # standard errors
    assert output.std(0).min() > 0.01


@pytest.mark.parametrize("dropout", [0.1, 0.5])
def test_dropout_decisions_are_independent_along_every_axis(dropout: float) -> None:
    shape = torch.empty(4, 4, 128, 128)
    draw, other = (
        kept(torch.tensor(seed), shape, dropout).double() - (1 - dropout) for seed in (12345, 12346)
    )
    spread, root = (dropout * (1 - dropout)) ** 0.5, draw.numel() ** 0.5
    assert abs(draw.mean()) < 5 * spread / root
    assert abs((draw * other).mean()) < 5 * spread**2 / root
    for axis in range(4):
        assert abs((draw * draw.roll(1, axis)).mean()) < 5 * spread**2 / root
        assert draw.mean(axis).std().item() == pytest.approx(spread / draw.shape[axis] ** 0.5, rel=0.05)


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.usefixtures("fresh_compiler")
def test_a_compiled_model_skips_the_flex_kernel() -> None:
    pattern = SparsePattern(num_heads=2, block_size=16)
    query, key, value = (tensor.detach() for tensor in states(1, 2, 100, 8))

    def layer(query: torch.Tensor) -> torch.Tensor:
        return 2 * flex_sparse_attention(query + 1, key, value, pattern)

    assert torch.equal(torch.compile(layer, backend="eager")(query), layer(query))


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_compiler")
def test_every_kind_of_call_may_have_its_own_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are more than the eight after which PyTorch would run uncompiled, or here, fail."""
    compiled: list[int] = []

    def count(graph: torch.fx.GraphModule, inputs: list) -> Any:
        compiled.append(len(inputs))
        return graph.forward

    flex = torch.compile(sparse_flex.flex_attention, fullgraph=True, backend=count)
    monkeypatch.setattr(sparse_flex, "flex_attention", flex)
    kinds = product((False, True), (100, 200), ("none", "left"), (0.1, 0.2))
    for causal, length, padding, dropout in kinds:
        pattern = SparsePattern(num_heads=2, block_size=16, causal=causal)
        inputs = [tensor.detach() for tensor in states(3, 2, length, 8)]
        flex_sparse_attention(*inputs, pattern, paddings(length, padding), dropout=dropout)
        if len(compiled) > 8:
            return
    pytest.fail(f"only {len(compiled)} kinds")


def needs_a_gpu(test: Callable[..., None]) -> Callable[..., None]:
    """Marks tests of the compiled kernels, which read the lists, forward and backward."""
    skip = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
    return pytest.mark.gpu(skip(test))


@needs_a_gpu
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("block_size", [16, 48, 64, 128])
@pytest.mark.parametrize(("length", "padding"), [(100, "holes"), (1024, "none"), (3001, "empty")])
def test_on_the_gpu_equal_to_dense(
    length: int,
    padding: str,
    block_size: int,
    causal: bool,
    dropout: float,
    dtype: torch.dtype,
    tolerance: float,
) -> None:
    pattern = SparsePattern(num_heads=2, block_size=block_size, causal=causal)
    mask = paddings(length, padding)
    mask = None if mask is None else mask.cuda()
    inputs = [tensor.detach().cuda().to(dtype).requires_grad_() for tensor in states(3, 2, length, 64)]
    exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
    upstream = torch.randn_like(inputs[0])
    torch.manual_seed(1)
    expected = with_the_same_dropout(*exact, pattern, mask, dropout)
    torch.manual_seed(1)
    actual = flex_sparse_attention(*inputs, pattern, mask, dropout=dropout)
    results = [actual, *torch.autograd.grad(actual, inputs, upstream)]
    truths = [expected, *torch.autograd.grad(expected, exact, upstream.double())]
    for result, truth in zip(results, truths, strict=True):
        assert (result - truth).norm() <= tolerance * truth.norm()


@needs_a_gpu
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("causal", [False, True])
def test_on_the_gpu_memory_grows_with_the_length_alone(causal: bool, dropout: float) -> None:
    length, pattern = 2**15, SparsePattern(num_heads=2, causal=causal)
    inputs = torch.randn(3, 1, 2, length, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    mask = torch.ones(1, length, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    flex_sparse_attention(*inputs, pattern, mask, dropout=dropout).sum().backward()
    assert torch.cuda.max_memory_allocated() < length**2 / 2  # the scores of one head are four times as much


@needs_a_gpu
def test_on_the_gpu_too_narrow_heads_fall_back_to_another_kernel() -> None:
    inputs = [tensor.detach().cuda() for tensor in states(1, 2, 100, 4, torch.float32)]
    pattern = SparsePattern(num_heads=2, block_size=16)
    actual = sparse_flex.attend_on_cuda(attend_by_pattern.plain, *inputs, pattern, None, 0.5, 0.0)
    torch.testing.assert_close(actual, dense_reference(*inputs, pattern))


def test_cpu_tensors_fall_back_to_another_kernel() -> None:
    query = torch.randn(1, 2, 8, 16)
    assert sparse_flex.attend_on_cuda(lambda *arguments: arguments, query, 1, 2) == (query, 1, 2)
