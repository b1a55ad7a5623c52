"""Makes the goldens of the chat tests with Jinja2: tests/golden/text/chat.json,
expressions.json, small.json,
numbers.json, names.json and letters.json.

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

# What values are and do: one line is one case, errors stand alone.
VALUES = r"""
none | map('upper') | list, false | select | list, '' | map('upper') | list, 0 | reject('odd') | list, {} | selectattr('x') | list, none | rejectattr('x') | list, missing | map(attribute='x') | list
5 | map('upper')  | list
{'a': 1}[missing], {'a': 1}[[1]], {'a': 1}[{}], {'a': 1}[(1, [2])]
missing in {'a': 1}, {'a': 1}.get(missing, 2), {missing: 1}, {missing: 1}[other], 1 in missing, {(1, 2): 3}[(1, 2)]
[1] in {}
{'a': 1}.get([1])
{[1]: 2}
{{}: 2}
{(1, [2]): 3}
(1, [2]) in {}
{(1, (2, 3)): 3}, {1.0: 'a'}[1], {true: 'a'}[1], {range(2): 1} | length
'a' | safe + '<'
'<' + ('a' | safe), ('a' | safe) ~ '<', '<b>' | e + '<', ('<b>' | e) | e, '<b>' | e | forceescape, ('<' | safe) * 2
'%s-%s' | safe % ('<', 1), ('%s' | safe) % '<', ('<' | e) | upper, ('<a>' | safe) | upper + '<', ('a' | safe).upper() + '<', ('a b' | safe).split() | first + '<', ('a-b' | safe).partition('-')[0] + '<'
('a' | safe)[0] + '<', ('ab' | safe)[:1] + '<', ('-' | safe).join(['<', 'a']), '-'.join(['<' | safe, 'a']) + '<', ('axa' | safe).replace('x', '<'), ['<' | safe, '<'] | join('&')
'a' | safe is escaped, 'a' is escaped, 'a' | safe == 'a', {'a': 1}['a' | safe], ['a' | safe], 'a' | safe | tojson, ('a' | safe) is string, ('a' | safe | string) is escaped, ('a' | safe) | trim is escaped, 'a' | safe | list
('a' | safe) | default('x') is escaped, 'a' | safe | replace('a', '<') is escaped, ('a' | safe) | title is escaped, ('a' | safe) | capitalize is escaped, ('a' | safe) | center(5) is escaped, ('a' | safe) | reverse is escaped, ('a\nb' | safe) | indent is escaped, ('abc def' | safe) | truncate(5, leeway=0, end='<')
('<b>x</b>  y &amp; <!-- c --> z' | safe) | striptags, '<b>1 &lt; 2</b>' | striptags, 'a < b' | striptags
[1, 2, 3] | map('string') is iterable, [1] | map('string') is sequence, ([] | map('string')) is true, not ([] | map('x')), [1, 2] | select | first, [] | select | first
[1, 2] | map('string') | length
[1, 2] | map('string') | last
([1, 2] | map('string'))[0], ([1, 2] | map('string')).x
[1, 2] | map('string') | tojson
[1, 2] | map('nofilter') is defined
[1, 'x'] | map('abs') | first
[1, 'x'] | map('abs') | list
[1, 2, 3] | select('odd') | map('string') | join(','), 2 in [1, 2, 3] | select, [3, 1] | select | sort, [3, 1] | select | max, [1, 2] | select | sum, [1, 2, 3, 4] | batch(2) | map('sum') | list, [1, 1] | unique | list | length
[1, 2] | batch(2) is sequence, [1, 2] | reverse is sequence, [1, 2] | reverse | first, 'abc' | reverse, range(3) | reverse | list, {'a': 1, 'b': 2} | reverse | list
[1, 2] | reverse | length
{'a': 1}.items() | length, {'a': 1}.keys(), {'a': 1}.values(), {'a': 1}.items(), {} .items() | list, {'a': 1}.keys() | list, 'a' in {'a': 1}.keys(), ('a', 1) in {'a': 1}.items(), 1 in {'a': 1}.values(), {'a': 1}.items() is sequence, {'a': 1}.keys() is iterable, not {}.keys()
{'a': 1}.keys() == {'a': 2}.keys(), {'a': 1}.items() == {'a': 1}.items(), {'a': 1}.keys()[0] is defined, {'a': 1}.items() | first
{'a': 1}.keys() | tojson
{'a': 1}.values() | last
range(3), range(1, 5, 2), range(3) | list, range(5)[1:3], range(5)[-1], range(5)[::-1], range(5) | length, 3 in range(5), 5 in range(5), 1.0 in range(3), 'a' in range(3), range(3) == range(0, 3), range(0) == range(1, 1), not range(0), range(3) is sequence, range(3).stop, range(5).index(3), range(3) | sum, range(10)[9], range(3)[5] is defined
range(3) + [1]
range(3) | tojson
range(1.5)
range()
range('a')
cycler('a', 'b').next(), cycler(1).current, cycler(1, 2).reset()
cycler()
joiner()(), joiner('x') is callable, cycler(1) is callable
dict([('a', 1), ('b', 2)]), dict([['a', 1]], b=3), dict({'a': 1}.items()), dict(), dict('a')
dict([1])
dict(1)
namespace([('a', 1)]).a, namespace({'a': 1}, b=2).b
[{'a': 1, 'b': 2}, {'a': 1, 'b': 1}, {'a': 0, 'b': 5}] | sort(attribute='a,b'), [{'n': 'b', 'x': 1}, {'n': 'A', 'x': 2}] | sort(attribute='n,x') | map(attribute='n') | list
[{'a': 1}, {'b': 2}, {'a': 1}] | groupby('a', default=9), [{'a': 'x'}, {'a': 'X'}] | groupby('a') | length, ([{'a': 1}] | groupby('a'))[0].grouper, ([{'a': 1}] | groupby('a'))[0].list, ([{'a': 1}] | groupby('a')) | first
[{'a': 1}, {'b': 2}] | groupby('a')
'abcabc'.startswith('b', 1), 'abcabc'.startswith('b', 1, 1), 'abc'.endswith('b', 0, 2), 'abc'.startswith('', 5), 'abc'.startswith(('x', 'b'), 1), 'abcabc'.find('a', 1), 'abcabc'.find('a', -3), 'abcabc'.rfind('a', 0, 3), 'abcabc'.count('a', 1), 'aaa'.count('', 1), 'abcabc'.index('c', 3), 'abcabc'.rindex('a'), 'abc'.find('', 4), 'abc'.find('', 3), 'abc'.count('', 4)
'abc'.rindex('z')
'abc'.startswith(('a', 1))
'abc'.startswith(('x', 1))
'abc'.startswith(['a'])
'a' is lower, 'A1' is lower, '1' is lower, 'aB' is lower, 'A' is upper, '' is upper, 5 is lower, 'ABC1' is upper, none is lower
'ff' | int(base=16), '0xff' | int(base=16), '0b11' | int(base=2), '0o17' | int(0, 8), '0x1f' | int(0, 0), 'zz' | int(base=36), '12' | int(base=3), '19' | int(7, 3), '1_000' | int, '1__0' | int, '_1' | int(5), '1_' | int(5), '+5' | int, '-5' | int, '--5' | int(9), '5.9' | int, '-5.9' | int, '1e3' | int, 'inf' | int(3), 'nan' | int(4), '' | int(2), '0b11' | int(6), '٣' | int
123456789012345678901234567890 + 1, 2 ** 100, 18446744073709551615 + 1, -(2 ** 64), 2 ** 64 // 3, (2 ** 64) % 1000, 2 ** 70 / 2 ** 69, 12345678901234567890123 | tojson, 2 ** 64 | float, '123456789012345678901234567890' | int
2 ** 200, -2 ** 127 - 1, 10 ** 40 * 10 ** 40, (7 ** 300) // (3 ** 100), (7 ** 300) % (3 ** 100), -(7 ** 300) // (3 ** 100), -(7 ** 300) % (3 ** 100), 7 ** 300 - 7 ** 300 + 1, -(2 ** 127), -(-(2 ** 127)), (-1) ** (10 ** 30 + 1), 340282366920938463463374607431768211456, 0x123456789abcdef0123456789abcdef0123456789, 3 ** 200 | string | length
2 ** 200 / 3 ** 100, (2 ** 64 + 1) / 3, 1 / 3 ** 670, 2 ** 3000 / 2 ** 2990, 2 ** 200 * 1.5, 2 ** 200 // 1.5, 2 ** 200 % 7.0, 2 ** 200 == 2.0 ** 200, 2 ** 2000 > 1e300, 2 ** 2000 < 1e999 * 1.0, {2 ** 200: 'x'}[2.0 ** 200], 2 ** 200 in [1, 2 ** 200], 2 ** 200 is sameas none
2 ** 2000 * 1.5
2 ** 2000 / 3
2 ** 2000 | float
'%d' % 1e30, '%x' % 2 ** 200, '%d' % 2 ** 200, '{:,}'.format(2 ** 200), '{:_b}'.format(2 ** 130), '%.3e' % 2 ** 200, '%50d|%-50d|%050d' % (10 ** 40, 10 ** 40, 10 ** 40), 2 ** 200 | tojson, {2 ** 200: 1} | tojson, [2 ** 200], 1e30 | int, ('9' * 40) | int, ('-' ~ '9' * 40) | int, ('f' * 40) | int(base=16), ('9' * 4301) | int
2 ** 200 is odd, 2 ** 200 is even, 3 ** 200 is divisibleby 3, 2 ** 200 is integer, 2 ** 200 is number, 2 ** 200 is float, 2 ** 200 | abs, -(2 ** 200) | abs, (2 ** 200) | round(-20), (2 ** 200) | round, 1.5e40 | round(-39), 25.0 | round(-1), 35.0 | round(-1), 1234567.891 | round(-2), 1e22 | round(1, 'ceil'), 123456.789 | round(-3, 'floor'), (2 ** 200) | round(2, 'ceil'), (2 ** 200) | filesizeformat, -(2 ** 70) | filesizeformat
[1, 2, 3][10 ** 40:], [1, 2, 3][:10 ** 40], [1, 2, 3][-10 ** 40:], 'abc'[::10 ** 40], 'abc'[::-10 ** 40], [1][10 ** 40] is defined, 'abc'.find('c', -10 ** 40), [10 ** 40, 1, -10 ** 40] | sort, [10 ** 40, 10 ** 41] | sum, [10 ** 40, 2.0] | max, 10 ** 4299 | string | length
-7.5 // 2, 7.5 // -2, -0.0 // 5, 0.0 // -5, 1e300 // 1e-300, -5 // 1e300, 5.0 // 3, -1.0 // 3
1 if 2 ** 64 > 1.5 else 0, 2 ** 53 + 1 == 2.0 ** 53, 2 ** 64 == 2.0 ** 64, {2 ** 64: 'x'}[2.0 ** 64]
{'a': 'b c', 'd': 'é&'} | urlencode, [('a', 1), ('b', '/')] | urlencode, 'a b/c' | urlencode, 5 | urlencode, none | urlencode, true | urlencode, {'a b': none} | urlencode
'{:_}'.format(1234567), '{:,}'.format(1234567.891), '{:_.2f}'.format(1234567.891), '{:_x}'.format(65535), '{:_b}'.format(255), '{:010,}'.format(1234), '{:+d}'.format(5), '{: d}'.format(5), '{:#x}'.format(255), '{:#o}'.format(8), '{:08.3f}'.format(3.14159), '{:e}'.format(12345.678), '{:.3g}'.format(1234.5), '{:g}'.format(0.00001), '{:g}'.format(100000.0), '{:g}'.format(1e6), '{:%}'.format(0.25), '{:.1%}'.format(0.256), '{:c}'.format(65), '{:n}'.format(5)
'{:>5}|{:<5}|{:^5}|{:*^7}'.format('a', 'b', 'c', 'd'), '{:5}|{:5}'.format(1, 'a'), '{:.2}'.format('abc'), '{:5.1f}'.format(2.25), '{!r}'.format('a'), '{!s:>4}'.format('a'), '{!a}'.format('é'), '{0}{1}{0}'.format('a', 'b'), '{a}{b}'.format(a=1, b=2), '{a[x]}'.format(a={'x': 1}), '{0[1]}'.format([1, 2]), '{{}}'.format(), '{:{}}'.format('a', 5), '{:{w}.{p}f}'.format(3.14159, w=8, p=2), '{}'.format(true), '{:d}'.format(true), '{:5}'.format(true)
'{} {0}'.format(1)
'{'.format()
'}'.format()
'{:d}'.format('a')
'{:d}'.format(1.5)
'{:s}'.format(5)
'{a}'.format()
'{1}'.format(1)
'%d %i %5d|%-5d|%05d %+d % d' % (1, 2, 3, 4, 5, 6, 7), '%s %r %a' % ('a', 'b', 'é'), '%x %X %o %#x' % (255, 255, 8, 255), '%e %f %g %.2f %5.1f' % (1.5, 1.5, 1.5, 1.256, 2.25), '%c%c' % ('a', 66), '%%' % (), '%(a)s %(b)d' % {'a': 1, 'b': 2}, '%s' % [1, 2], '%s' % 'a', '%.2s' % 'abc', '%5s|%-5s|' % ('a', 'b'), '%d' % 3.9, '%s' % none, '%*d' % (5, 3), '%.*f' % (2, 3.14159), '%s' % {'a': 1}, '%g' % 1e10, '%G' % 1e-10, '%E' % 12345.6, '%F' % 1.5
'%d' % 'a'
'%s %s' % 'a'
'%s' % ('a', 'b')
'%q' % 1
'%' % 1
'%(a)s' % 1
'abc'.isidentifier(), '1a'.isidentifier(), 'Ab Cd'.istitle(), 'ab'.istitle(), 'a\n'.isprintable(), ''.isprintable(), '²'.isdigit(), '²'.isdecimal(), '½'.isnumeric(), '½'.isdigit(), '٣'.isdecimal(), 'a\tb'.expandtabs(4), '\tb'.expandtabs(), 'a'.expandtabs(0), '{a}'.format_map({'a': 1}), 'aB'.swapcase(), 'ß'.upper(), 'ŉ'.upper(), 'İ'.lower(), 'ΑΣ'.lower(), 'straße'.casefold()
'a b'.split(none), 'a  b'.split(' '), 'abc'.split('b', 0), 'a,b,c'.split(',', -1), 'a,b'.split(sep=','), 'a b c'.split(maxsplit=1), ' a b '.rsplit(), 'a\x1cb'.splitlines(), 'a\u2028b'.splitlines(), 'a\x0bb\x0cc\x85d'.splitlines(), 'a\r\n\nb'.splitlines(true), '\n'.splitlines(), ''.splitlines()
'abc'.split('')
'abc'.partition('')
'abc'.center(2), 'abc'.ljust(5, 'xy')
'abc'.replace('b'), 1
'abc'.strip(1)
[1, 2, 3].index(3), [1, 2, 1].index(1, 1), [1].count(1.0), (1, 2).index(2), [1, 2].copy()
[1].index(5)
[3, 1, 2] | sort(reverse=true) | first, ['B', 'a'] | sort, [(2, 'a'), (1, 'b')] | sort, {'b': 1, 'a': 2} | sort, 'bca' | sort, [true, 0, 2] | sort, [1.5, 1] | sort
[none, 1] | sort
[{}, {}] | sort
[1, 2] | sum(start='a')
['a'] | sum
[[1], [2]] | sum(start=[]), {'a': 1} | sum(start='')
'abc' | first, 'abc' | last, {} | first is defined, {'a': 1} | first, {'a': 1} | last, range(3) | last, missing | first is defined, missing | last is defined
5 | first
5 | last
'a' | default('x', true), '' | default('x', boolean=true), missing | default, none | default(1), missing | default(default_value=3)
1 | filesizeformat, 0 | filesizeformat, 999 | filesizeformat, 1000 | filesizeformat, 1500000 | filesizeformat, 2 ** 40 | filesizeformat(true), 1023 | filesizeformat(true), 1e30 | filesizeformat, '1000' | filesizeformat, 1.9 | filesizeformat
{'class': 'a b', 'id': none, 'x': missing, 'y': '<'} | xmlattr, {} | xmlattr, {'a': 1} | xmlattr(false)
{'a b': 1} | xmlattr
[1, 2, 3, 4, 5] | slice(3) | list, [1, 2] | slice(3, 'x') | list, [] | slice(2) | list, range(5) | batch(2, 0) | list, 'abc' | batch(2) | list
[1] | slice(0) | list
'abc' | length, {'a': 1} | length, missing | length, range(3) | count
3.0.is_integer(), 3.5.is_integer()
'abc' | map('upper') | join, {'a': 1} | map('upper') | list, [{'a': {'b': 2}}] | map(attribute='a.b') | list, [[5]] | map(attribute='0') | list, [{'a': none}] | map(attribute='a', default=1) | list, [{}] | map(attribute='a.b', default=1) | list
[1] | map(attribute='a', foo=1) | list
[1] | map | list
[{'a': 1}, {'a': 2}, {'b': 1}] | selectattr('a', 'defined') | list, [{'a': 1}] | rejectattr('a') | list, [{'a': 1}, {'a': 0}] | selectattr('a', 'equalto', 1) | list, [1, 2] | select('==', 2) | list, [1, 'a'] | select('string') | list, ['a', 'b'] | reject('in', ['a']) | list
[1] | select('nonsense') | list
[1] | selectattr() | list
abs is defined, loop is defined, range is callable, dict is callable, missing is callable, 'x'.upper is callable, namespace is callable, [] is callable
1 is sameas 1, 1 is sameas true, [] is sameas [], none is sameas none, 'a' is sameas 'a', 1.0 is sameas 1
true is integer, 1.0 is integer, true is number, '1' is number, 1 is float, none is boolean, 0 is false, false is false, 1 is true
[] is mapping, namespace() is mapping, {}.items() is mapping, (1, 2) is sequence, missing is sequence, missing is iterable, 5 is sequence
1 is odd, 2.0 is even, 3 is divisibleby 1.5, -1 is odd
'a' is odd
missing == missing, missing == none, missing != 1, missing ~ 'a', missing | string, [missing], [missing] | join, missing or 'x', not missing
missing < 1
missing + 1
-missing
1 // 0
1 % 0
1.0 / 0
7 // -2, -7 // 2, 7 % -3, -7 % 3, 7.5 // 2, -7.5 % 2, 7 / 2, 6 / 2, 2 ** 0.5, (-8) ** 2, 0 ** 0, 2 ** -2, 5 // 2.0, 1e308 * 10, -1e308 * 10, 0.1 + 0.2
0 ** -1
2.0 ** 10000
1 < 'a'
none < 1
[1, 2] < [1, 3], (1,) < (1, 2), 'a' < 'b', [1] < [1.5], true < 2, 'a' == 1, none == none, [1] == (1,), 1 == true
{} < {}
'a' * 3, 3 * 'a', 'a' * -1, [1] * 2, (1,) * 2, true * 'a', 'a' * true
'a' * 1.5
'a' + 1
[1] + (2,)
'a' in 'abc', '' in 'a', 1 in [1.0], none in [none], 'a' in {'a': 1}, [1] in [[1]]
1 in 'abc'
1 in 5
not 'a' in 'b', 'a' not in 'b', 1 is not none
5.5 | int, -5.5 | int, true | int, none | int(3), [] | int(4), 'x' | float(1), '1.5e3' | float, ' 2 ' | float, '1_0.5' | float, true | float, 'inf' | float, '-nan' | float, 1e400
1.5 | round, 2.5 | round, -1.5 | round, 1.25 | round(1), 1.35 | round(1), 15 | round(-1), 25 | round(-1), 1.1 | round(0, 'floor'), 1.1 | round(1, 'ceil'), 12.5 | round(-1), 5 | round(2), 1e300 | round(2), 5 | round(method='ceil')
1 | round(0, 'x')
'x' | round
-5 | abs, -5.5 | abs, true | abs
'x' | abs
'a b c' | wordcount, "it's" | wordcount, '' | wordcount, 5 | wordcount
'abc' | truncate(3), 'abcdefghijk' | truncate(5), 'abc def ghi jkl' | truncate(9), 'abc def ghi jkl' | truncate(9, true), 'abc def ghijkl' | truncate(9, leeway=0, end='')
'abcdef' | truncate(2)
'a\nb\n\nc' | indent, 'a\nb' | indent(2, true), 'a\n\nb' | indent(2, blank=true), 'a\nb' | indent('> '), 'a\n' | indent, '' | indent(first=true)
5 | indent
[1, 2] | join(attribute='x'), [['a', 1]] | join('-', attribute=0), 'abc' | join('-'), missing | join, [1, none, true, 'x'] | join(1)
5 | join
{'a': [1, {'b': none}]} | tojson, (1, 2) | tojson, 1.0 | tojson, 1e16 | tojson, 'é' | tojson, {'é': 1} | tojson(ensure_ascii=true), {1: 2, 1.5: 3} | tojson, [] | tojson(indent=2), {'a': []} | tojson(indent=1), [1, [2]] | tojson(indent=0), {'b': 1, 'a': {'d': 1, 'c': 2}} | tojson(sort_keys=true, indent=2), [1] | tojson(indent='-')
missing | tojson
{'a': missing} | tojson
{(1, 2): 1} | tojson
namespace(a=1).b is defined, namespace(a=1).a, namespace(a=1)['a']
'x' | attr('upper') is callable, {'a': 1} | attr('a') is defined, 'x' | attr('__class__') is defined
'x'.__class__ is defined, [].append is defined, {}.pop is defined, ''['__len__'] is defined
'x'.__class__.__name__
{}.update({})
[].append(1)
strftime_now('%Y-%m-%d'), strftime_now('%d %b %Y'), strftime_now('%A %B %-d'), strftime_now('%H:%M:%S %p %I %f'), strftime_now('%j %U %W %V %G %u %w %y %C %g'), strftime_now('%c|%x|%X|%D|%F|%T|%R|%r'), strftime_now('%e|%k|%l|%h|%n|%t|%%|%s|%Z|%z|'), strftime_now('%-m/%-d/%-H/%-M/%-j'), strftime_now('%_d|%_m|%_H'), strftime_now('%^a|%^B|%#p|%#Z'), strftime_now(''), strftime_now('plain é'), strftime_now('%P'), strftime_now('%05d|%3m'), strftime_now('%E'), strftime_now('%Ey %Od'), strftime_now('%Q'), strftime_now('%')
[1, 2, 3][1:], [1, 2, 3][-2:], [1, 2, 3][::-1], [1, 2, 3][5:], [1, 2, 3][0:0], 'abc'[-2:], (1, 2, 3)[::2], [1, 2][true], 'abc'[1], 'abc'[5] is defined, [1]['a'] is defined, [1][1.0] is defined
[1][::0]
""".strip().split("\n")

VALUES += r"""
5.real, 5.imag, 2.5.real, true.real, 7.numerator, 7.denominator, 10.bit_length(), 255.bit_count(), (2 ** 200).bit_length(), 5.conjugate(), 5.as_integer_ratio(), 2.75.as_integer_ratio(), 0.1.as_integer_ratio(), 0.1.hex(), 1e300.hex(), 5e-324.hex(), 0.0.hex(), -2.5.hex()
'hello'.translate({104: 'J', 101: none, 108: 76}), 'x'.maketrans('abc', 'xyz'), 'x'.maketrans('ab', 'xy', 'c'), 'x'.maketrans({'a': 'b', 5: none}), 'cab'.translate('x'.maketrans('ab', 'xy', 'c')), {}.fromkeys(['a', 'b'], 1), {}.fromkeys('ab')
'x'.maketrans('a', 'bc')
'x'.maketrans({'ab': 1})
'a'.translate({97: 'x' * 3}), {'a': 1}.keys().isdisjoint(['b']), {'a': 1}.items().isdisjoint([('a', 1)]), ('<b>' | safe).striptags(), ('&lt;' | safe).unescape(), ('a' | safe).escape('<'), cycler(1, 2).items, cycler(1, 2).pos, joiner('x').sep, joiner('x').used
'' | wordwrap, 'a b c' | wordwrap(3), 'hello world foo' | wordwrap(5), 'hello world' | wordwrap(8), 'one two three four five six' | wordwrap(9), 'abcdefghijklmnop' | wordwrap(5), 'abcdefghijklmnop' | wordwrap(5, false), 'a b\nc d e f' | wordwrap(4), 'aaa bbb ccc' | wordwrap(3, wrapstring='|'), 'a-b well-known-thing x' | wordwrap(6), 'well-known-thing' | wordwrap(6, break_on_hyphens=false), 'well-known' | wordwrap(6, false), '  lead  trail  ' | wordwrap(6), 'a--b c' | wordwrap(3), 'word--dash next' | wordwrap(6), 'x' * 200 | wordwrap | length, 'é🦙 ü ö' | wordwrap(2), 'a\n\nb' | wordwrap(1), 'aa\tbb\tcc' | wordwrap(3), '-a --b ---' | wordwrap(3), "it's e-mail a-1 1-a ab-cd" | wordwrap(4), 'a' | wordwrap(width=1)
'a b' | wordwrap(0)
5 | wordwrap
'see http://a.com and www.b.org/x?y=1, (https://c.de/(d)) or mail@e.fr. ftp://f.g' | urlize, 'example.com x.museum y.info' | urlize, 'http://127.0.0.1:8080/a http://[::1]/b http://1.2.3' | urlize, 'mailto:a@b.cd @a@b.c a@b www.a@b.cd a@b.c:d' | urlize, '<http://x.yz> "http://x.yz"' | urlize, 'http://example.com/long/path' | urlize(10), 'http://example.com' | urlize(nofollow=true), 'http://example.com' | urlize(target='_blank', rel='a z'), 'tel:123 tel:' | urlize(extra_schemes=['tel:']), '' | urlize, 5 | urlize, ('<b>http://a.bc</b>' | safe) | urlize, 'HTTP://A.COM WWW.A.COM' | urlize, 'http://a.com). (a.com) a.com, a.com.' | urlize, 'http://xn--abcd.xn--p1ai/ http://-.com a..com http://a_b.com%20.de http://a.com:123456' | urlize, ' a.com  \n b.com' | urlize, 'http://a.com/?q=(a(b)c))&gt;' | urlize, 'http://a.com' | urlize(-3), 'http://a.com' | urlize(0)
'x' | urlize(extra_schemes=['no scheme'])
1 | pprint, 'a' | pprint, [1, 2] | pprint, {'b': 1, 'a': [1, none]} | pprint, 'x' * 90 | pprint, ['x' * 50, 'y' * 50] | pprint, {'k': ['x' * 50, {'deep': ['y' * 40, 'z' * 40]}], 'a': 1} | pprint, ('a' * 30, 'b' * 30, 'c' * 30) | pprint, ('a' * 90,) | pprint, 'long words ' * 12 | pprint, ['long words ' * 12, 'line one\nline two' * 6] | pprint, {'k' * 40: 'some words here ' * 8} | pprint, range(50) | list | pprint, {2: 1, 1: 'x', 'z': none, none: 5} | pprint, {'a': {'y': 1, 'x': 2}} | pprint, [[[['deep' * 5] * 3] * 2] * 2] | pprint, [] | pprint, '' | pprint, 1.5 | pprint, [1e22, 2 ** 100] * 3 | pprint, {'a': ()} | pprint, "it's " * 20 | pprint, 'a\n' * 50 | pprint, ('<b>' * 40 | safe) | pprint, {(1, 'b'): 1, (1, 'a'): 2} | pprint, 'a' * 78 | pprint, 'a' * 79 | pprint, ['a' * 76] | pprint, ['a' * 77] | pprint, 'nospace' * 20 ~ ' end' | pprint, 'w ' * 60 | pprint
missing | pprint
range(3) | pprint, {'a': 1}.items() | pprint, namespace is defined | pprint
0 / -5, false / -(2 ** 127), 0 / (2 ** 200), 0 / -(2 ** 200), ('<b>' | safe) | last is escaped, ('<b>' | safe) | first is escaped, 2 ** 0.5, 10.0 ** -5, 1.1 ** 100, 2 ** -1074.0, 0.5 ** 1074.5, (-2.0) ** 3, (-2.0) ** -3, 1e308 ** 1.0, 9 ** 0.5, 1.0 ** (10 ** 300), 0.0 ** 0, 7 ** -2, 1e-200 ** 2, 27 ** (1 / 3)
('&lt&gt;&amp;&quot&#39;&#x27;&apos;&apos &eacute;&szlig &copy&COPY;&nbsp;&notit; &#0;&#128;&#xD800;&#x110000;&#1;&#99999999999;&#;&#x;&#xfffe;&yuml;&;& &AMP;' | safe).unescape(), '<b>caf&eacute;</b> &#233' | striptags
lipsum is defined, lipsum is callable, self is defined
""".strip().split("\n")

# Whole small templates; each sees one message, {"role": "user", "content": "hi"}.
TEMPLATES = [
    # Line ends are "\n" whatever the source has, and the last one goes.
    "a\r\nb\rc\n\rd", "a\r\n", "a\r", "a\n\n", "{% if 1 %}\r\nx\r\n{% endif %}\r\ny", "{{ 'a\r\nb\rc' | tojson }}", "\r\n\r\n",
    "{# x\r #}\r\ny", "{% raw %}\r\na\r{% endraw %}\r\nb", "a\n\r\nb", "a\x0bb\x0cc\x85d\u2028e",
    # Filters and tests that do not exist: known when the template is compiled, but under a condition when they are used.
    "{% if 0 %}{{ 1 | nonsense }}{% endif %}a", "{% if 1 %}{{ 1 | nonsense }}{% endif %}", "{% if 0 %}{% for i in [] %}{{ i | nonsense }}{% endfor %}{% endif %}a", "{% if 0 %}{% for i in [] | nonsense %}{% endfor %}{% endif %}a",
    "{{ 1 if 1 else 2 | nonsense }}", "{{ 1 | nonsense if 0 else 2 }}", "{{ 2 if 1 is nonsense else 1 }}", "{% if 0 %}{% set x = 1 is nonsense %}{% endif %}a", "{% if 0 %}{% set x %}{{ 1 | nonsense }}{% endset %}{% endif %}a",
    "{% for i in [] %}{{ i | nonsense }}{% endfor %}a", "{% macro m() %}{{ 1 | nonsense }}{% endmacro %}a", "{% macro m() %}{% if 0 %}{{ 1 | nonsense }}{% endif %}{% endmacro %}a{{ m() }}", "{% if 0 %}{% macro m() %}{{ 1 | nonsense }}{% endmacro %}{% endif %}a",
    "{% if 0 %}a{% elif 1 is nonsense %}b{% endif %}", "{% if 1 %}a{% elif 1 is nonsense %}b{% endif %}", "{% if 1 %}a{% else %}{{ 1 | nonsense(2) }}{% endif %}", "{% if 0 %}{% with a = 1 | nonsense %}{% endwith %}{% endif %}a", "{% if 0 %}{% with %}{{ 1 | nonsense }}{% endwith %}{% endif %}a",
    "{% if 0 %}{% filter nonsense %}{% endfilter %}{% endif %}a", "{% if 0 %}{% block b %}{{ 1 | nonsense }}{% endblock %}{% endif %}a", "{% if 0 %}{% generation %}{{ 1 | nonsense }}{% endgeneration %}{% endif %}a", "{% if 0 %}{% set x | nonsense %}{% endset %}{% endif %}a",
    "{{ x or 1 | nonsense }}", "{{ 1 or 1 | nonsense }}", "{{ 0 and 1 | nonsense }}", "{{ [1 if 1 else (2 | nonsense)] }}", "{{ 'nonsense' is filter and 1 | nonsense }}", "{% if 'nonsense' is filter %}{{ 1 | nonsense }}{% else %}no{% endif %}", "{{ 1 is nonsense(2 | upper) }}", "{{ 1 | a.b }}", "{{ 1 if 1 else 1 | a.b.c }}",
    "{{ [1] | map('nonsense') | first }}", "{{ [] | map('nonsense') | list }}", "{{ [1] | select('nonsense') | list }}", "{% call(x=1 | nonsense) m() %}{% endcall %}",
    # Macros and what they tell of themselves.
    "{% macro m(a, b=1) %}{{ varargs }}{% endmacro %}{{ m.name }} {{ m.arguments }} {{ m.catch_kwargs }} {{ m.catch_varargs }} {{ m.caller }} {{ m.explicit_caller }} {{ m.nothing is defined }} {{ m }} {{ m is callable }} {{ [m] }}",
    "{% macro m() %}{{ kwargs }}{{ caller() }}{% endmacro %}{{ m.name }} {{ m.arguments }} {{ m.catch_kwargs }} {{ m.catch_varargs }} {{ m.caller }}", "{% macro m() %}{{ caller.name }}{{ caller.arguments }}{{ caller }}{% endmacro %}{% call(x, y) m() %}{% endcall %}",
    "{% macro m(caller) %}{{ caller() }}{% endmacro %}a", "{% macro m(caller=none) %}{{ caller is none }}{% endmacro %}{{ m() }}{% call m() %}{% endcall %}{{ m.caller }}{{ m.explicit_caller }}", "{% macro m(varargs) %}{{ varargs }}{% endmacro %}{{ m(1) }}{{ m.catch_varargs }}", "{% macro m(kwargs=5) %}{{ kwargs }}{% endmacro %}{{ m() }}{{ m.catch_kwargs }}",
    "{% macro o() %}[{{ caller() }}]{% endmacro %}{% macro m() %}{% call o() %}{{ caller() }}{% endcall %}{% endmacro %}{{ m.caller }}", "{% macro o() %}[{{ caller() }}]{% endmacro %}{% macro m() %}{% set c = caller %}{% call o() %}{{ c() }}{% endcall %}{% endmacro %}{% call m() %}x{% endcall %}", "{% macro _p() %}{% endmacro %}{{ _p.name }}",
    "{% macro m() %}{% macro n() %}{{ varargs }}{% endmacro %}{{ n(1, 2) }}{% endmacro %}{{ m() }}{{ m.catch_varargs }}", "{% macro m(a, a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}", "{% macro m(loop) %}{{ loop }}{% endmacro %}{{ m(1) }}", "{% for loop in [1] %}{% endfor %}", "{% for i in [1, 2] %}{{ loop }}{% endfor %}", "{% macro m() %}{% endmacro %}{{ m == m }}{{ m() == '' }}{{ {m: 1}[m] }}",
    # Blocks by `self`.
    "{% block a %}x{{ 1 }}{% endblock %}{{ self.a() }}{{ self['a']() }}", "{{ self.a() }}{% if 0 %}{% block a %}y{% endblock %}{% endif %}", "{{ self.nothing is defined }}{{ self.nothing }}", "{{ self.nothing() }}", "{{ self }}", "{% block a %}{% endblock %}{{ self.a.name }}{{ self.a.super is defined }}{{ self.a is callable }}",
    "{% set v = 1 %}{% block a %}{{ v }}{% endblock %}{% set v = 2 %}{{ self.a() }}", "{% for i in [1, 2] %}{{ self.a() }}{% endfor %}{% block a %}({{ i }}){% endblock %}", "{% macro m() %}{{ self.a() }}{% endmacro %}{% block a %}z{% endblock %}{{ m() }}", "{% block a %}{% if not n %}{{ self.b() }}{% endif %}{% endblock %}{% block b %}B{% endblock %}",
    "{% block a %}{{ super() }}{% endblock %}", "{% block a %}{{ super is defined }}{% endblock %}", "{% block a required %} {% endblock %}{{ 1 }}", "{% if 0 %}{% block a required %} {% endblock %}{% endif %}b", "{{ self.a(1) }}{% block a %}{% endblock %}", "{% block a %}{% endblock %}{{ self is defined }}{{ self.a == self.a }}",
    # Where texts are escaped; by variables, because Jinja2 joins constants early and without a look at that.
    "{% autoescape true %}{{ '<' }}{{ '<' | safe }}{{ 1 }}{{ none }}{{ ['<'] }}<{% endautoescape %}{{ '<' }}", "{% autoescape false %}{{ '<' }}{% endautoescape %}", "{% autoescape 1 %}{% autoescape false %}{{ '<' }}{% endautoescape %}{{ '<' }}{% endautoescape %}", "{% set e, v, w = true, '<', '>' | safe %}{% autoescape e %}{{ v }}{{ v ~ 1 }}{{ w ~ v }}{{ w }}{% set x %}{{ v }}{% endset %}{{ x is escaped }}{% endautoescape %}{% autoescape not e %}{{ v }}{% endautoescape %}",
    "{% set v, w = '<', '>' | safe %}{% autoescape true %}{{ v ~ '>' }}{{ w ~ v }}{{ 'a' ~ w ~ 1 ~ none ~ [v] }}{{ (v ~ '<') is escaped }}{{ (v ~ w) is escaped }}{% endautoescape %}", "{% autoescape true %}{% set x %}<b>{{ '<' }}{% endset %}{{ x }}{{ x is escaped }}{% endautoescape %}{{ x is escaped }}", "{% autoescape true %}{% set x = '<' %}{% endautoescape %}{{ x }}",
    "{% autoescape true %}{{ ['<', '>' | safe] | join('&') }}{{ ['<', '>'] | join('&') }}{{ ['<'] | join('&' | safe) }}{{ ['<', 1] | join }}{% endautoescape %}", "{% autoescape true %}{{ '<a>' | replace('a', '<' | safe) }}{{ '<a>' | safe | replace('a', '<') }}{{ '<a>' | replace('a', '<') }}{{ 'x' | replace('x' | safe, '&') }}{% endautoescape %}",
    "{% autoescape true %}{{ {'a': '<'} | xmlattr }}{{ 'http://a.com <' | urlize }}{{ {'a': '<'} | tojson }}{{ '<' | upper }}{{ '<' | e }}{{ '<' | forceescape }}{{ '%s' | format('<') }}{% endautoescape %}", "{% macro m(x) %}<{{ x }}>{% endmacro %}{% autoescape true %}{{ m('<') }}{{ m('<') is escaped }}{% endautoescape %}{{ m('<') }}",
    "{% autoescape true %}{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m('<') }}{% endautoescape %}{{ m('<') }}", "{% macro m() %}<{{ caller() }}>{% endmacro %}{% autoescape true %}{% call m() %}<{{ '<' }}>{% endcall %}{% endautoescape %}", "{% autoescape true %}{% filter upper %}<a{{ '<' }}{% endfilter %}{% endautoescape %}", "{% autoescape true %}{% block a %}{{ '<' }}{% endblock %}{{ self.a() }}{{ self.a() is escaped }}{% endautoescape %}",
    "{% autoescape true %}{% for a in [['<']] recursive %}{% if a is string %}{{ a }}{% else %}{{ loop(a) }}{% endif %}{% endfor %}{% endautoescape %}", "{% autoescape true %}{% set v = 1 %}{% endautoescape %}{{ v is defined }}", "{% autoescape %}a{% endautoescape %}", "{% autoescape true %}a", "{% for i in [1, 2] %}{% autoescape true %}{{ '<' }}{% continue %}{% endautoescape %}{% endfor %}{{ '<' }}",
    "{% autoescape true %}{{ '<' if 1 }}{{ x | default('<') }}{{ ('<' | safe) + '<' }}{{ '<' * 2 }}{{ '<'[0] }}{% print '<' %}{% endautoescape %}", "{% autoescape not false %}{{ '<' }}{% endautoescape %}", "{% autoescape true %}{% with a = '<' %}{{ a }}{% endwith %}{% generation %}{{ '<' }}{% endgeneration %}{% endautoescape %}", "{% autoescape true %}{{ ['<', '>'] | map('e') | join }}{{ ['a'] | map('replace', 'a', '<' | safe) | first }}{% endautoescape %}",
    # Generation tags.
    "{# {% generation %} #}a", "{% raw %}{% generation %}{% endraw %}", "{{ '{% generation %}' }}", "{% generation %}a{% endgeneration %}b",
    "x {%- generation %} a {% endgeneration -%} y", "x {% generation -%} a {%- endgeneration %} y", "x\n  {% generation %}\n  a\n  {% endgeneration %}\ny",
    "{% set v = 1 %}{% generation %}{% set v = 2 %}{{ v }}{% endgeneration %}{{ v }}", "{% generation %}", "{% endgeneration %}",
    "{% for i in [1, 2] %}{% generation %}{{ i }}{{ loop.index }}{% endgeneration %}{% endfor %}", "{% generation %}{% generation %}a{% endgeneration %}{% endgeneration %}",
    "{% for i in [1, 2] %}{% generation %}{% break %}{% endgeneration %}{% endfor %}", "{%+ generation +%} a {%+ endgeneration +%}\n b",
    "{% generation %}{% set ns = namespace(a=1) %}{% set ns.a = 2 %}{{ ns.a }}{% endgeneration %}{{ ns is defined }}",
    "{% set generation = 'g' %}{{ generation }}", "{% generation foo %}a{% endgeneration %}", "{%generation%}a{%endgeneration%}",
    # Escapes in texts, and numbers.
    "{{ '\\U0001F600' }}", "{{ '\\/' }}", "{{ '\\a\\b\\f\\v\\0' | tojson }}", "{{ 'a\\\nb' }}", "{{ '\\x41\\u00e9\\101\\7\\400' }}", "{{ '\\q\\d' }}",
    "{{ '\\x4' }}", "{{ '\\u12' }}", "{{ '\\U00110000' }}", "{{ '\\'' }}", '{{ "\\"" }}', "{{ 'a' \"b\" 'c' }}", "{{ '\\\\n' }}", "{{ 'a\nb' | tojson }}", "{{ '\\N{DIGIT ONE' }}",
    "{{ 0x1F }} {{ 0b101 }} {{ 0o17 }} {{ 1_000 }} {{ 0x_ff }} {{ 00 }} {{ 1e3 }} {{ 1.5e-3 }} {{ 2E+2 }} {{ 1_0.2_5 }}", "{{ 012 }}", "{{ 1__0 }}", "{{ 1_ }}", "{{ 1. }}", "{{ .5 }}", "{{ 1.e5 }}", "{{ 1a }}",
    "{{ 123456789012345678901234567890 }}", "{{ 18446744073709551616 + 1 }}", "{{ [[1, 2], [3]].0.1 }}", "{{ {'a': [5]}.a.0 }}",
    # White space around tags, comments and raw blocks.
    "a {%- raw %} b {% endraw -%} c", "a {% raw -%} b {%- endraw %} c", "{% raw %}\n a\n {% endraw %}\nb", "  {% raw %}x{% endraw %}  y", "{% raw -%}\n\n  x{% endraw %}", "{% raw +%}x{% endraw %}",
    "{% raw %}a{% endraw +%}\nb", "{%+ raw %}a{%+ endraw %}", "x\n  {%+ raw %}a{% endraw %}", "x\n  {% raw %}\n  {{ a }} {% if %} {# c #}\n  {% endraw %}\nz", "{% raw %}{% raw %}{% endraw %}", "{% raw %}",
    "{% raw %}a", "{%raw%}a{%endraw%}b", "{% raw %}{{% endraw %}", "{% raw %}{% endraw %}\n\nx", "{% endraw %}", "{%- raw -%} a {%- endraw -%} b", "a\n {% raw %}\n b{% endraw %}", "{% raw x %}a{% endraw %}",
    "a {#- c -#} b", "a\n  {# c #}\nb", "a\n  {#+ c +#}\nb", "  {# c #}  b", "a {# c #} b", "{#-#}a", "{##}a", "{#--#} a", "{# a", "{#-\n-#}\n a", "{# {{ #}a", "{# #} #}", "a\n\t{#- c #}\n\n b",
    "a\n  {% if 1 %}\n  b\n  {% endif %}\n  c", "a\n  {%+ if 1 %}\n  b\n  {%+ endif %}\n  c", "a\n  {%- if 1 -%}\n  b\n  {%- endif -%}\n  c", "a {% if 1 %} b {% endif %} c", "{% if 1 +%}\nb{% endif +%}\nc",
    "a\n  {{ 1 }}\nb", "a\n  {{- 1 -}}\n  b", "a {{+ 1 }} b", "{{ 1 +}}", "  {% set a = 1 %}  {% set b = 2 %}  x", "  {% set a = 1 %}\n  {% set b = 2 %}\n  x", "{% if 1 %}  {% endif %}", "{% if 1 -%}\n  {% if 1 %}a{% endif %}{% endif %}",
    "{{ 1 -}}\n  {% if 1 %}a{% endif %}", "{{ 1 }}  {% if 1 %}a{% endif %}", "{% if 1 %}{{ 1 }}  {% endif %}", "\u3000{% if 1 %}\u00a0{% endif %}", "a\u2003{%- if 1 -%}\u2003b{% endif %}", "a\x1c{%- if 1 -%}\x1fb{% endif %}",
    "{{-1}}", "{{- 1}}", "{{1-}}2", "{{ 1 - 1 -}} 2", "{{ {'a': {'b': 1}} }}", "{{ {'a': {'b': 1}}.a.b }}", "{{{'a': 1}}}", "{{ [1, 2}}", "{{ (1] }}", "{{ 1 ) }}", "{{ '%}' }}{% set a = '}}' %}{{ a }}", "{ {% if 1 %}{ a }{% endif %} }",
    "{{ 1 }}\n{{ 2 }}\n", "{% if 1 %}\n\na\n\n{% endif %}\n\nb", "{%\nif 1\n%}\na{%\n\nendif\n%}", "{{\n1\n}}", "{% if 1: %}a{% endif %}", "{% for a in [1]: %}a{% endfor %}",
    # The grammar of expressions and statements.
    "{{ 1, 2 }}", "{{ (1,) }}", "{{ () }}", "{{ }}", "{{ 1,, 2 }}", "{{ [1, 2,] }}", "{{ {'a': 1,} }}", "{{ +5 }} {{ - -5 }} {{ -5 | abs }} {{ (-5) | abs }} {{ -2 ** 2 }} {{ 2 ** -1 }} {{ 2 ** 3 ** 2 }}", "{{ +'a' }}", "{{ +true }}",
    "{{ not 1 == 2 }}", "{{ not not 1 }}", "{{ 1 not in [1] }} {{ 2 not in [1] }}", "{{ 1 in [1] == true }}", "{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }}", "{{ 'a' ~ 1 + 2 ~ 'b' }}", "{{ 'a' ~ 2 * 3 }}", "{{ 1 if 0 }}|", "{{ 1 if 0 if 1 }}", "{{ 1 if 0 else 2 if 0 else 3 }}",
    "{{ 1 is odd and 2 is even }}", "{{ 4 is divisibleby 2 }} {{ 4 is divisibleby(3) }} {{ 4 is not divisibleby 2 }}", "{{ 1 is odd is even }}", "{{ x is defined or 1 }}", "{{ 'a' is in ['a'] }}", "{{ 3 is in [1, 2] }}", "{{ [1, 2] is sameas [1, 2] }}", "{{ 1 is eq 1.0 }}",
    "{{ 'a-b' | replace('-', '+') | upper }}", "{{ 'abc'[::-1] }} {{ 'abc'[1:] }} {{ 'abc'[:-1] }} {{ 'abc'[::2] }} {{ 'abc'[5:] }} {{ 'abc'[::] }}", "{{ [1, 2, 3][1:2,] }}|", "{% set d = {'a': 1} %}{{ d[1:2] }}", "{% set n = none %}{{ n[1:] }}", "{{ x[1:] }}",
    "{{ range(3, *[5]) | list }}", "{{ dict(a=1, **{'b': 2}) }}", "{{ dict(**{'a': 1}, **{'b': 2}) }}", "{{ dict(a=1, a=2) }}", "{{ dict(a=1, **{'a': 2}) }}", "{{ range(stop=3) }}", "{{ dict(1=2) }}", "{{ range(1 2) }}", "{{ range(1,) | list }}", "{{ dict(b=1, 2) }}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set (a, b) = [1, 2] %}{{ a }}{{ b }}", "{% set [a, b] = [1, 2] %}{{ a }}", "{% set a, b = [1] %}", "{% set a, (b, c) = 1, (2, 3) %}{{ a }}{{ b }}{{ c }}", "{% set true = 1 %}", "{% set a.b = 1 %}", "{% set 1 = 2 %}", "{% set a = %}", "{% set a %}",
    "{% set ns = namespace(x=1) %}{% set ns.x, y = 3, 4 %}{{ ns.x }}{{ y }}", "{% set ns = namespace() %}{% set ns.x %}a{% endset %}{{ ns.x }}", "{% set ns = namespace() %}{% set ns.a.b = 1 %}", "{% set ns = {} %}{% set ns.x = 1 %}", "{% set a | upper %}b{{ 1 }}{% endset %}{{ a }}", "{% set a | replace('b', 'c') | upper %}bd{% endset %}{{ a }}",
    "{% for a, b in {'x': 1}.items() %}{{ a }}{{ b }}{% endfor %}", "{% for (a, b) in [[1, 2]] %}{{ a }}{{ b }}{% endfor %}", "{% for a in 1, 2 %}{{ a }}{% endfor %}", "{% for a in [1, 2] if a > 1 %}{{ a }}{{ loop.length }}{% endfor %}", "{% for a in [] %}x{% else %}y{% endfor %}", "{% for a in [1] if a > 1 %}x{% else %}y{% endfor %}",
    "{% for a in [1, 2] recursive %}{{ a }}{% endfor %}", "{% for a in [[1, [2]], 3] recursive %}{% if a is iterable %}[{{ loop(a) }}]{% else %}{{ a }}:{{ loop.depth }}{% endif %}{% endfor %}", "{% for a in 5 %}{% endfor %}", "{% for a in none %}{% endfor %}", "{% for a in x %}{% else %}e{% endfor %}", "{% for a in %}{% endfor %}", "{% for 1 in [1] %}{% endfor %}",
    "{% for a in [1, 2, 3] %}{% if a == 2 %}{% continue %}{% endif %}{{ a }}{% endfor %}", "{% for a in [1, 2, 3] %}{% if a == 2 %}{% break %}{% endif %}{{ a }}{% endfor %}", "{% break %}", "{% continue %}", "{% for a in [1] %}{% else %}{% break %}{% endfor %}", "{% for a in [1] %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}",
    "{% for a in [1, 2, 3] %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.depth0 }};{% endfor %}", "{% for a in [1, 1, 2] %}{{ loop.changed(a) }}{{ loop.cycle('x', 'y') }}{% endfor %}", "{% for a in [1] %}{{ loop.nothing }}|{% endfor %}{{ loop }}",
    "{% if 0 %}a{% elif 1 %}b{% elif 1 %}c{% else %}d{% endif %}", "{% if 1, 0 %}a{% endif %}", "{% if 0 %}a{% else %}b{% else %}c{% endif %}", "{% if 1 %}a", "{% if 1 %}a{% endfor %}", "{% else %}", "{% nonsense %}", "{% %}", "{% if %}{% endif %}", "{% if 1 if 0 else 2 %}{% endif %}", "{% elif 1 %}",
    "{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a }}", "{% set a = 1 %}{% with a = 2, b = a %}{{ a }}{{ b }}{% endwith %}{{ a }}", "{% with %}{% set z = 1 %}{{ z }}{% endwith %}{{ z }}", "{% with a, b = [1, 2] %}{{ a }}{% endwith %}", "{% filter upper %}a{{ 'b' }}{% endfilter %}", "{% filter replace('a', 'b') | upper %}aa{% endfilter %}", "{% print 1, 2 %}", "{% print %}x", "{% do 1 %}",
    "{% macro m(a, b=2) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }} {{ m(1, 3) }} {{ m(b=4, a=5) }} {{ m() }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(b=2) }}", "{% macro m(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, c=3) }}", "{% macro m(a=1, b) %}{% endmacro %}",
    "{% macro m() %}{{ caller(1) }}{% endmacro %}{% call(x) m() %}<{{ x }}>{% endcall %}", "{% macro m() %}a{% endmacro %}{% call m() %}b{% endcall %}", "{% macro m() %}{{ caller is defined }}{% endmacro %}{{ m() }}", "{% call 1 %}{% endcall %}", "{% macro m(a, b=a) %}{{ b }}{% endmacro %}{{ m(1) }}", "{% macro m() %}{{ v }}{% endmacro %}{% set v = 1 %}{{ m() }}", "{% macro m(x) %}{{ x }}{% endmacro %}{% set f = m %}{{ f(2) }}",
    "{% macro m(a, a2=1) %}{{ a is undefined }}{{ a2 }}{% endmacro %}{{ m(a2=none) }}", "{% macro a.b() %}{% endmacro %}", "{% macro m(a %}{% endmacro %}", "{{ m() }}{% macro m() %}{% endmacro %}",
    "{% block a %}x{% endblock %}y", "{% set v = 1 %}{% block a %}{{ v }}{% set v = 2 %}{% endblock a %}{{ v }}", "{% for i in [1] %}{% block b %}{{ i }}|{% endblock %}{% endfor %}", "{% for i in [1] %}{% block b scoped %}{{ i }}|{% endblock %}{% endfor %}", "{% block a %}{% endblock %}{% block a %}{% endblock %}", "{% block a required %}{% endblock %}", "{% block a %}{% endblock b %}",
    "{% if 0 %}{% include 'x' %}{% endif %}a", "{% include 'x' %}", "{% if 0 %}{% import 'x' as y %}{% endif %}a", "{% if 0 %}{% from 'x' import y with context %}{% endif %}a",
    "{% set x = 0 %}{% for i in [1, 2] %}{{ x }}{% set x = i %}{{ x }}{% endfor %}{{ x }}", "{% for i in [1] %}{% set x = 1 %}{% endfor %}{{ x }}|", "{% if 1 %}{% set x = 1 %}{% endif %}{{ x }}", "{% set x = 1 %}{% macro m() %}{% set x = 2 %}{{ x }}{% endmacro %}{{ m() }}{{ x }}",
]

# Numbers of JSON and what is said of each.
NUMBERS = """
0 -0 7 -7 9007199254740993 9223372036854775807 9223372036854775808 -9223372036854775809 18446744073709551615 18446744073709551616
170141183460469231731687303715884105727 170141183460469231731687303715884105728 -170141183460469231731687303715884105728
-170141183460469231731687303715884105729 123456789012345678901234567890123456789012345678901234567890 0.1 -0.0 1e22 1E400 -1e400
9007199254740993.0 0.30000000000000004 5e-324 2.5e-324 1.7976931348623157e308 123456789.123456789 1e5 1.5E-3 100000000000000000000.0
""".split() + ["9" * 4300, "-" + "8" * 400]
OF_NUMBERS = "{{ v }}|{{ v | tojson }}|{{ [v] }}|{{ v is integer }}|{{ {'k': v} | tojson(indent=1) }}|{{ '%s' % v }}|{{ v ~ '' }}|{{ v == v | string | float }}"


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


OF_LETTERS = "{% for c in letters %}{{ c.title() }}|{{ c.casefold() }}|{{ c.swapcase() }}|{{ (c ~ 'AΣ').capitalize() }}|{{ ('x' ~ c ~ 'y').title() }}|{{ c | title }}|{{ c | capitalize }}|{{ c.istitle() }}|{{ c.isupper() }}|{{ c.islower() }}|{{ c.isalpha() }}|{{ c.isalnum() }}|{{ c.isnumeric() }}|{{ ('a' ~ c).isidentifier() }}|{{ c.isidentifier() }}|{{ c | wordcount }}\n{% endfor %}"


def letters():
    """The letters whose forms are several characters, or not those that one case has of the other; and some of other kinds."""
    rare = lambda c: c.title() != c.upper() or c.casefold() != c.lower() or len(c.upper() + c.lower()) > 2
    every = (chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000)
    return [c for c in every if rare(c)] + list("aZ5-Σςʰªⅷ中ا ßéÉſıİहिन्์四²½ⅣⒶٗ😀_") + ["ΑΣ", "ΑΣΣ ΣΑ", "中aB", "aΣb", "ΣΣ", "o'ΑΣ'x"]


# A value of each kind, whose attributes are compared with those of Python's and Jinja's own objects.
KINDS = {
    "str": "'a'", "Markup": "('a' | safe)", "list": "[1]", "tuple": "(1, 2)", "dict": "{'k': 1}", "int": "5", "float": "2.5", "bool": "true", "NoneType": "none",
    "range": "range(3)", "dict_keys": "{}.keys()", "dict_values": "{}.values()", "dict_items": "{}.items()", "generator": "([1] | map('string'))",
    "Cycler": "cycler(1)", "Joiner": "joiner()", "Namespace": "namespace(a=1)", "Macro": "m", "BlockReference": "self.b", "LoopContext": "loop", "Undefined": "missing",
}


def names(env):
    """What there is by name in Jinja's own tables, and the public attributes of each kind of value that templates may use."""
    prelude = "{% macro m() %}{% endmacro %}{% block b %}{% endblock %}{% for i in [1] %}"
    attributes = {}
    for kind, value in KINDS.items():
        found = []
        env.globals["dir_of"] = lambda value: found.extend(dir(value)) or ""
        env.from_string(prelude + "{{ dir_of(" + value + ") }}{% endfor %}").render()
        public = [name for name in found if not name.startswith("_")]
        exists = lambda name: env.from_string(prelude + "{{ " + value + "." + name + " is defined }}{% endfor %}").render() == "True"
        attributes[kind] = {"value": value, "names": [name for name in public if kind != "Undefined" and exists(name)]}
    del env.globals["dir_of"]
    tags = sorted(jinja2.parser._statement_keywords | {"call", "filter"} | set().union(*(extension.tags for extension in env.extensions.values())))
    return {"prelude": prelude, "filters": sorted(env.filters), "tests": sorted(env.tests), "functions": sorted(env.globals), "tags": tags, "attributes": attributes}


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
    messages = [{"role": "user", "content": "hi"}]
    write("small.json", [[source, outcome(env, source, {"messages": messages})] for source in TEMPLATES])
    sees = lambda text: outcome(env, OF_NUMBERS, {"v": json.loads(text)})
    write("numbers.json", {"template": OF_NUMBERS, "numbers": [[text, sees(text)] for text in NUMBERS]})
    context = {"letters": letters()}
    write("letters.json", {"template": OF_LETTERS, "variables": context, "outcome": outcome(env, OF_LETTERS, context)})
    write("names.json", names(env))
    write("expressions.json", [[source, outcome(env, "{{ (" + source + ") }}", {})] for source in EXPRESSIONS + VALUES])


if __name__ == "__main__":
    main()
