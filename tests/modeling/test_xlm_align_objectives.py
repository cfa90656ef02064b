"""Denoising word alignment against plain loops of the paper's equations: labels, queries, loss, gradient."""

import pytest
import torch

from crosslingual_zoo.modeling.denoising_word_alignment import DRAWS, labeled_queries
from crosslingual_zoo.modeling.masked_lm import ForPreTraining
from crosslingual_zoo.modeling.modeling_xlm_align import XlmAlignForPreTraining
from crosslingual_zoo.modeling.optimal_transport import align
from tests.modeling.tiny import LAYOUTS, batch_of, cells, gradients, made, pair_row, whole


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


def cell_values(values_ST, links_ST):
    """{(source word, target word): value} of the cells that are linked."""
    return {(i, j): values_ST[i, j].item() for i, j in links_ST.nonzero().tolist()}


def links_of(labels, pair):
    """{(source word, target word): probability} of one pair, words counted from 0."""
    return cell_values(labels.plan_PST[pair], labels.links_PST[pair])


def dwa_by_hand(model, fields):
    """Eqs. 11 to 15 of one pair, query by query: {position of the query: cross-entropy}."""
    batch = batch_of([fields], "padded right")
    links = links_of(model.self_label(batch), 0)
    states = model.roberta(batch["input_ids"], output_hidden_states=True).hidden_states[model.config.pointer_layer][0]
    sides = words_of(fields)
    losses = {}
    for side, other in ((0, 1), (1, 0)):
        for word, position in enumerate(sides[side]):
            partners = {link[other]: probability for link, probability in links.items() if link[side] == word}
            if fields["labels"][position] == -100 or not partners:
                continue
            query = model.q_linear(states[position])
            scores = model.k_linear(states[sides[other]]) @ query / 32**0.5
            losses[position] = -scores.log_softmax(0)[max(partners, key=partners.get)]
    return losses


OPTIONS = [  # fields of the configuration, and the options of `align` that they are (Tables 4 and 6)
    *({"alignment_layer": layer} for layer in range(4)),
    {"sinkhorn_first": "columns"},
    {"filtering_iterations": 1},
    {"filtering_iterations": 0},
    {"labeling_rule": "ot_words", "alignment_layer": 2},
]


def labels_by_hand(model, row):
    """{(source word, target word): score} of a pair: `align` of the states of its unmasked text."""
    config = model.config
    method = config.labeling_rule if config.filtering_iterations else "ot"
    options = {} if method == "ot_words" else {"first": config.sinkhorn_first}
    if method == "ot_itermax":
        options["filter_iterations"] = config.filtering_iterations
    elif method == "ot":
        options["symmetrization"] = "union"
    ids = torch.where(row["labels"] == -100, row["input_ids"], row["labels"])
    states_TH = model.roberta(ids[None], output_hidden_states=True).hidden_states[config.labeling_layer][0]
    source, target = words_of(row)
    links = align(states_TH[source][None], states_TH[target][None], *whole(len(source), len(target)), method, **options)
    values_BST = links.probabilities_BST if method == "ot_words" else links.scores_BST
    return cell_values(values_BST[0], links.links_BST[0])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("fields", OPTIONS)
def test_self_label_links_the_states_of_its_layer_before_masking(fields, layout):
    model = xlm_align(**fields)
    computed = []
    hooks = [layer.register_forward_hook(lambda *_: computed.append(1)) for layer in model.roberta.encoder.layer]
    labels = model.self_label(batch_of(PAIRS, layout))
    for hook in hooks:
        hook.remove()
    assert len(computed) == model.config.labeling_layer  # layers above are not computed
    assert labels.links_PST.any()
    for pair, row in enumerate(PAIRS):
        expected = labels_by_hand(model, row)
        assert links_of(labels, pair) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dwa_layer", [None, 1])
