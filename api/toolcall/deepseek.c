/*
 * DeepSeek. The markers are special tokens with wide bars and low blocks in them.
 *    R1, V3  <calls begin><call begin>function<sep>NAME\n```json\n{..}\n```<call end>..<calls end>
 *    V3.1    <calls begin><call begin>NAME<sep>{..}<call end>..<calls end>
 * One table reads both, which differ in what follows the separator. V3.2 and V4 write tags (DSML)
 * that say of each value whether it is a string.
 */

#include "api/toolcall/parser.h"

#define CALLS_BEGIN "<｜tool▁calls▁begin｜>"
#define CALLS_END "<｜tool▁calls▁end｜>"
#define CALL_BEGIN "<｜tool▁call▁begin｜>"
#define CALL_CLOSE "<｜tool▁call▁end｜>"
#define SEP "<｜tool▁sep｜>"

enum { OPENED = TC_FIRST, NAME, AFTER_SEP, NAME_2, FENCE, ARGS, CLOSE, NEXT };

static const struct tc_state states[] = {
    [TC_CONTENT] = TC_READS(TC_TEXT, {CALLS_BEGIN, OPENED, TC_OPEN}, {CALL_BEGIN, NAME, TC_OPEN}),
    [OPENED] = TC_EXPECTS(TC_FAIL, {CALL_BEGIN, NAME, 0}),
    [NAME] = TC_READS(TC_NAME, {SEP, AFTER_SEP, 0}),
    [AFTER_SEP] =
        TC_EXPECTS(NAME_2, {"{", ARGS, TC_CALL | TC_PEEK}, {CALL_CLOSE, NEXT, TC_CALL | TC_END}),
    [NAME_2] = TC_READS(TC_NAME, {"```json", ARGS, TC_CALL}, {"```", ARGS, TC_CALL},
                        {"{", ARGS, TC_CALL | TC_PEEK}),
    [FENCE] = TC_EXPECTS(CLOSE, {"```", CLOSE, 0}),
    [ARGS] = {.kind = TC_ARGUMENTS, .other = TC_FAIL, .next = FENCE, .act = TC_END},
    [CLOSE] = TC_EXPECTS(NEXT, {CALL_CLOSE, NEXT, 0}),
    [NEXT] = TC_EXPECTS(TC_CONTENT, {CALL_BEGIN, NAME, TC_OPEN}, {CALLS_END, TC_CONTENT, 0}),
};

const struct toolcall_format format_deepseek_v3 = {
    .name = "deepseek-v3",
    .detect = {CALL_BEGIN, "```json"},
    .triggers = {CALLS_BEGIN},
    .ends_reasoning = true,
    .shape = {.section_begin = CALLS_BEGIN,
              .section_end = CALLS_END,
              .separator = "\n",
              .call_begin = CALL_BEGIN "function" SEP,
              .name_end = "\n```json\n",
              .call_end = "\n```" CALL_CLOSE},
    .states = states,
};

const struct toolcall_format format_deepseek_v31 = {
    .name = "deepseek-v3.1",
    .detect = {CALL_BEGIN},
    .triggers = {CALLS_BEGIN},
    .ends_reasoning = true,
    .shape = {.section_begin = CALLS_BEGIN,
              .section_end = CALLS_END,
              .call_begin = CALL_BEGIN,
              .name_end = SEP,
              .call_end = CALL_CLOSE},
    .states = states,
};

enum { D_OPENED = TC_FIRST, D_NAME, D_PARAM, D_KEY, D_KIND, D_VALUE, D_NEXT };

#define DSML "｜DSML｜"

static const char *const follow[] = {"<" DSML "parameter", "</" DSML "invoke>", NULL};

static const struct tc_state dsml_states[] = {
    [TC_CONTENT] = TC_READS(TC_TEXT, {"<" DSML "tool_calls>", D_OPENED, TC_OPEN},
                            {"<" DSML "function_calls>", D_OPENED, TC_OPEN}),
    [D_OPENED] = TC_EXPECTS(TC_FAIL, {"<" DSML "invoke name=\"", D_NAME, 0}),
    [D_NAME] = TC_READS(TC_NAME, {"\">", D_PARAM, TC_CALL}),
    [D_PARAM] = TC_EXPECTS(TC_FAIL, {"<" DSML "parameter name=\"", D_KEY, 0},
                           {"</" DSML "invoke>", D_NEXT, TC_END}),
    [D_KEY] = TC_READS(TC_KEY, {"\"", D_KIND, 0}),
    [D_KIND] = TC_EXPECTS(TC_FAIL, {"string=\"true\">", D_VALUE, TC_STRING},
                          {"string=\"false\">", D_VALUE, TC_JSON}, {">", D_VALUE, 0}),
    [D_VALUE] = TC_VALUE_BEFORE(follow, {"</" DSML "parameter>", D_PARAM, 0}),
    [D_NEXT] = TC_EXPECTS(TC_CONTENT, {"<" DSML "invoke name=\"", D_NAME, TC_OPEN},
                          {"</" DSML "tool_calls>", TC_CONTENT, 0},
                          {"</" DSML "function_calls>", TC_CONTENT, 0}),
};

/* The shape of calls between tags of @section. */
#define DSML_SHAPE(section)                                                                        \
    {                                                                                              \
        .args = ARGS_TAGGED, .section_begin = "<" DSML section ">\n",                              \
        .section_end = "\n</" DSML section ">", .separator = "\n",                                 \
        .call_begin = "<" DSML "invoke name=\"", .name_end = "\">\n",                              \
        .call_end = "</" DSML "invoke>", .key_begin = "<" DSML "parameter name=\"",                \
        .key_end = "\" string=\"true\">", .key_end_json = "\" string=\"false\">",                  \
        .value_end = "</" DSML "parameter>\n",                                                     \
    }

const struct toolcall_format format_deepseek_dsml = {
    .name = "deepseek-dsml",
    .detect = {DSML, "invoke"},
    .triggers = {"<" DSML "tool_calls>", "<" DSML "function_calls>"},
    .ends_reasoning = true,
    .shape = DSML_SHAPE("tool_calls"),
    .states = dsml_states,
};

const struct toolcall_format format_deepseek_v32 = {
    .name = "deepseek-v3.2",
    .detect = {DSML, "invoke", "function_calls"},
    .triggers = {"<" DSML "function_calls>", "<" DSML "tool_calls>"},
    .ends_reasoning = true,
    .shape = DSML_SHAPE("function_calls"),
    .states = dsml_states,
};
