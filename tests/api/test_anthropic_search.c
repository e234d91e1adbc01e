/*
 * Hosted tool search of /v1/messages: the results of the two searches, and answers that continue
 * after a search with the found tools in the prompt, plain and as a stream.
 */

#include <criterion/criterion.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <yyjson.h>

#include "api/anthropic/tool_search.h"
#include "base/rng.h"
#include "stream.h"

/* ---- the searches ---- */

#define TOOL(name, description, parameters)                                                        \
    R"({"type":"function","function":{"name":")" name R"(","description":")" description           \
    R"(","parameters":{"properties":{)" parameters R"(}}},"defer_loading":true})"

#define WEATHER                                                                                    \
    TOOL("get_weather", "Weather at a place", R"("city":{"description":"Name of a town"})")
#define EMAIL TOOL("sendEmail", "Sends a message to somebody", R"("to":{},"body":{})")
#define FILES TOOL("search_files", "Finds files by their names", R"("glob":{})")
#define READ                                                                                       \
    TOOL("read_file", "Reads one file. a.b{2}", R"("path":{"description":"Weather station"})")
#define SHOWN R"({"type":"function","function":{"name":"weather_of_today"}})"

static const char catalogue[] =
    "[" WEATHER "," EMAIL "," FILES "," SHOWN "," READ "," TOOL("empty", "", "") "]";

/* Writes the names that a search finds to @out, or the error. */
static void search(enum tool_search_kind kind, const char *query, char *out, size_t size) {
    yyjson_doc *doc = yyjson_read(catalogue, strlen(catalogue), 0);
    yyjson_val *found[TOOL_SEARCH_MOST];
    size_t n = 0;

    cr_assert(doc);
    int r = tool_search(kind, query, yyjson_doc_get_root(doc), found);
    *out = 0;
    if (r < 0)
        snprintf(out, size, "%s", strerror(-r));
    for (int i = 0; i < r; i++)
        n += (size_t)snprintf(out + n, size - n, "%s%s", i ? " " : "", yyjson_get_str(found[i]));
    yyjson_doc_free(doc);
}

static void expect(enum tool_search_kind kind, const char *query, const char *want) {
    char names[400];

    search(kind, query, names, sizeof(names));
    cr_expect_str_eq(names, want, "%s: %s, not %s", query, names, want);
}

Test(tool_search, patterns_are_those_of_python) {
    static const char *const table[][2] = {
        {"weather", "get_weather"},
        {"(?i)weather", "get_weather read_file"},
        {"^get_|^read_", "get_weather read_file"},
        {"files?\\b", "search_files read_file"},
        {"\\bfile\\b", "read_file"},
        {"(?:send|search)_?[A-Z]\\w+", "sendEmail"},
        {"a\\.b\\{\\d\\}", "read_file"},
        {"[\\d]", "read_file"},
        {"[^\\s\\w.{}]", ""},
        {"glo+?b", "search_files"},
        {"(((((g)+)+l)+o)+b)+", "search_files"},
        {"gl?lob{1,2}", "search_files"},
        {"(?P<o>l)o(?!p)", "search_files"},
        {"(e)\\1", ""},
        {"(s)\\1", "sendEmail"},
        {"s(?i:FILES)|(?<=get_)WEATHER", ""},
        {".*", "get_weather sendEmail search_files read_file empty"},
        {"nothing", ""},
    };

    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        expect(TOOL_SEARCH_REGEX, table[i][0], table[i][1]);
}

Test(tool_search, other_patterns_are_refused) {
    static const char *const table[] = {"",    "(",     "[a",  R"(a\)", "[[:alpha:]",
                                        "\\p", R"([\)", "**(", "(?R",   "\\C"};
    char most[202];

    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        expect(TOOL_SEARCH_REGEX, table[i], strerror(EINVAL));
    memset(most, 'a', sizeof(most));
    most[201] = 0;
    expect(TOOL_SEARCH_REGEX, most, strerror(EINVAL));
    most[200] = 0;
    expect(TOOL_SEARCH_REGEX, most, "");
    memcpy(most, "\xc3\xa4", 2); /* 199 characters */
    expect(TOOL_SEARCH_REGEX, most, "");
}

/* A pattern that takes exponential time to match ends the search and not the daemon. */
Test(tool_search, slow_patterns_end) {
    static const char *const patterns[] = {"a(a|a)*[b-z]", "(a?){200}a{200}[b-z]", "a(a*)*\\1[b-z]",
                                           "(?R)a"};
    char text[2000], tools[2200];

    memset(text, 'a', sizeof(text) - 1);
    text[sizeof(text) - 1] = 0;
    snprintf(tools, sizeof(tools),
             R"([{"function":{"name":"f","description":"%s"},"defer_loading":true}])", text);
    yyjson_doc *doc = yyjson_read(tools, strlen(tools), 0);
    cr_assert(doc);
    for (size_t i = 0; i < sizeof(patterns) / sizeof(patterns[0]); i++) {
        yyjson_val *found[TOOL_SEARCH_MOST];
        int r = tool_search(TOOL_SEARCH_REGEX, patterns[i], yyjson_doc_get_root(doc), found);

        cr_expect(r == -ETIME, "%s: %d", patterns[i], r);
    }
    yyjson_doc_free(doc);
}

Test(tool_search, words_are_ranked) {
    static const char *const table[][2] = {
        {"weather", "get_weather read_file"},
        {"Email", "sendEmail"},
        {"find file", "search_files read_file"},
        {"the weather of a town", "get_weather read_file sendEmail"},
        {"zebra", ""},
    };

    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        expect(TOOL_SEARCH_BM25, table[i][0], table[i][1]);
    expect(TOOL_SEARCH_BM25, " ?! ", strerror(EINVAL));
}

#define WORDS 20
#define TOOLS_MAX 12

/* A tool as a naive reader sees it: how often it has each word, and its number of words. */
struct bag {
    uint32_t counts[WORDS], n;
};

/* Ranks @bags by the formula of BM25; the first of two that are equal comes first. Returns how many
 * match. */
static uint32_t rank_naively(const struct bag *bags, uint32_t n, const bool asked[WORDS],
                             uint32_t best[TOOL_SEARCH_MOST]) {
    double score[TOOLS_MAX] = {0}, length = 0;
    uint32_t n_best = 0;

    for (uint32_t i = 0; i < n; i++)
        length += bags[i].n;
    for (uint32_t k = 0; k < WORDS; k++) {
        uint32_t n_tools = 0;

        for (uint32_t i = 0; i < n; i++)
            n_tools += bags[i].counts[k] > 0;
        double rarity = log(1 + (n - n_tools + 0.5) / (n_tools + 0.5));
        for (uint32_t i = 0; i < n && asked[k]; i++) {
            double f = bags[i].counts[k], share = bags[i].n / (length / n);

            score[i] += rarity * f * 2.2 / (f + 1.2 * (0.25 + 0.75 * share));
        }
    }
    while (n_best < TOOL_SEARCH_MOST) {
        uint32_t top = n;

        for (uint32_t i = 0; i < n; i++)
            if (score[i] > 0 && (top == n || score[i] > score[top] * (1 + 1e-12)))
                top = i;
        if (top == n)
            break;
        best[n_best++] = top;
        score[top] = 0;
    }
    return n_best;
}

Test(tool_search, the_rank_is_that_of_bm25) {
    struct rng rng = {68};

    for (uint32_t round = 0; round < 2000; round++) {
        CLEANUP(buf_deinit) struct buf list = {.max = 1 << 16}, query = {.max = 1 << 12};
        struct bag bags[TOOLS_MAX] = {0};
        uint32_t n = 1 + rng_below(&rng, TOOLS_MAX), want[TOOL_SEARCH_MOST];
        bool asked[WORDS] = {0};
        yyjson_val *found[TOOL_SEARCH_MOST];

        for (uint32_t i = 0; i < n; i++) {
            cr_assert_eq(buf_printf(&list, R"(%c{"function":{"name":"tool%u","description":")",
                                    i ? ',' : '[', i),
                         0);
            bags[i].n = 1 + rng_below(&rng, 15); /* with its name */
            for (uint32_t k = 1; k < bags[i].n; k++) {
                uint32_t word = rng_below(&rng, WORDS);

                bags[i].counts[word]++;
                buf_printf(&list, "%c%c ", 'a' + word, 'a' + word);
            }
            cr_assert_eq(buf_add_str(&list, R"("},"defer_loading":true})"), 0);
        }
        cr_assert_eq(buf_add_str(&list, "]"), 0);
        uint32_t n_asked = 1 + rng_below(&rng, 4);
        for (uint32_t k = 0; k < n_asked; k++) {
            uint32_t word = rng_below(&rng, WORDS);

            asked[word] = true;
            buf_printf(&query, "%c%c ", 'A' + word, 'a' + word); /* "aA" would be two words */
        }
        cr_assert_eq(buf_add_char(&query, 0), 0);
        yyjson_doc *doc = yyjson_read(list.data, list.len, 0);
        cr_assert(doc);
        int got = tool_search(TOOL_SEARCH_BM25, query.data, yyjson_doc_get_root(doc), found);
        uint32_t n_want = rank_naively(bags, n, asked, want);
        cr_assert_eq(got, (int)n_want, "%s in %s", query.data, list.data);
        for (uint32_t i = 0; i < n_want; i++) {
            char name[20];

            snprintf(name, sizeof(name), "tool%u", want[i]);
            cr_assert_str_eq(yyjson_get_str(found[i]), name, "%u: %s in %s", i, query.data,
                             list.data);
        }
        yyjson_doc_free(doc);
    }
}

