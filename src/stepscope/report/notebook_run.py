"""Runs a notebook under this very Python, whatever kernels are installed elsewhere."""

import os
import tempfile
from pathlib import Path
from typing import Any

from stepscope.record.errors import MissingExtra, StepscopeError

_LONGEST_S = 600


def execute(notebook: Any, folder: Path) -> None:
    """Run its cells in `folder` and keep their outputs. Raises StepscopeError with what failed."""
    try:
        import ipykernel  # noqa: F401
        from jupyter_client.kernelspec import KernelSpecManager
        from jupyter_client.manager import AsyncKernelManager
        from nbclient import NotebookClient
        from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
    except ImportError:
        raise MissingExtra("nbclient", "notebook", "an executed notebook") from None
    with tempfile.TemporaryDirectory(prefix="stepscope-") as own:
        manager = AsyncKernelManager(
            kernel_name="python3",
            kernel_spec_manager=KernelSpecManager(kernel_dirs=[]),
            connection_file=str(Path(own, "kernel.json")),
            transport="tcp" if os.name == "nt" else "ipc",
        )
        client = NotebookClient(
            notebook,
            km=manager,
            timeout=_LONGEST_S,
            record_timing=False,
            resources={"metadata": {"path": str(folder)}},
        )
        try:
            client.execute(env=_environment(own), cleanup_kc=True)
        except CellExecutionError as problem:
            words = _said(notebook) or f"{problem.ename}: {problem.evalue}"
            raise StepscopeError(f"the notebook stops: {words}") from None
        except (CellTimeoutError, DeadKernelError) as problem:
            words = (str(problem).strip() or "its kernel died").splitlines()[0]
            raise StepscopeError(f"the notebook stops: {words}") from None


def _said(notebook: Any) -> str:
    """What the last cell that ran ended with: an error, or a line on stderr."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    for output in reversed(outputs):
        if output.output_type == "error":
            return f"{output.ename}: {output.evalue}"
        if output.output_type == "stream" and output.name == "stderr" and output.text.strip():
            return str(output.text.strip().splitlines()[-1])
    return ""


def _environment(own: str) -> dict[str, str]:
    """Figures as data, without the chart library; nothing is written in the user's home."""
    return {**os.environ, "PLOTLY_RENDERER": "plotly_mimetype", "IPYTHONDIR": own}
