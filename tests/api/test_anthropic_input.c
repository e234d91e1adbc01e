/*
 * Requests of /v1/messages: the prompts and submits that they become, and refusals with their
 * fields. The chat template in this file writes all its input.
 */

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "stream.h"
#include "tests/support/quotes.h"
#include "tiny.h"

#define MESSAGES "/v1/messages"
#define COUNT "/v1/messages/count_tokens"
#define SAY(messages) "\"messages\":[" messages "]"
#define USER(content) "{\"role\":\"user\",\"content\":" content "}"
#define ASSISTANT(content) "{\"role\":\"assistant\",\"content\":" content "}"
#define TEXT_BLOCK(text) "{\"type\":\"text\",\"text\":\"" text "\"}"
#define Q USER("\"q\"")

static const char dump[] =
    "{% for m in messages %}{{ m | tojson }}\n{% endfor %}{% if tools %}{{ tools | tojson }}"
    "{% endif %}{{ enable_thinking }}{{ thinking }}{{ reasoning_effort | default('') }}"
    "{% if add_generation_prompt %}>{% if think_first %}<think>\n{% endif %}{% endif %}"
    "{% if false %} </think> <tool_call> {% endif %}";

static void started(struct world *w) {
    world_init(w);
    world_use_template(w, dump, sizeof(dump) - 1);
    w->model.max_context = 16384;
    world_start(w);
}

static const char *text_of(const struct buf *b) {
    return b->data ? b->data : "";
}

/* Serves the request and returns the prompt that the worker got. */
static struct fake_request *serve(struct world *w, const char *fields, struct buf *prompt) {
    char body[6000];
    struct reply r;
    uint32_t i = w->port.n;

    snprintf(body, sizeof(body), "{\"model\":\"claude-x\",\"max_tokens\":20,%s}", fields);
    w->port.script = "ok";
    world_ask(w, MESSAGES, body, &r);
    cr_assert_eq(r.status, 200, "%s: %s", body, text_of(&r.body));
    cr_assert_eq(w->port.n, i + 1);
    reply_deinit(&r);
    buf_clear(prompt);
    tokenizer_decode(w->model.tokenizer, w->port.r[i].m.tokens, w->port.r[i].m.n_prompt, true,
                     prompt);
    return &w->port.r[i];
}

static void expect_prompt(struct world *w, const char *fields, const char *want) {
    CLEANUP(buf_deinit) struct buf prompt = {.max = 1 << 20};

    serve(w, fields, &prompt);
    cr_expect_str_eq(text_of(&prompt), want, "%s\n     gives %s\n    wanted %s", fields,
                     text_of(&prompt), want);
}

/* ---- prompts ---- */

#define OFF "FalseFalselow>" /* thinking is off, with the lowest effort */
#define SYSTEM_(text) "{\"role\": \"system\", \"content\": \"" text "\"}\n"
#define USER_(text) "{\"role\": \"user\", \"content\": \"" text "\"}\n"
#define CALLED(text)                                                                               \
    "{\"role\": \"assistant\", \"content\": \"" text                                               \
    "\", \"tool_calls\": [{\"id\": \"t1\", \"type\": \"function\", \"function\": {\"name\": "      \
    "\"f\", \"arguments\": {\"x\": [1]}}}]}\n"
#define RESULT(text)                                                                               \
    "{\"role\": \"tool\", \"content\": \"" text "\", \"name\": \"f\", \"tool_call_id\": \"t1\"}\n"
#define USE "{\"type\":\"tool_use\",\"id\":\"t1\",\"name\":\"f\",\"input\":{\"x\":[1]}}"
#define PDF "{\"type\":\"document\",\"source\":{\"type\":\"base64\",\"data\":\"JVBERg==\"}}"
#define GIVE(more) "{\"type\":\"tool_result\",\"tool_use_id\":\"t1\"" more "}"

