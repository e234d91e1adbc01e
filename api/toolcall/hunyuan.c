/*
 * Hunyuan's dense models and newer files of A13B: each call is a name and a fenced block, between
 * tags for the call and for all calls:
 *      <tool_calls><tool_call>F
 *      ```json
 *      {..}
 *      ```</tool_call>
 *      <tool_call>..</tool_call></tool_calls>
 * Text may stand in <answer>.
 */

#include "api/toolcall/parser.h"

enum { OPENED = TC_FIRST, NAME, ARGS, FENCE, CLOSE, NEXT, ANSWER, AFTER };

/* An answer ends at the last closing tag, since users may ask for such tags inside. */
static const char *const answer_follow[] = {"<tool_calls>", "<tool_call>", NULL};

static const struct tc_state states[] = {
    [TC_CONTENT] = TC_READS(TC_TEXT, {"<tool_calls>", OPENED, TC_OPEN},
                            {"<tool_call>", NAME, TC_OPEN}, {"<answer>", ANSWER, TC_START}),
    [ANSWER] = {.kind = TC_TEXT,
                .follow = answer_follow,
                TC_EDGES({"<tool_calls>", OPENED, TC_OPEN}, {"</answer>", TC_CONTENT, 0})},
    [OPENED] = TC_EXPECTS(TC_FAIL, {"<tool_call>", NAME, 0}),
    [NAME] = TC_READS(TC_NAME, {"```json", ARGS, TC_CALL}, {"```", ARGS, TC_CALL},
                      {"{", ARGS, TC_CALL | TC_PEEK}),
    [ARGS] = {.kind = TC_ARGUMENTS, .other = TC_FAIL, .next = FENCE, .act = TC_END},
    [FENCE] = TC_EXPECTS(CLOSE, {"```", CLOSE, 0}),
    [CLOSE] = TC_EXPECTS(NEXT, {"</tool_call>", NEXT, 0}),
    [NEXT] = TC_EXPECTS(AFTER, {"<tool_call>", NAME, TC_OPEN}, {"</tool_calls>", AFTER, 0}),
    [AFTER] = TC_EXPECTS(TC_CONTENT, {"</answer>", TC_CONTENT, 0}),
};

const struct toolcall_format format_hunyuan_dense = {
    .name = "hunyuan-dense",
    .detect = {"<tool_calls>", "<tool_call>", "```json"},
    .triggers = {"<tool_calls>", "<tool_call>"},
    .content_begin = "<answer>\n",
    .content_end = "\n</answer>",
    .shape = {.section_begin = "<tool_calls>",
              .section_end = "</tool_calls>",
              .separator = "\n",
              .call_begin = "<tool_call>",
              .name_end = "\n```json\n",
              .call_end = "\n```</tool_call>"},
    .states = states,
};
