#include "tests/front_sim/crowd.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"

#define CROWD 5u
#define CROWD_ASKS 2u
#define CROWD_FROM 10u /* addresses of the crowd; the quiet client has the one before */
#define QUIET_NS 2000000
#define QUIET_OFTEN_NS 300000  /* longest pause of the quiet client while the crowd asks */
#define QUIET_OFTEN_MOST 10000 /* so many times: the crowd may wait for a model for seconds */
#define ID_LEN 29u             /* "resp_" and 24 digits */
#define SILENT 120u
#define LEAVERS 600u
#define LEAVERS_AT_ONCE 20u
#define LEAVERS_PAUSE_NS 400000     /* longest between two arrivals */
#define LEAVERS_SERVED_NS 200000000 /* work of the front after which the last is served */
#define QUIET_LEAVERS_NS 40000000   /* bound while they come: accepting and closing them */

struct member {
    struct actor actor;
    struct sock *sock;
    /* the request, of which `at` bytes are sent */
    struct buf out;
    size_t at, n_heard;
    uint32_t number, n_left, n_asked;
    /* of the quiet client: the front's work at its request; -1: it asked nothing */
    int64_t front_ns;
    /* time of its next request */
    int64_t next_ns;
    bool quiet, done;
};

/* Connections that send nothing. */
struct silent {
    struct actor actor;
    struct sock *sock[SILENT];
    uint32_t n_open;
    bool done;
};

/* Clients that send a request and leave at once, faster than the front serves them. */
struct leavers {
    struct actor actor;
    struct buf request;
    uint32_t n_left;
    /* the front's work at the last arrival */
    int64_t front_ns;
};

static struct {
    struct member member[CROWD + 1];
    struct silent silent;
    struct leavers leavers;
    const char *address, *key;
    /* of a response; "": none is known */
    char id[ID_LEN + 1];
    bool begun;
} crowd;

static void leave(struct member *m) {
    if (m->sock)
        sock_close(m->sock, sim_one_in(3));
    m->sock = NULL;
    buf_clear(&m->out);
    m->at = m->n_heard = 0;
    m->front_ns = -1;
}

static void finish(struct member *m) {
    leave(m);
    m->done = true;
}

/* Writes a request whose tool is not shown to the model, but repeated in each event. */
static void write_large(struct member *m) {
    size_t n = sim_between(100000, 3000000);
    struct buf body = {.max = SIZE_MAX};

    buf_printf(&body,
               R"({"model":"m0","input":"number %u?","max_output_tokens":%u,)"
               R"("stream":%s,"background":%s,"tools":[{"type":"web_search_preview",)"
               R"("junk":")",
               m->number, sim_between(1, 30), sim_one_in(2) ? "true" : "false",
               sim_one_in(2) ? "true" : "false");
    buf_reserve(&body, n);
    memset(body.data + body.len, 'A', n);
    body.len += n;
    body.data[body.len] = 0;
    buf_add_str(&body, R"("}]})");
    buf_printf(&m->out, "POST /v1/responses HTTP/1.1\r\nContent-Length: %zu\r\n", body.len);
    if (crowd.key)
        buf_printf(&m->out, "Authorization: Bearer %s\r\n", crowd.key);
    buf_add_str(&m->out, "Host: localhost\r\nConnection: close\r\n\r\n");
    buf_add(&m->out, body.data, body.len);
    buf_deinit(&body);
}

static void write_request(struct member *m) {
    if (!m->quiet && (!*crowd.id || sim_one_in(2))) {
        write_large(m);
        return;
    }
    if (m->quiet)
        buf_add_str(&m->out, "GET /health HTTP/1.1\r\n");
    else
        buf_printf(&m->out, "GET /v1/responses/%s%s HTTP/1.1\r\nConnection: close\r\n", crowd.id,
                   sim_one_in(2) ? "?stream=true" : "");
    if (!m->quiet && crowd.key)
        buf_printf(&m->out, "Authorization: Bearer %s\r\n", crowd.key);
    buf_add_str(&m->out, "Host: localhost\r\n\r\n");
}

