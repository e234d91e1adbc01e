/*
 * ATEM (Muse Glimmer). A message names its recipient in the header, and ends with <|eom|>, the turn
 * with <|eot|>:
 *      <|start|>assistant to=self<|message|>REASONING<|eom|>
 *      <|start|>assistant to=user<|message|>ANSWER<|eot|>
 *      <|start|>assistant to=F<|message|><atem:function_calls>
 *      <atem:invoke name="F">
 *      <atem:parameter name="K">V</atem:parameter>
 *      </atem:invoke>
 *      </atem:function_calls><|eot|>
 * The prompt ends with <|start|>assistant. A call's name is that of the invocation.
 */

#include "api/toolcall/parser.h"

enum { HEADER = TC_FIRST, ROLE, TO, BODY, OPENED, NAME, PARAM, KEY, VALUE, NEXT };

#define MARKS                                                                                      \
    {"<|eom|>", HEADER, 0}, {"<|eot|>", HEADER, 0}, {                                              \
        "<|start|>", ROLE, 0                                                                       \
    }

static const char *const follow[] = {"<atem:parameter name=\"", "</atem:invoke>", NULL};

static const struct tc_state states[] = {
    [TC_CONTENT] = TC_READS(TC_TEXT, MARKS, {"<atem:function_calls>", OPENED, TC_OPEN}),
    [TC_REASON] = TC_READS(TC_TEXT, MARKS),
    [HEADER] = TC_EXPECTS(TC_CONTENT, {"<|start|>", ROLE, 0}, {"to=self<|message|>", TC_REASON, 0},
                          {"to=user<|message|>", TC_CONTENT, 0}, {"to=", TO, TC_OPEN},
                          {"<|message|>", TC_CONTENT, 0}),
    [ROLE] = TC_EXPECTS(HEADER, {"assistant", HEADER, 0}),
    [TO] = TC_READS(TC_SKIP, {"<|message|>", BODY, 0}),
    [BODY] = TC_EXPECTS(TC_FAIL, {"<atem:function_calls>", OPENED, 0}),
    [OPENED] = TC_EXPECTS(TC_FAIL, {"<atem:invoke name=\"", NAME, 0}),
    [NAME] = TC_READS(TC_NAME, {"\">", PARAM, TC_CALL}),
    [PARAM] =
        TC_EXPECTS(TC_FAIL, {"<atem:parameter name=\"", KEY, 0}, {"</atem:invoke>", NEXT, TC_END}),
    [KEY] = TC_READS(TC_KEY, {"\">", VALUE, 0}),
    [VALUE] = TC_VALUE_BEFORE(follow, {"</atem:parameter>", PARAM, 0}),
    [NEXT] = TC_EXPECTS(TC_CONTENT, {"<atem:invoke name=\"", NAME, TC_OPEN},
                        {"</atem:function_calls>", HEADER, 0}),
};

const struct toolcall_format format_atem = {
    .name = "atem",
    .detect = {"<atem:function_calls>"},
    .triggers = {"<atem:function_calls>"},
    .force_after = {"<atem:function_calls>"},
    .own = {.begin = " to=self<|message|>",
            .stop = "<|eom|>",
            .end = "<|eom|><|start|>assistant",
            .answer = " to=user<|message|>"},
    .shape = {.args = ARGS_TAGGED,
              .separator = "<|eom|><|start|>assistant",
              .call_begin = " to=",
              .name_end = "<|message|><atem:function_calls>\n<atem:invoke name=\"{name}\">\n",
              .call_end = "</atem:invoke>\n</atem:function_calls>",
              .key_begin = "<atem:parameter name=\"",
              .key_end = "\">",
              .value_end = "</atem:parameter>\n"},
    .states = states,
    .start = HEADER,
};
