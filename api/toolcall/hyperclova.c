/*
 * HyperCLOVA X SEED Think. Reasoning and calls are turns of their own; the prompt ends with
 * <|im_start|>assistant:
 *      /think\nREASONING<|im_end|>\n<|im_start|>assistant\nANSWER<|im_end|><|endofturn|>
 *       -> tool/function_call\n[{"name": .., "arguments": {..}}]<|im_end|><|stop|>
 */

#include "api/toolcall/parser.h"

enum { HEADER = TC_FIRST, ROLE, OPENED, ITEM, OBJECT, NEXT, CLOSE };

#define CALL "-> tool/function_call"
#define MARKS                                                                                      \
    {"<|im_end|>", HEADER, 0}, {                                                                   \
        "<|im_start|>", ROLE, 0                                                                    \
    }

static const struct tc_state states[] = {
    [TC_CONTENT] = TC_READS(TC_TEXT, MARKS),
    [TC_REASON] = TC_READS(TC_TEXT, MARKS),
    [HEADER] = TC_EXPECTS(TC_CONTENT, {"<|im_start|>", ROLE, 0}, {"/think\n", TC_REASON, 0},
                          {CALL, OPENED, TC_OPEN}),
    [ROLE] = TC_EXPECTS(HEADER, {"assistant", HEADER, 0}),
    [OPENED] = TC_EXPECTS(TC_FAIL, {"[", ITEM, 0}, {"{", OBJECT, 0}),
    [ITEM] = TC_EXPECTS(TC_FAIL, {"{", OBJECT, 0}),
    [OBJECT] = {.kind = TC_OBJECT, .next = NEXT, .act = TC_END},
    [NEXT] = TC_EXPECTS(CLOSE, {",", ITEM, TC_OPEN}, {"]", CLOSE, 0}),
    [CLOSE] = TC_EXPECTS(TC_CONTENT, {"<|im_end|>", HEADER, 0}),
};

const struct toolcall_format format_hyperclova = {
    .name = "hyperclova",
    .detect = {CALL},
    .triggers = {" " CALL "\n"},
    .own = {.begin = "/think\n",
            .stop = "<|im_end|>",
            .end = "<|im_end|>\n<|im_start|>assistant",
            .answer = "\n"},
    .shape = {.section_begin = " " CALL "\n[",
              .section_end = "]",
              .separator = ", ",
              .call_begin = "{\"name\": \"",
              .name_end = "\", \"arguments\": ",
              .call_end = "}"},
    .states = states,
    .start = HEADER,
};
