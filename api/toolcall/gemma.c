/*
 * Gemma 4: <|tool_call>call:NAME{key:<|"|>text<|"|>,n:1,list:[..]}<tool_call|>. Keys are bare,
 * strings are quoted with a special token and have no escapes. (Gemma 2 and 3 have no form of their
 * own.)
 */

#include "api/toolcall/parser.h"

enum { OPENED = TC_FIRST, NAME, ARGS, CLOSE };

static const struct tc_state states[] = {
    [TC_CONTENT] = {.kind = TC_TEXT, TC_EDGES({"<|tool_call>", OPENED, TC_OPEN})},
    [TC_REASON] = {.kind = TC_TEXT, .reasoning = true},
    [OPENED] = {.kind = TC_EXPECT, .other = TC_FAIL, TC_EDGES({"call:", NAME, 0})},
    [NAME] = {.kind = TC_NAME, TC_EDGES({"{", ARGS, TC_CALL | TC_PEEK})},
    [ARGS] =
        {.kind = TC_ARGUMENTS, .mode = SCAN_GEMMA, .other = TC_FAIL, .next = CLOSE, .act = TC_END},
    [CLOSE] = {.kind = TC_EXPECT, .other = TC_CONTENT, TC_EDGES({"<tool_call|>", TC_CONTENT, 0})},
};

const struct toolcall_format format_gemma = {
    .name = "gemma4",
    .detect = {"<|tool_call>", "call:"},
    .triggers = {"<|tool_call>"},
    .shape = {.args = ARGS_GEMMA, .call_begin = "<|tool_call>call:", .call_end = "<tool_call|>"},
    .states = states,
};
