"""Mutations of files, as a full disk, a bad disk, an editor or an attacker leaves them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

_DEEP = "[" * 200_000
_VALUES = [
    "null", "true", "-1", "0", "5", "0.5", str(2**63), str(2**70), "9" * 5000, "1e999", "NaN",
    "-Infinity", '""', '"x"', '"\\u0000"', '"1-99999999999"', json.dumps("y" * 100_000), "[]",
    "[5]", "{}", '{"x": 1}', "[" * 90 + "]" * 90, _DEEP, '{"a":' * 100_000,
]  # fmt: skip
_MARK = "@mutated@"


def mutations(content: bytes, seed: int, count: int) -> Iterator[tuple[str, bytes]]:
    """Yield descriptions and mutated copies of a file: JSON, lines of JSON, or safetensors."""
    chance = random.Random(seed)
    for _ in range(count):
        kind = chance.choice(["bits", "cut", "json", "json", "json", "json"])
        mutated: bytes | None
        what, mutated = kind, None
        if kind == "bits":
            mutated = _flipped(content, chance)
        elif kind == "cut":
            mutated = content[: chance.randrange(len(content) or 1)]
        else:
            what, mutated = _json(content, chance)
        if mutated is not None and mutated != content:
            yield f"{what} (seed {seed})", mutated


def _flipped(content: bytes, chance: random.Random) -> bytes:
    found = bytearray(content)
    for _ in range(chance.choice([1, 1, 8])):
        if found:
            found[chance.randrange(len(found))] ^= 1 << chance.randrange(8)
    return bytes(found)


def _json(content: bytes, chance: random.Random) -> tuple[str, bytes | None]:
    """Replace one value of the JSON, of the header, or of a line of the JSON, in a file."""
    if content[8:10] == b'{"':  # safetensors
        size = int.from_bytes(content[:8], "little")
        what, header = _one(content[8 : 8 + size].decode(), chance)
        raw = header.encode()
        return f"header: {what}", len(raw).to_bytes(8, "little") + raw + content[8 + size :]
    text = content.decode()
    try:
        json.loads(text)
    except ValueError:
        lines = text.split("\n")
        place = chance.randrange(len(lines))
        if not lines[place]:
            return "", None
        what, lines[place] = _one(lines[place], chance)
        return f"line {place + 1}: {what}", "\n".join(lines).encode()
    what, text = _one(text, chance)
    return what, text.encode()


def _one(text: str, chance: random.Random) -> tuple[str, str]:
    root = [json.loads(text)]
    places = list(_places(root, ""))
    parent, key, path = chance.choice(places)
    value, inner = chance.choice(_VALUES), parent[key]
    if isinstance(parent, dict) and chance.random() < 0.15:
        del parent[key]
        return f"{path} removed", json.dumps(root[0])
    if isinstance(inner, str) and inner[:1] in ("{", "[") and chance.random() < 0.7:
        what, parent[key] = _one(inner, chance)  # JSON within a text
        return f"{path}: {what}", json.dumps(root[0])
    parent[key] = _MARK
    mutated = json.dumps(root[0]).replace(json.dumps(_MARK), value)
    return f"{path} = {value[:20]}", mutated


def _places(parent: Any, path: str) -> Iterator[tuple[Any, Any, str]]:
    pairs = parent.items() if isinstance(parent, dict) else enumerate(parent)
    for key, value in pairs:
        yield parent, key, f"{path}.{key}"[-80:]
        if isinstance(value, dict | list):
            yield from _places(value, f"{path}.{key}")
