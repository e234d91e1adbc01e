/*
 * Formats where markers stand around a name and JSON arguments.
 *      functionary (3.1)  <function=NAME>{..}</function>
 *      solar              <|tool_calls|><|tool_call:begin|>ID<|tool_call:name|>NAME
 *                         <|tool_call:args|>{..}<|tool_call:end|>..<|calls|>
 * Solar also marks content and reasoning as messages of their own.
 */

#include "api/toolcall/parser.h"

enum { NAME = TC_FIRST, ARGS, NO_ARGS, CLOSE };

static const struct tc_state states[] = {
    [TC_CONTENT] = TC_READS(TC_TEXT, {"<function=", NAME, TC_OPEN}, {"<|eom_id|>", TC_CONTENT, 0},
                            {"<|eot_id|>", TC_CONTENT, 0}),
    [NAME] = TC_READS(TC_NAME, {">", ARGS, TC_CALL}),
    [ARGS] = {.kind = TC_ARGUMENTS, .other = NO_ARGS, .next = CLOSE, .act = TC_END},
    [NO_ARGS] = TC_EXPECTS(TC_FAIL, {"</function>", TC_CONTENT, TC_END}),
    [CLOSE] = TC_EXPECTS(TC_CONTENT, {"</function>", TC_CONTENT, 0}),
};

const struct toolcall_format format_functionary = {
    .name = "functionary",
    .detect = {"<function=", "<|python_tag|>"},
    .triggers = {"<function="},
    .shape = {.call_begin = "<function=", .name_end = ">", .call_end = "</function>"},
    .states = states,
};

enum { OPENED = TC_FIRST, S_ID, S_NAME, S_ARGS, S_NO_ARGS, S_CLOSE, S_NEXT };

static const struct tc_state solar_states[] = {
    [TC_CONTENT] =
        TC_READS(TC_TEXT, {"<|tool_calls|>", OPENED, TC_OPEN},
                 {"<|tool_call:begin|>", S_ID, TC_OPEN}, {"<|begin|>assistant", TC_CONTENT, 0},
                 {"<|content|>", TC_CONTENT, 0}, {"<|end|>", TC_CONTENT, 0}),
    [OPENED] = TC_EXPECTS(TC_FAIL, {"<|tool_call:begin|>", S_ID, 0}),
    [S_ID] = TC_READS(TC_ID, {"<|tool_call:name|>", S_NAME, 0}),
    [S_NAME] = TC_READS(TC_NAME, {"<|tool_call:args|>", S_ARGS, TC_CALL}),
    [S_ARGS] = {.kind = TC_ARGUMENTS, .other = S_NO_ARGS, .next = S_CLOSE, .act = TC_END},
    [S_NO_ARGS] = TC_EXPECTS(TC_FAIL, {"<|tool_call:end|>", S_NEXT, TC_END}),
    [S_CLOSE] = TC_EXPECTS(S_NEXT, {"<|tool_call:end|>", S_NEXT, 0}),
    [S_NEXT] = TC_EXPECTS(TC_CONTENT, {"<|tool_call:begin|>", S_ID, TC_OPEN},
                          {"<|calls|>", TC_CONTENT, 0}),
};

const struct toolcall_format format_solar = {
    .name = "solar",
    .detect = {"<|tool_call:begin|>"},
    .triggers = {"<|tool_calls|>"},
    .content_begin = "<|content|>",
    .content_end = "<|end|>",
    .shape = {.section_begin = "<|tool_calls|>",
              .section_end = "<|calls|>",
              .call_begin = "<|tool_call:begin|>{id}<|tool_call:name|>",
              .name_end = "<|tool_call:args|>",
              .call_end = "<|tool_call:end|>",
              .id_len = 10},
    .states = solar_states,
};
