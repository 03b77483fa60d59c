"""Number formats and block-scaling schemes: bits with scales, arithmetic types, encoding, decoding, error.

The catalogue (`get_format`, `format_ids`) is light. The numerics live in `elements`, `scales`, `blocks`, `checkpoints`, `swizzle`
and `quality` and are imported where they are used.
"""

from perfmodel.formats.format import Format, Scheme, format_ids, get_format

__all__ = ["Format", "Scheme", "format_ids", "get_format"]
