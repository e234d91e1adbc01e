/*
 * Constraints of a request's output as the worker gets them, and refusals with their fields.
 */

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/parts.h"
#include "stream.h"
#include "tiny.h"

#define SCHEMA R"({"type":"object","properties":{"a":{"type":"integer"}}})"
#define FORMAT(inner) R"("response_format":{"type":"json_schema","json_schema":)" inner "}"
#define NAMED(schema) R"({"name":"x","strict":true,"schema":)" schema "}"
#define NODE(schema, param)                                                                        \
    R"({"json_schema":)" schema R"(,"param":")" param R"(","any_format":true})"
#define IN_FORMAT "response_format.json_schema.schema"

#define TOOL(name, more) R"({"type":"function","function":{"name":")" name R"(")" more "}}"
#define SCHEMA_OF(schema) R"(,"parameters":)" schema
#define TOOLS                                                                                      \
    R"("tools":[{"type":"web_search"},)" TOOL("get", SCHEMA_OF(SCHEMA)) "," TOOL("now", "") "]"
#define CHOICE(choice) TOOLS R"(,"tool_choice":)" choice

/* Calls in the template's format. */
#define GET_OF(schema)                                                                             \
    R"({"sequence":[{"literal":"get"},{"literal":"\", \"arguments\": "},)"                         \
    R"({"json_schema":)" schema                                                                    \
    R"(,"param":"tools[1].function.parameters","any_format":true,"declared_only":true}]})"
#define GET GET_OF(SCHEMA)
#define NOTHING R"({"literal":"\", \"arguments\": "},{"literal":"{}"})"
#define NOW R"({"sequence":[{"literal":"now"},)" NOTHING "]}"
#define GEMINI(object, integer)                                                                    \
    R"({"type":")" object R"(","properties":{"type":{"type":[")" integer                           \
    R"(","null"],"enum":["OBJECT",1]},"a":{"anyOf":[{"type":")" integer R"("}]}}})"
#define CALLS_MAX(tools, max)                                                                      \
    R"({"sequence":[{"repeat":{"sequence":[{"literal":"<tool_call>\n{\"name\": )"                  \
    R"(\""},)"                                                                                     \
    R"({"either":[)" tools R"(]},{"literal":"}\n</tool_call>"}]},"separator":)"                    \
    R"({"sequence":[{"literal":"\n"}]},"min":1,"max":)" max "}]}"
#define CALLS(tools) CALLS_MAX(tools, "128")
#define AFTER(tools)                                                                               \
    R"({"sequence":[{"literal":"\n{\"name\": \""},)"                                               \
    R"({"either":[)" tools R"(]},{"literal":"}\n</tool_call>"}]})"
#define REPEAT R"({"after":["<tool_call>"],"repeat":true})"

static void started(struct world *w) {
    world_init(w);
    world_start(w);
}

/* Serves the request and compares the constraint that the worker gets. */
static void expect_told(struct world *w, const char *path, const char *body, const char *grammar,
                        const char *triggers) {
    struct reply r;
    uint32_t i = w->port.n;

    w->port.script = "ok";
    world_ask(w, path, body, &r);
    cr_assert_eq(r.status, 200, "%s: %s", body, r.body.data);
    cr_assert_eq(w->port.n, i + 1);
    cr_expect_str_eq(w->port.r[i].grammar, grammar, "%s\n     told %s\n   wanted %s", body,
                     w->port.r[i].grammar, grammar);
    cr_expect_str_eq(w->port.r[i].triggers, triggers, "%s: %s", body, w->port.r[i].triggers);
    reply_deinit(&r);
}

static void expect_refused(struct world *w, const char *path, const char *body, const char *param,
                           const char *code) {
    struct reply r;
    char needle[200];

    world_ask(w, path, body, &r);
    snprintf(needle, sizeof(needle), R"("param":"%s","code":"%s"}})", param, code);
    cr_expect_eq(r.status, 400, "%s: %d", body, r.status);
    cr_expect(r.body.data && strstr(r.body.data, needle), "%s: %s has no %s", body, r.body.data,
              needle);
    reply_deinit(&r);
}

