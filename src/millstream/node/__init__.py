"""One running node: the engine with journal, catalog and segments around it.

`Stream`, `Cut` and `Records` are what listeners see of the engine.
"""

from ..engine.reading import Cut, Records
from ..engine.state import Stream

__all__ = ["Cut", "Records", "Stream"]
