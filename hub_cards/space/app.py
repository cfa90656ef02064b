"""A page to try cross-lingual encoders on: word links, masked words, nearest sentences, heads.

    python hub_cards/space/app.py --model runs/xlm_align-smoke/model

This folder is a Space: uploaded with modeling/ in it, it runs there. It needs gradio, torch and transformers.
"""

import argparse
import os
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
FONT = ["system-ui", "Segoe UI", "Roboto", "Noto Sans", "sans-serif"]  # of the visitor's system: nothing is fetched
FONT_MONO = ["ui-monospace", "Noto Sans Mono", "monospace"]
EPILOG = """examples:
  python hub_cards/space/app.py --model runs/xlm_align-smoke/model
  python hub_cards/space/app.py --model runs/veco/model --model FacebookAI/xlm-roberta-base --port 8000
  ZOO_MODELS=owner/name,owner/other python hub_cards/space/app.py --only-listed

No code of a model runs here: models of the zoo are loaded by its own code, others by transformers. --trust-remote-code
runs that of the listed models. On a Space, and where --host lets other machines in, only the listed models are loaded,
regardless of what a visitor types; --no-only-listed lifts that."""


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="app.py",
        description="Serves a page to try encoders on: word links, masked words, nearest sentences. Runs on a CPU.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--model",
        action="append",
        metavar="MODEL",
        help="a folder that holds a model, or its id on the Hub; give several. Default: ZOO_MODELS, with commas "
        "between them; on a Space, then, `models` of its README.md; else the page asks for one",
    )
    parser.add_argument(
        "--only-listed",
        action=argparse.BooleanOptionalAction,
        help="load no model that is not named here. Default: ZOO_ONLY_LISTED (1 or 0); else on a Space, and where "
        "--host lets other machines in",
    )
    parser.add_argument(
        "--trust-remote-code",
        action="store_true",
        default=None,
        help="run the code that the models named here bring. Default: ZOO_TRUST_REMOTE_CODE (1 or 0); else no",
    )
    parser.add_argument(
        "--host",
        default=os.environ.get("GRADIO_SERVER_NAME") or LOOPBACK[0],
        help="the address to serve on; 0.0.0.0 lets other machines in (default: GRADIO_SERVER_NAME, else 127.0.0.1)",
    )
    parser.add_argument("--port", type=int, help="default: GRADIO_SERVER_PORT, else the first free one from 7860 on")
    return parser


def complete(flags: argparse.Namespace) -> None:
    """Puts in what the environment says where the command line says nothing. Raises ValueError for what cannot be."""
    flags.host = "[::1]" if flags.host == "::1" else flags.host  # as addresses have it
    on_a_space = bool(os.environ.get("SPACE_ID"))
    if flags.model is None:
        flags.model = [name.strip() for name in os.environ.get("ZOO_MODELS", "").split(",") if name.strip()]
        if not flags.model and on_a_space:
            from huggingface_hub import metadata_load

            flags.model = metadata_load(FOLDER / "README.md")["models"]
    if flags.only_listed is None:
        flags.only_listed = from_environment("ZOO_ONLY_LISTED", on_a_space or flags.host not in LOOPBACK)
    if flags.trust_remote_code is None:
        flags.trust_remote_code = from_environment("ZOO_TRUST_REMOTE_CODE", False)
    if flags.only_listed and not flags.model:
        raise ValueError("no model is named, and only named ones may be loaded: give --model, or set ZOO_MODELS.")


def from_environment(name: str, default: bool) -> bool:
    """Whether a variable is 1; the default where it is not set. Raises ValueError for anything but 1 and 0."""
    setting = os.environ.get(name, "").strip()
    if setting not in ("", "0", "1"):
        raise ValueError(f"{name} is {setting!r}: give 1 or 0.")
    return setting == "1" if setting else default


def main(arguments: list[str] | None = None) -> None:
    """Reads the command line, loads the first model, and serves the page until it is stopped."""
    parser = make_parser()
    flags = parser.parse_args(arguments)
    sys.path.append(str(FOLDER.parent.parent))  # of a checkout: modeling/ lies there
    try:
        complete(flags)
        # what is typed here stays here; gradio reads both when it is imported
        os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
        os.environ.setdefault("GRADIO_RUN_HISTORY", "False")
        import gradio as gr
        from loading import Models
        from page import Page
        from starlette.middleware import Middleware
        from starlette.middleware.trustedhost import TrustedHostMiddleware
        from transformers.utils import logging

        logging.set_verbosity(logging.CRITICAL)  # pipelines list all classes that are none of the zoo's as an error
        models = Models(flags.model, flags.only_listed, flags.trust_remote_code)
        start = None
        if flags.model:
            print(f"Loading {flags.model[0]}", flush=True)
            start = models.get(flags.model[0])
    except ValueError as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")
    # a page of another site that calls itself by another name for this machine is refused
    hosts = LOOPBACK if flags.host in LOOPBACK else ["*"]
    try:
        page = Page(models, start).blocks
        _, url, _ = page.launch(
            server_name=flags.host,
            server_port=flags.port,
            share=False,  # no tunnel, regardless of GRADIO_SHARE
            ssr_mode=False,
            max_file_size=0,  # the page takes no files, and they would stay on the disk
            footer_links=["api"],
            theme=gr.themes.Default(primary_hue="teal", neutral_hue="slate", font=FONT, font_mono=FONT_MONO).set(
                button_primary_background_fill="*primary_700",  # lighter ones are too light for white text
                button_primary_background_fill_dark="*primary_700",
                button_primary_background_fill_hover="*primary_800",
                button_primary_background_fill_hover_dark="*primary_800",
            ),
            css_paths=[FOLDER / "style.css"],
            app_kwargs={"middleware": [Middleware(TrustedHostMiddleware, allowed_hosts=hosts)]},
            quiet=True,  # it would advertise tunnels
            prevent_thread_lock=True,
        )
        print(f"Running on {url}", flush=True)
        page.block_thread()
    except OSError as error:  # a port that is taken
        parser.exit(2, f"{parser.prog}: error: {error}\n")


if __name__ == "__main__":
    main()