Test(constrain, every_form_of_text_becomes_a_grammar) {
    const struct {
        const char *field, *grammar;
    } table[] = {
        {R"("response_format":{"type":"text"})", ""},
        {R"("response_format":null)", ""},
        {R"("response_format":{"type":"json_object"})",
         R"({"json_object":true,"param":"response_format"})"},
        {FORMAT(NAMED(SCHEMA)), NODE(SCHEMA, IN_FORMAT)},
        {FORMAT(NAMED(GEMINI("OBJECT", "Integer"))), NODE(GEMINI("object", "integer"), IN_FORMAT)},
        {FORMAT(R"({"schema":true})"), NODE("true", IN_FORMAT)},
        {R"("response_format":{"type":"json_schema","schema":)" SCHEMA "}",
         NODE(SCHEMA, IN_FORMAT)},
        {R"("response_format":{"type":"json","value":)" SCHEMA "}", NODE(SCHEMA, IN_FORMAT)},
        {R"("response_format":{"type":"json_object","value":)" SCHEMA "}", NODE(SCHEMA, IN_FORMAT)},
        {R"("structured_outputs":{"json":)" SCHEMA "}", NODE(SCHEMA, "structured_outputs.json")},
        {R"("structured_outputs":{"json":"{\"type\":\"null\"}"})",
         NODE(R"({"type":"null"})", "structured_outputs.json")},
        {R"("structured_outputs":{"json_object":true,"disable_any_whitespace":true})",
         R"({"json_object":true,"param":"structured_outputs.json_object","compact":true})"},
        {R"("structured_outputs":{"json_object":true,"any_order":true})",
         R"({"json_object":true,"param":"structured_outputs.json_object","any_order":true})"},
        {FORMAT(NAMED(SCHEMA)) R"(,"structured_outputs":{"any_order":true})",
         R"({"json_schema":)" SCHEMA R"(,"param":")" IN_FORMAT
         R"(","any_format":true,"any_order":true})"},
        {R"("structured_outputs":{"regex":"[ab]+"})",
         R"({"regex":"[ab]+","param":"structured_outputs.regex"})"},
        {R"("structured_outputs":{"choice":["yes","no"]})",
         R"({"choice":["yes","no"],"param":"structured_outputs.choice"})"},
        {R"("structured_outputs":{"grammar":"root ::= \"a\""})",
         R"({"ebnf":"root ::= \"a\"","param":"structured_outputs.grammar"})"},
        {R"("structured_outputs":{})", ""},
        {R"("guided_json":)" SCHEMA, NODE(SCHEMA, "guided_json")},
        {R"("json_schema":)" SCHEMA, NODE(SCHEMA, "json_schema")},
        {R"("guided_regex":"a?")", R"({"regex":"a?","param":"guided_regex"})"},
        {R"("guided_choice":["a"])", R"({"choice":["a"],"param":"guided_choice"})"},
        {R"("guided_grammar":"root ::= [0-9]")",
         R"({"ebnf":"root ::= [0-9]","param":"guided_grammar"})"},
        {R"("grammar":"root ::= [0-9]")", R"({"ebnf":"root ::= [0-9]","param":"grammar"})"},
        {R"("grammar":"")", ""},
        {R"("regex":"a?")", R"({"regex":"a?","param":"regex"})"},
        {R"("ebnf":"root ::= [0-9]")", R"({"ebnf":"root ::= [0-9]","param":"ebnf"})"},
        {R"("guided_grammar":"start: /[0-9]/")",
         R"({"lark":"start: /[0-9]/","param":"guided_grammar"})"},
    };
    struct world w;
    char body[1000];

    started(&w);
    for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
        snprintf(body, sizeof(body), "{" HI ",%s}", table[i].field);
        expect_told(&w, CHAT, body, table[i].grammar, "");
        snprintf(body, sizeof(body), R"({"prompt":"a",%s})", table[i].field);
        expect_told(&w, TEXT, body, table[i].grammar, "");
    }
    world_stop(&w);
}

