"""Makes the goldens of the chat tests with Jinja2: tests/golden/text/chat.json and expressions.json.

    python3 -m venv venv && venv/bin/pip install jinja2==3.1.6
    venv/bin/python tests/golden/make_chat.py

The environment is the one that chat templates are written for: the immutable sandbox with trim_blocks, lstrip_blocks and
loop controls, a plain tojson, raise_exception, strftime_now, and generation tags that do nothing.
"""

import datetime
import json
import pathlib

import jinja2
from jinja2 import ext, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

OUT = pathlib.Path(__file__).parent / "text"
NOW = datetime.datetime(2024, 7, 26, 12)

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "tide_table",
            "description": "High and low water.\nOne place a call.",
            "parameters": {
                "type": "object",
                "properties": {
                    "place": {"type": "string", "description": "Name of the\nharbour"},
                    "days": {"type": ["integer", "null"], "description": "How many <days>"},
                    "unit": {"enum": ["m", "ft"]},
                    "marks": {"type": "array", "items": {"type": "object", "properties": {"h": {"type": "number"}}}},
                },
                "required": ["place"],
            },
        },
    },
    {"type": "function", "function": {"name": "moon", "parameters": {"type": "object", "properties": {}, "required": []}}},
]
CONVERSATIONS = {
    "question": {"messages": [{"role": "user", "content": "When is high water?"}], "add_generation_prompt": True},
    "talk": {
        "messages": [
            {"role": "system", "content": "  You know the sea. "},
            {"role": "user", "content": "Ahoi!\nIs it \"safe\" & calm?"},
            {"role": "assistant", "content": "<think>\nThe wind is west, five.\n</think>\n\nYes – for now."},
            {"role": "user", "content": "Danke 🦙"},
        ],
        "add_generation_prompt": True,
        "enable_thinking": False,
    },
    "tools": {
        "messages": [
            {"role": "user", "content": "Tides in Husum?"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": "t1",
                        "type": "function",
                        "function": {"name": "tide_table", "arguments": {"place": "Husum", "days": 2, "deep": {"x": [1.5, None, True]}}},
                    },
                    {"id": "t2", "type": "function", "function": {"name": "moon", "arguments": "{\"phase\": 1}"}},
                ],
            },
            {"role": "tool", "name": "tide_table", "tool_call_id": "t1", "content": "{\"high\": \"04:10\"}"},
            {"role": "tool", "content": "full"},
            {"role": "assistant", "content": "At ten past four."},
        ],
        "tools": TOOLS,
        "add_generation_prompt": False,
    },
    "parts": {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "See "}, {"type": "image"}, {"type": "image_url"}]},
            {"role": "assistant", "content": ""},
            {"role": "assistant", "content": {"odd": 1}},
        ],
        "bos_token": "<s>",
        "extra": {"deep": {"value": 3.0}, "list": [1, "two"]},
        "flag": True,
        "limit": 12,
    },
}

