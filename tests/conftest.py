"""What all tests share: an environment of their own, a tokenizer trained on the sample corpus, tiny models with it,
and a Hub on loopback.

The environment is set when pytest reads this file, before any test imports torch or a Hugging Face library, because
those read it once, when they are imported. Programs that a test starts inherit it.
"""

import importlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rich.console import Console

from tests.architectures import ARCHITECTURES

LANGUAGES = ["en", "de", "fr", "es", "zh"]
PREFIXES = {"veco": "Veco", "ernie_m": "ErnieM", "xlm_align": "XlmAlign", "metaxlm": "MetaXlm"}
SPECIAL_IDS = [f"{name}_token_id" for name in ("pad", "bos", "eos", "cls", "sep", "mask")]
TINY = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, initializer_range=0.5)

# A setting of the user's (a cache elsewhere, a token, a default accelerate launch) must not reach the tests.
for name in [name for name in os.environ if name.startswith(("HF_", "HUGGINGFACE_", "TRANSFORMERS_", "ACCELERATE_"))]:
    del os.environ[name]
# Nor may the terminal's settings for rich: a width set by a test would be ignored.
for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS", "LINES"):
    os.environ.pop(name, None)

# A job in the background ignores Ctrl-C, and so would the programs that tests start and stop.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# One home per process: two pytest workers that share one race on the cache of remote code.
HF_HOME = tempfile.mkdtemp(prefix="zoo-tests-hf-home-")
os.environ.update(
    HF_HOME=HF_HOME,
    HF_HUB_OFFLINE="1",
    HF_DATASETS_OFFLINE="1",
    HF_EVALUATE_OFFLINE="1",
    HF_HUB_DISABLE_TELEMETRY="1",
    TOKENIZERS_PARALLELISM="false",
    OMP_NUM_THREADS="1",  # pytest-xdist already fills the cores
    MKL_NUM_THREADS="1",
    MPLBACKEND="Agg",
)


def pytest_unconfigure() -> None:
    shutil.rmtree(HF_HOME, ignore_errors=True)


@pytest.fixture(autouse=True)
def rich_reads_the_environment(monkeypatch):
    """rich keeps the first `os.environ`; `datasets` leaves another one behind where it maps in several processes."""
    monkeypatch.setattr(Console, "_environ", os.environ)


def forget_accelerate() -> None:
    """Clears what accelerate keeps for each process, such as the precision, as in a process just started."""
    if state := sys.modules.get("accelerate.state"):
        for cls in (state.AcceleratorState, state.GradientState, state.PartialState):
            cls._reset_state()


@pytest.fixture(autouse=True)
def accelerate_starts_afresh():
    """Each test starts without the accelerate state of the tests before it."""
    forget_accelerate()


@pytest.fixture(scope="session")
def sample_corpus_dir() -> Path:
    """Folder of the sample corpus, in the Hub's layout."""
    return Path(__file__).parents[1] / "sample_corpus"


