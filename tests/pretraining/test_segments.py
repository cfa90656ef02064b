"""Adjacent segments: their text, that x and y are neighbors, and that no held-out text is trained on."""

import pytest

from crosslingual_zoo.pretraining.data.examples import encode_texts


def words(start, count):
    return " ".join(f"word{number}" for number in range(start, start + count))


@pytest.fixture
def corpus_of(files, corpora_of):
    """`corpus_of(rows, max_length=12, evaluation={}, **fields)`: the segments of a table with a column `doc`."""

    def make(rows, max_length=12, evaluation=None, **fields):
        table = {"language": "en", "path": files.jsonl("a.jsonl", rows), "document_column": "doc"} | fields
        objectives = {"ca_mlm_segments": {"batch_size": 8, "max_length": max_length}}
        (corpus,) = corpora_of(objectives, monolingual=[table], evaluation=evaluation or {})
        return corpus

    return make


def test_segments_are_neighbors_within_one_document(corpus_of, sample_tokenizer, examples_of):
    texts = ["The train is late.", "Rain.", "", "Anna bakes bread.", "It is warm.", "She waits.", "A new text."]
    corpus = corpus_of([{"text": text, "doc": doc} for text, doc in zip(texts, "aaaabbc", strict=True)], max_length=64)
    train, rain, _, bread, warm, waits, alone = encode_texts(texts, sample_tokenizer)
    half = len(alone) // 2
    assert (
        examples_of(corpus)
        == [
            [train, rain],
            [rain, bread],  # over the empty row
            [warm, waits],
            [alone[:half], alone[half:]],  # alone in its document: its halves
        ]
    )
    assert corpus.training.lengths.tolist() == [len(x) + len(y) for x, y in examples_of(corpus)]
    assert [corpus.counts[name] for name in ("rows", "empty", "alone", "halved")] == [7, 1, 0, 1]


def test_segments_of_long_rows_keep_every_token(corpus_of, sample_tokenizer, examples_of):
    long = words(0, 30)
    corpus = corpus_of([{"text": long, "doc": "a"}, {"text": "Rain.", "doc": "a"}])
    examples = examples_of(corpus)
    segments = [examples[0][0], *(second for _, second in examples)]
    assert sum(segments, []) == sum(encode_texts([long, "Rain."], sample_tokenizer), [])
    assert max(map(len, segments)) <= 10  # max_length 12 and two special tokens
    lengths = [len(segment) for segment in segments[:-1]]
    assert max(lengths) - min(lengths) <= 1  # equal windows: no short rest
    assert corpus.counts["windowed"] == 1


def test_segments_drop_and_count_tokens_without_a_partner(corpus_of, sample_tokenizer):
    assert len(encode_texts(["the"], sample_tokenizer)[0]) == 1
    corpus = corpus_of([{"text": "the", "doc": "a"}, {"text": "It is warm.", "doc": "b"}])
    assert corpus.counts["alone"] == 1
    assert corpus.counts["halved"] == 1
    assert len(corpus.training.lengths) == 1


def test_segments_of_documents_that_a_pattern_names(corpus_of):
    names = ["01001", "01002", "02001", "02002"]
    rows = [{"text": words(10 * number, 3), "doc": name} for number, name in enumerate(names)]
    assert len(corpus_of(rows, max_length=64).training) == 4  # every row a document of its own: halves
    corpus = corpus_of(rows, max_length=64, document_pattern="^.{2}")
    assert len(corpus.training.lengths) == 2  # the rows of a document


def test_segments_hold_no_held_out_rows(corpus_of, sample_tokenizer, held_out_of):
    rows = [{"id": str(number), "text": words(7 * number, 7), "doc": "a"} for number in range(60)]
    corpus = corpus_of(rows, evaluation={"held_out_fraction": 0.2, "max_examples": 100})
    texts = encode_texts([row["text"] for row in rows], sample_tokenizer)
    held_out = {texts.index(x + y) for x, y in held_out_of(corpus.with_form(512, True))}
    assert 4 < len(held_out) < 25
    for first, second in corpus.training.rows.T.tolist():
        assert not {first, second} & held_out
        assert 0 <= second - first <= 1  # no pair reaches over a row that is held out
