"""One running node: the engine with journal, catalog and segments around it.

`Stream` and `Cut` are what listeners see of the engine.
"""

from ..engine.reading import Cut
from ..engine.state import Stream

__all__ = ["Cut", "Stream"]