Test(constrain, what_cannot_be_held_is_named) {
    const struct {
        const char *field, *param, *code;
    } table[] = {
        {R"("response_format":1)", "response_format", "invalid_value"},
        {R"("response_format":{"type":"xml"})", "response_format.type", "invalid_value"},
        {R"("response_format":{"type":"json_schema"})", IN_FORMAT, "invalid_value"},
        {FORMAT("1"), "response_format.json_schema", "invalid_value"},
        {FORMAT(R"({"schema":[]})"), IN_FORMAT, "invalid_value"},
        {FORMAT(R"({"name":1,"schema":{}})"), "response_format.json_schema.name", "invalid_value"},
        {FORMAT(R"({"strict":1,"schema":{}})"), "response_format.json_schema.strict",
         "invalid_value"},
        {FORMAT(NAMED(R"({"$dynamicRef":"#"})")), IN_FORMAT, "grammar_unsupported"},
        {FORMAT(NAMED(R"({"type":"what"})")), IN_FORMAT, "grammar_invalid"},
        {R"("structured_outputs":[])", "structured_outputs", "invalid_value"},
        {R"("structured_outputs":{"json":"{"})", "structured_outputs.json", "invalid_value"},
        {R"("structured_outputs":{"json":7})", "structured_outputs.json", "invalid_value"},
        {R"("structured_outputs":{"json":"{}","regex":"a"})", "structured_outputs.regex",
         "invalid_value"},
        {R"("structured_outputs":{"regex":"("})", "structured_outputs.regex", "grammar_invalid"},
        {R"("structured_outputs":{"regex":""})", "structured_outputs.regex", "invalid_value"},
        {R"("structured_outputs":{"choice":[]})", "structured_outputs.choice", "invalid_value"},
        {R"("structured_outputs":{"choice":[1]})", "structured_outputs.choice", "invalid_value"},
        {R"("structured_outputs":{"json_object":1})", "structured_outputs.json_object",
         "invalid_value"},
        {R"("structured_outputs":{"structural_tag":"x"})", "structured_outputs.structural_tag",
         "unsupported_parameter"},
        {R"("structured_outputs":{"whitespace_pattern":"x"})",
         "structured_outputs.whitespace_pattern", "unsupported_parameter"},
        {R"("structured_outputs":{"any_order":1})", "structured_outputs.any_order",
         "invalid_value"},
        {R"("structured_outputs":{"disable_any_whitespace":1})",
         "structured_outputs.disable_any_whitespace", "invalid_value"},
        {R"("guided_regex":"a","guided_choice":["a"])", "guided_choice", "invalid_value"},
        {R"("guided_json":"{}","json_schema":"{}")", "json_schema", "invalid_value"},
        {R"("guided_grammar":"root")", "guided_grammar", "grammar_invalid"},
        {R"("guided_whitespace_pattern":"x")", "guided_whitespace_pattern",
         "unsupported_parameter"},
    };
    struct world w;
    char body[1000];

    started(&w);
    for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
        snprintf(body, sizeof(body), "{" HI ",%s}", table[i].field);
        expect_refused(&w, CHAT, body, table[i].param, table[i].code);
        snprintf(body, sizeof(body), R"({"prompt":"a",%s})", table[i].field);
        expect_refused(&w, TEXT, body, table[i].param, table[i].code);
    }
    cr_expect_eq(w.port.n, 0, "nothing of it reached the worker");
    world_stop(&w);
}

/* ---- tools */

/* @close: the part of reasoning that the template has in its text. */
static void with_template(struct world *w, const char *source) {
    world_init(w);
    world_use_template(w, source, strlen(source));
    world_start(w);
}

#define HERMES(tail) "{{ tools | tojson }}{{ messages[0].content }}<tool_call>" tail

Test(constrain, tool_choice_becomes_a_grammar) {
    const struct {
        const char *fields, *grammar, *triggers;
    } table[] = {
        {TOOLS, AFTER(GET "," NOW), REPEAT},
        {CHOICE(R"("auto")"), AFTER(GET "," NOW), REPEAT},
        {CHOICE(R"("none")"), "", ""},
        {TOOLS R"(,"parallel_tool_calls":false)", AFTER(GET "," NOW),
         R"({"after":["<tool_call>"]})"},
        {CHOICE(R"("required")"), CALLS(GET "," NOW), ""},
        {CHOICE(R"("required","parallel_tool_calls":false)"), CALLS_MAX(GET "," NOW, "1"), ""},
        {CHOICE(R"({"type":"function","function":{"name":"now"}})"), CALLS_MAX(NOW, "1"), ""},
        {CHOICE(R"({"type":"function","name":"get"},"parallel_tool_calls":true)"),
         CALLS_MAX(GET, "1"), ""},
        {CHOICE(R"({"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[{"type":")"
                R"(function","function":{"name":"get"}}]}})"),
         AFTER(GET), REPEAT},
        {CHOICE(R"({"type":"allowed_tools","mode":"required","tools":[{"type":"function","name":")"
                R"(get"}]})"),
         CALLS(GET), ""},
        {CHOICE(R"("required","guided_regex":"a")"), CALLS(GET "," NOW), ""},
        {TOOLS R"(,"guided_regex":"a")",
         R"({"either":[)" CALLS(GET "," NOW) R"(,{"regex":"a","param":"guided_regex"}]})", ""},
        /* a schema with keywords that cannot be enforced is not constrained */
        {R"("tools":[)" TOOL("get", SCHEMA_OF(R"({"$dynamicRef":"#"})")) "]",
         AFTER(R"({"sequence":[{"literal":"get"},{"literal":"\", \"arguments\": )"
               R"("},{"json_object":true}]})"),
         REPEAT},
        /* a keyword that cannot be enforced is left out; names, types and required stay */
        {R"("tools":[)" TOOL("get", SCHEMA_OF(R"({"type":"object",)"
                                              R"("properties":{"a":{"type":"string",")"
                                              R"(pattern":"\\bx"}},"required":["a"]})")) "]",
         AFTER(R"({"sequence":[{"literal":"get"},{"literal":"\", \"arguments\": )"
               R"("},{"json_schema":{"type":"object","properties":{"a":{"type":"string"}},")"
               R"(required":["a"]},"param":"tools[0].function.parameters","any_format":true,")"
               R"(declared_only":true}]})"),
         REPEAT},
        /* the longest name */
        {R"("tools":[)" TOOL(NAME_256, "") "]",
         AFTER(R"({"sequence":[{"literal":")" NAME_256 R"("},)" NOTHING "]}"), REPEAT},
        /* PHP has one form for an empty list and an empty object */
        {R"("tools":[)" TOOL("now", SCHEMA_OF("[]")) "]", AFTER(NOW), REPEAT},
        {R"("tools":[{"type":"function","name":"now","parameters":[]}])", AFTER(NOW), REPEAT},
        {R"("tools":[{"name":"now","input_schema":[]}])", AFTER(NOW), REPEAT},
        /* arguments are an object whatever else the type allows */
        {R"("tools":[{"type":"web_search"},)" TOOL(
             "get", SCHEMA_OF(R"({"type":["object","null"],)"
                              R"("properties":{"a":{"type":"integer"}}})")) "]",
         AFTER(GET), REPEAT},
        /* types as in Gemini's API; names of properties and values stay as they are */
        {R"("tools":[{"type":"web_search"},)" TOOL("get",
                                                   SCHEMA_OF(GEMINI("OBJECT", "INTEGER"))) "]",
         AFTER(GET_OF(GEMINI("object", "integer"))), REPEAT},
    };
    struct world w;
    char body[2000];

    with_template(&w, HERMES(""));
    for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
        snprintf(body, sizeof(body), "{" HI ",%s}", table[i].fields);
        expect_told(&w, CHAT, body, table[i].grammar, table[i].triggers);
    }
    world_stop(&w);
}

