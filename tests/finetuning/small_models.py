"""Models of the zoo with heads, too small to learn anything."""

import importlib

MODELS = {"veco": "Veco", "ernie_m": "ErnieM", "xlm_align": "XlmAlign", "metaxlm": "MetaXlm"}
HEADS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
EACH = list(zip(MODELS, (*HEADS, HEADS[0]), strict=True))  # every model, and every head


def build(name, head=HEADS[0], **fields):
    """A model with random weights; `fields` are those of its configuration."""
    sizes = dict(vocab_size=60, hidden_size=8, num_attention_heads=2, intermediate_size=16, max_position_embeddings=20)
    if name == "ernie_m":
        sizes |= {"num_languages": 3, "mask_token_id": 49}
    config_class = getattr(importlib.import_module(f"modeling.configuration_{name}"), f"{MODELS[name]}Config")
    config = config_class(**sizes | {"num_labels": 3} | fields)
    return getattr(importlib.import_module(f"modeling.modeling_{name}"), MODELS[name] + head)(config)
