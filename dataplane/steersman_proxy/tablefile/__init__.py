"""The table file: a fleet written by a person or a script, read again whenever it changes."""

from steersman_proxy.tablefile.load import load_table_file, read_table_file
from steersman_proxy.tablefile.reader import TableReader
from steersman_proxy.tablefile.schema import EngineEntry, PoolEntry, TableFile
from steersman_proxy.tablefile.watch import TableWatcher

__all__ = [
    "EngineEntry",
    "PoolEntry",
    "TableFile",
    "TableReader",
    "TableWatcher",
    "load_table_file",
    "read_table_file",
]
