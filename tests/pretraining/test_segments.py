"""Adjacent segments: their text, that x and y are neighbors, and that no held-out text is trained on."""

import numpy as np
import pytest
import torch

from pretraining.data.batches import Feed
from pretraining.data.corpora import load_corpora
from pretraining.data.examples import encode_texts
from zoo_core.masking import IGNORED

SEGMENTS = {"ca_mlm_segments": {"batch_size": 8, "max_length": 12}}
EN_DE = {"source_language": "en", "target_language": "de"}


def words(start, count):
    return " ".join(f"word{number}" for number in range(start, start + count))


def single_token(tokenizer):
    word = next(w for w in ("▁the", "▁a", "▁I") if w in tokenizer.get_vocab()).removeprefix("▁")
    assert len(encode_texts([word], tokenizer)[0]) == 1
    return word


@pytest.fixture
def corpus_of(files, recipe_of, sample_tokenizer):
    def make(rows, max_length=12, **fields):
        table = {"language": "en", "path": files.jsonl("a.jsonl", rows), "document_column": "doc"} | fields
        recipe = recipe_of({"ca_mlm_segments": {"batch_size": 8, "max_length": max_length}}, monolingual=[table])
        (corpus,) = load_corpora(recipe, sample_tokenizer)
        return corpus

    return make


def examples_of(corpus):
    return [corpus.fetch(0, index) for index in range(len(corpus.lengths))]


def test_neighbors_within_one_document(corpus_of, sample_tokenizer):
    texts = ["The train is late.", "Rain.", "", "Anna bakes bread.", "It is warm.", "She waits.", "A new text."]
    rows = [{"text": text, "doc": doc} for text, doc in zip(texts, ["a", "a", "a", "a", "b", "b", "c"], strict=True)]
    corpus = corpus_of(rows, max_length=64)
    tokens = [ids for ids in encode_texts(texts, sample_tokenizer)]
    found = [[side.tolist() for side in example.sides] for example in examples_of(corpus)]
    half = len(tokens[6]) // 2
    wanted = [[tokens[0], tokens[1]], [tokens[1], tokens[3]], [tokens[4], tokens[5]]]  # over the empty row, not over b
    assert found == [*wanted, [tokens[6][:half], tokens[6][half:]]]  # alone in its document: its halves
    assert corpus.lengths.tolist() == [sum(map(len, sides)) for sides in found]
    assert len({e.example_id for e in examples_of(corpus)}) == 4
    assert [corpus.counts[name] for name in ("rows", "empty", "alone", "halved")] == [7, 1, 0, 1]


def test_long_rows_are_windowed_and_keep_every_token(corpus_of, sample_tokenizer):
    long = words(0, 30)
    corpus = corpus_of([{"text": long, "doc": "a"}, {"text": "Rain.", "doc": "a"}])
    ids = encode_texts([long, "Rain."], sample_tokenizer)
    segments = [examples_of(corpus)[0].sides[0], *(e.sides[1] for e in examples_of(corpus))]
    assert np.concatenate(segments).tolist() == ids[0] + ids[1]
    assert max(map(len, segments)) <= 10  # max_length 12 and two special tokens
    lengths = [len(segment) for segment in segments[:-1]]
    assert max(lengths) - min(lengths) <= 1  # equal windows: no short rest
    assert corpus.counts["windowed"] == 1


def test_tokens_without_a_partner_are_dropped_and_counted(corpus_of, sample_tokenizer):
    single = single_token(sample_tokenizer)
    corpus = corpus_of([{"text": single, "doc": "a"}, {"text": "It is warm.", "doc": "b"}])
    assert (corpus.counts["alone"], corpus.counts["halved"], len(corpus.lengths)) == (1, 1, 1)
    with pytest.raises(ValueError, match="Corpus en"):
        corpus_of([{"text": single, "doc": "a"}])


def test_a_pattern_names_the_document(corpus_of):
    rows = [{"text": words(10 * n, 3), "doc": name} for n, name in enumerate(["01001", "01002", "02001", "02002"])]
    assert len(corpus_of(rows, max_length=64).lengths) == 4  # every row a document of its own: halves
    corpus = corpus_of(rows, max_length=64, document_pattern="^.{2}")
    assert len(corpus.lengths) == 2  # the rows of a document


def test_held_out_rows_are_in_no_training_segment(files, recipe_of, sample_tokenizer):
    rows = [{"id": str(n), "text": words(7 * n, 7), "doc": "a"} for n in range(60)]
    table = {"language": "en", "path": files.jsonl("a.jsonl", rows), "document_column": "doc"}
    held_out = {"held_out_fraction": 0.2, "max_examples": 100}
    (corpus,) = load_corpora(recipe_of(SEGMENTS, monolingual=[table], evaluation=held_out), sample_tokenizer)
    tokens = {tuple(ids): n for n, ids in enumerate(encode_texts([row["text"] for row in rows], sample_tokenizer))}
    evaluated = {tokens[tuple(np.concatenate(e.sides).tolist())] for e in corpus.with_form(512, True).held_out}
    assert 4 < len(evaluated) < 25
    rows_of = [{int(row) for row in corpus.rows_of[[first, first + 1]]} for first in corpus.first_segments]
    assert not evaluated & set().union(*rows_of)
    assert all(max(pair) - min(pair) <= 1 for pair in rows_of)  # no pair reaches over a row that is held out


