"""`word-align` in several processes writes what one process writes."""

import signal

import pytest

from tests.finetuning.conftest import PAIRS
from tests.finetuning.processes import run_in

# argv: JSON of the arguments of one command after another, and of the row at which the process gets a signal, if any
PROGRAM = """
import json, os, signal, sys
from finetuning.align import links
from finetuning.align.command import main
align_block = links.align_block
def signalled(aligner, reader, rows, first, *others):
    if row is not None and row in range(first, first + len(rows)):
        os.kill(os.getpid(), number)
    return align_block(aligner, reader, rows, first, *others)
links.align_block = signalled
for arguments, row, number in json.loads(sys.argv[1]):
    try:
        main(arguments)
    except SystemExit as ended:
        sys.stdout.flush()
        os.write(1, f"ended with {ended.code}\\n".encode())  # one write: lines of two processes do not mix
"""


@pytest.fixture
def files(tmp_path):
    """Source and target sentences: seven blocks of 32 pairs, and some more."""
    words = " ".join(PAIRS).replace("|||", "").split()
    sides = [[], []]
    for n in range(230):
        sides[0].append(" ".join(words[n % 11 : n % 11 + 1 + n % 5]))
        sides[1].append(" ".join(words[-1 - n % 7 :]))
    for name, lines in zip(("source", "target"), sides, strict=True):
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return [str(tmp_path / name) for name in ("source", "target")]


@pytest.mark.slow
def test_two_and_three_processes_and_kills_leave_the_file_of_one(files, tiny_model, tmp_path):
    def links(name, *more, at=None, number=0):
        form = ["--output-format", "tsv", "--probabilities", "--batch-size", "1"]
        return [[*files, "--model", str(tiny_model), "--output", str(tmp_path / name), *form, *more], at, number]

    codes, printed = run_in(1, PROGRAM, [links("one")], tmp_path)
    assert codes == [0], printed
    expected = (tmp_path / "one").read_bytes()
    assert expected.count(b"\n") > 230

    page = ["--html", str(tmp_path / "page.html")]
    commands = [links("two", *page), links("stopped", at=70, number=signal.SIGINT)]
    codes, printed = run_in(2, PROGRAM, commands, tmp_path)
    assert codes == [0, 0], printed
    assert (tmp_path / "two").read_bytes() == expected and (tmp_path / "page.html").exists()
    assert printed.count("ended with 130") == 2
    assert expected.startswith((tmp_path / "stopped").read_bytes())

    # both end: one is killed, and the other one waits for it
    codes, printed = run_in(2, PROGRAM, [links("killed", at=170, number=signal.SIGKILL)], tmp_path)
    assert -signal.SIGKILL in codes, printed
    assert b"\n127\t" in (tmp_path / "killed").read_bytes() and b"\n128\t" not in (tmp_path / "killed").read_bytes()
    for name in ("killed", "stopped"):
        (tmp_path / f"{name} 3").write_bytes((tmp_path / name).read_bytes())
        (tmp_path / f"{name} 3.word-align.json").write_bytes((tmp_path / f"{name}.word-align.json").read_bytes())
    for processes, ending in ((1, ""), (3, " 3")):
        commands = [links(f"{name}{ending}", "--resume") for name in ("killed", "stopped")]
        codes, printed = run_in(processes, PROGRAM, [*commands, links(f"new{ending}")], tmp_path)
        assert codes == [0] * processes and printed.count(" of earlier runs") == 2, printed
        for name in ("killed", "stopped", "new"):
            assert (tmp_path / f"{name}{ending}").read_bytes() == expected, (name, processes)


@pytest.mark.slow
def test_what_one_process_finds_ends_all_and_is_said_once(files, tiny_model, tmp_path):
    with open(files[0], "a") as source:
        source.write("one line more\n")
    table = tmp_path / "table.txt"
    table.write_text("a ||| b\nno mark\n")
    model = ["--model", str(tiny_model)]
    # the second row is checked by the second process
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "config.json").write_text("{}")
    commands = [[*files, *model], [str(table), *model], [*model], ["score", *files, *model, "--gold", str(table)]]
    commands += [["a b", "c d", "--model", str(tmp_path / "bare")]]
    codes, printed = run_in(2, PROGRAM, [[command, None, 0] for command in commands], tmp_path)
    assert codes == [0, 0] and printed.count("ended with 2") == 10 and "Traceback" not in printed, printed
    assert "231" in printed and "table.txt, line 2" in printed and "bare" in printed, printed