def test_dwa_loss_is_that_of_a_plain_loop(layout, dwa_layer):
    """Also: the queries are exactly the masked positions that have a link (Eq. 14), in both directions."""
    model = xlm_align(dwa_layer=dwa_layer)
    output = model(tlm=batch_of(PAIRS, layout), objective_weights={"tlm": 0.0})
    losses_of_pairs = [dwa_by_hand(model, fields) for fields in PAIRS]
    expected = torch.stack([loss for losses in losses_of_pairs for loss in losses.values()])
    predictions = sum(int((fields["labels"] != -100).sum()) for fields in PAIRS)
    assert len(expected) < predictions  # some have no link
    losses = output.token_losses["dwa"]
    torch.testing.assert_close(losses.sort().values, expected.detach().sort().values, atol=1e-5, rtol=0)
    torch.testing.assert_close(output.loss_sum, expected.sum(), atol=1e-4, rtol=0)
    counts = torch.bincount(output.batch_rows["dwa"], minlength=len(PAIRS)).tolist()
    assert counts == [len(losses) for losses in losses_of_pairs]
    [gradient] = torch.autograd.grad(output.loss_sum, model.q_linear.weight, retain_graph=True)
    [gradient_by_hand] = torch.autograd.grad(expected.sum(), model.q_linear.weight)
    torch.testing.assert_close(gradient, gradient_by_hand, atol=1e-4, rtol=1e-4)


def queries_by_hand(positions, fields, links):
    """Table 7: the links of which the source word is a query, and those of which the target word is."""
    queries = (set(), set())
    sides = words_of(fields)
    for link in links:
        link_positions = [sides[side][link[side]] for side in (0, 1)]
        draws = fields["draws"][link_positions]
        is_masked = fields["labels"][link_positions] != -100
        if positions == "masked":
            is_query = is_masked
        elif positions == "unmasked":
            is_query = ~is_masked & (draws < 0.15 * DRAWS)
        else:  # one of the two, and only one
            is_query = draws == draws.max()
            assert is_query.sum() == 1
        for side in is_query.nonzero().flatten():
            queries[side].add(link)
    return queries


@pytest.mark.parametrize("positions", ["masked", "unmasked", "all_aligned"])
def test_labeled_queries_of_each_choice(positions):
    """From only the fields of the batch."""
    model = xlm_align(query_positions=positions)
    examples = [pair_row(seed, (12, 11), (1, 5, 9, 15, 20)) for seed in range(8)]
    batch = batch_of(examples, "padded right")
    labels = model.self_label(batch)
    from_source, from_target = labeled_queries(labels, batch, model.config)
    queried_links = 0
    for pair, fields in enumerate(examples):
        of_source, of_target = queries_by_hand(positions, fields, links_of(labels, pair))
        assert cells(from_source[pair] >= 0) == of_source
        assert cells(from_target[pair] >= 0) == of_target
        queried_links += len(of_source | of_target)
    assert queried_links > 3
    if positions == "all_aligned":
        assert queried_links == labels.links_PST.sum()


def test_dwa_reads_the_forward_of_tlm_and_labeling_leaves_no_gradient(monkeypatch):
    """The gradient with labels from outside is bit for bit that with the model's own."""
    model = xlm_align(hidden_dropout_prob=0.1).train()
    batch = batch_of(PAIRS, "padded right")
    modes = []
    model.roberta.embeddings.register_forward_hook(lambda module, *_: modes.append(module.training))
    torch.manual_seed(3)
    loss = model(tlm=batch).loss_sum
    learned = gradients(model, loss)
    assert modes == [False, True]  # labeled without dropout, then learned from with it
    assert all(module.training for module in model.modules())

    labels = model.self_label(batch)
    assert not labels.plan_PST.requires_grad
    monkeypatch.setattr(model, "self_label", lambda batch: labels)
    torch.manual_seed(3)
    loss_of_same_labels = model(tlm=batch).loss_sum
    assert torch.equal(loss_of_same_labels, loss)
    torch.testing.assert_close(gradients(model, loss_of_same_labels), learned, rtol=0, atol=0)


