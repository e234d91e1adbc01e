/*
 * MiniMax M2: <minimax:tool_call>\n<invoke name="F">\n<parameter
 * name="K">V</parameter>\n</invoke>\n.. M1: <tool_calls>, one {"name": .., "arguments": ..} per
 * line, </tool_calls>. MiniCPM5 writes the invoke form with other tags and nothing around it, and
 * may put a value into CDATA.
 */

#include "api/toolcall/parser.h"

enum { OPENED = TC_FIRST, NAME, PARAM, KEY, VALUE, CDATA, NEXT };

static const char *const follow[] = {"<parameter name=\"", "</invoke>", NULL};

static const struct tc_state states[] = {
    [TC_CONTENT] = TC_READS(TC_TEXT, {"<minimax:tool_call>", OPENED, TC_OPEN}),
    [OPENED] = TC_EXPECTS(TC_FAIL, {"<invoke name=\"", NAME, 0}),
    [NAME] = TC_READS(TC_NAME, {"\">", PARAM, TC_CALL}),
    [PARAM] = TC_EXPECTS(TC_FAIL, {"<parameter name=\"", KEY, 0}, {"</invoke>", NEXT, TC_END}),
    [KEY] = TC_READS(TC_KEY, {"\">", VALUE, 0}),
    [VALUE] = TC_VALUE_BEFORE(follow, {"</parameter>", PARAM, 0}),
    [NEXT] = TC_EXPECTS(TC_CONTENT, {"<invoke name=\"", NAME, TC_OPEN},
                        {"</minimax:tool_call>", TC_CONTENT, 0}),
};

const struct toolcall_format format_minimax_m2 = {
    .name = "minimax-m2",
    .detect = {"<minimax:tool_call>"},
    .triggers = {"<minimax:tool_call>"},
    .shape = {.args = ARGS_TAGGED,
              .section_begin = "<minimax:tool_call>\n",
              .section_end = "\n</minimax:tool_call>",
              .separator = "\n",
              .call_begin = "<invoke name=\"",
              .name_end = "\">\n",
              .call_end = "</invoke>",
              .key_begin = "<parameter name=\"",
              .key_end = "\">",
              .value_end = "</parameter>\n"},
    .states = states,
};

static const char *const minicpm_follow[] = {"<param name=\"", "</function>", NULL};

static const struct tc_state minicpm_states[] = {
    [TC_CONTENT] = TC_READS(TC_TEXT, {"<function name=\"", NAME, TC_OPEN}),
    [NAME] = TC_READS(TC_NAME, {"\">", PARAM, TC_CALL}),
    [PARAM] = TC_EXPECTS(TC_FAIL, {"<param name=\"", KEY, 0}, {"</function>", TC_CONTENT, TC_END}),
    [KEY] = TC_READS(TC_KEY, {"\"><![CDATA[", CDATA, 0}, {"\">", VALUE, 0}),
    [VALUE] = TC_VALUE_BEFORE(minicpm_follow, {"</param>", PARAM, 0}),
    [CDATA] = TC_READS(TC_VALUE, {"]]></param>", PARAM, 0}),
};

const struct toolcall_format format_minicpm = {
    .name = "minicpm",
    .detect = {"<function name=", "<param name="},
    .triggers = {"<function name=\""},
    .shape = {.args = ARGS_TAGGED,
              .separator = "\n",
              .call_begin = "<function name=\"",
              .name_end = "\">",
              .call_end = "</function>",
              .key_begin = "<param name=\"",
              .key_end = "\">",
              .value_end = "</param>"},
    .states = minicpm_states,
};

enum { M1_OPENED = TC_FIRST, M1_OBJECT, M1_NEXT };

static const struct tc_state m1_states[] = {
    [TC_CONTENT] = TC_READS(TC_TEXT, {"<tool_calls>", M1_OPENED, TC_OPEN}),
    [M1_OPENED] = TC_EXPECTS(TC_FAIL, {"{", M1_OBJECT, 0}),
    [M1_OBJECT] = {.kind = TC_OBJECT, .next = M1_NEXT, .act = TC_END},
    [M1_NEXT] = TC_EXPECTS(TC_CONTENT, {"{", M1_OBJECT, TC_OPEN}, {"</tool_calls>", TC_CONTENT, 0}),
};

const struct toolcall_format format_minimax_m1 = {
    .name = "minimax-m1",
    .detect = {"<tool_calls>", "<beginning_of_sentence>"},
    .triggers = {"<tool_calls>"},
    .shape = {.section_begin = "<tool_calls>\n",
              .section_end = "\n</tool_calls>",
              .separator = "\n",
              .call_begin = "{\"name\": \"",
              .name_end = "\", \"arguments\": ",
              .call_end = "}"},
    .states = m1_states,
};
