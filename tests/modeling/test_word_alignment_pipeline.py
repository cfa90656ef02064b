"""`pipeline("word-alignment")`: from folders in fresh processes, and its conventions."""

import importlib
import itertools
import json
import os
import subprocess
import sys

import pytest
import torch
from transformers import XLMRobertaConfig, XLMRobertaModel, pipeline

from modeling.modeling_xlm_align import XlmAlignConfig, XlmAlignForPreTraining, XlmAlignModel
from modeling.pipeline_word_alignment import WordAlignmentPipeline
from modeling.word_alignment import WordAligner

MODELS = {"veco": "Veco", "ernie_m": "ErnieM", "xlm_align": "XlmAlign", "metaxlm": "MetaXlm"}
TINY = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, initializer_range=0.5)
PAIRS = [
    ("Does a model know which word is which?", "Weiß ein Modell, welches Wort welches ist?"),
    {"source": ["One", "two", "three"], "target": "Eins zwei"},
    ("", "nothing"),
]

FRESH = """
import json, sys
from transformers import AutoModelForTokenClassification, pipeline
folders, again, pairs = map(json.loads, sys.argv[1:])
found = {}
for name, folder in folders.items():
    aligner = pipeline("word-alignment", model=folder, trust_remote_code=True)
    found[name] = [aligner(pairs, probabilities=True), type(aligner.model).__module__]
    if again:
        model = AutoModelForTokenClassification.from_pretrained(folder, trust_remote_code=True)
        model.save_pretrained(folder + "_model")
        aligner.tokenizer.save_pretrained(folder + "_model")
        aligner.save_pretrained(folder + "_pipeline")
print(json.dumps(found))
"""


