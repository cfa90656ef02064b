"""Adjacent segments: their text, that x and y are neighbors, and that no held-out text is trained on."""

import pytest

from crosslingual_zoo.pretraining.data.batches import load_corpora
from crosslingual_zoo.pretraining.data.examples import encode_texts

SEGMENTS = {"ca_mlm_segments": {"batch_size": 8, "max_length": 12}}


def words(start, count):
    return " ".join(f"word{number}" for number in range(start, start + count))


@pytest.fixture
def corpus_of(files, recipe_of, sample_tokenizer):
    def make(rows, max_length=12, **fields):
        table = {"language": "en", "path": files.jsonl("a.jsonl", rows), "document_column": "doc"} | fields
        recipe = recipe_of({"ca_mlm_segments": {"batch_size": 8, "max_length": max_length}}, monolingual=[table])
        (corpus,) = load_corpora(recipe, sample_tokenizer)
        return corpus

    return make


def test_segments_are_neighbors_within_one_document(corpus_of, sample_tokenizer, examples_of):
    texts = ["The train is late.", "Rain.", "", "Anna bakes bread.", "It is warm.", "She waits.", "A new text."]
    rows = [{"text": text, "doc": doc} for text, doc in zip(texts, ["a", "a", "a", "a", "b", "b", "c"], strict=True)]
    corpus = corpus_of(rows, max_length=64)
    tokens = [ids for ids in encode_texts(texts, sample_tokenizer)]
    found = examples_of(corpus)
    half = len(tokens[6]) // 2
    wanted = [[tokens[0], tokens[1]], [tokens[1], tokens[3]], [tokens[4], tokens[5]]]  # over the empty row, not over b
    assert found == [*wanted, [tokens[6][:half], tokens[6][half:]]]  # alone in its document: its halves
    assert corpus.training.lengths.tolist() == [sum(map(len, sides)) for sides in found]
    assert [corpus.counts[name] for name in ("rows", "empty", "alone", "halved")] == [7, 1, 0, 1]


def test_segments_of_long_rows_keep_every_token(corpus_of, sample_tokenizer, examples_of):
    long = words(0, 30)
    corpus = corpus_of([{"text": long, "doc": "a"}, {"text": "Rain.", "doc": "a"}])
    ids = encode_texts([long, "Rain."], sample_tokenizer)
    segments = [examples_of(corpus)[0][0], *(second for _, second in examples_of(corpus))]
    assert sum(segments, []) == ids[0] + ids[1]
    assert max(map(len, segments)) <= 10  # max_length 12 and two special tokens
    lengths = [len(segment) for segment in segments[:-1]]
    assert max(lengths) - min(lengths) <= 1  # equal windows: no short rest
    assert corpus.counts["windowed"] == 1


def test_segments_drop_and_count_tokens_without_a_partner(corpus_of, sample_tokenizer):
    assert len(encode_texts(["the"], sample_tokenizer)[0]) == 1
    corpus = corpus_of([{"text": "the", "doc": "a"}, {"text": "It is warm.", "doc": "b"}])
    assert (corpus.counts["alone"], corpus.counts["halved"], len(corpus.training.lengths)) == (1, 1, 1)


def test_segments_of_documents_that_a_pattern_names(corpus_of):
    rows = [{"text": words(10 * n, 3), "doc": name} for n, name in enumerate(["01001", "01002", "02001", "02002"])]
    assert len(corpus_of(rows, max_length=64).training) == 4  # every row a document of its own: halves
    corpus = corpus_of(rows, max_length=64, document_pattern="^.{2}")
    assert len(corpus.training.lengths) == 2  # the rows of a document


def test_segments_hold_no_held_out_rows(files, recipe_of, sample_tokenizer, held_out_of):
    rows = [{"id": str(n), "text": words(7 * n, 7), "doc": "a"} for n in range(60)]
    table = {"language": "en", "path": files.jsonl("a.jsonl", rows), "document_column": "doc"}
    held_out = {"held_out_fraction": 0.2, "max_examples": 100}
    (corpus,) = load_corpora(recipe_of(SEGMENTS, monolingual=[table], evaluation=held_out), sample_tokenizer)
    tokens = {tuple(ids): n for n, ids in enumerate(encode_texts([row["text"] for row in rows], sample_tokenizer))}
    evaluated = {tokens[tuple(x + y)] for x, y in held_out_of(corpus.with_form(512, True))}
    assert 4 < len(evaluated) < 25
    rows_of = [set(rows) for rows in corpus.training.rows.T.tolist()]
    assert not evaluated & set().union(*rows_of)
    assert all(max(pair) - min(pair) <= 1 for pair in rows_of)  # no pair reaches over a row that is held out
