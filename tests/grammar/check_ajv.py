#!/usr/bin/env python3
"""Random texts under the masks of many schemas, validated by Ajv. Exit 77 where npm or its packages cannot be had.

usage: check_ajv.py GRAMMAR_TEXTS BUILD_FOLDER
"""
import itertools
import json
import pathlib
import shutil
import subprocess
import sys

SOURCE = pathlib.Path(__file__).parent / "ajv"

STRING = {"type": "string"}
LEAVES = [
    {}, {"type": "null"}, {"type": "boolean"}, {"type": "integer"}, {"type": "number"}, STRING, {"type": "array"}, {"type": "object"},
    {"type": ["string", "null", "integer"]},
    {"type": "integer", "minimum": -17, "exclusiveMaximum": 1203}, {"type": "integer", "exclusiveMinimum": 0},
    {"type": "number", "minimum": 0, "maximum": 1}, {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    {"type": "number", "minimum": -2.5, "maximum": 1234.125}, {"type": "number", "maximum": -0.001}, {"type": "number", "multipleOf": 1},
    {"type": "string", "minLength": 3, "maxLength": 9}, {"type": "string", "maxLength": 1}, {"type": "string", "minLength": 4},
    {"type": "string", "pattern": "^[a-z]{2,5}(-[0-9]+)?$"}, {"type": "string", "pattern": "b.d"}, {"type": "string", "pattern": "^\\w+\\s\\S*$"},
    {"type": "string", "pattern": "[^a-y\\d]{3}$|^\\.{2}"}, {"type": "string", "pattern": "^[\\u00e0-\\u00ff]{1,3}$"},
    {"type": "string", "pattern": "^[a-z]*$", "minLength": 2, "maxLength": 12},
    # Letters of utf8proc's Unicode are letters in a newer one of Node's; complements and Ll need not be equal.
    {"type": "string", "pattern": "^\\p{Lu}\\p{gc=Letter}+$"}, {"type": "string", "pattern": "^[\\p{L}\\p{M}' -]{2,9}$"},
    {"enum": ["a", 1, None, {"x": [1, "\n"]}, 2.5]}, {"const": "\"quoted\" \u20ac"},
    {"enum": [1, 2, 30], "minimum": 2}, {"anyOf": [{"const": 1}, STRING]},
    {"oneOf": [{"type": "integer", "maximum": 3}, {"type": "number", "exclusiveMinimum": 3}, STRING]},
]
FORMATS = ["date", "time", "date-time", "uuid", "email", "ipv4", "ipv6", "uri", "hostname"]
NODE = {"type": "object", "properties": {"v": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}, "required": ["v"]}
WHOLE = [
    {"$ref": "#/$defs/node", "$defs": {"node": NODE}},
    {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#"}, "maxItems": 2}}, "additionalProperties": False},
    {"oneOf": [
        {"properties": {"kind": {"const": "a"}, "x": {"type": "integer"}}, "required": ["kind"]},
        {"properties": {"kind": {"const": "b"}, "y": STRING}, "required": ["kind", "y"]}], "type": "object"},
    {"type": "object", "properties": {"a": {"type": "integer"}, "b": STRING}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
    {"allOf": [{"properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"properties": {"a": {"minimum": 3}, "b": {}}}]},
    {"type": "object", "properties": {"ab": {"type": "integer"}, "a\"\n": {"type": "null"}, "\u00e9": {}}, "additionalProperties": STRING,
     "minProperties": 1, "maxProperties": 3},
    {"type": "object", "required": ["z", "y"], "minProperties": 3},
    {"type": "object", "properties": {"a": {}, "b": {}}, "unevaluatedProperties": False},
    {"type": "array", "prefixItems": [{"type": "integer"}, STRING], "items": {"type": "null"}, "minItems": 1, "maxItems": 4},
    {"type": "array", "items": {"type": "integer"}, "minItems": 9, "maxItems": 300},
    {"type": "object", "propertyNames": {"pattern": "^[a-z]{1,3}$"}, "additionalProperties": {"type": "integer"}, "maxProperties": 3},
    {"type": "object", "propertyNames": STRING, "properties": {"a": {}}, "additionalProperties": {"type": "boolean"}},
]

AB = {"a": {"type": "integer"}, "b": STRING}
WHOLE += [
    {"not": {"type": ["string", "number"]}}, {"type": "string", "not": {"enum": ["a", ""]}}, {"not": {"enum": [1, True, None, "x"]}},
    {"type": "object", "properties": AB, "not": {"required": ["a", "b"]}},
    {"type": "object", "properties": AB, "not": {"properties": {"a": {"minimum": 3}}}},
    {"type": "array", "not": {"items": {"type": "integer"}}, "maxItems": 4},
    {"type": "string", "allOf": [{"pattern": "a"}, {"pattern": "b$"}], "not": {"pattern": "c"}, "maxLength": 6},
    {"type": "string", "pattern": "^2", "format": "date"}, {"type": "string", "pattern": "[^a]{2}", "minLength": 3, "maxLength": 5},
    {"type": "integer", "multipleOf": 7, "minimum": -30}, {"type": "number", "multipleOf": 0.25, "maximum": 100},
    {"type": "integer", "not": {"multipleOf": 3}},
    {"type": "object", "patternProperties": {"^a": {"type": "integer"}, "b$": {"minimum": 2, "type": "number"}}, "additionalProperties": {"type": "null"}},
    {"type": "object", "properties": {"ab": {"type": "integer"}}, "patternProperties": {"b": {"maximum": 5}}, "maxProperties": 3},
    {"type": "object", "properties": AB, "propertyNames": {"maxLength": 2}, "additionalProperties": {"type": "boolean"}},
    {"type": "object", "properties": AB, "dependentRequired": {"a": ["b"]}},
    {"type": "object", "properties": AB, "dependentSchemas": {"a": {"properties": {"b": {"maxLength": 2}}}}},
    {"type": "object", "properties": AB, "required": ["a"], "if": {"properties": {"a": {"minimum": 0}}}, "then": {"required": ["b"]},
     "else": {"properties": {"b": False}}},
    {"type": "object", "properties": AB, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
    {"oneOf": [{"type": "string", "pattern": "a"}, {"type": "string", "maxLength": 2}, {"type": "number"}, {"type": "integer"}]},
    {"oneOf": [{"type": "object", "properties": AB, "additionalProperties": False}, {"type": "object", "properties": {"a": {}}}]},
    {"type": "array", "items": {"type": "integer"}, "contains": {"minimum": 5}, "maxItems": 4},
    {"enum": [{}, {"a": 1}, {"a": None}, [2], [2, 3]], "properties": {"a": {"type": "integer"}}, "maxItems": 1},
]


def schemas():
    yield from LEAVES
    yield from ({"type": "string", "format": f} for f in FORMATS)
    yield from WHOLE
    for a, b in itertools.combinations(range(len(LEAVES)), 2):
        if (a * 31 + b) % 7 == 0:
            yield {"type": "object", "properties": {"first": LEAVES[a], "second": {"type": "array", "items": LEAVES[b], "maxItems": 3}},
                   "required": ["first", "second"][: (a + b) % 3], "additionalProperties": (a + b) % 2 == 0}


def install(folder):
    stamp = folder / "node_modules" / ".package-lock.json"
    folder.mkdir(parents=True, exist_ok=True)
    for file in SOURCE.iterdir():
        shutil.copy(file, folder)
    if not stamp.exists() or stamp.stat().st_mtime < (SOURCE / "package-lock.json").stat().st_mtime:
        return subprocess.run(["npm", "ci", "--no-audit", "--no-fund", "--silent"], cwd=folder, stdout=sys.stderr).returncode == 0
    return True


def main():
    folder = pathlib.Path(sys.argv[2]) / "ajv"
    if not shutil.which("npm") or not install(folder):
        print("npm or its packages cannot be had")
        return 77
    lines = "".join(json.dumps(s) + "\n" for s in schemas())
    texts = subprocess.run([sys.argv[1]], input=lines.encode(), capture_output=True, check=False)
    sys.stderr.buffer.write(texts.stderr)
    if texts.returncode:
        return 1
    return subprocess.run(["node", "validate.mjs"], cwd=folder, input=texts.stdout).returncode


sys.exit(main())
