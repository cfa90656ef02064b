"""The teacher of a run: its inputs, its predictions, and that it is not saved with the model."""

import re

import numpy as np
import pytest
import torch
from transformers import AutoModelForMaskedLM

from crosslingual_zoo.modeling.modeling_metaxlm import MetaXlmForPreTraining
from crosslingual_zoo.pretraining.data.examples import encode_texts
from crosslingual_zoo.pretraining.objectives.kd import Kd
from crosslingual_zoo.pretraining.objectives.mlm import MlmCollator
from crosslingual_zoo.pretraining.recipe import Teacher
from crosslingual_zoo.pretraining.start.teacher import TeacherModel, text_of, words_of_text
from crosslingual_zoo.pretraining.start.token_texts import Subword
from crosslingual_zoo.pretraining.tracking import read_events
from tests.pretraining.made_texts import Example, texts_of
from tests.pretraining.run_folders import weights_of

TEXTS = [
    "On the way, the train was late and we were not in the house.",
    "It is not the same (for us), said the old man at the door.",
]
LEARNED = {"kd": Kd()}


def teacher_of(path, student, temperature=1.0):
    return TeacherModel(Teacher(path=str(path), language="en", temperature=temperature), student)


def batch_of(texts, tokenizer, names=("en", "en", "en"), probability=0.3):
    """An MLM batch of texts of these corpora."""
    examples = []
    for row, ids in enumerate(encode_texts(texts, tokenizer)):
        examples.append(Example([np.array(ids)], names[row], row))
    return {"mlm": MlmCollator(tokenizer, mask_probability=probability).sub_batch(texts_of(examples), (1, 0))}


def predict(fields, tokenizer, rows_and_columns):
    """The same sub-batch with other predictions: all of them <mask>."""
    gold = torch.where(fields["labels"] != -100, fields["labels"], fields["input_ids"])
    labels = torch.full_like(gold, -100)
    for row, column in rows_and_columns:
        labels[row, column] = gold[row, column]
    others = {name: value for name, value in fields.items() if name != "prediction_positions"}
    return others | {"input_ids": gold.masked_fill(labels != -100, tokenizer.mask_token_id), "labels": labels}


@pytest.mark.parametrize(
    "subwords, text, words",
    [
        ([Subword("don", True), Subword("'", False), Subword("t", False)], " don't", [0, 1, 2]),
        ([Subword("play", True), Subword("ing", False), Subword("(", True)], " playing (", [0, 0, 1]),
        ([Subword("ing", False), Subword("a!", True)], "ing a!", [0, 1]),  # a window that begins within a word
        ([Subword("", True), Subword("中国", False), Subword("人", False)], " 中国人", [0, 0, 1]),
        ([b" \xc3", b"\xa9", Subword("s", False), b"\xff"], " és\ufffd", [0, 0, 0, 1]),
        ([Subword("नमस", True), Subword("्ते", False)], " नमस्ते", [0, 0]),  # a mark continues its word
        ([], "", []),
    ],
)
def test_words_of_text_cut_between_tokens(subwords, text, words):
    result, offsets = text_of(subwords)
    assert result == text
    word_of_character = words_of_text(text, offsets)
    assert [word_of_character[begin] for begin, _ in offsets] == words
    assert [word == -1 for word in word_of_character] == [character == " " for character in text]


def test_questions_are_about_words_of_one_token_in_both(teacher_dir, sample_tokenizer):
    teacher = teacher_of(teacher_dir, sample_tokenizer)
    fields = batch_of(TEXTS, sample_tokenizer)["mlm"]
    fields = predict(fields, sample_tokenizer, (fields["special_tokens_mask"] == 0).nonzero().tolist())
    for row, question in teacher.questions(fields, [0, 1]):
        assert (question.input_ids_S[1:-1] == teacher.tokenizer.mask_token_id).all()
        assert len(question.columns_N) > 3
        tokens = sample_tokenizer.convert_ids_to_tokens(fields["labels"][row].clamp(min=0).tolist())
        # word by word: the teacher's tokens of a word alone; the first word of a text has no space before it
        for column, token in enumerate(tokens[:-1]):
            if column > 1 and token[0] == "▁" and token[1:].islower() and not tokens[column + 1][0].isalpha():
                is_single = len(teacher.tokenizer(token[1:], add_special_tokens=False)["input_ids"]) == 1
                assert (column in question.columns_N) == is_single, token


def test_question_masks_whole_words_of_predictions_alone(teacher_dir, sample_tokenizer):
    """Its masks cover a word that the student predicts a part of; a wrong or a kept token is not shown to it."""
    teacher = teacher_of(teacher_dir, sample_tokenizer)
    fields = batch_of(TEXTS[:1], sample_tokenizer)["mlm"]
    unmasked = predict(fields, sample_tokenizer, [])
    ((_, question),) = teacher.questions(unmasked, [0])
    assert question.input_ids_S.tolist() == teacher.tokenizer(TEXTS[0])["input_ids"]
    assert question.columns_N == []
    tokens = sample_tokenizer.convert_ids_to_tokens(unmasked["input_ids"][0].tolist())
    whole_word = tokens.index("▁the")
    part_of_word = next(column for column, token in enumerate(tokens) if token.isalpha())
    masked = predict(fields, sample_tokenizer, [(0, whole_word), (0, part_of_word)])
    ((_, question),) = teacher.questions(masked, [0])
    assert question.columns_N == [whole_word]
    words = np.array(teacher.tokenizer(TEXTS[0]).word_ids(), dtype=object)
    is_mask_S = question.input_ids_S == teacher.tokenizer.mask_token_id
    masked_words = set(words[is_mask_S])
    assert len(masked_words) == 2
    assert words[question.places_N[0]] in masked_words
    assert [word in masked_words for word in words] == is_mask_S.tolist()
    replaced = masked | {"input_ids": masked["input_ids"].clone()}
    replaced["input_ids"][0, whole_word] = unmasked["input_ids"][0, whole_word + 1]
    ((_, same_question),) = teacher.questions(replaced, [0])
    assert same_question.input_ids_S.tolist() == question.input_ids_S.tolist()