Test(anthropic_input, turns_become_messages) {
    const struct {
        const char *fields, *prompt;
    } table[] = {
        {SAY(Q), USER_("q") OFF},
        {SAY(USER("[" TEXT_BLOCK("a") "," TEXT_BLOCK("b") "]")), USER_("a\\nb") OFF},
        {J(SAY(Q) ",'system':'s'"), SYSTEM_("s") USER_("q") OFF},
        {J(SAY(Q) ",'system':[{'type':'text','text':'s','cache_control':{'type':'ephemeral'}}"
                  "," TEXT_BLOCK("t") "]"),
         SYSTEM_("s\\nt") USER_("q") OFF},
        {J(SAY(Q) ",'system':[]"), USER_("q") OFF},
        {J(SAY(Q "," ASSISTANT("'a'") "," Q)),
         USER_("q") "{\"role\": \"assistant\", \"content\": \"a\"}\n" USER_("q") OFF},
        /* adjacent turns of one side are merged */
        {J(SAY(Q "," Q "," ASSISTANT("'a'") "," ASSISTANT("[" TEXT_BLOCK("b") "]") "," Q)),
         USER_("q\\nq") "{\"role\": \"assistant\", \"content\": \"a\\nb\"}\n" USER_("q") OFF},
        {J(SAY(Q ",{'role':'system','content':'now'}")), USER_("q\\nnow") OFF},
        /* calls and results */
        {J(SAY(Q "," ASSISTANT("[" TEXT_BLOCK("a") "," USE "]") "," USER(
             "[" GIVE(",'content':'r'") "," TEXT_BLOCK("well") "]"))),
         USER_("q") CALLED("a") RESULT("r") USER_("well") OFF},
        {J(SAY(Q "," ASSISTANT("[" USE "]") "," USER(
             "[" GIVE(",'content':[" TEXT_BLOCK("r") "," TEXT_BLOCK("s") "]") "]"))),
         USER_("q") CALLED("") RESULT("rs") OFF},
        {J(SAY(Q "," ASSISTANT("[" USE "]") "," USER("[" GIVE(
             ",'content':[" TEXT_BLOCK("r") ",{'type':'video'}," TEXT_BLOCK("s") "]") "]"))),
         USER_("q") CALLED("") RESULT("r\\n[video: left out, this model reads only text]\\ns") OFF},
        {SAY(Q "," ASSISTANT("[" USE "]") "," USER("[" GIVE("") "]")),
         USER_("q") CALLED("") RESULT("") OFF},
        {J(SAY(Q "," ASSISTANT("[" USE "]") "," USER(
             "[" GIVE(",'is_error':true,'content':'no file'") "]"))),
         USER_("q") CALLED("") RESULT("Error: no file") OFF},
        {J(SAY(Q "," ASSISTANT("[" USE "]") "," USER(
             "[" GIVE(",'is_error':true,'content':'An ERROR.'") "]"))),
         USER_("q") CALLED("") RESULT("An ERROR.") OFF},
        {J(SAY(Q "," ASSISTANT("[" USE "]") "," USER(
             "[" GIVE(",'content':[{'type':'image','source':{'type':'base64'}}]") "]"))),
         USER_("q") CALLED("") RESULT("(An image or file, which this model cannot see.)") OFF},
        {J(SAY(USER("[" PDF "]") "," ASSISTANT("'a'") "," Q)),
         USER_("(An image or file, which this model cannot see.)") "{\"role\": \"assistant\", "
                                                                   "\"content\": \"a\"}\n" USER_(
                                                                       "q") OFF},
        {J(SAY(Q "," ASSISTANT("[" USE "]") "," USER("[" GIVE(",'content':'r'") "," PDF "]"))),
         USER_("q") CALLED("") RESULT("r") USER_("(An image or file, which this model cannot see.)")
             OFF},
        /* results are in the order of the calls, in whatever order the client sends them */
        {J(SAY(Q "," ASSISTANT("[" USE ",{'type':'tool_use','id':'t2','name':'g','input':{}}"
                               "]") "," USER("[" TEXT_BLOCK("x") ",{'type':'tool_result','tool_use_"
                                                                 "id':'t2','content':'2'}"
                                                                 "," GIVE(",'content':'1'") "]"))),
         USER_("q") "{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"id\": "
                    "\"t1\", \"type\": \"function\", \"function\": {\"name\": \"f\", "
                    "\"arguments\": {\"x\": [1]}}}, {\"id\": \"t2\", \"type\": \"function\", "
                    "\"function\": {\"name\": \"g\", \"arguments\": {}}}]}\n" RESULT(
                        "1") "{\"role\": \"tool\", \"content\": \"2\", \"name\": \"g\", "
                             "\"tool_call_id\": "
                             "\"t2\"}\n" USER_("x") OFF},
        /* text beside a result is no question of the user */
        {J(SAY(Q "," ASSISTANT("[" USE "]") "," USER("[" GIVE(",'content':'r'") "," TEXT_BLOCK(
             "<system-reminder>be</system-reminder>") "]"))),
         USER_("q") CALLED("") RESULT("r\\n<system-reminder>be</system-reminder>") OFF},
        {J(SAY(Q "," ASSISTANT("[" USE "]") "," USER(
             "[" GIVE(",'content':'r'") "]") ",{'role':'system','content':'be'}," Q)),
         USER_("q") CALLED("") RESULT("r\\n<system-reminder>\\nbe\\n</system-reminder>") USER_("q")
             OFF},
        /* thoughts */
        {J(SAY(Q "," ASSISTANT("[{'type':'thinking','thinking':'h','signature':'s'},{'type':'"
                               "redacted_thinking','data':'x'}," TEXT_BLOCK("a") "]") "," Q)),
         USER_("q") "{\"role\": \"assistant\", \"content\": \"a\", \"reasoning_content\": "
                    "\"h\"}\n" USER_("q") OFF},
        {J(SAY(Q "," ASSISTANT(
             "[{'type':'thinking','thinking':'','signature':'weft1.SG0='}," TEXT_BLOCK(
                 "a") "]") "," Q)),
         USER_("q") "{\"role\": \"assistant\", \"content\": \"a\", \"reasoning_content\": "
                    "\"Hm\"}\n" USER_("q") OFF},
        /* documents */
        {J(SAY(USER("[{'type':'document','title':'T','context':'C','source':{'type':'text','"
                    "media_type':'text/plain','data':'d'}}]"))),
         USER_("<document>\\n<title>T</title>\\n<context>C</context>\\nd\\n</document>") OFF},
        {J(SAY(USER(
             "[{'type':'document','source':{'type':'content','content':[" TEXT_BLOCK("d") "]}}]"))),
         USER_("<document>\\nd\\n</document>") OFF},
        {J(SAY(USER("[{'type':'search_result','source':'u','title':'T','content':[" TEXT_BLOCK(
             "d") "]}]"))),
         USER_("<search_result>\\n<title>T</title>\\n<source>u</source>\\nd\\n</search_result>")
             OFF},
    };
    struct world w;

    started(&w);
    for (size_t i = 0; i < ARRAY_SIZE(table); i++)
        expect_prompt(&w, table[i].fields, table[i].prompt);
    world_stop(&w);
}

