import json
from unittest.mock import MagicMock

import pytest
from huggingface_hub.errors import HTTPError

from pretraining.data.corpora import load_corpora, tokens_of_text, unigram_entropy
from pretraining.data.examples import encode_texts
from pretraining.data.sources import open_sources, row_key, training_texts

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

LINES = [f"sentence number {number}" for number in range(60)]
EN_DE = {"source_language": "en", "target_language": "de"}
TLM = {"tlm": {"batch_size": 8, "max_length": 64}}


def english(path, **fields):
    return [{"language": "en", "path": path, "streaming": True, "size": 500} | fields]


def load_one(recipe, tokenizer):
    (corpus,) = load_corpora(recipe, tokenizer)
    assert corpus.streaming
    return corpus


def ids_of(lines, tokenizer):
    return [tuple(ids) for ids in encode_texts(list(lines), tokenizer)]


def read(corpus, positions, *key):
    cursor = corpus.cursor(*key)
    return [tuple(map(tuple, (side.tolist() for side in cursor.fetch(p).sides))) for p in positions]


@pytest.fixture
def sharded(tmp_path):
    """60 rows in three files, in the Hub's layout, with or without ids."""

    def make(with_ids):
        for shard in range(3):
            rows = [
                {"text": LINES[n]} | ({"id": f"v{n}"} if with_ids else {}) for n in range(20 * shard, 20 * shard + 20)
            ]
            (tmp_path / "hub").mkdir(exist_ok=True)
            file = tmp_path / "hub" / f"train-0000{shard}-of-00003.jsonl"
            file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(tmp_path / "hub")

    return make


def test_the_tokens_of_a_stream_are_not_known(sharded, recipe_of, sample_tokenizer):
    corpus = load_one(recipe_of(monolingual=english(sharded(True))), sample_tokenizer)
    with pytest.raises(ValueError, match="streamed"):
        tokens_of_text([corpus])


def test_an_epoch_visits_every_text_once_and_the_next_in_another_order(files, recipe_of, sample_tokenizer):
    path = files.lines("en.txt", [*LINES[:30], "", "  ", *LINES[30:]])
    corpus = load_one(recipe_of(monolingual=english(path), shuffle_buffer=16), sample_tokenizer)
    assert (corpus.name, corpus.size) == ("en", 500)
    cursor = corpus.cursor(0, "mlm")
    examples = [cursor.fetch(position) for position in range(120)]
    texts = [tuple(example.sides[0].tolist()) for example in examples]
    assert sorted(texts[:60]) == sorted(texts[60:]) == sorted(ids_of(LINES, sample_tokenizer))
    assert texts[:60] != texts[60:] and texts[:60] != ids_of(LINES, sample_tokenizer)
    assert [example.epoch for example in examples] == [0] * 60 + [1] * 60
    # ids belong to rows, not to places in the order
    first, second = (
        {tuple(e.sides[0].tolist()): e.example_id for e in part} for part in (examples[:60], examples[60:])
    )
    assert first == second and len(set(first.values())) == 60
    assert read(corpus, range(10), 1, "mlm") != read(corpus, range(10), 0, "mlm")  # another phase, another order


def test_a_resumed_reader_goes_on_and_a_step_back_starts_anew(files, recipe_of, sample_tokenizer):
    path = files.lines("en.txt", LINES)
    corpus = load_one(recipe_of(monolingual=english(path), shuffle_buffer=16), sample_tokenizer)
    whole = read(corpus, range(150))
    assert read(corpus, range(95, 150)) == whole[95:]
    assert read(corpus, [3, 70, 71, 2]) == [whole[p] for p in (3, 70, 71, 2)]


def test_of_a_long_text_one_window_an_epoch(files, recipe_of, sample_tokenizer):
    long = " ".join(LINES)
    recipe = recipe_of({"mlm": {"batch_size": 8, "max_length": 20}}, monolingual=english(files.lines("en.txt", [long])))
    corpus = load_one(recipe, sample_tokenizer)
    (ids,) = ids_of([long], sample_tokenizer)
    windows = [window for (window,) in read(corpus, range(8))]
    places = [[start for start in range(len(ids)) if ids[start : start + 18] == window] for window in windows]
    assert all(places) and len(set(windows)) > 4
    assert windows == [window for (window,) in read(corpus, range(8))]
    assert len(read(corpus.with_form(12), [0])[0][0]) == 10


