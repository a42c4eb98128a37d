"""`fedproin bench`: a table of methods, partitions and seeds from one spec; `verb.py` is what people type."""

from fedproin.tools.bench.verb import add_parser

__all__ = ["add_parser"]
