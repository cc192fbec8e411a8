"""Models that leave Python: ONNX files and self-contained web pages that score newcomers."""

from unskew.export.bundle import (
    MAX_PAGE_MB,
    Exported,
    to_onnx,
    to_page,
    write_onnx,
    write_page,
)

__all__ = ["MAX_PAGE_MB", "Exported", "to_onnx", "to_page", "write_onnx", "write_page"]