/* Notes the id of a response for those that fetch it. */
static void note_id(const char *data, size_t n) {
    const char *at = memmem(data, n, "resp_", 5);

    if (at && (size_t)(data + n - at) >= ID_LEN)
        snprintf(crowd.id, sizeof(crowd.id), "%.*s", (int)ID_LEN, at);
}

/* Returns false at the end of the connection. */
static bool receive(struct member *m) {
    static char data[65536];
    ssize_t n = sock_recv(m->sock, data, sizeof(data));

    if (n > 0) {
        m->n_heard += (size_t)n;
        note_id(data, (size_t)n);
        actor_wake(&m->actor, sim_below(200000));
    }
    return n != 0 && n != -ECONNRESET;
}

static void next(struct member *m) {
    leave(m);
    if (--m->n_left == 0)
        finish(m);
    else
        actor_wake(&m->actor, sim_below(300000000));
}

/* Checks how much the front did before it answered. */
static void judge_quiet(struct member *m) {
    int64_t worked = sim.front_ns - m->front_ns;

    int64_t since = m->front_ns - crowd.leavers.front_ns;
    int64_t most = since < LEAVERS_SERVED_NS ? QUIET_LEAVERS_NS : QUIET_NS;

    sim_note("the quiet client waited for %lld us of work", (long long)worked / 1000);
    if (worked > most)
        sim_fail("QUIET", "a small request waits until the front has worked for %lld us",
                 (long long)worked / 1000);
}

static bool crowd_works(void) {
    for (uint32_t i = 0; i < CROWD; i++)
        if (!crowd.member[i].done)
            return true;
    return crowd.leavers.n_left > 0;
}

/* Returns true if a request of the crowd is sent or answered, or leavers come. */
static bool crowd_asks(void) {
    if (crowd.leavers.n_left > 0 && crowd.leavers.n_left < LEAVERS)
        return true;
    for (uint32_t i = 0; i < CROWD; i++)
        if (crowd.member[i].out.len > 0)
            return true;
    return false;
}

/* Lets the quiet client ask again, on the same connection, while the crowd is there. */
static void quiet_again(struct member *m) {
    judge_quiet(m);
    m->n_heard = m->at = 0;
    m->front_ns = -1;
    buf_clear(&m->out);
    bool often = crowd_asks() && m->n_asked++ < QUIET_OFTEN_MOST;
    m->next_ns = sim.ns + sim_below(often ? QUIET_OFTEN_NS : 100000000);
    if (crowd_works())
        actor_wake(&m->actor, m->next_ns - sim.ns);
    else
        finish(m);
}

static void step(struct actor *a) {
    struct member *m = CONTAINER_OF(a, struct member, actor);

    if (m->done)
        return;
    if (!m->sock) {
        uint32_t from = m->quiet ? CROWD_FROM - 1 : CROWD_FROM + sim_below(2);

        m->sock = sock_connect(crowd.address, from, &m->actor);
        if (!m->sock) {
            finish(m);
            return;
        }
    }
    if (m->out.len == 0 && sim.ns < m->next_ns) { /* woken by its socket */
        actor_wake(&m->actor, m->next_ns - sim.ns);
        return;
    }
    if (m->out.len == 0)
        write_request(m);
    if (m->at < m->out.len) {
        ssize_t n = sock_send(m->sock, m->out.data + m->at, m->out.len - m->at);

        m->at += n > 0 ? (size_t)n : 0;
        if (m->at == m->out.len)
            m->front_ns = sim.front_ns;
        else if (n > 0)
            actor_wake(&m->actor, sim_below(100000));
    }
    if (!receive(m)) {
        next(m);
    } else if (m->quiet && m->n_heard > 0 && m->front_ns >= 0) {
        quiet_again(m);
    }
}

