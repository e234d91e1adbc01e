/*
 * Llama 3.1, 3.2, 3.3: the whole message is {"name": .., "parameters": {..}}, several of them with
 * "; " between; or <|python_tag|> and then the same, or NAME.call(KEY="VALUE", ..) for the built-in
 * tools. An object without a marker may just as well be an answer in JSON: it is a call only when
 * it has no other members and names a tool that was offered.
 */

#include "api/toolcall/parser.h"

enum { TAGGED = TC_FIRST, OBJECT, NEXT, AGAIN, NAME, FIRST_KEY, KEY, VALUE, COMMA };

static const struct tc_state states[] = {
    [TC_CONTENT] =
        TC_READS(TC_TEXT, {"<|python_tag|>", TAGGED, TC_OPEN}, {"{", OBJECT, TC_OPEN | TC_START},
                 {"<|eom_id|>", TC_CONTENT, 0}, {"<|eot_id|>", TC_CONTENT, 0}),
    [TAGGED] = TC_EXPECTS(NAME, {"{", OBJECT, 0}),
    [OBJECT] = {.kind = TC_OBJECT, .next = NEXT, .act = TC_END},
    [NEXT] = TC_EXPECTS(TC_CONTENT, {";", AGAIN, TC_OPEN}),
    [AGAIN] = TC_EXPECTS(TC_FAIL, {"<|python_tag|>", TAGGED, 0}, {"{", OBJECT, 0}),
    [NAME] = TC_READS(TC_NAME, {".call(", FIRST_KEY, TC_CALL | TC_FREE}),
    [FIRST_KEY] = TC_EXPECTS(KEY, {")", NEXT, TC_END}),
    [KEY] = TC_READS(TC_KEY, {"=", VALUE, 0}),
    [VALUE] = {.kind = TC_LITERAL, .mode = SCAN_PYTHON, .next = COMMA},
    [COMMA] = TC_EXPECTS(TC_FAIL, {",", KEY, 0}, {")", NEXT, TC_END}),
};

const struct toolcall_format format_llama = {
    .name = "llama3",
    .detect = {"<|python_tag|>", "\"parameters\": "},
    .triggers = {"{", "<|python_tag|>"},
    .force_after = {"<|python_tag|>"},
    .bare = true, /* with the name of an offered tool; else the object may be an answer */
    .only_known = true,
    .shape = {.separator = "; ",
              .call_begin = "{\"name\": \"",
              .name_end = "\", \"parameters\": ",
              .call_end = "}"},
    .states = states,
};
