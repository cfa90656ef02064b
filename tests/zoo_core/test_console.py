"""What a run prints where there is no terminal."""

import re

from crosslingual_zoo.zoo_core.console import RunBar


def test_run_bar_prints_its_first_step_and_each_note(capsys):
    with RunBar() as bar:
        bar.begin(9, done=3)
        for step in range(4, 8):
            bar.step(step, "mlm")
            if step == 6:
                bar.note("loss 1.5")
    lines = capsys.readouterr().err.splitlines()
    assert [re.search("(mlm) .*([0-9])/9", line).groups() for line in lines] == [("mlm", "4"), ("mlm", "6")]
    assert "loss 1.5" in lines[1]


def test_run_bar_of_another_process_prints_nothing(capsys):
    with RunBar(is_shown=False) as bar:
        bar.begin(2)
        bar.step(1, "mlm")
        bar.note("loss 1.5")
    assert capsys.readouterr().err == ""
