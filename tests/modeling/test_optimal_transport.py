"""Matching against plain loops written from the papers, and against POT's and SimAlign's own functions."""

import itertools

import numpy as np
import ot
import pytest
import torch
from simalign import SentenceAligner

from crosslingual_zoo.modeling.optimal_transport import METHODS, align, settle_one_token_sides, sinkhorn
from crosslingual_zoo.modeling.symmetrization import (
    RULES,
    argmax_links,
    grow_diag_final_and,
    itermax_links,
    softmax_links,
)
from tests.modeling.tiny import VECTOR_SIZE as HIDDEN
from tests.modeling.tiny import cells, parsed, ragged, whole

SHAPES = [(1, 1), (1, 7), (6, 1), (2, 9), (3, 3), (8, 5), (12, 40)]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
REGULARIZATIONS = [1e-30, 1e-3, 1, 1e3, 1e30]


def unpadded(function, matrix, *args, **kwargs):
    """`function` of a matrix without padding (numpy or torch), as a matrix."""
    matrix = torch.as_tensor(matrix)
    return function(matrix[None], *whole(*matrix.shape), *args, **kwargs)[0]


def align_pair(x, y, method, **options):
    """`align` of one pair without padding."""
    return align(x[None], y[None], *whole(len(x), len(y)), method, **options)


def random_matrix(generator, kind="dots"):
    """Of any shape; `dots` has both signs, `ties` few different values, `cosine` lies in [0, 1]."""
    shape = tuple(generator.integers(1, 15, 2))
    if generator.random() < 0.15:  # long and thin
        shape = (generator.integers(1, 3), generator.integers(1, 12))
        shape = shape[:: generator.choice([-1, 1])]
    if kind == "ties":
        return generator.integers(-3, 4, shape).astype(np.float32) / 4
    values = generator.standard_normal(shape)
    values = 5 * values if kind == "dots" else 1 / (1 + np.exp(-values))
    return values.astype(generator.choice(["f4", "f8"]))


def positive(scores, links):
    return {link for link in links if scores[link] > 0}


def forward_links(scores):
    """The first best column of each row."""
    return set(enumerate(scores.argmax(1).tolist()))


def backward_links(scores):
    """The first best row of each column."""
    return {(row, column) for column, row in enumerate(scores.argmax(0).tolist())}


def mutual_links(scores):
    """Eq. 7: links of both directions, of cells that have something."""
    return positive(scores, forward_links(scores) & backward_links(scores))


def plain_printed(plan, iterations, discount):
    """Eq. 7-9, cell by cell."""
    plan = plan.copy()
    links = set()
    for _ in range(iterations):
        links |= mutual_links(plan)
        linked_rows = {i for i, _ in links}
        linked_columns = {j for _, j in links}
        for i, j in np.ndindex(*plan.shape):
            if (i, j) in links:
                plan[i, j] = 0
            elif i in linked_rows or j in linked_columns:
                plan[i, j] *= discount
    return links


def plain_released(plan, iterations, discount):
    """The paper's code: a cell whose row and column both have a link is out, others share Eq. 9's discount."""
    links = mutual_links(plan)
    for _ in range(iterations - 1):
        rows = {i for i, _ in links}
        columns = {j for _, j in links}
        if min(plan.shape) <= 2 or len(rows) == plan.shape[0] or len(columns) == plan.shape[1]:
            break
        scores = plan.astype(np.float64)
        for i, j in np.ndindex(*plan.shape):
            if i in rows and j in columns:
                scores[i, j] = 0
            elif i in rows or j in columns:
                scores[i, j] *= discount
        links |= {(i, j) for i, j in mutual_links(scores) if i not in rows or j not in columns}
    return links


PLAIN_RULES = {"released": plain_released, "eq9_printed": plain_printed}


def plain_softmax(similarity, threshold):
    """awesome-align: both directions above the threshold."""
    is_likely = np.ones(similarity.shape, dtype=bool)
    for axis in (0, 1):
        powers = np.exp(similarity - similarity.max(axis, keepdims=True))
        is_likely &= powers / powers.sum(axis, keepdims=True) > threshold
    return set(zip(*is_likely.nonzero(), strict=True))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("regularization", [0.05, 0.3, 1, 3])
