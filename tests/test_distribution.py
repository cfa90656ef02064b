"""What is released: the sdist is a checkout without its hidden files at the top, and the wheel has what users run."""

import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parents[1]
MADE = {"_build", "build", "crosslingual_zoo.egg-info", "dist", "runs"}
PACKAGES = {"finetuning", "hub_cards", "modeling", "pretraining", "sample_corpus", "zoo_core"}  # linked into one
# by package, the data that code reads
DATA = {
    "finetuning": ("recipes/**/*.yaml", "published/*.yaml", "suites/*.yaml", "metrics/**/*.py", "align/templates/*"),
    "modeling": ("e5_small_aligner/*",),
    "hub_cards": ("templates/**/*", "space/*"),
    "pretraining": ("recipes/**/*.yaml", "accelerate/*.yaml"),
    "sample_corpus": ("**/*",),
}


def run(*command: str, cwd: Path) -> None:
    done = subprocess.run([sys.executable, *command], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def files_of(folder: Path, *patterns: str) -> set[str]:
    """Paths from `folder` of the files that match, without compiled ones."""
    found = {path for pattern in patterns for path in folder.glob(pattern) if path.is_file()}
    return {path.relative_to(folder).as_posix() for path in found if "__pycache__" not in path.parts}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """A copy of the files of this repository that do not begin, at the top, with a dot."""
    folder = tmp_path_factory.mktemp("checkout")
    names = [name for name in files_of(ROOT, "**/*") if not MADE.intersection(name.split("/"))]
    if (ROOT / ".git").exists():
        names = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True).split("\0")[:-1]
    for name in names:
        if not name.startswith(".") and (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name, follow_symlinks=False)
    return folder


@pytest.fixture(scope="module")
def distributions(checkout, tmp_path_factory) -> dict[str, Path]:
    """{".gz": the sdist, ".whl": the wheel that is built from it}, which twine has checked."""
    folder, work = tmp_path_factory.mktemp("dist"), tmp_path_factory.mktemp("work")
    source = shutil.copytree(checkout, work / "source", symlinks=True)
    run("-m", "build", "--no-isolation", "--outdir", str(folder), cwd=source)
    found = {path.suffix: path for path in folder.iterdir()}
    assert set(found) == {".gz", ".whl"}
    run("-m", "twine", "check", "--strict", *map(str, found.values()), cwd=folder)
    return found


@pytest.mark.slow
def test_sdist_is_the_checkout(checkout, distributions):
    with tarfile.open(distributions[".gz"]) as archive:
        names = {"/".join(PurePosixPath(member.name).parts[1:]) for member in archive if member.isfile()}
    made = {name for name in names if ".egg-info/" in name} | {"PKG-INFO", "setup.cfg"}
    linked = {f"crosslingual_zoo/{name}/{file}" for name in PACKAGES for file in files_of(checkout / name, "**/*")}
    assert names - made == files_of(checkout, "**/*") | linked


@pytest.mark.slow
def test_wheel_has_code_and_data_of_the_packages_alone(checkout, distributions):
    with zipfile.ZipFile(distributions[".whl"]) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    expected = {f"crosslingual_zoo/{file}" for file in files_of(checkout / "crosslingual_zoo", "*.py*", "py.typed")}
    for name in PACKAGES:
        files = files_of(checkout / name, "**/*.py", "py.typed", *DATA.get(name, ()))
        expected |= {f"crosslingual_zoo/{name}/{file}" for file in files}
    assert names == expected


@pytest.mark.slow
def test_wheel_of_a_compiled_checkout_is_that_of_the_sdist(checkout, distributions, tmp_path):
    source = shutil.copytree(checkout, tmp_path / "source", symlinks=True)
    run("-m", "compileall", "-q", "crosslingual_zoo", cwd=source)
    run("-m", "build", "--no-isolation", "--wheel", "--outdir", str(tmp_path), cwd=source)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as direct, zipfile.ZipFile(distributions[".whl"]) as of_sdist:
        assert sorted(direct.namelist()) == sorted(of_sdist.namelist())


@pytest.mark.slow
def test_wheel_works_next_to_folders_of_the_same_names(distributions, tmp_path):
    for name in ("modeling", "pretraining", "finetuning", "zoo_core"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("own = True")
    run("-m", "pip", "install", "--quiet", "--no-deps", "--target", "site", str(distributions[".whl"]), cwd=tmp_path)
    start = f"import sys; sys.path.insert(1, {str(tmp_path / 'site')!r}); import crosslingual_zoo as zoo, modeling; "
    run("-c", f"{start}assert modeling.own; [getattr(zoo, name) for name in zoo.__all__]", cwd=tmp_path)


def test_version_is_the_same_everywhere():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\n## {version} (" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_cards_name_the_oldest_transformers():
    (needed,) = (line for line in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
                 if line.startswith("transformers"))  # fmt: skip
    template = (ROOT / "hub_cards" / "templates" / "card.md.jinja").read_text(encoding="utf-8")
    assert f'"{needed.partition(",")[0]}"' in template
