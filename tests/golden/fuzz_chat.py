"""Makes random small templates and what Jinja2 makes of them, for the chat tests: tests/golden/text/random.json.

    venv/bin/python tests/golden/fuzz_chat.py [COUNT [SEED [FILE]]]

With the virtual environment of make_chat.py. To try more than the file in the tree has, write another and let the test
read it: SEGNO_CHAT_CASES=FILE cargo test --test text_chat random.
"""

import json
import random
import re
import signal
import sys
import warnings

import make_chat

SCALARS = """0 1 -1 2 3 7 10 255 2.5 -0.5 1e3 0.1 true false none missing 'a' 'b' '' 'Ab c' 'x-y' ' pad ' '12' '3.7' "it's" 'é🦙'
'<b>' 'a\\nb' ('m'|safe) 18446744073709551616
-170141183460469231731687303715884105729 123456789012345678901234567890123456789012345678901 'a.com b-c' 'ǆ ﬁ ß Σ'""".split("\n")
SCALARS = [part for line in SCALARS for part in re.findall(r"\([^)]*\)|'(?:[^'])*'|\"[^\"]*\"|\S+", line)]
NAMES = ["u", "v", "w", "ns.x", "messages", "messages[0]", "messages[0].content", "missing", "loop.index", "loop.last", "i"]
BINARY = ["+", "-", "*", "/", "//", "%", "~", "==", "!=", "<", ">", "<=", ">=", "in", "not in", "and", "or"]
FILTERS = """abs batch(2) batch(3,'x') capitalize center(7) count d('z') default(1,true) dictsort dictsort(by='value') e escape
filesizeformat first float forceescape groupby('a') groupby(0) groupby('a',default=0) indent indent(2,true) int int(5) int(base=16) items join join('-')
join(',',attribute='a') last length list lower map('upper') map('string') map(attribute='a') map(attribute='a',default=0)
map('default','q') max min reject reject('none') rejectattr('a') replace('a','Z') replace('a','b',1) reverse round round(1)
round(0,'ceil') round(-1) safe select select('string') select('number') select('gt',1) selectattr('a') selectattr('a','eq',1) slice(2)
slice(3,0) sort sort(reverse=true) sort(attribute='a') sort(attribute='a,b') string striptags sum sum(start=1)
sum(attribute='a') title tojson tojson(indent=1) tojson(sort_keys=true) trim trim('a') truncate(5) truncate(4,true,'..',0) unique upper urlencode
wordcount xmlattr attr('a') format(1) pprint wordwrap(3) wordwrap(2,false,'|') urlize""".split()
TESTS = """boolean callable defined divisibleby(2) escaped even false float integer iterable lower mapping none number odd
sameas(1) sequence string true undefined upper eq(1) gt(1) in([1,'a']) ne('a')""".split()
METHODS = """.upper() .lower() .title() .capitalize() .swapcase() .strip() .strip('a') .lstrip() .rstrip() .split() .split('a') .split(none,1) .rsplit('-',1)
.splitlines() .startswith('a') .startswith('a',1) .endswith(('a','b')) .find('b') .find('a',1) .rfind('a') .count('a') .replace('a','b') .join(['p','q']) .center(6,'*')
.ljust(4) .rjust(4,'.') .zfill(4) .isdigit() .isalpha() .isupper() .islower() .istitle() .isspace() .isalnum() .partition('-') .rpartition('a') .removeprefix('a')
.removesuffix('b') .expandtabs(2) .format(1,2) .items() .keys() .values() .get('a') .get('b',3) .get(missing) .index(1) .count(1) .copy() .a .b .x [0] [-1] ['a'] [none] [5]
.items .real2 .__class__ 
.is_integer() .casefold() .real .bit_length() .conjugate() .as_integer_ratio() .numerator .translate({97:'z'}) .isdisjoint([1])""".split()
FORMATS = ["'%s|%5s'", "'%d-%x'", "'{}:{:>4}'", "'{0!r}{1}'", "'%(a)s'", "'%.2f %e'", "'{:,} {:_}'", "'%05d %+d'"]


