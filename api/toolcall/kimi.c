/*
 * Kimi K2, Kimi Linear: the id carries the name, functions.NAME:INDEX, and is what the template
 * wants back. Kimi K3 nests everything in <|open|>TAG attributes<|sep|> .. <|close|>TAG<|sep|>,
 * content and reasoning too, and says each value's type.
 */

#include "api/toolcall/parser.h"

#define SECTION "<|tool_calls_section_begin|>"
#define SECTION_END "<|tool_calls_section_end|>"
#define CALL "<|tool_call_begin|>"
#define CALL_CLOSE "<|tool_call_end|>"
#define ARGUMENT "<|tool_call_argument_begin|>"

enum { OPENED = TC_FIRST, ID, ARGS, NO_ARGS, CLOSE, NEXT };

static const struct tc_state states[] = {
    [TC_CONTENT] = TC_READS(TC_TEXT, {SECTION, OPENED, TC_OPEN}, {CALL, ID, TC_OPEN}),
    [OPENED] = TC_EXPECTS(TC_FAIL, {CALL, ID, 0}),
    [ID] = TC_READS(TC_ID, {ARGUMENT, ARGS, TC_CALL | TC_NAME_IN_ID}),
    [ARGS] = {.kind = TC_ARGUMENTS, .other = NO_ARGS, .next = CLOSE, .act = TC_END},
    [NO_ARGS] = TC_EXPECTS(TC_FAIL, {CALL_CLOSE, NEXT, TC_END}),
    [CLOSE] = TC_EXPECTS(NEXT, {CALL_CLOSE, NEXT, 0}),
    [NEXT] = TC_EXPECTS(TC_CONTENT, {CALL, ID, TC_OPEN}, {SECTION_END, TC_CONTENT, 0}),
};

const struct toolcall_format format_kimi_k2 = {
    .name = "kimi-k2",
    .detect = {SECTION, CALL},
    .triggers = {SECTION},
    .ends_reasoning = true,
    .shape = {.section_begin = SECTION,
              .section_end = SECTION_END,
              .call_begin = CALL "functions.",
              .name_end = ":{index}" ARGUMENT,
              .name_stops = "",
              .call_end = CALL_CLOSE},
    .states = states,
};

#define OPEN(tag) "<|open|>" tag
#define SEP "<|sep|>"
#define END(tag) "<|close|>" tag SEP

enum { K_OPENED = TC_FIRST, K_NAME, K_REST, K_PARAM, K_KEY, K_KIND, K_SKIP, K_VALUE, K_NEXT };

static const struct tc_state k3_states[] = {
    [TC_CONTENT] = TC_READS(TC_TEXT, {OPEN("tools") SEP, K_OPENED, TC_OPEN},
                            {OPEN("response") SEP, TC_CONTENT, 0}, {END("response"), TC_CONTENT, 0},
                            {END("message"), TC_CONTENT, 0}, {"<|end_of_msg|>", TC_CONTENT, 0}),
    [K_OPENED] = TC_EXPECTS(TC_FAIL, {OPEN("call tool=\""), K_NAME, 0}),
    [K_NAME] = TC_READS(TC_NAME, {"\"", K_REST, TC_CALL}),
    [K_REST] = TC_READS(TC_SKIP, {SEP, K_PARAM, 0}),
    [K_PARAM] =
        TC_EXPECTS(TC_FAIL, {OPEN("argument key=\""), K_KEY, 0}, {END("call"), K_NEXT, TC_END}),
    [K_KEY] = TC_READS(TC_KEY, {"\"", K_KIND, 0}),
    [K_KIND] = TC_EXPECTS(TC_FAIL, {"type=\"string\"" SEP, K_VALUE, TC_STRING},
                          {"type=\"", K_SKIP, TC_JSON}, {SEP, K_VALUE, 0}),
    [K_SKIP] = TC_READS(TC_SKIP, {SEP, K_VALUE, 0}),
    [K_VALUE] = TC_READS(TC_VALUE, {END("argument"), K_PARAM, 0}),
    [K_NEXT] = TC_EXPECTS(TC_CONTENT, {OPEN("call tool=\""), K_NAME, TC_OPEN},
                          {END("tools"), TC_CONTENT, 0}),
};

const struct toolcall_format format_kimi_k3 = {
    .name = "kimi-k3",
    .detect = {"<|open|>", "<|close|>", "argument"},
    .triggers = {OPEN("tools") SEP},
    .content_begin = OPEN("response") SEP,
    .content_end = END("response"),
    .shape = {.args = ARGS_TAGGED,
              .section_begin = OPEN("tools") SEP,
              .section_end = END("tools"),
              .call_begin = OPEN("call tool=\""),
              .name_end = "\" index=\"{index}\"" SEP,
              .call_end = END("call"),
              .key_begin = OPEN("argument key=\""),
              .key_end = "\" type=\"string\"" SEP,
              .key_end_json = "\" type=\"{type}\"" SEP,
              .value_end = END("argument")},
    .states = k3_states,
};
