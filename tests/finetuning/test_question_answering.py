"""Questions and contexts: windows, their labels, the best span against a slow search, and a run."""

import itertools
import random
import re
from functools import partial

import datasets
import numpy as np
import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from crosslingual_zoo.finetuning.recipe import QuestionAnsweringRecipe
from crosslingual_zoo.finetuning.results import read_results
from crosslingual_zoo.finetuning.run import main
from crosslingual_zoo.finetuning.tasks.question_answering.scores import mlqa_tokens, score_answers
from crosslingual_zoo.finetuning.tasks.question_answering.spans import best_spans, predicted_answers, text_of
from crosslingual_zoo.finetuning.tasks.question_answering.task import find_answer
from crosslingual_zoo.finetuning.tasks.question_answering.windows import encode_windows, shorten, windowing
from crosslingual_zoo.finetuning.tasks.registry import task_of
from crosslingual_zoo.pretraining.tools.train_tokenizer import train_tokenizer
from crosslingual_zoo.zoo_core.recipes import load_recipe
from tests.finetuning.labeled_rows import ANSWERS, row_of, write_rows
from tests.finetuning.tasks import evaluations, predictions, recipe_with

SENTENCES = {
    "en": "The tower was built in 1889 by a company of engineers; it is 330 metres tall.",
    "zh": "黑豹队的防守只丢了 308分，在联赛中排名第六，同时也以 24 次拦截领先。",
    "ar": "كان برج القاهرة أطول بناء في مصر، وارتفاعه 187 متراً تقريباً.",
    "hi": "यह मीनार १८८९ में बनी थी। हिन्दी में ऊँचाई ३३० मीटर है।",
    "vi": "Tháp được xây dựng năm 1889 tại thủ đô của nước Pháp.",
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """A tokenizer with the characters of these sentences: a run of unknown ones would be one token."""
    folder = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer([*SENTENCES.values()] * 9, folder, vocab_size=300)
    return AutoTokenizer.from_pretrained(folder)


def rows_of(language, number):
    """Rows whose answers are words of long contexts in the language, and one context of a sentence."""
    draw = random.Random(f"{language}{number}")
    rows = []
    for length in range(1, number + 1):
        context = " ".join([SENTENCES[language]] * length)
        words = list(re.finditer("[^ ，。]+", context))
        begin = draw.randrange(len(words) - 2)
        start = words[begin].start()
        end = words[begin + draw.randint(0, 2)].end()
        span = {"answers": [context[start:end]], "start": start, "end": end}
        rows.append({"question": SENTENCES[language][: 5 + 3 * length], "context": context, **span})
    return rows


def encoded(rows, tokenizer, max_length=48, stride=10, max_question_length=20):
    """The windows of rows, `stride` tokens apart."""
    rows = datasets.Dataset.from_list(list(rows))
    recipe = QuestionAnsweringRecipe(max_length=max_length, doc_stride=stride, max_question_length=max_question_length)
    windows = encode_windows(rows[:], range(len(rows)), tokenizer, windowing(tokenizer, recipe), is_train=False)
    return datasets.Dataset.from_list(list(itertools.chain(*windows)))


@pytest.mark.parametrize("language", SENTENCES)
def test_predicted_answers_of_a_model_that_knows_them(language, tokenizer):
    rows = rows_of(language, 12)
    # overlaps of 42 tokens, so that each answer is whole in some window
    windows = encoded(rows, tokenizer, max_length=64, max_question_length=8)
    labels = np.asarray(windows["labels"][:])
    logits = np.random.default_rng(0).normal(size=(2, len(windows), max(windows["length"][:])))
    for side in (0, 1):
        logits[side, np.arange(len(windows)), labels[:, side]] += 100
    answers, golds = predicted_answers(windows, tuple(logits), n_best=20, max_answer_length=40)
    assert golds == [row["answers"] for row in rows]
    scores = score_answers(answers, golds, partial(mlqa_tokens, language=language))
    # not always F1: an answer may be nothing but an article. A stop in the last word's token is punctuation.
    assert scores["exact_match"] == 100
    assert sum(answer == gold for answer, (gold,) in zip(answers, golds, strict=True)) >= 8


@pytest.mark.parametrize("language", ["en", "zh", "hi"])
def test_encode_windows_labels(language, tokenizer):
    rows = rows_of(language, 10)
    rows_with_answer = set()
    for window in encoded(rows, tokenizer, max_length=64, max_question_length=8):
        row = rows[window["row"]]
        first, last = window["labels"]
        if not first:
            assert last == 0
            continue
        ends = np.array(window["ends"])
        begins = np.array(window["begins"])[: len(ends)]
        (tokens_of_answer,) = np.nonzero((ends > row["start"]) & (begins < row["end"]))
        begin, end = tokens_of_answer[[0, -1]]
        assert [first - window["first"], last - window["first"]] == [begin, end]
        assert begins[begin] <= row["start"]
        assert ends[end] >= row["end"]
        rows_with_answer.add(window["row"])
    assert rows_with_answer == set(range(len(rows)))


def test_encode_windows_are_a_stride_apart(sample_tokenizer):
    rows = rows_of("en", 6)
    windows = list(encoded(rows, sample_tokenizer))
    start = sample_tokenizer.bos_token_id
    end = sample_tokenizer.eos_token_id
    assert len(windows) > len(rows)
    for number, row in enumerate(rows):
        question = sample_tokenizer(row["question"], add_special_tokens=False).input_ids
        context = sample_tokenizer(row["context"], add_special_tokens=False).input_ids
        room = 48 - len(question) - 4
        expected = []
        for begin in range(0, max(len(context) - room, 0) + 10, 10):  # the last one reaches the end
            expected.append([start, *question, end, end, *context[begin : begin + room], end])
        windows_of_row = [window for window in windows if window["row"] == number]
        assert [window["input_ids"] for window in windows_of_row] == expected
        for window in windows_of_row:
            assert window["first"] == len(question) + 3
            assert window["length"] == len(window["input_ids"])


def test_encode_windows_cuts_long_questions(sample_tokenizer):
    long = SENTENCES["en"] * 3
    row = {"context": SENTENCES["en"] * 4, "answers": ["tower"], "start": 4, "end": 9}
    questions = (long, "Who?", "  \t" + "\ufdfa" * 9)  # the last: one character, many tokens
    windows = encoded([row | {"question": question} for question in questions], sample_tokenizer)
    assert max(windows["first"][:]) <= 20 + 3
    assert max(windows["length"][:]) <= 48
    for count, expected in (("cut", [1, 0, 1]), ("split", [1, 1, 1])):
        assert np.bincount(windows["row"][:], weights=windows[count][:]).tolist() == expected
    short, tokens = shorten(long, sample_tokenizer, 20)
    assert long.startswith(short)
    assert tokens == 20
    whole = sample_tokenizer(long, add_special_tokens=False).input_ids
    assert sample_tokenizer(short, add_special_tokens=False).input_ids == whole[:20]


@pytest.mark.parametrize("n_best", [3, 20])
def test_best_spans_as_brute_force(n_best):
    generator = np.random.default_rng(n_best)
    windows, limit = 60, 4
    start, end = generator.normal(size=(2, windows, 16)).round(1)  # rounded, so that some are equal
    first = generator.integers(2, 5, windows)
    rows = generator.integers(0, 25, windows)
    tokens = generator.integers(0, 10, windows)
    spans = zip(*best_spans(start, end, first, tokens, rows, n_best, limit), strict=True)
    for row, span in zip(sorted(set(rows)), spans, strict=True):
        best = (-np.inf, -1, 0, 0)
        for window in np.flatnonzero(rows == row):
            context = range(first[window], first[window] + tokens[window])
            starts = sorted(context, key=lambda p: -start[window, p])[:n_best]
            ends = sorted(context, key=lambda p: -end[window, p])[:n_best]
            for begin, last in itertools.product(sorted(starts), sorted(ends)):
                score = start[window, begin] + end[window, last]
                if begin <= last < begin + limit and score > best[0]:
                    best = (score, window, begin - first[window], last - first[window])
        assert span == best[1:] or span[0] == best[1] == -1


def test_predicted_answers_in_any_order_and_without_numbers(sample_tokenizer):
    windows = encoded(rows_of("en", 8), sample_tokenizer)
    logits = np.random.default_rng(1).normal(size=(2, len(windows), 60))
    whole = predicted_answers(windows, tuple(logits), 20, 5)
    order = np.random.default_rng(2).permutation(len(windows))
    assert predicted_answers(windows.select(order), tuple(logits[:, order]), 20, 5) == whole


def test_text_of_with_following_marks(sample_tokenizer):
    context = "au cafe\u0301 noir"  # e and an accent, which the normalizer makes one character
    offsets = sample_tokenizer(context, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    begins, ends = zip(*offsets, strict=True)
    last = max(token for token, begin in enumerate(begins) if begin < 8)
    first = min(token for token, end in enumerate(ends) if end > 3)
    assert ends[last] == 7
    assert text_of(context, [*begins, len(context)], ends, first, last) == "cafe\u0301"
    assert text_of("ab", [0, 1, 2], [1, 2], 0, 0) == "a"
    # of a window that ends there, the next window's token has the mark
    assert text_of("कि", [0, 1], [1], 0, 0) == "क"
    assert text_of("कि", [0, 2], [1], 0, 0) == "कि"


@pytest.mark.slow
def test_run_reports_f1_and_exact_match(number_questions, tmp_path, zoo_model_dir):
    # num_labels: left over from a classifier
    model = zoo_model_dir("ernie_m", num_hidden_layers=1, max_position_embeddings=66, num_labels=3)
    selection = ["selection=source_dev", "dev_fraction=0.3", "evaluate_every_steps=1"]
    main([*number_questions, f"model={model}", *selection, "training.max_steps=3", "training.layerwise_decay=0.8"])
    out = tmp_path / "out"
    results = read_results(out)
    assert list(results.languages) == ["en", "de"]
    assert results.metrics == ["f1", "exact_match"]
    protocol = results["protocol"]
    assert protocol["metric"]["name"] == "f1"
    assert protocol["evaluated_rows"] == {"en": 12, "de": 12}
    assert protocol["selection"]["rows"] == {"en": 4}
    rows = predictions(out / "seed-1", "de")
    listed = [(row["row"], row["id"], row["gold"]) for row in rows]
    assert listed == [(number, f"q{number}", [str(10 * number)]) for number in range(12)]
    assert all("eval_en_f1" in entry for entry in evaluations(out / "seed-1").values())


def test_read_leaves_out_rows_without_answer(number_questions, tmp_path):
    translated = [row_of("5 ?", "fünf 5 50 da", "50"), row_of("6 ?", "sechs da", "60"), row_of("7 ?", "7 70", "70")]
    translated[2]["answers"]["answer_start"] = [1]
    write_rows(tmp_path / "translated.jsonl", translated)
    german = f"{{path: {tmp_path}/translated.jsonl, languages: [de], {ANSWERS}}}"
    train = f"train=[{{path: {tmp_path}/en-train.jsonl, {ANSWERS}}}, {german}]"
    setting = ["setting=translate_train_all", "translations_from=ours"]
    data = task_of(load_recipe(QuestionAnsweringRecipe, None, [*number_questions, train, *setting])).read()
    assert len(data.train) == data.protocol["training_rows"] == 14
    assert data.protocol["left_out_rows"] == {"de": 1}
    assert "language de: of 3 rows, 1 have" in "\n".join(data.warnings)


def test_find_answer_is_the_nearest():
    for start, nearest in {0: 0, 6: 6, 2: 3, 7: 6, 99: 6, -1: 0}.items():
        assert find_answer("ab ab ab", "ab", start) == nearest
    assert find_answer("ab ab ab", "x", 0) == -1


def test_read_answers_without_white_space(tmp_path):
    rows = [row_of("q", "ما هي العاصمة", "العاصمة"), row_of("q", "a b c", " b "), row_of("q", "a b", "x", "b")]
    listed = []  # as in SQuAD's own file
    for row in rows:
        answers = row["answers"]
        pairs = zip(answers["text"], answers["answer_start"], strict=True)
        listed.append({**row, "answers": [{"text": text, "answer_start": start} for text, start in pairs]})
    columns = {"text_columns": ["question", "context"], "label_column": "answers", "languages": ["en"]}
    for content in (rows, listed):
        table = {"path": str(write_rows(tmp_path / "train.jsonl", content)), **columns}
        data = task_of(recipe_with(QuestionAnsweringRecipe, [table], [table], "setting=supervised")).read()
        assert [(row["start"], row["end"]) for row in data.train] == [(6, 13), (2, 3), (2, 3)]


def byte_level_tokenizer(texts, split_first, post_processor):
    """A byte-level BPE tokenizer, like RoBERTa's, or like RobBERT's, which splits texts at white space before."""
    special_tokens = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    backend = Tokenizer(models.BPE(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    if split_first:
        backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), backend.pre_tokenizer])
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    names = list(special_tokens.values())
    trainer = trainers.BpeTrainer(vocab_size=330, special_tokens=names, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(texts, trainer)
    backend.post_processor = post_processor
    return PreTrainedTokenizerFast(tokenizer_object=backend, **special_tokens)


PAIR = "<s> $A </s> </s> $B </s>"
TEMPLATE = processors.TemplateProcessing(single="<s> $A </s>", pair=PAIR, special_tokens=[("<s>", 0), ("</s>", 2)])
POST_PROCESSORS = {
    "roberta": processors.RobertaProcessing(("</s>", 2), ("<s>", 0), trim_offsets=True, add_prefix_space=True),
    "sequence": processors.Sequence([processors.ByteLevel(trim_offsets=True), TEMPLATE]),
    "template": TEMPLATE,
}


@pytest.mark.parametrize("post_processor", POST_PROCESSORS)
@pytest.mark.parametrize("split_first", [False, True])
def test_answers_are_whole_for_tokenizers_that_trim_offsets(split_first, post_processor):
    context = "Jan betaalt $5 (in Delft) aan Piet, elke week weer, een heel jaar lang."
    tokenizer = byte_level_tokenizer([context] * 3, split_first, POST_PROCESSORS[post_processor])
    before = tokenizer(context, return_offsets_mapping=True)["offset_mapping"]
    rows = []
    for word in re.finditer(r"\w+|\$", context):
        span = {"answers": [word.group()], "start": word.start(), "end": word.end()}
        rows.append({"question": "Wat?", "context": context, **span})
    answered = set()
    for window in encoded(rows, tokenizer, max_length=30, stride=8, max_question_length=8):
        first, last = np.array(window["labels"]) - window["first"]
        if first >= 0:
            assert text_of(context, window["begins"], window["ends"], first, last) == window["answers"][0]
            answered.add(window["row"])
    assert answered == set(range(len(rows)))
    assert tokenizer(context, return_offsets_mapping=True)["offset_mapping"] == before  # it is saved as it was


def test_windowing_refuses_offsets_that_leave_out_letters():
    tokenizer = byte_level_tokenizer(["Jan"], False, TEMPLATE)
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace("g", "")
    with pytest.raises(ValueError, match="ging"):
        windowing(tokenizer, QuestionAnsweringRecipe())