Test(anthropic_input, thinking_is_what_the_client_asks_for) {
    const struct {
        const char *fields, *prompt;
    } table[] = {
        {J(SAY(Q) ",'thinking':null"), USER_("q") OFF},
        {J(SAY(Q) ",'thinking':{'type':'disabled'}"), USER_("q") OFF},
        {J(SAY(Q) ",'thinking':{'type':'adaptive'}"), USER_("q") "TrueTrue>"},
        {J(SAY(Q) ",'thinking':{'type':'enabled','budget_tokens':1024}"), USER_("q") "TrueTrue>"},
        {J(SAY(Q) ",'chat_template_kwargs':{'thinking':true,'reasoning_effort':'odd'}"),
         USER_("q") "FalseTrueodd>"},
        {J(SAY(Q) ",'output_config':{'effort':'xhigh'}"), USER_("q") "FalseFalsehigh>"},
        {J(SAY(Q) ",'output_config':{'effort':'low'}"), USER_("q") "FalseFalselow>"},
    };
    struct world w;

    started(&w);
    for (size_t i = 0; i < ARRAY_SIZE(table); i++)
        expect_prompt(&w, table[i].fields, table[i].prompt);
    world_stop(&w);
}

#define TOOL "{\"name\":\"f\",\"description\":\"D\",\"input_schema\":{\"type\":\"object\"}}"
#define TOOL_                                                                                      \
    "{\"type\": \"function\", \"function\": {\"name\": \"f\", \"description\": \"D\", "            \
    "\"parameters\": {\"type\": \"object\"}}}"

Test(anthropic_input, tools_that_can_be_called_are_offered) {
    const struct {
        const char *fields, *prompt;
    } table[] = {
        {J(SAY(Q) ",'tools':[" TOOL "]"), USER_("q") "[" TOOL_ "]" OFF},
        {J(SAY(Q) ",'tools':[{'type':'custom','cache_control':{},'name':'g','input_schema':{'a':1}}"
                  "]"),
         USER_("q") "[{\"type\": \"function\", \"function\": {\"name\": \"g\", \"parameters\": "
                    "{\"a\": 1}}}]" OFF},
        {J(SAY(Q) ",'tools':[{'type':'web_search_20250305','name':'web_search'}," TOOL "]"),
         USER_("q") "[" TOOL_ "]" OFF},
        {J(SAY(Q) ",'tools':[{'type':'code_execution_20250825','name':'code_execution'}]"),
         USER_("q") OFF},
        {J(SAY(Q) ",'tools':[" TOOL "],'tool_choice':{'type':'none'}"), USER_("q") OFF},
    };
    struct world w;
    CLEANUP(buf_deinit) struct buf prompt = {.max = 1 << 20};

    started(&w);
    for (size_t i = 0; i < ARRAY_SIZE(table); i++)
        expect_prompt(&w, table[i].fields, table[i].prompt);
    serve(&w,
          J(SAY(Q) ",'tools':[{'type':'bash_20250124','name':'bash'},{'type':'text_editor_20250728'"
                   ",'name':'str_replace_based_edit_tool'},{'type':'memory_20250818','name':'"
                   "memory'},{'type':'computer_20251124','name':'computer','display_width_px':1024,"
                   "'display_height_px':768}]"),
          &prompt);
    cr_expect(strstr(prompt.data, J("'name': 'bash'")) && strstr(prompt.data, J("'restart'")));
    cr_expect(strstr(prompt.data, J("'str_replace_based_edit_tool'")) &&
              strstr(prompt.data, J("'view_range'")));
    cr_expect(strstr(prompt.data, J("'memory'")) && strstr(prompt.data, J("'new_path'")));
    cr_expect(strstr(prompt.data, J("'computer'")) && strstr(prompt.data, J("'left_click_drag'")) &&
              strstr(prompt.data, "The display has 1024 x 768 pixels."));
    world_stop(&w);
}

/* Tools that a client adds later do not change the beginning of the prompt. */
Test(anthropic_input, tools_may_be_told_of_later) {
#define LATER(name)                                                                                \
    "{\"name\":\"" name "\",\"description\":\"D\",\"input_schema\":{\"type\":\"object\"},"         \
    "\"defer_loading\":true}"
#define SHOWN(name)                                                                                \
    "<functions>\\n<function>{\\\"description\\\":\\\"D\\\",\\\"name\\\":\\\"" name                \
    "\\\",\\\"parameters\\\":{\\\"type\\\":\\\"object\\\"}}</function>\\n</functions>"
#define NOW(blocks) "{\"role\":\"system\",\"content\":[" blocks "]}"
    const struct {
        const char *fields, *prompt;
    } table[] = {
        {J(SAY(Q) ",'tools':[" LATER("g") "," TOOL "," LATER("h") "]"),
         USER_("q") "[" TOOL_ "]" OFF},
        {J(SAY(Q) ",'tools':[" LATER("g") "]"), USER_("q") OFF},
        /* a search without tools to find */
        {J(SAY(Q) ",'tools':[{'type':'tool_search_tool_bm25_20251119','name':'tool_search_tool_"
                  "bm25'}," TOOL "]"),
         USER_("q") "[" TOOL_ "]" OFF},
        {J(SAY(Q "," ASSISTANT("[" USE "]") "," USER("[" GIVE(
             ",'content':[{'type':'tool_reference','tool_name':'g'},{'type':'tool_reference','tool_"
             "name':'gone'},{'type':'tool_reference','tool_name':'f'},{'type':'tool_reference','"
             "tool_name':'g'}]") "]")) ",'tools':[" TOOL "," LATER("g") "]"),
         USER_("q") CALLED("") RESULT(SHOWN("g") "\\ngone\\nf\\ng") "[" TOOL_ "]" OFF},
        {J(SAY(Q "," NOW(
             "{'type':'tool_addition','tool':{'type':'tool_definition','definition':" LATER(
                 "g") "}},{'type':'tool_removal','tool':{'type':'tool_reference','name':'f'}"
                      "}")) ",'tools':[" TOOL "]"),
         USER_("q\\nThis function can now be called as well:\\n" SHOWN(
             "g") "\\nThe function f can no longer be called.") "[" TOOL_ "]" OFF},
        {J(SAY(Q ",{'role':'system','content':'a','clear_at':'next_user_message'}," Q
                 ",{'role':'system','content':'b','clear_at':'next_user_message'},{'role':'system',"
                 "'output_config':{'effort':'low'}}")),
         USER_("q\\nq\\nb") OFF},
    };
    struct world w;

    started(&w);
    for (size_t i = 0; i < ARRAY_SIZE(table); i++)
        expect_prompt(&w, table[i].fields, table[i].prompt);
    world_stop(&w);
}