def in_a_fresh_process(folders, again, home):
    """What the aligner of each folder finds, offline, in another directory, with a cache of its own.

    Args:
        again: whether to save each once more beside it, as a model with another head and as a pipeline.
    """
    home.mkdir()
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "PYTHONPATH"))}
    environment |= {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1"}
    arguments = [json.dumps(value) for value in ({name: str(path) for name, path in folders.items()}, again, PAIRS)]
    done = subprocess.run(
        [sys.executable, "-c", FRESH, *arguments], cwd=home, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def as_json(found):
    return json.loads(json.dumps(found))


@pytest.mark.slow
def test_every_saved_folder_brings_the_aligner(sample_tokenizer, tmp_path):
    expected, folders = {}, {name: tmp_path / name for name in MODELS}
    for model_type, prefix in MODELS.items():
        cls = getattr(importlib.import_module(f"modeling.modeling_{model_type}"), f"{prefix}ForMaskedLM")
        torch.manual_seed(0)
        model = cls(cls.config_class(vocab_size=len(sample_tokenizer), **TINY)).eval()
        model.save_pretrained(folders[model_type])
        sample_tokenizer.save_pretrained(folders[model_type])
        expected[model_type] = as_json(WordAlignmentPipeline(model, sample_tokenizer)(PAIRS, probabilities=True))
        assert [bool(one["links"]) for one in expected[model_type]] == [True, True, False]
    found = in_a_fresh_process(folders, True, tmp_path / "first")
    folders = {f"{name}_{kind}": tmp_path / f"{name}_{kind}" for name in MODELS for kind in ("model", "pipeline")}
    found |= in_a_fresh_process(folders, False, tmp_path / "second")
    assert len(found) == 12
    for name, (links, module) in found.items():
        assert "transformers_modules" in module
        assert links == expected[name.removesuffix("_model").removesuffix("_pipeline")]


def test_converted_and_pretrained_folders_bring_it_too(sample_tokenizer, tmp_path):
    from pretraining.checkpoints import save_model_folder

    model = XlmAlignForPreTraining(XlmAlignConfig(vocab_size=len(sample_tokenizer), **TINY))
    save_model_folder(model, sample_tokenizer, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    impl = config["custom_pipelines"]["word-alignment"]["impl"]
    assert impl == "pipeline_word_alignment.WordAlignmentPipeline"
    for name in ("pipeline_word_alignment", "word_alignment", "word_tokens", "optimal_transport"):
        assert (tmp_path / f"{name}.py").exists()


@pytest.mark.slow
def test_a_plain_xlm_r_checkpoint(sample_tokenizer, tmp_path):
    torch.manual_seed(0)
    sizes = dict(max_position_embeddings=514, type_vocab_size=1)
    model = XLMRobertaModel(
        XLMRobertaConfig(vocab_size=len(sample_tokenizer), **sizes, **TINY), add_pooling_layer=False
    )
    model.save_pretrained(tmp_path / "plain")
    sample_tokenizer.save_pretrained(tmp_path / "plain")
    aligner = pipeline("word-alignment", model=str(tmp_path / "plain"), pipeline_class=WordAlignmentPipeline)
    assert type(aligner) is WordAlignmentPipeline and type(aligner.model) is XLMRobertaModel
    ours = XlmAlignModel(XlmAlignConfig(vocab_size=len(sample_tokenizer), **TINY))
    ours.load_state_dict(model.state_dict(), strict=False)
    assert aligner(PAIRS) == WordAlignmentPipeline(ours, sample_tokenizer)(PAIRS)
    expected = as_json(aligner(PAIRS, probabilities=True))
    aligner.save_pretrained(tmp_path / "saved")
    assert {path.stem for path in (tmp_path / "saved").glob("*.py")} == {
        "pipeline_word_alignment",
        "word_alignment",
        "word_tokens",
        "optimal_transport",
        "evaluation_mode",
    }
    found = in_a_fresh_process({"saved": tmp_path / "saved"}, False, tmp_path / "home")["saved"]
    assert found == [expected, "transformers.models.xlm_roberta.modeling_xlm_roberta"]


@pytest.fixture(scope="module")
def aligner(sample_tokenizer):
    torch.manual_seed(0)
    model = XlmAlignModel(XlmAlignConfig(vocab_size=len(sample_tokenizer), **TINY))
    return WordAlignmentPipeline(model, sample_tokenizer, device="cpu", method="mutual")


def test_one_pair_a_list_and_anything_that_iterates(aligner):
    one = aligner(PAIRS[0])
    assert set(one) == {"source", "target", "links", "windows"}
    assert one["source"] == PAIRS[0][0].split() and one["links"]
    assert aligner({"source": PAIRS[0][0], "target": PAIRS[0][1].split(), "id": 7}) == one
    assert aligner(tuple(side.split() for side in PAIRS[0])) == one
    assert aligner([PAIRS[0], list(PAIRS[0])]) == [one, one]
    assert aligner([]) == []

    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            return [PAIRS[0], PAIRS[1]][index]

    for several in (iter(PAIRS), (pair for pair in PAIRS), Rows()):
        found = aligner(several)
        assert not isinstance(found, list) and next(found) == one


def test_a_stream_is_read_a_chunk_at_a_time(aligner, monkeypatch):
    monkeypatch.setattr("modeling.word_alignment.BATCHES_PER_CHUNK", 2)
    taken = []
    stream = (taken.append(number) or PAIRS[0] for number in itertools.count())
    found = aligner(stream, batch_size=3)
    assert taken == []
    next(found)
    assert len(taken) == 6


def test_parameters_of_the_pipeline_and_of_a_call(aligner, sample_tokenizer):
    own = WordAligner(aligner.model, sample_tokenizer, method="softmax", layer=1, encoding="separate", threshold=0.3)
    expected = next(own.align(PAIRS[:1], probabilities=True, similarity=True))
    options = dict(method="softmax", layer=1, encoding="separate", threshold=0.3, probabilities=True, similarity=True)
    in_a_call = aligner(PAIRS[0], **options)
    assert in_a_call == vars(expected)
    from_the_start = WordAlignmentPipeline(aligner.model, sample_tokenizer, device="cpu", batch_size=5, **options)
    assert from_the_start.aligner.batch_size == 5 and from_the_start(PAIRS[0]) == in_a_call
    assert from_the_start.make_aligner(batch_size=2).batch_size == 2
    assert "similarity" not in from_the_start(PAIRS[0], similarity=False)
    assert aligner(PAIRS[0]) != in_a_call and aligner.aligner.method == "mutual"  # the call left nothing behind
    assert aligner(PAIRS[0], window=8)["windows"] > 1


@pytest.mark.parametrize(
    "parameters, message",
    [
        ({"metod": "ot"}, "metod is no parameter of word alignment: .* Did you mean method?"),
        ({"num_beams": 3}, "num_beams is no parameter of word alignment: .* There are method, layer"),
        ({"method": "otitermax"}, "the nearest is 'ot_itermax'"),
        ({"layer": 9}, "layer is 9, and the model has 2 layers"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"window": 10, "overlap": 10}, "overlap is 10"),
        ({"threshold": 0.1}, "option 'threshold' with method 'mutual'"),
    ],
)
def test_what_it_refuses(parameters, message, aligner, sample_tokenizer):
    with pytest.raises(ValueError, match=message):
        aligner(PAIRS[0], **parameters)
    with pytest.raises(ValueError, match=message):
        WordAlignmentPipeline(aligner.model, sample_tokenizer, **({"method": "mutual"} | parameters))


@pytest.mark.parametrize(
    "given, message",
    [
        ("a text", "input 0 .* is 'a text': .* Give .source, target."),
        (["a text", "another"], "input 0 .* is 'a text'"),
        ([("a", "b", "c")], "input 0 .*: words can be linked only between two sentences"),
        ({"source": "a"}, "an input has the keys 'source', and not target: .* Give {'source'"),
    ],
)
def test_what_is_no_pair(given, message, aligner):
    with pytest.raises(ValueError, match=message):
        aligner(given)