/* ---- answers ---- */

#define CALL(name, args)                                                                           \
    "<tool_call>\n"                                                                                \
    R"({"name": ")" name R"(", "arguments": )" args "}\n</tool_call>"
#define DEFERRED(name, description)                                                                \
    R"({"name":")" name R"(","description":")" description R"(","input_schema":{"type":)"          \
    R"("object"},"defer_loading":true})"
#define TOOLS                                                                                      \
    R"(,"tools":[{"type":"tool_search_tool_regex_20251119","name":"tool_search_tool_)"             \
    R"(regex"})"                                                                                   \
    "," DEFERRED("weather", "Sky") "," DEFERRED("time", "Clock") "]"
#define BEGIN                                                                                      \
    R"({"model":"claude-haiku-4-5","max_tokens":4000)" TOOLS R"(,"messages":[{"role":)"            \
    R"("user","content":"hi"})"
#define BODY(fields) BEGIN fields "}"

static const char hermes[] =
    "{%- for t in tools or [] -%}[{{ t.function.name }}]{%- endfor -%}"
    "{%- for m in messages -%}{{ '<|im_start|>' + m.role + '\n' + (m.content or '') }}"
    "{%- for c in m.tool_calls or [] -%}<tool_call>{{ c.function.name }} "
    "{{ c.function.arguments | tojson }}</tool_call>"
    "{%- endfor -%}<|im_end|>\n{%- endfor -%}{%- if tools %}{% if false %} <tool_call> {% endif "
    "%}{% endif -%}"
    "{%- if add_generation_prompt -%}<|im_start|>assistant\n{%- endif -%}{% if false %} </think> "
    "{% endif %}";

static void started(struct world *w) {
    world_init(w);
    world_use_template(w, hermes, sizeof(hermes) - 1);
    w->model.max_context = 16384;
    world_start(w);
}

/* Turns the loop until generation @i was submitted: a thread prepares each further round. */
static void wait_for(struct world *w, uint32_t i) {
    time_t until = time(NULL) + 20;

    while (w->port.n <= i && time(NULL) < until)
        world_turn(w);
    cr_assert_gt(w->port.n, i, "generation %u did not come", i);
}

static void say(struct world *w, uint32_t i, const char *text) {
    wait_for(w, i);
    fake_accept(&w->port, i);
    fake_tokens(&w->port, i, text);
    fake_finish(&w->port, i, FINISH_STOP);
    world_turns(w, 4);
}

static yyjson_doc *receive(struct world *w, int fd, yyjson_val **content) {
    struct reply r;

    world_receive(w, fd, &r);
    cr_assert_eq(r.status, 200, "%s", r.body.data);
    yyjson_doc *doc = yyjson_read(r.body.data, r.body.len, 0);
    reply_deinit(&r);
    *content = yyjson_obj_get(yyjson_doc_get_root(doc), "content");
    return doc;
}

static const char *member(yyjson_val *list, size_t i, const char *pointer) {
    const char *s = yyjson_get_str(yyjson_ptr_get(yyjson_arr_get(list, i), pointer));

    return s ? s : "";
}

#define FOUND                                                                                      \
    "<functions>\n"                                                                                \
    R"(<function>{"description":"Sky","name":"weather","parameters":{)"                            \
    R"("type":"object"}}</function>)"                                                              \
    "\n</functions>"

Test(anthropic_search, an_answer_goes_on_behind_a_search) {
    yyjson_val *content;
    struct world w;

    started(&w);
    int fd = world_connect(&w);
    world_post(&w, fd, "/v1/messages", BODY("]"));
    say(&w, 0, "Let me see." CALL("tool_search_tool_regex", R"({"pattern": "weath"})"));
    cr_expect_str_eq(fake_prompt(&w.port.r[0]), "[tool_search_tool_regex]|user\nhi||assistant");
    say(&w, 1, CALL("weather", R"({"a": 1})"));
    cr_expect_str_eq(fake_prompt(&w.port.r[1]),
                     "[tool_search_tool_regex]|user\nhi||assistant\nLet me see.|"
                     R"(tool_search_tool_regex {"pattern": "weath"}|||tool)"
                     "\n" FOUND "||assistant");
    yyjson_doc *doc = receive(&w, fd, &content);
    cr_assert_eq(yyjson_arr_size(content), 4);
    cr_expect_str_eq(member(content, 0, "/text"), "Let me see.");
    cr_expect_str_eq(member(content, 1, "/type"), "server_tool_use");
    cr_expect_str_eq(member(content, 1, "/input/pattern"), "weath");
    cr_expect_eq(strncmp(member(content, 1, "/id"), "srvtoolu_", 9), 0);
    cr_expect_str_eq(member(content, 2, "/type"), "tool_search_tool_result");
    cr_expect_str_eq(member(content, 2, "/tool_use_id"), member(content, 1, "/id"));
    cr_expect_str_eq(member(content, 2, "/content/tool_references/0/tool_name"), "weather");
    cr_expect_str_eq(member(content, 3, "/type"), "tool_use");
    cr_expect_str_eq(member(content, 3, "/name"), "weather");
    yyjson_val *root = yyjson_doc_get_root(doc);
    cr_expect_str_eq(yyjson_get_str(yyjson_obj_get(root, "stop_reason")), "tool_use");
    cr_expect_eq(
        yyjson_get_int(yyjson_ptr_get(root, "/usage/server_tool_use/tool_search_requests")), 1);
    cr_expect_eq(yyjson_get_int(yyjson_ptr_get(root, "/usage/input_tokens")) +
                     yyjson_get_int(yyjson_ptr_get(root, "/usage/cache_read_input_tokens")),
                 w.port.r[0].m.n_prompt + w.port.r[1].m.n_prompt);

    /* The client sends all content back: the prompt continues from what the model saw. */
    char *said = yyjson_val_write(content, 0, NULL), *body = NULL;
    cr_assert_gt(asprintf(&body,
                          R"(%s,{"role":"assistant","content":%s},{"role":"user",)"
                          R"("content":[{"type":"tool_result","tool_use_id":"%s",)"
                          R"("content":"blue"}]}]})",
                          BEGIN, said, member(content, 3, "/id")),
                 0);
    char *before = strdup(fake_prompt(&w.port.r[1]));
    world_post(&w, fd, "/v1/messages", body);
    say(&w, 2, "Blue.");
    cr_expect_eq(strncmp(fake_prompt(&w.port.r[2]), before, strlen(before)), 0, "%s",
                 fake_prompt(&w.port.r[2]));
    yyjson_doc_free(doc);
    doc = receive(&w, fd, &content);
    cr_expect_str_eq(member(content, 0, "/text"), "Blue.");
    yyjson_doc_free(doc);
    free(said);
    free(body);
    free(before);
    world_drop(&w, fd);
    world_stop(&w);
}

Test(anthropic_search, a_stream_has_the_same_blocks) {
    static const char *const order[] = {
        R"("type":"server_tool_use")",
        "input_json_delta",
        R"("type":"content_block_stop","index":0)",
        R"("index":1,"content_block":{"type":"tool_search_tool_result")",
        R"("tool_name":"time")",
        R"("type":"content_block_stop","index":1)",
        R"("index":2,"content_block":{"type":"thinking")",
        R"("thinking":"Mm")",
        R"("index":3,"content_block":{"type":"text")",
        R"("text":"Found.")",
        R"("stop_reason":"end_turn")",
        "message_stop"};
    struct reply r;
    struct world w;

    started(&w);
    int fd = world_connect(&w);
    world_post(&w, fd, "/v1/messages", BODY(R"(],"stream":true)"));
    say(&w, 0, CALL("tool_search_tool_regex", R"({"pattern": "(?i)clock"})"));
    say(&w, 1, "<think>\nMm\n</think>\n\nFound.");
    world_receive(&w, fd, &r);
    const char *at = r.body.data;
    for (size_t i = 0; at && i < sizeof(order) / sizeof(order[0]); i++) {
        const char *next = strstr(at, order[i]);

        cr_expect(next, "%s is not behind\n%s", order[i], at);
        at = next;
    }
    reply_deinit(&r);
    world_drop(&w, fd);
    world_stop(&w);
}

Test(anthropic_search, a_wrong_pattern_is_told_to_the_model) {
    yyjson_val *content;
    struct world w;

    started(&w);
    int fd = world_connect(&w);
    world_post(&w, fd, "/v1/messages", BODY("]"));
    say(&w, 0,
        CALL("tool_search_tool_regex", R"({"pattern": "("})")
            CALL("tool_search_tool_regex", R"({"pattern": 7})"));
    say(&w, 1, CALL("tool_search_tool_regex", R"({"pattern": "zzz"})"));
    cr_expect(strstr(fake_prompt(&w.port.r[1]), "invalid_tool_input"));
    say(&w, 2, "No.");
    cr_expect(strstr(fake_prompt(&w.port.r[2]), "|tool\nNo tool was found."));
    yyjson_doc *doc = receive(&w, fd, &content);
    cr_expect_eq(yyjson_arr_size(content), 7);
    cr_expect_str_eq(member(content, 2, "/content/error_code"), "invalid_tool_input");
    cr_expect_str_eq(member(content, 3, "/tool_use_id"), member(content, 1, "/id"));
    cr_expect_str_eq(member(content, 6, "/text"), "No.");
    yyjson_doc_free(doc);
    world_drop(&w, fd);
    world_stop(&w);
}

Test(anthropic_search, an_answer_ends_where_the_client_has_to_act) {
    static const char other[] =
        CALL("tool_search_tool_regex", R"({"pattern": "t"})") CALL("time", "{}");
    yyjson_val *content;
    struct world w;

    started(&w);
    int fd = world_connect(&w);
    world_post(&w, fd, "/v1/messages", BODY("]"));
    say(&w, 0, other);
    yyjson_doc *doc = receive(&w, fd, &content);
    cr_expect_eq(yyjson_arr_size(content), 3);
    cr_expect_str_eq(member(content, 2, "/content/tool_references/1/tool_name"), "time");
    cr_expect_str_eq(yyjson_get_str(yyjson_obj_get(yyjson_doc_get_root(doc), "stop_reason")),
                     "tool_use");
    yyjson_doc_free(doc);

    world_post(&w, fd, "/v1/messages", BODY("]"));
    for (uint32_t i = 1; i <= 8; i++)
        say(&w, i, CALL("tool_search_tool_regex", R"({"pattern": "t"})"));
    doc = receive(&w, fd, &content);
    cr_expect_eq(yyjson_arr_size(content), 16);
    cr_expect_str_eq(yyjson_get_str(yyjson_obj_get(yyjson_doc_get_root(doc), "stop_reason")),
                     "pause_turn");
    cr_expect_eq(w.port.n, 9);
    yyjson_doc_free(doc);
    world_drop(&w, fd);
    world_stop(&w);
}

/* world_stop() asserts that nothing is left. */
Test(anthropic_search, a_client_may_leave_at_any_time) {
    struct world w;

    started(&w);
    for (int turns = 0; turns < 8; turns++) {
        int fd = world_connect(&w);
        uint32_t i = w.port.n;

        world_post(&w, fd, "/v1/messages", turns % 2 ? BODY(R"(],"stream":true)") : BODY("]"));
        wait_for(&w, i);
        fake_accept(&w.port, i);
        fake_tokens(&w.port, i, CALL("tool_search_tool_regex", R"({"pattern": "t"})"));
        fake_finish(&w.port, i, FINISH_STOP);
        world_turns(&w, turns / 2);
        world_drop(&w, fd);
        world_turns(&w, 10);
    }
    world_stop(&w);
}
