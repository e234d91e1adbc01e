/* Prompts that requests of /v1/responses become, and refusals with their fields. */

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "api/responses/call_table.h"
#include "base/rng.h"
#include "responses_support.h"

#define USER "<|im_start|>user\n"
#define END "<|im_end|>"
#define SAYS "<|im_start|>assistant\n"
#define ANSWER "<|im_start|>assistant"

/* Sends {FIELDS}; the prompt must be @want. */
static void becomes(struct world *w, const char *fields, const char *want) {
    struct reply r;

    responses_ask(w, fields, "x", &r);
    cr_expect_eq(r.status, 200, "%s: %s", fields, r.body.data);
    if (r.status == 200)
        cr_expect_str_eq(responses_prompt(w), want);
    reply_deinit(&r);
}

#define SAID(text) R"({"role":"user","content":")" text R"("})"
#define CALLED(id, name, args)                                                                     \
    R"({"type":"function_call","call_id":")" id R"(","name":")" name R"(","arguments":")" args     \
    R"("})"
#define RESULT(id, text)                                                                           \
    R"({"type":"function_call_output","call_id":")" id R"(","output":")" text R"("})"

Test(input, messages_of_every_form) {
    struct world w;

    responses_start(&w);
    becomes(&w, R"("input":"hi")", USER "hi" END ANSWER);
    becomes(&w, R"("input":[)" SAID("hi") "]", USER "hi" END ANSWER);
    becomes(&w,
            R"("input":[{"type":"message","id":"msg_1","role":"user","content":[{"type":"input_)"
            R"(text","text":"a"},{"type":"input_text","text":"b"}]},{"type":"message","role":")"
            R"(assistant","phase":"commentary","content":[{"type":"output_text","text":"c",")"
            R"(annotations":[]},{"type":"refusal","refusal":"d"}]},)" SAID("e") "]",
            USER "a\nb" END SAYS "c\nd" END USER "e" END ANSWER);
    world_stop(&w);
}

Test(input, what_comes_first_from_the_system_is_one_message) {
    struct world w;

    responses_start(&w);
    becomes(&w,
            R"("instructions":"I","input":[{"role":"developer","content":"D"},{"role":"system",")"
            R"(content":"S"},)" SAID("a") R"(,{"role":"developer","content":"L"}])",
            "<|im_start|>system\nI\n\nD\n\nS" END USER "a" END "<|im_start|>system\nL" END ANSWER);
    becomes(&w, R"("instructions":"I","input":[])", "<|im_start|>system\nI" END ANSWER);
    world_stop(&w);
}

Test(input, a_turn_of_the_model_is_one_message) {
    struct world w;

    responses_start(&w);
    becomes(&w,
            R"("input":[)" SAID("a") R"(,{"type":"reasoning","summary":[],"content":[{"type":")"
                                     R"(reasoning_text","text":"R"}]},)"
                                     R"({"role":"assistant","content":")"
                                     R"(C"},)" CALLED("1", "f", R"({\"x\":1})") "," CALLED(
                                         "2", "g",
                                         "{}") "," RESULT("2", "two") "," RESULT("1", "one") "]",
            USER
            "a" END SAYS
            R"(<think>R</think>C<tool_call>f {"x": 1}</tool_call><tool_call>g {}</tool_call>)" END
            "<|im_start|>tool=g\ntwo" END "<|im_start|>tool=f\none" END ANSWER);
    becomes(&w,
            R"("input":[)" SAID(
                "a") R"(,{"role":"assistant","content":"C"},{"role":"assistant","content":)"
                     R"("D"},)" CALLED("1", "f", "{}") "," RESULT(
                         "1", "one") R"(,{"type":"reasoning","summary":[{"type":"summary_text",)"
                                     R"("text":"S"}]},)" CALLED("2", "f",
                                                                "{}") "," RESULT("2", "two") "]",
            USER
            "a" END SAYS "C\nD<tool_call>f {}</tool_call>" END "<|im_start|>tool=f\none" END SAYS
            "<think>S</think><tool_call>f {}</tool_call>" END "<|im_start|>tool=f\ntwo" END ANSWER);
    world_stop(&w);
}

Test(input, files_of_the_past_become_notes) {
    struct world w;

    responses_start(&w);
    becomes(&w,
            R"("input":[{"role":"user","content":[{"type":"input_text","text":"a"},{"type":"input_)"
            R"(file","file_data":"x"}]},)" SAID("b") "]",
            USER "a\n(An image or file, which this model cannot see.)" END USER "b" END ANSWER);
    world_stop(&w);
}

Test(input, reasoning_of_other_services_is_left_out) {
    struct world w;

    responses_start(&w);
    becomes(&w,
            R"("input":[)" SAID("a") R"(,{"type":"reasoning","summary":[],"encrypted_content":")"
                                     R"(gAAAAAB"},{"role":"assistant",)"
                                     R"("content":"C"},)" SAID("b") "]",
            USER "a" END SAYS "C" END USER "b" END ANSWER);
    becomes(&w,
            R"("input":[)" SAID(
                "a") R"(,{"type":"reasoning","summary":[{"type":"summary_text",)"
                     R"("text":"S"}],"encrypted_)"
                     R"(content":"weft1.w6kh"},{"role":"assistant","content":"C"},)" SAID("b") "]",
            USER "a" END SAYS "<think>\xC3\xA9!</think>C" END USER "b" END ANSWER);
    world_stop(&w);
}

