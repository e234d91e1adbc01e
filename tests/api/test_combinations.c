/*
 * Sends bodies with random members that shape the answer (numbers of choices and tokens, log
 * probabilities, echo, streams, tools, formats, reasoning) to the routes that generate or compute
 * vectors, while the model writes one of a few texts. Each value is valid alone; no combination may
 * stop the process. Every answer is a 200 whose body or events are JSON, or a 4xx with a reason.
 */

#include <criterion/criterion.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <yyjson.h>

#include "base/rng.h"
#include "responses_support.h"
#include "tests/api/tiny.h"
#include "tests/support/few.h"

#define PATIENCE_S 30 /* longest wait for one answer, on a busy machine under sanitizers */
#define MEMBERS 40
#define VALUES 7
#define CASES FEWER(2000u, 800u) /* bodies for each route */

/* A member and its possible values; the first member of a route is in every body. */
struct member {
    const char *key, *value[VALUES];
};

#define SCHEMA R"({"type":"object","properties":{"a":{"type":"integer"}}})"
#define FORMAT R"({"type":"json_schema","json_schema":{"name":"x","schema":)" SCHEMA "}}"
#define FUNCTION R"({"name":"f","parameters":)" SCHEMA "}"
#define ME R"({"role":"user","content":"hi"})"
#define USED                                                                                       \
    "[" ME R"(,{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":)"                \
    R"("function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool",)"                    \
    R"("tool_call_id":"c","content":"1"}])"

/* Members of every route that generates. */
#define COMMON                                                                                     \
    {"stream", {"true", "false"}}, {"stop", {R"("b")", R"(["b","xyz"])", "[]"}}, {"seed", {"1"}},  \
        {"min_tokens", {"0", "2"}}, {"ignore_eos", {"true"}}, {"logits_digest", {"true"}},         \
        {"prompt_logprobs", {"0", "1"}}, {"complete_output", {"true", "false"}},                   \
        {"grammar", {R"("")"}}, {"speculation", {R"("off")"}}, {"stop_token_ids", {"[98]", "[]"}}, \
    {                                                                                              \
        "skip_special_tokens", {                                                                   \
            "false"                                                                                \
        }                                                                                          \
    }

static const struct member chat[] = {
    {"messages", {"[" ME "]", USED, R"([{"role":"system","content":"s"},)" ME "]"}},
    COMMON,
    {"n", {"1", "2", "3"}},
    {"stream_options", {R"({"include_usage":true})", R"({"continuous_usage_stats":true})"}},
    {"max_tokens", {"1", "2", "20"}},
    {"logprobs", {"true", "false"}},
    {"top_logprobs", {"0", "1", "2"}},
    {"response_format", {R"({"type":"text"})", R"({"type":"json_object"})", FORMAT}},
    {"tools", {R"([{"type":"function","function":)" FUNCTION "}]", "[]"}},
    {"tool_choice", {R"("none")", R"("auto")", R"("required")"}},
    {"parallel_tool_calls", {"true", "false"}},
    {"reasoning_effort", {R"("none")", R"("low")", R"("high")"}},
    {"include_reasoning", {"false"}},
    {"thinking_budget", {"0", "1"}},
    {"prediction", {R"({"type":"content","content":"ab"})"}},
    {"add_generation_prompt", {"false"}},
};

#define WRITTEN                                                                                    \
    COMMON, {"n", {"1", "2", "3"}}, {"best_of", {"1", "3"}}, {"max_tokens", {"0", "1", "20"}},     \
        {"logprobs", {"0", "1", "2"}}, {"echo", {"true", "false"}}, {"suffix", {R"("z")"}},        \
        {"stream_options",                                                                         \
         {R"({"include_usage":)"                                                                   \
          "true}"}},                                                                               \
        {"response_format", {R"({"type":"json_object"})", FORMAT}}, {                              \
        "add_special_tokens", {                                                                    \
            "false"                                                                                \
        }                                                                                          \
    }

static const struct member text[] = {
    {"prompt", {R"("ab")", R"(["a","b"])", "[97,98]", "[[97],[98,99]]", R"("")"}},
    WRITTEN,
};

