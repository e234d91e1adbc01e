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
    [TC_CONTENT] = {.kind = TC_TEXT, TC_EDGES(MARKS, {"<atem:function_calls>", OPENED, TC_OPEN})},
    [TC_REASON] = {.kind = TC_TEXT, .reasoning = true, TC_EDGES(MARKS)},
    [HEADER] = {.kind = TC_EXPECT,
                .other = TC_CONTENT,
                TC_EDGES({"<|start|>", ROLE, 0}, {"to=self<|message|>", TC_REASON, 0},
                         {"to=user<|message|>", TC_CONTENT, 0}, {"to=", TO, TC_OPEN},
                         {"<|message|>", TC_CONTENT, 0})},
    [ROLE] = {.kind = TC_EXPECT, .other = HEADER, TC_EDGES({"assistant", HEADER, 0})},
    [TO] = {.kind = TC_SKIP, TC_EDGES({"<|message|>", BODY, 0})},
    [BODY] = {.kind = TC_EXPECT, .other = TC_FAIL, TC_EDGES({"<atem:function_calls>", OPENED, 0})},
    [OPENED] = {.kind = TC_EXPECT, .other = TC_FAIL, TC_EDGES({"<atem:invoke name=\"", NAME, 0})},
    [NAME] = {.kind = TC_NAME, TC_EDGES({"\">", PARAM, TC_CALL})},
    [PARAM] = {.kind = TC_EXPECT,
               .other = TC_FAIL,
               TC_EDGES({"<atem:parameter name=\"", KEY, 0}, {"</atem:invoke>", NEXT, TC_END})},
    [KEY] = {.kind = TC_KEY, TC_EDGES({"\">", VALUE, 0})},
    [VALUE] = {.kind = TC_VALUE, .follow = follow, TC_EDGES({"</atem:parameter>", PARAM, 0})},
    [NEXT] = {.kind = TC_EXPECT,
              .other = TC_CONTENT,
              TC_EDGES({"<atem:invoke name=\"", NAME, TC_OPEN},
                       {"</atem:function_calls>", HEADER, 0})},
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
