import copy
import math
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import torch
from datasets import Dataset

from crosslingual_zoo.pretraining.data import example_index
from crosslingual_zoo.pretraining.data.batches import (
    held_out_batches,
    load_corpora,
    phase_collators,
    phase_corpora,
    training_batches,
)
from crosslingual_zoo.pretraining.data.corpora import Corpus, tokens_of_text, unigram_entropy
from crosslingual_zoo.pretraining.data.examples import cut_pair, encode_texts
from crosslingual_zoo.pretraining.data.store import TokenStore
from tests.pretraining.made_texts import Example, texts_of

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

EN_DE = {"source_language": "en", "target_language": "de"}
BOTH = {"mlm": {"batch_size": 8, "max_length": 32}, "tlm": {"batch_size": 8, "max_length": 64}}


def test_load_corpora_windows_keep_every_token(files, recipe_of, sample_tokenizer, examples_of):
    long = " ".join(f"word {number}" for number in range(60))
    texts = ["Short.", "", long, "  ", None, "Last."]
    path = files.jsonl("a.jsonl", [{"text": text} for text in texts])
    recipe = recipe_of({"mlm": {"batch_size": 8, "max_length": 20}}, monolingual=[{"language": "en", "path": path}])
    (corpus,) = load_corpora(recipe, sample_tokenizer)
    assert (corpus.counts["empty"], corpus.counts["windowed"], corpus.counts["rows"]) == (3, 1, 6)
    examples = [tokens for (tokens,) in examples_of(corpus)]
    assert [len(tokens) for tokens in examples] == corpus.training.lengths.tolist()
    assert max(corpus.training.lengths) == 18  # and two special tokens
    assert sum(examples[1:-1], []) == encode_texts([long], sample_tokenizer)[0]
    assert sorted(tokens_of_text([corpus])) == sorted({token for tokens in examples for token in tokens})
    shorter = corpus.with_form(12)
    assert max(shorter.training.lengths) == 10 and shorter.training.lengths.sum() == corpus.training.lengths.sum()


@pytest.mark.parametrize("objective", ["tlm", "ca_mlm_pairs"])
def test_load_corpora_cuts_long_pairs(objective, files, recipe_of, sample_tokenizer, examples_of):
    """A pair in one row, the longer side first; a row for each side, each to its length."""
    rows = [{"en": "word " * 50, "de": "kurz"}, {"en": "word " * 50, "de": "Wort " * 40}, {"en": "one", "de": "eins"}]
    rows += [{"en": "", "de": "nichts"}, {"en": "nothing", "de": None}]
    bitext = [EN_DE | {"table": {"path": files.jsonl("a.jsonl", rows)}}]
    recipe = recipe_of({objective: {"batch_size": 8, "max_length": 24}}, bitext=bitext)
    (corpus,) = load_corpora(recipe, sample_tokenizer)
    assert (corpus.counts["empty"], corpus.counts["cut"], corpus.size) == (2, 2, 3)
    full = [[len(ids) for ids in encode_texts([row["en"], row["de"]], sample_tokenizer)] for row in rows]
    lengths = [[len(side) for side in sides] for sides in examples_of(corpus)]
    cut = [[20 - full[0][1], full[0][1]], [10, 10]] if objective == "tlm" else [[22, full[0][1]], [22, 22]]
    assert lengths == [*cut, full[2]]
    assert corpus.training.lengths.tolist() == [sum(pair) for pair in lengths]


def test_cut_pair_removes_token_by_token_from_the_longer_side():
    rng = np.random.default_rng(0)
    lengths, room = rng.integers(1, 40, (2, 300)), 25
    kept = cut_pair(lengths, room)
    for (x, y), result in zip(lengths.T.tolist(), kept.T.tolist(), strict=True):
        while x + y > room:
            x, y = (x - 1, y) if x > y else (x, y - 1)
        assert sorted(result) == sorted((x, y))
    assert (kept <= lengths).all()


def test_load_corpora_text_that_spells_a_special_token_gives_none(sample_tokenizer):
    special = set(sample_tokenizer.all_special_ids) - {sample_tokenizer.unk_token_id}
    for ids in encode_texts(["a <mask> b", "<s>", "x</s></s>y <pad>", "", None], sample_tokenizer):
        assert not special & set(ids)
    assert sample_tokenizer.unk_token_id in encode_texts(["a <mask> b"], sample_tokenizer)[0]


def batches_of(recipe, corpora, tokenizer, start=0, processes=1, process=0):
    """All batches of the first phase, of one process, from a given step."""
    return list(training_batches(recipe, 0, corpora, tokenizer, None, start, processes, process))


