import string

from transformers import AutoTokenizer, XLMRobertaTokenizer

from crosslingual_zoo.pretraining.data.sources import row_key
from crosslingual_zoo.pretraining.tools.train_tokenizer import main, train_tokenizer


def test_train_tokenizer_has_xlm_rs_form(sample_tokenizer_dir):
    tokenizer = AutoTokenizer.from_pretrained(sample_tokenizer_dir)
    assert isinstance(tokenizer, XLMRobertaTokenizer)
    assert tokenizer.model_max_length == 512
    assert 1000 < len(tokenizer) <= 2000
    specials = tokenizer.convert_tokens_to_ids(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    assert specials == [0, 1, 2, 3, len(tokenizer) - 1]
    text = "Anna bakes fresh bread every Sunday morning."
    assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == text


def test_train_tokenizer_reads_long_texts_and_repeats(tmp_path):
    for name in ("a", "b"):
        train_tokenizer(["word " * 3000 + "zebra " * 3000, "a\nb"], tmp_path / name, 40)
    assert "▁zebra" in AutoTokenizer.from_pretrained(tmp_path / "a").get_vocab()
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()


def test_main_leaves_held_out_rows_out(files, recipe_of, tmp_path):
    rows = []
    for number in range(200):
        is_held_out = row_key(number) < 0.1 * 2**63
        text = "ωμέγα" if is_held_out else f"word{string.ascii_lowercase[number % 26] * 3} again"
        rows.append({"id": number, "text": text})
    table = {"language": "en", "path": files.jsonl("en.jsonl", rows)}
    recipe_of(monolingual=[table], evaluation={"held_out_fraction": 0.1})
    main(["--config", str(tmp_path / "recipe.yaml"), "--vocab_size", "80", "--output", str(tmp_path / "tokenizer")])
    assert "ω" not in "".join(AutoTokenizer.from_pretrained(tmp_path / "tokenizer").get_vocab())
