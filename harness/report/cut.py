"""Fits a document into a limit in bytes: whole rows go, headings stay, and a line says how many rows went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Block:
    """Lines that always stand, and rows below them that may be cut from the end.

    Args:
        noun: what one row is, in the plural, for the line that counts those that were cut.
        yields: its rows get the room that the other blocks leave.
    """

    lines: Sequence[str]
    rows: Sequence[str] = ()
    noun: str = "rows"
    yields: bool = False


def fit(blocks: Sequence[Block], limit: int) -> str:
    """The document, at most `limit` bytes of UTF-8. Room goes to the rows of the blocks in their order, those that yield last.

    Raises:
        ValueError: the lines that always stand are over the limit alone.
    """
    whole = [line for block in blocks for line in (*block.lines, *block.rows)]
    if _size(whole) - 1 <= limit:
        return "\n".join(whole)
    notes = [_size([_note(len(block.rows), len(block.rows), block.noun)]) if block.rows else 0 for block in blocks]
    reserved = sum(_size(block.lines) for block in blocks) + sum(notes)
    room = limit - reserved
    if room < 0:
        raise ValueError(f"a document of at most {limit} bytes: its headings alone take {reserved}")
    kept: dict[int, Sequence[str]] = {}
    for n in sorted(range(len(blocks)), key=lambda n: blocks[n].yields):
        rows = blocks[n].rows
        kept[n] = rows if _size(rows) <= room + notes[n] else _prefix(rows, room)
        # Rows that are all kept need no note, so its room is free again.
        room += (notes[n] if len(kept[n]) == len(rows) else 0) - _size(kept[n])
    out: list[str] = []
    for n, block in enumerate(blocks):
        out += [*block.lines, *kept[n]]
        if cut := len(block.rows) - len(kept[n]):
            out.append(_note(cut, len(block.rows), block.noun))
    return "\n".join(out)


def _prefix(rows: Sequence[str], room: int) -> Sequence[str]:
    for n, row in enumerate(rows):
        room -= _size([row])
        if room < 0:
            return rows[:n]
    return rows


def _note(cut: int, of: int, noun: str) -> str:
    return f"\n_{cut} of {of} {noun} are cut here; the JSON has them all._"


def _size(lines: Sequence[str]) -> int:
    return sum(len(line.encode()) + 1 for line in lines)
