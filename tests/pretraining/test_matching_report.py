"""The report of vocabulary matching, its figures counted by hand, and the command that prints it."""

import json

import numpy as np
import pytest
import torch
from transformers import AutoModelForMaskedLM, BertConfig, BertForMaskedLM

from pretraining.data.corpora import CorpusReader
from pretraining.recipe import Dictionary
from pretraining.start.matching_report import report, to_text
from pretraining.start.vocabulary_matching import match_vocabularies
from pretraining.tools.match_vocabularies import main


@pytest.fixture
def matched(tokenizer_of, files):
    """(matching, old, new): ids 4 to 11 of the new vocabulary are the tokens below."""
    old = tokenizer_of("wordpiece", ["rain", "the", "die", "##s", ",", "12"])
    new = tokenizer_of("unigram", ["▁Regen", "▁die", "▁The", "s", ",", "▁12", "上", "▁жар"])
    path = files.lines("de-en.txt", ["regen\train", "die\tthe", "x", "", "y"])
    return match_vocabularies(old, new, dictionaries=[Dictionary("de", path)]), old, new


def test_rows_by_route_script_and_language(matched):
    counts = np.zeros(13, dtype=np.int64)
    counts[[4, 6, 10, 11]] = [3, 2, 1, 4]
    found = report(*matched, {"de": counts, "sw": np.zeros(13, dtype=np.int64), "fr": None})
    assert found["old_tokens"] == 11 and found["overruled"] == 1  # the token die
    assert found["rows"] == {"special": 5, "dictionary": 2, "exact": 3, "normalized": 1, "random": 2}
    assert found["by_script"] == {
        "special and added": {"special": 5},
        "Latin": {"dictionary": 2, "exact": 1, "normalized": 1},
        "bytes, digits, signs": {"exact": 2},
        "Han": {"random": 1},
        "Cyrillic": {"random": 1},
    }
    assert found["tokens"] == {"de": {"dictionary": 1, "normalized": 1, "random": 2}, "sw": {}}
    assert found["text"] == {"de": {"dictionary": 3, "normalized": 2, "random": 5}, "sw": {}}
    assert found["not_counted"] == ["fr"]
    (dictionary,) = found["dictionaries"]
    assert dictionary["skipped"] == {"one word alone": 2, "blank line": 1} and dictionary["lines"] == 5
    assert found["examples"]["dictionary"][0] == {"token": "▁Regen", "from": ["rain"]}
    assert found["examples"]["normalized"] == [{"token": "▁The", "from": ["the"]}]
    assert [entry["token"] for entry in found["examples"]["random"]] == ["上", "▁жар"]
    lines = [line.split() for line in to_text(found).splitlines()]
    assert ["all", "13", "84.6%", "38.5%", "15.4%", "23.1%", "7.7%", "15.4%"] in lines
    assert ["de", "10", "50.0%", "30.0%", "20.0%", "50.0%"] in lines and ["sw", "0", *["0.0%"] * 4] in lines


def test_tokens_are_counted_by_language_each_text_once(recipe_of, files, tokenizer_of):
    tokenizer = tokenizer_of("unigram", ["▁a", "▁b", "▁c"])
    english = files.jsonl("en.jsonl", [{"id": "1", "text": "a a b"}, {"id": "2", "text": "c"}])
    german = files.jsonl("de.jsonl", [{"id": "1", "text": "b b"}, {"id": "2", "text": "c a"}])
    recipe = recipe_of(
        monolingual=[{"language": "en", "path": english}],
        bitext=[
            {
                **{"source_language": "en", "target_language": "de", "join_on": "id"},
                **{"source": {"path": english}, "target": {"path": german}},
            }
        ],
    )
    counts = CorpusReader.of(recipe).token_counts(tokenizer)
    assert {language: of.tolist() for language, of in counts.items()} == {
        "en": [0, 0, 0, 0, 2, 1, 1, 0],
        "de": [0, 0, 0, 0, 1, 2, 1, 0],
    }


def test_streams_are_named_and_not_opened(recipe_of, files, tokenizer_of):
    tokenizer = tokenizer_of("unigram", ["▁a"])
    german = files.jsonl("de.jsonl", [{"id": "1", "text": "a a"}])
    # of the languages of the pairs, German has text that is kept
    streamed = {"path": german, "streaming": True}
    recipe = recipe_of(
        monolingual=[{"language": "sw", "size": 2, **streamed}, {"language": "de", "path": german}],
        bitext=[dict(source_language="de", target_language="fr", size=2, source=streamed, target=streamed)],
    )
    counts = CorpusReader.of(recipe).token_counts(tokenizer)
    assert set(counts) == {"sw", "de", "fr"}
    assert counts["de"].tolist() == [0, 0, 0, 0, 2, 0] and counts["sw"] is counts["fr"] is None
    for table in (recipe.monolingual[0], recipe.bitext[0].source, recipe.bitext[0].target):
        table.path = "no/such/file.jsonl"
    assert CorpusReader.of(recipe).token_counts(tokenizer).keys() == counts.keys()
    recipe.bitext[0].target.streaming = False
    with pytest.raises(ValueError, match="streaming"):
        CorpusReader.of(recipe).token_counts(tokenizer)


def test_the_command_reads_the_corpora_of_a_recipe_and_writes_the_start(
    tokenizer_of, sample_tokenizer, sample_tokenizer_dir, sample_corpus_dir, tmp_path, files
):
    checkpoint, tokenizer = tmp_path / "bert", tokenizer_of("wordpiece", ["rain", "bread", "the", "##s"])
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    old = BertForMaskedLM(BertConfig(vocab_size=len(tokenizer), max_position_embeddings=40, **sizes))
    old.save_pretrained(checkpoint)
    tokenizer.save_pretrained(checkpoint)
    recipe = {
        "output_dir": "unused",
        "tokenizer": str(sample_tokenizer_dir),
        "model": {"type": "metaxlm", "meta_pretrained": {"path": str(checkpoint)}},
        "monolingual": [{"language": "en", "path": str(sample_corpus_dir), "config": "en"}],
    }
    config, output = files.lines("recipe.yaml", [json.dumps(recipe)]), tmp_path / "out"
    main(["--config", config, "--output", str(output)])
    found = json.loads((output / "vocabulary_matching.json").read_text(encoding="utf-8"))
    assert found["text"]["en"]["exact"] > 0
    model = AutoModelForMaskedLM.from_pretrained(output / "model", trust_remote_code=True)
    number = sample_tokenizer.convert_tokens_to_ids("▁rain")
    assert torch.equal(model.get_input_embeddings().weight[number], old.get_input_embeddings().weight[5])
    for arguments in (["--config", config, "--output", str(output)], [f"tokenizer={sample_tokenizer_dir}"]):
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        assert stop.value.code == 2
