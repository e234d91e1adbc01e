/*
 * PLaMo 3. Name and arguments of each call stand between tags that are made of special tokens; the
 * arguments are JSON:
 *      <|plamo:begin_tool_requests:plamo|>
 *      <|plamo:begin_tool_request:plamo|>
 *      <|plamo:begin_tool_name:plamo|>F<|plamo:end_tool_name:plamo|>
 *      <|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>{..}
 *      <|plamo:end_tool_arguments:plamo|>
 *      <|plamo:end_tool_request:plamo|>
 *      <|plamo:end_tool_requests:plamo|>
 * in one line. Files differ in whether <|plamo:constrain|>json is written.
 */

#include "api/toolcall/parser.h"

#define BEGIN(tag) "<|plamo:begin_" tag ":plamo|>"
#define END(tag) "<|plamo:end_" tag ":plamo|>"
#define JSON_FOLLOWS "<|plamo:constrain|>json<|plamo:msg|>"

enum { OPENED = TC_FIRST, BEGUN, NAME, NAMED, BODY, ARGS, CLOSE, ENDED, NEXT };

static const struct tc_state states[] = {
    [TC_CONTENT] = TC_READS(TC_TEXT, {BEGIN("tool_requests"), OPENED, TC_OPEN},
                            {BEGIN("tool_request"), BEGUN, TC_OPEN}),
    [OPENED] = TC_EXPECTS(TC_FAIL, {BEGIN("tool_request"), BEGUN, 0}),
    [BEGUN] = TC_EXPECTS(TC_FAIL, {BEGIN("tool_name"), NAME, 0}),
    [NAME] = TC_READS(TC_NAME, {END("tool_name"), NAMED, TC_CALL}),
    [NAMED] = TC_EXPECTS(TC_FAIL, {BEGIN("tool_arguments"), BODY, 0}),
    [BODY] = TC_EXPECTS(ARGS, {JSON_FOLLOWS, ARGS, 0}, {"<|plamo:msg|>", ARGS, 0}),
    [ARGS] = {.kind = TC_ARGUMENTS, .other = TC_FAIL, .next = CLOSE, .act = TC_END},
    [CLOSE] = TC_EXPECTS(ENDED, {END("tool_arguments"), ENDED, 0}),
    [ENDED] = TC_EXPECTS(NEXT, {END("tool_request"), NEXT, 0}),
    [NEXT] = TC_EXPECTS(TC_CONTENT, {BEGIN("tool_request"), BEGUN, TC_OPEN},
                        {END("tool_requests"), TC_CONTENT, 0}),
};

const struct toolcall_format format_plamo = {
    .name = "plamo3",
    .detect = {BEGIN("tool_requests"), BEGIN("tool_name")},
    .triggers = {BEGIN("tool_requests")},
    .ends_reasoning = true,
    .shape = {.section_begin = BEGIN("tool_requests"),
              .section_end = END("tool_requests"),
              .call_begin = BEGIN("tool_request") BEGIN("tool_name"),
              .name_end = END("tool_name") BEGIN("tool_arguments") JSON_FOLLOWS,
              .call_end = END("tool_arguments") END("tool_request")},
    .states = states,
};
