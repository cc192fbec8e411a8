"""The notebooks in `examples/` run from the first cell to the last, and hold no old output."""

from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))
NEEDED = {"2_pytorch_method": "torch", "5_deployment": "flwr"}
"""A package that a notebook needs beyond the base install."""

nbformat = pytest.importorskip("nbformat", reason="notebooks need nbformat and nbclient")
nbclient = pytest.importorskip("nbclient", reason="notebooks need nbformat and nbclient")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebook_runs(path: Path, tmp_path: Path) -> None:
    needed = NEEDED.get(path.stem)
    if needed is not None and find_spec(needed) is None:
        pytest.skip(f"needs {needed}")
    notebook = nbformat.read(path, as_version=4)
    where = {"metadata": {"path": str(tmp_path)}}
    done = nbclient.NotebookClient(notebook, timeout=120, resources=where).execute()
    shown = [cell.outputs for cell in done.cells if cell.cell_type == "code"]
    assert any(shown)
    text = str(shown)
    if path.stem == "1_quickstart":  # a run is shown as a table, its chart as a picture
        assert "<table>" in text
        assert "image/svg+xml" in text
    if path.stem == "3_comparison":
        assert r"\\toprule" in text


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebook_is_stored_without_output(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells)
    assert all(cell.get("execution_count") is None for cell in notebook.cells)


def test_there_are_five_notebooks() -> None:
    assert len(NOTEBOOKS) == 5