Test(input, outputs_of_tools_are_text) {
    struct world w;

    responses_start(&w);
    becomes(&w,
            R"("input":[)" CALLED(
                "1", "f", "{}") R"(,{"type":"function_call_output","call_id":"1",)"
                                R"("output":[{"type":"input_text")"
                                R"(,"text":"a"},{"type":"input_image","image_url":"data:"}]}])",
            SAYS
            "<tool_call>f {}</tool_call>" END
            "<|im_start|>tool=f\na\n(An image or file, which this model cannot see.)" END ANSWER);
    becomes(&w,
            R"("input":[)" CALLED(
                "1", "f", "{}") R"(,{"type":"function_call_output",)"
                                R"("call_id":"1","output":[{"type":")"
                                R"(input_text","text":"sunny"},{"type":"input_text","text":", )"
                                R"(72F"},{"type":"input_image",)"
                                R"("image_url":"data:"},{"type":"input_)"
                                R"(text","text":"b"}]}])",
            SAYS "<tool_call>f {}</tool_call>" END "<|im_start|>tool=f\nsunny, 72F\n"
                 "(An image or file, which this model cannot see.)\nb" END ANSWER);
    becomes(&w,
            R"("input":[{"type":"custom_tool_call","call_id":"1","name":"p","input":"a\n"},{"type")"
            R"(:"custom_tool_call_output","call_id":"1","output":"ok"},)"
            R"({"type":"local_shell_call",")"
            R"(id":"l","call_id":"2","status":"completed",)"
            R"("action":{"type":"exec","command":["ls"]})"
            R"(},{"type":"local_shell_call_output","id":"2","output":"x"}])",
            SAYS R"(<tool_call>p {"input": "a\n"}</tool_call>)" END
                 "<|im_start|>tool=p\nok" END SAYS
                 R"(<tool_call>local_shell {"command": ["ls"]}</tool_call>)" END
                 "<|im_start|>tool=local_shell\nx" END ANSWER);
    becomes(&w,
            R"("input":[)" SAID("a") R"(,{"type":"web_search_call","id":"ws"},)"
                                     R"({"type":"function_call",)"
                                     R"("call_id":"1","namespace":"n",)"
                                     R"("name":"f","arguments":"{}"}])",
            USER "a" END SAYS "<tool_call>n__f {}</tool_call>" END ANSWER);
    world_stop(&w);
}

/* An agent cannot take back what its tool has said, in whatever form. */
Test(input, no_output_is_refused) {
    static const char *const rows[][2] = {
        {R"(,"output":{"t":[1,"a,b"]})", R"({"t": [1, "a,b"]})"},
        {R"(,"output":7)", "7"},
        {R"(,"output":["a","b"])", R"(["a", "b"])"},
        {R"(,"output":[{"text":"a"}])", R"([{"text": "a"}])"},
        {R"(,"output":[{"type":"input_text","text":"a"},"b",{"type":"text","text":null},5])",
         "ab5"},
        {R"(,"output":{"type":"input_text","text":"a"})", "a"},
        {R"(,"output":[{"type":"input_text","text":"a"},{"type":"row","n":1},)"
         R"({"type":"encrypted_content","encrypted_content":"b"}])",
         "a\n"
         R"({"type": "row", "n": 1})"
         "\n(A part that this model cannot see.)"},
        {R"(,"output":null)", ""},
        {"", ""},
    };
    struct world w;
    char fields[400], want[400];

    responses_start(&w);
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        snprintf(fields, sizeof(fields),
                 R"("input":[%s,{"type":"function_call_output","call_id":"1"%s}])",
                 CALLED("1", "f", "{}"), rows[i][0]);
        snprintf(want, sizeof(want),
                 SAYS "<tool_call>f {}</tool_call>" END "<|im_start|>tool=f\n%s" END ANSWER,
                 rows[i][1]);
        becomes(&w, fields, want);
    }
    world_stop(&w);
}

/* Forms that are not OpenAI's, but have one meaning. */
Test(input, contents_and_calls_of_clear_meaning) {
    struct world w;

    responses_start(&w);
    becomes(&w,
            R"("input":[{"role":"user","content":["a",{"text":"b"}]},)"
            R"({"role":"assistant","content":null},{"role":"user","content":null},)"
            R"({"role":"user","content":{"type":"text","text":"c"}}])",
            USER "a\nb" END SAYS END USER END USER "c" END ANSWER);
    becomes(&w,
            R"("input":[{"type":"function_call","call_id":"1","name":"f","arguments":{"a":1}},)"
            R"({"type":"function_call","call_id":"2","name":"f","arguments":null},)"
            R"({"type":"function_call","call_id":"3","name":"f"},)"
            R"({"type":"function_call","call_id":"4","name":"f","arguments":[]}])",
            SAYS R"(<tool_call>f {"a": 1}</tool_call><tool_call>f {}</tool_call>)"
                 "<tool_call>f {}</tool_call><tool_call>f {}</tool_call>" END ANSWER);
    world_stop(&w);
}

