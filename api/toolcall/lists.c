/*
 * Formats that are a JSON list of call objects between two markers. They differ in the markers, and
 * in whether the markers are special tokens.
 *      command-r    Action:\n```json\n[{"tool_name": .., "parameters": {..}}]```
 *      command-r7b  <|START_ACTION|>[{"tool_call_id": "0", "tool_name": ..,
 *                   "parameters": ..}]<|END_ACTION|>
 *      apertus      <|tools_prefix|>[{"NAME": {..}}]<|tools_suffix|>
 *      nemotron     <TOOLCALL>[..]</TOOLCALL>
 *      apriel       <tool_calls>[..]</tool_calls>
 *      jamba        <tool_calls>[\n    {..},\n    {..}\n]</tool_calls>
 *      hunyuan-a13b <tool_calls>[..]</tool_calls>      with text between <answer> and </answer>
 *      firefunction functools[..]
 *      falcon       <tool_call>\n[..]\n</tool_call>     Falcon 3, Falcon-H1 Tiny
 *      granite      <|tool_call|>[..]                  Granite 3
 *      phi4         <|tool_call|>[..]<|/tool_call|>    Phi 4 mini
 * GigaChat writes one object as a message of its own: function call<|role_sep|>\n{..}.
 */

#include "api/toolcall/parser.h"

enum { OPENED = TC_FIRST, ITEM, OBJECT, NEXT, CLOSE, FENCE, BEGUN, ANSWER, AFTER };

/* After the opening marker: a list of objects, or one object, the closing marker, and @then. */
#define LIST_THEN(object_kind, close, then)                                                        \
    [OPENED] = TC_EXPECTS(TC_FAIL, {"[", ITEM, 0}, {"{", OBJECT, 0}),                              \
    [ITEM] = TC_EXPECTS(TC_FAIL, {"{", OBJECT, 0}),                                                \
    [OBJECT] = {.kind = (object_kind), .next = NEXT, .act = TC_END},                               \
    [NEXT] = TC_EXPECTS(CLOSE, {",", ITEM, TC_OPEN}, {"]", CLOSE, 0}),                             \
    [CLOSE] = TC_EXPECTS(then, {close, then, 0})
#define LIST(object_kind, close) LIST_THEN(object_kind, close, TC_CONTENT)

#define LIST_SHAPE(open, close)                                                                    \
    {                                                                                              \
        .section_begin = (open), .section_end = (close), .separator = ", ",                        \
        .call_begin = "{\"name\": \"", .name_end = "\", \"arguments\": ", .call_end = "}"          \
    }

static const struct tc_state command_r_states[] = {
    [TC_CONTENT] = TC_READS(TC_TEXT, {"Action:", FENCE, TC_OPEN}),
    [FENCE] = TC_EXPECTS(TC_FAIL, {"```json", OPENED, TC_FREE}),
    LIST(TC_OBJECT, "```"),
};

const struct toolcall_format format_command_r = {
    .name = "command-r",
    .detect = {"Action:", "```json", "tool_name"},
    .triggers = {"Action:"},
    .force_after = {"Action:\n```json\n["}, /* the word alone also occurs in text */
    .shape = {.section_begin = "Action:\n```json\n[\n    ",
              .section_end = "\n]```",
              .separator = ",\n    ",
              .call_begin = "{\n        \"tool_name\": \"",
              .name_end = "\",\n        \"parameters\": ",
              .call_end = "\n    }"},
    .states = command_r_states,
};

static const struct tc_state command_r7b_states[] = {
    [TC_CONTENT] =
        TC_READS(TC_TEXT, {"<|START_ACTION|>", OPENED, TC_OPEN},
                 {"<|START_RESPONSE|>", TC_CONTENT, 0}, {"<|END_RESPONSE|>", TC_CONTENT, 0}),
    LIST(TC_OBJECT, "<|END_ACTION|>"),
};

