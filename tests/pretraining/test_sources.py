import pytest

from crosslingual_zoo.pretraining.data.batches import load_corpora
from crosslingual_zoo.pretraining.data.examples import encode_texts
from crosslingual_zoo.pretraining.data.sources import open_sources, row_key, training_texts
from crosslingual_zoo.pretraining.recipe import Phase
from crosslingual_zoo.zoo_core.tables import Table, load_table

EN_DE = {"source_language": "en", "target_language": "de"}
TLM = {"tlm": {"batch_size": 8, "max_length": 64}}
BOTH = {"mlm": {"batch_size": 8, "max_length": 32}, **TLM}
BY_ID = {"join_on": "id"}


def test_open_sources_each_kind_of_bitext_gives_the_same_pairs(files, sample, recipe_of, sample_tokenizer, examples_of):
    rows = [
        {"id": en["id"], "en": en["text"], "de": de["text"], "translation": {"en": en["text"], "de": de["text"]}}
        for en, de in zip(*(load_table(Table(**sample(lang))) for lang in ("en", "de")), strict=True)
    ]
    jsonl = files.jsonl("pairs.jsonl", rows)
    shuffled = files.jsonl("de.jsonl", [{"id": row["id"], "text": row["de"]} for row in rows[::-1]])
    sides = {"source": "en", "target": "de"}
    lines = {side: files.lines(f"text.{lang}", [row[lang] for row in rows]) for side, lang in sides.items()}
    barred = files.lines("pairs.txt", [f"{row['en']} ||| {row['de']}" for row in rows])
    dotted = {"source_column": "translation.en", "target_column": "translation.de"}
    kinds = {
        "joined": {"source": sample("en"), "target": sample("de"), "join_on": "id"},
        "joined, other order": {"source": sample("en"), "target": {"path": shuffled}, "join_on": "id"},
        "line by line": {"source": sample("en"), "target": sample("de")},
        "two text files": {side: {"path": path, "format": "text"} for side, path in lines.items()},
        "one table": {"table": {"path": jsonl}},
        "dotted": {"table": {"path": jsonl}, **dotted},
        "one column": {"table": {"path": barred}, "separator": "|||"},
    }
    wanted = None
    for name, fields in kinds.items():
        recipe = recipe_of(TLM, bitext=[EN_DE | fields])
        (corpus,) = load_corpora(recipe, sample_tokenizer)
        assert (corpus.name, corpus.languages, corpus.size) == ("en-de", ("en", "de"), 240)
        pairs = examples_of(corpus)
        wanted = wanted or pairs
        assert pairs == wanted, name
    assert wanted[0] == [encode_texts([rows[0][lang]], sample_tokenizer)[0] for lang in ("en", "de")]


KINDS_OF_PAIRS = ("joined", "line by line", "one table", "one column")


@pytest.mark.parametrize("kind", KINDS_OF_PAIRS)
def test_mlm_reads_both_sides_of_bitext_alone(
    kind, files, sample, recipe_of, sample_tokenizer, examples_of, held_out_of
):
    """The texts, ids and held-out rows are those of the same text under `monolingual`."""
    tables = {language: load_table(Table(**sample(language))) for language in ("en", "de")}
    rows = [
        {"id": en["id"], "en": en["text"], "de": de["text"]} for en, de in zip(tables["en"], tables["de"], strict=True)
    ]
    lines = {language: files.lines(f"{language}.txt", [row[language] for row in rows]) for language in tables}
    monolingual = [{"language": language, "path": path} for language, path in lines.items()]
    fields = {"source": {"path": lines["en"]}, "target": {"path": lines["de"]}}
    if kind == "joined":
        monolingual = [{"language": language, **sample(language)} for language in tables]
        fields = {"source": sample("en"), "target": sample("de"), "join_on": "id"}
    if kind == "one table":
        path = files.jsonl("pairs.jsonl", rows)
        monolingual = [{"language": language, "path": path, "text_column": language} for language in tables]
        fields = {"table": {"path": path}}
    if kind == "one column":
        path = files.lines("pairs.txt", [f"{row['en']} ||| {row['de']}" for row in rows])
        fields = {"table": {"path": path}, "separator": "|||"}
    evaluation = {"held_out_fraction": 0.2, "max_examples": 10}
    shared = {"bitext": [EN_DE | fields], "evaluation": evaluation}
    expected = load_corpora(recipe_of(BOTH, monolingual=monolingual, **shared), sample_tokenizer)
    corpora = load_corpora(recipe_of(BOTH, **shared), sample_tokenizer)
    assert [(corpus.name, corpus.kind, corpus.size) for corpus in corpora] == [
        (corpus.name, corpus.kind, corpus.size) for corpus in expected
    ]
    for corpus, other in zip(corpora, expected, strict=True):
        assert examples_of(corpus) == examples_of(other)
        assert corpus.held_out.ids.tolist() == other.held_out.ids.tolist()
        assert held_out_of(corpus) == held_out_of(other)
    texts_of_training = {tuple(side) for pair in examples_of(corpora[-1]) for side in pair}
    texts_held_out = {tuple(text) for corpus in corpora[:2] for (text,) in held_out_of(corpus)}
    assert texts_held_out and not texts_held_out & texts_of_training