Test(input, native_tools_come_back_as_they_were_called) {
    struct world w;

    responses_start(&w);
    becomes(&w,
            R"("input":[{"type":"shell_call","id":"s","call_id":"1","action":{"commands":["ls"],")"
            R"(timeout_ms":null,"max_output_length":9}},)"
            R"({"type":"shell_call_output","call_id":"1",")"
            R"(output":[{"stdout":"a\n","stderr":"b","outcome":{"type":"exit","exit_code":2}},{")"
            R"(stdout":"","stderr":"","outcome":{"type":"timeout"}}]},)"
            R"({"type":"apply_patch_call",")"
            R"(call_id":"2","operation":{"type":"delete_file","path":"p"}},{"type":"apply_patch_)"
            R"(call_output","call_id":"2","status":"failed"}])",
            SAYS R"(<tool_call>shell {"commands": ["ls"], "max_output_length": 9}</tool_call>)" END
                 "<|im_start|>tool=shell\na\nb\nexit code 2\ntimed out" END SAYS
                 R"(<tool_call>apply_patch {"type": "delete_file", "path": "p"}</tool_call>)" END
                 "<|im_start|>tool=apply_patch\nfailed" END ANSWER);
    becomes(&w, R"("input":"a","tools":[{"type":"shell","environment":{"type":"container_auto"}}])",
            USER "a" END ANSWER);
    world_stop(&w);
}

Test(input, tools_become_functions) {
    struct world w;

    responses_start(&w);
    becomes(&w,
            R"("input":"a","tools":[{"type":"function","name":"f",)"
            R"("description":"D","parameters":{")"
            R"(type":"object"},"strict":true},{"type":"custom","name":"p","description":"E",")"
            R"(format":{"type":"grammar","syntax":"lark","definition":"start: )"
            "/x/"
            R"("}},{"type":"image_generation"},{"type":"namespace","name":"n","tools":[{"type":")"
            R"(function","name":"g","parameters":null}]}])",
            R"(<|im_start|>tools[{"name": "f", "description": "D", "parameters": {"type": )"
            R"("object"}, "strict": true}][{"name": "p", "description": "E\n\nThe input must )"
            R"(follow this grammar (lark):\nstart: /x/", "parameters": {"type": "object", )"
            R"("properties": {"input": {"type": "string"}}, "required": ["input"], )"
            R"("additionalProperties": false}}][{"name": "n__g"}])" END USER "a" END ANSWER);
    world_stop(&w);
}

/* Tools in the forms of the other APIs are the same tools. */
Test(input, tools_have_the_form_of_any_api) {
    static const char *const tools[] = {
        R"({"type":"function","function":{"name":"f","description":"D","parameters":{)"
        R"("type":"object"}}})",
        R"({"name":"f","description":"D","parameters":{"type":"object"}})",
        R"({"name":"f","description":"D","input_schema":{"type":"object"}})",
        R"({"type":"custom","name":"f","description":"D","input_schema":{"type":"object"}})",
    };
    static const char *const choices[] = {R"("any")", R"({"type":"any"})",
                                          R"({"type":"function","function":{"name":"f"}})",
                                          R"({"type":"tool","name":"f"})"};
    struct world w;
    char fields[400];

    responses_start(&w);
    for (size_t i = 0; i < ARRAY_SIZE(tools); i++) {
        snprintf(fields, sizeof(fields), R"("input":"a","tools":[%s],"tool_choice":%s)", tools[i],
                 choices[i]);
        becomes(&w, fields,
                R"(<|im_start|>tools[{"name": "f", "description": "D", "parameters": {"type": )"
                R"("object"}}])" END USER "a" END ANSWER);
        cr_expect_gt(w.port.r[i].m.grammar.len, 0, "%s", fields);
        responses_expect(&w, fields, R"(<tool_call>{"name": "f", "arguments": {}}</tool_call>)",
                         "f{} completed");
    }
    becomes(&w, R"("input":"a","tools":[{"type":"custom","custom":{"name":"p"}}])",
            R"(<|im_start|>tools[{"name": "p", "parameters": {"type": "object", "properties": )"
            R"({"input": {"type": "string"}}, "required": ["input"], "additionalProperties": )"
            R"(false}}])" END USER "a" END ANSWER);
    world_stop(&w);
}

#define FN(name) R"({"type":"function","name":")" name R"(","parameters":{"type":"object"}})"
#define MORE_TOOLS(tools) R"({"type":"additional_tools","role":"developer","tools":[)" tools "]}"
#define SHOWN(name) R"([{"name": ")" name R"(", "parameters": {"type": "object"}}])"
#define FOUND(name) R"(<function>{"name":")" name R"(","parameters":{"type":"object"}}</function>)"
#define SEARCH                                                                                     \
    R"({"type":"tool_search","execution":"client","description":"S","parameters":{)"               \
    R"("type":"object"}})"
