#include "tests/front_sim/client.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct tolerance tolerance;

struct client {
    struct actor actor;
    char address[112];
    uint32_t number, from;
    enum fate fate;
    struct sock *sock;
    bool connected, done, leaves_at_end;
    struct ask ask[CLIENT_ASKS];
    uint32_t n_asks;
    /* numbers of complete requests and answers */
    uint32_t n_sent, n_answered;
    bool pipelines;
    /* bytes of request n_sent, of which `at` are sent */
    struct buf out;
    size_t at, stall_at;
    struct buf in;
    int64_t patience_ns;
    /* times of the last request, and of the last bytes that arrived */
    int64_t sent_ns, heard_ns;
    /* sim.stopped_ns at the later of both */
    int64_t stopped_ns;
    /* time since which the front waits for this client to read; 0: it does not */
    int64_t blocks_ns;
    size_t n_heard, reset_at;
    bool keeps_body;
    struct buf body;
    int status;
    /* the last answer announced the end of the connection */
    bool last_closes;
};

bool client_is_done(const struct client *c) {
    return c->done;
}

const struct buf *client_body(const struct client *c, int *status) {
    *status = c->status;
    return &c->body;
}

static void finish(struct client *c, bool resets) {
    sim_event("client done", c->number, c->n_answered);
    if (c->sock)
        sock_close(c->sock, resets);
    c->sock = NULL;
    c->done = true;
    c->actor.next_ns = INT64_MAX;
}

/* ---- answers ---- */

/* A head and the part of its body that has arrived. */
struct parsed {
    struct answer answer;
    struct buf body;
    size_t used;
    bool closes, whole, has_head;
};

static const char *header(const char *head, const char *end, const char *name, char out[80]) {
    size_t n = strlen(name);

    for (const char *p = head; p && p + n + 1 < end; p = memchr(p, '\n', (size_t)(end - p))) {
        p += *p == '\n';
        if (strncasecmp(p, name, n) != 0 || p[n] != ':')
            continue;
        const char *v = p + n + 1 + strspn(p + n + 1, " ");
        size_t len = strcspn(v, "\r\n");

        snprintf(out, 80, "%.*s", (int)MIN(len, (size_t)79), v);
        return out;
    }
    return NULL;
}

/* Reads the chunks at @at. Returns true if the last one has arrived. */
static bool read_chunks(const struct client *c, size_t *at, struct buf *body) {
    for (;;) {
        const char *p = c->in.data + *at;
        const char *line = memchr(p, '\n', c->in.len - *at);

        if (!line)
            return false;
        char *end = NULL;
        size_t n = strtoul(p, &end, 16), begin = (size_t)(line + 1 - c->in.data);
        if (end == p)
            sim_fail("FORM", R"(client %u: a chunk begins with "%.20s": %s)", c->number, p,
                     c->in.data);
        if (c->in.len < begin + n + 2) {
            if (n > 0)
                buf_add(body, c->in.data + begin, MIN(n, c->in.len - begin));
            return false;
        }
        buf_add(body, c->in.data + begin, n);
        *at = begin + n + 2;
        if (n == 0)
            return true;
    }
}

static void parse(const struct client *c, struct parsed *p) {
    const char *head = c->in.data;
    const char *end = c->in.len > 0 ? memmem(head, c->in.len, "\r\n\r\n", 4) : NULL;
    char value[80];

    *p = (struct parsed){.body = {.max = 1 << 24}};
    if (!end)
        return;
    p->has_head = true;
    size_t at = (size_t)(end + 4 - head);
    if (strncmp(head, "HTTP/1.1 ", 9) != 0)
        sim_fail("FORM", R"(client %u: an answer begins with "%.30s")", c->number, head);
    p->answer.status = atoi(head + 9);
    p->answer.retry_after = header(head, end, "Retry-After", value) != NULL;
    p->closes = header(head, end, "Connection", value) && strcasecmp(value, "close") == 0;
    if (header(head, end, "Transfer-Encoding", value)) {
        p->whole = read_chunks(c, &at, &p->body);
    } else if (header(head, end, "Content-Length", value)) {
        size_t n = strtoul(value, NULL, 10);

        p->whole = c->in.len >= at + n;
        buf_add(&p->body, c->in.data + at, MIN(n, c->in.len - at));
        at += MIN(n, c->in.len - at);
    } else {
        sim_fail("FORM", "client %u: an answer of unknown length: %.300s", c->number, head);
    }
    buf_add(&p->body, "", 0);
    p->used = at;
}

