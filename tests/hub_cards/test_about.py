"""What is known of each model type: claims that the published tables bear out, links, limits."""

import pytest

from finetuning import published
from hub_cards.record import Record
from hub_cards.sections import about, limits

TYPES = ["ernie_m", "metaxlm", "veco", "xlm_align"]


@pytest.mark.parametrize("model_type", TYPES)
def test_about_claims_are_borne_out_by_the_papers_tables(model_type):
    claims = about(model_type)["claims"]
    assert claims
    for claim in claims:
        table, ours = published.find(model_type, claim["table"], claim["ours"])
        _, theirs = published.find(model_type, claim["table"], claim["theirs"])
        metric, better = claim["metric"], claim.get("better", "higher")
        if metric in ours.average:
            pairs = [(ours.average[metric], theirs.average[metric])]
        else:
            scores = table.scores(theirs, metric)
            pairs = [(score, scores[name]) for name, score in table.scores(ours, metric).items()]
        assert better in ("higher", "lower")
        assert pairs and all(mine > other if better == "higher" else mine < other for mine, other in pairs)


@pytest.mark.parametrize("model_type", TYPES)
def test_about_texts_are_of_the_paper(model_type):
    texts, paper = about(model_type), published.load(model_type)
    assert (texts["name"].partition(" (")[0], texts["title"]) == (paper.paper.partition(" (")[0], paper.title)
    assert texts["arxiv"] == paper.url.rpartition("/")[2] and f"eprint = {{{texts['arxiv']}}}" in texts["citation"]


def test_about_limits_of_length_data_and_head():
    config = {"model_type": "veco", "max_position_embeddings": 258, "pad_token_id": 1}
    found = limits(Record(config, 0, "a"))
    assert any("256 tokens" in limit for limit in found) and "{" not in "".join(found)
    for from_zero in ({"positions_from_zero": True}, {"backbone_config": {"model_type": "modernbert"}}):
        assert any("258 tokens" in limit for limit in limits(Record(config | from_zero, 0, "a")))
    tuned = limits(Record(config | {"architectures": ["VecoForTokenClassification"]}, 0, "a"))
    assert set(found) - set(tuned) == set(about("veco")["limits_of_base"].values())