/* Grammars that take longer than the loop may are compiled on the pool, and only once. */
Test(constrain, what_was_compiled_is_remembered) {
#define LONG FORMAT(NAMED(R"({"type":"string","pattern":"^([a-z]{1,99}[0-9]{1,99}){99}$"})"))
    static const char body[] = "{" HI "," LONG "}",
                      same[] = "{" HI R"(,"cache_salt":"s",)" LONG "}";
    static const struct {
        const char *body;
        uint64_t n_jobs;
    } rows[] = {{body, 1}, {body, 0}, {same, 1}, {same, 0}, {body, 0}};
    struct jobs_stats before, after;
    struct world w;
    struct reply r;

    started(&w);
    w.port.script = "ok";
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        jobs_stats(w.api->env.pool.jobs, &before);
        world_ask(&w, CHAT, rows[i].body, &r);
        jobs_stats(w.api->env.pool.jobs, &after);
        cr_expect_eq(r.status, 200, "%s", r.body.data);
        cr_expect_eq(after.n_done - before.n_done, rows[i].n_jobs, "request %zu", i);
        cr_expect_eq(w.port.r[i].m.grammar.len, w.port.r[0].m.grammar.len);
        reply_deinit(&r);
    }
    world_stop(&w);
}

Test(constrain, reasoning_may_come_first) {
    const struct {
        const char *source, *grammar, *triggers;
    } table[] = {
        {HERMES("{% if false %} </think> {% endif %}<think>\n"),
         R"({"sequence":[{"regex":"[ \\n]{0,4}"},{"regex":"a","param":"guided_regex"}]})",
         R"({"after":["</think>"],"required":true})"},
        {HERMES("{% if false %} </think> {% endif %}<think>\n\n</think>\n\n"),
         R"({"regex":"a","param":"guided_regex"})", ""},
        {HERMES("{% if false %} </think> {% endif %}"),
         R"({"sequence":[{"repeat":{"sequence":[{"literal":"<think>"},{"free_text":"</)"
         R"(think>"},{"literal":"</think>"}]},"min":0,"max":1},{"regex":"[ )"
         R"(\\n]{0,4}"},{"regex":"a","param":"guided_regex"}]})",
         ""},
        {"{{ messages[0].content }}{% if false %} <|open|> <|close|> argument 'think' {% endif %}",
         R"({"sequence":[{"repeat":{"sequence":[{"literal":"<|open|>think<|sep|>"},)"
         R"({"free_text":"<|)"
         R"(close|>think<|sep|>"},{"literal":"<|close|>think<|sep|>"}]},)"
         R"("min":0,"max":1},{"regex":")"
         "[ "
         R"(\\n]{0,4}"},{"sequence":[{"repeat":{"literal":"<|open|>response<|sep|>"},"min":0,")"
         R"(max":1},{"regex":"a","param":"guided_regex"},)"
         R"({"repeat":{"literal":"<|close|>response<|)"
         R"(sep|>"},"min":0,"max":1}]}]})",
         ""},
        {"{{ messages[0].content }}{% if false %} <|channel|> <|message|> {% endif "
         "%}<|start|>assistant",
         R"({"sequence":[{"repeat":{"sequence":[{"literal":"<|channel|>analysis<|message|>"},{")"
         R"(free_text":"<|end|>"},{"literal":"<|end|><|start|>assistant"}]},"min":0,"max":1},{")"
         R"(sequence":[{"literal":"<|channel|>final<|message|>"},{"regex":"a","param":"guided_)"
         R"(regex"}]}]})",
         ""},
        /* the prompt has opened it */
        {"{{ messages[0].content }}{% if false %} -> tool/function_call {% endif "
         "%}<|im_start|>assistant/think{{ '\n' }}",
         R"({"sequence":[{"literal":"\n"},{"regex":"a","param":"guided_regex"}]})",
         R"({"after":["<|im_end|>\n<|im_start|>assistant"],"required":true})"},
        {"{{ messages[0].content }}{% if false %} <atem:function_calls> {% endif "
         "%}<|start|>assistant",
         R"({"sequence":[{"repeat":{"sequence":[{"literal":" )"
         R"(to=self<|message|>"},{"free_text":"<|eom|>"},)"
         R"({"literal":"<|eom|><|start|>assistant"}]},)"
         R"("min":0,"max":1},{"sequence":[{"literal":" )"
         R"(to=user<|message|>"},{"regex":"a","param":"guided_regex"}]}]})",
         ""},
    };

    for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
        struct world w;

        with_template(&w, table[i].source);
        expect_told(&w, CHAT, "{" HI R"(,"guided_regex":"a"})", table[i].grammar,
                    table[i].triggers);
        world_stop(&w);
    }
}

