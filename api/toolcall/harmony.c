/*
 * Harmony (gpt-oss). A message is a sequence of <|channel|>CHANNEL<|message|>TEXT<|end|>, with
 * <|start|>assistant between. Channel analysis is reasoning; final is content, and so is commentary
 * without a recipient. A call is a message with a recipient, which stands in the header of the role
 * or of the channel:
 *      <|start|>assistant to=functions.NAME<|channel|>commentary json<|message|>{..}<|call|>
 *      <|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{..}<|call|>
 * The prompt ends with <|start|>assistant.
 */

#include "api/toolcall/parser.h"

enum {
    HEADER = TC_FIRST,
    ROLE,
    CHANNEL,
    ANALYSIS,
    FINAL,
    COMMENTARY,
    TO,
    NAME,
    REST, /* rest of a header whose recipient is known */
    ARGS,
    CLOSE,
};

#define MARKS                                                                                      \
    {"<|end|>", HEADER, 0}, {"<|return|>", HEADER, 0}, {"<|call|>", HEADER, 0},                    \
        {"<|start|>", ROLE, 0}, {                                                                  \
        "<|channel|>", CHANNEL, 0                                                                  \
    }

static const struct tc_state states[] = {
    [TC_CONTENT] = {.kind = TC_TEXT, TC_EDGES(MARKS)},
    [TC_REASON] = {.kind = TC_TEXT, .reasoning = true, TC_EDGES(MARKS)},
    [HEADER] = {.kind = TC_EXPECT,
                .other = TC_CONTENT,
                TC_EDGES({"<|start|>", ROLE, 0}, {"<|channel|>", CHANNEL, 0}, {"to=", TO, TC_OPEN},
                         {"<|message|>", TC_CONTENT, 0})},
    [ROLE] = {.kind = TC_EXPECT, .other = HEADER, TC_EDGES({"assistant", HEADER, 0})},
    [CHANNEL] = {.kind = TC_EXPECT,
                 .other = FINAL,
                 TC_EDGES({"analysis", ANALYSIS, 0}, {"commentary", COMMENTARY, 0},
                          {"final", FINAL, 0})},
    [ANALYSIS] = {.kind = TC_EXPECT,
                  .other = FINAL,
                  TC_EDGES({"<|message|>", TC_REASON, 0}, {"to=", TO, TC_OPEN})},
    [COMMENTARY] = {.kind = TC_EXPECT,
                    .other = FINAL,
                    TC_EDGES({"<|message|>", TC_CONTENT, 0}, {"to=", TO, TC_OPEN})},
    [FINAL] = {.kind = TC_SKIP, TC_EDGES({"<|message|>", TC_CONTENT, 0})},
    [TO] = {.kind = TC_EXPECT, .other = NAME, TC_EDGES({"functions.", NAME, 0})},
    [NAME] = {.kind = TC_NAME,
              TC_EDGES({" ", REST, 0}, {"<|channel|>", REST, 0}, {"<|constrain|>", REST, 0},
                       {"<|message|>", ARGS, TC_CALL})},
    [REST] = {.kind = TC_SKIP, TC_EDGES({"<|message|>", ARGS, TC_CALL})},
    [ARGS] = {.kind = TC_ARGUMENTS, .other = TC_FAIL, .next = CLOSE, .act = TC_END},
    [CLOSE] = {.kind = TC_EXPECT,
               .other = HEADER,
               TC_EDGES({"<|call|>", HEADER, 0}, {"<|end|>", HEADER, 0})},
};

const struct toolcall_format format_harmony = {
    .name = "harmony",
    .detect = {"<|channel|>", "<|message|>"},
    .triggers = {" to=functions.", "<|channel|>commentary to=functions."},
    .force_after = {"<|channel|>commentary to=functions.", "<|start|>assistant to=functions.",
                    "<|channel|>analysis to=functions."},
    .start_after = " to=functions.", /* the prompt has written <|start|>assistant */
    .own = {.begin = "<|channel|>analysis<|message|>",
            .stop = "<|end|>",
            .end = "<|end|><|start|>assistant",
            .answer = "<|channel|>final<|message|>"},
    .shape = {.args = ARGS_JSON,
              .separator = "<|start|>assistant",
              .call_begin = "<|channel|>commentary to=functions.",
              .call_begin_also = " to=functions.",
              .name_end = " <|constrain|>json<|message|>",
              .name_end_also = "<|channel|>commentary json<|message|>",
              .call_end = "<|call|>"},
    .states = states,
    .start = HEADER,
};
