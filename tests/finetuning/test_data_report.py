"""--check_data: the data of a run by part and language, without training or writing anything."""

from datasets import Dataset

from finetuning.run import main


def rows_of(printed, part):
    """Cells of the printed lines of a part, by language."""
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in printed.splitlines()]
    return {row[1]: row[2:] for row in cells if row and row[0] == part}


def test_check_data_counts_classification(topics, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    main([*topics, "--check_data", "max_length=12"])
    printed = capsys.readouterr().out
    assert not (tmp_path / "out").exists() and "Nothing was trained or written" in printed
    printed, _, labels = printed.partition("rows by label")
    counts = {part: rows_of(labels, part) for part in ("train", "dev", "evaluation")}
    assert list(counts["evaluation"]) == ["en", "de", "zh"]
    assert [sum(map(int, counts[part][language])) for part, language in (("train", "all"), ("dev", "en"))] == [216, 24]
    assert counts["evaluation"]["de"] == ["12"] * 5  # topics, the same number of each
    evaluated = rows_of(printed, "evaluation")
    assert list(evaluated) == ["en", "de", "zh"]
    for rows, inputs, longest, cut in evaluated.values():
        assert rows == inputs == "60" and int(longest) == 12 and int(cut) > 0
    assert rows_of(printed, "train")["all"][0] == "216" and rows_of(printed, "dev")["en"][0] == "24"


def test_check_data_counts_tagging_and_translation(topics, captions, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    for name in ("train", "de"):
        rows = [{"tokens": ["a", "dog", "\u200b"] * 20, "tags": ["X", "Y", "X"] * 20}]
        Dataset.from_list(rows).to_parquet(tmp_path / f"{name}.parquet")
    columns = "text_columns: [tokens], label_column: tags"
    tables = [
        f"train=[{{path: {tmp_path}/train.parquet, {columns}}}]",
        f"evaluation=[{{path: {tmp_path}/de.parquet, languages: [de], {columns}}}]",
    ]
    main([*topics, *tables, "kind=tagging", "selection=last", "--check_data"])
    printed = capsys.readouterr().out
    printed, _, labels = printed.partition("words by label")
    assert rows_of(labels, "train")["all"] == rows_of(labels, "evaluation")["de"] == ["40", "20"]
    rows, inputs, longest, split = rows_of(printed, "evaluation")["de"]
    assert (rows, split) == ("1", "1") and int(inputs) > 1 and int(longest) <= 24
    assert "warning: the labels mark no chunks" in printed

    main([*captions, "--check_data", "too_long=cut", "max_target_length=12"])
    printed = capsys.readouterr().out
    assert rows_of(printed, "evaluation")["en-de"][0] == "3"
    rows, _, _, longest_target, long = rows_of(printed, "train")["all"][:5]
    assert (rows, longest_target) == ("240", "12") and int(long) > 200
