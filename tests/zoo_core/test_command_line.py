"""How programs end after a user error, and the versions that they print."""

import pytest
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from zoo_core.command_line import CommandParser, user_errors
from zoo_core.provenance import PROJECT


@pytest.mark.parametrize(
    "error, code", [(ValueError("why"), 2), (PermissionError(13, "why", "runs/x"), 2), (KeyboardInterrupt(), 130)]
)
def test_errors_end_with_a_message_and_a_code(error, code, capsys):
    with pytest.raises(SystemExit) as stop, user_errors():
        raise error
    assert stop.value.code == code and str(error) in capsys.readouterr().err


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
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", str(rank))
    with pytest.raises(SystemExit), user_errors():
        raise ValueError("what, why, what to do")
    listed = ProcessFailure(local_rank=rank, pid=1, exitcode=2, error_file=file).message
    assert listed["message"].endswith("what, why, what to do")
    assert ("what to do" in capsys.readouterr().err) == (rank == 0)


def test_every_command_names_the_versions(capsys):
    parser = CommandParser(prog="tool")
    parser.add_argument("--input", required=True)
    parser.add_subparsers().add_parser("part")
    for arguments in (["--version"], ["--input", "x", "part", "--version"]):
        with pytest.raises(SystemExit) as stop:
            parser.parse_args(arguments)
        assert stop.value.code == 0
        assert {part.split()[0] for part in capsys.readouterr().out.split(", ")} >= {PROJECT, "torch", "transformers"}
    assert "version" not in parser.parse_args(["--input", "x"])  # commands pass their flags on


@pytest.mark.parametrize("arguments", [["caf\udce9.txt"], []])
def test_a_wrong_argument_is_one_line(arguments, capsys):
    parser = CommandParser(prog="tool")
    parser.add_argument("file")
    with pytest.raises(SystemExit) as stop:
        parser.parse_args(arguments)
    said = capsys.readouterr()
    assert stop.value.code == 2 and not said.out and said.err.count("\n") == 1


@pytest.mark.parametrize("argument", ["--dry_run", "--dry-run", "--dry"])
def test_names_of_options_have_hyphens_or_underscores(argument):
    parser = CommandParser()
    parser.add_argument("--dry_run", action="store_true")
    parser.add_argument("--hub-root")
    parser.add_argument("files", nargs="*")
    flags = parser.parse_intermixed_args(["a-b_c", argument, "--hub_root=x-y_z"])
    assert flags.dry_run and flags.hub_root == "x-y_z" and flags.files == ["a-b_c"]