/* At the beginning of a message a call may lack its marker: llama3's object, the rest of harmony's
 * header. */
Test(constrain, calls_that_begin_a_message_are_held) {
    const struct {
        const char *source, *triggers;
    } table[] = {
        {"{{ tools | tojson }}{{ messages[0].content }}{% if false %} <|python_tag|> "
         R"("parameters": {% endif %})",
         R"({"after":["<|python_tag|>"],"repeat":true,"start":[{"text":"{\"name\": \"get\", )"
         R"(\"parameters\":","held":"{\"name\": \"get\", )"
         R"(\"parameters\":"},{"text":"{\"name\": \"now\", )"
         R"(\"parameters\":","held":"{\"name\": \"now\", \"parameters\":"}]})"},
        {"{{ tools | tojson }}{{ messages[0].content }}{% if false %} <|channel|> <|message|> {% "
         "endif %}"
         "<|start|>assistant",
         R"({"after":["<|channel|>commentary to=functions.","<|start|>assistant )"
         R"(to=functions.","<|channel|>analysis )"
         R"(to=functions."],"repeat":true,)"
         R"("quiet":{"open":"<|channel|>analysis<|message|>","close":)"
         R"("<|end|>","now":false},"start":[" to=functions."]})"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
        struct reply r;
        struct world w;

        with_template(&w, table[i].source);
        w.port.script = "ok";
        world_ask(&w, "/v1/chat/completions", "{" HI "," TOOLS "}", &r);
        cr_assert_eq(r.status, 200);
        cr_expect_str_eq(w.port.r[0].triggers, table[i].triggers, "%s", w.port.r[0].triggers);
        reply_deinit(&r);
        world_stop(&w);
    }
}

