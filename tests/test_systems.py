"""Other systems than Linux: what only Linux has is guarded, and nothing wider than float32 goes to Apple's GPUs."""

import ast
import os
import pickle
import resource
import signal
from pathlib import Path

import multiprocess
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from crosslingual_zoo.modeling import symmetrization
from crosslingual_zoo.modeling.symmetrization import wide, wide_type
from crosslingual_zoo.pretraining import evaluation, training
from crosslingual_zoo.pretraining.data import store
from crosslingual_zoo.pretraining.data.batches import load_corpora, training_batches
from crosslingual_zoo.pretraining.recipe import Recipe
from crosslingual_zoo.zoo_core import provenance
from crosslingual_zoo.zoo_core.provenance import resident_bytes, run_facts, usable_cores
from crosslingual_zoo.zoo_core.recipes import load_recipe

ROOT = Path(__file__).parents[1]
PACKAGES = ("zoo_core", "modeling", "pretraining", "finetuning", "hub_cards", "crosslingual_zoo", "bench")
# Names of the standard library's modules that macOS lacks
LINUX_ONLY = {
    "os": """sched_getaffinity sched_setaffinity sched_getscheduler sched_setscheduler sched_getparam sched_setparam
        sched_rr_get_interval memfd_create pidfd_open eventfd getrandom fdatasync posix_fadvise posix_fallocate
        sync_file_range splice copy_file_range pipe2 getresuid setresuid
        getresgid setresgid unshare setns""",
    "signal": "sigtimedwait sigwaitinfo SIGPWR SIGPOLL SIGSTKFLT SIGRTMIN SIGRTMAX SIGCLD pidfd_send_signal",
    "resource": "prlimit RLIMIT_OFILE RLIMIT_MSGQUEUE RLIMIT_NICE RLIMIT_RTPRIO RLIMIT_SIGPENDING RUSAGE_THREAD",
    "select": "epoll",
    "time": "clock_settime CLOCK_BOOTTIME CLOCK_TAI pthread_getcpuclockid",
    "socket": "AF_PACKET AF_NETLINK AF_ALG SOCK_CLOEXEC SOCK_NONBLOCK",
    "fcntl": "F_ADD_SEALS F_SETPIPE_SZ F_NOTIFY F_SETLEASE",
}
LINUX_ONLY = {f"{module}.{name}" for module, names in LINUX_ONLY.items() for name in names.split()}


@pytest.fixture
def without_linux(monkeypatch):
    """The system has none of the names that only Linux has; programs start others afresh, as on macOS."""
    for place in LINUX_ONLY - {"os.copy_file_range"}:  # shutil of Python 3.14 asks once for it, when it is imported
        module, _, name = place.partition(".")
        if module in ("os", "signal", "resource"):
            monkeypatch.delattr({"os": os, "signal": signal, "resource": resource}[module], name, raising=False)
    if hasattr(os, "process_cpu_count"):  # since Python 3.13, on every system; Linux's own calls what is deleted
        monkeypatch.setattr(os, "process_cpu_count", os.cpu_count)
    monkeypatch.setattr(multiprocess, "get_all_start_methods", lambda: ["spawn", "fork", "forkserver"])


def guarded_names(tree: ast.AST) -> set[str]:
    """The names that `hasattr(module, "name")` asks for."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "hasattr":
            module, name = node.args
            names.add(f"{ast.unparse(module)}.{getattr(name, 'value', '')}")
    return names


@pytest.mark.parametrize("package", PACKAGES)
def test_what_only_linux_has_is_guarded(package):
    for path in (ROOT / package).rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        used = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)} & LINUX_ONLY
        assert used <= guarded_names(tree), path


def test_facts_of_a_run_without_linux(without_linux, monkeypatch):
    hardware = run_facts(["run.py"])["hardware"]
    assert hardware["cores"] == usable_cores() == os.cpu_count() and hardware["memory_gib"] > 0
    assert not hasattr(os, "sched_getaffinity")
    for error in (ValueError("unrecognized configuration name"), OSError(22, "Invalid argument")):

        def unknown(name: str, error: Exception = error) -> int:
            raise error

        monkeypatch.setattr(os, "sysconf", unknown)
        assert run_facts(["run.py"])["hardware"]["memory_gib"] is None


def test_peak_memory_has_the_unit_of_the_system(monkeypatch):
    usage = resource.getrusage(resource.RUSAGE_SELF)
    monkeypatch.setattr(provenance.sys, "platform", "linux")
    assert resident_bytes(usage) == 1024 * usage.ru_maxrss
    monkeypatch.setattr(provenance.sys, "platform", "darwin")
    assert resident_bytes(usage) == usage.ru_maxrss


@pytest.fixture
def recipe(small_recipe):
    return load_recipe(Recipe, small_recipe, [])


def test_pretraining_without_linux(recipe, without_linux, monkeypatch, tmp_path):
    monkeypatch.setattr(store, "ROWS_OF_PROCESS", 20)  # it would tokenize in forks
    training.pretrain(recipe)
    assert (tmp_path / "run" / "model" / "model.safetensors").exists()


def test_batches_can_be_sent_to_a_worker_that_is_no_fork(recipe, sample_tokenizer):
    loader = training_batches(recipe, 0, load_corpora(recipe, sample_tokenizer), sample_tokenizer)
    micro_batch = next(iter(loader.sampler))
    sent = pickle.loads(pickle.dumps((loader.dataset, loader.worker_init_fn)))[0]
    here, there = loader.dataset[micro_batch], sent[micro_batch]
    assert here.keys() == there.keys() == {"mlm", "tlm"}
    for name in here:
        assert torch.equal(here[name]["input_ids"], there[name]["input_ids"])
        assert torch.equal(here[name]["labels"], there[name]["labels"])


class NoFloat64(TorchDispatchMode):
    """Fails where an operation makes a tensor of float64."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for value in made if isinstance(made, (tuple, list)) else [made]:
            assert not (isinstance(value, torch.Tensor) and value.dtype == torch.float64), function
        return made


def test_wide_type_is_what_the_device_has():
    assert wide_type(torch.device("mps")) == torch.float32
    assert wide_type(torch.device("cpu")) == wide_type(torch.device("cuda", 1)) == torch.float64
    assert wide(torch.ones(2)).dtype == torch.float64


@pytest.mark.slow
def test_pretraining_makes_no_float64_where_the_device_has_none(recipe, monkeypatch, tmp_path):
    for module in (symmetrization, training, evaluation):
        monkeypatch.setattr(module, "wide_type", lambda device: torch.float32)
    recipe.evaluation.held_out_fraction, recipe.evaluation.every_steps = 0.1, 1
    with NoFloat64():
        training.pretrain(recipe)
    assert (tmp_path / "run" / "model" / "model.safetensors").exists()
