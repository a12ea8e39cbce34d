"""The columns of gpt-stream(5), written and read one byte at a time, from the man page alone."""

from __future__ import annotations

MOD = 1 << 32


def read_columns(held: bytes, row: int, size: int) -> bytes:
    rows, rest = divmod(size, row)
    assert row % 4 == 0 and 4 <= row <= 4096 and rows >= 2
    at = row + (row + 7) // 8
    mask = held[row:at]
    planes = []
    for plane in range(row):
        if mask[plane // 8] >> plane % 8 & 1:
            planes.append(held[at : at + rows - 1])
            at += rows - 1
        else:
            planes.append(bytes(rows - 1))
    assert len(held) == at + rest
    words = [int.from_bytes(held[4 * w : 4 * w + 4], "little") for w in range(row // 4)]
    out = [held[:row]]
    for i in range(rows - 1):
        for w in range(row // 4):
            number = int.from_bytes(bytes(planes[4 * w + k][i] for k in range(4)), "little")
            words[w] = (words[w] + number // 2 if number % 2 == 0 else words[w] - (number + 1) // 2) % MOD
        out.append(b"".join(word.to_bytes(4, "little") for word in words))
    return b"".join(out) + held[at:]


def write_columns(data: bytes, row: int) -> bytes:
    rows = len(data) // row
    numbers = [bytearray() for _ in range(row)]
    for i in range(1, rows):
        for w in range(row // 4):
            at = i * row + 4 * w
            now, before = (int.from_bytes(data[k : k + 4], "little") for k in (at, at - row))
            step = (now - before) % MOD
            number = 2 * step if step < MOD // 2 else 2 * (MOD - step) - 1
            for k in range(4):
                numbers[4 * w + k].append(number >> 8 * k & 255)
    mask = bytearray((row + 7) // 8)
    for plane, held in enumerate(numbers):
        mask[plane // 8] |= any(held) << plane % 8
    return data[:row] + bytes(mask) + b"".join(bytes(held) for held in numbers if any(held)) + data[rows * row :]