const struct toolcall_format format_command_r7b = {
    .name = "command-r7b",
    .detect = {"<|START_ACTION|>"},
    .triggers = {"<|START_ACTION|>"},
    .content_begin = "<|START_RESPONSE|>",
    .content_end = "<|END_RESPONSE|>",
    .ends_reasoning = true,
    .shape = {.section_begin = "<|START_ACTION|>[\n    ",
              .section_end = "\n]<|END_ACTION|>",
              .separator = ",\n    ",
              .call_begin = "{\"tool_call_id\": \"{index}\", \"tool_name\": \"",
              .name_end = "\", \"parameters\": ",
              .call_end = "}"},
    .states = command_r7b_states,
};

static const struct tc_state apertus_states[] = {
    [TC_CONTENT] = TC_READS(TC_TEXT, {"<|tools_prefix|>", OPENED, TC_OPEN}),
    LIST(TC_NAMED, "<|tools_suffix|>"),
};

const struct toolcall_format format_apertus = {
    .name = "apertus",
    .detect = {"<|tools_prefix|>"},
    .triggers = {"<|tools_prefix|>"},
    .shape = {.section_begin = "<|tools_prefix|>[",
              .section_end = "]<|tools_suffix|>",
              .separator = ", ",
              .call_begin = "{\"",
              .name_end = "\": ",
              .call_end = "}"},
    .states = apertus_states,
};

static const struct tc_state nemotron_states[] = {
    [TC_CONTENT] = TC_READS(TC_TEXT, {"<TOOLCALL>", OPENED, TC_OPEN}),
    LIST(TC_OBJECT, "</TOOLCALL>"),
};

const struct toolcall_format format_nemotron = {
    .name = "nemotron",
    .detect = {"<TOOLCALL>"},
    .triggers = {"<TOOLCALL>"},
    .shape = LIST_SHAPE("<TOOLCALL>[", "]</TOOLCALL>"),
    .states = nemotron_states,
};

static const struct tc_state apriel_states[] = {
    [TC_CONTENT] = TC_READS(TC_TEXT, {"<tool_calls>", OPENED, TC_OPEN}),
    LIST(TC_OBJECT, "</tool_calls>"),
};

const struct toolcall_format format_apriel = {
    .name = "apriel",
    .detect = {"<tool_calls>["},
    .triggers = {"<tool_calls>"},
    .shape = LIST_SHAPE("<tool_calls>[", "]</tool_calls>"),
    .states = apriel_states,
};

const struct toolcall_format format_jamba = {
    .name = "jamba",
    .detect = {"<tool_calls>[\n"},
    .triggers = {"<tool_calls>"},
    .shape = {.section_begin = "<tool_calls>[\n    ",
              .section_end = "\n]</tool_calls>",
              .separator = ",\n    ",
              .call_begin = "{\"name\": \"",
              .name_end = "\", \"arguments\": ",
              .call_end = "}"},
    .states = apriel_states,
};

/* An answer ends at the last closing tag, since users may ask for such tags inside. */
static const char *const a13b_follow[] = {"<tool_calls>", "[", "{", NULL};

/* The template begins the text of answers with the assistant's name in Chinese where it has
 * tools. */
#define A13B_ROLE "助手："

static const struct tc_state a13b_states[] = {
    [TC_CONTENT] = TC_READS(TC_TEXT, {"<tool_calls>", OPENED, TC_OPEN},
                            {"<answer>", BEGUN, TC_START}, {A13B_ROLE, TC_CONTENT, TC_START}),
    [BEGUN] = TC_EXPECTS(ANSWER, {A13B_ROLE, ANSWER, 0}),
    [ANSWER] = {.kind = TC_TEXT,
                .follow = a13b_follow,
                TC_EDGES({"<tool_calls>", OPENED, TC_OPEN}, {"</answer>", TC_CONTENT, 0})},
    LIST_THEN(TC_OBJECT, "</tool_calls>", AFTER),
    [AFTER] = TC_EXPECTS(TC_CONTENT, {"</answer>", TC_CONTENT, 0}),
};

