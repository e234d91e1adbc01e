/*
 * scripted_server - weft's HTTP front with a model that says what a file tells it to, so that real
 * clients can be led through whole conversations. The tokenizer and the chat template are those of
 * a GGUF file; only what a worker does is played here: accept, tokens a few at a time, finish.
 *
 *      scripted_server --model FILE.gguf --script FILE [--listen 127.0.0.1:0] [--chat-template
 * FILE]
 *                      [--api-keys FILE] [--log FILE] [--marker TEXT] [--tokens N] [--pause-ms N]
 *                      [--keepalive-ms N] [--name ID] [--mmproj FILE]
 *
 * Prints "ready http://HOST:PORT" on stdout once it serves, and ends on SIGTERM. A small model file
 * is made by `weft-synth` (tests/e2e/weftd.py: tiny_model()); its template writes tool calls
 * as <tool_call>{"name": .., "arguments": {..}}</tool_call> and results as <tool_response>.
 *
 * The script is a list of answers. Each begins with a line `===`, with conditions behind it, and
 * goes on to the next such line (without the last line break). The first answer whose conditions
 * all hold for the prompt is given:
 *      === results=2 has=some text to the end of the line
 * results: how often --marker (<tool_response>) is in the prompt; has: a text that is in it; lacks:
 * one that is not (has and lacks end the line). No conditions: always. No answer fits: the request
 * fails with 500. `=== fail=503 ..` fails with this status. An answer ends with the model's end
 * token, or where max_tokens cuts it.
 *
 * --log: for each generation one line {"prompt", "n_prompt", "n_cached", "max_new", "answer":
 * number of the answer from 0 on, or -1, "session": what its session became}. n_cached, which
 * clients are told as cached tokens, is the longest prefix in common with one of the last prompts,
 * in whole pages.
 * --tokens: of one event (3). --pause-ms: between events (1). --mmproj: the header of this
 * projector file decides how many tokens pictures have; the log's prompt has them as those tokens.
 */

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <uv.h>
#include <yyjson.h>

#include "api/api.h"
#include "base/buf.h"
#include "base/gguf.h"
#include "base/list.h"
#include "base/log.h"
#include "vision/fit.h"
#include "vision/projector.h"

#define ANSWERS_MAX 64
#define CONTEXT 262144
#define PAGE 16
#define SEEN 8

struct answer {
    /* -1: any; 0: does not fail */
    int results, fail;
    char *has, *lacks;
    struct buf text;
};

struct run { /* one generation */
    struct list link;
    uint64_t id;
    struct tokens out;
    uint32_t n_sent, max_new, n_cached, n_prompt;
    int fail;
    bool accepted;
};

struct server {
    struct api_port port;
    struct api *api;
    struct api_opts opts;
    struct api_model model;
    struct tokenizer *tokenizer;
    struct template *template;
    uv_loop_t loop;
    uv_timer_t tick;
    uv_signal_t term, interrupt;
    struct list runs;
    struct answer answers[ANSWERS_MAX];
    uint32_t n_answers, n_seen;
    /* prompts */
    struct tokens seen[SEEN];
    FILE *log;
    const char *marker;
    uint32_t n_tokens, pause_ms;
};

static void die(const char *what, const char *why) {
    fprintf(stderr, "scripted_server: %s: %s\n", what, why);
    exit(1);
}

static void check(int r, const char *what, const struct err *err) {
    if (r < 0)
        die(what, err && *err->message ? err->message : strerror(-r));
}

/* ---- the script ---- */

static void read_file(const char *path, struct buf *out) {
    char chunk[4096];
    size_t n;
    FILE *f = fopen(path, "re");

    if (!f)
        die(path, strerror(errno));
    buf_init(out, 16 << 20);
    while ((n = fread(chunk, 1, sizeof(chunk), f)) > 0)
        check(buf_add(out, chunk, n), path, NULL);
    check(buf_add_char(out, 0), path, NULL);
    fclose(f);
}

/* The conditions in [s, end). */
static void read_conditions(struct answer *a, const char *s, const char *end) {
    while (s < end) {
        size_t n = strcspn(s, " \n");

        if (strncmp(s, "has=", 4) == 0 || strncmp(s, "lacks=", 6) == 0) {
            char **text = *s == 'h' ? &a->has : &a->lacks;

            s += *s == 'h' ? 4 : 6;
            *text = strndup(s, (size_t)(end - s));
            return;
        }
        if (strncmp(s, "results=", 8) == 0)
            a->results = atoi(s + 8);
        else if (strncmp(s, "fail=", 5) == 0)
            a->fail = atoi(s + 5);
        else if (n)
            die("script", "unknown condition");
        s += n + 1;
    }
}

