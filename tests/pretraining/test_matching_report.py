"""The report of vocabulary matching, its figures counted by hand, and the command that prints it."""

import json

import numpy as np
import pytest

from pretraining.recipe import Dictionary, MetaPretrained
from pretraining.start.matching_report import recipe_token_counts, report, to_text, write_report
from pretraining.start.vocabulary_matching import match_vocabularies
from pretraining.tools.match_vocabularies import main


@pytest.fixture
def matched(tokenizer_of, files):
    """(matching, old, new): ids 4 to 11 of the new vocabulary are the tokens below."""
    old = tokenizer_of("wordpiece", ["rain", "the", "die", "##s", ",", "12"])
    new = tokenizer_of("unigram", ["▁Regen", "▁die", "▁The", "s", ",", "▁12", "上", "▁жар"])
    path = files.lines("de-en.txt", ["regen\train", "die\tthe", "x", "", "y"])
    start = MetaPretrained(path="unused", dictionaries=[Dictionary("de", path)])
    return match_vocabularies(old, new, start), old, new


def test_rows_by_route_script_and_dictionary(matched, files):
    found = report(*matched)
    assert found["old_tokens"] == 11
    by_route = {"special": 5, "dictionary": 2, "exact": 3, "normalized": 1, "random": 2}
    assert found["rows"] == {"all": 13, "filled": 11, "share": 11 / 13, "by_route": by_route}
    assert {script: (rows["all"], rows["filled"]) for script, rows in found["by_script"].items()} == {
        "special and added": (5, 5),
        "Latin": (4, 4),
        "punctuation and symbols": (1, 1),
        "digits": (1, 1),
        "Han": (1, 0),
        "Cyrillic": (1, 0),
    }
    assert found["by_dictionary_language"] == {"de": 2}
    (dictionary,) = found["dictionaries"]
    assert dictionary["skipped"] == {"one word alone": 2, "blank line": 1} and dictionary["lines"] == 5
    assert found["overruled"]["rows"] == 1 and found["overruled"]["examples"][0]["token"] == "▁die"
    assert found["examples"]["dictionary"][0] == {
        "token": "▁Regen",
        "from": ["rain"],
        "language": "de",
        "translations": ["rain"],
    }
    assert found["examples"]["normalized"] == [{"token": "▁The", "from": ["the"]}]
    assert [entry["token"] for entry in found["left_random"]["all"]] == ["上", "▁жар"]
    assert found["coverage"] == {} and found["not_counted"] == []
    assert "streamed" not in to_text(found)


def test_coverage_counts_tokens_and_running_text(matched):
    counts = np.zeros(13, dtype=np.int64)
    counts[[4, 6, 10, 11]] = [3, 2, 1, 4]
    found = report(*matched, {"de": counts, "sw": np.zeros(13, dtype=np.int64)})
    assert found["coverage"]["de"]["tokens"] == {
        "all": 4,
        "filled": 2,
        "share": 0.5,
        "by_route": {"dictionary": 1, "normalized": 1, "random": 2},
    }
    text = {"all": 10, "filled": 5, "share": 0.5, "by_route": {"dictionary": 3, "normalized": 2, "random": 5}}
    assert found["coverage"]["de"]["text"] == text
    assert found["coverage"]["sw"]["text"] == {"all": 0, "filled": 0, "share": 0.0, "by_route": {}}
    expected = [{"token": "▁жар", "count": 4}, {"token": "上", "count": 1}]
    assert found["left_random"] == {"de": expected}


def test_it_is_written_as_json_and_as_text(matched, tmp_path):
    found = report(*matched, {"de": np.arange(13)})
    write_report(found, tmp_path)
    assert json.loads((tmp_path / "vocabulary_matching.json").read_text(encoding="utf-8")) == found
    text = (tmp_path / "vocabulary_matching.txt").read_text(encoding="utf-8")
    assert text == to_text(found)
    for part in ("(84.6%)", "▁Regen <- rain (de)", "2 one word alone", "Cyrillic", "▁жар 11"):
        assert part in " ".join(text.split())


def test_missing_special_tokens_and_byte_tokens_are_shown(tokenizer_of):
    old, new = tokenizer_of("wordpiece", ["a"], mask=None), tokenizer_of("byte_level", ["ĠÃ©", "Ã", "Ġa"])
    found = report(match_vocabularies(old, new, MetaPretrained(path="unused")), old, new)
    assert found["specials_without_counterpart"] == ["<mask>"] and found["by_script"]["bytes"]["all"] == 1
    assert [entry["token"] for entry in found["left_random"]["all"]] == ["Ġé", "Ã", "<mask>"]
    assert "no counterpart of: <mask>" in to_text(found)


