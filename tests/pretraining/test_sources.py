import pytest

from crosslingual_zoo.pretraining.data.batches import load_corpora
from crosslingual_zoo.pretraining.data.examples import encode_texts
from crosslingual_zoo.pretraining.data.sources import open_sources, row_key, training_texts
from crosslingual_zoo.pretraining.recipe_phases import Phase
from crosslingual_zoo.zoo_core.tables import Table, load_table

EN_DE = {"source_language": "en", "target_language": "de"}
TLM = {"tlm": {"batch_size": 8, "max_length": 128}}
MLM_AND_TLM = {"mlm": {"batch_size": 8, "max_length": 32}, **TLM}
MONOLINGUAL = [{"language": "en", "path": "en.jsonl"}, {"language": "de", "path": "de.jsonl"}]
TEXT_FILES = [{"language": language, "path": f"text.{language}", "format": "text"} for language in ("en", "de")]
LINE_BY_LINE = {"source": {"path": "en.jsonl"}, "target": {"path": "de.jsonl"}}
JOINED = LINE_BY_LINE | {"join_on": "id"}
BITEXT = {  # the same pairs, as the fixture `pairs` writes them
    "joined": JOINED,
    "joined, other order": JOINED | {"target": {"path": "reversed.jsonl"}},
    "line by line": LINE_BY_LINE,
    "two text files": {
        "source": {"path": "text.en", "format": "text"},
        "target": {"path": "text.de", "format": "text"},
    },
    "one table": {"table": {"path": "pairs.jsonl"}},
    "dotted": {
        "table": {"path": "nested.jsonl"},
        "source_column": "translation.en",
        "target_column": "translation.de",
    },
    "one column": {"table": {"path": "pairs.txt"}, "separator": "|||"},
}
MONOLINGUAL_OF_BITEXT = {  # the same texts, with the same ids
    "joined": MONOLINGUAL,
    "two text files": TEXT_FILES,
    "one table": [{"language": name, "path": "pairs.jsonl", "text_column": name} for name in ("en", "de")],
    "one column": TEXT_FILES,
}


@pytest.fixture
def pairs(files, sample, monkeypatch):
    """The rows id, en, de of the sample corpus, which it writes in each kind of BITEXT into the working folder."""
    monkeypatch.chdir(files.folder)
    english = load_table(Table(**sample("en")))
    german = load_table(Table(**sample("de")))
    rows = [{"id": en["id"], "en": en["text"], "de": de["text"]} for en, de in zip(english, german, strict=True)]
    for language in ("en", "de"):
        files.jsonl(f"{language}.jsonl", [{"id": row["id"], "text": row[language]} for row in rows])
        files.lines(f"text.{language}", [row[language] for row in rows])
    files.jsonl("reversed.jsonl", [{"id": row["id"], "text": row["de"]} for row in rows[::-1]])
    files.jsonl("pairs.jsonl", rows)
    files.jsonl("nested.jsonl", [{"translation": row} for row in rows])
    files.lines("pairs.txt", [f"{row['en']} ||| {row['de']}" for row in rows])
    return rows


@pytest.mark.parametrize("kind", BITEXT)
def test_open_sources_each_kind_of_bitext_gives_the_same_pairs(kind, pairs, corpora_of, sample_tokenizer, examples_of):
    (corpus,) = corpora_of(TLM, bitext=[EN_DE | BITEXT[kind]])
    assert (corpus.name, corpus.languages, corpus.size) == ("en-de", ("en", "de"), 240)
    assert examples_of(corpus) == [encode_texts([pair["en"], pair["de"]], sample_tokenizer) for pair in pairs]


def bitext(**fields):
    return {"objectives": TLM, "bitext": [EN_DE | fields]}