static void read_script(struct server *s, const char *path) {
    CLEANUP(buf_deinit) struct buf text = {0};
    struct answer *a = NULL;

    read_file(path, &text);
    for (const char *line = text.data; *line;) {
        const char *end = line + strcspn(line, "\n");

        if (strncmp(line, "===", 3) == 0) {
            if (s->n_answers == ANSWERS_MAX)
                die(path, "too many answers");
            a = &s->answers[s->n_answers++];
            *a = (struct answer){.results = -1, .text = {.max = 16 << 20}};
            read_conditions(a, line + 3 + (line[3] == ' '), end);
        } else if (!a) {
            die(path, "must begin with ===");
        } else {
            check(buf_add(&a->text, line, (size_t)(end - line)), path, NULL);
            check(buf_add_char(&a->text, '\n'), path, NULL);
        }
        line = end + (*end == '\n');
    }
    for (uint32_t i = 0; i < s->n_answers; i++) { /* without the last line break */
        struct buf *b = &s->answers[i].text;

        if (b->len)
            b->data[--b->len] = 0;
    }
}

static int count(const char *text, const char *needle) {
    int n = 0;

    for (const char *at = text; (at = strstr(at, needle)); at += strlen(needle))
        n++;
    return n;
}

/* The number of the answer to @prompt, or -1. */
static int choose(const struct server *s, const char *prompt) {
    int results = count(prompt, s->marker);

    for (uint32_t i = 0; i < s->n_answers; i++) {
        const struct answer *a = &s->answers[i];

        if ((a->results < 0 || a->results == results) && (!a->has || strstr(prompt, a->has)) &&
            !(a->lacks && strstr(prompt, a->lacks)))
            return (int)i;
    }
    return -1;
}

/* ---- the worker ---- */

static struct run *run_free(struct run *r) {
    list_remove(&r->link);
    tokens_deinit(&r->out);
    free(r);
    return NULL;
}

static void finish(struct server *s, struct run *r) {
    struct event e = {.id = r->id, .kind = EVENT_FINISH, .from = r->n_sent, .finish = FINISH_STOP};

    if (r->fail) {
        e.finish = FINISH_ERROR;
        e.status = (uint16_t)r->fail;
        e.text = (struct str){"The script says so.", 19};
    } else if (r->n_sent >= r->max_new) {
        e.finish = FINISH_LENGTH;
    }
    run_free(r);
    api_on_event(api_first_model(s->api), &e);
}

static void step(struct server *s, struct run *r) {
    uint32_t most = (uint32_t)MIN(r->out.n, r->max_new);
    struct event e = {.id = r->id,
                      .kind = r->accepted ? EVENT_TOKENS : EVENT_ACCEPTED,
                      .from = r->n_sent,
                      .n_cached = r->n_cached,
                      .first_step_ns = clock_now(clock_monotonic())};

    if (r->accepted && (r->fail || r->n_sent >= most)) {
        finish(s, r);
        return;
    }
    if (r->accepted) {
        e.n_tokens = MIN(s->n_tokens, most - r->n_sent);
        e.tokens = r->out.id + r->n_sent;
        r->n_sent += e.n_tokens;
    }
    r->accepted = true;
    api_on_event(api_first_model(s->api), &e); /* may cancel it */
}

/* One event for each generation that was there when the tick began. */
static void on_tick(uv_timer_t *t) {
    struct server *s = t->data;
    uint64_t ids[256];
    uint32_t n = 0;

    LIST_FOREACH(node, &s->runs) {
        if (n < ARRAY_SIZE(ids))
            ids[n++] = LIST_ENTRY(node, struct run, link)->id;
    }
    for (uint32_t i = 0; i < n; i++) {
        LIST_FOREACH(node, &s->runs) {
            struct run *r = LIST_ENTRY(node, struct run, link);

            if (r->id == ids[i]) {
                step(s, r);
                break;
            }
        }
    }
    if (list_empty(&s->runs))
        uv_timer_stop(t);
}

/* Tokens in common with an earlier prompt, in whole pages; @m's takes the oldest one's place. */
static uint32_t look_up(struct server *s, const struct submit *m) {
    uint32_t best = 0;

    for (uint32_t i = 0; i < MIN(s->n_seen, SEEN); i++) {
        uint32_t n = 0;

        while (n + 1 < m->n_prompt && n < s->seen[i].n && s->seen[i].id[n] == m->tokens[n])
            n++;
        best = MAX(best, n / PAGE * PAGE);
    }
    struct tokens *place = &s->seen[s->n_seen++ % SEEN];
    place->n = 0;
    for (uint32_t i = 0; i < m->n_prompt; i++)
        check(tokens_add(place, m->tokens[i]), "prompt", NULL);
    return best;
}

