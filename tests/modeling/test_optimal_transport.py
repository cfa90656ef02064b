"""Matching against plain loops written from the papers, and against POT's and SimAlign's own functions."""

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
from tests.modeling.tiny import cells, ragged, whole

SHAPES = [(1, 1), (1, 7), (6, 1), (2, 9), (3, 3), (8, 5), (12, 40)]


def one(function, matrix, *args, **kwargs):
    """`function` of one unpadded matrix (numpy or torch), as a matrix."""
    matrix = torch.as_tensor(matrix)
    return function(matrix[None], *whole(*matrix.shape), *args, **kwargs)[0]


def random_matrix(generator, kind="dots"):
    """Of any shape; `dots` has both signs, `ties` few different values, `cosine` lies in [0, 1]."""
    shape = tuple(generator.integers(1, 15, 2))
    if generator.random() < 0.15:
        shape = (int(generator.integers(1, 3)), int(generator.integers(1, 12)))[:: generator.choice([-1, 1])]
    if kind == "ties":
        return generator.integers(-3, 4, shape).astype(np.float32) / 4
    values = generator.standard_normal(shape)
    return (5 * values if kind == "dots" else 1 / (1 + np.exp(-values))).astype(generator.choice(["f4", "f8"]))


def plain_argmaxes(scores):
    """Eq. 7: forward and backward links, of cells that have something."""
    rows, columns = range(scores.shape[0]), range(scores.shape[1])
    forward = {(i, int(scores[i].argmax())) for i in rows}
    backward = {(int(scores[:, j].argmax()), j) for j in columns}
    return ({cell for cell in side if scores[cell] > 0} for side in (forward, backward))


def plain_ot_itermax(plan, iterations, discount):
    """Eq. 7-9, cell by cell."""
    plan, links = plan.copy(), set()
    for _ in range(iterations):
        forward, backward = plain_argmaxes(plan)
        links |= forward & backward
        linked_rows, linked_columns = {i for i, _ in links}, {j for _, j in links}
        for i, j in np.ndindex(*plan.shape):
            if (i, j) in links:
                plan[i, j] = 0
            elif i in linked_rows or j in linked_columns:
                plan[i, j] *= discount
    return links


def plain_released(plan, iterations, discount):
    """The paper's code: a cell whose row and column both have a link is out, others share Eq. 9's discount."""
    forward, backward = plain_argmaxes(plan)
    links = forward & backward
    for _ in range(iterations - 1):
        rows, columns = {i for i, _ in links}, {j for _, j in links}
        if min(plan.shape) <= 2 or len(rows) == plan.shape[0] or len(columns) == plan.shape[1]:
            break
        scores = plan.astype(np.float64)
        for i, j in np.ndindex(*plan.shape):
            if i in rows and j in columns:
                scores[i, j] = 0
            elif i in rows or j in columns:
                scores[i, j] *= discount
        forward, backward = plain_argmaxes(scores)
        links |= {(i, j) for i, j in forward & backward if i not in rows or j not in columns}
    return links


def plain_softmax(similarity, threshold):
    """awesome-align: both directions above the threshold."""
    forward, backward = (np.exp(similarity - similarity.max(axis, keepdims=True)) for axis in (1, 0))
    forward, backward = forward / forward.sum(1, keepdims=True), backward / backward.sum(0, keepdims=True)
    return {tuple(cell) for cell in np.argwhere((forward > threshold) & (backward > threshold)).tolist()}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("regularization", [0.05, 0.3, 1, 3])
