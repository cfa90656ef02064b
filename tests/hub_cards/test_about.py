"""What is known of each model type: claims that the published tables bear out, links, limits."""

import pytest

from crosslingual_zoo.finetuning import published
from crosslingual_zoo.hub_cards.sections import about


@pytest.mark.parametrize("model_type", ["ernie_m", "metaxlm", "veco", "xlm_align"])
def test_about_claims_are_borne_out_by_the_papers_tables(model_type):
    claims = about(model_type)["claims"]
    assert claims
    for claim in claims:
        metric = claim["metric"]
        table, ours = published.find(model_type, claim["table"], claim["ours"])
        _, theirs = published.find(model_type, claim["table"], claim["theirs"])
        if metric in ours.get("average", {}):
            our_scores = {"average": ours["average"][metric]}
            their_scores = {"average": theirs["average"][metric]}
        else:
            our_scores = published.row_scores(table, ours, metric)
            their_scores = published.row_scores(table, theirs, metric)
        assert our_scores
        for language, score in our_scores.items():
            if claim.get("better") == "lower":
                assert score < their_scores[language]
            else:
                assert score > their_scores[language]
