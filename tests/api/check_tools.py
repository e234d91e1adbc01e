#!/usr/bin/env python3
"""Calls of tools, forced in the formats of all models, checked with python3-jsonschema. Exit 77 where that is missing.

usage: check_tools.py TOOL_TEXTS TOOLS.json EVERY [--table]

Each format gets one of EVERY tools. A tool may have `left_out`: places of its schema that no grammar holds, and
`left_out_in`: those that a format does not hold. Nothing else may be left out. --table prints a line for each format."""
import collections
import copy
import json
import subprocess
import sys

try:
    import jsonschema
except ImportError:
    print("python3-jsonschema is missing")
    sys.exit(77)


def without(schema, places):
    """Returns the schema without the keywords that JSON pointers name."""
    schema = copy.deepcopy(schema)
    for place in places:
        *way, last = [step.replace("~1", "/").replace("~0", "~") for step in place.split("/")[1:]]
        at = schema
        for step in way:
            at = at[int(step)] if isinstance(at, list) else at[step]
        del at[last]
    return schema


def check(call, tool):
    """Returns what is wrong with a call, or None."""
    expected = tool.get("left_out", []) + tool.get("left_out_in", {}).get(call["format"], [])
    if call["loosened"] != expected:
        return f"left out {call['loosened']}, not {expected}"
    schema = without(tool["inputSchema"], expected)
    errors = jsonschema.validators.validator_for(schema)(schema).iter_errors(call["arguments"])
    error = jsonschema.exceptions.best_match(errors)
    return error and f"{error.message[:300]}: {json.dumps(call['arguments'])[:300]}"


def main(program, path, every, *options):
    tools = {(server["server"], tool["name"]): tool
             for server in json.load(open(path, encoding="utf-8")) for tool in server["tools"]}
    calls, fits, faults = collections.Counter(), collections.Counter(), []
    out = subprocess.Popen([program, path, every], stdout=subprocess.PIPE, text=True)
    for line in out.stdout:
        call = json.loads(line)
        fault = check(call, tools[call["server"], call["tool"]])
        calls[call["format"]] += 1
        fits[call["format"]] += fault is None
        if fault:
            faults.append(f"{call['format']}: {call['tool']} of {call['server']}: {fault}")
    ended = out.wait()
    if "--table" in options:
        for name, n in calls.items():
            print(f"{name:15} {fits[name]:4} of {n}")
    print(f"{sum(calls.values())} calls in {len(calls)} formats")
    print("\n".join(faults))
    sys.exit(1 if faults or ended or not calls else 0)


main(*sys.argv[1:])