@pytest.mark.parametrize("first", ["rows", "columns"])
def test_sinkhorn_is_pot_s(first, regularization, shape):
    """POT scales columns first, to any marginals, here 1 of each row and column; its K = exp(-cost / reg)."""
    similarity = np.random.default_rng(0).standard_normal(shape) * 5
    cost, marginals = -np.log(np.maximum(1e-3, similarity)), [np.ones(size) for size in shape]
    for iterations in (1, 2, 5, 7):
        settings = dict(numItermax=iterations, stopThr=0, warn=False)
        if first == "columns":
            expected = ot.sinkhorn(*marginals, cost, regularization, **settings)
        else:
            expected = ot.sinkhorn(*marginals[::-1], cost.T, regularization, **settings).T
        plan = one(sinkhorn, similarity, iterations, regularization, 1e-3, first)
        torch.testing.assert_close(plan, torch.from_numpy(expected), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("regularization", [1e-30, 1e-3, 1, 1e3, 1e30])
def test_sinkhorn_has_no_nan(dtype, regularization):
    torch.manual_seed(0)
    for shape in [*SHAPES, (0, 3), (3, 0), (0, 0)]:
        for scale, shift in ((1, 0), (1, -9), (700, 0), (700, 400), (3e4, 0), (1e-7, 0), (0, 0)):
            similarity = (torch.randn(shape) * scale + shift).to(dtype)
            for epsilon in (1e-6, 1e-30):
                for first in ("rows", "columns"):
                    plan = one(sinkhorn, similarity, 3, regularization, epsilon, first)
                    assert plan.shape == shape and plan.dtype == torch.float64
                    assert plan.isfinite().all() and (plan >= 0).all()
                    assert one(itermax_links, plan).shape == shape
    for value in (torch.inf, -torch.inf, torch.nan):  # vectors that overflowed
        similarity = torch.rand(4, 5).to(dtype)
        similarity[1, 2] = similarity[3] = value
        assert one(sinkhorn, similarity).isfinite().all()
    for empty in (0, 1):  # the second pair has no token on this side
        masks = whole(2, 3, 4)
        masks[empty][1] = False
        plan_BST = sinkhorn(60 * torch.rand(2, 3, 4).to(dtype), *masks, regularization=regularization)
        assert plan_BST.isfinite().all() and plan_BST[0].any() and not plan_BST[1].any()


@pytest.mark.parametrize("kind", ["dots", "cosine", "ties"])
@pytest.mark.parametrize("symmetrization", ["forward", "reverse", "intersection", "union"])
def test_argmax_links_are_numpy_s(kind, symmetrization):
    generator = np.random.default_rng(0)
    for _ in range(50):
        scores = random_matrix(generator, kind)
        forward = {(i, int(j)) for i, j in enumerate(scores.argmax(1))}
        reverse = {(int(i), j) for j, i in enumerate(scores.argmax(0))}
        expected = {
            "forward": forward,
            "reverse": reverse,
            "intersection": forward & reverse,
            "union": forward | reverse,
        }
        assert cells(one(argmax_links, scores, symmetrization)) == expected[symmetrization]


@pytest.mark.parametrize(
    ("forward", "reverse", "links"),
    [
        # (0, 0) and (1, 1) are in both. (2, 1) and (1, 2) touch (1, 1). (3, 3) does not touch (2, 1) or (1, 2) before
        # final-and, which takes forward's (4, 5), then reverse's (5, 4), and not (4, 3) or (5, 5): 3, 4, 5 are linked
        (
            [(0, 0), (1, 1), (2, 1), (3, 3), (4, 5)],
            [(0, 0), (1, 1), (1, 2), (4, 3), (5, 4), (5, 5)],
            {(0, 0), (1, 1), (2, 1), (1, 2), (3, 3), (4, 5), (5, 4)},
        ),
        # final-and takes (2, 2), whose words are both free; of (4, 2) and (2, 4) one alone still is
        ([(0, 0), (2, 2)], [(0, 0), (4, 2), (2, 4)], {(0, 0), (2, 2)}),
        # growth takes a neighbor of which the source, or the target, alone is free
        ([(1, 1), (2, 1)], [(1, 1)], {(1, 1), (2, 1)}),
        ([(1, 1)], [(1, 1), (1, 2)], {(1, 1), (1, 2)}),
        # and none of which both are linked: (1, 0) touches (0, 0) and (1, 1)
        ([(0, 0), (1, 1)], [(0, 0), (1, 1), (1, 0)], {(0, 0), (1, 1)}),
    ],
)
def test_grow_diag_final_and_takes_neighbors_then_what_is_alone(forward, reverse, links):
    """fast_align's `atools -c grow-diag-final-and` gives these links; nltk's function of this name is no oracle: it
    asks whether a word is `in aligned`, whose keys are "e" and "f"."""
    directions = torch.zeros(2, 2, 6, 6, dtype=torch.bool)  # and pairs, of which the first has no links
    for direction, of in zip(directions, (forward, reverse), strict=True):
        direction[1][tuple(torch.tensor(of).T)] = True
    found = grow_diag_final_and(*directions)
    assert not found[0].any() and cells(found[1]) == links


@pytest.mark.parametrize("kind", ["dots", "cosine", "ties"])
def test_itermax_links_are_simalign_s(kind):
    generator = np.random.default_rng(1)
    for _ in range(400):
        scores = random_matrix(generator, kind)
        iterations = int(generator.integers(1, 5))
        expected = SentenceAligner.iter_max(scores, iterations) > 0
        assert cells(one(itermax_links, scores, iterations)) == cells(expected), (scores, iterations)


def test_align_mutual_and_itermax_are_simalign_s():
    generator = torch.Generator().manual_seed(0)
    for shape in SHAPES * 5:
        x, y = (torch.randn(size, HIDDEN, generator=generator) for size in shape)
        similarity = SentenceAligner.get_similarity(x.numpy(), y.numpy())
        forward, backward = SentenceAligner.get_alignment_matrix(similarity)
        vectors = x[None], y[None], *whole(*shape)
        assert cells(align(*vectors, "mutual").links_BST[0]) == cells(forward * backward > 0)
        assert cells(align(*vectors, "itermax").links_BST[0]) == cells(SentenceAligner.iter_max(similarity) > 0)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("discount", [0.5, 0.9, 1])
def test_align_ot_itermax_is_a_plain_loop(rule, discount):
    generator = np.random.default_rng(2)
    differ = 0
    for number in range(150):
        similarity = random_matrix(generator, "cosine" if number % 3 else "dots").astype(np.float64)
        plan = one(sinkhorn, similarity).numpy()
        if number % 5 == 0:
            plan = np.round(plan, 1)  # ties, and cells without anything
        for iterations in (1, 2, 4):
            expected = {
                "released": plain_released(plan, iterations, discount),
                "eq9_printed": plain_ot_itermax(plan, iterations, discount),
            }
            differ += expected["eq9_printed"] != expected["released"]
            assert cells(one(itermax_links, plan, iterations, discount, rule)) == expected[rule], plan
    assert differ > 20, "the two rules hardly differed"


@pytest.mark.parametrize("value", [torch.nan, -torch.inf])
def test_itermax_links_never_prefer_what_is_no_number(value):
    """Cells of which row and column have a link are multiplied by 0, and 0 times infinity is NaN, the highest."""
    scores = torch.full((4, 4), 0.1)
    scores[0, 0], scores[1, 1], scores[2, 3], scores[3, 3] = 0.9, 0.8, 0.7, 0.6
    scores[0, 2], scores[1, 2] = 0.4, 0.3
    # of the second iteration: (0, 2) is the best of row 0 and of column 2, (3, 3) of row 3 and of column 3
    expected = {(0, 0), (1, 1), (2, 3), (0, 2), (3, 3)}
    spoilt = scores.clone()
    spoilt[0, 1] = spoilt[1, 0] = spoilt[0, 3] = value
    for matrix in (scores, spoilt):
        assert cells(one(itermax_links, matrix)) == expected


@pytest.mark.parametrize("threshold", [0, 1e-3, 0.1])
def test_softmax_links_are_a_plain_loop(threshold):
    generator = np.random.default_rng(3)
    for _ in range(100):
        similarity = random_matrix(generator, "dots").astype(np.float64)
        assert cells(one(softmax_links, similarity, threshold)) == plain_softmax(similarity, threshold)


# ---- ot_words


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
    generator = torch.Generator().manual_seed(4)
    alone, batch = ragged(generator)
    together = align(*batch, method, **options)
    source_mask_BS, target_mask_BT = batch[2:]
    cells_BST = source_mask_BS[:, :, None] & target_mask_BT[:, None]
    assert not together.links_BST[~cells_BST].any(), "padding was linked"
    assert not together.probabilities_BST[~cells_BST].any()
    assert not together.probabilities_BST.isnan().any()
    for row, (x, y) in enumerate(alone):
        single = align(x[None], y[None], *whole(len(x), len(y)), method, **options)
        inside = torch.meshgrid(source_mask_BS[row].nonzero()[:, 0], target_mask_BT[row].nonzero()[:, 0], indexing="ij")
        assert torch.equal(together.links_BST[row][inside], single.links_BST[0]), row
        torch.testing.assert_close(together.probabilities_BST[row][inside], single.probabilities_BST[0])
        # vectors drawn at random are hardly ever likely partners
        assert single.links_BST.any() or not len(x) or not len(y) or method == "ot_words"
    assert together.links_BST.any()


@pytest.mark.parametrize("method", ["ot", "ot_itermax"])
def test_align_the_dot_products_decide_about_a_single_token(method):
    """All cells of its plan are equal."""
    generator = torch.Generator().manual_seed(0)
    for size in (1, 2, 9):
        x_BSH, y_BTH = torch.rand(1, 1, HIDDEN, generator=generator), torch.rand(1, size, HIDDEN, generator=generator)
        best = int((x_BSH[0] @ y_BTH[0].T).argmax())
        assert align(x_BSH, y_BTH, *whole(1, size), method).links_BST[0, 0, best]
        assert align(y_BTH, x_BSH, *whole(size, 1), method).links_BST[0, best, 0]
        assert align(x_BSH, -y_BTH, *whole(1, size), method).links_BST[0, 0, 0]
    plan_BST = torch.rand(2, 3, 3)
    assert torch.equal(settle_one_token_sides(plan_BST, plan_BST + 1, *whole(2, 3, 3)), plan_BST)


@pytest.mark.parametrize("method", METHODS)
def test_align_computes_products_in_float32(method):
    """Of half types, and under autocast."""
    _, (x_BSH, y_BTH, *masks) = ragged(torch.Generator().manual_seed(0), pairs=6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        given = align(x_BSH, y_BTH, *masks, method)
    assert all(map(torch.equal, given[:2], align(x_BSH, y_BTH, *masks, method)[:2]))
    for dtype in (torch.bfloat16, torch.float16):
        x_BSH, y_BTH = x_BSH.to(dtype), y_BTH.to(dtype)
        given = align(x_BSH, y_BTH, *masks, method)
        assert all(map(torch.equal, given[:2], align(x_BSH.float(), y_BTH.float(), *masks, method)[:2]))
