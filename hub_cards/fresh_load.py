"""Loads a model folder as a stranger would, and says what went wrong: folder_check.py runs this in a fresh process.

    python -P hub_cards/fresh_load.py FOLDER

Knows nothing of this package: only transformers, and the code that the folder brings. The last line that it prints is
JSON, a list of problems.
"""

import functools
import json
import sys
from pathlib import Path
from typing import Any

TEXTS = ["One two three", "Eins"]


def load_folder(folder: str) -> list[str]:
    """Loads and runs the tokenizer, each Auto class of config.json and the pipelines. Returns the first problem."""
    import transformers

    raw = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    highest = max(tokenizer.get_vocab().values())
    if highest >= config.vocab_size:
        return [f"The tokenizer has ids up to {highest}, and the model {config.vocab_size} embeddings."]
    batch = dict(tokenizer(TEXTS, padding=True, return_tensors="pt"))
    checks = {}
    for name in sorted(raw.get("auto_map", {"AutoModel": ""})):
        is_model = name not in ("AutoConfig", "AutoTokenizer")
        # the translation class needs a decoder, which an encoder's folder does not have
        if is_model and (config.is_encoder_decoder or name != "AutoModelForSeq2SeqLM"):
            checks[name] = functools.partial(check_class, folder, name, raw["architectures"], batch)
    pipelines = list(raw.get("custom_pipelines") or {})
    # a fine-tuned model's tokenizer reads <mask> as text
    if raw.get("auto_map") and raw["architectures"][0].endswith(("ForMaskedLM", "ForPreTraining")):
        pipelines.append("fill-mask")
    for task in pipelines:
        checks[f"pipeline {task}"] = functools.partial(check_pipeline, folder, task)
    for name, check in checks.items():
        try:
            problem = check()
        except Exception as error:  # remote code and libraries may raise anything
            problem = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        if problem:
            return [f"{name}: {problem}"]  # the other classes would say the same
    return []


def check_class(folder: str, name: str, saved: list[str], batch: dict[str, Any]) -> str | None:
    """Loads the folder by an Auto class: no weight of the encoder is fresh, and all weights and outputs are finite."""
    import torch
    import transformers

    auto_class = getattr(transformers, name)
    model, info = auto_class.from_pretrained(folder, trust_remote_code=True, output_loading_info=True)
    is_saved_class = type(model).__name__ in saved
    missing = [key for key in info["missing_keys"] if "pooler" not in key]
    if not is_saved_class and model.base_model is not model:
        # a head that was not saved begins fresh, as it should; the encoder may not
        missing = [key for key in missing if key.startswith(f"{model.base_model_prefix}.")]
    if missing:
        return f"{len(missing)} of its weights are in no file, such as {min(missing)}."
    if is_saved_class and info["unexpected_keys"]:
        return f"The files hold weights that it has no place for, such as {min(info['unexpected_keys'])}."
    for key, value in model.state_dict().items():
        if not value.isfinite().all():
            return f"Weights are not finite, such as {key}."
    with torch.no_grad():
        outputs = model.eval()(**inputs_of(name, model.config, batch))
    for value in outputs.values():
        if isinstance(value, torch.Tensor) and value.is_floating_point() and not value.isfinite().all():
            return "Outputs are not finite on two short texts."
    return None


def inputs_of(name: str, config: Any, batch: dict[str, Any]) -> dict[str, Any]:
    """The batch as the class of an Auto name reads it."""
    if name == "AutoModelForPreTraining" and "transformers_modules" in type(config).__module__:
        return {"text": {**batch, "labels": batch["input_ids"]}}  # masked LM is the loss of any name
    if name == "AutoModelForSeq2SeqLM":
        return {**batch, "labels": batch["input_ids"]}
    if name == "AutoModelForSequenceClassification" and getattr(config, "plug_in", False):
        translation = {f"translation_{field}": tensor for field, tensor in batch.items()}
        return {**batch, **translation}
    return batch


def check_pipeline(folder: str, task: str) -> None:
    """Runs a pipeline of the folder once."""
    import transformers

    pipe = transformers.pipeline(task, model=folder, trust_remote_code=True)
    if task == "fill-mask":
        pipe(f"{TEXTS[0]} {pipe.tokenizer.mask_token}")
    else:
        pipe(tuple(TEXTS))


if __name__ == "__main__":
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    print(json.dumps(load_folder(sys.argv[1])))
