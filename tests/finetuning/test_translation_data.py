"""Tables of pairs to encoded pairs, steps and batches."""

import numpy as np
import pytest
from datasets import Dataset

from crosslingual_zoo.finetuning.tasks.registry import task_of
from crosslingual_zoo.finetuning.tasks.translation.batches import Examples, StepPlan, collate, evaluation_batches
from crosslingual_zoo.finetuning.tasks.translation.recipe import TrainingPairs, TranslationRecipe
from crosslingual_zoo.finetuning.tasks.translation.trainer import saved_steps
from crosslingual_zoo.zoo_core.masking import IGNORED
from crosslingual_zoo.zoo_core.recipes import load_recipe
from tests.finetuning.labeled_rows import read_rows
from tests.finetuning.tasks import encode

TSV = "source_column: a, target_column: b"


def recipe_of(overrides, *more):
    return load_recipe(TranslationRecipe, None, [*overrides, *more])


def write_tsv(path, rows, header=("a", "b")):
    path.write_text("".join("\t".join(row) + "\n" for row in (header, *rows)), encoding="utf-8")
    return path


@pytest.fixture
def files(captions, tmp_path):
    """Overrides that read TSV files of their own."""
    train = write_tsv(tmp_path / "train.tsv", [("a house", "ein Haus"), ("a tree", "ein Baum")])
    test = write_tsv(tmp_path / "test.tsv", [("a dog", "ein Hund")])
    return [*captions, f"train=[{{path: {train}, {TSV}}}]", f"test=[{{path: {test}, {TSV}}}]"]


def test_read_joins_two_tables(captions, sample_corpus_dir):
    data = task_of(recipe_of(captions, "max_test_examples=0")).read()
    assert len(data.evaluation["en-de"]) == 30
    for side, language in (("source", "en"), ("target", "de")):
        rows = read_rows(sample_corpus_dir / language / "train.jsonl")
        assert data.train[side][:] == [row["text"] for row in rows]


def test_encode_drops_or_cuts_long_pairs(files, sample_tokenizer, tmp_path):
    write_tsv(tmp_path / "train.tsv", [("a house", "ein Haus"), ("a " * 30, "ein Baum"), ("a tree", "ein " * 30)])
    write_tsv(tmp_path / "test.tsv", [("a dog " * 20, "ein Hund " * 20)])

    def encoded(too_long):
        recipe = recipe_of(files, "max_source_length=20", "max_target_length=16", f"too_long={too_long}")
        return encode(recipe, task_of(recipe).read(), sample_tokenizer)

    dropped = encoded("drop")
    assert len(dropped.train) == dropped.protocol["training_rows"] == 1
    assert dropped.protocol["long_pairs"] == {"train": {"all": 2}, "dev": {}, "evaluation": {"en-de": 1}}
    (row,) = dropped.evaluation["en-de"]
    assert len(row["source_ids"]) == 20
    assert (row["source_ids"][0], row["source_ids"][-1]) == (0, 2)
    assert row["target"] == "ein Hund " * 20  # the reference is whole
    cut = encoded("cut").train
    assert cut["source_length"][:2] == [len(sample_tokenizer("a house").input_ids), 20]
    assert cut["target_length"][2] == 16
    assert cut[2]["target_ids"][-1] == 2


@pytest.fixture
def lengths():
    """Lengths of the sources and targets of 200 pairs."""
    return np.random.default_rng(0).integers(3, 30, (2, 200))


def test_step_plan_holds_every_pair_once(lengths):
    plan = StepPlan(*lengths, 300, seed=1)
    for epoch in (0, 1):
        steps = plan.steps(epoch)
        assert len(steps) == len(plan)
        assert sorted(np.concatenate(steps)) == list(range(200))
        sizes = [len(rows) * lengths[:, rows].max() for rows in steps]
        assert max(sizes) <= 300
        assert np.mean(sizes) > 200
    _, target = lengths
    content = np.mean([target[rows].mean() / target[rows].max() for rows in steps])
    assert content > 0.9  # pairs of alike length are together
    again = StepPlan(*lengths, 300, seed=1)
    assert np.array_equal(np.concatenate(again.steps(1)), np.concatenate(steps))
    other = StepPlan(*lengths, 300, seed=2)
    firsts = {tuple(steps[0]), tuple(plan.steps(0)[0]), tuple(other.steps(1)[0])}
    assert len(firsts) == 3  # order changes with the epoch and with the seed


@pytest.mark.parametrize(
    ("overrides", "steps"),
    [
        ("training.max_steps=0 training.epochs=2.5 evaluate_every_steps=0", [10, 20, 25]),
        ("training.max_steps=6 evaluate_every_steps=4", [4, 6]),
        ("training.max_steps=8 evaluate_every_steps=4", [4, 8]),
    ],
)
def test_saved_steps_end_with_the_last(overrides, steps, captions):
    assert saved_steps(recipe_of(captions, *overrides.split()), range(10)) == steps  # ten steps an epoch