Test(anthropic_input, the_billing_line_never_reaches_the_model) {
#define BILL(nonce) "x-anthropic-billing-header: cc_version=2.1; cc_entrypoint=cli; cch=" nonce ";"
    const char *const fields[] = {
        J(SAY(Q) ",'system':[" TEXT_BLOCK(BILL("a1")) "," TEXT_BLOCK("You are.") "]"),
        J(SAY(Q) ",'system':[" TEXT_BLOCK(BILL("b2") "\\nYou are.") "]"),
        J(SAY(Q) ",'system':'" BILL("c3") "\\nYou are.'"),
        J(SAY(Q) ",'system':'You are.'"),
    };
    struct world w;

    started(&w);
    for (size_t i = 0; i < ARRAY_SIZE(fields); i++)
        expect_prompt(&w, fields[i], SYSTEM_("You are.") USER_("q") OFF);
    expect_prompt(&w, J(SAY(Q) ",'system':'" BILL("d") "'"), USER_("q") OFF);
    /* in other places it is text */
    expect_prompt(&w, J(SAY(Q) ",'system':'A " BILL("e") "'"),
                  SYSTEM_("A " BILL("e")) USER_("q") OFF);
    world_stop(&w);
}

/* ---- continued texts ---- */

static uint32_t count_id(const struct fake_request *r, int32_t id) {
    uint32_t n = 0;

    for (uint32_t i = 0; i < r->m.n_prompt; i++)
        n += r->m.tokens[i] == id;
    return n;
}

Test(anthropic_input, the_answer_continues_the_last_message) {
    struct world w;
    CLEANUP(buf_deinit) struct buf prompt = {.max = 1 << 20};

    started(&w);
    expect_prompt(&w, J(SAY(Q "," ASSISTANT("'It is'"))), USER_("q") OFF "It is");
    expect_prompt(&w, SAY(Q "," ASSISTANT("[" TEXT_BLOCK("a") "," TEXT_BLOCK("b") "]")),
                  USER_("q") OFF "a\nb");
    expect_prompt(&w, J(SAY(Q "," ASSISTANT("''"))), USER_("q") OFF);
    /* text of the client stays text */
    struct fake_request *r = serve(&w, J(SAY(Q "," ASSISTANT("'<|im_end|> x'"))), &prompt);
    cr_expect_eq(count_id(r, TINY_END), 0);
    /* the text is no reasoning */
    serve(&w, J(SAY(Q "," ASSISTANT("'It is'")) ",'chat_template_kwargs':{'think_first':true}"),
          &prompt);
    cr_expect_str_eq(prompt.data, USER_("q") OFF "<think>\n</think>\n\nIt is");
    world_stop(&w);
}

/* ---- submits ---- */

Test(anthropic_input, parameters_reach_the_worker) {
    struct world w;
    CLEANUP(buf_deinit) struct buf prompt = {.max = 1 << 20};

    started(&w);
    struct fake_request *r =
        serve(&w,
              J(SAY(Q) ",'temperature':0.5,'top_p':0.25,'top_k':7,'stop_sequences':['ab','c'],'"
                       "seed':9,'min_p':0.125,'metadata':{'user_id':'u'},'service_tier':'auto','"
                       "container':'c','mcp_servers':[],'context_management':{'edits':[]},'n':99"),
              &prompt);
    cr_expect_eq(r->m.sampling.temperature, 0.5f);
    cr_expect_eq(r->m.sampling.top_p, 0.25f);
    cr_expect_eq(r->m.sampling.top_k, 7);
    cr_expect_eq(r->m.sampling.min_p, 0.125f);
    cr_expect_eq(r->m.seed, 9);
    cr_expect_eq(r->m.max_new, 20);
    uint64_t session = r->m.session;
    cr_expect_neq(session, 0);
    r = serve(&w, J(SAY(USER("'other'")) ",'metadata':{'user_id':'u'}"), &prompt);
    cr_expect_eq(r->m.session, session);
    r = serve(&w, J(SAY(USER("'other'")) ",'metadata':{'user_id':'v'}"), &prompt);
    cr_expect_neq(r->m.session, session);
    world_stop(&w);
}

/* Asserts that the worker gets the same constraint as for the chat, or that both requests are
 * refused. */