class Random(random.Random):
    """Random pieces of templates; `depth` is what is left of nesting."""

    def scalar(self):
        return self.choice(SCALARS if self.random() < 0.7 else NAMES)

    def several(self, piece, depth, most=3):
        return ", ".join(piece(depth) for _ in range(self.randrange(most + 1)))

    def container(self, depth):
        kind = self.randrange(6)
        if kind == 0:
            return f"[{self.several(self.expression, depth - 1, 4)}]"
        if kind == 1:
            return f"({self.expression(depth - 1)}, {self.expression(depth - 1)})"
        if kind == 2:
            entries = [f"{self.scalar()}: {self.expression(depth - 1)}" for _ in range(self.randrange(4))]
            return "{" + ", ".join(entries) + "}"
        if kind == 3:
            return f"range({self.randrange(-2, 5)}, {self.randrange(-2, 7)}, {self.choice([1, 1, 2, -1])})"
        if kind == 4:
            row = lambda: "{'a': " + self.scalar() + (", 'b': " + self.scalar() if self.random() < 0.5 else "") + "}"
            return "[" + ", ".join(row() for _ in range(self.randrange(1, 4))) + "]"
        return self.choice(["namespace(a=1)", "dict(a=1, b='x')", "cycler(1, 'b')", "joiner('+')()", "[[1, 2], ['a', 'b']]", "['b', 'A', 'c', 'a']", "[3, 1, 2, 2]"])

    def expression(self, depth):
        if depth <= 0 or self.random() < 0.15:
            return self.scalar()
        kind = self.randrange(12)
        one = lambda: self.expression(depth - 1)
        if kind <= 1:
            return self.container(depth)
        if kind <= 3:
            return f"{self.operand(depth)} {self.choice(BINARY)} {self.operand(depth)}"
        if kind <= 6:
            return f"{self.operand(depth)} | {self.choice(FILTERS)}" + (f" | {self.choice(FILTERS)}" if self.random() < 0.4 else "")
        if kind == 7:
            return f"{self.operand(depth)} is {self.choice(['', '', 'not '])}{self.choice(TESTS)}"
        if kind == 8 and self.random() < 0.1:
            # Of constants that have no parts Jinja2 makes something undefined, of variables an error: it evaluates constants early.
            return self.choice(["u", "messages", "'abcd'", "[1, 2, 3]", "(1, 2)", "range(5)"]) + self.choice(["[1:]", "[::-1]", "[:2]", "[-1:]", "[0:3:2]"])
        if kind == 8:
            return self.operand(depth) + self.choice(METHODS) + (self.choice(METHODS) if self.random() < 0.3 else "")
        if kind == 9:
            return f"{one()} if {one()}" + (f" else {one()}" if self.random() < 0.7 else "")
        if kind == 10:
            return self.choice(["not ", "-", "+", "not not "]) + self.operand(depth)
        form = self.choice(FORMATS)
        return f"{form} % ({one()}, {one()})" if "%" in form else f"{form}.format({one()}, {one()})"

    def operand(self, depth):
        inner = self.expression(depth - 1)
        return inner if self.random() < 0.15 else f"({inner})"

    def tag(self, inside):
        begin, end = self.choice(["{%", "{%", "{%-", "{%+"]), self.choice(["%}", "%}", "-%}", "+%}"])
        return f"{begin} {inside} {end}"

    def text(self):
        return self.choice(["", " ", "\n", "  \n  ", "t", "\n  t\n", "\r\n", " { ", "\t", "é"])

    def body(self, depth):
        return "".join(self.statement(depth - 1) for _ in range(self.randrange(1, 4)))

    def statement(self, depth):
        kind = self.randrange(16)
        if depth <= 0 or kind <= 4:
            begin, end = self.choice(["{{", "{{", "{{-"]), self.choice(["}}", "}}", "-}}"])
            return f"{self.text()}{begin} {self.expression(3)} {end}{self.text()}"
        if kind == 5:
            return self.text() + self.tag(f"set {self.choice(['u', 'v', 'w'])} = {self.expression(2)}") + self.text()
        if kind == 6:
            condition = f" if {self.expression(1)}" if self.random() < 0.2 else ""
            otherwise = self.tag("else") + self.body(depth) if self.random() < 0.2 else ""
            return self.tag(f"for i in {self.container(2)}{condition}") + self.body(depth) + otherwise + self.tag("endfor")
        if kind == 7:
            otherwise = self.choice(["", self.tag("else") + self.body(depth), self.tag(f"elif {self.expression(1)}") + self.text()])
            return self.tag(f"if {self.expression(2)}") + self.body(depth) + otherwise + self.tag("endif")
        if kind == 8 and self.random() < 0.1:
            # Of constants that have no parts Jinja2 makes something undefined, of variables an error: it evaluates constants early.
            return self.choice(["u", "messages", "'abcd'", "[1, 2, 3]", "(1, 2)", "range(5)"]) + self.choice(["[1:]", "[::-1]", "[:2]", "[-1:]", "[0:3:2]"])
        if kind == 8:
            return self.tag("raw") + self.choice(["{{ x }}", " {% if %} ", "\n", "{# #}"]) + self.tag("endraw").replace("{%+", "{%")
        if kind == 9:
            return self.choice(["{# c #}", "{#- c -#}", "{#+ c +#}", "{# {{ #}\n", "{#\n#}"]) + self.text()
        if kind == 10:
            return self.tag("set ns.x = " + self.expression(2))
        if kind == 11:
            name = self.choice(["u", "v"])
            return self.tag(f"set {name}") + self.body(depth) + self.tag("endset") + "{{ " + name + " }}"
        if kind == 12:
            parameters = self.choice(["", "u", "u, v=1", "u=missing"])
            call = "{{ m(" + self.several(self.expression, 1, 2) + ") }}"
            return self.tag(f"macro m({parameters})") + self.body(depth) + self.tag("endmacro") + call
        if kind == 13:
            return self.tag(f"with u = {self.expression(1)}, w = u") + self.body(depth) + self.tag("endwith")
        if kind == 14:
            return self.tag("generation") + self.body(depth) + self.tag("endgeneration")
        return self.tag(f"filter {self.choice(['upper', 'trim', 'indent(1, true)', 'e', 'title'])}") + self.body(depth) + self.tag("endfilter")

    def template(self):
        if self.random() < 0.6:
            return "{{ " + self.expression(3) + " }}"
        return "{% set ns = namespace(x=1) %}{% set u = [1, 'a'] %}" + self.body(2)


