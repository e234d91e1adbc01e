/*
 * GLM 4.5 to 5.3, Ling 3, Laguna, Spark:
 *      <tool_call>NAME\n<arg_key>KEY</arg_key>\n<arg_value>VALUE</arg_value>\n</tool_call>
 * The line breaks may be missing. Hunyuan 3 marks every tag with a suffix, ends the name with
 * a separator and puts all calls between <tool_calls..> tags.
 * GLM-4-0414 and GLM-Z1 begin a message with a call, NAME\n{..}, and answers with a line break. The
 * result is asked for with <|observation|>.
 */

#include "api/toolcall/parser.h"

enum { OPENED = TC_FIRST, NAME, PARAM, KEY, TO_VALUE, VALUE, NEXT };

static const char *const follow[] = {"<arg_key>", "</tool_call>", NULL};

static const struct tc_state states[] = {
    [TC_CONTENT] = TC_READS(TC_TEXT, {"<tool_call>", NAME, TC_OPEN}),
    [NAME] = TC_READS(TC_NAME, {"<arg_key>", PARAM, TC_CALL | TC_PEEK},
                      {"</tool_call>", PARAM, TC_CALL | TC_PEEK}),
    [PARAM] = TC_EXPECTS(TC_FAIL, {"<arg_key>", KEY, 0}, {"</tool_call>", TC_CONTENT, TC_END}),
    [KEY] = TC_READS(TC_KEY, {"</arg_key>", TO_VALUE, 0}),
    [TO_VALUE] = TC_EXPECTS(TC_FAIL, {"<arg_value>", VALUE, 0}),
    [VALUE] = TC_VALUE_BEFORE(follow, {"</arg_value>", PARAM, 0}),
};

#define X ":opensource>"

static const char *const hunyuan_follow[] = {"<arg_key" X, "</tool_call" X, NULL};

static const struct tc_state hunyuan_states[] = {
    [TC_CONTENT] =
        TC_READS(TC_TEXT, {"<tool_calls" X, OPENED, TC_OPEN}, {"<tool_call" X, NAME, TC_OPEN}),
    [OPENED] = TC_EXPECTS(TC_FAIL, {"<tool_call" X, NAME, 0}),
    [NAME] = TC_READS(TC_NAME, {"<tool_sep" X, PARAM, TC_CALL}),
    [PARAM] = TC_EXPECTS(TC_FAIL, {"<arg_key" X, KEY, 0}, {"</tool_call" X, NEXT, TC_END}),
    [KEY] = TC_READS(TC_KEY, {"</arg_key" X, TO_VALUE, 0}),
    [TO_VALUE] = TC_EXPECTS(TC_FAIL, {"<arg_value" X, VALUE, 0}),
    [VALUE] = TC_VALUE_BEFORE(hunyuan_follow, {"</arg_value" X, PARAM, 0}),
    [NEXT] =
        TC_EXPECTS(TC_CONTENT, {"<tool_call" X, NAME, TC_OPEN}, {"</tool_calls" X, TC_CONTENT, 0}),
};

const struct toolcall_format format_glm = {
    .name = "glm",
    .detect = {"<tool_call>", "<arg_key>"},
    .triggers = {"<tool_call>"},
    .shape = {.args = ARGS_TAGGED,
              .separator = "{nl}",
              .call_begin = "<tool_call>",
              .name_end = "{nl}",
              .call_end = "</tool_call>",
              .key_begin = "<arg_key>",
              .key_end = "</arg_key>{nl}<arg_value>",
              .value_end = "</arg_value>{nl}"},
    .states = states,
};

const struct toolcall_format format_hunyuan = {
    .name = "hunyuan",
    .detect = {"<tool_sep", "<arg_key", "opensource"},
    .triggers = {"<tool_calls" X, "<tool_call" X},
    .shape = {.args = ARGS_TAGGED,
              .section_begin = "<tool_calls" X "\n",
              .section_end = "\n</tool_calls" X,
              .separator = "\n",
              .call_begin = "<tool_call" X,
              .name_end = "<tool_sep" X "\n",
              .call_end = "</tool_call" X,
              .key_begin = "<arg_key" X,
              .key_end = "</arg_key" X "\n<arg_value" X,
              .value_end = "</arg_value" X "\n"},
    .states = hunyuan_states,
};

enum { G_NAME = TC_FIRST, G_ARGS, G_NEXT };

static const struct tc_state glm4_states[] = {
    [TC_CONTENT] = TC_READS(TC_TEXT, {"\n", G_ARGS, TC_OPEN | TC_START | TC_TOOL | TC_CALL},
                            {"<|assistant|>", G_NAME, TC_OPEN}),
    [G_NAME] = TC_READS(TC_NAME, {"\n", G_ARGS, TC_CALL}),
    [G_ARGS] = {.kind = TC_ARGUMENTS, .other = TC_FAIL, .next = G_NEXT, .act = TC_END},
    [G_NEXT] = TC_EXPECTS(TC_CONTENT, {"<|assistant|>", G_NAME, TC_OPEN},
                          {"<|observation|>", TC_CONTENT, 0}),
};

const struct toolcall_format format_glm4 = {
    .name = "glm4",
    .detect = {"请使用 Json 格式表示调用的参数"},
    .triggers = {"<|assistant|>"},
    .force_after = {"<|assistant|>"},
    .bare = true,
    .only_known = true,
    .end = "<|observation|>",
    .shape = {.separator = "<|assistant|>", .call_begin = "", .name_end = "\n", .name_stops = " "},
    .states = glm4_states,
};