def rows_of(batches):
    """Sorted [(objective, corpus, example, input ids, labels)] without padding, the same for any batching."""
    found = []
    for name, fields in (item for batch in batches for item in batch.items()):
        lengths = fields["attention_mask"].sum(1).tolist()
        for row, (corpus, example) in enumerate(zip(fields["corpus_names"], fields["examples"].tolist(), strict=True)):
            shown = (fields[key][row, : lengths[row]].tolist() for key in ("input_ids", "labels"))
            found.append((name, corpus, example, *shown))
    return sorted(found)


def tensors_of(fields):
    """The tensors of a sub-batch, in their order."""
    return [value for value in fields.values() if torch.is_tensor(value)]


def full_recipe(sample, recipe_of):
    return recipe_of(
        BOTH,
        monolingual=[{"language": lang, **sample(lang)} for lang in ("en", "de", "zh")],
        bitext=[EN_DE | dict(source=sample("en"), target=sample("de"), join_on="id")],
        evaluation={"held_out_fraction": 0.1},
    )


def test_feed_gives_the_same_step_in_any_batching(sample, recipe_of, sample_tokenizer):
    """In micro-batches, processes, resumed, and with workers; torch's global generator does not change."""
    recipe = full_recipe(sample, recipe_of)
    corpora = load_corpora(recipe, sample_tokenizer)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    whole = batches_of(recipe, corpora, sample_tokenizer)
    assert torch.equal(torch.get_rng_state(), before)
    assert len(whole) == 6 and all(list(batch) == ["mlm", "tlm"] for batch in whole)
    assert all(len(fields["corpus_names"]) == 8 for batch in whole for fields in batch.values())
    resumed = batches_of(recipe, corpora, sample_tokenizer, start=4)
    assert [rows_of([batch]) for batch in resumed] == [rows_of([batch]) for batch in whole[4:]]
    recipe.gradient_accumulation_steps = 2
    accumulated = batches_of(recipe, corpora, sample_tokenizer)
    recipe.gradient_accumulation_steps = 1
    shares = [batches_of(recipe, corpora, sample_tokenizer, 0, 2, process) for process in (0, 1)]
    for update, batch in enumerate(whole):
        assert rows_of(accumulated[2 * update : 2 * update + 2]) == rows_of([batch])
        assert rows_of([share[update] for share in shares]) == rows_of([batch])
    recipe.num_workers = 2
    for one, other in zip(whole, batches_of(recipe, corpora, sample_tokenizer), strict=True):
        for objective, fields in one.items():
            assert fields["corpus_names"] == other[objective]["corpus_names"]
            assert all(map(torch.equal, tensors_of(fields), tensors_of(other[objective])))
            assert fields["text_lengths"] == other[objective]["text_lengths"]


def test_feed_phases_select_corpora_and_lengths(sample, recipe_of, sample_tokenizer):
    recipe = full_recipe(sample, recipe_of)
    longer = copy.deepcopy(recipe.phases[0])
    longer.objectives["mlm"].max_length = 128
    recipe.phases[0].corpora = ["en*", "zh"]
    recipe.phases[0].objectives["mlm"].max_length = 16
    recipe.phases.append(longer)
    corpora = load_corpora(recipe, sample_tokenizer)
    assert corpora[0].max_length == 128 and corpora[3].max_length == 64
    assert [corpus.name for corpus in phase_corpora(corpora, recipe.phases[0])] == ["en", "zh", "en-de"]
    batches = batches_of(recipe, corpora, sample_tokenizer)
    assert {name for batch in batches for name in batch["mlm"]["corpus_names"]} == {"en", "zh"}
    assert max(batch["mlm"]["input_ids"].shape[1] for batch in batches) == 16


def test_feed_held_out_batches_are_the_same_for_every_seed(sample, recipe_of, sample_tokenizer):
    recipe = full_recipe(sample, recipe_of)
    phase, corpora = recipe.phases[0], load_corpora(recipe, sample_tokenizer)

    def batches():
        collator = phase_collators(phase, sample_tokenizer)["mlm"]
        return [batch["mlm"] for batch in held_out_batches(corpora, collator, 7)]

    first = batches()
    held_out = sum(len(corpus.held_out) for corpus in corpora if len(corpus.languages) == 1)
    assert sum(len(batch["corpus_names"]) for batch in first) == held_out
    recipe.seed = 99
    assert all(torch.equal(one["labels"], other["labels"]) for one, other in zip(first, batches(), strict=True))


