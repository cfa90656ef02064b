import copy
import math

import numpy as np
import pytest
import torch

from pretraining.data.batches import Feed, phase_corpora
from pretraining.data.corpora import load_corpora, unigram_entropy
from pretraining.data.examples import Example, cut_pair, encode_texts
from pretraining.data.sources import open_sources
from pretraining.data.tokenized import READINGS, tokenized_column, tokenizer_fingerprint

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

EN_DE = {"source_language": "en", "target_language": "de"}
BOTH = {"mlm": {"batch_size": 8, "max_length": 32}, "tlm": {"batch_size": 8, "max_length": 64}}


def test_windows_keep_every_token(files, recipe_of, sample_tokenizer):
    long = " ".join(f"word {number}" for number in range(60))
    rows = [
        {"text": "Short.", "doc": "a"},
        {"text": "", "doc": "a"},
        {"text": long, "doc": "b"},
        {"text": "  ", "doc": None},
        {"text": None, "doc": "c"},
        {"text": "Last.", "doc": None},
    ]
    table = {"language": "en", "path": files.jsonl("a.jsonl", rows), "document_column": "doc"}
    recipe = recipe_of({"mlm": {"batch_size": 8, "max_length": 20}}, monolingual=[table])
    (corpus,) = load_corpora(recipe, sample_tokenizer)
    assert (corpus.counts["empty"], corpus.counts["windowed"], corpus.counts["rows"]) == (3, 1, 6)
    examples = [corpus.fetch(0, index) for index in range(corpus.size)]
    assert [len(e.sides[0]) for e in examples] == corpus.lengths.tolist()
    assert max(corpus.lengths) == 18  # and two special tokens
    windows = examples[1:-1]
    assert np.concatenate([e.sides[0] for e in windows]).tolist() == encode_texts([long], sample_tokenizer)[0]
    assert len({e.example_id for e in examples}) == len(examples)

    shorter = corpus.with_form(12)
    assert max(shorter.lengths) == 10 and shorter.lengths.sum() == corpus.lengths.sum()
    assert corpus.with_form(20) is corpus


def test_pairs_are_cut_longest_side_first(files, recipe_of, sample_tokenizer):
    rows = [
        {"en": "word " * 50, "de": "kurz"},
        {"en": "word " * 50, "de": "Wort " * 40},
        {"en": "one", "de": "eins"},
        {"en": "", "de": "nichts"},
        {"en": "nothing", "de": None},
    ]
    path = files.jsonl("a.jsonl", rows)
    objectives = {"tlm": {"batch_size": 8, "max_length": 24}}
    (corpus,) = load_corpora(recipe_of(objectives, bitext=[EN_DE | {"table": {"path": path}}]), sample_tokenizer)
    assert (corpus.counts["empty"], corpus.counts["cut"], corpus.size) == (2, 2, 3)
    full = [[len(ids) for ids in encode_texts([row["en"], row["de"]], sample_tokenizer)] for row in rows]
    lengths = [[len(side) for side in corpus.fetch(0, index).sides] for index in range(3)]
    assert lengths == [[20 - full[0][1], full[0][1]], [10, 10], full[2]]
    assert corpus.lengths.tolist() == [sum(pair) for pair in lengths]


def test_cutting_a_pair_removes_token_by_token_from_the_longer_side():
    rng = np.random.default_rng(0)
    lengths, room = rng.integers(1, 40, (2, 300)), 25
    kept = cut_pair(lengths, room)
    for (x, y), result in zip(lengths.T.tolist(), kept.T.tolist(), strict=True):
        while x + y > room:
            x, y = (x - 1, y) if x > y else (x, y - 1)
        assert sorted(result) == sorted((x, y))
    assert (kept <= lengths).all()


def test_text_that_spells_a_special_token_gives_none(sample_tokenizer):
    special = set(sample_tokenizer.all_special_ids) - {sample_tokenizer.unk_token_id}
    for ids in encode_texts(["a <mask> b", "<s>", "x</s></s>y <pad>", "", None], sample_tokenizer):
        assert not special & set(ids)
    assert sample_tokenizer.unk_token_id in encode_texts(["a <mask> b"], sample_tokenizer)[0]