Test(constrain, calls_in_reasoning_are_text) {
    const struct {
        const char *source, *triggers;
    } table[] = {
        {HERMES("{% if false %} </think> {% endif %}"),
         R"({"after":["<tool_call>"],"repeat":true,"quiet":{"open":"<think>","close":"</)"
         R"(think>","now":false}})"},
        {HERMES("{% if false %} </think> {% endif %}<think>\n"),
         R"({"after":["<tool_call>"],"repeat":true,"quiet":{"open":"<think>","close":"</)"
         R"(think>","now":true}})"},
        {HERMES("{% if false %} </think> {% endif %}<think>\n\n</think>\n\n"), REPEAT},
    };

    for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
        struct world w;

        with_template(&w, table[i].source);
        expect_told(&w, CHAT, "{" HI "," TOOLS "}", AFTER(GET "," NOW), table[i].triggers);
        world_stop(&w);
    }
}

/* In each API, also where the client's list of tools is not the one that is read. */
Test(constrain, the_message_names_the_tool) {
#define BAD R"({"type":"object","properties":{"a":{"type":"string","pattern":"("}}})"
#define CLAUDE_TOOL(type, schema)                                                                  \
    R"({"name":"f","strict":true,"input_schema":{"type":")" type R"(")" schema "}}"
    const struct {
        const char *path, *tools, *message;
    } table[] = {
        {CHAT, TOOL("get", R"(,"strict":true)" SCHEMA_OF(BAD)),
         R"(function \"get\": #/properties/a/pattern: )"},
        {CHAT, TOOL("get", R"(,"strict":true,"parameters":{"type":"string"})"),
         R"(function \"get\": tools[0].function.parameters: a type)"},
        {"/v1/messages",
         R"({"type":"web_search_20250305","name":"w"},)" CLAUDE_TOOL(
             "object", R"(,"properties":{"a":{"type":"string","pattern":"("}})"),
         R"(function \"f\": #/properties/a/pattern: )"},
        {"/v1/messages", CLAUDE_TOOL("string", ""), R"(function \"f\": input_schema: a type)"},
    };
    struct world w;
    struct reply r;
    char body[1000];

    with_template(&w, HERMES(""));
    for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
        snprintf(body, sizeof(body), "{" HI R"(,"model":"tiny","max_tokens":9,"tools":[%s]})",
                 table[i].tools);
        world_ask(&w, table[i].path, body, &r);
        cr_expect_eq(r.status, 400);
        cr_expect(strstr(r.body.data, table[i].message), "%s: %s", body, r.body.data);
        reply_deinit(&r);
    }
    world_stop(&w);
}