#define COMPLETION                                                                                 \
    COMMON, {"n", {"1", "2", "3"}}, {"n_predict", {"-1", "0", "1", "20"}},                         \
        {"n_probs", {"0", "1", "2"}}, {"echo", {"true", "false"}},                                 \
        {"post_sampling_probs", {"true"}}, {"return_tokens", {"true"}},                            \
        {"timings_per_token", {"true"}}, {"response_fields", {R"(["content"])", "[]"}},            \
        {"json_schema", {SCHEMA}}, {"cache_prompt", {"false"}}, {                                  \
        "return_progress", {                                                                       \
            "true"                                                                                 \
        }                                                                                          \
    }

static const struct member completion[] = {
    {"prompt", {R"("ab")", R"(["a","b"])", "[97,98]", R"({"prompt_string":"a"})"}},
    COMPLETION,
};

static const struct member infill[] = {
    {"input_prefix", {R"("a")", R"("")"}},
    {"input_suffix", {R"("b")", R"("")"}},
    {"prompt", {R"("c")", R"("")"}},
    {"input_extra", {R"([{"filename":"x","text":"y"}])", "[]"}},
    COMPLETION,
};

static const struct member messages[] = {
    {"max_tokens", {"1", "2", "20", "2000"}},
    {"messages", {"[" ME "]"}},
    {"stream", {"true", "false"}},
    {"stop_sequences", {R"(["b"])", "[]"}},
    {"system", {R"("s")", R"([{"type":"text","text":"s"}])"}},
    {"thinking",
     {R"({"type":"enabled","budget_tokens":1024})", R"({"type":"disabled"})",
      R"({"type":"adaptive"})"}},
    {"tools", {R"([{"name":"f","input_schema":)" SCHEMA "}]", "[]"}},
    {"tool_choice",
     {R"({"type":"any"})", R"({"type":"auto","disable_parallel_tool_use":true})",
      R"({"type":"none"})", R"({"type":"tool","name":"f"})"}},
    {"output_config",
     {R"({"format":{"type":"json_schema","schema":)" SCHEMA "}}", R"({"effort":"low"})"}},
    {"temperature", {"0", "1"}},
    {"top_k", {"1"}},
};

static const struct member responses[] = {
    {"input",
     {R"("hi")", "[" ME "]",
      R"([{"type":"function_call","call_id":"c","name":"f","arguments":"{}"},)"
      R"({"type":"function_call_output","call_id":"c","output":"1"}])"}},
    {"stream", {"true", "false"}},
    {"background", {"true", "false"}},
    {"store", {"true", "false"}},
    {"instructions", {R"("s")"}},
    {"max_output_tokens", {"16", "20"}},
    {"include",
     {R"(["message.output_text.logprobs"])", R"(["reasoning.encrypted_content"])", "[]"}},
    {"top_logprobs", {"0", "1", "2"}},
    {"tools",
     {R"([{"type":"function","name":"f","parameters":)" SCHEMA "}]",
      R"([{"type":"custom","name":"f"}])", "[]"}},
    {"tool_choice", {R"("none")", R"("auto")", R"("required")"}},
    {"text",
     {R"({"format":{"type":"json_object"}})",
      R"({"format":{"type":"json_schema","name":"x","schema":)" SCHEMA "}}"}},
    {"reasoning", {R"({"effort":"low","summary":"auto"})", R"({"effort":"none"})"}},
    {"truncation", {R"("auto")", R"("disabled")"}},
    {"parallel_tool_calls", {"true", "false"}},
    {"max_tool_calls", {"1"}},
    {"return_progress", {"true"}},
    {"timings_per_token", {"true"}},
};

#define OLLAMA                                                                                     \
    {"stream", {"true", "false"}}, {"format", {R"("json")", SCHEMA, R"("")"}},                     \
        {"think", {"true", "false", R"("low")"}}, {"logprobs", {"true", "false"}},                 \
        {"top_logprobs", {"0", "1", "2"}}, {"keep_alive", {"0", "-1", R"("5m")"}},                 \
        {"options",                                                                                \
         {R"({"num_predict":0})", R"({"num_predict":1})", R"({"num_predict":-1})",                 \
          R"({"stop":["b"],"seed":1})"}},                                                          \
    {                                                                                              \
        "complete_output", {                                                                       \
            "true"                                                                                 \
        }                                                                                          \
    }

static const struct member ollama_chat[] = {
    {"messages", {"[" ME "]", "[]"}},
    OLLAMA,
    {"tools", {R"([{"type":"function","function":)" FUNCTION "}]", "[]"}},
};

static const struct member ollama_generate[] = {
    {"prompt", {R"("ab")", R"("")"}},
    OLLAMA,
    {"raw", {"true"}},
    {"suffix", {R"("z")"}},
    {"system", {R"("s")"}},
    {"context", {"[1,2]", "[]"}},
};