const struct toolcall_format format_hunyuan_a13b = {
    .name = "hunyuan-a13b",
    .detect = {"<tool_calls>[", "<|eos|>"},
    .triggers = {"<tool_calls>"},
    .content_begin = "<answer>\n",
    .content_end = "\n</answer>",
    .shape = LIST_SHAPE("<tool_calls>[", "]</tool_calls>"),
    .states = a13b_states,
};

static const struct tc_state firefunction_states[] = {
    [TC_CONTENT] = TC_READS(TC_TEXT, {"functools", OPENED, TC_OPEN | TC_START}),
    [OPENED] = TC_EXPECTS(TC_FAIL, {"[", ITEM, 0}),
    [ITEM] = TC_EXPECTS(TC_FAIL, {"{", OBJECT, 0}),
    [OBJECT] = {.kind = TC_OBJECT, .next = NEXT, .act = TC_END},
    [NEXT] = TC_EXPECTS(TC_CONTENT, {",", ITEM, TC_OPEN}, {"]", TC_CONTENT, 0}),
};

const struct toolcall_format format_firefunction = {
    .name = "firefunction",
    .detect = {"functools["},
    .triggers = {"functools["},
    .shape = LIST_SHAPE(" functools[", "]"),
    .states = firefunction_states,
};

static const struct tc_state tool_call_states[] = {
    [TC_CONTENT] = TC_READS(TC_TEXT, {"<|tool_call|>", OPENED, TC_OPEN}),
    LIST(TC_OBJECT, "<|/tool_call|>"),
};

const struct toolcall_format format_granite = {
    .name = "granite",
    .detect = {"<|tool_call|>"},
    .triggers = {"<|tool_call|>"},
    .shape = LIST_SHAPE("<|tool_call|>[", "]"),
    .states = tool_call_states,
};

const struct toolcall_format format_phi4 = {
    .name = "phi4",
    .detect = {"<|tool|>", "<|/tool|>"},
    .triggers = {"<|tool_call|>"},
    .shape = LIST_SHAPE("<|tool_call|>[", "]<|/tool_call|>"),
    .states = tool_call_states,
};

static const struct tc_state falcon_states[] = {
    [TC_CONTENT] = TC_READS(TC_TEXT, {"<tool_call>", OPENED, TC_OPEN}),
    LIST(TC_OBJECT, "</tool_call>"),
};

const struct toolcall_format format_falcon = {
    .name = "falcon",
    .detect = {"<tool_call>\n["},
    .triggers = {"<tool_call>"},
    .shape = {.section_begin = "<tool_call>\n[\n  ",
              .section_end = "\n]\n</tool_call>",
              .separator = ",\n  ",
              .call_begin = "{\"name\": \"",
              .name_end = "\", \"arguments\": ",
              .call_end = "}"},
    .states = falcon_states,
};

static const struct tc_state gigachat_states[] = {
    [TC_CONTENT] =
        TC_READS(TC_TEXT, {"<|message_sep|>\n\nfunction call<|role_sep|>\n", OPENED, TC_OPEN},
                 {"function call<|role_sep|>\n", OPENED, TC_OPEN | TC_START}),
    [OPENED] = TC_EXPECTS(TC_FAIL, {"{", OBJECT, 0}),
    [OBJECT] = {.kind = TC_OBJECT, .next = TC_CONTENT, .act = TC_END},
};

const struct toolcall_format format_gigachat = {
    .name = "gigachat",
    .detect = {"function call", "<|role_sep|>"},
    .triggers = {"<|message_sep|>\n\nfunction call<|role_sep|>\n"},
    .shape = {.call_begin = "<|message_sep|>\n\nfunction call<|role_sep|>\n{\"name\": \"",
              .name_end = "\", \"arguments\": ",
              .call_end = "}"},
    .states = gigachat_states,
};
