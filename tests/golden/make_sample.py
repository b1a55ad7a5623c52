"""Goldens of the sampler: the filters and the draw in plain NumPy, on logits made here.

Needs numpy. Run `python3 make_sample.py`; writes `sample/logits.f32` (all vectors, little-endian float32, one after the other)
and `sample/cases.json`. Each filter is written the way its definition reads, with full sorts and floating-point softmax,
so that it shares nothing with the library but the meaning. A case whose outcome hangs on rounding stops the script.
"""

import json
import math
import pathlib
import struct

import numpy as np

OUT = pathlib.Path(__file__).parent / "sample"
MARGIN = 1e-9
OFF = dict(temperature=1.0, top_p=1.0, min_p=0.0, typical_p=1.0, repeat_penalty=1.0, frequency_penalty=0.0,
           presence_penalty=0.0, top_k=0, penalty_last_n=64, bias=[])
DEFAULTS = dict(OFF, temperature=0.8, top_k=40, top_p=0.95, min_p=0.05)


def make_logits():
    """Vectors that look like a model's: a normal bulk, and a head that stands above it."""
    rng = np.random.RandomState(20240607)
    large = rng.normal(-3.0, 2.4, 5003)
    large[rng.choice(5003, 60, replace=False)] += rng.exponential(5.0, 60) + 5.0
    peaked = rng.normal(0.0, 2.0, 301)
    peaked[17] = 24.0
    flat = rng.normal(0.0, 0.3, 777)
    ties = np.round(rng.normal(0.0, 2.0, 400) * 2.0) / 2.0
    ties[[5, 9]] = [-0.0, 0.0]
    small = rng.normal(0.0, 3.0, 64)
    broken = rng.normal(0.0, 2.0, 96)
    broken[::7] = np.nan
    broken[3::11] = -np.inf
    infinite = rng.normal(0.0, 2.0, 50)
    infinite[[30, 12, 41]] = np.inf
    infinite[2] = np.nan
    vectors = dict(large=large, peaked=peaked, flat=flat, ties=ties, small=small, broken=broken, infinite=infinite)
    return {name: vector.astype(np.float32) for name, vector in vectors.items()}


def adjust(logits, history, options):
    """Bias, then penalties; every operation rounded to float32."""
    logits = logits.copy()
    for token, bias in options["bias"]:
        logits[token] += np.float32(bias)
    last_n = options["penalty_last_n"]
    window = history if last_n < 0 else history[max(len(history) - last_n, 0):]
    repeat, frequency, presence = (np.float32(options[name + "_penalty"]) for name in ("repeat", "frequency", "presence"))
    for token in set(window):
        logit = logits[token]
        logit = logit / repeat if logit > 0 else logit * repeat
        logits[token] = logit - np.float32(window.count(token)) * frequency - presence
    return logits


def softmax(logits):
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def shortest_prefix(order, probabilities, share):
    """The first of `order` whose probabilities reach `share`."""
    sums = np.cumsum(probabilities[order])
    assert np.abs(sums - share).min() > MARGIN, f"a sum is too close to {share}: {np.abs(sums - share).min()} of {len(sums)}"
    return order[: int(np.searchsorted(sums, share)) + 1]


def survivors(logits, options):
    """Ids left by all filters, ascending."""
    ids = np.flatnonzero(logits > -np.inf)
    values = logits[ids].astype(np.float64)
    if options["top_k"] > 0:
        kept = np.lexsort((ids, -values))[: options["top_k"]]
        ids, values = ids[kept], values[kept]
    if np.isinf(values).any():
        ids = ids[np.isinf(values)]
        values = np.zeros(len(ids))
    if options["typical_p"] < 1:
        probabilities = softmax(values)
        with np.errstate(divide="ignore", invalid="ignore"):
            surprisal = -np.log(probabilities)
            entropy = np.nansum(probabilities * surprisal)
        # Rounded, so that equal deviations are equal whatever the rounding of the logarithms.
        deviation = np.round(np.abs(surprisal - entropy), 11)
        kept = shortest_prefix(np.lexsort((ids, deviation)), probabilities, float(np.float32(options["typical_p"])))
        ids, values = ids[kept], values[kept]
    if options["top_p"] < 1:
        kept = shortest_prefix(np.lexsort((ids, -values)), softmax(values), float(np.float32(options["top_p"])))
        ids, values = ids[kept], values[kept]
    if options["min_p"] > 0:
        ratio = softmax(values) / softmax(values).max()
        least = float(np.float32(options["min_p"]))
        assert np.abs(ratio[ratio < 1] - least).min(initial=1.0) > MARGIN * least, "a ratio is too close to min_p"
        ids = ids[ratio >= least]
    return np.sort(ids)


def philox(counter, key):
    """Philox4x32-10 on lists of 32-bit words."""
    c, k, mask = list(counter), list(key), 0xFFFFFFFF
    for _ in range(10):
        a, b = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [(b >> 32) ^ c[1] ^ k[0], b & mask, (a >> 32) ^ c[3] ^ k[1], a & mask]
        k = [(k[0] + 0x9E3779B9) & mask, (k[1] + 0xBB67AE85) & mask]
    return c