def test_tokens_are_counted_by_language_each_text_once(recipe_of, files, tokenizer_of):
    tokenizer = tokenizer_of("unigram", ["▁a", "▁b", "▁c"])
    english = files.jsonl("en.jsonl", [{"id": "1", "text": "a a b"}, {"id": "2", "text": "c"}])
    german = files.jsonl("de.jsonl", [{"id": "1", "text": "b b"}, {"id": "2", "text": "c a"}])
    recipe = recipe_of(
        monolingual=[{"language": "en", "path": english}],
        bitext=[
            {
                "source_language": "en",
                "target_language": "de",
                "source": {"path": english},
                "target": {"path": german},
                "join_on": "id",
            }
        ],
    )
    counts = recipe_token_counts(recipe, tokenizer)
    assert {language: of.tolist() for language, of in counts.items()} == {
        "en": [0, 0, 0, 0, 2, 1, 1, 0],
        "de": [0, 0, 0, 0, 1, 2, 1, 0],
    }


def test_streams_are_named_and_not_opened(recipe_of, files, tokenizer_of, matched):
    tokenizer = tokenizer_of("unigram", ["▁a"])
    german = files.jsonl("de.jsonl", [{"id": "1", "text": "a a"}])
    # of the languages of the pairs, German has text that is kept
    streamed = {"path": german, "streaming": True}
    recipe = recipe_of(
        monolingual=[
            {"language": "sw", "size": 2, **streamed},
            {"language": "de", "path": german},
        ],
        bitext=[
            {
                "source_language": "de",
                "target_language": "fr",
                "size": 2,
                "source": streamed,
                "target": streamed,
            }
        ],
    )
    counts = recipe_token_counts(recipe, tokenizer)
    assert set(counts) == {"sw", "de", "fr"}
    assert counts["de"].tolist() == [0, 0, 0, 0, 2, 0] and counts["sw"] is counts["fr"] is None
    for table in (recipe.monolingual[0], recipe.bitext[0].source, recipe.bitext[0].target):
        table.path = "no/such/file.jsonl"
    assert recipe_token_counts(recipe, tokenizer).keys() == counts.keys()
    recipe.bitext[0].target.streaming = False
    with pytest.raises(ValueError, match="streaming"):
        recipe_token_counts(recipe, tokenizer)
    found = report(*matched, {"sw": None, "de": np.arange(13), "fr": None})
    assert found["not_counted"] == ["sw", "fr"] and list(found["coverage"]) == list(found["left_random"]) == ["de"]
    assert "the texts of sw, fr" in to_text(found)
    assert report(*matched, {"sw": None})["left_random"] == report(*matched)["left_random"]


@pytest.fixture
def checkpoint(tokenizer_of, tmp_path):
    """Folder of a BERT with its tokenizer."""
    import torch
    from transformers import BertConfig, BertForMaskedLM

    tokenizer = tokenizer_of("wordpiece", ["rain", "bread", "the", "##s"])
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = BertConfig(vocab_size=len(tokenizer), max_position_embeddings=40, **sizes)
    BertForMaskedLM(config).save_pretrained(tmp_path / "bert")
    tokenizer.save_pretrained(tmp_path / "bert")
    return tmp_path / "bert"


def test_the_command_needs_no_recipe(checkpoint, sample_tokenizer_dir, sample_corpus_dir, capsys):
    dictionary = sample_corpus_dir / "dictionaries" / "en-de.txt"
    main(
        [
            f"model.meta_pretrained.path={checkpoint}",
            f"tokenizer={sample_tokenizer_dir}",
            f"model.meta_pretrained.dictionaries=[{{language: de, path: {dictionary}}}]",
        ]
    )
    shown = capsys.readouterr().out
    assert "rows of the new vocabulary, 9 of the checkpoint's" in shown and "▁Regen <- rain (de)" in shown


def test_the_command_reads_the_corpora_of_a_recipe_and_writes_the_start(
    checkpoint, sample_tokenizer, sample_tokenizer_dir, sample_corpus_dir, tmp_path, files, capsys
):
    import torch
    from transformers import AutoModelForMaskedLM, BertForMaskedLM

    recipe = {
        "output_dir": "unused",
        "tokenizer": str(sample_tokenizer_dir),
        "model": {"type": "metaxlm", "meta_pretrained": {"path": str(checkpoint)}},
        "monolingual": [{"language": "en", "path": str(sample_corpus_dir), "config": "en"}],
    }
    config, output = files.lines("recipe.yaml", [json.dumps(recipe)]), tmp_path / "out"
    main(["--config", config, "--output", str(output)])
    assert "running text" in capsys.readouterr().out
    found = json.loads((output / "vocabulary_matching.json").read_text(encoding="utf-8"))
    assert found["coverage"]["en"]["text"]["by_route"]["exact"] > 0
    model = AutoModelForMaskedLM.from_pretrained(output / "model", trust_remote_code=True)
    old = BertForMaskedLM.from_pretrained(checkpoint)
    number = sample_tokenizer.convert_tokens_to_ids("▁rain")
    assert torch.equal(model.get_input_embeddings().weight[number], old.get_input_embeddings().weight[5])
    with pytest.raises(SystemExit):
        main(["--config", config, "--output", str(output)])
    assert "is there already and not empty" in capsys.readouterr().err


def test_the_command_says_what_is_missing(sample_tokenizer_dir, capsys):
    with pytest.raises(SystemExit) as stop:
        main([f"tokenizer={sample_tokenizer_dir}"])
    assert stop.value.code == 2 and "model.meta_pretrained is empty" in capsys.readouterr().err
