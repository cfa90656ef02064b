"""Loads a model folder as a stranger would, and says what went wrong: folder_check.py runs this in a fresh process.

    python -P hub_cards/fresh_load.py FOLDER

Knows nothing of this package: only transformers, and the code that the folder brings. The last line that it prints is
JSON, a list of problems, each [file, what happened, why it matters, what to do].
"""

import json
import sys
import traceback
from pathlib import Path

TEXTS = ["One two three", "Eins"]
SAVE_AGAIN = "Save the model again with the class that trained it, or take the folder from where it was made."


def load_folder(folder: str) -> list[list[str]]:
    """Every Auto class of config.json, the tokenizer and the pipelines: each loads, runs once, and gives numbers."""
    import torch
    import transformers

    raw = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    problems: list[list[str]] = []
    config = attempt(problems, "config.json", transformers.AutoConfig, folder)
    tokenizer = attempt(problems, "tokenizer_config.json", transformers.AutoTokenizer, folder)
    if config is None or tokenizer is None:
        return problems
    batch = tokenizer(TEXTS, padding=True, return_tensors="pt")
    highest = max(tokenizer.get_vocab().values())
    if highest >= config.vocab_size:
        what = f"The tokenizer has ids up to {highest}, and the model {config.vocab_size} embeddings"
        return [*problems, ["config.json", what, "Some texts would stop it.", "Put the model's own tokenizer there."]]
    for name in sorted(raw.get("auto_map", {"AutoModel": ""})):
        if name in ("AutoConfig", "AutoTokenizer") or (name == "AutoModelForSeq2SeqLM" and not is_translator(config)):
            continue
        found = attempt(problems, "config.json", getattr(transformers, name), folder, output_loading_info=True)
        if found is None:
            continue
        model, info = found
        is_saved_class = type(model).__name__ in raw["architectures"]
        problems += keys_problems(model, info, is_saved_class, name)
        problems += number_problems(model.eval(), inputs_of(name, config, batch), name, torch)
    problems += pipeline_problems(folder, raw, transformers)
    return problems


def attempt(problems: list, file: str, auto_class, folder: str, **options):
    """What `auto_class` loads from the folder; None, and a problem, where it does not."""
    try:
        return auto_class.from_pretrained(folder, trust_remote_code=True, **options)
    except Exception as error:  # remote code and libraries may raise anything
        name = auto_class.__name__
        problems.append([file, f"{name} does not load the folder: {told(error)}", "Nobody could use it.", SAVE_AGAIN])
        return None


def is_translator(config) -> bool:
    return bool(getattr(config, "is_encoder_decoder", False))


def keys_problems(model, info: dict, is_saved_class: bool, name: str) -> list[list[str]]:
    """Weights that are not in the files. A head that was not saved begins fresh, as it should; the encoder may not."""
    inner = f"{model.base_model_prefix}."
    is_base = model.base_model is model
    missing = sorted(
        key
        for key in info["missing_keys"]
        if (is_saved_class or is_base or key.startswith(inner)) and "pooler" not in key
    )
    problems = []
    if missing:
        what = f"{name}: {len(missing)} of its weights are in no file, such as {missing[0]}"
        problems.append(["config.json", what, "They would be random numbers in every copy.", SAVE_AGAIN])
    if is_saved_class and info["unexpected_keys"]:
        unused = sorted(info["unexpected_keys"])
        what = f"The files hold {len(unused)} weights that {name} has no place for, such as {unused[0]}"
        problems.append(["config.json", what, "They belong to another model.", SAVE_AGAIN])
    return problems


def inputs_of(name: str, config, batch: dict) -> dict:
    """Arguments of a first forward pass, of the fields that each class needs."""
    labels = batch["input_ids"]
    if name == "AutoModelForPreTraining" and is_own_code(config):
        return {"mlm": {**batch, "labels": labels}}
    if name == "AutoModelForSeq2SeqLM":
        return {**batch, "labels": labels}
    if name == "AutoModelForSequenceClassification" and getattr(config, "plug_in", False):
        return {**batch, **{f"translation_{field}": tensor for field, tensor in batch.items()}}
    return dict(batch)


def is_own_code(config) -> bool:
    return "transformers_modules" in type(config).__module__


def number_problems(model, inputs: dict, name: str, torch) -> list[list[str]]:
    """Weights and outputs that are not finite, and forward passes that fail."""
    bad = [key for key, value in model.state_dict().items() if not value.isfinite().all()]
    why = "Whatever is computed with them is no number either."
    if bad:
        return [["config.json", f"{name}: weights that are not finite, such as {bad[0]}", why, SAVE_AGAIN]]
    try:
        with torch.no_grad():
            outputs = model(**inputs)
    except Exception as error:
        what = f"{name} fails on two short texts: {told(error)}"
        return [["config.json", what, "Nobody could use it.", SAVE_AGAIN]]
    tensors = [value for value in outputs.values() if isinstance(value, torch.Tensor) and value.is_floating_point()]
    if not all(value.isfinite().all() for value in tensors):
        return [["config.json", f"{name}: outputs that are not finite on two short texts", why, SAVE_AGAIN]]
    return []


def pipeline_problems(folder: str, raw: dict, transformers) -> list[list[str]]:
    """The pipelines that the folder has: masked words, and its own."""
    problems = []
    tasks = {"fill-mask": None} if "AutoModelForMaskedLM" in raw.get("auto_map", {}) else {}
    tasks |= {task: (TEXTS[0], TEXTS[1]) for task in raw.get("custom_pipelines") or {}}
    for task, inputs in tasks.items():
        try:
            pipe = transformers.pipeline(task, model=folder, trust_remote_code=True)
            pipe(inputs or f"{TEXTS[0]} {pipe.tokenizer.mask_token}")
        except Exception as error:
            what = f'pipeline("{task}") does not work from the folder: {told(error)}'
            problems.append(["config.json", what, "The card promises it.", SAVE_AGAIN])
    return problems


def told(error: Exception) -> str:
    """An error in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}"


if __name__ == "__main__":
    try:
        from transformers.utils import logging

        logging.set_verbosity_error()
        logging.disable_progress_bar()
        found = load_folder(sys.argv[1])
    except Exception:
        traceback.print_exc()
        sys.exit(1)
    print(json.dumps(found))