static void expect_forced(struct world *w, const char *fields, const char *chat) {
    struct reply r, theirs;
    char body[2000];
    uint32_t i = w->port.n;

    snprintf(body, sizeof(body), "{\"model\":\"claude-x\",\"max_tokens\":20,%s}", fields);
    w->port.script = "ok";
    world_ask(w, MESSAGES, body, &r);
    world_ask(w, CHAT, chat, &theirs);
    cr_expect_eq(r.status, theirs.status, "%s: %s", body, text_of(&r.body));
    reply_deinit(&r);
    reply_deinit(&theirs);
    if (w->port.n == i)
        return;
    const struct fake_request *a = &w->port.r[i], *b = &w->port.r[i + 1];
    cr_expect(*a->grammar || *a->triggers, "%s forces nothing", fields);
    cr_expect_str_eq(a->grammar, b->grammar);
    cr_expect_str_eq(a->triggers, b->triggers);
}

Test(anthropic_input, choices_and_schemas_are_forced) {
#define CHAT_TOOLS                                                                                 \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"D\","        \
    "\"parameters\":{\"type\":\"object\"}}}]"
#define SCHEMA "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}}}"
    struct world w;

    started(&w);
    expect_forced(&w, J(SAY(Q) ",'tools':[" TOOL "],'tool_choice':{'type':'any'}"),
                  J("{" SAY(Q) "," CHAT_TOOLS ",'tool_choice':'required'}"));
    expect_forced(
        &w, J(SAY(Q) ",'tools':[" TOOL "],'tool_choice':{'type':'tool','name':'f'}"),
        J("{" SAY(Q) "," CHAT_TOOLS ",'tool_choice':{'type':'function','function':{'name':'f'}}}"));
    expect_forced(
        &w, J(SAY(Q) ",'output_config':{'format':{'type':'json_schema','schema':" SCHEMA "}}"),
        J("{" SAY(
            Q) ",'response_format':{'type':'json_schema','json_schema':{'name':'x','schema':" SCHEMA
               "}}}"));
#define STRICT "\"parameters\":{\"type\":\"object\"},\"strict\":true"
    expect_forced(
        &w, J(SAY(Q) ",'tools':[{'name':'f','strict':true,'input_schema':{'type':'object'}}]"),
        J("{" SAY(Q) ",'tools':[{'type':'function','function':{'name':'f'," STRICT "}}]}"));
    world_stop(&w);
}

Test(anthropic_input, a_count_is_the_usage) {
    const char *const bodies[] = {
        SAY(Q),
        J(SAY(Q) ",'system':'s','tools':[" TOOL "]"),
        J(SAY(Q "," ASSISTANT("'It is'"))),
        J(SAY(Q "," ASSISTANT("[" USE "]") "," USER("[" GIVE(",'content':'r'") "]"))),
    };
    struct world w;
    struct reply r;
    char body[1000], want[80];
    CLEANUP(buf_deinit) struct buf prompt = {.max = 1 << 20};

    started(&w);
    for (size_t i = 0; i < ARRAY_SIZE(bodies); i++) {
        uint32_t n = serve(&w, bodies[i], &prompt)->m.n_prompt;

        snprintf(body, sizeof(body), "{\"model\":\"claude\",%s}", bodies[i]);
        world_ask(&w, COUNT, body, &r);
        snprintf(want, sizeof(want), "{\"input_tokens\":%u}", n);
        cr_expect_eq(r.status, 200);
        cr_expect_str_eq(text_of(&r.body), want);
        reply_deinit(&r);
    }
    world_stop(&w);
}

/* ---- refusals ---- */

#define WITH(fields) "{\"model\":\"claude\",\"max_tokens\":9," fields "}"

struct bad_field {
    const char *body, *message;
};

static void refuse_all(const struct bad_field *table, size_t n) {
    struct world w;
    struct reply r;
    char needle[300];

    started(&w);
    for (size_t i = 0; i < n; i++) {
        world_ask(&w, MESSAGES, table[i].body, &r);
        snprintf(
            needle, sizeof(needle),
            "{\"type\":\"error\",\"error\":{\"type\":\"invalid_request_error\",\"message\":\"%s",
            table[i].message);
        cr_expect_eq(r.status, 400, "%s: %d", table[i].body, r.status);
        cr_expect_eq(strncmp(text_of(&r.body), needle, strlen(needle)), 0, "%s: %s is not about %s",
                     table[i].body, text_of(&r.body), table[i].message);
        reply_deinit(&r);
    }
    cr_expect_eq(w.port.n, 0);
    world_stop(&w);
}

/* ---- histories of other services ---- */

#define SERVER_CALL(name, args)                                                                    \
    "{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"id\": \"s1\", \"type\": "    \
    "\"function\", \"function\": {\"name\": \"" name "\", \"arguments\": " args "}}]}\n"
#define SERVER_RESULT(name, text)                                                                  \
    "{\"role\": \"tool\", \"content\": \"" text "\", \"name\": \"" name                            \
    "\", \"tool_call_id\": \"s1\"}\n"
#define ASSISTANT_(text) "{\"role\": \"assistant\", \"content\": \"" text "\"}\n"
#define GAVE(type, content) "{\"type\":\"" type "\",\"tool_use_id\":\"s1\",\"content\":" content "}"

