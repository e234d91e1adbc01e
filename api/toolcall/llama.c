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

enum { AFTER = COMMA + 1, MORE };

/* Llama 4 answers in the way that its instructions ask for, with <|python_start|> and
 * <|python_end|> around what comes before a call, around a list, or not at all:
 *      llama4         {"name": .., "parameters": {..}}, one behind the other
 *      llama4-python  [f(a=1, b="x"), g()]
 * Both are read in either format. A list without a marker may just as well be an answer, and is a
 * call only if it names a tool that was offered. */
static const struct tc_state llama4_states[] = {
    [TC_CONTENT] = TC_READS(
        TC_TEXT, {"<|python_end|>", AFTER, TC_OPEN}, {"<|python_start|>[", NAME, TC_OPEN},
        {"<|python_start|>", TC_CONTENT, 0}, {"{", OBJECT, TC_OPEN | TC_START},
        {"[", NAME, TC_OPEN | TC_START}, {"<|eom|>", TC_CONTENT, 0}, {"<|eot|>", TC_CONTENT, 0}),
    [AFTER] = TC_EXPECTS(TC_FAIL, {"{", OBJECT, 0}, {"[", NAME, 0}),
    [OBJECT] = {.kind = TC_OBJECT, .next = NEXT, .act = TC_END},
    [NEXT] = TC_EXPECTS(TC_CONTENT, {"{", OBJECT, TC_OPEN}, {";", AGAIN, TC_OPEN}),
    [AGAIN] = TC_EXPECTS(TC_FAIL, {"{", OBJECT, 0}),
    [NAME] = TC_READS(TC_NAME, {"(", FIRST_KEY, TC_CALL | TC_FREE}),
    [FIRST_KEY] = TC_EXPECTS(KEY, {")", MORE, TC_END}),
    [KEY] = TC_READS(TC_KEY, {"=", VALUE, 0}),
    [VALUE] = {.kind = TC_LITERAL, .mode = SCAN_PYTHON, .next = COMMA},
    [COMMA] = TC_EXPECTS(TC_FAIL, {",", FIRST_KEY, 0}, {")", MORE, TC_END}),
    [MORE] = TC_EXPECTS(TC_CONTENT, {",", NAME, TC_OPEN}, {"]<|python_end|>", TC_CONTENT, 0},
                        {"]", TC_CONTENT, 0}),
};

const struct toolcall_format format_llama4 = {
    .name = "llama4",
    .detect = {"<|python_end|>", "\"parameters\": "},
    .triggers = {"{", "[", "<|python_end|>"},
    .force_after = {"<|python_end|>"},
    .bare = true,
    .only_known = true,
    .shape = {.call_begin = "{\"name\": \"", .name_end = "\", \"parameters\": ", .call_end = "}"},
    .states = llama4_states,
};

const struct toolcall_format format_llama4_python = {
    .name = "llama4-python",
    .detect = {")]<|eot|>"},
    .triggers = {"{", "[", "<|python_end|>"},
    .force_after = {"<|python_start|>"},
    .bare = true,
    .only_known = true,
    .shape = {.args = ARGS_PYTHON,
              .section_begin = "[",
              .section_end = "]",
              .separator = ", ",
              .name_end = "(",
              .call_end = ")"},
    .states = llama4_states,
};
