"""The catalog: where everything is. SQLite, saved lazily, one transaction per checkpoint."""

from .load import CatalogReader
from .save import CatalogWriter

__all__ = ["CatalogReader", "CatalogWriter"]