/* A call has one result, in the next message of the user. */
Test(anthropic_input, calls_and_results_belong_together) {
    const struct bad_field table[] = {
        {WITH(SAY(USER("[" GIVE("") "]"))),
         "messages.0.content.0.tool_result.tool_use_id: must be the id"},
        {WITH(SAY(Q "," ASSISTANT("[" USE "]") "," Q)), "messages.1: has tool_use blocks without"},
        {J(WITH(SAY(Q "," ASSISTANT("[" USE "]") "," Q
                                                 "," ASSISTANT("'a'") "," USER("[" GIVE("") "]")))),
         "messages.1: has tool_use blocks without"},
        {WITH(SAY(Q "," ASSISTANT("[" USE "]") "," USER("[" GIVE("") "," GIVE("") "]"))),
         "messages.2.content.1.tool_result.tool_use_id: must be the id"},
        {J(WITH(SAY(Q "," ASSISTANT("[" USE "]") "," USER("[" GIVE("") "]") "," ASSISTANT(
             "'a'") "," USER("[" GIVE("") "]")))),
         "messages.4.content.0.tool_result.tool_use_id: must be the id"},
    };
    const char *const right[] = {
        J(SAY(Q "," ASSISTANT("[" USE "]") "," ASSISTANT("'a'") "," USER("[" GIVE("") "]"))),
        J(SAY(Q "," ASSISTANT("[" USE "]") "," USER("'a'") "," USER("[" GIVE("") "]"))),
        J(SAY(Q "," ASSISTANT("[" USE ",{'type':'compaction','content':'s'}]") "," Q)),
    };
    CLEANUP(buf_deinit) struct buf prompt = {.max = 1 << 20};
    struct world w;

    refuse_all(table, ARRAY_SIZE(table));
    started(&w);
    for (size_t i = 0; i < ARRAY_SIZE(right); i++)
        serve(&w, right[i], &prompt);
    world_stop(&w);
}

Test(anthropic_input, blocks_of_other_services_are_read) {
    const struct {
        const char *name, *blocks, *result;
    } tools[] = {
        {"web_search",
         J(GAVE("web_search_tool_result",
                "[{'type':'web_search_result','title':'t','url':'u','encrypted_content':'x'}]")),
         "t\\nu"},
        {"web_search",
         J(GAVE("web_search_tool_result",
                "{'type':'web_search_tool_result_error','error_code':'unavailable'}")),
         "unavailable"},
        {"web_fetch",
         J(GAVE("web_fetch_tool_result", "{'type':'web_fetch_result','url':'u','content':{'type':'"
                                         "document','source':{'type':'text','data':'d'}}}")),
         "u\\nd"},
        {"code_execution",
         J(GAVE("code_execution_tool_result", "{'type':'code_execution_result','stdout':'o','"
                                              "stderr':'e','return_code':0,'content':[]}")),
         "o\\ne"},
        {"bash_code_execution",
         J(GAVE("bash_code_execution_tool_result",
                "{'type':'bash_code_execution_result','stdout':'o'}")),
         "o"},
        {"text_editor_code_execution",
         J(GAVE("text_editor_code_execution_tool_result",
                "{'type':'text_editor_code_execution_view_result','content':'v'}")),
         "v"},
        {"advisor", J(GAVE("advisor_tool_result", "{'type':'advisor_result','text':'a'}")), "a"},
        {"tool_search_tool_bm25",
         J(GAVE("tool_search_tool_result",
                "{'type':'tool_search_tool_search_result','tool_references':[{'type':'tool_"
                "reference','tool_name':'n'}]}")),
         "n"},
    };
    struct world w;
    char fields[1200], want[1200];

    started(&w);
    for (size_t i = 0; i < ARRAY_SIZE(tools); i++) {
        snprintf(
            fields, sizeof(fields),
            "\"messages\":[" Q ",{\"role\":\"assistant\",\"content\":[{\"type\":"
            "\"server_tool_use\",\"id\":\"s1\",\"name\":\"%s\",\"input\":{\"q\":1}},%s," TEXT_BLOCK(
                "so") "]}," Q "]",
            tools[i].name, tools[i].blocks);
        snprintf(want, sizeof(want),
                 USER_("q") SERVER_CALL("%s", "{\"q\": 1}") SERVER_RESULT("%s", "%s")
                     ASSISTANT_("so") USER_("q") OFF,
                 tools[i].name, tools[i].result, tools[i].name);
        expect_prompt(&w, fields, want);
    }
    world_stop(&w);
}

Test(anthropic_input, a_block_of_any_type_is_read) {
    const struct {
        const char *fields, *prompt;
    } table[] = {
        {J(SAY(Q "," ASSISTANT(
             "[{'type':'mcp_tool_use','id':'s1','server_name':'loom','name':'twist','input':{}}"
             "," GAVE("mcp_tool_result", "[" TEXT_BLOCK("r") "]") "]"))),
         USER_("q") SERVER_CALL("loom__twist", "{}") SERVER_RESULT("loom__twist", "r") OFF},
        /* a turn that a service paused */
        {J(SAY(Q "," ASSISTANT(
             "[{'type':'server_tool_use','id':'s1','name':'web_search','input':{}}]"))),
         USER_("q") SERVER_CALL("web_search", "{}")
             SERVER_RESULT("web_search", "This tool cannot be run here.") OFF},
        /* a summary replaces the messages before it */
        {J(SAY(Q "," ASSISTANT("'old'") "," Q "," ASSISTANT(
             "[{'type':'compaction','content':'S'}," TEXT_BLOCK("new") "]") "," Q) ",'system':'s'"),
         SYSTEM_("s") USER_("Summary of the conversation until here:\\n\\nS") ASSISTANT_("new")
             USER_("q") OFF},
        {J(SAY(Q
               "," ASSISTANT("[{'type':'compaction','content':null}," TEXT_BLOCK("a") "]") "," Q)),
         USER_("q") ASSISTANT_("a") USER_("q") OFF},
        {J(SAY(Q
               "," ASSISTANT("[{'type':'fallback','from':{},'to':{}}," TEXT_BLOCK("a") "]") "," Q)),
         USER_("q") ASSISTANT_("a") USER_("q") OFF},
        {J(SAY(Q "," ASSISTANT("[{'type':'of_next_year','content':'c'}]") "," Q)),
         USER_("q") ASSISTANT_("c") USER_("q") OFF},
        {J(SAY(Q "," ASSISTANT("[{'type':'of_next_year'}]") "," Q)),
         USER_("q") ASSISTANT_("[of_next_year: left out, this model cannot see it]") USER_("q")
             OFF},
        {J(SAY(USER("[{'type':'container_upload','file_id':'f'}]"))),
         USER_("[container_upload: left out, this model reads only text]") OFF},
        {J(SAY(Q
               "," ASSISTANT("[" USE "]") "," USER("[" GIVE(",'content':[{'type':'video'}]") "]"))),
         USER_("q") CALLED("") RESULT("[video: left out, this model reads only text]") OFF},
    };
    struct world w;

    started(&w);
    for (size_t i = 0; i < ARRAY_SIZE(table); i++)
        expect_prompt(&w, table[i].fields, table[i].prompt);
    world_stop(&w);
}

