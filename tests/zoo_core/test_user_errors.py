"""How programs end where it is the user who has to do something."""

import pytest
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from zoo_core.recipes import user_errors


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (ValueError("what, why, what to do"), 2, "what, why, what to do"),
        (PermissionError(13, "Permission denied", "runs/x"), 2, "check the path, its permissions"),
        (FileNotFoundError(2, "No such file or directory", "runs/x"), 2, "removed"),
        (KeyboardInterrupt(), 130, "--resume"),
    ],
)
def test_errors_end_with_a_message_and_a_code(error, code, words, capsys):
    with pytest.raises(SystemExit) as stop, user_errors():
        raise error
    assert stop.value.code == code
    assert words in capsys.readouterr().err


def test_faults_of_ours_keep_their_traceback(monkeypatch):
    with pytest.raises(ZeroDivisionError), user_errors():
        raise ZeroDivisionError
    monkeypatch.setenv("ZOO_TRACEBACK", "1")
    with pytest.raises(ValueError, match="why"), user_errors():
        raise ValueError("why")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_launcher_of_several_processes_can_list_the_message(rank, monkeypatch, tmp_path, capsys):
    file = str(tmp_path / "error.json")
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", file)
    monkeypatch.setenv("RANK", str(rank))
    with pytest.raises(SystemExit), user_errors():
        raise ValueError("what, why, what to do")
    listed = ProcessFailure(local_rank=rank, pid=1, exitcode=2, error_file=file).message
    assert listed["message"].endswith("what, why, what to do")
    assert ("what to do" in capsys.readouterr().err) == (rank == 0)