/* Returns whether the only model may not have been loaded when the last request was sent. */
static bool is_before_load(const struct client *c) {
    const struct tolerance *t = &tolerance;

    return c->sent_ns <= t->loaded_ns && (t->served_ns == 0 || c->sent_ns <= t->served_ns);
}

/* Accepts @status of an error if the scenario allows it. @head: the status in the head of the
 * answer, 200 if the error came later. */
static void tolerate(const struct client *c, const struct ask *a, int head, int status) {
    struct tolerance *t = &tolerance;
    bool refuses = t->refuse_503 || is_before_load(c);

    sim_note("client %u: request %u has status %d", c->number, a->number, status);
    /* Errors behind the heads of Ollama and of Responses do not distinguish 503 from 500. */
    bool is_unnamed =
        status == 500 && head == 200 &&
        (a->kind == ASK_OLLAMA_CHAT || a->kind == ASK_OLLAMA_GENERATE || a->kind == ASK_RESPONSES);
    /* Messages tells a model that cannot be loaded as an error of the service. */
    is_unnamed |= status == 500 && a->kind == ASK_MESSAGES;
    /* llama-server's page of a model that is being loaded has no answer yet */
    bool is_early = status == 503 && a->kind == ASK_PAGE && strcmp(a->path, "/props") == 0;
    if (((status == 503 || status == 529) && refuses) || is_early)
        t->n_503++;
    else if (status == 429 && t->refuse_429)
        t->n_429++;
    else if (status == 500 && (t->fail_500 || (is_unnamed && t->refuse_503)))
        t->n_500++;
    else if (status == 408 && c->fate == CLIENT_STALLS)
        t->n_408++;
    else if (!t->damage)
        sim_fail("ERROR", "client %u: request %u (kind %u) has status %d: %s", c->number, a->number,
                 a->kind, status, c->in.data);
}

/* Returns true if the connection has ended before all answers were complete. */
static bool owes(const struct client *c) {
    return c->n_answered < c->n_sent && !c->last_closes;
}

static void judge(struct client *c, struct parsed *p) {
    const struct ask *a = &c->ask[c->n_answered];
    int status = 0;

    p->answer.body = p->body.data ? p->body.data : "";
    p->answer.len = p->body.len;
    enum verdict v = ask_check(a, &p->answer, &status);
    sim_event("answer", a->number, (uint64_t)status);
    c->status = status;
    if (c->keeps_body) {
        c->body = p->body;
        p->body = (struct buf){0};
    }
    if (v == ANSWER_RIGHT && a->kind != ASK_PAGE && tolerance.served_ns == 0)
        tolerance.served_ns = sim.ns;
    if (v == ANSWER_RIGHT)
        tolerance.n_right++;
    else if (v == ANSWER_ERROR && !c->keeps_body)
        tolerate(c, a, p->answer.status, status);
}

/* Handles complete answers. */
static void take(struct client *c) {
    while (c->in.len > 0) {
        struct parsed p;

        if (c->n_answered == c->n_sent && c->at == 0 && c->fate != CLIENT_STALLS)
            sim_fail("ONE_ANSWER", "client %u gets what it did not ask for: %.200s", c->number,
                     c->in.data);
        parse(c, &p);
        if (!p.whole) {
            buf_deinit(&p.body);
            return;
        }
        judge(c, &p);
        c->last_closes |= p.closes;
        c->sent_ns = sim.ns; /* time of the next request */
        c->stopped_ns = sim.stopped_ns;
        buf_consume(&c->in, p.used);
        buf_deinit(&p.body);
        c->n_answered++;
        if (c->n_answered > c->n_sent) { /* the answer refuses a request before it was sent */
            c->last_closes = true;
            c->n_sent = c->n_answered;
        }
    }
}

/* Handles the end or a reset of the connection. */
static void on_end(struct client *c) {
    bool first = c->n_answered == 0, clean = c->last_closes || c->fate != CLIENT_NICE;
    struct parsed p;
    int status;

    take(c);
    if (c->in.len > 0) { /* a part of an answer */
        parse(c, &p);
        p.answer.cut = true;
        p.answer.body = p.body.data ? p.body.data : "";
        p.answer.len = p.body.len;
        if (ask_check(&c->ask[c->n_answered], &p.answer, &status) != ANSWER_ERROR) {
            tolerance.n_cut++;
            if (!tolerance.cut && c->fate == CLIENT_NICE)
                sim_fail("ONE_ANSWER", "client %u: request %u is cut: %s", c->number,
                         c->ask[c->n_answered].number, c->in.data);
        }
        buf_deinit(&p.body);
    } else if (owes(c) && first && !clean) {
        tolerance.n_cut++;
        if (!tolerance.cut)
            sim_fail("ONE_ANSWER", "client %u: request %u gets none", c->number,
                     c->ask[c->n_answered].number);
    }
    finish(c, false);
}

