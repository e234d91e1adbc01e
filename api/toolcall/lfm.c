/*
 * LFM2: a list of calls in Python's syntax, <|tool_call_start|>[f(a=1, b="x"),
 * g()]<|tool_call_end|>. The template never shows it; it is known by how it lists the tools.
 */

#include "api/toolcall/parser.h"

enum { OPENED = TC_FIRST, NAME, FIRST_KEY, KEY, VALUE, COMMA, NEXT, CLOSE };

static const struct tc_state states[] = {
    [TC_CONTENT] = {.kind = TC_TEXT, TC_EDGES({"<|tool_call_start|>", OPENED, TC_OPEN})},
    [TC_REASON] = {.kind = TC_TEXT, .reasoning = true},
    [OPENED] = {.kind = TC_EXPECT, .other = TC_FAIL, TC_EDGES({"[", NAME, 0})},
    [NAME] = {.kind = TC_NAME, TC_EDGES({"(", FIRST_KEY, TC_CALL})},
    [FIRST_KEY] = {.kind = TC_EXPECT, .other = KEY, TC_EDGES({")", NEXT, TC_END})},
    [KEY] = {.kind = TC_KEY, TC_EDGES({"=", VALUE, 0})},
    [VALUE] = {.kind = TC_LITERAL, .mode = SCAN_PYTHON, .next = COMMA},
    [COMMA] = {.kind = TC_EXPECT,
               .other = TC_FAIL,
               TC_EDGES({",", FIRST_KEY, 0}, {")", NEXT, TC_END})},
    [NEXT] = {.kind = TC_EXPECT, .other = CLOSE, TC_EDGES({",", NAME, TC_OPEN}, {"]", CLOSE, 0})},
    [CLOSE] = {.kind = TC_EXPECT,
               .other = TC_CONTENT,
               TC_EDGES({"<|tool_call_end|>", TC_CONTENT, 0})},
};

const struct toolcall_format format_lfm = {
    .name = "lfm2",
    .detect = {"List of tools: "},
    .triggers = {"<|tool_call_start|>"},
    .shape = {.args = ARGS_PYTHON,
              .section_begin = "<|tool_call_start|>[",
              .section_end = "]<|tool_call_end|>",
              .separator = ", ",
              .name_end = "(",
              .call_end = ")"},
    .states = states,
};
