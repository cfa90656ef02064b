"""Compares results: a table, plots, and every difference in how the runs were trained and measured.

    python -m finetuning.tools.compare --output runs/multi30k_compared \\
        --run VECO runs/multi30k-veco --run XLM runs/multi30k-xlm --run random runs/multi30k-random
    python -m finetuning.tools.compare --output runs/xtreme_compared \\
        --run XLM runs/xlm/xtreme --run MetaXLM runs/metaxlm/xtreme

--run takes a name and one or more output folders of finetuning/run.py. Several folders are seeds of one experiment that
were run separately. For single tasks, the command writes comparison.md, comparison.csv (one row per score) and
comparison.png. For suites, it writes benchmark.json, md, csv and png, with one column per task, and
benchmark-languages.png.
"""

from pathlib import Path

from finetuning.experiments import benchmark
from finetuning.results.comparison import read_runs, write_comparison
from finetuning.results.differences import named_folders
from finetuning.results.table import load_results
from zoo_core.command_line import CommandParser, user_errors


def main(argv: list[str] | None = None) -> None:
    """Entry point; `argv` defaults to the command line."""
    parser = CommandParser(description=__doc__)
    metavar, text = ("NAME", "DIR"), "a name and its result folders"
    parser.add_argument("--run", nargs="+", action="append", required=True, metavar=metavar, help=text)
    parser.add_argument("--output", required=True, metavar="DIR", help="where the comparison is written")
    options = parser.parse_args(argv)
    with user_errors():
        folders, output = named_folders(options.run), Path(options.output)
        first = Path(options.run[0][1]) / "results.json"
        if first.is_file() and load_results(first).get("kind") == benchmark.KIND:
            suites, runs = {}, {}
            for name, paths in folders.items():
                suites[name], runs[name] = benchmark.read_suite_folders(name, paths)
            report = benchmark.build(suites, runs)
            output.mkdir(parents=True, exist_ok=True)
            benchmark.write(report, runs, output, "benchmark")
        else:
            write_comparison(read_runs(folders), output)


if __name__ == "__main__":
    main()
