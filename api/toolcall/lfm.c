/*
 * Calls in Python's syntax.
 *
 * Olmo 3 writes each in a line: <function_calls>\nf(a=1, b='x')\ng()\n</function_calls>.
 *
 * LFM2: a list of calls in Python's syntax, <|tool_call_start|>[f(a=1, b="x"),
 * g()]<|tool_call_end|>. The template does not contain this marker, so the format is detected by
 * how the template lists the tools.
 */

#include "api/toolcall/parser.h"

enum { OPENED = TC_FIRST, NAME, FIRST_KEY, KEY, VALUE, COMMA, NEXT, CLOSE };

static const struct tc_state states[] = {
    [TC_CONTENT] = TC_READS(TC_TEXT, {"<|tool_call_start|>", OPENED, TC_OPEN}),
    [OPENED] = TC_EXPECTS(TC_FAIL, {"[", NAME, 0}),
    [NAME] = TC_READS(TC_NAME, {"(", FIRST_KEY, TC_CALL}),
    [FIRST_KEY] = TC_EXPECTS(KEY, {")", NEXT, TC_END}),
    [KEY] = TC_READS(TC_KEY, {"=", VALUE, 0}),
    [VALUE] = {.kind = TC_LITERAL, .mode = SCAN_PYTHON, .next = COMMA},
    [COMMA] = TC_EXPECTS(TC_FAIL, {",", FIRST_KEY, 0}, {")", NEXT, TC_END}),
    [NEXT] = TC_EXPECTS(CLOSE, {",", NAME, TC_OPEN}, {"]", CLOSE, 0}),
    [CLOSE] = TC_EXPECTS(TC_CONTENT, {"<|tool_call_end|>", TC_CONTENT, 0}),
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

static const struct tc_state olmo_states[] = {
    [TC_CONTENT] = TC_READS(TC_TEXT, {"<function_calls>", NAME, TC_OPEN}),
    [NAME] = TC_READS(TC_NAME, {"(", FIRST_KEY, TC_CALL}),
    [FIRST_KEY] = TC_EXPECTS(KEY, {")", NEXT, TC_END}),
    [KEY] = TC_READS(TC_KEY, {"=", VALUE, 0}),
    [VALUE] = {.kind = TC_LITERAL, .mode = SCAN_PYTHON, .next = COMMA},
    [COMMA] = TC_EXPECTS(TC_FAIL, {",", FIRST_KEY, 0}, {")", NEXT, TC_END}),
    [NEXT] = {.kind = TC_EXPECT,
              .other = NAME,
              .act = TC_OPEN,
              TC_EDGES({"</function_calls>", TC_CONTENT, 0})},
};

const struct toolcall_format format_olmo = {
    .name = "olmo3",
    .detect = {"<function_calls>"},
    .triggers = {"<function_calls>"},
    .shape = {.args = ARGS_PYTHON,
              .section_begin = "<function_calls>\n",
              .section_end = "\n</function_calls>",
              .separator = "\n",
              .name_end = "(",
              .call_end = ")"},
    .states = olmo_states,
};
