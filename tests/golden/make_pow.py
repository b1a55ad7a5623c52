"""Makes tests/golden/pow.txt: powers calculated with many digits and rounded once to the nearest float, as the bits of base,
exponent and result.

    python3 tests/golden/make_pow.py

It needs nothing but Python, and says how many of the results Python's own `**`, which is the C library's, has too.
"""

import decimal
import pathlib
import random
import struct

decimal.getcontext().prec = 400
decimal.getcontext().Emax = 10**6
decimal.getcontext().Emin = -(10**6)
COUNT = 2400


def bits(number):
    return f"{struct.unpack('<Q', struct.pack('<d', number))[0]:016x}"


def nearest(base, exponent):
    """The float nearest to a power, by decimal numbers of 400 digits, which `float` rounds once; nothing if it is infinite."""
    power = (decimal.Decimal(base).ln() * decimal.Decimal(exponent)).exp()
    # What is exact in few bits comes out a little beside itself: such a number is rounded to fewer digits first.
    power = power.normalize(decimal.Context(prec=380, Emax=10**6, Emin=-(10**6)))
    return float(power)


def main():
    choose = random.Random(3)
    cases = set()
    for base in [2.0, 3.0, 10.0, 0.5, 1.5, 0.1, 7.25]:
        cases |= {(base, exponent) for exponent in [0.5, -0.5, 2.0, 3.0, -1.0, -3.0, 10.0, 22.0, 1 / 3, 0.1, 100.5]}
    while len(cases) < COUNT:
        kind = choose.randrange(6)
        base = choose.uniform(0, 20) if kind < 3 else 2.0 ** choose.uniform(-1073, 1023)
        if kind == 2:
            base = 1 + choose.uniform(-1, 1) * 2.0 ** -choose.randrange(1, 53)
        if base in (0, 1):
            continue
        reach = 745 / abs(float(decimal.Decimal(base).ln()))
        exponent = choose.uniform(-1, 1) * (reach if kind % 2 else min(reach, 40))
        if kind == 4:
            exponent = float(round(exponent))
        if kind == 5:
            # Results that are smaller than all normal numbers, or just not.
            exponent = -choose.uniform(708, 745) / float(decimal.Decimal(base).ln())
        cases.add((base, exponent))
    lines, same, finite = [], 0, 0
    for base, exponent in sorted(cases):
        result = nearest(base, exponent)
        if 0 < result < float("inf"):
            finite += 1
            same += base**exponent == result
            lines.append(f"{bits(base)} {bits(exponent)} {bits(result)}")
    path = pathlib.Path(__file__).parent / "pow.txt"
    path.write_text("\n".join(lines) + "\n")
    print(path, len(lines), "powers;", finite - same, "are others by the C library")


if __name__ == "__main__":
    main()
