"""Tables that streams are exported to: executors write data files, the driver commits their names."""