static void log_run(struct server *s, const struct run *r, const struct submit *m,
                    const char *prompt, int answer) {
    char session[20];

    yyjson_mut_doc *doc = yyjson_mut_doc_new(NULL);
    yyjson_mut_val *root = yyjson_mut_obj(doc);

    yyjson_mut_doc_set_root(doc, root);
    yyjson_mut_obj_add_str(doc, root, "prompt", prompt);
    yyjson_mut_obj_add_uint(doc, root, "n_prompt", r->n_prompt);
    yyjson_mut_obj_add_uint(doc, root, "n_cached", r->n_cached);
    yyjson_mut_obj_add_uint(doc, root, "max_new", r->max_new);
    yyjson_mut_obj_add_int(doc, root, "answer", answer);
    snprintf(session, sizeof(session), "%016llx", (unsigned long long)m->session);
    yyjson_mut_obj_add_str(doc, root, "session", session);
    char *line = yyjson_mut_write(doc, YYJSON_WRITE_ALLOW_INVALID_UNICODE, NULL);
    fprintf(s->log, "%s\n", line ? line : "{}");
    fflush(s->log);
    free(line);
    yyjson_mut_doc_free(doc);
}

static int submit(struct api_port *p, const struct submit *m, uint32_t *sent) {
    struct server *s = CONTAINER_OF(p, struct server, port);
    CLEANUP(buf_deinit) struct buf prompt = {.max = 64 << 20};
    struct run *r = calloc(1, sizeof(*r));

    if (!r || tokenizer_decode(s->tokenizer, m->tokens, m->n_prompt, true, &prompt) < 0 ||
        buf_add_char(&prompt, 0) < 0)
        die("submit", "out of memory");
    int i = choose(s, prompt.data);
    *r = (struct run){.id = m->id,
                      .max_new = m->max_new,
                      .n_prompt = m->n_prompt,
                      .n_cached = look_up(s, m),
                      .fail = i < 0 ? 500 : s->answers[i].fail};
    if (i >= 0) {
        const struct buf *text = &s->answers[i].text;

        check(tokenizer_encode(s->tokenizer, text->data ? text->data : "", text->len,
                               TOKENIZE_SPECIAL, NULL, 0, &r->out),
              "script", NULL);
        check(tokens_add(&r->out, tokenizer_eos(s->tokenizer)), "script", NULL);
    }
    if (s->log)
        log_run(s, r, m, prompt.data, i);
    list_push_back(&s->runs, &r->link);
    uv_timer_start(&s->tick, on_tick, s->pause_ms, s->pause_ms);
    return 0;
}

static void cancel(struct api_port *p, uint64_t id) {
    struct server *s = CONTAINER_OF(p, struct server, port);

    LIST_FOREACH(node, &s->runs) {
        struct run *r = LIST_ENTRY(node, struct run, link);

        if (r->id == id) {
            run_free(r);
            return;
        }
    }
}

static void turn_end(struct api_port *p, const struct turn_end *m) {
    cancel(p, m->id);
}

/* ---- service ---- */

static void open_model(struct server *s, const char *path, const char *template) {
    struct gguf *g = NULL;
    struct err err = {0};
    struct gguf_str source;
    struct buf *text = calloc(1, sizeof(*text)); /* lives as long as the process */

    check(gguf_open(&g, path, &err), path, &err);
    check(tokenizer_new(&s->tokenizer, g, &err), path, &err);
    if (template) {
        read_file(template, text);
        source = (struct gguf_str){text->data, text->len - 1};
    } else {
        check(gguf_string(g, "tokenizer.chat_template", &source), path, NULL);
    }
    check(template_new(&s->template, source.data, source.len, &err), "chat template", &err);
    s->model.tokenizer = s->tokenizer;
    s->model.template = s->template;
    s->model.template_source = source.data;
    s->model.template_len = source.len;
    s->model.n_vocab = tokenizer_n_vocab(s->tokenizer);
}

static int decode(void *ctx, const void *data, size_t len, const struct picture_fit *fit,
                  struct picture *out, struct picture_layout *layout, struct err *err) {
    (void)ctx;
    return picture_decode_fit(data, len, fit, out, layout, err);
}

static void open_projector(struct server *s, const char *path) {
    static const uint8_t id[32] = {1};
    static struct projector p;
    struct gguf *g = NULL; /* lives as long as the process */
    struct err err = {0};

    check(gguf_open(&g, path, &err), path, &err);
    check(projector_read(&p, g, &err), path, &err);
    s->model.projector = &p;
    s->model.projector_id = id;
    s->opts.decode = decode;
}

static void on_signal(uv_signal_t *h, int signum) {
    struct server *s = h->data;

    (void)signum;
    api_close(s->api);
    uv_close((uv_handle_t *)&s->tick, NULL);
    uv_close((uv_handle_t *)&s->term, NULL);
    uv_close((uv_handle_t *)&s->interrupt, NULL);
}