def test_collate_pads_and_shifts():
    rows = [
        {"source": np.array([0, 5, 6, 2]), "target": np.array([7, 2]), "labels": np.array([7, 2])},
        {"source": np.array([0, 5, 2]), "target": np.array([8, 9, 2]), "labels": np.array([IGNORED, 9, IGNORED])},
    ]
    batch = {name: tensor.tolist() for name, tensor in collate(rows, padding_id=1, decoder_start_id=2).items()}
    assert batch == {
        "input_ids": [[0, 5, 6, 2], [0, 5, 2, 1]],
        "attention_mask": [[1, 1, 1, 1], [1, 1, 1, 0]],
        "decoder_input_ids": [[2, 7, 1], [2, 8, 9]],
        "labels": [[7, 2, IGNORED], [IGNORED, 9, IGNORED]],
    }


def masks(share, target="b"):
    return TrainingPairs(source_column="a", target_column=target, source_mask_probability=share)


def examples_of(tokenizer, *tables, count=40):
    """Examples of these tables, a row of each in turn."""
    rng = np.random.default_rng(0)
    sources = [[0, *rng.integers(4, 200, 12).tolist(), 2] for _ in range(count)]
    rows = {
        "source_ids": sources,
        "target_ids": [ids[1:] for ids in sources],
        "table": [n % len(tables) for n in range(count)],
    }
    return Examples(Dataset.from_dict(rows), tokenizer, seed=7, tables=list(tables))


def sources_of(examples, keys):
    return [row["source"].tolist() for row in examples.__getitems__(keys)]


def test_examples_masks_depend_on_seed_epoch_and_row(sample_tokenizer):
    examples = examples_of(sample_tokenizer, masks(0.3))
    keys = [(row, 2, True) for row in range(40)]
    together = sources_of(examples, keys)
    assert sources_of(examples, keys[::-1]) == together[::-1]
    assert examples[keys[5]]["source"].tolist() == together[5]
    later = sources_of(examples, [(row, 3, True) for row in range(40)])
    assert sum(a != b for a, b in zip(together, later, strict=True)) > 36
    assert all((source[0], source[-1]) == (0, 2) for source in together)


def test_examples_of_each_table_have_its_masking(sample_tokenizer):
    examples = examples_of(sample_tokenizer, masks(0.0), masks(0.5))
    rows = examples.__getitems__([(row, 0, True) for row in range(40)])
    is_masked = [row["source"].tolist() != ids for row, ids in zip(rows, examples.rows["source_ids"], strict=True)]
    assert is_masked == [False, True] * 20
    assert all((row["labels"] != IGNORED).all() for row in rows)


def test_examples_predict_masked_tokens_alone(sample_tokenizer):
    examples = examples_of(sample_tokenizer, masks(0.25, "a"), count=400)
    rows = examples.__getitems__([(row, 0, True) for row in range(400)])
    shares = []
    for number, row in enumerate(rows):
        original = np.asarray(examples.rows[number]["source_ids"])
        predicted = row["labels"] != IGNORED
        assert np.array_equal(row["target"], original[1:])  # the decoder reads the text as it is
        assert np.array_equal(row["labels"][predicted], original[1:][predicted])
        changed = row["source"][1:] != original[1:]
        assert not (changed & ~predicted).any()  # what was changed is predicted
        assert not predicted[-1]
        shares.append(predicted[:-1].mean())
    assert np.mean(shares) == pytest.approx(0.25, abs=0.01)


def test_examples_that_fill_a_gap_have_no_labels(sample_tokenizer):
    for table in (masks(0.0), masks(0.5, "a")):
        assert (examples_of(sample_tokenizer, table)[(0, 0, False)]["labels"] == IGNORED).all()


def test_evaluation_batches_hold_each_row_once():
    sizes = np.array([5, 50, 7, 6, 5, 300])
    batches = [batch for process in (0, 1) for batch in evaluation_batches(sizes, 100, 2, process)]
    assert sorted(row for batch in batches for row in batch) == [0, 1, 2, 3, 4, 5]
    assert all(len(batch) * sizes[batch].max() <= 100 or len(batch) == 1 for batch in batches)


def test_read_refuses_joins_without_a_partner(files, tmp_path):
    other = write_tsv(tmp_path / "other.tsv", [("a dog", "x"), ("a dog", "y")])
    joined = f"{{path: {tmp_path / 'train.tsv'}, {TSV}, target: {{path: {other}}}, join_on: a}}"
    with pytest.raises(ValueError, match="column a"):
        task_of(recipe_of(files, f"train=[{joined}]")).read()
