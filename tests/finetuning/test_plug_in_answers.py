"""Plug-in question answering: windows paired with those of the translation, whose answers count once."""

from finetuning.tasks.registry import task_of
from tests.finetuning.plug_in_kinds import KINDS, questions
from tests.finetuning.tasks import encode

KIND = KINDS["question_answering"]


def test_read_counts_translations_without_answer(write):
    data = KIND.read(write("train", questions(8)), write("test", questions(8)))
    assert data.train["translation_start"][-1] == -1
    assert any("1 none in the context" in warning for warning in data.warnings)


def test_encode_windows_with_those_of_the_translation(write, sample_tokenizer):
    rows = questions(8)
    recipe = KIND.load(write("train", rows), write("test", rows))
    encoded = encode(recipe, task_of(recipe).read(), sample_tokenizer)

    def alone(suffix):
        """The windows of the columns of a side, read as a text of its own."""
        swapped = [{name: row[name + suffix] for name in ("question", "context", "answers")} for row in rows]
        names = (
            {"translation_columns": ["question", "context", "answers"]},
            {"translation_columns": ["question", "context"]},
        )
        paths = write(f"train{suffix}2", swapped), write(f"test{suffix}2", swapped)
        own = [KIND.table(path, True, **fields) for path, fields in zip(paths, names, strict=True)]
        return encode(recipe, KIND.read(*own), sample_tokenizer).evaluation["de"].to_list()

    x, y = alone(""), alone("_en")
    found = encoded.evaluation["de"].to_list()
    assert [window["input_ids"] for window in found] == [window["input_ids"] for window in x]
    assert not any("positions" in name for name in encoded.evaluation["de"].column_names)
    unread = 0
    place = 0
    for row in range(len(rows)):
        own, others = ([window for window in side if window["row"] == row] for side in (found, y))
        unread += len(others) > len(own)
        for number, window in enumerate(own):
            other = others[min(number, len(others) - 1)]
            assert window["translation_input_ids"] == other["input_ids"]
            assert window["length"] == len(window["input_ids"]) + len(other["input_ids"])
            trained = encoded.train[place]
            place += 1
            assert trained["translation_input_ids"] == other["input_ids"]
            positions = [trained["translation_start_positions"], trained["translation_end_positions"]]
            if row == len(rows) - 1 or number >= len(others):
                assert min(positions) > 40  # ignored: not known, or learned before
            else:
                assert positions == other["labels"]
    assert unread and any(len([w for w in y if w["row"] == row]) > 1 for row in range(8))
    assert encoded.protocol["cut_translations"]["evaluation"] == {"de": unread}
