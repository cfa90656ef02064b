import datasets
import pytest
from transformers import AutoTokenizer

from pretraining.tools.controlled_pair import main, twin_of, twin_offset
from zoo_core.tables import Table, load_table


@pytest.fixture(scope="module")
def pair_dir(sample_corpus_dir, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    main(["--dataset", str(sample_corpus_dir), "--config", "en", "--output", str(folder), "--vocab_size", "400"])
    return folder


@pytest.fixture(scope="module")
def tokenizer(pair_dir):
    return AutoTokenizer.from_pretrained(pair_dir / "tokenizer")


def assert_shifted(tokenizer, original, twins):
    offset, shared = twin_offset(tokenizer), set(tokenizer.all_special_ids)
    before = tokenizer(list(original), add_special_tokens=False)["input_ids"]
    after = tokenizer(list(twins), add_special_tokens=False)["input_ids"]
    assert after == [[i if i in shared else i + offset for i in ids] for ids in before]
    assert all(i in shared or i < 4 + offset for ids in before for i in ids)


@pytest.mark.parametrize("split", ["train", "test"])
def test_every_id_of_a_twin_text_is_shifted_by_a_constant(pair_dir, tokenizer, sample_corpus_dir, split):
    original, twins = (load_table(Table(path=str(pair_dir), config=c, split=split)) for c in ("en", "fake"))
    source = load_table(Table(path=str(sample_corpus_dir), config="en", split=split))
    assert original[:] == source[:]
    assert [twins[column][:] for column in ("id", "topic")] == [source[column][:] for column in ("id", "topic")]
    assert_shifted(tokenizer, original["text"][:], twins["text"][:])
    assert not set("".join(original["text"])) & set("".join(twins["text"])) - {" "}


def test_tokens_are_doubled_and_nothing_else_is_shared(tokenizer):
    offset = twin_offset(tokenizer)
    assert len(tokenizer) == 5 + 2 * offset
    tokens = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    assert tokens[:4] == ["<s>", "<pad>", "</s>", "<unk>"] and tokens[-1] == "<mask>"
    assert [twin_of(token) for token in tokens[4 : 4 + offset]] == tokens[4 + offset : -1]
    assert "▁" not in tokens and len(set(tokens)) == len(tokens)


def test_hard_texts_are_shifted_too(tokenizer):
    texts = [
        "ﬁne ½ “quotes” e\u0301té é",  # what normalization changes
        "unknown 漢字 and 😀 letters",
        "  many \t kinds\u3000of\u00a0space  ",
        "a ▁ b ▁c",
        "Q Xylophone zzz",
        "",
    ]
    normalize = tokenizer.backend_tokenizer.normalizer.normalize_str
    assert_shifted(tokenizer, texts, [twin_of(normalize(text)) for text in texts])


def test_another_labeled_dataset_with_the_same_tokenizer(pair_dir, tokenizer, tmp_path):
    text, label = datasets.Value("string"), datasets.ClassLabel(names=["yes", "no"])
    features = datasets.Features({"premise": text, "hypothesis": text, "label": label})
    rows = [{"premise": "A dog runs.", "hypothesis": "An animal runs.", "label": 0}] * 2
    rows.append({"premise": "A dog runs.", "hypothesis": None, "label": 1})
    (tmp_path / "nli").mkdir()
    for split in ("train", "validation"):
        datasets.Dataset.from_list(rows, features=features).to_parquet(tmp_path / "nli" / f"{split}.parquet")
    options = ["--text_columns", "premise", "hypothesis", "--tokenizer", str(pair_dir / "tokenizer")]
    main(["--dataset", str(tmp_path / "nli"), "--output", str(tmp_path / "out"), *options])
    for split in ("train", "validation"):
        twins = load_table(Table(path=str(tmp_path / "out"), config="fake", split=split))
        assert twins.features == features and twins["label"][:] == [0, 0, 1]
        assert twins["hypothesis"][2] is None
        for column in ("premise", "hypothesis"):
            assert_shifted(tokenizer, [rows[0][column]], [twins[column][0]])
    assert not (tmp_path / "out" / "tokenizer").exists()


def test_errors(sample_corpus_dir, sample_tokenizer_dir, tmp_path, capsys):
    for arguments, named in (
        (["--config", "enn"], "'en'"),
        (["--config", "en", "--text_columns", "txt"], "txt"),
        (["--config", "en", "--vocab_size", "20"], "vocabulary of 20"),
        (["--config", "en", "--tokenizer", str(sample_tokenizer_dir)], "twin"),
    ):
        with pytest.raises(SystemExit) as stop:
            main(["--dataset", str(sample_corpus_dir), "--output", str(tmp_path), *arguments])
        assert stop.value.code == 2 and named in " ".join(capsys.readouterr().err.split())
    with pytest.raises(ValueError, match=r"U\+20000"):
        twin_of("\U00020000")