@pytest.mark.parametrize("with_ids", [True, False])
def test_held_out_rows_of_a_stream_in_several_files(sharded, recipe_of, sample_tokenizer, with_ids):
    evaluation = {"held_out_fraction": 0.2, "max_examples": 5}
    recipe = recipe_of(monolingual=english(sharded(with_ids)), shuffle_buffer=8, evaluation=evaluation)
    corpus = load_one(recipe, sample_tokenizer)
    held = [n for n in range(60) if row_key(f"v{n}" if with_ids else n) < 0.2 * 2**63]
    assert 5 < len(held) < 25
    held_ids = ids_of([LINES[n] for n in held], sample_tokenizer)
    assert [tuple(example.sides[0].tolist()) for example in corpus.held_out] == held_ids[:5]
    for epoch in range(3):
        size = 60 - len(held)
        seen = [text for (text,) in read(corpus, range(epoch * size, epoch * size + size))]
        assert sorted(seen) == sorted(set(ids_of(LINES, sample_tokenizer)) - set(held_ids))
    assert set(training_texts(open_sources(recipe.named_corpora()), 0.2)) == {
        LINES[n] for n in range(60) if n not in held
    }
    assert unigram_entropy(corpus.held_out) > 0


def pair_recipe(files, recipe_of, target=LINES, **fields):
    sides = {
        side: {"path": files.lines(f"{side}.txt", lines), "streaming": True}
        for side, lines in (("source", LINES), ("target", [line.upper() for line in target]))
    }
    return recipe_of(TLM, bitext=[EN_DE | sides | {"size": 90}], shuffle_buffer=16, **fields)


def test_pairs_of_two_streams(files, recipe_of, sample_tokenizer):
    corpus = load_one(pair_recipe(files, recipe_of), sample_tokenizer)
    assert (corpus.name, corpus.size) == ("en-de", 90)
    wanted = zip(
        ids_of(LINES, sample_tokenizer), ids_of([line.upper() for line in LINES], sample_tokenizer), strict=True
    )
    assert sorted(read(corpus, range(60))) == sorted(wanted)
    short = corpus.with_form(10)
    assert all(len(source) + len(target) <= 6 for source, target in read(short, range(10)))
    assert json.dumps(corpus.facts()).count("fingerprint") == 2


def test_pairs_of_one_stream_and_those_of_lines_are_held_out_alike(files, recipe_of, sample_tokenizer):
    evaluation = {"held_out_fraction": 0.2}
    two = load_one(pair_recipe(files, recipe_of, evaluation=evaluation), sample_tokenizer)
    table = {"path": files.lines("p.tsv", ["en\tde", *(f"{x}\t{x.upper()}" for x in LINES)]), "streaming": True}
    recipe = recipe_of(TLM, bitext=[EN_DE | {"table": table, "size": 90}], evaluation=evaluation)
    one = load_one(recipe, sample_tokenizer)
    sides = [[[side.tolist() for side in example.sides] for example in corpus.held_out] for corpus in (one, two)]
    assert sides[0] == sides[1] and 5 < len(sides[0]) < 25


def test_errors_name_the_corpus(files, recipe_of, sample_tokenizer, monkeypatch):
    unequal = load_one(pair_recipe(files, recipe_of, target=LINES[:-3]), sample_tokenizer)
    with pytest.raises(ValueError, match="en-de .*60 .*57"):
        read(unequal, range(70))
    without = load_one(recipe_of(monolingual=english(files.lines("no.txt", ["", " "]))), sample_tokenizer)
    with pytest.raises(ValueError, match="Corpus en"):
        read(without, [0])
    corpus = load_one(recipe_of(monolingual=english(files.lines("en.txt", LINES))), sample_tokenizer)
    for error in (FileNotFoundError("gone"), HTTPError("gone")):
        rows = MagicMock(side_effect=error)
        monkeypatch.setattr("pretraining.data.streams.plain_rows", rows)
        with pytest.raises(OSError, match="corpus en"):
            read(corpus, [0])