#define SEARCHED(tools)                                                                            \
    R"({"type":"tool_search_call","execution":"client","call_id":"1","arguments":{)"               \
    R"("query":"q"}},{"type":"tool_search_output","execution":"client","call_id":)"                \
    R"("1",)"                                                                                      \
    R"("tools":[)" tools "]}"

Test(input, items_bring_tools) {
    struct world w;

    responses_start(&w);
    becomes(&w, R"("input":[)" MORE_TOOLS(FN("f")) "," SAID("a") "]",
            "<|im_start|>tools" SHOWN("f") END USER "a" END ANSWER);
    becomes(&w,
            R"("input":[)" SAID("a") "," MORE_TOOLS(
                FN("f") R"(,{"type":"web_search"},{"type":"namespace","name":"n","tools":[)" FN(
                    "g") "]}") R"(],"tools":[)" FN("e") "," FN("f") "]",
            "<|im_start|>tools" SHOWN("e") SHOWN("f") SHOWN("n__g") END USER "a" END ANSWER);
    world_stop(&w);
}

Test(input, what_a_search_finds_is_described_in_its_result) {
    struct world w;

    responses_start(&w);
    becomes(
        &w,
        R"("input":[)" SAID("a") "," SEARCHED(
            FN("f") R"(,{"type":"namespace",)"
                    R"("name":"n","tools":[)" FN("g") "," FN("g") "]}") R"(],"tools":[)" SEARCH "]",
        R"(<|im_start|>tools[{"name": "tool_search", "description": "S", "parameters": {"type": )"
        R"("object"}}])" END USER "a" END SAYS
        R"(<tool_call>tool_search {"query": "q"}</tool_call>)" END
        "<|im_start|>tool=tool_search\n<functions>\n" FOUND(
            "f") "\n</functions>\n<functions>\n" FOUND("n__g") "\n</functions>\nn__g" END ANSWER);
    becomes(&w, R"("input":[)" SAID("a") "," SEARCHED("") "]",
            USER "a" END SAYS R"(<tool_call>tool_search {"query": "q"}</tool_call>)" END
                 "<|im_start|>tool=tool_search\nNo tools were found." END ANSWER);
    becomes(
        &w,
        R"("input":[)" SAID(
            "a") R"(,{"type":"tool_search_call","execution":"server",)"
                 R"("call_id":"c","arguments":null},)"
                 R"({"type":"tool_search_output","execution":"server","call_id":"c","tools":[]}])",
        USER "a" END ANSWER);
    /* a search that the service ran */
    becomes(&w,
            R"("input":[)" SAID(
                "a") R"(,{"type":"tool_search_call","execution":"server",)"
                     R"("call_id":null,"arguments":{)"
                     R"(}},{"type":"tool_search_output","call_id":null,"tools":[)" FN("f") "]}]",
            "<|im_start|>tools" SHOWN("f") END USER "a" END ANSWER);
    world_stop(&w);
}

/* A function may be named with or without its type; hosted tools are no choice of ours. */
Test(input, one_of_the_allowed_tools_is_called) {
    static const char *const allowed[] = {
        R"({"type":"function","name":"g"})",
        R"({"name":"g"})",
        R"({"type":"mcp","server_label":"s"},{"type":"function","name":"g"})",
    };
    struct world w;
    struct reply r;
    char fields[400];

    responses_start(&w);
    for (size_t i = 0; i < ARRAY_SIZE(allowed); i++) {
        snprintf(fields, sizeof(fields),
                 R"("input":"a","tools":[%s,%s],"tool_choice":{"type":"allowed_tools",)"
                 R"("mode":"required","tools":[%s]})",
                 FN("f"), FN("g"), allowed[i]);
        responses_ask(&w, fields, "x", &r);
        cr_expect_eq(r.status, 200, "%s: %s", fields, r.body.data);
        const char *grammar = w.port.r[i].grammar;
        cr_expect(strstr(grammar, R"("g")") && !strstr(grammar, R"("f")"), "%s", grammar);
        cr_expect_str_eq(w.port.r[i].triggers, "", "it must be called");
        reply_deinit(&r);
    }
    world_stop(&w);
}

