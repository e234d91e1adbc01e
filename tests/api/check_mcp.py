#!/usr/bin/env python3
"""Calls of the tools of public MCP servers, forced in the formats of all models, checked with python3-jsonschema. Exit
77 where that is missing.

usage: check_mcp.py TOOL_TEXTS TOOLS.json EVERY [--table]

Each format gets one of EVERY tools. --table prints a line for each format."""
import collections
import json
import subprocess
import sys

try:
    import jsonschema
except ImportError:
    print("python3-jsonschema is missing")
    sys.exit(77)


def validators(servers):
    """Returns {(server, tool): validator}. Formats are annotations to the validator."""
    found = {}
    for server in servers:
        for tool in server["tools"]:
            schema = tool["inputSchema"]
            found[server["server"], tool["name"]] = jsonschema.validators.validator_for(schema)(schema)
    return found


def main(program, path, every, *options):
    rules = validators(json.load(open(path, encoding="utf-8")))
    counts = collections.defaultdict(collections.Counter)
    faults = []
    out = subprocess.Popen([program, path, every], stdout=subprocess.PIPE, text=True)
    for line in out.stdout:
        call = json.loads(line)
        count = counts[call["format"]]
        count["calls"] += 1
        count["loosened"] += bool(call["loosened"])
        error = jsonschema.exceptions.best_match(rules[call["server"], call["tool"]].iter_errors(call["arguments"]))
        count["fits"] += error is None
        if error is not None:
            faults.append(f"{call['format']}: {call['tool']} of {call['server']}: {error.message[:300]}")
        if call["loosened"]:
            faults.append(f"{call['format']}: {call['tool']} of {call['server']}: left out {call['loosened']}")
    ended = out.wait()
    if "--table" in options:
        for name, count in counts.items():
            print(f"{name:15} {count['fits']:4} of {count['calls']} fit, {count['loosened']} loosened")
    print(f"{sum(c['calls'] for c in counts.values())} calls in {len(counts)} formats")
    print("\n".join(faults))
    sys.exit(1 if faults or ended or not counts else 0)


main(*sys.argv[1:])