#define VECTORS                                                                                    \
    {"encoding_format", {R"("float")", R"("base64")"}}, {"dimensions", {"1", "2"}},                \
        {"pooling", {R"("last")", R"("mean")", R"("cls")", R"("none")"}},                          \
        {"normalize", {"true", "false"}}, {                                                        \
        "embd_normalize", {                                                                        \
            "2"                                                                                    \
        }                                                                                          \
    }

static const struct member embeddings[] = {
    {"input", {R"("ab")", R"(["a","b"])", "[97,98]", "[[97],[98]]"}},
    VECTORS,
};

static const struct member embedding[] = {
    {"content", {R"("ab")", R"(["a","b"])"}},
    VECTORS,
};

static const struct member rerank[] = {
    {"query", {R"("q")"}},      {"documents", {R"(["a","b"])", R"([{"text":"a"}])"}},
    {"top_n", {"0", "1", "5"}}, {"return_documents", {"true", "false"}},
    {"raw_scores", {"true"}},
};

#define ROUTE(path, members)                                                                       \
    { path, members, ARRAY_SIZE(members) }

static const struct route {
    const char *path;
    const struct member *member;
    size_t n;
} routes[] = {
    ROUTE("/v1/chat/completions", chat),     ROUTE("/v1/completions", text),
    ROUTE("/completion", completion),        ROUTE("/v1/messages", messages),
    ROUTE("/v1/responses", responses),       ROUTE("/api/chat", ollama_chat),
    ROUTE("/api/generate", ollama_generate), ROUTE("/v1/embeddings", embeddings),
    ROUTE("/embedding", embedding),          ROUTE("/v1/rerank", rerank),
};

static const char *const scripts[] = {
    "",
    "a",
    "ab",
    "<think>x</think>ab",
    "\xC3\xA9\xFF\xE2",
    R"({"a": 1})",
    "<tool_call>\n{\"name\": \"f\", \"arguments\": {\n\"a\": 1}}\n</tool_call>",
};

static struct world w;
static char now[4096]; /* the request that is under way, for the report of a crash */

/* Reports the request that was under way. A signal handler. */
static void report(int sig) {
    if (write(STDERR_FILENO, now, strlen(now)) < 0 || write(STDERR_FILENO, "\n", 1) < 0)
        _exit(1);
    signal(sig, SIG_DFL);
    raise(sig);
}

static const char *pick(struct rng *rng, const struct member *m) {
    size_t n = 0;

    while (n < VALUES && m->value[n])
        n++;
    return m->value[rng_below(rng, n)];
}

/* Writes a body with the first member of @route and others, of which a random part is chosen. */
static void make_body(struct rng *rng, const struct route *route, struct buf *out) {
    uint64_t part = 1 + rng_below(rng, 6); /* in eighths */

    cr_assert(route->n <= MEMBERS);
    buf_clear(out);
    buf_add_str(out, R"({"model":"a")");
    for (size_t i = 0; i < route->n; i++) {
        const struct member *m = &route->member[i];

        if (i == 0 || rng_below(rng, 8) < part || strcmp(m->key, "messages") == 0 ||
            strcmp(m->key, "documents") == 0)
            buf_printf(out, R"(,"%s":%s)", m->key, pick(rng, m));
    }
    buf_add(out, "}", 2);
}

static bool is_json(const char *text, size_t len) {
    yyjson_doc *doc = yyjson_read(text, len, 0);

    yyjson_doc_free(doc);
    return doc;
}

/* Returns true if a line of a stream is JSON, or belongs to an event with JSON. */
static bool is_line(const char *line, size_t len) {
    if (len == 0 || line[0] == ':' || strncmp(line, "event: ", MIN(len, 7u)) == 0 ||
        strncmp(line, "id: ", MIN(len, 4u)) == 0)
        return true;
    if (len > 6 && memcmp(line, "data: ", 6) == 0) {
        line += 6;
        len -= 6;
    }
    return (len == 6 && memcmp(line, "[DONE]", 6) == 0) || is_json(line, len);
}

static bool is_stream(const char *text, size_t len) {
    for (const char *end = text + len; text < end;) {
        const char *eol = memchr(text, '\n', (size_t)(end - text));
        size_t n = (size_t)((eol ? eol : end) - text);

        if (!is_line(text, n))
            return false;
        text += n + 1;
    }
    return true;
}