@pytest.mark.parametrize("kind", MONOLINGUAL_OF_BITEXT)
def test_mlm_reads_both_sides_of_bitext_alone(kind, pairs, corpora_of, examples_of, held_out_of):
    """The texts, ids and held-out rows are those of the same text under `monolingual`."""
    fields = {
        "bitext": [EN_DE | BITEXT[kind]],
        "evaluation": {"held_out_fraction": 0.2, "max_examples": 10},
    }
    corpora = corpora_of(MLM_AND_TLM, **fields)
    with_texts = corpora_of(MLM_AND_TLM, **fields, monolingual=MONOLINGUAL_OF_BITEXT[kind])
    for corpus, expected in zip(corpora, with_texts, strict=True):
        assert (corpus.name, corpus.kind, corpus.size) == (expected.name, expected.kind, expected.size)
        assert examples_of(corpus) == examples_of(expected)
        assert corpus.held_out.ids.tolist() == expected.held_out.ids.tolist()
        assert held_out_of(corpus) == held_out_of(expected)
    english, german, bitext = corpora
    sides_of_training = sum(examples_of(bitext), [])
    texts_held_out = sum(held_out_of(english) + held_out_of(german), [])
    assert texts_held_out
    assert not any(text in sides_of_training for text in texts_held_out)


def sides(source, target, **fields):
    return bitext(source={"path": source}, target={"path": target}, **fields)


def test_named_corpora_of_bitext_alone(recipe_of):
    """A language of several pairs is named after them, too; only objectives of monolingual text make such corpora."""
    pairs = [
        {"source_language": "en", "target_language": target, "table": {"path": path}, "max_rows": 7, "size": 5}
        for target, path in (("de", "a.tsv"), ("de", "b.tsv"), ("sw", "c.tsv"))
    ]
    names = ["en-de/a", "en-de/b", "en-sw"]
    assert [*recipe_of(TLM, bitext=pairs).named_corpora()] == names
    corpora = recipe_of(MLM_AND_TLM, bitext=pairs).named_corpora()
    sides = ["en/en-de/a", "de/en-de/a", "en/en-de/b", "de/en-de/b", "en/en-sw", "sw"]
    assert [*corpora] == [*sides, *names]
    assert [corpora[name].codes for name in sides] == [("en",), ("de",), ("en",), ("de",), ("en",), ("sw",)]
    assert {(corpus.max_rows, corpus.size) for corpus in corpora.values()} == {(7, 5)}
    with_text = recipe_of(MLM_AND_TLM, bitext=pairs, monolingual=[{"language": "fr", "path": "d.txt"}])
    assert [*with_text.named_corpora()] == ["fr", *names]


def test_objectives_of_monolingual_text_do_not_read_linked_pairs(recipe_of):
    with pytest.raises(ValueError, match="monolingual"):
        recipe_of(MLM_AND_TLM, linked=[EN_DE | {"path": "links.tsv"}])


def test_open_sources_join_keeps_common_ids_and_counts_the_others(files, corpora_of, sample_tokenizer, examples_of):
    source = files.jsonl("en.jsonl", [{"id": number, "text": f"number {number}"} for number in (1, 2, 3, 5)])
    target = files.jsonl("de.jsonl", [{"id": str(number), "text": f"Nummer {number}"} for number in (5, 9, 3)])
    fields = {"source": {"path": source}, "target": {"path": target}, "join_on": "id"}
    (corpus,) = corpora_of(TLM, bitext=[EN_DE | fields])
    assert corpus.counts["unmatched_en"] == 2
    assert corpus.counts["unmatched_de"] == 1
    expected = [encode_texts([f"number {id}", f"Nummer {id}"], sample_tokenizer) for id in (3, 5)]
    assert examples_of(corpus) == expected