@pytest.mark.parametrize("rows_of_block", [1, 7, 50])
def test_examples_are_the_same_in_blocks_of_any_size(rows_of_block, files, recipe_of, sample_tokenizer, monkeypatch):
    """Windows, segments of documents, pairs line by line, and joined pairs, some of them empty or held out."""
    random = np.random.default_rng(0)
    tables = {}
    for language in ("en", "de"):
        lengths = random.integers(0, 40, 120).tolist()
        rows = [{"id": str(n), "doc": str(n // 11), "text": "word " * length} for n, length in enumerate(lengths)]
        if language == "de":
            rows.reverse()
        tables[language] = {"path": files.jsonl(f"{language}.jsonl", rows)}
    two = EN_DE | {"source": tables["en"], "target": tables["de"]}
    recipe = recipe_of(
        {"mlm": {"batch_size": 8, "max_length": 12}, "tlm": {"batch_size": 8, "max_length": 24}},
        monolingual=[{"language": "en", **tables["en"], "document_column": "doc"}],
        bitext=[two | {"name": "lines"}, two | {"name": "joined", "join_on": "id"}],
        evaluation={"held_out_fraction": 0.2},
    )

    def read() -> tuple[list, list]:
        corpora = load_corpora(recipe, sample_tokenizer)
        corpora += [corpus.with_form(10, apart=True) for corpus in corpora]
        indices = [index for corpus in corpora for index in (corpus.training, corpus.evaluated)]
        numbers = [[numbers.tolist() for numbers in vars(index).values()] for index in indices]
        return numbers, [corpus.counts for corpus in corpora]

    whole = read()
    monkeypatch.setattr(example_index, "ROWS_OF_BLOCK", rows_of_block)
    assert read() == whole


def test_corpus_holds_few_bytes_for_each_pair(monkeypatch):
    """At 100 million pairs, a byte a pair is 0.1 GB in each process."""
    monkeypatch.setattr(example_index, "ROWS_OF_BLOCK", 1 << 12)
    num_pairs = 1 << 17
    random = np.random.default_rng(0)
    columns = []
    for _ in range(2):
        offsets = np.concatenate([[0], random.integers(1, 60, num_pairs).cumsum()]).astype(np.int32)
        ids = pa.ListArray.from_arrays(offsets, np.zeros(offsets[-1], dtype=np.int32))
        keys = random.integers(0, 2**63, num_pairs)
        columns.append(TokenStore(Dataset(pa.table({"ids": ids, "key": keys}))))
    described = SimpleNamespace(codes=("en", "de"), kind="bitext", size=None)
    source = SimpleNamespace(name="en-de", corpus=described, alignment=None, counts={})
    tracemalloc.start()
    try:
        corpus = Corpus(source, columns, 64, False, 0.01, 100)
        held, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    order = 4  # of an epoch
    assert held / len(corpus.training) + order < 28
    assert most / len(corpus.training) < 28 + 40


def test_unigram_entropy_in_nats():
    uniform = [Example([np.arange(8), np.arange(8)], "en-de", 0), Example([np.arange(4), np.arange(4, 8)], "en-de", 1)]
    assert unigram_entropy(texts_of(uniform)) == pytest.approx(math.log(8))
    skewed = [Example([np.array([5, 5, 5, 7])], "en", 0)]
    assert unigram_entropy(texts_of(skewed)) == pytest.approx(-(0.75 * math.log(0.75) + 0.25 * math.log(0.25)))


def test_load_corpora_trains_on_no_evaluated_side(files, recipe_of, sample_tokenizer, examples_of, held_out_of):
    """Line by line: English has ids, German has none. Each table is held out by what it has itself."""
    english = files.jsonl("en.jsonl", [{"id": f"v{i}", "text": f"The number {i} is here."} for i in range(300)])
    german = files.jsonl("de.jsonl", [{"text": f"Die Zahl {i} ist hier."} for i in range(300)])
    tables = {"en": {"path": english}, "de": {"path": german}}
    recipe = recipe_of(
        BOTH,
        monolingual=[{"language": name, **table} for name, table in tables.items()],
        bitext=[EN_DE | {"source": tables["en"], "target": tables["de"]}],
        evaluation={"held_out_fraction": 0.3},
    )
    corpora = load_corpora(recipe, sample_tokenizer)
    trained = {tuple(side) for corpus in corpora for sides in examples_of(corpus) for side in sides}
    for corpus in corpora:
        assert corpus.held_out, corpus.name
        assert trained.isdisjoint(tuple(side) for sides in held_out_of(corpus) for side in sides)
