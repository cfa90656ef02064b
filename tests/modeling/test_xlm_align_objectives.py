"""Denoising word alignment against plain loops of the paper's equations: labels, queries, loss, gradient."""

import pytest
import torch

from crosslingual_zoo.modeling.denoising_word_alignment import DRAWS, labeled_queries
from crosslingual_zoo.modeling.masked_lm import ForPreTraining
from crosslingual_zoo.modeling.modeling_xlm_align import XlmAlignForPreTraining
from crosslingual_zoo.modeling.optimal_transport import align
from tests.modeling.tiny import LAYOUTS, batch_of, gradients, made, pair_row


def xlm_align(**config):
    return made("xlm_align", **config)


PAIRS = [
    pair_row(1, (6, 5), (2, 3, 5, 9, 12)),
    pair_row(2, (4, 7), (1, 4, 8, 9)),
    pair_row(3, (1, 3), (5,)),
    pair_row(4, (9, 8), (1, 2, 3, 4, 5, 12, 14, 15)),
]


def words_of(fields):
    """Positions of the words of either side of a row."""
    is_word = fields["special_tokens_mask"] == 0
    return [(is_word & (fields["segment_ids"] == side)).nonzero().flatten().tolist() for side in (0, 1)]


def links_of(labels, pair):
    """{(source word, target word): probability} of one pair, words counted from 0."""
    return {(i, j): labels.plan_PST[pair, i, j].item() for i, j in labels.links_PST[pair].nonzero().tolist()}


def dwa_by_hand(model, fields):
    """Eqs. 11 to 15 of one pair, query by query: {position of the query: cross-entropy}."""
    batch = batch_of([fields], "padded right")
    links = links_of(model.self_label(batch), 0)
    layer = model.config.pointer_layer
    states = model.roberta(batch["input_ids"], output_hidden_states=True).hidden_states[layer][0]
    sides, losses = words_of(fields), {}
    for own, other in ((0, 1), (1, 0)):
        for word, position in enumerate(sides[own]):
            partners = {pair[other]: probability for pair, probability in links.items() if pair[own] == word}
            if fields["labels"][position] == -100 or not partners:
                continue
            target = max(partners, key=partners.get)
            query = model.q_linear(states[position])
            scores = [query @ model.k_linear(states[place]) / 32**0.5 for place in sides[other]]
            losses[position] = -torch.stack(scores).log_softmax(0)[target]
    return losses


OPTIONS = [  # fields of the configuration, and the options of `align` that they are (Tables 4 and 6)
    *({"alignment_layer": layer} for layer in range(4)),
    {"sinkhorn_first": "columns"},
    {"filtering_iterations": 1},
    {"filtering_iterations": 0},
    {"labeling_rule": "ot_words", "alignment_layer": 2},
]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("fields", OPTIONS)
def test_self_label_links_the_states_of_its_layer_before_masking(fields, layout):
    model = xlm_align(**fields)
    seen = []
    handles = [layer.register_forward_hook(lambda *_: seen.append(1)) for layer in model.roberta.encoder.layer]
    labels = model.self_label(batch_of(PAIRS, layout))
    for handle in handles:
        handle.remove()
    layer, iterations = model.config.labeling_layer, model.config.filtering_iterations
    assert len(seen) == layer  # layers above are not computed
    method = model.config.labeling_rule if iterations else "ot"
    options = {"first": model.config.sinkhorn_first} if method != "ot_words" else {}
    options |= {"ot_itermax": {"filter_iterations": iterations}, "ot": {"symmetrization": "union"}}.get(method, {})
    for pair, row in enumerate(PAIRS):
        ids = torch.where(row["labels"] == -100, row["input_ids"], row["labels"])
        states_TH = model.roberta(ids[None], output_hidden_states=True).hidden_states[layer][0]
        states = [states_TH[words][None] for words in words_of(row)]
        masks = [torch.ones(side.shape[:2], dtype=torch.bool) for side in states]
        found = align(*states, *masks, method, **options)
        values = found.probabilities_BST if method == "ot_words" else found.scores_BST
        expected = {(i, j): values[0, i, j].item() for i, j in found.links_BST[0].nonzero().tolist()}
        assert links_of(labels, pair) == pytest.approx(expected, rel=1e-3)
    assert labels.links_PST.any()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dwa_layer", [None, 1])