def test_open_sources_holds_out_rows_everywhere(pairs, recipe_of, sample_tokenizer, examples_of, held_out_of):
    recipe = recipe_of(
        MLM_AND_TLM,
        monolingual=MONOLINGUAL,
        bitext=[EN_DE | BITEXT["joined"]],
        evaluation={"held_out_fraction": 0.2, "max_examples": 10},
    )
    held_out = [pair for pair in pairs if row_key(pair["id"]) < 0.2 * 2**63]
    held_out.sort(key=lambda pair: row_key(pair["id"]))
    assert 20 < len(held_out) < 80
    english, german, bitext = load_corpora(recipe, sample_tokenizer)

    for corpus, language in ((english, "en"), (german, "de")):
        # texts of more than a window appear in parts, so only the beginnings are compared
        texts = [pair[language] for pair in held_out]
        expected = [ids[:30] for ids in encode_texts(texts, sample_tokenizer)]
        beginnings = [ids[:30] for (ids,) in held_out_of(corpus)]
        assert beginnings[:3] == expected[:3]
        assert not any(ids[:30] in expected for (ids,) in examples_of(corpus))
        assert corpus.counts["held_out"] == len(held_out)

    expected = [encode_texts([pair["en"], pair["de"]], sample_tokenizer) for pair in held_out]
    assert held_out_of(bitext) == expected[:10]
    assert not any(sides in expected for sides in examples_of(bitext))
    assert bitext.size == 240 - len(held_out)

    texts = list(training_texts(open_sources(recipe.named_corpora()), 0.2))
    assert len(texts) == 2 * (240 - len(held_out))
    assert len(set(texts)) == len(texts)  # the pair's tables are not read again


def monolingual(**table):
    return {"objectives": None, "monolingual": [{"language": "en", **table}]}


def test_open_sources_holds_out_by_the_joined_column(files, corpora_of, held_out_of):
    rows = [{"id": 1000 - number, "verse": f"v{number}", "text": f"sentence number {number}"} for number in range(100)]
    english = {"path": files.jsonl("en.jsonl", rows)}
    german = {"path": files.jsonl("de.jsonl", rows)}
    monolingual, bitext = corpora_of(
        MLM_AND_TLM,
        monolingual=[{"language": "en", **english}],
        bitext=[EN_DE | {"source": english, "target": german, "join_on": "verse"}],
        evaluation={"held_out_fraction": 0.2},
    )
    assert len(monolingual.held_out) > 5
    assert [text for (text,) in held_out_of(monolingual)] == [source for source, _ in held_out_of(bitext)]


@pytest.mark.parametrize(
    "fields, named",
    [
        (monolingual(path="empty.jsonl"), "en"),
        (monolingual(path="a.jsonl", text_column="id"), "int64"),
        (sides("a.jsonl", "b.jsonl"), "en-de"),  # unequal lines
        (bitext(table={"path": "barred.txt"}, separator="|||"), "en-de, row 2"),
        (sides("a.jsonl", "twice.jsonl", join_on="id"), r"\(7\)"),
        (sides("a.jsonl", "c.jsonl", join_on="id"), r"'0'.*'x'"),  # no common id
    ],
)
def test_load_corpora_refuses(fields, named, files, corpora_of, monkeypatch):
    monkeypatch.chdir(files.folder)
    for name, ids in {"a": range(3), "b": range(2), "c": "xy", "twice": (0, 7, 7)}.items():
        files.jsonl(f"{name}.jsonl", [{"id": id, "text": f"text {id}"} for id in ids])
    files.jsonl("empty.jsonl", [{"text": ""}, {"text": " "}])
    files.lines("barred.txt", ["text ||| Text", "text || Text"])
    with pytest.raises(ValueError, match=named):
        corpora_of(**fields)


@pytest.mark.parametrize(
    "pattern, expected",
    [
        ("en", ["en/my-wiki", "en/news"]),
        ("en-de", ["en-de/ntrex", "en-de/news"]),
        ("en*", ["en/my-wiki", "en/news", "en-de/ntrex", "en-de/news", "en-fr"]),
        ("*-*", ["en-de/ntrex", "en-de/news", "en-fr"]),
        ("*/news", ["en/news", "en-de/news"]),
    ],
)
def test_phase_reads_the_corpora_of_a_pattern(pattern, expected):
    names = ["en/my-wiki", "en/news", "en-de/ntrex", "en-de/news", "en-fr", "de"]
    assert [*Phase(corpora=[pattern]).read(dict.fromkeys(names))] == expected