static void listen_on(struct server *s, const char *address) {
    const char *colon = strrchr(address, ':');
    struct err err = {0};
    char host[64];
    int bound;

    if (!colon)
        die(address, "must be HOST:PORT");
    snprintf(host, sizeof(host), "%.*s", (int)(colon - address), address);
    check(api_listen_tcp(s->api, host, atoi(colon + 1), false, &bound, &err), address, &err);
    printf("ready http://%s:%d\n", host, bound);
    fflush(stdout);
}

static void serve(struct server *s, const char *address) {
    struct auth *keys = NULL;
    struct err err = {0};

    uv_loop_init(&s->loop);
    list_init(&s->runs);
    s->port = (struct api_port){.submit = submit, .cancel = cancel, .turn_end = turn_end};
    check(api_new(&s->api, &s->loop, &s->opts, &s->model, &s->port, clock_monotonic()), "api",
          NULL);
    check(api_read_keys(s->api, &keys, &err), "api-keys", &err);
    api_set_keys(s->api, keys);
    s->tick.data = s->term.data = s->interrupt.data = s;
    uv_timer_init(&s->loop, &s->tick);
    uv_signal_init(&s->loop, &s->term);
    uv_signal_init(&s->loop, &s->interrupt);
    uv_signal_start(&s->term, on_signal, SIGTERM);
    uv_signal_start(&s->interrupt, on_signal, SIGINT);
    api_set_health(s->api, API_SERVING);
    api_worker_up(api_first_model(s->api), NULL);
    listen_on(s, address);
    uv_run(&s->loop, UV_RUN_DEFAULT);
}

struct flags {
    const char *model, *script, *template, *address;
};

static void set_flag(struct server *s, struct flags *f, const char *flag, const char *v) {
    if (strcmp(flag, "--model") == 0)
        f->model = v;
    else if (strcmp(flag, "--script") == 0)
        f->script = v;
    else if (strcmp(flag, "--chat-template") == 0)
        f->template = v;
    else if (strcmp(flag, "--listen") == 0)
        f->address = v;
    else if (strcmp(flag, "--api-keys") == 0)
        s->opts.api_keys_file = v;
    else if (strcmp(flag, "--marker") == 0)
        s->marker = v;
    else if (strcmp(flag, "--mmproj") == 0)
        open_projector(s, v);
    else if (strcmp(flag, "--name") == 0)
        s->model.id = v;
    else if (strcmp(flag, "--tokens") == 0)
        s->n_tokens = (uint32_t)MAX(atoi(v), 1);
    else if (strcmp(flag, "--pause-ms") == 0)
        s->pause_ms = (uint32_t)MAX(atoi(v), 1);
    else if (strcmp(flag, "--keepalive-ms") == 0)
        s->opts.keepalive_ms = (uint32_t)MAX(atoi(v), 1);
    else if (strcmp(flag, "--log") != 0)
        die(flag, "unknown flag");
    else if (!(s->log = fopen(v, "we")))
        die(v, strerror(errno));
}

int main(int argc, char **argv) {
    static const char *const aliases[] = {NULL};
    static struct server s = {
        .marker = "<tool_response>",
        .n_tokens = 3,
        .pause_ms = 1,
        .opts = {.max_connections = 256,
                 .max_running = 64,
                 .max_queued = 64,
                 .max_n = 8,
                 .max_body_bytes = 32 << 20,
                 .picture_max_megapixels = 32,
                 .max_header_bytes = 64 << 10,
                 .header_timeout_ms = 10000,
                 .body_timeout_ms = 30000,
                 .idle_timeout_ms = 75000,
                 .keepalive_ms = 5000,
                 .stall_timeout_ms = 30000,
                 .stream_buffer_bytes = 256 << 10,
                 .web_page = true,
                 .slots = true,
                 .max_header_count = 200,
                 .max_stored = 1000,
                 .stored_bytes = 64 << 20,
                 .stored_ttl_s = 3600,
                 .owned_by = "weft",
                 .digests = true},
        .model = {.id = "scripted",
                  .aliases = aliases,
                  .max_context = CONTEXT,
                  .page_tokens = PAGE,
                  .n_pages = CONTEXT / PAGE},
    };
    struct flags f = {.address = "127.0.0.1:0"};

    signal(SIGPIPE, SIG_IGN);
    log_init(WLOG_INFO, "scripted");
    s.model.created_unix = time(NULL);
    for (int i = 1; i + 1 < argc; i += 2)
        set_flag(&s, &f, argv[i], argv[i + 1]);
    if (!f.model || !f.script)
        die("usage", "--model and --script are needed");
    open_model(&s, f.model, f.template);
    read_script(&s, f.script);
    serve(&s, f.address);
    return 0;
}
