import json

import pytest
from transformers import AutoTokenizer, XLMRobertaTokenizer

from pretraining.data.sources import row_key
from pretraining.tools.train_tokenizer import main, train_tokenizer


def test_train_tokenizer_has_xlm_rs_form(sample_tokenizer_dir):
    tokenizer = AutoTokenizer.from_pretrained(sample_tokenizer_dir)
    assert isinstance(tokenizer, XLMRobertaTokenizer) and tokenizer.model_max_length == 512
    assert 1000 < len(tokenizer) <= 2000
    specials = tokenizer.convert_tokens_to_ids(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    assert specials == [0, 1, 2, 3, len(tokenizer) - 1]
    text = "Anna bakes fresh bread every Sunday morning."
    assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == text
    config = json.loads((sample_tokenizer_dir / "tokenizer_config.json").read_text())
    assert not {"is_local", "local_files_only", "name_or_path"} & set(config)


def test_train_tokenizer_reads_long_texts_and_repeats(tmp_path):
    for name in ("a", "b"):
        train_tokenizer(["word " * 3000 + "zebra " * 3000, "a\nb"], tmp_path / name, 40)
    assert "▁zebra" in AutoTokenizer.from_pretrained(tmp_path / "a").get_vocab()
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()


@pytest.mark.parametrize("texts, size, named", [(["", " "], 100, "text"), (["abcdefghijklmnopqrstuvwxyz"], 8, "size")])
def test_train_tokenizer_refuses(tmp_path, texts, size, named):
    with pytest.raises(ValueError, match=named):
        train_tokenizer(texts, tmp_path, size)


def test_main_leaves_held_out_rows_out(files, tmp_path):
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
    for size, folder in (("0", "no"), ("5", "no"), ("80", "kept")):  # too small; a folder that holds something
        with pytest.raises(SystemExit) as stop:
            main(["--config", recipe, "--vocab_size", size, "--output", str(tmp_path / folder)])
        assert stop.value.code == 2