Test(input, parameters_reach_the_worker) {
    struct world w;
    struct reply r;

    responses_start(&w);
    responses_ask(
        &w,
        R"("input":"a","model":"alias","max_output_tokens":7,)"
        R"("temperature":0.5,"top_p":0.25,"extra_body":{"seed":)"
        R"(9,"temperature":1,"model":"other"},"stop":"STOP","truncation":"auto","user":"u",)"
        R"("service_tier":"flex","store":false,")"
        R"(metadata":{"k":"v"},"include":["reasoning.encrypted_content"],)"
        R"("client_metadata":{"x":[]})"
        R"(,"reasoning":{"effort":"low","summary":null},"text":{"verbosity":"low"})",
        "x", &r);
    cr_expect_eq(r.status, 200, "%s", r.body.data);
    const struct submit *m = &w.port.r[0].m;
    cr_expect_eq(m->max_new, 7);
    cr_expect_eq(m->sampling.temperature, 0.5);
    cr_expect_eq(m->sampling.top_p, 0.25);
    cr_expect_eq(m->seed, 9);
    cr_expect(strstr(r.body.data, R"("metadata":{"k":"v"})"));
    cr_expect(strstr(r.body.data, R"("reasoning":{"effort":"low","summary":null})"));
    cr_expect(strstr(r.body.data, R"("store":false)"));
    cr_expect(strstr(r.body.data, R"("model":"tiny")"));
    reply_deinit(&r);
    responses_expect(&w, R"("input":"a","stop":"STOP")", "aSTOPb", "M<a> completed");
    world_stop(&w);
}

Test(input, tokens_are_counted) {
    struct world w;
    struct reply r;

    responses_start(&w);
    world_ask(&w, RESPONSES "/input_tokens", R"({"input":"hi"})", &r);
    reply_expect(&r, 200, R"({"object":"response.input_tokens","input_tokens":19})");
    world_ask(&w, RESPONSES "/input_tokens", R"({"input":[{}]})", &r);
    cr_expect_eq(r.status, 400);
    cr_expect(strstr(r.body.data, R"("param":"input[0].type")"), "%s", r.body.data);
    reply_deinit(&r);
    cr_expect_eq(w.port.n, 0);
    world_stop(&w);
}

Test(input, structured_output_is_a_grammar) {
    struct world w;
    struct reply r;

    responses_start(&w);
    responses_ask(&w,
                  R"("input":"a","text":{"format":{"type":"json_schema","name":"n","strict":true,")"
                  R"(schema":{"type":"object","properties":{"a":{"type":"integer"}},)"
                  R"("required":["a")"
                  R"(],"additionalProperties":false}}})",
                  R"({"a":1})", &r);
    cr_expect_eq(r.status, 200, "%s", r.body.data);
    cr_expect_gt(w.port.r[0].m.grammar.len, 0);
    reply_deinit(&r);
    responses_ask(&w, R"("input":"a","text":{"format":{"type":"text"}})", "x", &r);
    cr_expect_eq(r.status, 200, "%s", r.body.data);
    cr_expect_eq(w.port.r[1].m.grammar.len, 0);
    reply_deinit(&r);
    responses_ask(&w,
                  R"("input":"a","text":{"format":{"type":"json_schema","json_schema":{)"
                  R"("name":"n","schema":{"type":"object"}}}})",
                  "{}", &r);
    cr_expect_eq(r.status, 200, "%s", r.body.data);
    cr_expect_gt(w.port.r[2].m.grammar.len, 0);
    reply_deinit(&r);
    world_stop(&w);
}

/* ---- histories of other services ---- */

Test(input, calls_of_hosted_tools_are_calls_with_results) {
    struct world w;

    responses_start(&w);
    becomes(&w,
            R"("input":[)" SAID("a") R"(,{"type":"mcp_call","id":"mcp_1",)"
                                     R"("server_label":"loom","name":)"
                                     R"("twist","arguments":"{\"w\":1}","output":"one"}])",
            USER "a" END SAYS R"(<tool_call>loom__twist {"w": 1}</tool_call>)" END
                 "<|im_start|>tool=loom__twist\none" END ANSWER);
    becomes(&w, R"("input":[{"type":"mcp_call","name":"f","arguments":"{}","error":"broken"}])",
            SAYS "<tool_call>f {}</tool_call>" END "<|im_start|>tool=f\nbroken" END ANSWER);
    becomes(&w,
            R"("input":[{"type":"code_interpreter_call","id":"ci_1",)"
            R"("code":"1+1","outputs":[{"type")"
            R"(:"logs","logs":"2"},{"type":"image","url":"u"}]}])",
            SAYS R"(<tool_call>code_interpreter {"code": "1+1"}</tool_call>)" END
                 "<|im_start|>tool=code_interpreter\n2\n(An image or file, which this model "
                 "cannot see.)" END ANSWER);
    becomes(&w,
            R"("input":[{"type":"file_search_call","id":"fs_1","queries":["q"],"results":[{")"
            R"(filename":"a.txt","text":"t"}]}])",
            SAYS R"(<tool_call>file_search {"queries": ["q"]}</tool_call>)" END
                 "<|im_start|>tool=file_search\na.txt\nt" END ANSWER);
    becomes(
        &w,
        R"("input":[{"type":"computer_call","call_id":"c","action":{"type":"wait"}},{"type":")"
        R"(computer_call_output","call_id":"c",)"
        R"("output":{"type":"computer_screenshot","image_)"
        R"(url":"data:"}}])",
        SAYS
        R"(<tool_call>computer {"action": {"type": "wait"}}</tool_call>)" END
        "<|im_start|>tool=computer\n(An image or file, which this model cannot see.)" END ANSWER);
    becomes(&w,
            R"("input":[{"type":"program","call_id":"p","code":"x"},)"
            R"({"type":"program_output","call_)"
            R"(id":"p","result":"y"}])",
            SAYS R"(<tool_call>program {"code": "x"}</tool_call>)" END
                 "<|im_start|>tool=program\ny" END ANSWER);
    world_stop(&w);
}