/* ---- the connection ---- */

static void begin_request(struct client *c) {
    buf_clear(&c->out);
    c->at = 0;
    ask_write(&c->ask[c->n_sent], &c->out);
    sim_note("client %u writes %s", c->number, c->out.data);
    c->stall_at = SIZE_MAX;
    if (c->fate == CLIENT_STALLS && (c->n_sent + 1 == c->n_asks || sim_one_in(3)))
        c->stall_at = sim_below((uint32_t)c->out.len);
}

static void send_some(struct client *c) {
    size_t n = MIN(c->out.len, c->stall_at) - c->at;

    if (n > 0 && sim_one_in(3))
        n = sim_between(1, (uint32_t)n);
    ssize_t sent = n > 0 ? sock_send(c->sock, c->out.data + c->at, n) : 0;
    if (sent > 0)
        c->at += (size_t)sent;
    if (c->at < c->out.len) {
        if (c->at < c->stall_at && sent != -EPIPE && sent != -ECONNRESET)
            actor_wake(&c->actor, sim_one_in(20) ? sim_below(200000000) : sim_below(500000));
        return;
    }
    c->n_sent++;
    c->at = c->out.len = 0;
    c->sent_ns = c->heard_ns = sim.ns;
    c->stopped_ns = sim.stopped_ns;
    sim_event("sent", c->number, c->n_sent);
    if (c->fate == CLIENT_HASTY)
        c->patience_ns = sim_below(sim_one_in(2) ? 10000000 : 1000000000);
    actor_wake(&c->actor, sim_below(1000000));
    if (c->n_sent == c->n_asks && c->fate == CLIENT_LEAVES)
        sock_shutdown(c->sock);
}

static void send_requests(struct client *c) {
    bool waits = c->n_answered < c->n_sent && !c->pipelines;

    if (c->n_sent == c->n_asks || waits || c->last_closes)
        return;
    if (c->out.len == 0)
        begin_request(c);
    send_some(c);
}

/* Returns false when the client is done. */
static bool receive(struct client *c) {
    char data[4096];
    ssize_t n;
    uint32_t turns = sim_between(1, 6);

    if (c->fate == CLIENT_DEAF && c->n_heard > c->reset_at && sock_reads(c->sock))
        return true;
    if (c->fate == CLIENT_SLOW && !sim_one_in(3)) {
        actor_wake(&c->actor, sim_below(20000000));
        return true;
    }
    do {
        n = sock_recv(c->sock, data, sizeof(data));
        if (n > 0) {
            buf_add(&c->in, data, (size_t)n);
            c->n_heard += (size_t)n;
            c->heard_ns = sim.ns;
            c->stopped_ns = sim.stopped_ns;
        }
    } while (n > 0 && --turns > 0);
    if (n > 0)
        actor_wake(&c->actor, sim_below(100000));
    if (c->fate == CLIENT_RESETS && c->n_heard > c->reset_at) {
        finish(c, sim_one_in(2));
        return false;
    }
    if (n == 0 || n == -ECONNRESET) {
        on_end(c);
        return false;
    }
    take(c);
    return true;
}

/* Checks that no client waits longer than the bound, and that each stream begins, and is not silent
 * for too long, while the front is not stopped. */
static void check_waiting(struct client *c) {
    if (c->n_answered >= c->n_sent || c->fate == CLIENT_DEAF || c->fate == CLIENT_LEAVES ||
        sock_unread(c->sock) > 0)
        return;
    const struct ask *a = &c->ask[c->n_answered];
    int64_t awake_ns = sim.ns - (sim.stopped_ns - c->stopped_ns);
    int64_t begins_ns = awake_ns - MAX(c->sent_ns, c->heard_ns);
    bool lines = a->kind == ASK_OLLAMA_CHAT || a->kind == ASK_OLLAMA_GENERATE;
    int64_t since_ns = c->sent_ns;
    if (c->fate == CLIENT_SLOW) /* which may take minutes to read what has come */
        since_ns = MAX(since_ns, c->heard_ns);
    if (sim.ns - since_ns > tolerance.wait_ns)
        sim_fail("BOUND", "client %u: request %u (kind %u) waits for %lld ms", c->number, a->number,
                 a->kind, (long long)(sim.ns - since_ns) / 1000000);
    if (c->in.len == 0 && a->stream && begins_ns > tolerance.head_ns)
        sim_fail("HEAD", "client %u: the stream of request %u has no head for %lld ms", c->number,
                 a->number, (long long)begins_ns / 1000000);
    if (c->in.len > 0 && a->stream && !lines && awake_ns - c->heard_ns > tolerance.silence_ns)
        sim_fail("SILENCE", "client %u: the stream of request %u is silent for %lld ms", c->number,
                 a->number, (long long)(awake_ns - c->heard_ns) / 1000000);
    actor_wake(&c->actor, 500000000);
}