def test_named_corpora_of_bitext_alone(recipe_of):
    """A language of several pairs is named after them, too; only objectives of monolingual text make such corpora."""
    pairs = [
        {"source_language": "en", "target_language": target, "table": {"path": path}, "max_rows": 7, "size": 5}
        for target, path in (("de", "a.tsv"), ("de", "b.tsv"), ("sw", "c.tsv"))
    ]
    names = ["en-de/a", "en-de/b", "en-sw"]
    assert [*recipe_of(TLM, bitext=pairs).named_corpora()] == names
    corpora = recipe_of(BOTH, bitext=pairs).named_corpora()
    sides = ["en/en-de/a", "de/en-de/a", "en/en-de/b", "de/en-de/b", "en/en-sw", "sw"]
    assert [*corpora] == [*sides, *names]
    assert {corpora[name].codes for name in sides} == {("en",), ("de",), ("sw",)}
    assert {(corpus.max_rows, corpus.size) for corpus in corpora.values()} == {(7, 5)}
    with_text = recipe_of(BOTH, bitext=pairs, monolingual=[{"language": "fr", "path": "d.txt"}])
    assert [*with_text.named_corpora()] == ["fr", *names]
    with pytest.raises(ValueError, match="monolingual"):
        recipe_of(BOTH, linked=[EN_DE | {"path": "links.tsv"}])


def test_open_sources_join_keeps_common_ids_and_counts_the_others(files, recipe_of, sample_tokenizer, examples_of):
    source = files.jsonl("en.jsonl", [{"id": i, "text": f"number {i}"} for i in (1, 2, 3, 5)])
    target = files.jsonl("de.jsonl", [{"id": str(i), "text": f"Nummer {i}"} for i in (5, 9, 3)])
    fields = {"source": {"path": source}, "target": {"path": target}, "join_on": "id"}
    (corpus,) = load_corpora(recipe_of(TLM, bitext=[EN_DE | fields]), sample_tokenizer)
    assert corpus.counts["unmatched_en"] == 2 and corpus.counts["unmatched_de"] == 1
    decoded = [[sample_tokenizer.decode(side)[-1] for side in sides] for sides in examples_of(corpus)]
    assert decoded == [["3", "3"], ["5", "5"]]