def test_dwa_loss_is_that_of_a_plain_loop(layout, dwa_layer):
    """Also: the queries are exactly the masked positions that have a link (Eq. 14), in both directions."""
    model = xlm_align(dwa_layer=dwa_layer)
    output = model(tlm=batch_of(PAIRS, layout), objective_weights={"tlm": 0.0})
    by_hand = [dwa_by_hand(model, fields) for fields in PAIRS]
    expected = [loss for losses in by_hand for loss in losses.values()]
    assert len(expected) < sum(int((fields["labels"] != -100).sum()) for fields in PAIRS)  # some have no link
    found = output.token_losses["dwa"]
    torch.testing.assert_close(found.sort().values, torch.stack(expected).detach().sort().values, atol=1e-5, rtol=0)
    torch.testing.assert_close(output.loss_sum, sum(expected), atol=1e-4, rtol=0)
    counts = torch.bincount(output.batch_rows["dwa"], minlength=len(PAIRS)).tolist()
    assert counts == [len(losses) for losses in by_hand]
    loss_gradients = torch.autograd.grad(output.loss_sum, model.q_linear.weight, retain_graph=True)[0]
    hand_gradients = torch.autograd.grad(sum(expected), model.q_linear.weight)[0]
    torch.testing.assert_close(loss_gradients, hand_gradients, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("positions", ["masked", "unmasked", "all_aligned"])
def test_labeled_queries_of_each_choice(positions):
    """Table 7: which positions are queries, from only the fields of the batch."""
    model = xlm_align(query_positions=positions)
    examples = [pair_row(seed, (12, 11), (1, 5, 9, 15, 20)) for seed in range(8)]
    batch = batch_of(examples, "padded right")
    labels = model.self_label(batch)
    from_source, from_target = (found >= 0 for found in labeled_queries(labels, batch, model.config))
    asked = 0
    for pair, fields in enumerate(examples):
        sides, links = words_of(fields), links_of(labels, pair)
        expected = [set(), set()]
        for i, j in links:
            places_of = (sides[0][i], sides[1][j])
            draws = [fields["draws"][place] for place in places_of]
            if positions == "all_aligned":  # one of the two, and only one
                expected[0 if draws[0] > draws[1] else 1].add((i, j))
                continue
            for side in (0, 1):
                is_masked = fields["labels"][places_of[side]] != -100
                if is_masked if positions == "masked" else (not is_masked and draws[side] < 0.15 * DRAWS):
                    expected[side].add((i, j))
        assert {tuple(link) for link in from_source[pair].nonzero().tolist()} == expected[0]
        assert {tuple(link) for link in from_target[pair].nonzero().tolist()} == expected[1]
        asked += len(expected[0] | expected[1])
    assert asked > 3
    if positions == "all_aligned":
        assert asked == labels.links_PST.sum()


def test_dwa_reads_the_forward_of_tlm_and_labeling_leaves_no_gradient(monkeypatch):
    """The gradient with labels from outside is bit for bit that with the model's own."""
    model, batch = xlm_align(hidden_dropout_prob=0.1).train(), batch_of(PAIRS, "padded right")
    calls = []
    model.roberta.embeddings.register_forward_hook(lambda module, *_: calls.append(module.training))
    torch.manual_seed(3)
    output = model(tlm=batch)
    found = gradients(model, output.loss_sum)
    assert calls == [False, True]  # labeled without dropout, then learned from with it
    assert model.training and all(module.training for module in model.modules())
    labels = model.self_label(batch)
    assert not labels.plan_PST.requires_grad
    monkeypatch.setattr(model, "self_label", lambda batch: labels)
    torch.manual_seed(3)
    again = model(tlm=batch)
    assert torch.equal(again.loss_sum, output.loss_sum)
    for name, gradient in gradients(model, again.loss_sum).items():
        assert torch.equal(gradient, found[name]), name


def test_xlm_align_losses_add_up_and_weights_choose():
    model, tlm = xlm_align(), batch_of(PAIRS, "padded right")
    mlm = batch_of([pair_row(7, (5, 1), (2, 3))], "padded right")
    whole = model(mlm=mlm, tlm=tlm, objective_weights={"dwa": 0.5})
    sums = {name: losses.sum() for name, losses in whole.token_losses.items()}
    assert list(sums) == ["mlm", "tlm", "dwa"]
    torch.testing.assert_close(whole.loss_sum, sums["mlm"] + sums["tlm"] + 0.5 * sums["dwa"])
    baseline = ForPreTraining.forward(model, objective_weights={"dwa": 0.0}, mlm=mlm, tlm=tlm)
    for asks_none in (
        model(mlm=mlm, tlm=tlm, objective_weights={"dwa": 0.0}),
        xlm_align(query_positions="none")(mlm=mlm, tlm=tlm),
    ):
        assert asks_none.token_losses.keys() == {"mlm", "tlm"} and torch.equal(asks_none.loss_sum, baseline.loss_sum)
    alone = model(tlm=tlm, objective_weights={"tlm": 0.0})
    assert alone.token_losses.keys() == {"dwa"}
    torch.testing.assert_close(alone.token_losses["dwa"], whole.token_losses["dwa"])


def test_dwa_loss_of_a_batch_without_a_query():
    """Nothing masked has a link; a side without words; the loss is 0, and so is its gradient."""
    model = xlm_align()
    nothing_masked = [fields | {"labels": torch.full_like(fields["labels"], -100)} for fields in PAIRS]
    one_sided = [pair_row(8, (0, 4), (3,)), pair_row(9, (0, 2), (3,))]
    for examples in (nothing_masked, one_sided):
        model.zero_grad()
        output = model(tlm=batch_of(examples, "padded right"), objective_weights={"tlm": 0.0})
        output.loss_sum.backward()
        assert output.loss_sum == 0 and len(output.token_losses["dwa"]) == 0
        assert not model.q_linear.weight.grad.any()


def test_dwa_in_bfloat16_learns_the_same(monkeypatch):
    """Gradients, not losses: a pass without gradient under autocast can leave casts that let none through. Labels are
    those of float32, because half the precision may give other labels."""
    model, batch = xlm_align(), batch_of(PAIRS, "padded right")
    whole, labels, self_label = gradients(model, model(tlm=batch).loss_sum), model.self_label(batch), model.self_label
    monkeypatch.setattr(model, "self_label", lambda batch: self_label(batch) and labels)
    with torch.autocast("cpu", torch.bfloat16):
        half = gradients(model, model(tlm=batch).loss_sum)
    for name, gradient in whole.items():
        assert (half[name] - gradient).norm() <= 0.2 * gradient.norm() + 1e-2, name


@pytest.mark.parametrize("dwa_layer", [0, 2])
def test_pointer_start_identity_scores_by_cosines(dwa_layer, tmp_path):
    """Also where the checkpoint has no pointer network, and only there."""
    start = xlm_align().roberta
    start.save_pretrained(tmp_path / "encoder")
    settings = {"pointer_start": "identity", "dwa_layer": dwa_layer}
    model = XlmAlignForPreTraining.from_pretrained(tmp_path / "encoder", **settings).eval()
    states = model.roberta(torch.arange(4, 34)[None], output_hidden_states=True).hidden_states[dwa_layer][0]
    queries, keys = model.q_linear(states), model.k_linear(states)
    assert torch.allclose(queries, keys) and torch.allclose(queries / states, (queries / states)[:1, :1])
    assert queries.square().mean().item() == pytest.approx(1, abs=0.1)
    with torch.no_grad():
        model.q_linear.weight.fill_(0.5)
    model.save_pretrained(tmp_path / "trained")
    again = XlmAlignForPreTraining.from_pretrained(tmp_path / "trained")
    assert torch.equal(again.q_linear.weight, model.q_linear.weight)
