"""Checks arguments of tool calls against their schemas with the package jsonschema.

Reads lines of JSON, each `{"schema": .., "value": ..}`, and prints those whose value does not meet its schema; says `no jsonschema` without
the package.
"""

import json
import sys

try:
    from jsonschema import Draft202012Validator
except ImportError:
    print("no jsonschema")
    sys.exit(0)

validators = {}
for line in sys.stdin:
    case = json.loads(line)
    key = json.dumps(case["schema"])
    if key not in validators:
        validators[key] = Draft202012Validator(case["schema"])
    errors = [error.message for error in validators[key].iter_errors(case["value"])]
    if errors:
        print(errors[0], line.strip())
print("checked")