Test(anthropic_input, what_is_wrong_with_messages_is_named) {
    const struct bad_field table[] = {
        {"{}", "model: Field required."},
        {J("{'model':7}"), "model: must be a string without NUL."},
        {J("{'model':'claude'}"), "max_tokens: Field required."},
        {J("{'model':'claude','max_tokens':0}"), "messages: Field required."},
        {J("{'model':'claude','max_tokens':-1}"), "max_tokens: must be a whole number, 0 or more."},
        {J("{'model':'claude','max_tokens':1.5}"), "max_tokens: must be"},
        {J("{'model':'claude','max_tokens':1}"), "messages: Field required."},
        {J(WITH("'messages':[]")), "messages: must be an array"},
        {J(WITH("'messages':'x'")), "messages: must be an array"},
        {J(WITH("'messages':[1]")), "messages.0: must be an object."},
        {J(WITH(SAY(Q ",{'role':'tool','content':''}"))), "messages.1.role: must be user"},
        {J(WITH(SAY("{'role':'user'}"))), "messages.0.content: must be"},
        {WITH(SAY(USER("[1]"))), "messages.0.content.0: must be a content block."},
        {WITH(SAY(USER("[{}]"))), "messages.0.content.0.type: must be a string."},
        {J(WITH(SAY(USER("[{'type':'text'}]")))), "messages.0.content.0.text: must be a string."},
        {J(WITH(SAY(USER("[" TEXT_BLOCK("a") ",{'type':'image','source':{'type':'base64'}}]")))),
         "messages.0.content.1.image.source.data is not supported: this model reads only text."},
        {J(WITH(SAY(USER("[{'type':'document','source':{'type':'base64'}}]")))),
         "messages.0.content.0.document.source.type is not supported"},
        {J(WITH(SAY(USER("[{'type':'document'}]")))),
         "messages.0.content.0.document.source: must be"},
        {J(WITH(SAY(USER("[{'type':'document','source':{'type':'text'}}]")))),
         "messages.0.content.0.document.source.data: must be a string."},
        {J(WITH(SAY(USER(
             "[{'type':'document','source':{'type':'content','content':[{'type':'image'}]}}]")))),
         "messages.0.content.0.document.source.content.0.type: is not supported"},
        {J(WITH(SAY(USER("[{'type':'hologram'}]")))), "messages.0.content.0.type: is not"},
        {J(WITH(SAY(USER("[{'type':'tool_result'}]")))),
         "messages.0.content.0.tool_result.tool_use_id: must be a string."},
        {J(WITH(SAY(USER("[" GIVE(",'content':7") "]")))),
         "messages.0.content.0.tool_result.content: must be"},
        {J(WITH(SAY(USER("[" GIVE(",'content':[{'type':'tool_reference'}]") "]")))),
         "messages.0.content.0.tool_result.content.0.tool_name: must be"},
        {J(WITH(SAY(Q "," ASSISTANT("[{'type':'server_tool_use'}]")))),
         "messages.1.content.0.id: must be a string."},
        {J(WITH(SAY(Q "," ASSISTANT("[{'type':'mcp_tool_result'}]")))),
         "messages.1.content.0.tool_use_id: must be a string."},
        {J(WITH(SAY(Q "," ASSISTANT("[{'type':'tool_use'}]")))), "messages.1.content.0.id: must"},
        {J(WITH(SAY(Q "," ASSISTANT("[{'type':'tool_use','id':'a'}]")))),
         "messages.1.content.0.name: must"},
        {J(WITH(SAY(Q "," ASSISTANT("[{'type':'tool_use','id':'a','name':'f','input':'{}'}]")))),
         "messages.1.content.0.input: must be an object."},
        {WITH(SAY(Q "," ASSISTANT("[" USE "]"))),
         "messages.1: must not be the last one: its calls have no results."},
        {J(WITH(SAY(Q "," ASSISTANT("[{'type':'thinking'}]")))),
         "messages.1.content.0.thinking: must be a string."},
        {J(WITH(SAY(Q "," ASSISTANT("[{'type':'thinking','thinking':'','signature':'weft1.*'}]")))),
         "messages.1.content.0.signature: was not written by this server; send it back as it "
         "was received."},
        {J(WITH(SAY(ASSISTANT("'a'")))), "messages: must contain a message with the role user."},
    };

    refuse_all(table, ARRAY_SIZE(table));
}

