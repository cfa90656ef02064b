from pathlib import Path


def require_empty(folder: str | Path) -> None:
    """Raises ValueError for an output folder that is not empty: old and new files would be mixed."""
    folder = Path(folder)
    if folder.is_file() or folder.is_dir() and any(folder.iterdir()):
        raise ValueError(f"{folder} already exists and is not empty. Name another folder, or remove it first.")