Test(input, an_item_of_any_type_is_read) {
    const struct {
        const char *item, *said;
    } rows[] = {
        {R"({"type":"agent_message","author":"/root","recipient":"/)"
         R"(a","content":[{"type":"input_text","text":"go"}]})",
         USER "Message from /root:\ngo" END},
        {R"({"type":"agent_message","content":[{"type":"encrypted_content"}]})",
         USER "Message from another agent:\n(It cannot be read here.)" END},
        {R"({"type":"compaction","encrypted_content":"weft1.w6kh"})",
         USER "Summary of the conversation until here:\n\n\xC3\xA9!" END},
        {R"({"type":"compaction","id":"cmp","encrypted_content":"gAAAA"})",
         USER "Summary of the conversation until here:\n\n(It was written by another service and "
              "cannot be read here.)" END},
        {R"({"type":"mcp_approval_request","id":"r","name":"f","server_label":"s","arguments":"{}")"
         "}",
         SAYS "(Asked for approval to call f.)" END},
        {R"({"type":"mcp_approval_response","approval_request_id":"r",)"
         R"("approve":false,"reason":"no")"
         "}",
         USER "(The call was not approved.)\nno" END},
        {R"({"type":"mcp_list_tools","tools":[]})", USER "b" END},
        {R"({"type":"web_search_call","action":{"type":"search"}})", USER "b" END},
        {R"({"type":"image_generation_call","result":"iVBO"})", USER "b" END},
        {R"({"type":"of_next_year"})",
         SAYS "(An item of type of_next_year, which this model cannot see.)" END},
        {R"({"type":"of_next_year","content":[{"type":"new","text":"t"}]})", SAYS "t" END},
        {R"({"type":"of_next_year","role":"user","content":"u"})", USER "u" END},
        {R"({"role":"assistant","content":[{"type":"output_audio","data":""}]})",
         SAYS "(A part that this model cannot see.)" END},
    };
    struct world w;
    char fields[600], want[600];

    responses_start(&w);
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        bool silent = strcmp(rows[i].said, USER "b" END) == 0;

        snprintf(fields, sizeof(fields), R"("input":[)" SAID("a") ",%s," SAID("b") "]",
                 rows[i].item);
        snprintf(want, sizeof(want), USER "a" END "%s" USER "b" END ANSWER,
                 silent ? "" : rows[i].said);
        becomes(&w, fields, want);
    }
    world_stop(&w);
}

/* ---- refusals ---- */

/* A shell call and its output, whose first part begins with @part. */
#define SHELL_SAYS(part)                                                                           \
    R"({"type":"shell_call","call_id":"1","action":{}},)"                                          \
    R"({"type":"shell_call_output","call_id":"1","output":[)" part                                 \
    R"(,"outcome":{"type":"exit","exit_code":0}}]})"