def test_tokenized_text_is_kept_and_follows_tokenizer_and_text(files, recipe_of, sample_tokenizer, monkeypatch):
    def tokenized(lines, tokenizer=sample_tokenizer):
        path = files.lines("a.txt", lines)
        recipe = recipe_of(monolingual=[{"language": "en", "path": path}])
        side = open_sources(recipe.named_corpora())[0].sides[0]
        return tokenized_column(side, tokenizer, tokenizer_fingerprint(tokenizer), "en")

    first = tokenized(["Rain.", "Sun and rain."])
    calls = []
    monkeypatch.setitem(READINGS, "text", lambda *given: calls.append(1) or encode_texts(*given))
    again = tokenized(["Rain.", "Sun and rain."])
    assert not calls and again.ids(1).tolist() == first.ids(1).tolist()
    assert tokenized(["Rain.", "Sun and snow."]).ids(1).tolist() != first.ids(1).tolist() and calls
    sample_tokenizer("a", truncation=True, max_length=3)  # leaves traces that change no ids
    assert tokenizer_fingerprint(sample_tokenizer) == tokenizer_fingerprint(sample_tokenizer)
    other = type(sample_tokenizer)(vocab=[("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁R", -1.0)])
    assert tokenizer_fingerprint(other) != tokenizer_fingerprint(sample_tokenizer)


def full_recipe(sample, recipe_of, **fields):
    return recipe_of(
        BOTH,
        monolingual=[{"language": lang, **sample(lang)} for lang in ("en", "de", "zh")],
        bitext=[EN_DE | dict(source=sample("en"), target=sample("de"), join_on="id")],
        evaluation={"held_out_fraction": 0.1},
        **fields,
    )


@pytest.mark.parametrize("kind", ["stored", "streamed"])
def test_a_step_is_the_same_however_it_is_shared_out(
    kind, files, sample, recipe_of, sample_tokenizer, batches_of, rows_of
):
    """In micro-batches, to processes, resumed, and by workers; the global generator is left alone."""
    recipe = full_recipe(sample, recipe_of, shuffle_buffer=16)
    if kind == "streamed":
        stream = {"streaming": True, "size": 90}
        lines = [f"sentence number {number}" for number in range(60)]
        sides = {side: {"path": files.lines(f"{side}.txt", lines)} for side in ("source", "target")}
        sides = {side: table | {"streaming": True} for side, table in sides.items()}
        text = {"language": "en", "path": files.lines("en.txt", lines), **stream}
        texts = [text, {"language": "de", **sample("de")}]  # a stream and a stored corpus
        recipe = recipe_of(BOTH, monolingual=texts, bitext=[EN_DE | sides | {"size": 90}], shuffle_buffer=16)
    corpora = load_corpora(recipe, sample_tokenizer)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    whole = batches_of(recipe, corpora)
    assert torch.equal(torch.get_rng_state(), before)
    assert len(whole) == 6 and all(list(batch) == ["mlm", "tlm"] for batch in whole)
    assert all(len(fields["languages"]) == 8 for batch in whole for fields in batch.values())
    assert [rows_of([batch]) for batch in batches_of(recipe, corpora, 4)] == [rows_of([b]) for b in whole[4:]]
    recipe.gradient_accumulation_steps = 2
    accumulated = batches_of(recipe, corpora)
    recipe.gradient_accumulation_steps = 1
    shares = [batches_of(recipe, corpora, 0, 2, process) for process in (0, 1)]
    for update, batch in enumerate(whole):
        assert rows_of(accumulated[2 * update : 2 * update + 2]) == rows_of([batch])
        assert rows_of([share[update] for share in shares]) == rows_of([batch])
    recipe.num_workers = 2
    for one, other in zip(whole, batches_of(recipe, corpora), strict=True):
        for objective, fields in one.items():
            assert fields["languages"] == other[objective]["languages"]
            assert all(torch.equal(fields[key], other[objective][key]) for key in fields if key != "languages")