@pytest.mark.parametrize("stream", [False, True], ids=["stored", "streamed"])
def test_pairs_of_ca_mlm_and_tlm_are_the_same_with_other_masks(stream, files, sample, recipe_of, sample_tokenizer):
    objectives = {
        "tlm": {"batch_size": 6, "max_length": 100, "mask_probability": 0.25},
        "ca_mlm_pairs": {"batch_size": 6, "max_length": 50, "mask_probability": 0.25},
    }
    bitext = [EN_DE | {"source": sample("en"), "target": sample("de"), "join_on": "id"}]
    if stream:
        rows = [{"id": str(n), "en": words(3 * n, 3 + n % 4), "de": words(1000 + 3 * n, 4)} for n in range(40)]
        table = {"path": files.jsonl("a.jsonl", rows), "streaming": True}
        bitext = [EN_DE | {"table": table, "size": 40}]
    recipe = recipe_of(objectives, bitext=bitext, shuffle_buffer=20)
    corpora = load_corpora(recipe, sample_tokenizer)
    same_masks = []
    for batch in Feed.of(recipe, corpora, sample_tokenizer).training(recipe.phases[0], 0):
        tlm, ca_mlm = batch["tlm"], batch["ca_mlm_pairs"]
        assert set(ca_mlm) == {"x", "y", "languages", "examples"} and ca_mlm["languages"] == ["en-de"] * 6

        def rows(fields, wanted="labels"):
            gold = torch.where(fields["labels"] == IGNORED, fields["input_ids"], fields["labels"])
            shown = gold if wanted == "labels" else fields["input_ids"]
            return [row[mask.bool()].tolist() for row, mask in zip(shown, fields["attention_mask"], strict=True)]

        for what in ("labels", "input_ids"):
            apart = [x + [2] + y[1:] for x, y in zip(rows(ca_mlm["x"], what), rows(ca_mlm["y"], what), strict=True)]
            same = sorted(apart) == sorted(rows(tlm, what))
            if what == "labels":
                assert same
            else:
                same_masks.append(same)
    assert not all(same_masks)


def test_sides_apart_are_cut_each_to_its_length(files, recipe_of, sample_tokenizer):
    rows = [{"en": words(0, 30), "de": "kurz"}, {"en": "one", "de": words(0, 40)}]
    objectives = {"ca_mlm_pairs": {"batch_size": 2, "max_length": 16}}
    bitext = [EN_DE | {"table": {"path": files.jsonl("a.jsonl", rows)}}]
    (corpus,) = load_corpora(recipe_of(objectives, bitext=bitext), sample_tokenizer)
    short = encode_texts(["kurz", "one"], sample_tokenizer)
    lengths = [[len(side) for side in example.sides] for example in examples_of(corpus)]
    assert lengths == [[14, len(short[0])], [len(short[1]), 14]]
    assert corpus.counts["cut"] == 2


def test_a_stream_gives_halves_and_passes_over_single_tokens(files, recipe_of, sample_tokenizer):
    single = single_token(sample_tokenizer)
    texts = [words(5 * n, 5 + n) if n % 3 else single for n in range(30)]
    table = {"language": "en", "path": files.jsonl("a.jsonl", [{"id": str(n), "text": t} for n, t in enumerate(texts)])}
    table |= {"streaming": True, "size": 30}
    recipe = recipe_of(SEGMENTS, monolingual=[table], shuffle_buffer=5)
    (corpus,) = load_corpora(recipe, sample_tokenizer)
    known = {tuple(ids) for ids in encode_texts(texts, sample_tokenizer)}
    cursor = corpus.cursor("a")
    examples = [cursor.fetch(position) for position in range(40)]  # into the second epoch
    for example in examples:
        assert [1 <= len(side) <= 10 for side in example.sides] == [True, True]
        joined = np.concatenate(example.sides).tolist()
        assert any(joined == list(ids[i : i + len(joined)]) for ids in known for i in range(len(ids)))
    # what a position holds does not depend on which others were asked for: processes and resumed runs agree
    again = corpus.cursor("a")
    for position in (3, 4, 11, 29, 31, 39):
        found = again.fetch(position)
        assert [side.tolist() for side in found.sides] == [side.tolist() for side in examples[position].sides]


def test_a_row_of_a_stream_without_a_token_is_passed_over(files, recipe_of, sample_tokenizer):
    odd = "\u200b"
    assert not odd.isspace() and encode_texts([odd], sample_tokenizer) == [[]]
    rows = [{"en": f"The train {n} is late.", "de": odd if n == 7 else "Der Zug."} for n in range(20)]
    table = {"path": files.jsonl("a.jsonl", rows), "streaming": True}
    recipe = recipe_of(
        {"ca_mlm_pairs": {"batch_size": 20, "max_length": 16}}, bitext=[EN_DE | {"table": table, "size": 20}]
    )
    corpora = load_corpora(recipe, sample_tokenizer)
    for batch in Feed.of(recipe, corpora, sample_tokenizer).training(recipe.phases[0], 0):
        for side in "xy":
            assert (batch["ca_mlm_pairs"][side]["attention_mask"].sum(1) > 2).all()
