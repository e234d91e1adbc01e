/*
 * Mistral: [TOOL_CALLS][{"name": .., "arguments": {..}, "id": ".."}, ..] (Nemo and older), or
 * [TOOL_CALLS]NAME[CALL_ID]ID[ARGS]{..} for each call (Small 3.2; without the id Devstral,
 * Ministral). One table reads all of these forms. Ids have nine letters and digits: the templates
 * insist on it.
 */

#include "api/toolcall/parser.h"

enum { OPENED = TC_FIRST, ITEM, OBJECT, NEXT, NAME, ID, ARGS, CLOSE };

static const struct tc_state states[] = {
    [TC_CONTENT] = TC_READS(TC_TEXT, {"[TOOL_CALLS]", OPENED, TC_OPEN}),
    [OPENED] = TC_EXPECTS(NAME, {"[", ITEM, 0}, {"{", OBJECT, 0}),
    [ITEM] = TC_EXPECTS(TC_FAIL, {"{", OBJECT, 0}),
    [OBJECT] = {.kind = TC_OBJECT, .next = NEXT, .act = TC_END},
    [NEXT] = TC_EXPECTS(TC_CONTENT, {",", ITEM, TC_OPEN}, {"]", TC_CONTENT, 0}),
    [NAME] = TC_READS(TC_NAME, {"[CALL_ID]", ID, TC_CALL}, {"[ARGS]", ARGS, TC_CALL},
                      {"{", ARGS, TC_CALL | TC_PEEK}),
    [ID] = TC_READS(TC_ID, {"[ARGS]", ARGS, 0}),
    [ARGS] = {.kind = TC_ARGUMENTS, .other = TC_FAIL, .next = CLOSE, .act = TC_END},
    [CLOSE] = TC_EXPECTS(TC_CONTENT, {"[TOOL_CALLS]", OPENED, TC_OPEN}),
};

const struct toolcall_format format_mistral_json = {
    .name = "mistral-json",
    .detect = {"[TOOL_CALLS]"},
    .triggers = {"[TOOL_CALLS]"},
    .ends_reasoning = true,
    .short_ids = true,
    .shape = {.section_begin = "[TOOL_CALLS][",
              .section_end = "]",
              .separator = ", ",
              .call_begin = "{\"name\": \"",
              .name_end = "\", \"arguments\": ",
              .call_end = ", \"id\": \"{id}\"}",
              .id_len = 9},
    .states = states,
};

const struct toolcall_format format_mistral_id = {
    .name = "mistral-id",
    .detect = {"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"},
    .triggers = {"[TOOL_CALLS]"},
    .ends_reasoning = true,
    .short_ids = true,
    .shape = {.call_begin = "[TOOL_CALLS]", .name_end = "[CALL_ID]{id}[ARGS]", .id_len = 9},
    .states = states,
};

const struct toolcall_format format_mistral_args = {
    .name = "mistral-args",
    .detect = {"[TOOL_CALLS]", "[ARGS]"},
    .triggers = {"[TOOL_CALLS]"},
    .ends_reasoning = true,
    .short_ids = true,
    .shape = {.call_begin = "[TOOL_CALLS]", .name_end = "[ARGS]"},
    .states = states,
};