Test(constrain, what_cannot_be_called_is_named) {
    const struct {
        const char *fields, *param, *code;
    } table[] = {
        {R"("tool_choice":"required")", "tool_choice", "invalid_value"},
        {R"("tool_choice":"maybe")", "tool_choice", "invalid_value"},
        {CHOICE("{}"), "tool_choice", "invalid_value"},
        {CHOICE(R"({"type":"function"})"), "tool_choice", "invalid_value"},
        {CHOICE(R"({"type":"function","function":{"name":"what"}})"), "tool_choice",
         "invalid_value"},
        {CHOICE(R"({"type":"custom","custom":{"name":"x"}})"), "tool_choice", "invalid_value"},
        {CHOICE(R"({"type":"allowed_tools","mode":"never"})"), "tool_choice.allowed_tools.mode",
         "invalid_value"},
        {CHOICE(R"({"type":"allowed_tools","tools":[]})"), "tool_choice.allowed_tools.tools",
         "invalid_value"},
        {CHOICE(R"({"type":"allowed_tools","tools":[1]})"), "tool_choice.allowed_tools.tools[0]",
         "invalid_value"},
        {CHOICE(R"({"type":"allowed_tools","tools":[{"type":"function","name":"what"}]})"),
         "tool_choice.allowed_tools.tools[0]", "invalid_value"},
        {R"("tools":[)" TOOL("get", R"(,"strict":true)" SCHEMA_OF(R"({"$dynamicRef":"#"})")) "]",
         "tools[0].function.parameters", "grammar_unsupported"},
    };
    struct world w;
    char body[1000];

    with_template(&w, HERMES(""));
    for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
        snprintf(body, sizeof(body), "{" HI ",%s}", table[i].fields);
        expect_refused(&w, CHAT, body, table[i].param, table[i].code);
    }
    cr_expect_eq(w.port.n, 0, "nothing of it reached the worker");
    world_stop(&w);
}

/* The beginning of a forced call that max_tokens cuts off is not content. */
Test(constrain, a_forced_call_that_is_cut_is_no_text) {
    struct world w;

    with_template(&w, HERMES(""));
    for (int forced = 0; forced < 2; forced++) {
        struct reply r;
        int fd = world_connect(&w);

        world_post(&w, fd, CHAT,
                   forced ? "{" HI "," CHOICE(R"("required")") "}" : "{" HI "," TOOLS "}");
        while (w.port.n == (uint32_t)forced)
            world_turn(&w);
        fake_accept(&w.port, (uint32_t)forced);
        fake_tokens(&w.port, (uint32_t)forced,
                    "<tool_call>\n"
                    R"({"name": "ge)");
        fake_finish(&w.port, (uint32_t)forced, FINISH_LENGTH);
        world_receive(&w, fd, &r);
        cr_expect(strstr(r.body.data, forced ? R"("content":"")" : R"("content":"<tool_call>\n)"),
                  "%s", r.body.data);
        cr_expect(strstr(r.body.data, R"("finish_reason":"length")"));
        reply_deinit(&r);
        world_drop(&w, fd);
    }
    world_stop(&w);
}

/* The front compiles without a vocabulary, so only the worker may find that a grammar is too
 * large. */
Test(constrain, what_the_worker_finds_wrong_is_named_as_well) {
    struct world w;
    struct reply r;
    struct err why;

    started(&w);
    w.port.hold = true;
    int fd = world_connect(&w);
    world_post(&w, fd, "/v1/completions", R"({"prompt":"a","guided_regex":"[ab]c"})");
    world_turns(&w, 5);
    cr_assert_eq(w.port.n, 1u);
    err_set_code(&why, 400, "grammar_too_complex", "guided_regex", "too many readings");
    fake_refuse(&w.port, 0, &why);
    world_receive(&w, fd, &r);
    cr_expect_eq(r.status, 400);
    cr_expect(strstr(r.body.data, R"("message":"too many )"
                                  R"(readings","type":"invalid_request_error","param":"guided_)"
                                  R"(regex","code":"grammar_too_complex")"),
              "%s", r.body.data);
    reply_deinit(&r);
    world_drop(&w, fd);
    world_stop(&w);
}

/* Returns whether the submit has SUBMIT_COMPLETE. */
static bool completes(struct world *w, const char *more) {
    struct reply r;
    char body[600];

    snprintf(body, sizeof(body), R"({"messages":[{"role":"user","content":"a"}]%s})", more);
    w->port.script = "ok";
    world_ask(w, CHAT, body, &r);
    cr_assert_eq(r.status, 200, "%s: %s", body, r.body.data);
    bool is = w->port.r[w->port.n - 1].m.flags & SUBMIT_COMPLETE;

    reply_deinit(&r);
    return is;
}

Test(constrain, output_is_complete_unless_the_config_or_the_request_says_otherwise) {
    struct world w;

    for (int on = 0; on < 2; on++) {
        world_init(&w);
        w.opts.complete_output = on;
        world_start(&w);
        cr_expect_not(completes(&w, ""));
        cr_expect_eq(completes(&w, "," FORMAT(NAMED(SCHEMA))), on);
        cr_expect_not(completes(&w, R"(,"complete_output":false,)" FORMAT(NAMED(SCHEMA))));
        cr_expect(completes(&w, R"(,"complete_output":true,)" FORMAT(NAMED(SCHEMA))));
        expect_refused(&w, CHAT,
                       R"({"messages":[{"role":"user","content":"a"}],"complete_output":1})",
                       "complete_output", "invalid_value");
        world_stop(&w);
    }
}

/* Copies @text with @pattern for each '@'. */
static void replace_at(char *out, size_t size, const char *text, const char *pattern) {
    size_t n = 0;

    for (; *text && n < size; text++)
        n += (size_t)snprintf(out + n, size - n, *text == '@' ? "%s" : "%.1s",
                              *text == '@' ? pattern : text);
    cr_assert_lt(n, size);
}

