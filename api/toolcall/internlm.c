/*
 * InternLM 2, 2.5 and 3: one object for each call, behind two control tokens; the second one says
 * that a function is called. Behind <|interpreter|> there is code, which is content:
 *      <|action_start|><|plugin|>
 *      {"name": "F", "parameters": {..}}<|action_end|>
 */

#include "api/toolcall/parser.h"

#define PLUGIN "<|action_start|><|plugin|>"

enum { OPENED = TC_FIRST, BODY, OBJECT, CLOSE };

static const struct tc_state states[] = {
    [TC_CONTENT] = TC_READS(TC_TEXT, {"<|action_start|>", OPENED, TC_OPEN}),
    [OPENED] = TC_EXPECTS(TC_FAIL, {"<|plugin|>", BODY, 0}),
    [BODY] = TC_EXPECTS(TC_FAIL, {"{", OBJECT, 0}),
    [OBJECT] = {.kind = TC_OBJECT, .next = CLOSE, .act = TC_END},
    [CLOSE] = TC_EXPECTS(TC_CONTENT, {"<|action_end|>", TC_CONTENT, 0}),
};

const struct toolcall_format format_internlm = {
    .name = "internlm",
    .detect = {"<|action_start|>", "<|plugin|>"},
    .triggers = {PLUGIN},
    .ends_reasoning = true,
    .shape = {.call_begin = PLUGIN "\n{\"name\": \"",
              .name_end = "\", \"parameters\": ",
              .call_end = "}<|action_end|>"},
    .states = states,
};
