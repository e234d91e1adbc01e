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
    /* rest of a header whose recipient is known */
    REST,
    ARGS,
    CLOSE,
};

#define MARKS                                                                                      \
    {"<|end|>", HEADER, 0}, {"<|return|>", HEADER, 0}, {"<|call|>", HEADER, 0},                    \
        {"<|start|>", ROLE, 0}, {                                                                  \
        "<|channel|>", CHANNEL, 0                                                                  \
    }

static const struct tc_state states[] = {
    [TC_CONTENT] = TC_READS(TC_TEXT, MARKS),
    [TC_REASON] = TC_READS(TC_TEXT, MARKS),
    [HEADER] = TC_EXPECTS(TC_CONTENT, {"<|start|>", ROLE, 0}, {"<|channel|>", CHANNEL, 0},
                          {"to=", TO, TC_OPEN}, {"<|message|>", TC_CONTENT, 0}),
    [ROLE] = TC_EXPECTS(HEADER, {"assistant", HEADER, 0}),
    [CHANNEL] = TC_EXPECTS(FINAL, {"analysis", ANALYSIS, 0}, {"commentary", COMMENTARY, 0},
                           {"final", FINAL, 0}),
    [ANALYSIS] = TC_EXPECTS(FINAL, {"<|message|>", TC_REASON, 0}, {"to=", TO, TC_OPEN}),
    [COMMENTARY] = TC_EXPECTS(FINAL, {"<|message|>", TC_CONTENT, 0}, {"to=", TO, TC_OPEN}),
    [FINAL] = TC_READS(TC_SKIP, {"<|message|>", TC_CONTENT, 0}),
    [TO] = TC_EXPECTS(NAME, {"functions.", NAME, 0}),
    [NAME] = TC_READS(TC_NAME, {" ", REST, 0}, {"<|channel|>", REST, 0}, {"<|constrain|>", REST, 0},
                      {"<|message|>", ARGS, TC_CALL}),
    [REST] = TC_READS(TC_SKIP, {"<|message|>", ARGS, TC_CALL}),
    [ARGS] = {.kind = TC_ARGUMENTS, .other = TC_FAIL, .next = CLOSE, .act = TC_END},
    [CLOSE] = TC_EXPECTS(HEADER, {"<|call|>", HEADER, 0}, {"<|end|>", HEADER, 0}),
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
    .shape = {.separator = "<|start|>assistant",
              .call_begin = "<|channel|>commentary to=functions.",
              .call_begin_also = " to=functions.",
              .name_end = " <|constrain|>json<|message|>",
              .name_end_also = "<|channel|>commentary json<|message|>",
              .call_end = "<|call|>"},
    .states = states,
    .start = HEADER,
};
