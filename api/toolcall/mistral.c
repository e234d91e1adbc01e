/*
 * Mistral: [TOOL_CALLS][{"name": .., "arguments": {..}, "id": ".."}, ..] (Nemo and older), or
 * [TOOL_CALLS]NAME[CALL_ID]ID[ARGS]{..} for each call (Small 3.2; without the id Devstral,
 * Ministral). All are read by all. Ids have nine letters and digits: the templates insist on it.
 */

#include "api/toolcall/parser.h"

enum { OPENED = TC_FIRST, ITEM, OBJECT, NEXT, MORE, NAME, ID, ARGS, CLOSE };

static const struct tc_state states[] = {
    [TC_CONTENT] = {.kind = TC_TEXT, TC_EDGES({"[TOOL_CALLS]", OPENED, TC_OPEN})},
    [TC_REASON] = {.kind = TC_TEXT, .reasoning = true},
    [OPENED] = {.kind = TC_EXPECT, .other = NAME, TC_EDGES({"[", ITEM, 0}, {"{", OBJECT, 0})},
    [ITEM] = {.kind = TC_EXPECT, .other = TC_FAIL, TC_EDGES({"{", OBJECT, 0})},
    [OBJECT] = {.kind = TC_OBJECT, .next = NEXT, .act = TC_END},
    [NEXT] = {.kind = TC_EXPECT,
              .other = TC_CONTENT,
              TC_EDGES({",", MORE, TC_OPEN}, {"]", TC_CONTENT, 0})},
    [MORE] = {.kind = TC_EXPECT, .other = TC_FAIL, TC_EDGES({"{", OBJECT, 0})},
    [NAME] = {.kind = TC_NAME,
              TC_EDGES({"[CALL_ID]", ID, TC_CALL}, {"[ARGS]", ARGS, TC_CALL},
                       {"{", ARGS, TC_CALL | TC_PEEK})},
    [ID] = {.kind = TC_ID, TC_EDGES({"[ARGS]", ARGS, 0})},
    [ARGS] = {.kind = TC_ARGUMENTS, .other = TC_FAIL, .next = CLOSE, .act = TC_END},
    [CLOSE] = {.kind = TC_EXPECT, .other = TC_CONTENT, TC_EDGES({"[TOOL_CALLS]", OPENED, TC_OPEN})},
};

const struct toolcall_format format_mistral_json = {
    .name = "mistral-json",
    .detect = {"[TOOL_CALLS]"},
    .triggers = {"[TOOL_CALLS]"},
    .ends_reasoning = true,
    .short_ids = true,
    .shape = {.args = ARGS_JSON,
              .section_begin = "[TOOL_CALLS][",
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
    .shape = {.args = ARGS_JSON,
              .call_begin = "[TOOL_CALLS]",
              .name_end = "[CALL_ID]{id}[ARGS]",
              .id_len = 9},
    .states = states,
};

const struct toolcall_format format_mistral_args = {
    .name = "mistral-args",
    .detect = {"[TOOL_CALLS]", "[ARGS]"},
    .triggers = {"[TOOL_CALLS]"},
    .ends_reasoning = true,
    .short_ids = true,
    .shape = {.args = ARGS_JSON, .call_begin = "[TOOL_CALLS]", .name_end = "[ARGS]"},
    .states = states,
};