static void leavers_write(struct leavers *l) {
    char body[] = "{'model':'m0','max_tokens':200,'stream':true,"
                  "'messages':[{'role':'user','content':'so long'}]}";

    for (char *p = body; (p = strchr(p, '\''));)
        *p = '"';
    l->request = (struct buf){.max = SIZE_MAX};
    buf_printf(&l->request,
               "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer "
               "%s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
               crowd.key, sizeof(body) - 1, body);
}

/* Sends the request, or as much of it as the socket takes, and leaves. */
static void leavers_one(struct leavers *l) {
    struct sock *sock = sock_connect(crowd.address, CROWD_FROM, NULL);
    size_t at = 0;
    ssize_t n;

    if (!sock)
        return;
    while ((n = sock_send(sock, l->request.data + at, l->request.len - at)) > 0)
        at += (size_t)n;
    sock_close(sock, false);
}

static void leavers_step(struct actor *a) {
    struct leavers *l = CONTAINER_OF(a, struct leavers, actor);

    for (uint32_t i = 0; i < LEAVERS_AT_ONCE && l->n_left > 0; i++) {
        leavers_one(l);
        l->n_left--;
    }
    l->front_ns = sim.front_ns;
    if (l->n_left > 0)
        actor_wake(a, sim_below(LEAVERS_PAUSE_NS));
}

static void leavers_begin(struct leavers *l) {
    l->front_ns = -LEAVERS_SERVED_NS; /* none has come */
    if (!crowd.key)
        return;
    l->n_left = LEAVERS;
    leavers_write(l);
    actor_start(&l->actor, leavers_step, sim_below(900000000));
}

/* Opens all connections when the crowd has ended, then waits until the front has closed each. */
static void silent_step(struct actor *a) {
    struct silent *s = CONTAINER_OF(a, struct silent, actor);
    char byte;

    if (s->done)
        return;
    if (crowd_works()) { /* fewer handles make its iterations cheap */
        actor_wake(a, 100000000);
        return;
    }
    for (uint32_t i = 0; i < SILENT && s->n_open == 0; i++)
        s->sock[i] = sock_connect(crowd.address, CROWD_FROM, a);
    s->n_open = 0;
    for (uint32_t i = 0; i < SILENT; i++) {
        ssize_t n = s->sock[i] ? sock_recv(s->sock[i], &byte, 1) : 0;

        if (n < 0 && n != -ECONNRESET) {
            s->n_open++;
            continue;
        }
        if (s->sock[i])
            sock_close(s->sock[i], false);
        s->sock[i] = NULL;
    }
    s->done = s->n_open == 0;
}

static void silent_end(struct silent *s) {
    for (uint32_t i = 0; i < SILENT; i++)
        if (s->sock[i])
            sock_close(s->sock[i], false);
    actor_stop(&s->actor);
}

void crowd_begin(const char *address, const char *key, bool silent) {
    crowd.begun = true;
    crowd.address = address;
    crowd.key = key;
    for (uint32_t i = 0; i <= CROWD; i++) {
        struct member *m = &crowd.member[i];

        *m = (struct member){.number = i, .n_left = CROWD_ASKS, .quiet = i == CROWD};
        m->out.max = SIZE_MAX;
        m->front_ns = -1;
        actor_start(&m->actor, step, sim_below(400000000));
    }
    leavers_begin(&crowd.leavers);
    crowd.silent.done = !silent;
    if (silent)
        actor_start(&crowd.silent.actor, silent_step, 0);
}

bool crowd_is_done(void) {
    return !crowd.begun || (!crowd_works() && crowd.member[CROWD].done && crowd.silent.done);
}

void crowd_end(void) {
    for (uint32_t i = 0; crowd.begun && i <= CROWD; i++) {
        leave(&crowd.member[i]);
        actor_stop(&crowd.member[i].actor);
        buf_deinit(&crowd.member[i].out);
    }
    actor_stop(&crowd.leavers.actor);
    buf_deinit(&crowd.leavers.request);
    silent_end(&crowd.silent);
}
