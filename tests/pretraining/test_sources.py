import csv

import datasets
import pytest

from pretraining.data.corpora import load_corpora
from pretraining.data.examples import encode_texts
from pretraining.data.sources import open_sources, row_key, training_texts
from pretraining.recipe import match_corpora
from zoo_core.tables import Table, load_table

EN_DE = {"source_language": "en", "target_language": "de"}
TLM = {"tlm": {"batch_size": 8, "max_length": 64}}
BOTH = {"mlm": {"batch_size": 8, "max_length": 32}, **TLM}


def test_open_sources_each_kind_of_bitext_gives_the_same_pairs(files, sample, recipe_of, sample_tokenizer, examples_of):
    rows = [
        {"id": en["id"], "en": en["text"], "de": de["text"], "translation": {"en": en["text"], "de": de["text"]}}
        for en, de in zip(*(load_table(Table(**sample(lang))) for lang in ("en", "de")), strict=True)
    ]
    jsonl = files.jsonl("pairs.jsonl", rows)
    shuffled = files.jsonl("de.jsonl", [{"id": row["id"], "text": row["de"]} for row in rows[::-1]])
    tsv = files.lines("pairs.tsv", ["en\tde", *(f"{row['en']}\t{row['de']}" for row in rows)])
    sides = {"source": "en", "target": "de"}
    lines = {side: files.lines(f"text.{lang}", [row[lang] for row in rows]) for side, lang in sides.items()}
    barred = files.lines("pairs.txt", [f"{row['en']} ||| {row['de']}" for row in rows])
    datasets.Dataset.from_list(rows).to_parquet(files.folder / "pairs.parquet")
    for name, delimiter in (("pairs.csv", ","), ("pairs.txt2", ";")):
        with open(files.folder / name, "w", encoding="utf-8", newline="") as stream:
            csv.writer(stream, delimiter=delimiter).writerows([("en", "de"), *((row["en"], row["de"]) for row in rows)])
    dotted = {"source_column": "translation.en", "target_column": "translation.de"}
    kinds = {
        "joined": {"source": sample("en"), "target": sample("de"), "join_on": "id"},
        "joined, other order": {"source": sample("en"), "target": {"path": shuffled}, "join_on": "id"},
        "line by line": {"source": sample("en"), "target": sample("de")},
        "two text files": {side: {"path": path, "format": "text"} for side, path in lines.items()},
        "one table": {"table": {"path": jsonl}},
        "dotted": {"table": {"path": jsonl}, **dotted},
        "parquet": {"table": {"path": str(files.folder / "pairs.parquet")}, **dotted},
        "tsv": {"table": {"path": tsv}},
        "csv": {"table": {"path": str(files.folder / "pairs.csv")}},
        "csv by semicolons": {"table": {"path": str(files.folder / "pairs.txt2"), "delimiter": ";"}},
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


def test_open_sources_join_keeps_common_ids_and_counts_the_others(files, recipe_of, sample_tokenizer, examples_of):
    source = files.jsonl("en.jsonl", [{"id": i, "text": f"number {i}"} for i in (1, 2, 3, 5)])
    target = files.jsonl("de.jsonl", [{"id": str(i), "text": f"Nummer {i}"} for i in (5, 9, 3)])
    fields = {"source": {"path": source}, "target": {"path": target}, "join_on": "id"}
    (corpus,) = load_corpora(recipe_of(TLM, bitext=[EN_DE | fields]), sample_tokenizer)
    assert corpus.counts["unmatched_en"] == 2 and corpus.counts["unmatched_de"] == 1
    decoded = [[sample_tokenizer.decode(side)[-1] for side in sides] for sides in examples_of(corpus)]
    assert decoded == [["3", "3"], ["5", "5"]]


def test_open_sources_holds_out_rows_everywhere(sample, recipe_of, sample_tokenizer, examples_of):
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
        whole = [e.sides[0].tolist() for e in corpus.held_out]
        # texts of more than a window appear in parts, so only the beginnings are compared
        assert not {tuple(tokens(lang, i)[:30]) for i in held_ids} & {tuple(ids[:30]) for ids in train}
        assert [ids[:30] for ids in whole][:3] == [tokens(lang, i)[:30] for i in held_ids][:3]
        assert corpus.counts["held_out"] == len(held_ids)
    pairs = [[tokens("en", i), tokens("de", i)] for i in held_ids]
    assert [[s.tolist() for s in e.sides] for e in pair.held_out] == pairs[:10]
    assert pair.size == 240 - len(held_ids) and not any(sides in pairs for sides in examples_of(pair))

    texts = list(training_texts(open_sources(recipe.named_corpora()), 0.2))
    assert len(texts) == len(set(texts)) == 2 * (240 - len(held_ids))  # the pair's tables are not read again


def test_open_sources_holds_out_by_the_joined_column(files, recipe_of, sample_tokenizer):
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
    assert [e.sides[0].tolist() for e in mono.held_out] == [e.sides[0].tolist() for e in pair.held_out]


def of(path, **fields):
    return {"monolingual": [{"language": "en", "path": path} | fields]}


def pair(**fields):
    """A bitext; of paths tables are made."""
    tables = {side: {"path": value} if isinstance(value, str) and side in ("table", "source", "target") else value
              for side, value in fields.items()}  # fmt: skip
    return {"bitext": [EN_DE | tables]}


ERRORS = {
    "one name twice": ({"monolingual": [of("a.jsonl")["monolingual"][0]] * 2}, "en/a"),
    "one language on both sides": (pair(target_language="en"), "en-en"),
    "no text": (of("empty.jsonl"), "en"),
    "no pair": (pair(table="halves.jsonl"), "en-de"),
    "pattern": (of("a.jsonl", language="english") | {"corpora": ["englsh"]}, "'english'"),
    "no text for an objective": (pair(table="pairs.jsonl") | {"objectives": BOTH, "corpora": ["en-de"]}, "mlm"),
    "batch too small": ({"gradient_accumulation_steps": 16}, r"phases.0.objectives.mlm.batch_size"),
    "unequal lines": (pair(source="a.jsonl", target="b.jsonl"), "en-de"),
    "separator missing": (pair(table="barred.txt", separator="|||"), "en-de, row 2"),
    "separator of two tables": (pair(source="a.jsonl", target="a.jsonl", separator="|||"), "separator"),
    "duplicate ids": (pair(source="a.jsonl", target="twice.jsonl", join_on="id"), r"\(7\)"),
    "no common id": (pair(source="a.jsonl", target="c.jsonl", join_on="id"), r"'0'.*'x'"),
    "join of one table": (pair(table="pairs.jsonl", join_on="id"), "join_on"),
    "no table": (pair(), "`table`"),
    "no columns": (pair(table="a.jsonl"), "column en"),
    "one column twice": (pair(table="a.jsonl", source_column="text", target_column="text"), "target_column"),
    "column without text": (of("a.jsonl", text_column="id"), "int64"),
    "stream without max_rows": (of("a.jsonl", streaming=True), "max_rows"),
    "unequal streams": (pair(source={"path": "a.jsonl", "streaming": True}, target="b.jsonl", max_rows=3), "en-de"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_open_sources_refuses(files, recipe_of, sample_tokenizer, case, monkeypatch):
    monkeypatch.chdir(files.folder)
    files.jsonl("a.jsonl", [{"id": n, "text": f"text {n}"} for n in range(3)])
    files.jsonl("b.jsonl", [{"id": n, "text": f"text {n}"} for n in range(2)])
    files.jsonl("c.jsonl", [{"id": n, "text": f"text {n}"} for n in "xy"])
    files.jsonl("twice.jsonl", [{"id": n, "text": f"text {n}"} for n in (0, 7, 7)])
    files.jsonl("empty.jsonl", [{"text": ""}, {"text": " "}])
    files.lines("barred.txt", ["text ||| Text", "text || Text"])
    files.jsonl("pairs.jsonl", [{"en": f"text {n}", "de": f"Text {n}"} for n in range(3)])
    files.jsonl("halves.jsonl", [{"en": "text", "de": ""}, {"en": "", "de": "Text"}])
    fields, message = ERRORS[case]
    with pytest.raises(ValueError, match=message):
        load_corpora(recipe_of(**of("a.jsonl") | fields), sample_tokenizer)


def test_open_sources_patterns_over_names():
    assert match_corpora(["en*"], ["en", "de", "en-de", "fr-en"], "x") == ["en", "en-de"]
    assert match_corpora(["*-*"], ["en", "de", "en-de", "fr-en"], "x") == ["en-de", "fr-en"]
    several = ["en/my-wiki", "en/news", "en-de/ntrex", "en-de/news", "en-fr"]
    assert match_corpora(["en"], several, "x") == several[:2]
    assert match_corpora(["en-de"], several, "x") == several[2:4]
    assert match_corpora(["*-*"], several, "x") == several[2:]
    assert match_corpora(["en-de/ntrex", "*/news"], several, "x") == several[1:4]
    assert match_corpora(["*"], several, "x") == several
    with pytest.raises(ValueError, match="'en-fr/ntrex'"):
        match_corpora(["en-fr/ntrex"], several, "x")


def test_open_sources_names_corpora_by_their_source(recipe_of):
    wiki, ntrex = {"path": "owner/wiki-1.5"}, {"table": {"path": "local/ntrex"}}
    sides = {"source": {"path": "train.en", "format": "text"}, "target": {"path": "train.de", "format": "text"}}
    languages = {"en/wiki-1.5": {"language": "en"}, "en/new": {"language": "en", "name": "new", "config": "b"}}
    languages |= {"de": {"language": "de"}, "sw/web": {"language": "sw", "name": "web"}}
    pairs = {
        "en-de/ntrex": EN_DE | ntrex,
        "de-en/news.v18": dict(source_language="de", target_language="en", table={"path": "data/news.v18.tsv"}),
        "en-de/train": EN_DE | sides,
        "en-fr": EN_DE | ntrex | {"target_language": "fr"},
    }
    recipe = recipe_of(BOTH, monolingual=[of | wiki for of in languages.values()], bitext=list(pairs.values()))
    assert list(recipe.named_corpora()) == [*languages, *pairs]
