"""Models of the Hub that are not on this machine: that they are downloaded is said before it happens."""

import sys
from pathlib import Path

from huggingface_hub import HfApi, constants, hf_hub_download, try_to_load_from_cache
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, HTTPError

from modeling.checkpoints import split_revision
from zoo_core.tables import looks_like_missing_folder

# as transformers looks for them: the first that is there is read
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")


def download(model: str, quiet: bool = False) -> None:
    """Gets the weights of a model that is neither a folder nor in the Hub's cache: says so, with their size where it is
    known, and shows a bar. Where it is `quiet`, the loading downloads them.

    Raises ValueError where the Hub is out of reach. A folder that is not there, and what the Hub refuses, are left
    to the loading.
    """
    if Path(model).exists() or looks_like_missing_folder(model):
        return
    name, revision = split_revision(model)
    try:
        if any(isinstance(try_to_load_from_cache(name, file, revision=revision), str) for file in WEIGHTS):
            return
        found = {file.path: file.size for file in HfApi().get_paths_info(name, list(WEIGHTS), revision=revision)}
    except (HfHubHTTPError, HFValidationError):
        return
    except (HTTPError, OSError):
        why = "HF_HUB_OFFLINE forbids downloads" if constants.HF_HUB_OFFLINE else "the Hub cannot be reached"
        raise ValueError(
            f"There is no folder {model} in {Path.cwd()}, no copy of it from the Hub on this machine, and {why}. "
            "Name an encoder that is here: --model FOLDER|ID."
        ) from None
    first = next((name for name in WEIGHTS if name in found), "")
    size = f" ({found[first] / 1e9:,.2f} GB)" if first.endswith((".safetensors", ".bin")) else ""
    if quiet:
        return
    print(f"downloading {model} from the Hub, once{size}", file=sys.stderr, flush=True)
    if size:
        try:
            hf_hub_download(name, first, revision=revision)
        except HfHubHTTPError:  # gated, or gone: as above
            return
        except HTTPError as error:
            raise ValueError(f"The download of {model} broke off: {error}. The same command goes on with it.") from None
