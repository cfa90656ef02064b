"""ONNX by the library's own exporter: encoder and heads give the same numbers in onnxruntime, in every batch."""

import pytest
import torch
import transformers
from transformers import AutoTokenizer

onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install -e '.[dev]'")
pytest.importorskip("onnxscript", reason="onnxscript is not installed: pip install -e '.[dev]'")
if not hasattr(transformers.exporters.OnnxExporter, "save_program"):
    pytest.skip("this transformers has no exports to save; 5.23 has", allow_module_level=True)

from transformers.exporters import OnnxConfig, OnnxExporter  # noqa: E402

# torch's own code, where it decomposes a graph
pytestmark = pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is deprecated:FutureWarning")

# Every head is the same code in all models but ERNIE-M's for sequences, which reads the pooler.
CASES = {
    "encoder": ("metaxlm", "AutoModel", {}),
    "masked words": ("veco", "AutoModelForMaskedLM", {}),
    "sequences, pooled": ("ernie_m", "AutoModelForSequenceClassification", {}),
    "spans": ("xlm_align", "AutoModelForQuestionAnswering", {}),
    "tokens, plugged in": ("veco", "AutoModelForTokenClassification", {"plug_in": True}),
}
TEXTS = ["The house is small.", "Das Haus ist klein, und der Garten ist groß.", "x"]
# numbers of texts, and the side that is padded; the model is exported with two texts, padded on the right
BATCHES = [(TEXTS, "right"), (TEXTS[::-1], "left"), (TEXTS[:1], "right"), (TEXTS * 2, "right"), (["a " * 50], "right")]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_onnx_export_gives_the_same_numbers(zoo_model_dir, tmp_path, case):
    model_type, auto_class, options = CASES[case]
    folder = zoo_model_dir(model_type, num_hidden_layers=1)
    torch.manual_seed(0)
    model = getattr(transformers, auto_class).from_pretrained(folder, trust_remote_code=True, **options).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)

    def inputs_of(texts, side):
        inputs = dict(tokenizer(texts, padding=True, padding_side=side, return_tensors="pt"))
        if options:  # texts and translations of another length, or the export takes both lengths for one
            translations = [f"a b c {text}" for text in texts[::-1]]
            others = tokenizer(translations, padding=True, padding_side=side, return_tensors="pt")
            inputs |= {f"translation_{name}": value for name, value in others.items()}
        return inputs

    config = OnnxConfig(dynamic=True)
    OnnxExporter().export(model, inputs_of(TEXTS[:2], "right"), config=config).save_pretrained(tmp_path)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    names = [output.name for output in session.get_outputs()]
    for texts, side in BATCHES:
        inputs = inputs_of(texts, side)
        with torch.no_grad():
            expected = model(**inputs)
        values = session.run(names, {name: value.numpy() for name, value in inputs.items()})
        assert names
        assert {*names} == {name for name, value in expected.items() if value is not None}
        for name, value in zip(names, values, strict=True):
            torch.testing.assert_close(torch.from_numpy(value), expected[name], atol=1e-4, rtol=1e-4)
