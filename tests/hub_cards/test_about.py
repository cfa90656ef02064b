"""What is known of each model type: claims that the published tables bear out, links, limits."""

import pytest

from crosslingual_zoo.finetuning import published
from crosslingual_zoo.hub_cards.sections import about


@pytest.mark.parametrize("model_type", ["ernie_m", "metaxlm", "veco", "xlm_align"])
def test_about_claims_are_borne_out_by_the_papers_tables(model_type):
    claims = about(model_type)["claims"]
    assert claims
    for claim in claims:
        table, ours = published.find(model_type, claim["table"], claim["ours"])
        _, theirs = published.find(model_type, claim["table"], claim["theirs"])
        metric, sign = claim["metric"], {"higher": 1, "lower": -1}[claim.get("better", "higher")]
        if metric in ours.get("average", {}):
            pairs = [(ours["average"][metric], theirs["average"][metric])]
        else:
            scores = published.row_scores(table, theirs, metric)
            pairs = [(score, scores[name]) for name, score in published.row_scores(table, ours, metric).items()]
        assert pairs and all(sign * mine > sign * other for mine, other in pairs)
