"""What goes wrong between Spark and a bucket. Each message says what to do next.

MillstreamError
 ├── BadOption     an option's name or value is wrong, or two of them contradict each other
 ├── BadColumns    the data frame's columns are not what the sink takes
 ├── DataLoss      messages of the range were trimmed or deleted before they were read
 └── StoreOutOfReach   `readTier=direct`, and the object store or one of its objects cannot be read from here
"""

from __future__ import annotations

from ..model.errors import MillstreamError


class BadOption(MillstreamError):
    code = "bad_option"


class BadColumns(MillstreamError):
    code = "bad_columns"


class DataLoss(MillstreamError):
    code = "data_loss"


class StoreOutOfReach(MillstreamError):
    code = "store_out_of_reach"
