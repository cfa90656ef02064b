import json

import pytest
from transformers import AutoTokenizer, XLMRobertaTokenizer

from pretraining.data.sources import row_key
from pretraining.tools.train_tokenizer import main, train_tokenizer


def test_it_has_xlm_rs_form_and_reloads(sample_tokenizer_dir):
    tokenizer = AutoTokenizer.from_pretrained(sample_tokenizer_dir)
    assert isinstance(tokenizer, XLMRobertaTokenizer) and tokenizer.model_max_length == 512
    size = len(tokenizer)
    assert 1000 < size <= 2000
    specials = tokenizer.convert_tokens_to_ids(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    assert specials == [0, 1, 2, 3, size - 1]
    text = "Anna bakes fresh bread every Sunday morning."
    assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == text
    assert tokenizer("a", "b")["input_ids"][0] == 0
    config = json.loads((sample_tokenizer_dir / "tokenizer_config.json").read_text())
    assert not {"is_local", "local_files_only", "name_or_path"} & set(config)
    assert (sample_tokenizer_dir / "sentencepiece.bpe.model").exists()


def test_equal_texts_give_equal_files(tmp_path):
    texts = [f"The {word} is number {number}." for number in range(40) for word in ("cat", "dog", "house", "tree")]
    for name in ("a", "b"):
        train_tokenizer(iter(texts), tmp_path / name, 60)
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()


def test_long_texts_are_learned_from(tmp_path):
    train_tokenizer(["word " * 3000 + "zebra " * 3000, "a\nb"], tmp_path / "t", 40)
    assert "▁zebra" in AutoTokenizer.from_pretrained(tmp_path / "t").get_vocab()


def test_errors(tmp_path):
    with pytest.raises(ValueError, match="text"):
        train_tokenizer(["", " "], tmp_path, 100)
    with pytest.raises(ValueError, match="vocab_size"):
        train_tokenizer(["abcdefghijklmnopqrstuvwxyz"], tmp_path, 8)


def test_command_line_leaves_held_out_rows_out(files, tmp_path):
    rows = [{"id": number, "text": f"word{chr(97 + number % 26) * 3} again"} for number in range(200)]
    secret = [row["id"] for row in rows if row_key(row["id"]) < 0.1 * 2**63]
    for row in rows:
        if row["id"] in secret:
            row["text"] = "ωμέγα"
    values = {
        "output_dir": str(tmp_path / "run"),
        "model": {"type": "veco"},
        "monolingual": [{"language": "en", "path": files.jsonl("en.jsonl", rows)}],
        "phases": [{"name": "a", "steps": 1, "learning_rate": 1, "objectives": {"mlm": {"batch_size": 1}}}],
        "evaluation": {"held_out_fraction": 0.1},
    }
    recipe = files.lines("recipe.yaml", [json.dumps(values)])
    main(["--config", recipe, "--vocab_size", "80", "--output", str(tmp_path / "kept")])
    assert "ω" not in "".join(AutoTokenizer.from_pretrained(tmp_path / "kept").get_vocab())
    everything = ["--output", str(tmp_path / "all"), "evaluation.held_out_fraction=0"]
    main(["--config", recipe, "--vocab_size", "80", *everything])
    assert "ω" in "".join(AutoTokenizer.from_pretrained(tmp_path / "all").get_vocab())
    for size, folder in (("0", "no"), ("5", "no"), ("80", "kept")):  # too small; a folder that holds something
        with pytest.raises(SystemExit) as stop:
            main(["--config", recipe, "--vocab_size", size, "--output", str(tmp_path / folder)])
        assert stop.value.code == 2
