"""The teacher of a run: its inputs, its predictions, and that it is not saved with the model."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import ByteLevelBPETokenizer
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer, RobertaConfig, RobertaForMaskedLM

from modeling.modeling_metaxlm import MetaXlmForPreTraining
from pretraining.data.examples import Example, Texts, encode_texts
from pretraining.objectives import MlmCollator
from pretraining.objectives.kd import Kd
from pretraining.recipe import Teacher
from pretraining.start.teacher import TeacherModel, text_of
from pretraining.start.token_texts import Subword
from pretraining.tracking import read_events

TEXTS = [
    "On the way, the train was late and we were not in the house.",
    "It is not the same (for us), said the old man at the door!",
    "one",
]

LEARNED = {"kd": Kd()}


def teacher_of(path, student, language="en", temperature=1.0, tokenizer=None):
    return TeacherModel(
        Teacher(path=str(path), language=language, temperature=temperature, tokenizer=tokenizer), student
    )


def batch_of(texts, tokenizer, names=None, probability=0.3):
    examples = [
        Example([np.array(ids)], names[row] if names else "en", row)
        for row, ids in enumerate(encode_texts(texts, tokenizer))
    ]
    return {"mlm": MlmCollator(tokenizer, probability).sub_batch(Texts.of(examples), (1, 0))}


def predict(fields, tokenizer, rows_and_columns):
    """The same sub-batch with other predictions: all of them <mask>."""
    gold = torch.where(fields["labels"] != -100, fields["labels"], fields["input_ids"])
    labels = torch.full_like(gold, -100)
    for row, column in rows_and_columns:
        labels[row, column] = gold[row, column]
    masked = gold.masked_fill(labels != -100, tokenizer.mask_token_id)
    return fields | {"input_ids": masked, "labels": labels}


@pytest.fixture(scope="session")
def roberta_dir(tmp_path_factory):
    """Folder of a random RoBERTa with its own byte-level BPE, trained on the texts above."""
    folder = tmp_path_factory.mktemp("roberta")
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    byte_level = ByteLevelBPETokenizer()
    byte_level.train_from_iterator(
        TEXTS * 20, vocab_size=400, min_frequency=1, special_tokens=specials, show_progress=False
    )
    byte_level.save_model(str(folder))
    (folder / "config.json").write_text(json.dumps({"model_type": "roberta"}))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    sizes = dict(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    config = RobertaConfig(vocab_size=len(tokenizer), max_position_embeddings=70, initializer_range=0.5, **sizes)
    RobertaForMaskedLM(config).save_pretrained(folder)
    return folder


# what it is asked


@pytest.mark.parametrize(
    "subwords, text, words",
    [
        ([Subword("don", True), Subword("'", False), Subword("t", False)], "don't", [0, 1, 2]),
        (
            [Subword("play", True), Subword("ing", False), Subword("(", True), Subword("a", False)],
            "playing (a",
            [0, 0, 1, 2],
        ),
        ([Subword("ing", False), Subword("a", True)], "ing a", [0, 1]),  # a window that begins within a word
        ([Subword("", True), Subword("中国", False), Subword("人", False)], "中国人", [0, 0, 1]),
        ([b" \xc3", b"\xa9", Subword("s", False), b"\xff"], "és\ufffd", [0, 0, 0, 1]),
        ([Subword("नमस", True), Subword("्ते", False)], "नमस्ते", [0, 0]),  # a mark continues its word
        ([], "", []),
    ],
)
def test_rows_as_text(subwords, text, words):
    row = text_of(subwords)
    assert row.text == text and row.words_T == words
    assert all((word == -1) == (c == " ") for c, word in zip(text, row.words_of_text, strict=True))


@pytest.mark.parametrize("folder", ["teacher_dir", "roberta_dir"])
def test_words_of_one_subword_in_both_are_asked_about_and_nothing_else(folder, sample_tokenizer, request):
    teacher = teacher_of(request.getfixturevalue(folder), sample_tokenizer)
    fields = batch_of(TEXTS, sample_tokenizer)["mlm"]
    ordinary = (fields["special_tokens_mask"] == 0).nonzero().tolist()
    fields = predict(fields, sample_tokenizer, ordinary)
    before = " " if folder == "roberta_dir" else ""
    for row, question in enumerate(teacher._questions(fields, [0, 1, 2])):
        inner = question.input_ids_S[1:-1]
        assert (inner == teacher.tokenizer.mask_token_id).all() and len(question.input_ids_S) > 2
        asked = {}
        for column, place in zip(question.columns_N, question.places_N, strict=True):
            asked[column] = sample_tokenizer.convert_ids_to_tokens(int(fields["labels"][row, column]))
            assert 0 < place < len(question.input_ids_S) - 1
        # word by word: the tokens of either tokenizer, of a word alone
        tokens = sample_tokenizer.convert_ids_to_tokens(fields["labels"][row].clamp(min=0).tolist())
        for column, token in enumerate(tokens):
            follows = tokens[column + 1] if column + 1 < len(tokens) else "</s>"
            is_word = token.startswith("▁") and token[1:].isalpha() and not follows[0].isalpha()
            if is_word and token[1:].islower():
                ids = teacher.tokenizer(before + token[1:], add_special_tokens=False)["input_ids"]
                # the first word of a text has no space before it, in byte-level subwords
                single = len(ids) == 1 and (column > 1 or not before)
                assert (column in asked) == single, token
            elif token.startswith("▁") and follows[0].isalpha() and len(follows) < 3:
                assert column not in asked
    assert {"▁the", "▁not"} & set(asked.values()) or row == 2


def test_the_teacher_sees_the_text_but_for_the_predicted_words(teacher_dir, sample_tokenizer):
    """Its masks cover a word that the student predicts a part of; a wrong or a kept subword is not shown to it."""
    teacher = teacher_of(teacher_dir, sample_tokenizer)
    fields = batch_of([TEXTS[0]], sample_tokenizer)["mlm"]
    plain = teacher.tokenizer(TEXTS[0])["input_ids"]
    nothing = predict(fields, sample_tokenizer, [])
    (question,) = teacher._questions(nothing, [0])
    assert question.input_ids_S.tolist() == plain and question.columns_N == []
    tokens = sample_tokenizer.convert_ids_to_tokens(nothing["input_ids"][0].tolist())
    one = tokens.index("▁the")
    begin = next(i for i, token in enumerate(tokens) if not token.startswith("▁") and token.isalpha()) - 1
    changed = predict(fields, sample_tokenizer, [(0, one), (0, begin + 1)])
    (question,) = teacher._questions(changed, [0])
    assert question.columns_N == [one]
    masked = np.flatnonzero(question.input_ids_S == teacher.tokenizer.mask_token_id)
    words = teacher.tokenizer(TEXTS[0]).word_ids()
    assert question.places_N[0] in masked
    others = [words[place] for place in masked if place != question.places_N[0]]
    assert len(set(others)) == 1 and others[0] != words[question.places_N[0]]
    assert [place for place, word in enumerate(words) if word == others[0]] == [
        place for place in masked if words[place] == others[0]
    ]
    # the student is shown another subword there: the teacher's question is the same
    shown = changed | {"input_ids": changed["input_ids"].clone()}
    shown["input_ids"][0, one] = nothing["input_ids"][0, one + 1]
    assert (teacher._questions(shown, [0])[0].input_ids_S == question.input_ids_S).all()


# what it answers


def test_answers_are_the_teachers_own_over_the_common_subwords(teacher_dir, sample_tokenizer):
    teacher = teacher_of(teacher_dir, sample_tokenizer, temperature=2.0)
    reference = AutoModelForMaskedLM.from_pretrained(teacher_dir).eval()
    batch = batch_of([TEXTS[0], "Das ist the house.", TEXTS[1]], sample_tokenizer, ["en", "de", "en"], 0.9)
    teacher.answer(batch, LEARNED, {})
    given = batch["mlm"]["teacher"]
    length = batch["mlm"]["input_ids"].shape[1]
    assert set((given["positions_N"] // length).tolist()) == {0, 2}  # none of the German row
    vocabularies = [{id: token for token, id in t.get_vocab().items()} for t in (sample_tokenizer, teacher.tokenizer)]
    theirs = [teacher.partners[subword] for subword in given["tokens_C"].tolist()]
    assert len(set(theirs)) == len(theirs) > 100
    for own, their in zip(given["tokens_C"].tolist(), theirs, strict=True):
        assert vocabularies[0][own].removeprefix("▁") == vocabularies[1][their].removeprefix("##")
    expected = []
    for row in (0, 2):
        (question,) = teacher._questions(batch["mlm"], [row])
        logits = reference(torch.tensor(question.input_ids_S)[None]).logits[0, question.places_N][:, theirs]
        expected.append((logits / 2.0).log_softmax(-1))
    assert torch.allclose(given["log_probabilities_NC"], torch.cat(expected), atol=1e-5)
    assert not given["log_probabilities_NC"].requires_grad and given["temperature"] == 2.0
    left_out = batch_of(TEXTS, sample_tokenizer)
    teacher.answer(left_out, LEARNED, {"kd": 0.0})
    assert "teacher" not in left_out["mlm"]
    german = batch_of(["Das ist gut."], sample_tokenizer, ["de"])
    teacher.answer(german, LEARNED, {"kd": 1.0})
    assert german["mlm"]["teacher"]["log_probabilities_NC"].shape == (0, len(theirs))


def test_a_model_that_is_its_own_teacher_learns_nothing(zoo_model_dir, sample_tokenizer):
    """A pre-training folder of this zoo as the teacher; where words are masked whole, both read the same."""
    folder = zoo_model_dir("metaxlm")
    teacher, student = teacher_of(folder, sample_tokenizer), MetaXlmForPreTraining.from_pretrained(folder).eval()
    texts = [
        TEXTS[0],
        "It is not the same for us, said the old man at the door.",
    ]  # no unknown character: it is not sent
    fields = batch_of(texts, sample_tokenizer)["mlm"]
    every = predict(fields, sample_tokenizer, (fields["special_tokens_mask"] == 0).nonzero().tolist())
    places = [(row, q.columns_N[0]) for row, q in enumerate(teacher._questions(every, [0, 1])) if q.columns_N]
    batch = {"mlm": predict(fields, sample_tokenizer, places)}
    teacher.answer(batch, LEARNED, {})
    assert len(batch["mlm"]["teacher"]["positions_N"]) == len(places) == 2
    output = student(**batch)
    assert output.token_losses["kd"].max() < 1e-5 < output.token_losses["mlm"].min()
    # every ordinary subword is common
    assert len(teacher.partners) > 0.95 * len(sample_tokenizer)


# in a run


@pytest.fixture
def taught(train, teacher_dir):
    """The command with a teacher."""

    def command(*arguments):
        teacher = f"teacher={{path: {teacher_dir}, language: en, temperature: 2.0}}"
        train("model.type=metaxlm", "phases.0.objectives.kd={weight: 2.0}", teacher, *arguments)

    return command


@pytest.mark.slow
def test_a_run_logs_resumes_and_keeps_its_teacher_out(taught, fails, teacher_dir, difference, cut_back, tmp_path):
    copy = shutil.copytree(teacher_dir, tmp_path / "teacher")
    common = [
        f"teacher.path={copy}",
        "save_every_steps=1",
        "keep_checkpoints=0",
        "evaluation={held_out_fraction: 0.1, max_examples: 8}",
        "phases.0.steps=2",
        "model.config.hidden_dropout_prob=0.1",
        "monolingual.0.name=news",
    ]
    taught(*common)
    run = tmp_path / "run"
    lines = read_events(run)
    keys = {key for line in lines for key in line}
    assert {"loss/kd/en/news", "held_out/kd/en/news", "loss/mlm/de", "held_out/mlm/zh"} <= keys
    assert not {f"{kind}/kd/{name}" for kind in ("loss", "held_out") for name in ("de", "zh")} & keys
    assert not any(key.startswith("unigram_entropy/kd") for key in keys)
    (facts,) = json.loads((run / "run.json").read_text(encoding="utf-8"))["teachers"]
    assert facts["fingerprint"].startswith("sha256:") and facts["language"] == "en" and facts["common_tokens"] > 100
    saved = load_file(run / "model" / "model.safetensors")
    fresh = MetaXlmForPreTraining(MetaXlmForPreTraining.config_class.from_pretrained(run / "model"))
    assert saved.keys() <= fresh.state_dict().keys()
    resumed = cut_back(run, 1, tmp_path / "resumed")
    taught(*common, f"output_dir={resumed}", "--resume")
    assert difference(resumed, run) == 0
    shutil.rmtree(run / "model")
    weights = load_file(copy / "model.safetensors")
    save_file({name: tensor + 1.0 for name, tensor in weights.items()}, copy / "model.safetensors", {"format": "pt"})
    teacher = f"teacher={{path: {copy}, language: en, temperature: 2.0}}"
    assert "teacher" in fails(
        "model.type=metaxlm", "phases.0.objectives.kd={weight: 2.0}", teacher, *common[1:], "--resume"
    )


# errors


@pytest.fixture
def broken(teacher_dir, tmp_path):
    """A copy of the teacher to break."""

    def copy():
        shutil.rmtree(tmp_path / "broken", ignore_errors=True)
        return shutil.copytree(teacher_dir, tmp_path / "broken")

    return copy


def change_json(path, change):
    content = json.loads(path.read_text(encoding="utf-8"))
    change(content)
    path.write_text(json.dumps(content), encoding="utf-8")


def with_fewer_rows(folder):
    model = AutoModelForMaskedLM.from_pretrained(folder)
    model.resize_token_embeddings(model.config.vocab_size - 5, mean_resizing=False)
    model.save_pretrained(folder)


def without_mask(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.mask_token = None
    tokenizer.save_pretrained(folder)


def without_tokenizer(folder):  # transformers makes one of its special tokens alone
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        (folder / name).unlink(missing_ok=True)


def of_another_script(folder):
    def change(content):
        content["model"]["vocab"] = {
            token if token[0] == "[" and token[-1] == "]" else chr(0x10400 + number % 40) * (number // 40 + 1): number
            for token, number in content["model"]["vocab"].items()
        }

    change_json(folder / "tokenizer.json", change)
    (folder / "vocab.txt").unlink(missing_ok=True)


FAULTS = {  # what is done to the folder, and what the error names
    "no head": (lambda folder: AutoModel.from_pretrained(folder).save_pretrained(folder), "teacher.path"),
    "another shape": (lambda at: change_json(at / "config.json", lambda c: c.update(intermediate_size=48)), "shape"),
    "half a file": (lambda folder: (folder / "model.safetensors").write_bytes(b"half"), "teacher.path"),
    "fewer rows": (with_fewer_rows, "595"),
    "another padding": (lambda at: change_json(at / "config.json", lambda c: c.update(pad_token_id=3)), "padding id"),
    "no mask": (without_mask, "mask token"),
    "no tokenizer": (without_tokenizer, "teacher.path"),
    "another script": (of_another_script, "no common token"),
    "half a tokenizer": (lambda folder: (folder / "tokenizer.json").write_bytes(b"{}"), "teacher.path"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_folders_that_are_no_teacher(broken, sample_tokenizer, fault):
    change, named = FAULTS[fault]
    change(folder := broken())
    with pytest.raises(ValueError, match=named):
        teacher_of(folder, sample_tokenizer)


def test_a_foreign_tokenizer_of_equal_size(broken, teacher_dir, sample_tokenizer):
    """Its ids are in the range of the teacher's rows, but are other subwords."""

    def exchange(content):
        vocabulary = content["model"]["vocab"]
        content["model"]["vocab"] |= {"the": vocabulary["of"], "of": vocabulary["the"]}

    folder = broken()
    change_json(folder / "tokenizer.json", exchange)
    with pytest.raises(ValueError, match="teacher.tokenizer"):
        teacher_of(teacher_dir, sample_tokenizer, tokenizer=str(folder))
    # the same subwords, or nothing to compare them with
    teacher_of(teacher_dir, sample_tokenizer, tokenizer=str(teacher_dir))
    folder = broken()
    without_tokenizer(folder)
    teacher_of(folder, sample_tokenizer, tokenizer=str(teacher_dir))
