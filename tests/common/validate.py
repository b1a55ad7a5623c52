"""Checks texts against what they were written by: JSON values with the package jsonschema, others with the expressions of Python.

Reads lines of JSON, each `{"schema": .., "value": ..}` or `{"pattern": .., "text": ..}`, and prints those that do not fit. At the end it says
`checked`, or `no jsonschema` where values could not be checked for want of the package.
"""

import json
import re
import sys

try:
    from jsonschema import Draft202012Validator
    from jsonschema.validators import validator_for
except ImportError:
    validator_for = None


def problem(case, validators):
    """What is wrong with a case; none where it fits."""
    if "pattern" in case:
        return None if re.fullmatch(case["pattern"], case["text"]) else "the text does not match"
    if validator_for is None:
        return None
    key = json.dumps(case["schema"])
    if key not in validators:
        kind = validator_for(case["schema"], default=Draft202012Validator)
        validators[key] = kind(case["schema"], format_checker=kind.FORMAT_CHECKER)
    return next((error.message for error in validators[key].iter_errors(case["value"])), None)


def main():
    validators, has_values = {}, False
    for line in sys.stdin:
        case = json.loads(line)
        has_values |= "schema" in case
        found = problem(case, validators)
        if found:
            print(found, line.strip())
    print("no jsonschema" if has_values and validator_for is None else "checked")


main()
