"""What is known of each model type: claims that the published tables bear out, links, limits, strict files."""

import re
import shutil

import pytest

from hub_cards import about as module
from hub_cards.about import About, about, model_types, read_texts
from modeling.configuration_veco import VecoConfig
from zoo_core import published

TYPES = ["ernie_m", "metaxlm", "veco", "xlm_align"]
HUB_LINK = re.compile(r"https://huggingface\.co/(papers/\d{4}\.\d{5}|[A-Za-z0-9-]+/[\w.-]+)")


def config_of(model_type, **fields):
    return VecoConfig(max_position_embeddings=258).to_dict() | {"model_type": model_type} | fields


@pytest.fixture
def texts(tmp_path, monkeypatch):
    """A copy of the files, to spoil: texts(old, new) changes veco.yaml."""
    folder = tmp_path / "about"
    shutil.copytree(module.FOLDER, folder)
    monkeypatch.setattr(module, "FOLDER", folder)
    read_texts.cache_clear()

    def change(old, new):
        path = folder / "veco.yaml"
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new, 1), encoding="utf-8")

    yield change
    read_texts.cache_clear()


def test_there_are_texts_for_all_models():
    assert model_types() == TYPES


@pytest.mark.parametrize("model_type", TYPES)
def test_every_claim_is_borne_out_by_the_papers_table(model_type):
    texts = read_texts(model_type)
    assert texts.claims
    for claim in texts.claims:
        table, ours = published.find(model_type, claim.table, claim.ours)
        _, theirs = published.find(model_type, claim.table, claim.theirs)
        if claim.metric in ours.average:
            pairs = [(ours.average[claim.metric], theirs.average[claim.metric])]
        else:
            scores = table.scores(theirs, claim.metric)
            pairs = [(score, scores[name]) for name, score in table.scores(ours, claim.metric).items()]
        assert pairs and all(mine > other if claim.better == "higher" else mine < other for mine, other in pairs)


@pytest.mark.parametrize("model_type", TYPES)
def test_what_a_card_says_of_a_model(model_type):
    found = about(config_of(model_type))
    paper = published.load(model_type)
    assert (found.name.partition(" (")[0], found.title) == (paper.paper.partition(" (")[0], paper.title)
    assert found.url.rpartition("/")[2] == paper.url.rpartition("/")[2]
    assert f"eprint = {{{found.url.rpartition('/')[2]}}}" in found.citation
    assert found.citation.count("{") == found.citation.count("}")
    assert found.title.replace("ERNIE-M", "{ERNIE-M}").replace("VECO", "{VECO}") in found.citation
    assert 2 <= found.summary.count(". ") + 1 <= 3
    for claim, text in zip(read_texts(model_type).claims, found.claims, strict=True):
        assert text.endswith(f" ({claim.table})")
    assert len(found.take_when) >= 2 and len(found.rather) == 4
    everything = "\n".join([found.summary, found.url, *found.claims, *found.take_when, *found.rather, *found.limits])
    assert "BAAI/bge-m3" in everything and "jhu-clsp/mmBERT-base" in everything
    assert all(HUB_LINK.fullmatch(link) for link in re.findall(r"https?://[^\s)]+", everything))
    # 258 positions begin behind the padding's, number 1; no other figures than years, names and numbers of tables
    assert any("at most 256 tokens" in limit for limit in found.limits)
    assert "{" not in everything and "Bible" not in everything


def test_text_of_one_kind_is_a_limit():
    table = {"path": "local/bible", "config": "en"}
    corpora = [{"tables": [table, table]}, {"tables": [{"path": "wikimedia/wikipedia"}]}]
    assert about(config_of("veco"), {"corpora": corpora}).limits[0].startswith("Part of its training text is the Bible")
    assert about(config_of("veco"), {"corpora": corpora[:1]}).limits[0].startswith("All of its training text")
    assert about(config_of("veco"), {"corpora": corpora[1:]}) == about(config_of("veco"))


def test_nothing_is_said_of_other_models():
    assert about({"model_type": "xlm-roberta"}) == about({}) == About()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("summary:", "sumary:", r"in .*veco\.yaml: unknown field sumary; .*Did you mean 'summary'"),
        ('arxiv: "2010.16046"', "arxiv: 2010.16046", "arxiv is 2010.16046 .*It must be text"),
        ('title: "VECO: ', 'about: "VECO: ', "unknown field about"),
        ("theirs: XLM-R}", "theirs: XLM}", "'XLM' is no row of veco"),
        ("table: Table 3", "table: Table 33", "'Table 33' is no table of veco"),
        ("metric: bleu", "measure: bleu", "unknown field claims.1.measure"),
    ],
)
def test_files_are_read_strictly(texts, old, new, message):
    texts(old, new)
    with pytest.raises(ValueError, match=message):
        about(config_of("veco"))


def test_a_missing_text_is_an_error(texts):
    texts("name: VECO (ACL 2021)\n", "")
    with pytest.raises(ValueError, match="name"):
        about(config_of("veco"))