EXPRESSIONS = r"""
1 + 2 * 3 - 4 / 2
7 // 2, -7 // 2, 7 % 3, -7 % 3, 7 % -3, 2 ** 10, 2 ** -1, 7.5 // 2, -7.5 % 2
1 / 0
10 ** 30
1e3, 1.0, 0.1 + 0.2, 1e16, 1e-7, 123456789.123, -0.0, 1e22
true, false, none, True, False, None
'a' + 'b' ~ 1 ~ none ~ true ~ 1.5 ~ [1, 'x'] ~ {'k': 'v'}
'a' + 1
'a' * 3, 3 * 'ab', [1] * 3, 'a' * -1, (1, 2) * 2
[1, 2] + [3], (1,) + (2,), [1] + (2,)
'%s is %d or %5.2f %% %r' % ('x', 3, 2.5, 'q')
'%(a)s-%(b)03d' % {'a': 1, 'b': 2}
'%s' % [1, 2]
'{} {1} {name:>6}|{name:<6}|{name:^6}|{:05d}|{:,}|{:.2f}|{:x}|{!r}'.format(1, 2)
'{0} {1} {name:>6}|{name:<6}|{name:^6}|{2:05d}|{3:,}|{4:.2f}|{5:x}|{6!r}'.format('a', 'b', 42, 1234567, 3.14159, 255, 'it', name='nm')
'{a[k]} {b.c}'.format(a={'k': 1}, b={'c': 2})
'{{}} {}'.format('x')
1 < 2 < 3, 1 < 3 < 2, 1 == 1.0, 'a' < 'b', [1, 2] < [1, 3], 'a' == 1, none == false, true == 1
1 < 'a'
'a' in 'cat', 2 in [1, 2], 'k' in {'k': 1}, 'x' not in 'cat', 1 in 'abc'
2 in (1, 2), 'x' in none
not true or false and true, 1 and 'x', 0 or '', [] or 'default', '' and 1
'yes' if 1 else 'no', 'yes' if 0
'abcdef'[1:3], 'abcdef'[-2:], 'abcdef'[::-1], 'abcdef'[::2], 'abcdef'[5:1:-2], 'abcdef'[10:], [1, 2, 3][:-1], (1, 2, 3)[1:]
'abc'[0], 'abc'[-1], [1, 2][5], 'abc'[9], {'a': 1}['a'], {'a': 1}['b'], {'a': 1}.b
[1, 2][5].x
missing.x
missing['x']
missing + 1
missing ~ 'x', missing == missing, missing | length, missing | list, missing | default('d'), missing | string, missing | upper
missing()
missing | tojson
{'a': 1}.items() | list, {'a': 1}.keys() | list, {'a': 1}.values() | list, {'a': 1}.get('b'), {'a': 1}.get('b', 2)
{'items': 1}['items'], {'get': 2}['get']
{'items': 1}.items() | list
{1: 'one', true: 'yes', none: 0, 'x': 1.5}
{[1]: 2}
[1].append(2)
{'a': 1}.update({'b': 2})
'x'.__class__
'x'.__class__()
'  a b\tc\n'.strip(), '  a '.lstrip(), ' a  '.rstrip(), 'xxaxx'.strip('x'), 'abcba'.strip('ab')
'a,b,,c'.split(','), 'a b  c '.split(), 'a,b,c'.split(',', 1), 'a,b,c'.rsplit(',', 1), ' a b c '.split(none, 1), ' a b c '.rsplit(none, 1), ''.split(), ''.split(',')
'a\nb\r\nc\n'.splitlines(), 'a\nb'.splitlines(true), 'a\n\nb'.splitlines()
'abc'.startswith('a'), 'abc'.startswith(('x', 'a')), 'abc'.endswith('bc'), 'abc'.startswith(1)
'aXbX'.replace('X', 'y'), 'aaa'.replace('a', 'b', 2), 'abc'.replace('', '-')
'hello World'.upper(), 'Hello'.lower(), 'hello world'.title(), "they're bill's".title(), 'hELLO wORLD'.capitalize(), 'Straße'.upper(), 'ẞ'.casefold(), 'aBc'.swapcase()
'abcabc'.find('c'), 'abc'.find('z'), 'abcabc'.rfind('b'), 'abcabc'.count('b'), 'ünï'.find('ï'), 'aaa'.count(''), 'abc'.index('c')
'abc'.index('z')
'12'.isdigit(), 'a1'.isalnum(), 'ab'.isalpha(), ' '.isspace(), 'AB'.isupper(), 'ab'.islower(), ''.isdigit(), 'é'.isascii()
'-'.join(['a', 'b']), '-'.join('abc'), ', '.join({'a': 1, 'b': 2})
'-'.join([1, 2])
'a'.ljust(3, '.'), 'a'.rjust(3), 'ab'.center(5, '*'), 'abc'.center(6, '*'), 'a'.center(4), '7'.zfill(3), '-7'.zfill(4)
'a-b-c'.partition('-'), 'a-b-c'.rpartition('-'), 'abc'.partition('x'), 'prefix-x'.removeprefix('prefix-'), 'x.py'.removesuffix('.py')
'x'.nothing()
[1, 2, 2].count(2), [1, 2].index(2), (1, 2).count(1)
none.x
none | length
5 | length
[3, 1, 2] | sort, ['b', 'A', 'c'] | sort, ['b', 'A'] | sort(case_sensitive=true), [1, 2] | sort(reverse=true)
[1, 'a'] | sort
{'b': 1, 'A': 2} | dictsort, {'b': 1, 'a': 2} | dictsort(by='value'), {'b': 1, 'a': 2} | dictsort(reverse=true)
[1, 2, 3] | first, [1, 2, 3] | last, 'abc' | first, [] | first, [[1, 2], [3]] | map('length') | list
[1, 2, 3] | sum, [1.5, 2] | sum, [{'a': 1}, {'a': 2}] | sum(attribute='a'), [] | sum, [1] | sum(start=10)
[3, 1] | min, [3, 1] | max, ['b', 'A'] | min, [] | max, [{'v': 2}, {'v': 1}] | min(attribute='v')
[1, 2, 3, 4, 5] | batch(2) | list, [1, 2, 3] | batch(2, 'x') | list, [1, 2, 3, 4, 5] | slice(2) | list, [1, 2, 3] | slice(2, 'x') | list
[1, 1, 2, 'a', 'A'] | unique | list, 'abca' | unique | list
[1, 2, 3] | select('odd') | list, [0, 1, ''] | select | list, [1, 2, 3] | reject('gt', 1) | list, [1, none] | select('none') | list
[{'a': 1}, {'a': 2}, {}] | selectattr('a') | list, [{'a': 1}, {'a': 2}] | selectattr('a', 'gt', 1) | list, [{'a': {'b': 1}}] | map(attribute='a.b') | list, [[1, 2]] | map(attribute=1) | list, [{}] | map(attribute='x', default='d') | list
['a', 'b'] | map('upper') | join(', '), [1, 2] | join, [{'n': 'x'}] | join(',', attribute='n'), [none, 1] | join('-')
'abc' | reverse, [1, 2] | reverse | list, 'abc' | list, {'a': 1} | list, (1, 2) | list
'hello world' | title, "it's o'clock (now) a-b" | title, 'hELLO' | capitalize, ' x ' | trim, 'xax' | trim('x'), 5 | trim
'a b c' | replace('a', 'x'), 'aaa' | replace('a', 'b', 2), 5 | replace('5', 'five')
'5' | int, '5.7' | int, 'x' | int, 'x' | int(-1), 3.9 | int, none | int, 'ff' | int(0, 16), '1_000' | int, ' 7 ' | int, true | int
'1.5' | float, 'x' | float, 2 | float, none | float, '1e3' | float, 'x' | float(9.5)
2.5 | round, 3.5 | round, 2.675 | round(2), 1234 | round(-2), 2.1 | round(0, 'ceil'), 2.9 | round(method='floor'), 3 | round
-3 | abs, -2.5 | abs, 'x' | string, 5 | string, none | string, [1, 'a'] | string
'' | default('d'), '' | default('d', true), none | default('d'), none | d('d', true), 0 | default(5, true), missing | default
'a long sentence with words' | truncate(10), 'a long sentence with words' | truncate(10, true), 'short' | truncate(10), 'a long sentence' | truncate(9, false, '!', 0), 'abcdefghij' | truncate(5, leeway=0)
'<a href="x">&\'</a>' | e ~ '', ('<b>' | escape) ~ '', 'a b/c?d=é' | urlencode
'one two  three' | wordcount, 'x' | center(5), 'a' | length, 'é🦙' | length, [1, 2] | count
{'a': [1, 2.0, none, true, 'é"\n\t<>&\\/']} | tojson, [] | tojson, {} | tojson, 'x' | tojson, 1e100 | tojson, '\u2028\x7f\x01' | tojson
{'b': 1, 'a': {'x': [1, {}], 'y': []}} | tojson(indent=2), {'b': 1, 'a': 2} | tojson(sort_keys=true), [1, 2] | tojson(separators=(',', ':')), 'é🦙' | tojson(ensure_ascii=true), {1: 2, none: 3, true: 4} | tojson
{'a': 1} | items | list, missing | items | list
'x' | items | list
range(3) | list, range(1, 3) | list, range(5, 0, -2) | list, range(0) | list
range(200000)
[1, 2, 3] is iterable, 'a' is string, 1 is number, 1.5 is float, 1 is integer, true is integer, true is number, {} is mapping, [] is sequence, 'a' is sequence, {} is sequence, (1,) is iterable, none is none, 5 is iterable, true is boolean, missing is undefined
2 is even, 3 is odd, 6 is divisibleby 3, 6 is divisibleby(4), 1 is eq 1, 1 is ne 2, 1 is lt 2, 'a' is in 'abc', 1 is in [2], 'A' is upper, 'a' is lower, 'x' is sameas 'x', range is callable, 'x' is callable, 'upper' is filter, 'odd' is test, 1 is not none
'x' is nonsense
'x' | nonsense
namespace(a=1).a, namespace({'b': 2}).b, namespace().c, dict(a=1, b='x'), dict({'a': 1}, b=2)
[1, [2, 'x'], (3,), {'k': none}], (1, 2), (), 'quo\'te', "dou\"ble", 'both\'"', 'new\nline\ttab\\', ['it\'s', "\u00e9\u200b"]
'a' 'b'
"\x41\u00e9\n" ~ 'tail'
[x for x in y]
-'a'
- 5, --5, not 5, - (2 ** 2), 2 ** 3 ** 2, -2 ** 2
(1, 2, 3) | join('-'), [1, 2, 3][0:2] | join, ('a', 'b')[1]
{'a': 1, 'a': 2}, {'a': {'b': {'c': 1}}}.a.b.c, {'a b': 1}['a b']
'text' | upper | lower | title | length
1 if true else 2 if false else 3, (1 if false else 2) + 1
[1, 2] == [1, 2.0], {'a': 1} == {'a': 1}, (1,) == [1], 'a' != 'b', [] == (), {} == []
raise_exception('told so')
raise_exception()
{'a': 1} | attr('a'), namespace(a=1) | attr('a')
loop
""".strip().split("\n")


class Generation(ext.Extension):
    """`{% generation %}`: its body, unchanged."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, ext.loopcontrols])
    env.filters["tojson"] = to_json
    env.globals |= {"raise_exception": raise_exception, "strftime_now": NOW.strftime}
    return env


def outcome(env, source, variables):
    try:
        return {"output": env.from_string(source).render(**variables)}
    except Exception as error:  # whatever a template does wrong, the outcome is its kind and text
        return {"error": f"{type(error).__name__}: {error}"}


def write(name, value):
    path = OUT / name
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    print(path, path.stat().st_size)


def main():
    env = environment()
    defaults = {"bos_token": "<|begin|>", "eos_token": "<|end|>"}
    expected = {}
    for path in sorted((OUT / "templates").glob("*.jinja")):
        source = path.read_text(encoding="utf-8")
        cases = {name: outcome(env, source, defaults | variables) for name, variables in CONVERSATIONS.items()}
        expected[path.name] = cases
    conversations = {name: defaults | variables for name, variables in CONVERSATIONS.items()}
    write("chat.json", {"conversations": conversations, "templates": expected})
    write("expressions.json", [[source, outcome(env, "{{ (" + source + ") }}", {})] for source in EXPRESSIONS])


if __name__ == "__main__":
    main()
