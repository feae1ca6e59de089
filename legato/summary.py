"""Big states made small enough to read: the first few of every large collection, and how many more there are."""

from typing import Any

import msgspec

ITEMS_MAX = 6  # of one collection
TEXT_MAX = 200


def summarised(value: Any) -> Any:
    """Plain data, as for JSON, with large collections and texts cut; each cut says what is missing. Structs stay whole."""
    if isinstance(value, msgspec.Struct):
        return {field: summarised(getattr(value, field)) for field in msgspec.to_builtins(value) if field in value.__struct_fields__}
    if isinstance(value, dict):
        few: dict[str, Any] = {str(key): summarised(item) for key, item in list(value.items())[:ITEMS_MAX]}
        return {**few, "…": _more(len(value))} if len(value) > ITEMS_MAX else few
    if isinstance(value, list | tuple | set | frozenset):
        shown = [summarised(item) for item in list(value)[:ITEMS_MAX]]
        return [*shown, f"… {_more(len(value))}"] if len(value) > ITEMS_MAX else shown
    if isinstance(value, str) and len(value) > TEXT_MAX:
        return f"{value[:TEXT_MAX]}… ({len(value):,} characters)"
    return msgspec.to_builtins(value)


def _more(size: int) -> str:
    return f"{size - ITEMS_MAX:,} more, {size:,} in all"
