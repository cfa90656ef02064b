"""What `word-align adapt --save-adapter` writes: the changes of an encoder's matrices as a LoRA adapter of PEFT.

The change of each matrix is cut to its largest singular values (Eckart and Young, 1936), so that a file has a
hundredth of a checkpoint's size. Biases and layer norms stay those of the base model.

Legend: `O` outputs, `I` inputs of a layer, `R` rank.
"""

import re
import warnings
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from torch import nn

RANK = 8
NUMBER = re.compile(r"\.(\d+)\.")  # of a layer, in the names of its modules


def save_adapter(base: nn.Module, trained: nn.Module, folder: Path, base_name: str) -> None:
    """Writes the difference between two encoders as an adapter of `base`, in half precision.

    trained: an encoder with the layers of `base`, whose class may have them below `backbone`. base_name: Hub id of
    `base`, which the adapter's configuration names. `base` becomes a model with the adapter.

    Raises ValueError if no matrix was changed.
    """
    changes_OI = changed_matrices(base, trained)
    if not changes_OI:
        raise ValueError(f"No matrix of {base_name} was changed, so that there is no adapter to write.")
    numbers = {int(number) for name in changes_OI for number in NUMBER.findall(name)}
    settings = LoraConfig(
        task_type="FEATURE_EXTRACTION",
        r=RANK,
        lora_alpha=RANK,
        target_modules=list(changes_OI),
        layers_to_transform=sorted(numbers),  # PEFT shortens the names: `query` is in the layers above, too
        inference_mode=True,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of PEFT, which calls what transformers has renamed
        adapted = get_peft_model(base, settings)
    adapted.peft_config["default"].base_model_name_or_path = base_name
    with torch.no_grad():
        for name, change_OI in changes_OI.items():
            output_OR, input_RI = low_rank(change_OI, RANK)
            layer = adapted.get_base_model().get_submodule(name)
            layer.lora_B["default"].weight.data = output_OR.half()
            layer.lora_A["default"].weight.data = input_RI.half()
    adapted.save_pretrained(str(folder), save_embedding_layers=False)
    (folder / "README.md").unlink()  # a form to fill in; zoo-card writes the card


def changed_matrices(base: nn.Module, trained: nn.Module) -> dict[str, torch.Tensor]:
    """Returns what was added to the matrices in the numbered layers of `base`, by the module's name, where it is not 0.

    A pooler, which aligners do not use, is in none of them.
    """
    layers = {name: layer for name, layer in trained.named_modules() if isinstance(layer, nn.Linear)}
    changes_OI: dict[str, torch.Tensor] = {}
    for name, layer in base.named_modules():
        if not isinstance(layer, nn.Linear) or not NUMBER.search(name):
            continue
        trained_layer = layers[name] if name in layers else layers[f"backbone.{name}"]
        change_OI = trained_layer.weight.detach() - layer.weight.detach()
        if change_OI.any():
            changes_OI[name] = change_OI
    return changes_OI


def low_rank(matrix_OI: torch.Tensor, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the two factors, (O, R) and (R, I), whose product is nearest to a matrix."""
    left_OK, values_K, right_KI = torch.linalg.svd(matrix_OI.float(), full_matrices=False)
    roots_R = values_K[:rank].sqrt()
    return left_OK[:, :rank] * roots_R, roots_R[:, None] * right_KI[:rank]
