"""Reads the checkpoints and tokenizers that a recipe names; errors name the recipe's field."""

import contextlib
import re
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from crosslingual_zoo.modeling.checkpoints import (
    check_vocabulary,
    download_pinned,
    fresh_weights,
    load_auto_model,
    load_config,
    load_tokenizer,
)
from crosslingual_zoo.pretraining.recipe import Recipe
from crosslingual_zoo.zoo_core.tables import looks_like_missing_folder, resolve_hub_path

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Pretrained:
    """A checkpoint or tokenizer that a field of a recipe names. A ValueError about it names the field."""

    name: str  # a folder or a Hub id, or owner/name@revision
    field: str
    hub_root: str | None = None
    trust_remote_code: bool = False

    def __str__(self) -> str:
        return f"{self.field} {self.name!r}"

    @cached_property
    def path(self) -> str:
        """The folder or Hub id; the downloaded folder of an `owner/name@revision`."""
        path = download_pinned(resolve_hub_path(self.name, self.hub_root))
        if looks_like_missing_folder(path):
            problem = f"{self} does not exist: it is neither a folder nor a Hub id (owner/name)."
            raise ValueError(f"{problem} The comment at the top of a recipe has the commands to run before it.")
        if Path(path).is_dir() and not any(Path(path).glob("*config.json")):
            raise ValueError(f"{self} has no config.json. The model of a run is in its subfolder model/.")
        return path

    def config(self) -> PreTrainedConfig:
        """Reads the configuration."""
        with self._reading("configuration") as path:
            return load_config(path, self.trust_remote_code)

    def tokenizer(self, config: PreTrainedConfig | None = None) -> PreTrainedTokenizerBase:
        """Reads the tokenizer. Raises ValueError, too, if it does not belong to a model with this `config`."""
        with self._reading("tokenizer") as path:
            tokenizer = load_tokenizer(path, self.trust_remote_code)
        if config:
            check_vocabulary(tokenizer, config, str(self))
        return tokenizer

    def masked_lm(self, config: PreTrainedConfig, is_whole: bool = False) -> tuple["PreTrainedModel", list[str]]:
        """Reads a masked language model in float32. Returns it with the names of its random weights: those of a head
        that the checkpoint lacks.

        Raises ValueError, too, for other missing weights (`fresh_weights`), and if `is_whole` for any.
        """
        import torch
        from transformers import AutoModelForMaskedLM  # takes two seconds

        with self._reading("weights") as path:
            options = dict(config=config, dtype=torch.float32, output_loading_info=True, ignore_mismatched_sizes=True)
            model, report = load_auto_model(AutoModelForMaskedLM, path, self.trust_remote_code, **options)
        return model, fresh_weights(model, report, str(self), is_whole)

    @contextlib.contextmanager
    def _reading(self, what: str) -> Generator[str]:
        path = self.path  # its error message is complete
        try:
            yield path
        except (OSError, ValueError, ImportError) as error:
            # the first line, without the path, which the message has named
            first_line = str(error).strip().partition("\n")[0]
            reason = first_line.removeprefix(f"{path}: ")
            raise ValueError(f"the {what} of {self} cannot be read: {reason}") from error


def start_of(recipe: Recipe) -> Pretrained | None:
    """Returns the checkpoint that a recipe starts from, if any."""
    if not recipe.model.start_from:
        return None
    return Pretrained(recipe.model.start_from, "model.start_from", recipe.hub_root, recipe.trust_remote_code)


def tokenizer_of(recipe: Recipe) -> PreTrainedTokenizerBase:
    """Loads the tokenizer of a recipe, or that of the checkpoint that it starts from, without classes of models.

    Raises ValueError for a recipe that names neither, and for a tokenizer that cannot be read or has no mask token.
    """
    pretrained = start_of(recipe)
    if recipe.tokenizer:
        pretrained = Pretrained(recipe.tokenizer, "tokenizer", recipe.hub_root, recipe.trust_remote_code)
    if not pretrained:
        raise ValueError("tokenizer is empty. Set it, as to FacebookAI/xlm-roberta-base, or set model.start_from.")
    tokenizer = pretrained.tokenizer()
    if tokenizer.mask_token_id is None:
        raise ValueError(f"{pretrained} has no mask token. Use a masked-LM tokenizer such as XLM-R's.")
    return tokenizer


def listed(names: Iterable[str]) -> str:
    """Lists names of weights in order; a name with a layer's number appears once, with `*`."""
    without_numbers = [re.sub(r"\.\d+\.", ".*.", name) for name in sorted(names)]
    return ", ".join(dict.fromkeys(without_numbers)) or "nothing"
