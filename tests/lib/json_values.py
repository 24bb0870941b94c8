#!/usr/bin/python3
"""Evaluates Python expressions over JSON files for tests/lib/cli.sh.

Two lines of stdin, a file and an expression, give one line of stdout: the value or the exception, where "\\n"
is a line end. In an expression `j` is the object in the file, `r` the list of the objects in its lines."""
import json
import sys


def parsed(parse):
    try:
        return parse()
    except ValueError:
        return None


def evaluated(path, expression):
    with open(path, encoding="utf-8") as f:
        text = f.read()
    names = {
        "json": json,
        "j": parsed(lambda: json.loads(text)),
        "r": parsed(lambda: [json.loads(line) for line in text.splitlines()]),
    }
    return str(eval(expression, names))


for path in sys.stdin:
    try:
        answer = evaluated(path.rstrip("\n"), sys.stdin.readline())
    except Exception as e:
        answer = f"{type(e).__name__}: {e}"
    print(answer.replace("\n", "\\n"), flush=True)
