"""`make demo`: the whole path on the sample corpus, offline, on a CPU, in minutes, for each of the four models.

Pre-train, fine-tune on English, evaluate every language, align words, write the card, rehearse the push. Every step is
the command a user would type, and is printed before it runs. Two models run at a time; nothing is pushed.
"""

import os
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

from crosslingual_zoo.zoo_core.command_line import CommandParser
from crosslingual_zoo.zoo_core.recipes import or_installed

ROOT = Path(__file__).resolve().parent
MODELS = ("veco", "ernie_m", "xlm_align", "metaxlm")


def run(module: str, *arguments: str) -> str:
    """Prints a command, runs it and returns its output; ends the demo with that output where it fails."""
    command = ("-m", f"crosslingual_zoo.{module}", *arguments)
    print(f"$ {shlex.join(('python', *command))}", flush=True)
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    environment = os.environ | offline | {"OMP_NUM_THREADS": "1"}  # at this size more threads are no faster
    done = subprocess.run((sys.executable, *command), cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        print(done.stdout + done.stderr)
        sys.exit(f"the demo stopped: the command {shlex.join(command)} ended with exit code {done.returncode}")
    return done.stdout.rstrip()


def demonstrate(model: str, folder: Path, tokenizer: Path) -> None:
    """All steps for one model."""
    pretrained, topics = folder / model, folder / f"{model}-topics"
    checkpoint = str(pretrained / "model")
    recipe = f"pretraining/recipes/{model}/smoke.yaml"
    start = meta_pretrain(folder, tokenizer) if model == "metaxlm" else ()
    run("pretraining.run", "--config", recipe, f"tokenizer={tokenizer}", f"output_dir={pretrained}", *start)
    recipe = f"finetuning/recipes/{model}/sample.yaml"
    run("finetuning.run", "--config", recipe, f"model={checkpoint}", f"output_dir={topics}")
    alignment = folder / f"{model}-alignment"
    recipe = "finetuning/recipes/xlm_align/sample_word_alignment.yaml"
    run("finetuning.run", "--config", recipe, f"model={checkpoint}", f"output_dir={alignment}")
    sentences, page = or_installed("sample_corpus/alignments/en-de.txt"), alignment / "page.html"
    align = ("finetuning.align", "--model", checkpoint, sentences, "--html", str(page))
    run(*align, "--output", str(alignment / "en-de.links"))
    repo = ("--repo", f"owner/{model}")
    records = [str(task / "results.json") for task in (topics, alignment)]
    run("hub_cards.card", "--model", checkpoint, "--results", *records, *repo, "--license", "mit")
    print(run("hub_cards.push", "--model", checkpoint, *repo, "--dry-run"))


def meta_pretrain(folder: Path, tokenizer: Path) -> tuple[str]:
    """MetaXLM's first phase: only English, with tokens of its own. Prints what the shared vocabulary takes over."""
    recipe, own, first = "pretraining/recipes/metaxlm/meta_smoke.yaml", folder / "tokenizer-en", folder / "metaxlm-en"
    run("pretraining.tools.train_tokenizer", "--config", recipe, "--vocab_size", "800", "--output", str(own))
    run("pretraining.run", "--config", recipe, f"tokenizer={own}", f"output_dir={first}")
    start = f"model.meta_pretrained.path={first}/model"
    recipe = "pretraining/recipes/metaxlm/smoke.yaml"
    print(run("pretraining.run", "--config", recipe, f"tokenizer={tokenizer}", start, "--dry_run"))
    return (start,)


def main() -> None:
    """Run the demo; print one table and the page to open."""
    parser = CommandParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS, help="which of the four (default: all)")
    chosen = parser.parse_args().models
    started = time.monotonic()
    folder = Path("runs") / f"demo-{datetime.now():%Y%m%d-%H%M%S}"
    tokenizer = folder / "tokenizer"
    recipe = f"pretraining/recipes/{chosen[0]}/smoke.yaml"
    train = ("pretraining.tools.train_tokenizer", "--config", recipe, "--vocab_size", "2000")
    run(*train, "--output", str(tokenizer))
    # two models at a time where there are two cores; the longest path first
    with ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
        list(pool.map(lambda model: demonstrate(model, folder, tokenizer), reversed(chosen)))
    runs = [word for model in chosen for word in ("--run", model, str(folder / f"{model}-topics"))]
    compared = run("finetuning.compare", *runs, "--output", str(folder / "topics"))
    # models of this size are at chance in every language, as the last lines say once
    print("\n".join(line for line in compared.splitlines() if not line.startswith("warning: ")))
    shown = "xlm_align" if "xlm_align" in chosen else chosen[0]
    page = folder / f"{shown}-alignment" / "page.html"
    print(
        f"Done in {time.monotonic() - started:.0f} s, and nothing was sent: models, cards and results are in {folder}. "
        "The models are tiny (under 1M parameters, 240 sentences): scores and links only show that everything runs.\n"
        f"Open {page.resolve()} in a browser: it shows the words of translations that {shown} links."
    )


if __name__ == "__main__":
    main()