Test(input, a_bad_field_is_named) {
    const struct {
        const char *fields, *param;
    } rows[] = {
        {R"("input":5)", "input"},
        {R"("input":[])", "input"},
        {R"("input":[5])", "input[0]"},
        {R"("input":[{"type":7}])", "input[0].type"},
        {R"("input":[{"type":"mcp_call"}])", "input[0].name"},
        {R"("input":[{"type":"additional_tools"}])", "input[0].tools"},
        {R"("input":[{"type":"additional_tools","tools":[{}]}])", "input[0].tools[0].type"},
        {R"("input":[{"type":"additional_tools","tools":[{"type":"function"}]}])",
         "input[0].tools[0].name"},
        {R"("input":[{"type":"tool_search_call","call_id":"1"}])", "input[0].arguments"},
        {R"("input":[{"type":"tool_search_output","call_id":"1","tools":[]}])", "input[0].call_id"},
        {R"("input":[{"type":"compaction","encrypted_content":"weft1.%%"}])",
         "input[0].encrypted_content"},
        {R"("input":[{}])", "input[0].type"},
        {R"("input":[)" SAID("a") R"(,{"role":"robot","content":""}])", "input[1].role"},
        {R"("input":[{"role":"user"}])", "input[0].content"},
        {R"("input":[{"role":"user","content":[{"type":"input_image"}]}])",
         "input[0].content[0].image_url"},
        {R"("input":[{"role":"user","content":[{"type":"input_text"}]}])",
         "input[0].content[0].text"},
        {R"("input":[{"role":"user","content":[5]}])", "input[0].content[0]"},
        {R"("input":[{"role":"user","content":{"a":1}}])", "input[0].content"},
        {R"("input":[{"type":"function_call","name":"f","arguments":"{}"}])", "input[0].call_id"},
        {R"("input":[{"type":"function_call","call_id":"1","arguments":"{}"}])", "input[0].name"},
        {R"("input":[{"type":"custom_tool_call","call_id":"1","name":"f"}])", "input[0].input"},
        {R"("input":[{"type":"local_shell_call","call_id":"1"}])", "input[0].action"},
        {R"("input":[)" RESULT("1", "x") "]", "input[0].call_id"},
        {R"("input":[)" SHELL_SAYS(R"({"stdout":{"a":1})") "]", "input[1].output"},
        {R"("input":[)" SHELL_SAYS(R"({"stdout":[1,2])") "]", "input[1].output"},
        {R"("input":[)" SHELL_SAYS(R"({"stdout":"a","stderr":[[]])") "]", "input[1].output"},
        {R"("input":[)" SHELL_SAYS(R"({"stdout":"a","stderr":5)") "]", "input[1].output"},
        {R"("input":[{"type":"reasoning","summary":[],"encrypted_content":"weft1.%%"}])",
         "input[0].encrypted_content"},
        {R"("input":[{"type":"item_reference","id":1}])", "input[0].id"},
        {R"("input":"a","instructions":[])", "instructions"},
        {R"("input":"a","tools":{})", "tools"},
        {R"("input":"a","tools":[{}])", "tools[0].type"},
        {R"("input":"a","tools":[{"type":"function"}])", "tools[0].name"},
        {R"("input":"a","tools":[{"type":"function","function":{}}])", "tools[0].name"},
        {R"("input":"a","tools":[{"name":"f","input_schema":[{}]}])", "tools[0].parameters"},
        {R"("input":"a","tools":[{"type":"function","name":"f","parameters":[{}]}])",
         "tools[0].parameters"},
        {R"("input":"a","tools":[{"type":"function","name":"f","strict":"true"}])",
         "tools[0].strict"},
        {R"("input":"a","tools":[{"type":"function","name":"f","description":7}])",
         "tools[0].description"},
        {R"("input":"a","tools":[{"type":"namespace","name":"n"}])", "tools[0].tools"},
        {R"("input":"a","tools":[{"type":"namespace","name":"n","tools":[{"type":"custom"}]}])",
         "tools[0].tools[0].name"},
        {R"("input":"a","tool_choice":5)", "tool_choice"},
        {R"("input":"a","tool_choice":"some")", "tool_choice"},
        {R"("input":"a","tool_choice":{"type":5})", "tool_choice.type"},
        {R"("input":"a","tool_choice":{"type":"function"})", "tool_choice.name"},
        {R"("input":"a","tool_choice":{"type":"function","function":{}})", "tool_choice.name"},
        {R"("input":"a","tool_choice":{"type":"any"})", "tool_choice"},
        {R"("input":"a","tool_choice":{"type":"allowed_tools"})", "tool_choice.tools"},
        {R"("input":"a","max_output_tokens":"x")", "max_output_tokens"},
        {R"("input":"a","max_output_tokens":0)", "max_output_tokens"},
        {R"("input":"a","max_tool_calls":-1)", "max_tool_calls"},
        {R"("input":"a","temperature":9)", "temperature"},
        {R"("input":"a","top_p":"x")", "top_p"},
        {R"("input":"a","stream":1)", "stream"},
        {R"("input":"a","stream_options":1)", "stream_options"},
        {R"("input":"a","extra_body":"x")", "extra_body"},
        {R"("input":"a","extra_body":{"top_p":"x"})", "top_p"},
        {R"("input":"a","parallel_tool_calls":1)", "parallel_tool_calls"},
        {R"("input":"a","reasoning":"low")", "reasoning"},
        {R"("input":"a","reasoning":{"effort":5})", "reasoning.effort"},
        {R"("input":"a","reasoning":{"summary":5})", "reasoning.summary"},
        {R"("input":"a","text":5)", "text"},
        {R"("input":"a","text":{"format":{}})", "text.format.type"},
        {R"("input":"a","store":"yes")", "store"},
        {R"("input":"a","metadata":{"a":1})", "metadata"},
        {R"("input":"a","include":{})", "include"},
        {R"("input":"a","include":[5])", "include"},
        {R"("input":"a","truncation":"some")", "truncation"},
        {R"("input":"a","previous_response_id":5)", "previous_response_id"},
        {R"("input":"a","background":1)", "background"},
    };
    struct world w;

    responses_start(&w);
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        responses_refused(&w, rows[i].fields, 400, "invalid_value", rows[i].param);
    responses_refused(&w, R"("model":"tiny")", 400, "missing_required_parameter", "input");
    responses_refused(&w, R"("input":"a","input":"b")", 400, "duplicate_key", "input");
    responses_refused(&w, R"("input":"a","model":"x")", 404, "model_not_found", "model");
    responses_refused(&w, R"("input":"a","previous_response_id":"resp_x")", 404,
                      "previous_response_not_found", "previous_response_id");
    cr_expect_eq(w.port.n, 0, "nothing reached the worker");
    world_stop(&w);
}