/* What is left out of schemas stands in a header, as a list that is short whatever the client's
 * names are, in streams as well. */
Test(constrain, the_answer_says_what_is_not_enforced) {
    const char *pattern = R"({"type":"string","pattern":"\\bx"})";
    const struct {
        const char *properties, *header;
    } table[] = {
        {R"("a":{"type":"string"})", ""},
        {R"("a":@)", "get#/properties/a/pattern"},
        {R"("a, \r\n%/b":@)", "get#/properties/a%2C%20%0D%0A%25~1b/pattern"},
        {R"("a":@,"b":{"type":"array","items":@})",
         "get#/properties/a/pattern, get#/properties/b/items/pattern"},
    };
    struct world w;
    char body[2000], properties[500], value[1000];
    struct reply r;

    with_template(&w, HERMES(""));
    for (size_t i = 0; i < 2 * ARRAY_SIZE(table); i++) {
        replace_at(properties, sizeof(properties), table[i / 2].properties, pattern);
        snprintf(body, sizeof(body),
                 R"({"stream":%s,"messages":[{"role":"user","content":"hi"}],"tools":[)" TOOL(
                     "get", SCHEMA_OF(R"({"type":"object","properties":{%s}})")) "]}",
                 i % 2 ? "true" : "false", properties);
        w.port.script = "ok";
        world_ask(&w, "/v1/chat/completions", body, &r);
        cr_expect_eq(r.status, 200, "%s", r.body.data);
        cr_expect_str_eq(reply_header(&r, "X-Weft-Loosened", value, sizeof(value)),
                         table[i / 2].header, "%s, not %s", value, table[i / 2].header);
        reply_deinit(&r);
    }
    world_stop(&w);
}

/* Messages of a WebSocket have no head. */
Test(constrain, a_websocket_is_told_in_the_first_event) {
    const char *body = R"({"type":"response.create","input":"hi","tools":[{"type":"function",)"
                       R"("name":"get","strict":false,"parameters":{"type":"object",)"
                       R"("properties":{)"
                       R"("a":{"type":"string","pattern":"\\bx"}}}}]})";
    CLEANUP(buf_deinit) struct buf seen = {.max = 1 << 20};
    struct world w;

    world_init(&w);
    world_use_template(&w, HERMES(""), strlen(HERMES("")));
    w.opts.max_stored = 10;
    w.opts.stored_ttl_s = 60;
    w.opts.stored_bytes = 1 << 20;
    w.port.script = "ok";
    world_start(&w);
    int fd = world_websocket(&w, "/v1/responses");
    world_message(&w, fd, body);
    cr_assert(world_read_until(&w, fd, &seen, "response.in_progress"));
    cr_expect(strstr(seen.data, R"(,"weft":{"loosened":"get#/properties/a/pattern"}})"), "%s",
              seen.data);
    cr_assert(world_read_until(&w, fd, &seen, "response.completed"));
    world_drop(&w, fd);
    world_stop(&w);
}

Test(constrain, many_places_are_counted) {
    struct buf body = {.max = 1 << 16};
    char value[1000];
    struct world w;
    struct reply r;

    buf_add_str(&body, R"({"messages":[{"role":"user","content":"hi"}],)"
                       R"("tools":[{"type":"function",)"
                       R"("function":{"name":"get","parameters":{"type":"object",)"
                       R"("properties":{)");
    for (int i = 0; i < 30; i++)
        buf_printf(&body, R"(%s"a%d":{"pattern":"\\bx"})", i ? "," : "", i);
    buf_add_str(&body, "}}}}]}");
    with_template(&w, "{% if tools %}{{ messages[0].content }}<tool_call>{% endif %}");
    w.port.script = "ok";
    world_ask(&w, "/v1/chat/completions", body.data, &r);
    cr_expect_eq(r.status, 200, "%s", r.body.data);
    reply_header(&r, "X-Weft-Loosened", value, sizeof(value));
    cr_expect_lt(strlen(value), 256);
    cr_expect(strncmp(value, "get#/properties/a0/pattern, get#/properties/a1/pattern, ", 56) == 0,
              "%s", value);
    cr_expect(strstr(value, " more") && atoi(strstr(value, " and ") + 5) > 20, "%s", value);
    reply_deinit(&r);
    buf_deinit(&body);
    world_stop(&w);
}