@pytest.mark.parametrize("first", ["rows", "columns"])
def test_sinkhorn_is_pot_s(first, regularization, shape):
    """POT scales columns first, to any marginals, here 1 of each row and column; its K = exp(-cost / reg)."""
    similarity = np.random.default_rng(0).standard_normal(shape) * 5
    cost = -np.log(np.maximum(1e-3, similarity))
    marginals = [np.ones(size) for size in shape]
    for iterations in (1, 2, 5, 7):
        settings = dict(numItermax=iterations, stopThr=0, warn=False)
        if first == "columns":
            expected = ot.sinkhorn(*marginals, cost, regularization, **settings)
        else:
            expected = ot.sinkhorn(*marginals[::-1], cost.T, regularization, **settings).T
        plan = unpadded(sinkhorn, similarity, iterations, regularization, 1e-3, first)
        torch.testing.assert_close(plan, torch.from_numpy(expected), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("regularization", REGULARIZATIONS)
def test_sinkhorn_has_no_nan(dtype, regularization):
    torch.manual_seed(0)
    shapes = [*SHAPES, (0, 3), (3, 0), (0, 0)]
    scales_and_shifts = [(1, 0), (1, -9), (700, 0), (700, 400), (3e4, 0), (1e-7, 0), (0, 0)]
    for shape, (scale, shift) in itertools.product(shapes, scales_and_shifts):
        similarity = (torch.randn(shape) * scale + shift).to(dtype)
        for epsilon, first in itertools.product((1e-6, 1e-30), ("rows", "columns")):
            plan = unpadded(sinkhorn, similarity, 3, regularization, epsilon, first)
            assert plan.shape == shape
            assert plan.dtype == torch.float64
            assert plan.isfinite().all()
            assert (plan >= 0).all()
            assert unpadded(itermax_links, plan).shape == shape


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
def test_sinkhorn_has_no_nan_of_vectors_that_overflowed(value, dtype):
    similarity = torch.rand(4, 5).to(dtype)
    similarity[1, 2] = value
    similarity[3] = value
    assert unpadded(sinkhorn, similarity).isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("regularization", REGULARIZATIONS)
@pytest.mark.parametrize("empty", [0, 1])
def test_sinkhorn_has_no_nan_of_a_side_without_tokens(empty, regularization, dtype):
    masks = whole(2, 3, 4)
    masks[empty][1] = False
    plan_BST = sinkhorn(60 * torch.rand(2, 3, 4).to(dtype), *masks, regularization=regularization)
    assert plan_BST.isfinite().all()
    assert plan_BST[0].any()
    assert not plan_BST[1].any()


@pytest.mark.parametrize("kind", ["dots", "cosine", "ties"])
def test_argmax_links_are_numpy_s(kind):
    generator = np.random.default_rng(0)
    for _ in range(50):
        scores = random_matrix(generator, kind)
        forward = forward_links(scores)
        backward = backward_links(scores)
        assert cells(unpadded(argmax_links, scores, "forward")) == forward
        assert cells(unpadded(argmax_links, scores, "reverse")) == backward
        assert cells(unpadded(argmax_links, scores, "intersection")) == forward & backward
        assert cells(unpadded(argmax_links, scores, "union")) == forward | backward


@pytest.mark.parametrize(
    ("forward", "reverse", "links"),
    [
        # (0, 0) and (1, 1) are in both. (2, 1) and (1, 2) touch (1, 1). (3, 3) does not touch (2, 1) or (1, 2) before
        # final-and, which takes forward's (4, 5), then reverse's (5, 4), and not (4, 3) or (5, 5): 3, 4, 5 are linked
        ("0-0 1-1 2-1 3-3 4-5", "0-0 1-1 1-2 4-3 5-4 5-5", "0-0 1-1 2-1 1-2 3-3 4-5 5-4"),
        # final-and takes (2, 2), whose words are both free; of (4, 2) and (2, 4) one alone still is
        ("0-0 2-2", "0-0 4-2 2-4", "0-0 2-2"),
        # growth takes a neighbor of which the source, or the target, alone is free
        ("1-1 2-1", "1-1", "1-1 2-1"),
        ("1-1", "1-1 1-2", "1-1 1-2"),
        # and none of which both are linked: (1, 0) touches (0, 0) and (1, 1)
        ("0-0 1-1", "0-0 1-1 1-0", "0-0 1-1"),
    ],
)
def test_grow_diag_final_and_takes_neighbors_then_what_is_alone(forward, reverse, links):
    """fast_align's `atools -c grow-diag-final-and` gives these links; nltk's function of this name is no oracle: it
    asks whether a word is `in aligned`, whose keys are "e" and "f"."""
    forward_BST = torch.zeros(2, 6, 6, dtype=torch.bool)  # the first pair has no links
    reverse_BST = torch.zeros_like(forward_BST)
    for directed_BST, text in ((forward_BST, forward), (reverse_BST, reverse)):
        for source, target in parsed(text):
            directed_BST[1, source, target] = True
    links_BST = grow_diag_final_and(forward_BST, reverse_BST)
    assert not links_BST[0].any()
    assert cells(links_BST[1]) == parsed(links)


@pytest.mark.parametrize("kind", ["dots", "cosine", "ties"])
def test_itermax_links_are_simalign_s(kind):
    generator = np.random.default_rng(1)
    for _ in range(400):
        scores = random_matrix(generator, kind)
        iterations = int(generator.integers(1, 5))
        expected = SentenceAligner.iter_max(scores, iterations) > 0
        assert cells(unpadded(itermax_links, scores, iterations)) == cells(expected), (scores, iterations)


def test_align_mutual_and_itermax_are_simalign_s():
    generator = torch.Generator().manual_seed(0)
    for source_length, target_length in SHAPES * 5:
        x = torch.randn(source_length, HIDDEN, generator=generator)
        y = torch.randn(target_length, HIDDEN, generator=generator)
        similarity = SentenceAligner.get_similarity(x.numpy(), y.numpy())
        forward, backward = SentenceAligner.get_alignment_matrix(similarity)
        mutual = align_pair(x, y, "mutual").links_BST[0]
        assert cells(mutual) == cells(forward * backward > 0)
        itermax = align_pair(x, y, "itermax").links_BST[0]
        assert cells(itermax) == cells(SentenceAligner.iter_max(similarity) > 0)


@pytest.mark.parametrize("discount", [0.5, 0.9, 1])
def test_align_ot_itermax_is_a_plain_loop(discount):
    assert PLAIN_RULES.keys() == set(RULES)
    generator = np.random.default_rng(2)
    different = 0
    for number in range(150):
        kind = "cosine" if number % 3 else "dots"
        similarity = random_matrix(generator, kind).astype(np.float64)
        plan = unpadded(sinkhorn, similarity).numpy()
        if number % 5 == 0:
            plan = np.round(plan, 1)  # ties, and cells without anything
        for iterations in (1, 2, 4):
            expected = {rule: plain(plan, iterations, discount) for rule, plain in PLAIN_RULES.items()}
            different += expected["eq9_printed"] != expected["released"]
            for rule, links in expected.items():
                assert cells(unpadded(itermax_links, plan, iterations, discount, rule)) == links, plan
    assert different > 20, "the two rules hardly differed"


@pytest.mark.parametrize("value", [torch.nan, -torch.inf])
def test_itermax_links_never_prefer_what_is_no_number(value):
    """Cells of which row and column have a link are multiplied by 0, and 0 times infinity is NaN, the highest."""
    scores = [
        [0.9, 0.1, 0.4, 0.1],
        [0.1, 0.8, 0.3, 0.1],
        [0.1, 0.1, 0.1, 0.7],
        [0.1, 0.1, 0.1, 0.6],
    ]
    # of the second iteration: (0, 2) is the best of row 0 and of column 2, (3, 3) of row 3 and of column 3
    expected = {(0, 0), (1, 1), (2, 3), (0, 2), (3, 3)}
    assert cells(unpadded(itermax_links, scores)) == expected
    for i, j in ((0, 1), (1, 0), (0, 3)):
        scores[i][j] = value
    assert cells(unpadded(itermax_links, scores)) == expected


@pytest.mark.parametrize("threshold", [0, 1e-3, 0.1])
def test_softmax_links_are_a_plain_loop(threshold):
    generator = np.random.default_rng(3)
    for _ in range(100):
        similarity = random_matrix(generator, "dots").astype(np.float64)
        assert cells(unpadded(softmax_links, similarity, threshold)) == plain_softmax(similarity, threshold)


VARIANTS = [
    *((method, {}) for method in METHODS),
    ("ot", {"first": "columns", "regularization": 0.5}),
    ("ot_itermax", {"rule": "eq9_printed"}),
    ("ot_itermax", {"filter_iterations": 4}),
    ("ot_itermax", {"sinkhorn_iterations": 20, "regularization": 0.7}),
    ("itermax", {"filter_iterations": 4}),
]


@pytest.mark.parametrize(("method", "options"), VARIANTS)
def test_align_a_pair_has_the_same_links_in_a_padded_batch(method, options):
    pairs, batch = ragged(torch.Generator().manual_seed(4))
    together = align(*batch, method, **options)
    _, _, source_mask_BS, target_mask_BT = batch
    is_padding_BST = ~(source_mask_BS[:, :, None] & target_mask_BT[:, None])
    assert not together.links_BST[is_padding_BST].any(), "padding was linked"
    assert not together.probabilities_BST[is_padding_BST].any()
    assert not together.probabilities_BST.isnan().any()
    for row, (x, y) in enumerate(pairs):
        alone = align_pair(x, y, method, **options)
        inside = np.ix_(source_mask_BS[row], target_mask_BT[row])
        assert torch.equal(together.links_BST[row][inside], alone.links_BST[0]), row
        torch.testing.assert_close(together.probabilities_BST[row][inside], alone.probabilities_BST[0])
        # vectors drawn at random are hardly ever likely partners
        assert alone.links_BST.any() or not len(x) or not len(y) or method == "ot_words"
    assert together.links_BST.any()


@pytest.mark.parametrize("method", ["ot", "ot_itermax"])
@pytest.mark.parametrize("size", [1, 2, 9])
def test_align_the_dot_products_decide_about_a_single_token(size, method):
    """All cells of its plan are equal."""
    generator = torch.Generator().manual_seed(size)
    token = torch.rand(1, HIDDEN, generator=generator)
    others = torch.rand(size, HIDDEN, generator=generator)
    best = int((others @ token[0]).argmax())
    assert align_pair(token, others, method).links_BST[0, 0, best]
    assert align_pair(others, token, method).links_BST[0, best, 0]
    assert align_pair(token, -others, method).links_BST[0, 0, 0]


def test_settle_one_token_sides_leaves_longer_sides_alone():
    plan_BST = torch.rand(2, 3, 3)
    assert torch.equal(settle_one_token_sides(plan_BST, plan_BST + 1, *whole(2, 3, 3)), plan_BST)


def assert_same_alignment(actual, expected):
    assert torch.equal(actual.links_BST, expected.links_BST)
    assert torch.equal(actual.probabilities_BST, expected.probabilities_BST)


@pytest.mark.parametrize("method", METHODS)
def test_align_computes_products_in_float32(method):
    """Of half types, and under autocast."""
    _, (x_BSH, y_BTH, *masks) = ragged(torch.Generator().manual_seed(0), pairs=6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        under_autocast = align(x_BSH, y_BTH, *masks, method)
    assert_same_alignment(under_autocast, align(x_BSH, y_BTH, *masks, method))
    for dtype in (torch.bfloat16, torch.float16):
        x_half_BSH = x_BSH.to(dtype)
        y_half_BTH = y_BTH.to(dtype)
        expected = align(x_half_BSH.float(), y_half_BTH.float(), *masks, method)
        assert_same_alignment(align(x_half_BSH, y_half_BTH, *masks, method), expected)