def outcome(environment, source):
    def stop(*_):
        raise TimeoutError

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(2)
    found = make_chat.outcome(environment, source, {"messages": [{"role": "user", "content": "hi"}]})
    signal.alarm(0)
    return found


def shows_itself(found):
    """Whether an output tells addresses or names of Python's own, or the error is Python's limit and no rule of the language."""
    text = found.get("output", found.get("error", ""))
    return any(part in text for part in ["0x7", "0X7", "generator", "GENERATOR", "<class", "TimeoutError", "<function", "<bound", "RecursionError", "MemoryError"])


def main():
    warnings.simplefilter("ignore")
    count, seed = (int(number) for number in (sys.argv[1:3] + ["1500", "1"][len(sys.argv) - 1 :]))
    environment = make_chat.environment()
    generator = Random(seed)
    cases = {}
    while len(cases) < count:
        source = generator.template()
        if len(source) < 400 and source not in cases:
            found = outcome(environment, source)
            # Most templates fail; those that do not say more.
            kept = "output" in found or generator.random() < 0.05
            if kept and not shows_itself(found) and len(str(found)) < 600:
                cases[source] = found if "output" in found else {"error": ""}
    path = sys.argv[3] if len(sys.argv) > 3 else make_chat.OUT / "random.json"
    with open(path, "w", encoding="utf-8") as file:
        json.dump(list(cases.items()), file, ensure_ascii=False, indent=0)
        file.write("\n")
    failed = sum("error" in found for found in cases.values())
    print(path, len(cases), "templates,", failed, "of them fail")


if __name__ == "__main__":
    main()