def draw(logits, ids, temperature, seed, position):
    def score(token):
        words = philox([token, 0, position & 0xFFFFFFFF, position >> 32], [seed & 0xFFFFFFFF, seed >> 32])
        uniform = (((words[0] << 20) | (words[1] >> 12)) + 0.5) / 2.0**52
        logit = float(logits[token]) if math.isfinite(logits[token]) else 0.0
        return logit / float(np.float32(temperature)) - math.log(-math.log(uniform))

    scores = sorted(((score(int(token)), int(token)) for token in ids), reverse=True)
    assert len(scores) == 1 or scores[0][0] - scores[1][0] > MARGIN, "two scores are too close"
    return scores[0][1]


def elementary_bits(x):
    """Bits of the library's own e^-x and ln x, from their definition; Python rounds every operation to binary64."""
    def bits(value):
        return struct.unpack("<Q", struct.pack("<d", value))[0]

    high = struct.unpack("<d", struct.pack("<Q", 0x3FE62E42FE000000))[0]
    low = struct.unpack("<d", struct.pack("<Q", 0x3E1F473DE6AF278F))[0]
    k = float(round(-x * (1 / math.log(2))))
    r = (-x - k * high) - k * low
    tail = 0.0
    for n in range(13, 1, -1):
        tail = tail * r + 1.0 / math.factorial(n)
    exponential = math.ldexp(1.0 + (r + r * r * tail), int(k))

    m, e = math.frexp(x)
    if m < math.sqrt(0.5):
        m, e = m * 2.0, e - 1
    s = (m - 1.0) / (2.0 + (m - 1.0))
    z = s * s
    tail = 0.0
    for n in range(23, 1, -2):
        tail = tail * z + 1.0 / n
    twice = s + s
    logarithm = e * high + (twice + (twice * (z * tail) + e * low))
    return [bits(x), bits(exponential), bits(logarithm)]


def make_options():
    """Each filter alone, the penalties alone, and combinations."""
    alone = [("top_k", v) for v in (1, 2, 40, 100, 299, 5002, 9000)]
    alone += [("top_p", v) for v in (1e-6, 0.1, 0.5, 0.9, 0.95, 0.999, 0.9999)]
    alone += [("typical_p", v) for v in (1e-6, 0.2, 0.5, 0.9, 0.95, 0.999)]
    alone += [("min_p", v) for v in (1e-30, 0.001, 0.05, 0.4, 0.93, 1.0)]
    options = [dict(OFF)] + [dict(OFF, **{name: value}) for name, value in alone]
    options += [dict(OFF, repeat_penalty=1.3, penalty_last_n=n) for n in (-1, 0, 1, 64)]
    options += [dict(OFF, repeat_penalty=0.7), dict(OFF, frequency_penalty=0.4), dict(OFF, frequency_penalty=-0.3),
                dict(OFF, presence_penalty=1.5), dict(OFF, repeat_penalty=1.1, frequency_penalty=0.2, presence_penalty=-0.6),
                dict(OFF, bias=[[3, 7.5], [11, -100.0], [20, "-inf"], [3, -1.25]]), dict(DEFAULTS)]
    options += [dict(DEFAULTS, top_k=0), dict(DEFAULTS, top_k=0, typical_p=0.8), dict(DEFAULTS, typical_p=0.3, top_p=0.7),
                dict(OFF, typical_p=0.6, min_p=0.3), dict(OFF, typical_p=0.5, top_p=0.55, temperature=1.7),
                dict(DEFAULTS, repeat_penalty=1.2, frequency_penalty=0.1, presence_penalty=0.1, penalty_last_n=-1,
                     bias=[[7, 2.0], [40, "-inf"]])]
    return options


def main():
    vectors = make_logits()
    rng = np.random.RandomState(7)
    cases = []
    for options in make_options():
        numeric = dict(options, bias=[[token, float(bias)] for token, bias in options["bias"]])
        for name, logits in vectors.items():
            history = [int(token) for token in rng.randint(0, min(len(logits), 50), 130)]
            adjusted = adjust(logits, history, numeric)
            kept = survivors(adjusted, numeric)
            changed = {key: value for key, value in options.items() if value != OFF[key]}
            case = dict(logits=name, options=changed, count=len(kept), ids=kept.tolist())
            if len(kept) > 100:
                # The sum of squares stands for ids in which nobody would read.
                case["ids"] = int(sum(int(token) ** 2 for token in kept))
            if not np.array_equal(adjusted, logits, equal_nan=True):
                case["history"] = history
                if name == "small":
                    case["values"] = [float(value) for value in adjusted[kept]]
            if len(kept) > 1:
                places = [(int(rng.randint(0, 2**62)), int(rng.randint(0, 2**40))) for _ in range(4)]
                case["draws"] = [[*place, draw(adjusted, kept, numeric["temperature"], *place)] for place in places]
            cases.append(case)
    points = [1e-300, 1e-16, 0.1, 0.7, 0.99999, 1.0, 1.5, 3.0, 27.5, 36.7, 700.25]
    elementary = [[str(bits) for bits in elementary_bits(x)] for x in points]

    OUT.mkdir(exist_ok=True)
    (OUT / "logits.f32").write_bytes(b"".join(vector.astype("<f4").tobytes() for vector in vectors.values()))
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    sizes = [[name, len(vector)] for name, vector in vectors.items()]
    (OUT / "cases.json").write_text(
        f'{{"logits":{json.dumps(sizes)},\n"elementary":{json.dumps(elementary)},\n"cases":[\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