def test_xlm_align_losses_add_up_and_weights_choose():
    model = xlm_align()
    batches = {"mlm": batch_of([pair_row(7, (5, 1), (2, 3))], "padded right"), "tlm": batch_of(PAIRS, "padded right")}
    whole_output = model(**batches, objective_weights={"dwa": 0.5})
    sums = {name: losses.sum() for name, losses in whole_output.token_losses.items()}
    assert list(sums) == ["mlm", "tlm", "dwa"]
    torch.testing.assert_close(whole_output.loss_sum, sums["mlm"] + sums["tlm"] + 0.5 * sums["dwa"])

    expected = ForPreTraining.forward(model, objective_weights={"dwa": 0.0}, **batches).loss_sum
    of_weight_0 = model(**batches, objective_weights={"dwa": 0.0})
    without_queries = xlm_align(query_positions="none")(**batches)
    for output in (of_weight_0, without_queries):
        assert output.token_losses.keys() == {"mlm", "tlm"}
        assert torch.equal(output.loss_sum, expected)

    alone = model(tlm=batches["tlm"], objective_weights={"tlm": 0.0})
    assert alone.token_losses.keys() == {"dwa"}
    torch.testing.assert_close(alone.token_losses["dwa"], whole_output.token_losses["dwa"])


def test_dwa_loss_of_a_batch_without_a_query():
    """Nothing masked has a link; a side without words; the loss is 0, and so is its gradient."""
    model = xlm_align()
    nothing_masked = [fields | {"labels": torch.full_like(fields["labels"], -100)} for fields in PAIRS]
    one_sided = [pair_row(8, (0, 4), (3,)), pair_row(9, (0, 2), (3,))]
    for examples in (nothing_masked, one_sided):
        model.zero_grad()
        output = model(tlm=batch_of(examples, "padded right"), objective_weights={"tlm": 0.0})
        output.loss_sum.backward()
        assert output.loss_sum == 0
        assert len(output.token_losses["dwa"]) == 0
        assert not model.q_linear.weight.grad.any()


def test_dwa_in_bfloat16_learns_the_same(monkeypatch):
    """Gradients, not losses: a pass without gradient under autocast can leave casts that let none through. Labels are
    those of float32, because half the precision may give other labels."""
    model = xlm_align()
    batch = batch_of(PAIRS, "padded right")
    in_float32 = gradients(model, model(tlm=batch).loss_sum)
    labels = model.self_label(batch)
    self_label = model.self_label

    def label_in_vain(batch):
        self_label(batch)
        return labels

    monkeypatch.setattr(model, "self_label", label_in_vain)
    with torch.autocast("cpu", torch.bfloat16):
        in_bfloat16 = gradients(model, model(tlm=batch).loss_sum)
    for name, gradient in in_float32.items():
        assert (in_bfloat16[name] - gradient).norm() <= 0.2 * gradient.norm() + 1e-2, name


@pytest.mark.parametrize("dwa_layer", [0, 2])
def test_pointer_start_identity_scores_by_cosines(dwa_layer, tmp_path):
    """Also where the checkpoint has no pointer network, and only there."""
    xlm_align().roberta.save_pretrained(tmp_path / "encoder")
    settings = {"pointer_start": "identity", "dwa_layer": dwa_layer}
    model = XlmAlignForPreTraining.from_pretrained(tmp_path / "encoder", **settings).eval()
    states_TH = model.roberta(torch.arange(4, 34)[None], output_hidden_states=True).hidden_states[dwa_layer][0]
    queries_TH = model.q_linear(states_TH)
    assert torch.allclose(queries_TH, model.k_linear(states_TH))
    scales_TH = queries_TH / states_TH
    assert torch.allclose(scales_TH, scales_TH[:1, :1])
    assert queries_TH.square().mean().item() == pytest.approx(1, abs=0.1)

    torch.nn.init.constant_(model.q_linear.weight, 0.5)
    model.save_pretrained(tmp_path / "trained")
    loaded = XlmAlignForPreTraining.from_pretrained(tmp_path / "trained")
    assert torch.equal(loaded.q_linear.weight, model.q_linear.weight)