/* Checks that the front does not wait for ever for a client that reads nothing. */
static void check_deaf(struct client *c) {
    if (c->fate != CLIENT_DEAF)
        return;
    if (!sock_blocks(c->sock))
        c->blocks_ns = 0;
    else if (c->blocks_ns == 0)
        c->blocks_ns = sim.ns;
    else if (sim.ns - c->blocks_ns > tolerance.stall_ns)
        sim_fail("STALL", "client %u reads nothing for %lld ms and is still served", c->number,
                 (long long)(sim.ns - c->blocks_ns) / 1000000);
    actor_wake(&c->actor, INT64_C(2000000000));
}

static void step(struct actor *a) {
    struct client *c = CONTAINER_OF(a, struct client, actor);

    if (c->done)
        return;
    sim_event("client", c->number, c->n_answered);
    if (!c->connected) {
        c->connected = true;
        c->sock = sock_connect(c->address, c->from, &c->actor);
        if (!c->sock) {
            if (!tolerance.cut && c->number < 1000)
                sim_fail("LISTENS", "client %u cannot connect to %s", c->number, c->address);
            finish(c, false);
            return;
        }
        if (c->fate == CLIENT_DEAF) /* most answers do not fit */
            sock_narrow(c->sock, 1 + c->reset_at / 4);
        if (sim_one_in(8))
            actor_wake(&c->actor, sim_below(1000000000));
        else
            actor_wake(&c->actor, sim_below(1000000));
        return;
    }
    send_requests(c);
    if (c->fate == CLIENT_HASTY && c->n_sent > c->n_answered) {
        if (sim.ns - c->sent_ns >= c->patience_ns) {
            finish(c, sim_one_in(2));
            return;
        }
        actor_wake(&c->actor, c->sent_ns + c->patience_ns - sim.ns);
    }
    if (!receive(c))
        return;
    if (c->n_answered == c->n_asks || (c->last_closes && c->n_answered >= c->n_sent)) {
        if (c->leaves_at_end || c->last_closes) {
            finish(c, false);
            return;
        }
        c->leaves_at_end = true;
        actor_wake(&c->actor, sim_below(2000000000));
        return;
    }
    if (c->n_sent < c->n_asks && c->n_answered == c->n_sent && c->out.len == 0)
        actor_wake(&c->actor, sim_one_in(5) ? sim_below(3000000000u) : sim_below(5000000));
    check_waiting(c);
    check_deaf(c);
}

/* ---- life ---- */

static struct client *make(uint32_t number, const char *address, uint32_t from) {
    struct client *c = calloc(1, sizeof(*c));

    c->number = number;
    c->from = from;
    snprintf(c->address, sizeof(c->address), "%s", address);
    c->out.max = c->in.max = 1 << 24;
    c->stall_at = SIZE_MAX;
    return c;
}

struct client *client_new(uint32_t number, const char *address, uint32_t from, enum fate fate,
                          uint32_t n_models, const char *key) {
    struct client *c = make(number, address, from);

    c->fate = fate;
    c->n_asks = sim_between(1, CLIENT_ASKS);
    c->pipelines = sim_one_in(6);
    c->leaves_at_end = sim_one_in(2);
    c->reset_at = sim_below(sim_one_in(2) ? 300 : 4000);
    for (uint32_t i = 0; i < c->n_asks; i++)
        ask_make(&c->ask[i], number * 10 + i, n_models, key);
    actor_start(&c->actor, step, (int64_t)sim_below(sim_one_in(2) ? 20 : 4000) * 1000000);
    return c;
}

struct client *client_get(uint32_t number, const char *address, const char *method,
                          const char *path) {
    struct client *c = make(number, address, 0);

    c->n_asks = 1;
    c->keeps_body = true;
    c->leaves_at_end = true;
    c->ask[0] = (struct ask){
        .number = number, .kind = ASK_PAGE, .method = method, .path = path, .closes = 1};
    actor_start(&c->actor, step, 0);
    return c;
}

void client_free(struct client *c) {
    actor_stop(&c->actor);
    if (c->sock)
        sock_close(c->sock, false);
    for (uint32_t i = 0; i < c->n_asks; i++)
        ask_free(&c->ask[i]);
    buf_deinit(&c->out);
    buf_deinit(&c->in);
    buf_deinit(&c->body);
    free(c);
}