def test_open_sources_holds_out_rows_everywhere(sample, recipe_of, sample_tokenizer, examples_of, held_out_of):
    monolingual = [{"language": lang, **sample(lang)} for lang in ("en", "de")]
    bitext = [EN_DE | dict(source=sample("en"), target=sample("de"), join_on="id")]
    recipe = recipe_of(
        BOTH, monolingual=monolingual, bitext=bitext, evaluation={"held_out_fraction": 0.2, "max_examples": 10}
    )
    rows = {lang: load_table(Table(**sample(lang))) for lang in ("en", "de")}
    held_ids = sorted((i for i in rows["en"]["id"] if row_key(i) < 0.2 * 2**63), key=row_key)
    assert 20 < len(held_ids) < 80
    en, de, pair = load_corpora(recipe, sample_tokenizer)
    text = {lang: dict(zip(rows[lang]["id"], rows[lang]["text"], strict=True)) for lang in rows}

    def tokens(lang, i):
        return encode_texts([text[lang][i]], sample_tokenizer)[0]

    for corpus, lang in ((en, "en"), (de, "de")):
        train = [tokens for (tokens,) in examples_of(corpus)]
        whole = [text for (text,) in held_out_of(corpus)]
        # texts of more than a window appear in parts, so only the beginnings are compared
        assert not {tuple(tokens(lang, i)[:30]) for i in held_ids} & {tuple(ids[:30]) for ids in train}
        assert [ids[:30] for ids in whole][:3] == [tokens(lang, i)[:30] for i in held_ids][:3]
        assert corpus.counts["held_out"] == len(held_ids)
    pairs = [[tokens("en", i), tokens("de", i)] for i in held_ids]
    assert held_out_of(pair) == pairs[:10]
    assert pair.size == 240 - len(held_ids) and not any(sides in pairs for sides in examples_of(pair))

    texts = list(training_texts(open_sources(recipe.named_corpora()), 0.2))
    assert len(texts) == len(set(texts)) == 2 * (240 - len(held_ids))  # the pair's tables are not read again


def test_open_sources_holds_out_by_the_joined_column(files, recipe_of, sample_tokenizer, held_out_of):
    rows = [{"id": 1000 - n, "verse": f"v{n}", "text": f"sentence number {n}"} for n in range(100)]
    paths = [files.jsonl(f"{lang}.jsonl", rows) for lang in ("en", "de")]
    recipe = recipe_of(
        BOTH,
        monolingual=[{"language": "en", "path": paths[0]}],
        bitext=[EN_DE | dict(source={"path": paths[0]}, target={"path": paths[1]}, join_on="verse")],
        evaluation={"held_out_fraction": 0.2},
    )
    mono, pair = load_corpora(recipe, sample_tokenizer)
    assert len(mono.held_out) > 5
    assert [text for (text,) in held_out_of(mono)] == [x for x, _ in held_out_of(pair)]


def pair(**tables):
    return {"bitext": [EN_DE | {side: {"path": path} for side, path in tables.items()}]}


ERRORS = {  # fields of the recipe, and what is named
    "no text": ({"monolingual": [{"language": "en", "path": "empty.jsonl"}]}, "en"),
    "column without text": ({"monolingual": [{"language": "en", "path": "a.jsonl", "text_column": "id"}]}, "int64"),
    "unequal lines": (pair(source="a.jsonl", target="b.jsonl"), "en-de"),
    "separator missing": ({"bitext": [EN_DE | {"table": {"path": "barred.txt"}, "separator": "|||"}]}, "en-de, row 2"),
    "duplicate ids": ({"bitext": [pair(source="a.jsonl", target="twice.jsonl")["bitext"][0] | BY_ID]}, r"\(7\)"),
    "no common id": ({"bitext": [pair(source="a.jsonl", target="c.jsonl")["bitext"][0] | BY_ID]}, r"'0'.*'x'"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_load_corpora_refuses(files, recipe_of, sample_tokenizer, case, monkeypatch):
    monkeypatch.chdir(files.folder)
    for name, ids in {"a": range(3), "b": range(2), "c": "xy", "twice": (0, 7, 7)}.items():
        files.jsonl(f"{name}.jsonl", [{"id": n, "text": f"text {n}"} for n in ids])
    files.jsonl("empty.jsonl", [{"text": ""}, {"text": " "}])
    files.lines("barred.txt", ["text ||| Text", "text || Text"])
    fields, named = ERRORS[case]
    with pytest.raises(ValueError, match=named):
        load_corpora(recipe_of(TLM if "bitext" in fields else None, **fields), sample_tokenizer)


@pytest.mark.parametrize(
    "pattern, places",
    [("en", [0, 1]), ("en-de", [2, 3]), ("en*", [0, 1, 2, 3, 4]), ("*-*", [2, 3, 4]), ("*/news", [1, 3])],
)
def test_phase_reads_the_corpora_of_a_pattern(pattern, places):
    names = ["en/my-wiki", "en/news", "en-de/ntrex", "en-de/news", "en-fr", "de"]
    assert [*Phase(corpora=[pattern]).read(dict.fromkeys(names))] == [names[place] for place in places]
