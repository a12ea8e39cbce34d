"""A few instructions as words, for tests of control flow and registers. Encodings are for sm_90.

    program("start: MOV 4", "@0 BRA start", "EXIT")

A line has an optional label, an optional guard (`@!0` is negated), a name, and numbers: registers, or a label for
jumps. Words after a comma set the control part: `w0` and `r1` are the barriers that the instruction sets, and `b01`
says that it waits for barriers 0 and 1.
"""

from __future__ import annotations

from gpt.sass.code import Code
from gpt.sass.tables import parse_table
from gpt.sass.words import Control, Guard, dump_words, with_bits, with_control, with_guard, with_target

TABLE = parse_table("""gpt-sass-table 1 sm_90
# made by hand

344 CALL
  P12 read 1
  R24 read 2

348 WARPSYNC target=split
  P12 read 1

356 BMOV
  P12 read 1
  B24 write 1

802 MOV
  P12 read 1
  R16 write 1
  R32 read 1

91b ENDCOLLECTIVE
  P12 read 1

941 BSYNC
  P12 read 1
  B16 read 1

944 CALL target=split
  P12 read 1

945 BSSY target=imm32
  P12 read 1
  B16 write 1

947 BRA target=split
  P12 read 1
  P87 read 1

949 BRX
  P12 read 1
  R24 read 2

94d EXIT
  P12 read 1
  P87 read 1

950 RET
  P12 read 1
  R24 read 2
  P87 read 1

981 LDG variable
  P12 read 1
  R16 write 1
  R24 read 2

986 STG variable
  P12 read 1
  R24 read 2
  R32 read 1

988 STS
  P12 read 1
  R24 read 1
  R32 read 1

9c3 S2UR variable
  P12 read 1
  UR16 write 1

9f0 HGMMA
  P12 read 1
  R16 write 2
  R24 read 1
""")
PLACES = {  # bit positions of a line's numbers
    "MOV": (16, 32),
    "LDG": (16, 24),
    "STG": (24, 32),
    "STS": (24, 32),
    "HGMMA": (16, 24),
    "S2UR": (16,),
    "BSSY": (16,),
    "BSYNC": (16,),
    "BMOV": (24,),
    "BRX": (24,),
    "CALLR": (24,),
    "RET": (24,),
}
OPCODES = {"CALLR": 0x344, **{entry.name: number for number, entry in TABLE.opcodes.items() if number != 0x344}}


def program(*lines: str) -> Code:
    """Assemble lines."""
    parts, labels = [], {}
    for index, line in enumerate(lines):
        label, colon, rest = line.partition(":")
        if colon:
            labels[label] = 16 * index
        parts.append(rest if colon else line)
    words = [_word(16 * index, part, labels) for index, part in enumerate(parts)]
    return Code(dump_words(words), TABLE)


def _word(offset: int, line: str, labels: dict[str, int]) -> int:
    text, _, controls = line.partition(",")
    fields = text.split()
    guard = Guard(7, False)
    if fields[0].startswith("@"):
        sign = fields.pop(0)[1:]
        guard = Guard(int(sign.lstrip("!")), sign.startswith("!"))
    name, *operands = fields
    word = with_guard(OPCODES[name], guard)
    if name in ("BRA", "EXIT", "RET"):
        word = with_bits(word, 87, 4, 7)
    for place, operand in zip(PLACES.get(name, ()), operands, strict=False):
        word = with_bits(word, place, 4 if name in ("BSSY", "BSYNC", "BMOV") else 8, int(operand))
    if (form := TABLE.opcodes[OPCODES[name]].target) and name != "CALLR":
        word = with_target(word, form, offset, labels[operands[-1]])
    write, read, wait = 7, 7, 0
    for control in controls.split():
        numbers = [int(digit) for digit in control[1:]]
        write = numbers[0] if control[0] == "w" else write
        read = numbers[0] if control[0] == "r" else read
        wait = sum(1 << number for number in numbers) if control[0] == "b" else wait
    return with_control(word, Control(2, False, write, read, wait, 0))