def test_phases_choose_their_corpora_and_lengths(sample, recipe_of, sample_tokenizer, batches_of):
    recipe = full_recipe(sample, recipe_of)
    longer = copy.deepcopy(recipe.phases[0])
    longer.objectives["mlm"].max_length = 128
    recipe.phases[0].corpora = ["en*", "zh"]
    recipe.phases[0].objectives["mlm"].max_length = 16
    recipe.phases.append(longer)
    corpora = load_corpora(recipe, sample_tokenizer)
    assert corpora[0].max_length == 128 and corpora[3].max_length == 64
    assert [corpus.name for corpus in phase_corpora(corpora, recipe.phases[0])] == ["en", "zh", "en-de"]
    batches = batches_of(recipe, corpora)
    assert {name for batch in batches for name in batch["mlm"]["languages"]} == {"en", "zh"}
    assert max(batch["mlm"]["input_ids"].shape[1] for batch in batches) == 16


def test_held_out_batches_never_change(sample, recipe_of, sample_tokenizer):
    recipe = full_recipe(sample, recipe_of)
    recipe.evaluation.batch_size = 7
    phase, size = recipe.phases[0], recipe.evaluation.batch_size
    corpora = load_corpora(recipe, sample_tokenizer)

    def batches(name):
        return list(Feed.of(recipe, corpora, sample_tokenizer).held_out(phase, phase.objectives[name], size))

    def names_of(name):
        """The corpus of each batch."""
        found = [set(batch[name]["languages"]) for batch in batches(name)]
        assert all(len(names) == 1 for names in found)
        return [names.pop() for names in found]

    names = names_of("mlm")
    assert set(names) == {"en", "de", "zh"} and names_of("tlm") == ["en-de"] * names.count("en")
    first = batches("mlm")
    assert all(len(batch["mlm"]["languages"]) <= 7 for batch in first)
    held_out = sum(len(corpus.held_out) for corpus in corpora if len(corpus.languages) == 1)
    assert sum(len(batch["mlm"]["languages"]) for batch in first) == held_out
    recipe.seed = 99  # runs that differ by their seed are measured alike
    corpora = load_corpora(recipe, sample_tokenizer)
    for one, other in zip(first, batches("mlm"), strict=True):
        assert torch.equal(one["mlm"]["labels"], other["mlm"]["labels"])


def test_unigram_entropy_in_nats():
    uniform = [Example([np.arange(8, dtype=np.int32)], "en", 0), Example([np.arange(8), np.arange(8)], "en-de", 1)]
    assert unigram_entropy(uniform) == pytest.approx(math.log(8))
    skewed = [Example([np.array([5, 5, 5, 7])], "en", 0)]
    assert unigram_entropy(skewed) == pytest.approx(-(0.75 * math.log(0.75) + 0.25 * math.log(0.25)))


@pytest.mark.parametrize("streaming", [False, True])
def test_no_evaluated_side_is_trained_on_though_only_one_side_has_ids(files, recipe_of, sample_tokenizer, streaming):
    """Line by line: English has ids, German has none. Each table is held out by what it has itself."""
    english = files.jsonl("en.jsonl", [{"id": f"v{i}", "text": f"The number {i} is here."} for i in range(300)])
    german = files.jsonl("de.jsonl", [{"text": f"Die Zahl {i} ist hier."} for i in range(300)])
    tables = [{"path": path, "streaming": streaming} for path in (english, german)]
    size = {"size": 300} if streaming else {}
    recipe = recipe_of(
        {"mlm": {"batch_size": 8}, "tlm": {"batch_size": 8}},
        monolingual=[{"language": name, **table, **size} for name, table in zip(("en", "de"), tables, strict=True)],
        bitext=[{"source_language": "en", "target_language": "de", "source": tables[0], "target": tables[1], **size}],
        evaluation={"held_out_fraction": 0.3},
    )
    corpora = {corpus.name: corpus for corpus in load_corpora(recipe, sample_tokenizer)}

    def trained(corpus):
        if streaming:
            cursor = corpus.cursor("a")
            return [cursor.fetch(position) for position in range(150)]
        return [corpus.fetch(0, index) for index in range(len(corpus.lengths))]

    seen = {name: [tuple(side) for e in trained(corpus) for side in e.sides] for name, corpus in corpora.items()}
    for name, corpus in corpora.items():
        assert corpus.held_out, name
        for side in (tuple(side) for example in corpus.held_out for side in example.sides):
            assert not any(side in texts for texts in seen.values())