def test_answers_are_the_teachers_own_over_the_common_tokens(teacher_dir, sample_tokenizer):
    teacher = teacher_of(teacher_dir, sample_tokenizer, temperature=2.0)
    reference = AutoModelForMaskedLM.from_pretrained(teacher_dir).eval()
    batch = batch_of([TEXTS[0], "Das ist the house.", TEXTS[1]], sample_tokenizer, ["en", "de", "en"], 0.9)
    teacher.answer(batch, LEARNED, {})
    answer = batch["mlm"]["teacher"]
    rows_N = answer["positions_N"] // batch["mlm"]["input_ids"].shape[1]
    assert set(rows_N.tolist()) == {0, 2}  # none of the German row
    ids = answer["tokens_C"].tolist()
    teacher_ids = [teacher.partners[id] for id in ids]
    assert len(set(teacher_ids)) == len(teacher_ids) > 100
    spelled = [token.removeprefix("▁") for token in sample_tokenizer.convert_ids_to_tokens(ids)]
    teacher_tokens = teacher.tokenizer.convert_ids_to_tokens(teacher_ids)
    assert spelled == [token.removeprefix("##") for token in teacher_tokens]
    expected = []
    for _, question in teacher.questions(batch["mlm"], [0, 2]):
        logits_SV = reference(torch.tensor(question.input_ids_S)[None]).logits[0]
        logits_NC = logits_SV[question.places_N][:, teacher_ids]
        expected.append((logits_NC / 2.0).log_softmax(-1))
    torch.testing.assert_close(answer["log_probabilities_NC"], torch.cat(expected), atol=1e-5, rtol=0)
    assert not answer["log_probabilities_NC"].requires_grad
    assert answer["temperature"] == 2.0


def test_answer_to_rows_of_other_languages_is_empty(teacher_dir, sample_tokenizer):
    """Without a weight, there is none."""
    teacher = teacher_of(teacher_dir, sample_tokenizer)
    german = batch_of(["Das ist gut."], sample_tokenizer, ["de"])
    teacher.answer(german, LEARNED, {"kd": 0.0})
    assert "teacher" not in german["mlm"]
    teacher.answer(german, LEARNED, {})
    answer = german["mlm"]["teacher"]
    assert answer["log_probabilities_NC"].shape == (0, len(answer["tokens_C"]))


def test_answer_of_the_model_itself_teaches_nothing(zoo_model_dir, sample_tokenizer):
    """A pre-training folder of this zoo as the teacher; where words are masked whole, both read the same."""
    folder = zoo_model_dir("metaxlm")
    teacher = teacher_of(folder, sample_tokenizer)
    student = MetaXlmForPreTraining.from_pretrained(folder).eval()
    texts = [re.sub("[()]", "", text) for text in TEXTS]  # an unknown character is another one to the teacher
    fields = batch_of(texts, sample_tokenizer)["mlm"]
    every = predict(fields, sample_tokenizer, (fields["special_tokens_mask"] == 0).nonzero().tolist())
    predictions = [(row, question.columns_N[0]) for row, question in teacher.questions(every, [0, 1])]
    batch = {"mlm": predict(fields, sample_tokenizer, predictions)}
    teacher.answer(batch, LEARNED, {})
    assert len(batch["mlm"]["teacher"]["positions_N"]) == 2
    output = student(**batch)
    assert output.token_losses["kd"].max() < 1e-5 < output.token_losses["mlm"].min()
    assert len(teacher.partners) > 0.95 * len(sample_tokenizer)  # every ordinary token


@pytest.mark.slow
def test_run_logs_resumes_and_keeps_its_teacher_out(train, teacher_dir, difference, cut_back, tmp_path):
    settings = [
        "model.type=metaxlm",
        "model.config.hidden_dropout_prob=0.1",
        "monolingual.0.name=news",
        f"teacher={{path: {teacher_dir}, language: en, temperature: 2.0}}",
        "phases.0.objectives.kd={weight: 2.0}",
        "phases.0.steps=2",
        "save_every_steps=1",
        "keep_checkpoints=0",
        "evaluation={held_out_fraction: 0.1, max_examples: 8}",
    ]
    train(*settings)
    run = tmp_path / "run"
    figures = set().union(*read_events(run))
    assert {"loss/mlm/de", "held_out/mlm/zh"} <= figures
    assert {name for name in figures if "/kd/" in name} == {"loss/kd/en/news", "held_out/kd/en/news"}
    fresh = MetaXlmForPreTraining(MetaXlmForPreTraining.config_class.from_pretrained(run / "model"))
    assert weights_of(run).keys() <= fresh.state_dict().keys()
    resumed = cut_back(run, 1, tmp_path / "resumed")
    train(*settings, f"output_dir={resumed}", "--resume")
    assert difference(resumed, run) == 0
