/*
 * Gemma 4: <|tool_call>call:NAME{key:<|"|>text<|"|>,n:1,list:[..]}<tool_call|>. Keys are bare,
 * strings are quoted with a special token and have no escapes. (Gemma 2 and 3 have no form of their
 * own.)
 */

#include "api/toolcall/parser.h"

enum { OPENED = TC_FIRST, NAME, ARGS, CLOSE };

static const struct tc_state states[] = {
    [TC_CONTENT] = TC_READS(TC_TEXT, {"<|tool_call>", OPENED, TC_OPEN}),
    [OPENED] = TC_EXPECTS(TC_FAIL, {"call:", NAME, 0}),
    [NAME] = TC_READS(TC_NAME, {"{", ARGS, TC_CALL | TC_PEEK}),
    [ARGS] =
        {.kind = TC_ARGUMENTS, .mode = SCAN_GEMMA, .other = TC_FAIL, .next = CLOSE, .act = TC_END},
    [CLOSE] = TC_EXPECTS(TC_CONTENT, {"<tool_call|>", TC_CONTENT, 0}),
};

const struct toolcall_format format_gemma = {
    .name = "gemma4",
    .detect = {"<|tool_call>", "call:"},
    .triggers = {"<|tool_call>"},
    .shape = {.args = ARGS_GEMMA, .call_begin = "<|tool_call>call:", .call_end = "<tool_call|>"},
    .states = states,
};