Test(anthropic_input, every_bad_field_is_named) {
    const struct bad_field table[] = {
        {J(WITH(SAY(Q) ",'system':7")), "system: must be a string or an array of text blocks."},
        {J(WITH(SAY(Q) ",'system':[{'type':'image'}]")), "system.0.type: is not supported"},
        {J(WITH(SAY(Q) ",'system':[{'type':'text'}]")), "system.0.text: must be a string."},
        {J(WITH(SAY(Q) ",'stop_sequences':'x'")), "stop_sequences: must be an array"},
        {J(WITH(SAY(Q) ",'stop_sequences':['']")), "stop_sequences: must hold strings of 1 to"},
        {J(WITH(SAY(Q) ",'temperature':'x'")), "temperature: must be a number"},
        {J(WITH(SAY(Q) ",'temperature':1.5")), "temperature: must be a number from 0 to 1."},
        {J(WITH(SAY(Q) ",'stop_sequences':['a',' \\n']")), "stop_sequences: must hold strings"},
        {J(WITH(SAY(Q) ",'thinking':{'type':'enabled'}")), "thinking.budget_tokens: must be given"},
        {J(WITH(SAY(Q) ",'stream':1")), "stream must be a boolean."},
        {J(WITH(SAY(Q) ",'metadata':1")), "metadata: must be an object."},
        {J(WITH(SAY(Q) ",'metadata':{'user_id':1}")), "metadata.user_id: must be a string"},
        {J(WITH(SAY(Q) ",'thinking':true")), "thinking: must be an object with a type."},
        {J(WITH(SAY(Q) ",'thinking':{'type':'on'}")),
         "thinking.type: must be enabled, adaptive or disabled."},
        {J(WITH(SAY(Q) ",'thinking':{'type':'enabled','budget_tokens':0}")),
         "thinking.budget_tokens: must be a whole number"},
        {J(WITH(SAY(Q) ",'chat_template_kwargs':1")), "chat_template_kwargs: must be an object."},
        {J(WITH(SAY(Q) ",'output_config':1")), "output_config: must be an object."},
        {J(WITH(SAY(Q) ",'output_config':{'effort':'x'}")), "output_config.effort: must be"},
        {J(WITH(SAY(Q) ",'output_config':{'format':{'type':'text'}}")),
         "output_config.format.type: must be"},
        {J(WITH(SAY(Q) ",'output_config':{'format':{'type':'json_schema'}}")),
         "output_config.format.schema: must be an object."},
        {J(WITH(SAY(Q) ",'tools':{}")), "tools: must be an array"},
        {J(WITH(SAY(Q) ",'tools':[1]")), "tools.0: must be an object."},
        {J(WITH(SAY(Q) ",'tools':[{'name':'f','input_schema':{}},{'name':'f','input_schema':{}}]")),
         "tools.1.name: is the name of an earlier tool."},
        {J(WITH(SAY(Q) ",'tools':[{'type':1}]")), "tools.0.type: must be a string."},
        {J(WITH(SAY(Q) ",'tools':[{'name':'g','input_schema':{},'strict':'true'}]")),
         "tools.0.strict: must be a boolean."},
        {J(WITH(SAY(Q) ",'tools':[" TOOL ",{}]")), "tools.1.name: must be a string"},
        {J(WITH(SAY(Q) ",'tools':[{'name':'g'}]")), "tools.0.input_schema: must be an object."},
        {J(WITH(SAY(Q) ",'tools':[{'name':'g','description':1,'input_schema':{}}]")),
         "tools.0.description: must be a string."},
        {J(WITH(SAY(Q) ",'tool_choice':'auto'")), "tool_choice.type: must be"},
        {J(WITH(SAY(Q) ",'tool_choice':{'type':'any'}")), "tool_choice.type: needs tools"},
        {J(WITH(SAY(Q) ",'tools':[" TOOL "],'tool_choice':{'type':'tool'}")),
         "tool_choice.name: must be a string."},
        {J(WITH(SAY(Q) ",'tools':[" TOOL "],'tool_choice':{'type':'tool','name':'g'}")),
         "tool_choice.name: is not a tool of this request"},
        {J(WITH(SAY(Q) ",'tools':[{'type':'web_search_20250305','name':'web_search'}],'tool_choice'"
                       ":{'type':'tool','name':'web_search'}")),
         "tools: hold a web search alone, which is not available here."},
        {J(WITH(SAY(Q) ",'tool_choice':{'type':'auto','disable_parallel_tool_use':1}")),
         "tool_choice.disable_parallel_tool_use: must be a boolean."},
        {J(WITH(SAY(Q "," NOW("{'type':'image'}")))), "messages.1.content.0.type: is not"},
        {J(WITH(SAY(Q "," NOW("{'type':'tool_addition'}")))),
         "messages.1.content.0.tool: must be a reference"},
        {J(WITH(SAY(Q "," NOW("{'type':'tool_addition','tool':{'definition':{'name':'g'}}}")))),
         "messages.1.content.0.tool.definition.input_schema: must be an object."},
        {J(WITH(SAY(Q) ",'thread':{'type':'create'}")),
         J("thread: this server stores no conversations; send all "
           "messages.','details':{'error_code':'thread_unsupported_request','unsupported':['thread'"
           "]}}")},
        {J(WITH(SAY(Q) ",'max_tokens':8")), "max_tokens: is given twice."},
        {J(WITH(SAY(Q) ",'tools':[],'tools':[]")), "tools: is given twice."},
        {J(WITH(SAY(Q) ",'seed':1,'seed':1")), "seed: is given twice."},
        {"[]", "The request body must be a JSON object."},
    };

    refuse_all(table, ARRAY_SIZE(table));
}