/* Sends one body and checks its answer. Returns the status. */
static int ask(const char *path, const char *body) {
    int most = w.port.turn ? 600 : 500;
    struct reply r;

    snprintf(now, sizeof(now), R"(%s %s, script "%s")", path, body,
             w.port.script ? w.port.script : "");
    alarm(PATIENCE_S);
    world_ask(&w, path, body, &r);
    cr_assert(r.status == 200 || (r.status >= 400 && r.status < most), "%d %.*s for %s", r.status,
              (int)r.body.len, r.body.data, now);
    cr_assert(is_json(r.body.data, r.body.len) ||
                  (r.status == 200 && is_stream(r.body.data, r.body.len)),
              "%.*s for %s", (int)r.body.len, r.body.data, now);
    for (int i = 0; i < 100 && api_busy(w.api); i++) /* waits for responses in the background */
        world_turn(&w);
    w.port.n = 0;
    int status = r.status;
    reply_deinit(&r);
    return status;
}

static void start(void) {
    static const char *const aliases[] = {"a", NULL};

    signal(SIGABRT, report);
    signal(SIGSEGV, report);
    signal(SIGALRM, report);
    w.model.aliases = aliases;
    w.model.max_context = 4096;
    world_start(&w);
}

/* Sends @n random bodies to a route. */
static void try(const struct route *route, uint64_t seed, uint32_t n) {
    CLEANUP(buf_deinit) struct buf body = {.max = 1 << 16};
    struct rng rng = {seed};
    uint32_t n_ok = 0;

    for (uint32_t i = 0; i < n; i++) {
        if (!w.port.turn)
            w.port.script = scripts[rng_below(&rng, ARRAY_SIZE(scripts))];
        make_body(&rng, route, &body);
        n_ok += ask(route->path, body.data) == 200;
    }
    cr_expect(n_ok > n / 20, "%s answers %u of %u bodies", route->path, n_ok, n);
}

Test(combinations, members_that_shape_an_answer_meet_in_any_way) {
    responses_init(&w);
    world_see(&w);
    w.model.ranks = true;
    w.model.pair.before = w.model.pair.behind = "";
    w.model.pair.between = "<|im_end|>";
    start();
    for (size_t i = 0; i < ARRAY_SIZE(routes); i++)
        try(&routes[i], i, CASES);
    alarm(0);
    world_stop(&w);
}

Test(combinations, members_of_infills_meet_in_any_way) {
    world_init(&w);
    tokenizer_free((struct tokenizer *)(uintptr_t)w.model.tokenizer);
    w.model.tokenizer = tiny_fim_tokenizer();
    start();
    try(&(struct route)ROUTE("/infill", infill), 1, CASES);
    alarm(0);
    world_stop(&w);
}

/* ---- a worker that sends anything ---- */

#define WILD 24 /* one value in as many is not what a worker would send */
#define MOST 64 /* tokens of an event */

static struct rng worker_rng;
static struct buf events = {.max = 1 << 20};

static uint32_t below(uint32_t n) {
    return (uint32_t)rng_below(&worker_rng, n);
}

static bool wild(void) {
    return below(WILD) == 0;
}

static uint32_t count_or(uint32_t usual) {
    static const uint32_t extreme[] = {0, 1, 3, 255, 4096, INT32_MAX, UINT32_MAX};

    return wild() ? extreme[below(ARRAY_SIZE(extreme))] : usual;
}

static int64_t time_or(int64_t usual) {
    static const int64_t extreme[] = {0, 1, INT64_MAX};

    return wild() ? extreme[below(ARRAY_SIZE(extreme))] : usual;
}

static float any_float(void) {
    static const float extreme[] = {0, NAN, INFINITY, -INFINITY, 1e30f};

    return wild() ? extreme[below(ARRAY_SIZE(extreme))] : -(float)below(100) / 8;
}

/* Returns a character, an end token (256 and above) or, in an alternative (@top), anything. */
static int32_t any_token(bool top) {
    static const int32_t extreme[] = {255, 256, 257, 260, -1, INT32_MAX, INT32_MIN, TINY_ALL};

    return wild() ? extreme[below(top || below(8) == 0 ? ARRAY_SIZE(extreme) : 4)]
                  : (int32_t)(32 + below(96));
}

static struct str any_text(void) {
    static const char *const texts[] = {"", "reason",
                                        R"(")"
                                        "\x01\xFF\r\n",
                                        "context_length_exceeded"};
    const char *s = texts[below(ARRAY_SIZE(texts))];

    return (struct str){s, (uint32_t)strlen(s)};
}

