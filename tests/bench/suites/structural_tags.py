"""XGrammar's structural_tag as nodes of docs/reference/grammars.md. What has no node stays as it is, and is refused by that name."""


class NoNode(Exception):
    pass


def node_of(tag):
    try:
        return format_of(tag["format"])
    except (NoNode, KeyError, TypeError):
        return {"structural_tag": tag}


def literal(text):
    if not isinstance(text, str):
        raise NoNode
    return {"literal": text}


def format_of(f):
    kind = f["type"]
    if kind not in FORMATS:
        raise NoNode
    return FORMATS[kind](f)


def json_schema(f):
    if f.get("style", "json") != "json" or f.get("max_whitespace_cnt") is not None:
        raise NoNode
    return {"json_schema": f["json_schema"], "any_format": True, "declared_only": True, "any_order": bool(f.get("any_order"))}


def any_text(f, *stops):
    """Text without any of the strings: one, or those that begin with it."""
    stops = [s for s in (*stops, *f.get("excludes", [])) if s]
    shortest = min(stops, key=len, default="")
    if f.get("max_tokens") is not None or f.get("max_chars") is not None or any(shortest not in s for s in stops):
        raise NoNode
    return {"free_text": shortest}


def either(nodes):
    return nodes[0] if len(nodes) == 1 else {"either": nodes}


def tag(f, left_out=""):
    ends = f["end"] if isinstance(f["end"], list) else [f["end"]]
    content = f["content"]
    inner = any_text(content, *ends) if content["type"] == "any_text" and any(ends) else format_of(content)
    begin = literal(f["begin"])["literal"]
    if not begin.startswith(left_out):
        raise NoNode
    return {"sequence": [literal(begin[len(left_out):]), inner, either([literal(e) for e in ends])]}


def triggered(f):
    """Free text, then a tag, again and again. With one trigger, at which free text ends."""
    if len(f["triggers"]) != 1:
        raise NoNode
    trigger = f["triggers"][0]
    free = any_text({"excludes": f.get("excludes", [])}, trigger)
    call = {"sequence": [literal(trigger), either([tag(t, trigger) for t in f["tags"]])]}
    if f.get("at_least_one"):
        rest = {"sequence": [{"repeat": {"sequence": [free, call]}, "min": 0}, free]}
        return call if f.get("stop_after_first") else {"sequence": [call, rest]}
    if f.get("stop_after_first"):
        return {"sequence": [free, {"repeat": call, "min": 0, "max": 1}]}
    return {"sequence": [{"repeat": {"sequence": [free, call]}, "min": 0}, free]}


def separated(f):
    one = either([tag(t) for t in f["tags"]])
    counts = {"min": int(bool(f.get("at_least_one"))), **({"max": 1} if f.get("stop_after_first") else {})}
    return {"repeat": one, "separator": literal(f["separator"]), **counts}


def repeated(least, most):
    return lambda f: {"repeat": format_of(f["content"]), "min": least, **({} if most is None else {"max": most})}


FORMATS = {
    "const_string": lambda f: literal(f["value"]),
    "json_schema": json_schema,
    "any_text": any_text,
    "grammar": lambda f: {"ebnf": f["grammar"]},
    "regex": lambda f: {"regex": f["pattern"]} if not f.get("excludes") else {"structural_tag": f},
    "sequence": lambda f: {"sequence": [format_of(x) for x in f["elements"]]},
    "or": lambda f: either([format_of(x) for x in f["elements"]]),
    "tag": tag,
    "triggered_tags": triggered,
    "tags_with_separator": separated,
    "optional": repeated(0, 1),
    "plus": repeated(1, None),
    "star": repeated(0, None),
    "repeat": lambda f: {"repeat": format_of(f["content"]), "min": f["min"], **({"max": f["max"]} if f["max"] >= 0 else {})},
}