Test(input, what_cannot_be_had_is_refused) {
    const char *const chat[][3] = {
        {"max_tokens", "5", "max_output_tokens"},
        {"max_completion_tokens", "5", "max_output_tokens"},
        {"messages", "[]", "input"},
        {"response_format", "{}", "text.format"},
        {"reasoning_effort", R"("low")", "reasoning.effort"},
        {"functions", "[]", "tools"},
        {"function_call", R"("auto")", "tool_choice"},
        {"logprobs", "true", "top_logprobs"},
    };
    struct world w;
    char fields[200];

    responses_start(&w);
    for (size_t i = 0; i < ARRAY_SIZE(chat); i++) {
        snprintf(fields, sizeof(fields), R"("input":"a","%s":%s)", chat[i][0], chat[i][1]);
        responses_refused(&w, fields, 400, "unsupported_parameter", chat[i][2]);
    }
    responses_refused(&w, R"("input":"a","prompt":{"id":"p"})", 400, "unsupported_parameter",
                      "prompt");
    responses_refused(&w, R"("input":"a","top_logprobs":21)", 400, "invalid_value", "top_logprobs");
    responses_refused(&w, R"("input":"a","context_management":[{"type":"x"}])", 400,
                      "invalid_value", "context_management");
    responses_refused(
        &w, R"("input":"a","context_management":[{"type":"compaction","compact_threshold":-1}])",
        400, "invalid_value", "context_management.compact_threshold");
    cr_expect_eq(w.port.n, 0);
    responses_expect(&w,
                     R"("input":"a","background":false,"top_logprobs":0,"conversation":null,"max_)"
                     R"(tokens":null,"unheard_of":1)",
                     "x", "M<x> completed");
    world_stop(&w);
}

/* Below its threshold it has no effect; above it the client must compact its context. */
Test(input, context_management_is_kept_or_refused) {
#define COMPACT(n) R"("context_management":[{"type":"compaction","compact_threshold":)" n "}]"
    struct world w;

    responses_start(&w);
    responses_refused(&w, R"("input":"a",)" COMPACT("10"), 400, "context_length_exceeded",
                      "context_management");
    responses_expect(&w, R"("input":"a",)" COMPACT("1000"), "x", "M<x> completed");
    char fields[160];
    uint32_t n = w.port.r[0].m.n_prompt;
    snprintf(fields, sizeof(fields), R"("input":"a",)" COMPACT("%u"), n);
    responses_refused(&w, fields, 400, "context_length_exceeded", "context_management");
    snprintf(fields, sizeof(fields), R"("input":"a",)" COMPACT("%u"), n + 1);
    responses_expect(&w, fields, "x", "M<x> completed");
    responses_expect(&w, R"("input":[{"type":"compaction_trigger"}],)" COMPACT("10"), "x",
                     "K<weft1.eA==> completed");
    world_stop(&w);
}

Test(input, too_long_is_context_length_exceeded) {
    struct world w;
    CLEANUP(buf_deinit) struct buf b = {.max = 1 << 20};
    struct reply r;

    responses_start(&w);
    buf_add_str(&b, R"("input":")");
    for (int i = 0; i < 4000; i++)
        buf_add_str(&b, "words ");
    buf_add_str(&b, R"(")");
    responses_refused(&w, b.data, 400, "context_length_exceeded", "input");
    responses_ask(&w, b.data, "x", &r);
    cr_expect(!strstr(r.body.data, "messages"), "%s", r.body.data);
    reply_deinit(&r);
    world_stop(&w);
}

Test(input, markers_in_user_text_are_text) {
    struct world w;
    struct reply r;

    responses_start(&w);
    responses_ask(&w, R"("input":"<|im_end|>","instructions":"<|im_end|>")", "x", &r);
    cr_expect_eq(r.status, 200);
    const struct submit *m = &w.port.r[0].m;
    uint32_t n = 0;
    for (uint32_t i = 0; i < m->n_prompt; i++)
        n += m->tokens[i] == TINY_END;
    cr_expect_eq(n, 2, "%u", n);
    reply_deinit(&r);
    world_stop(&w);
}

/* Of equal ids the last call counts, however many there are. */
Test(call_table, finds_what_a_naive_list_finds) {
    static const uint64_t key[2] = {1, 2};
    static char ids[5000][8];
    struct call_table t;
    struct rng rng = {3};

    call_table_init(&t, key);
    cr_expect_null(call_table_find(&t, "x", 1));
    for (size_t i = 0; i < ARRAY_SIZE(ids); i++) {
        snprintf(ids[i], sizeof(ids[i]), "c%u", (unsigned)rng_below(&rng, 3000));
        cr_assert_eq(call_table_add(&t, ids[i], ids[i]), 0); /* the name identifies the call */
        char wanted[8];
        snprintf(wanted, sizeof(wanted), "c%u", (unsigned)rng_below(&rng, 3000));
        const char *last = NULL;
        for (size_t k = 0; k <= i; k++)
            last = strcmp(ids[k], wanted) == 0 ? ids[k] : last;
        cr_assert_eq(call_table_find(&t, wanted, strlen(wanted)), last);
    }
    cr_expect_null(call_table_find(&t, "c", 1));
    call_table_deinit(&t);
}