/* Sends @e as a worker does, through a frame. */
static void send_event(struct fake_port *f, struct event *e) {
    struct event_cursor at;

    buf_clear(&events);
    cr_assert_eq(msg_event_pack(&events, e), 0);
    msg_events_begin(&at, events.data, (uint32_t)events.len);
    cr_assert_eq(msg_events_next(&at, e), 0);
    api_on_event(f->model, e);
}

/* Sends request @i the next event, some of whose members are not what a worker would send. */
static void misbehave(struct fake_port *f, uint32_t i) {
    static struct event_top top[MOST * SUBMIT_TOP_MAX];
    static float floats[MOST];
    static int32_t tokens[MOST];
    static uint64_t digests[MOST];
    struct fake_request *r = &f->r[i];
    bool pooled = r->m.flags & SUBMIT_POOLS, ends = r->accepted && below(4) == 0;
    int64_t now = clock_now(f->clock);

    for (size_t k = 0; k < ARRAY_SIZE(top); k++)
        top[k] = (struct event_top){any_token(true), any_float()};
    for (size_t k = 0; k < MOST; k++) {
        floats[k] = any_float();
        tokens[k] = any_token(false);
    }
    r->begun_ns = r->begun_ns ? r->begun_ns : now;
    struct event e = {.id = wild() ? r->id + below(3) : r->id,
                      .kind = wild()         ? (uint16_t)below(EVENT_FINISH + 1)
                              : !r->accepted ? EVENT_ACCEPTED
                              : ends         ? EVENT_FINISH
                                             : EVENT_TOKENS,
                      .finish = wild() ? (uint16_t)below(FINISH_ERROR + 1) : FINISH_STOP,
                      .status = (uint16_t)count_or(400 + below(200)),
                      .n_top = wild() ? (uint8_t)below(SUBMIT_TOP_MAX + 1) : r->m.n_top,
                      .n_prompt_top = wild() ? (uint8_t)below(3) : r->m.n_prompt_top,
                      .from = count_or(r->n_sent),
                      .n_tokens = pooled && !wild() ? 0 : below(4),
                      .n_cached = count_or(1),
                      .n_drafted = count_or(8),
                      .n_accepted = count_or(4),
                      .retry_ms = count_or(2000),
                      .n_predicted = count_or(4),
                      .n_predicted_accepted = count_or(2),
                      .first_step_ns = time_or(r->begun_ns),
                      .prompt_end_ns = time_or(r->begun_ns + 1),
                      .computed_ns = time_or(now),
                      .tokens = tokens,
                      .logprobs = r->m.flags & SUBMIT_LOGPROBS && !wild() ? floats : NULL,
                      .top = r->m.n_top && !wild() ? top : NULL,
                      .digests = r->m.flags & SUBMIT_DIGESTS && !wild() ? digests : NULL,
                      .prompt_lp = floats,
                      .prompt_top = wild() ? NULL : top,
                      .text = any_text(),
                      .code = any_text(),
                      .param = any_text(),
                      .vector = floats};

    if (r->m.flags & SUBMIT_PROMPT_LOGPROBS && r->n_sent == 0 && e.kind >= EVENT_TOKENS) {
        uint32_t n = wild() ? below(MOST) : r->m.n_prompt - 1;

        e.n_prompt_lp = MIN(n, (uint32_t)MOST);
    }
    if (wild() || (pooled && e.kind == EVENT_FINISH))
        e.n_vector = wild() ? below(9) : r->m.flags & SUBMIT_SCORE ? 1 : FAKE_EMBD;
    r->accepted = true;
    r->finished = e.id == r->id && (e.kind == EVENT_FINISH || e.kind == EVENT_REJECTED);
    r->n_sent = MAX(r->n_sent, MIN(e.from, r->n_sent) + e.n_tokens);
    send_event(f, &e);
}

Test(combinations, no_event_of_a_worker_stops_the_front) {
    responses_init(&w);
    world_see(&w);
    w.model.ranks = true;
    w.model.pair.before = w.model.pair.behind = "";
    w.model.pair.between = "<|im_end|>";
    start();
    w.port.turn = misbehave;
    for (size_t i = 0; i < ARRAY_SIZE(routes); i++) {
        worker_rng.state = i;
        try(&routes[i], 100 + i, CASES / 4);
    }
    alarm(0);
    world_stop(&w);
    buf_deinit(&events);
}
