/*
 * Qwen3-Coder, Qwen3.5, Nemotron 3, StepFun:
 *    <tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n</function>\n</tool_call>
 * The models now and then leave the first tag out, or write a Hermes object. A value is closed only
 * by a tag that is followed by another one, so that text about such tags can be a value. Seed-OSS
 * writes the same with other tags around it and no line breaks in the parameters.
 */

#include "api/toolcall/parser.h"

enum { OPENED = TC_FIRST, OBJECT, NAME, PARAM, KEY, VALUE, CLOSE };

static const char *const follow[] = {"<parameter=", "</function>", "</tool_call>", NULL};
static const char *const seed_follow[] = {"<parameter=", "</function>", "</seed:tool_call>", NULL};

/* The states that both formats have; @close ends a call. */
#define STATES(open, close)                                                                        \
    [TC_CONTENT] =                                                                                 \
        TC_READS(TC_TEXT, {open, OPENED, TC_OPEN}, {"<function=", NAME, TC_OPEN | TC_FREE}),       \
    [OPENED] = TC_EXPECTS(TC_FAIL, {"<function=", NAME, 0}, {"{", OBJECT, 0}),                     \
    [OBJECT] = {.kind = TC_OBJECT, .next = CLOSE, .act = TC_END},                                  \
    [NAME] = TC_READS(TC_NAME, {">", PARAM, TC_CALL}),                                             \
    [PARAM] = TC_EXPECTS(TC_FAIL, {"<parameter=", KEY, 0}, {"</function>", CLOSE, TC_END},         \
                         {close, TC_CONTENT, TC_END}),                                             \
    [CLOSE] = TC_EXPECTS(TC_CONTENT, {close, TC_CONTENT, 0})

static const struct tc_state states[] = {
    STATES("<tool_call>", "</tool_call>"),
    [KEY] = TC_READS(TC_KEY, {">\n", VALUE, 0}, {">", VALUE, 0}),
    [VALUE] = TC_VALUE_BEFORE(follow, {"\n</parameter>", PARAM, 0}, {"</parameter>", PARAM, 0}),
};

static const struct tc_state seed_states[] = {
    STATES("<seed:tool_call>", "</seed:tool_call>"),
    [KEY] = TC_READS(TC_KEY, {">", VALUE, 0}),
    [VALUE] = TC_VALUE_BEFORE(seed_follow, {"</parameter>", PARAM, 0}),
};

const struct toolcall_format format_qwen_coder = {
    .name = "qwen-coder",
    .detect = {"<tool_call>", "<function=", "<parameter="},
    .triggers = {"<tool_call>", "<function="},
    .shape = {.args = ARGS_TAGGED,
              .separator = "\n",
              .call_begin = "<tool_call>\n<function=",
              .name_end = ">\n",
              .call_end = "</function>\n</tool_call>",
              .key_begin = "<parameter=",
              .key_end = ">\n",
              .value_end = "\n</parameter>\n"},
    .states = states,
};

const struct toolcall_format format_seed = {
    .name = "seed",
    .detect = {"<seed:tool_call>", "<function=", "<parameter="},
    .triggers = {"<seed:tool_call>", "<function="},
    .shape = {.args = ARGS_TAGGED,
              .separator = "\n",
              .call_begin = "<seed:tool_call>\n<function=",
              .name_end = ">\n",
              .call_end = "</function>\n</seed:tool_call>",
              .key_begin = "<parameter=",
              .key_end = ">",
              .value_end = "</parameter>\n"},
    .states = seed_states,
};
