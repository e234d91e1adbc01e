/*
 * Llama 3.1, 3.2, 3.3: the whole message is {"name": .., "parameters": {..}}, several of them with
 * "; " between; or <|python_tag|> and then the same, or NAME.call(KEY="VALUE", ..) for the built-in
 * tools. An object without a marker may just as well be an answer in JSON: it is a call only when
 * it has no other members and names a tool that was offered.
 */

#include "api/toolcall/parser.h"

enum { TAGGED = TC_FIRST, OBJECT, NEXT, AGAIN, NAME, FIRST_KEY, KEY, VALUE, COMMA };

static const struct tc_state states[] = {
    [TC_CONTENT] = {.kind = TC_TEXT,
                    TC_EDGES({"<|python_tag|>", TAGGED, TC_OPEN}, {"{", OBJECT, TC_OPEN | TC_START},
                             {"<|eom_id|>", TC_CONTENT, 0}, {"<|eot_id|>", TC_CONTENT, 0})},
    [TC_REASON] = {.kind = TC_TEXT, .reasoning = true},
    [TAGGED] = {.kind = TC_EXPECT, .other = NAME, TC_EDGES({"{", OBJECT, 0})},
    [OBJECT] = {.kind = TC_OBJECT, .next = NEXT, .act = TC_END},
    [NEXT] = {.kind = TC_EXPECT, .other = TC_CONTENT, TC_EDGES({";", AGAIN, TC_OPEN})},
    [AGAIN] = {.kind = TC_EXPECT,
               .other = TC_FAIL,
               TC_EDGES({"<|python_tag|>", TAGGED, 0}, {"{", OBJECT, 0})},
    [NAME] = {.kind = TC_NAME, TC_EDGES({".call(", FIRST_KEY, TC_CALL})},
    [FIRST_KEY] = {.kind = TC_EXPECT, .other = KEY, TC_EDGES({")", NEXT, TC_END})},
    [KEY] = {.kind = TC_KEY, TC_EDGES({"=", VALUE, 0})},
    [VALUE] = {.kind = TC_LITERAL, .mode = SCAN_PYTHON, .next = COMMA},
    [COMMA] = {.kind = TC_EXPECT, .other = TC_FAIL, TC_EDGES({",", KEY, 0}, {")", NEXT, TC_END})},
};

const struct toolcall_format format_llama = {
    .name = "llama3",
    .detect = {"<|python_tag|>", "\"parameters\": "},
    .triggers = {"{", "<|python_tag|>"},
    .force_after = {"<|python_tag|>"},
    .bare = true, /* with the name of an offered tool; else the object may be an answer */
    .only_known = true,
    .shape = {.args = ARGS_JSON,
              .separator = "; ",
              .call_begin = "{\"name\": \"",
              .name_end = "\", \"parameters\": ",
              .call_end = "}"},
    .states = states,
};