@pytest.fixture(scope="session")
def sample_tokenizer_dir(sample_corpus_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of an XLM-R tokenizer trained on the training sentences of the sample corpus, all five languages."""
    import datasets

    from crosslingual_zoo.pretraining.tools.train_tokenizer import train_tokenizer

    folder = tmp_path_factory.mktemp("sample_tokenizer")
    texts = [
        text
        for language in LANGUAGES
        for text in datasets.load_dataset(str(sample_corpus_dir), language, split="train")["text"]
    ]
    train_tokenizer(texts, folder, vocab_size=2000)
    return folder


@pytest.fixture(scope="session")
def sample_tokenizer(sample_tokenizer_dir: Path):
    """The tokenizer of `sample_tokenizer_dir`."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(sample_tokenizer_dir)


@pytest.fixture(scope="session")
def zoo_model_dir(sample_tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`zoo_model_dir(model_type, head="ForPreTraining", copy=False, **config)`: a folder as pre-training leaves it.

    A tiny model with random weights (seed 0), its code, and the sample tokenizer. The same call gives the same folder,
    only for reading; `copy=True` gives a new folder, to write into. "xlm_align on modernbert" is a model with a
    backbone, one of ARCHITECTURES, with the fields that `backbone={...}` gives it.
    """
    made: dict[str, Path] = {}

    def folder_of(model_type: str, head: str = "ForPreTraining", copy: bool = False, **config) -> Path:
        import torch

        from crosslingual_zoo.pretraining.checkpoints import save_model_folder

        key = repr((model_type, head, sorted(config.items())))
        model_type, _, backbone = model_type.partition(" on ")
        if key not in made:
            module = importlib.import_module(f"crosslingual_zoo.modeling.modeling_{model_type}")
            cls = getattr(module, PREFIXES[model_type] + head)
            shape = dict(vocab_size=len(sample_tokenizer), **TINY)
            if backbone:
                ids = {name: getattr(sample_tokenizer, name) for name in SPECIAL_IDS}
                own = shape | ids | ARCHITECTURES[backbone] | config.pop("backbone", {})
                config["backbone_config"] = own | {"model_type": backbone}
            generator = torch.random.get_rng_state()
            torch.manual_seed(0)
            model = cls(cls.config_class(**(shape | config)))
            torch.random.set_rng_state(generator)
            made[key] = tmp_path_factory.mktemp(f"{model_type}_model")
            save_model_folder(model, sample_tokenizer, made[key])
        if not copy:
            return made[key]
        return Path(shutil.copytree(made[key], tmp_path_factory.mktemp(f"{model_type}_copy") / "model"))

    return folder_of


@pytest.fixture(scope="session")
def library_model_dir(sample_tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`library_model_dir(kind, auto_class, **config)`: a new folder of a tiny random model of transformers' own, with
    the sample tokenizer."""

    def folder_of(kind: str, auto_class: type, **config) -> Path:
        import torch
        from transformers import AutoConfig

        ids = {name: getattr(sample_tokenizer, name) for name in SPECIAL_IDS}
        shape = dict(vocab_size=len(sample_tokenizer), **TINY)
        folder = tmp_path_factory.mktemp(f"{kind}_model")
        with torch.random.fork_rng():
            torch.manual_seed(0)
            auto_class.from_config(AutoConfig.for_model(kind, **shape | ids | config)).save_pretrained(folder)
        sample_tokenizer.save_pretrained(folder)
        return folder

    return folder_of


@pytest.fixture
def small_recipe(sample_tokenizer_dir: Path, sample_corpus_dir: Path, tmp_path: Path) -> dict:
    """A pre-training recipe of four steps as Python values: XLM-Align, English text and pairs with German."""
    english = {"path": sample_corpus_dir, "config": "en"}
    german = {"path": sample_corpus_dir, "config": "de"}
    pair = {"source_language": "en", "target_language": "de", "source": english, "target": german, "join_on": "id"}
    sizes = {"batch_size": 4, "max_length": 32}
    objectives = {"mlm": sizes, "tlm": sizes, "dwa": {}}
    return {
        "output_dir": tmp_path / "run",
        "tokenizer": sample_tokenizer_dir,
        "model": {"type": "xlm_align", "config": {**TINY, "max_position_embeddings": 66}},
        "monolingual": [english | {"language": "en"}],
        "bitext": [pair],
        "phases": ({"name": "all", "steps": 4, "learning_rate": 1e-3, "objectives": objectives},),
    }


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator:
    """A Hub of its own for the test and this process; `.environment()` is for a fresh one."""
    import huggingface_hub.constants

    from tests.hub_cards.hub_server import HubServer

    hub = HubServer(tmp_path / "hub_clients")
    files = hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    constants = {"ENDPOINT": hub.endpoint, "HUGGINGFACE_CO_URL_TEMPLATE": files, "HF_HUB_OFFLINE": False}
    for name, value in {**constants, "HF_HUB_DISABLE_XET": True}.items():
        monkeypatch.setattr(huggingface_hub.constants, name, value)
    monkeypatch.setenv("HF_TOKEN", "writer")
    yield hub
    hub.shutdown()
    hub.server_close()


@pytest.fixture(scope="session")
def ernie_m_oracle():
    """What ErnieM of transformers 4.57.6 gives on tiny models and short texts."""
    from tests.ernie_m_oracle import ErnieMOracle

    return ErnieMOracle()
