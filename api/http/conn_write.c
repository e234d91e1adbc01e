/*
 * The output of a connection. conn_flush() hands the first CONN_WRITE bytes of it to one
 * uv_write(); while that runs, bytes collect behind them. With many streams a step of the worker
 * costs one write for each of them, however many events it brought. What remains goes out in turns
 * of the connection, so that no answer, however long, holds up those of others.
 */

#include <assert.h>
#include <errno.h>

#include "api/http/conn_private.h"
#include "api/http/loop_lag.h"
#include "api/http/tls.h"
#include "base/loop_bytes.h"

size_t conn_unsent(const struct conn *c) {
    return c->out.len - c->n_sending + c->plain.len + (c->tls ? tls_unsent(c->tls) : 0) +
           (c->writing ? c->h.stream.write_queue_size : 0);
}

/* Charges the payer for unsent output. The charge of a slow reader is offered, so it may be
 * taken back. */
static void write_charge(struct conn *c) {
    bool offered = !list_empty(&c->unsent.link);

    quota_charge_set(&c->unsent, c->out.charged);
    if (c->unsent.n <= c->server->opts.stream_buffer_bytes || c->broken)
        quota_charge_withhold(&c->unsent);
    else if (!offered)
        quota_charge_offer(&c->unsent);
}

static void conn_on_written(uv_write_t *w, int status) {
    struct conn *c = CONTAINER_OF(w, struct conn, write);

    assert(c->writing);
    loop_lag_mark("an answer that was written");
    c->writing = false;
    buf_clear(&c->records);
    output_consume(&c->out, c->n_sending);
    c->n_sending = 0;
    write_charge(c);
    if (c->state == CONN_CLOSED)
        return;
    if (status < 0)
        conn_break(c); /* those of thousands may fail in one iteration */
    else
        conn_written(c);
}

/* Encrypts the next bytes. Returns 0, -EPIPE or -ENOMEM. */
static int write_encrypt(struct conn *c) {
    uv_buf_t parts[OUTPUT_PIECES];
    size_t n;
    unsigned n_parts = output_first(&c->out, CONN_WRITE, parts, &n);
    int r = 0;

    for (unsigned i = 0; i < n_parts && r == 0; i++)
        r = buf_add(&c->plain, parts[i].base, parts[i].len);
    if (r < 0)
        return r;
    output_consume(&c->out, n);
    return tls_wrap(c->tls, &c->plain, &c->records);
}

/* Lists what is sent next. Returns the number of parts, or -errno. */
static int conn_write_load(struct conn *c, uv_buf_t parts[OUTPUT_PIECES]) {
    if (!c->tls)
        return (int)output_first(&c->out, CONN_WRITE, parts, &c->n_sending);
    int r = write_encrypt(c);
    if (r < 0)
        return r;
    parts[0] = uv_buf_init(c->records.data, (unsigned)c->records.len);
    return 1;
}

void conn_flush(struct conn *c) {
    uv_buf_t parts[OUTPUT_PIECES];

    if (c->writing || !conn_unsent(c) || c->state == CONN_CLOSED)
        return;
    int n = conn_write_load(c, parts);
    loop_bytes(c->n_sending + c->records.len);
    c->writing = true;
    if (n < 0 || uv_write(&c->write, &c->h.stream, parts, (unsigned)n, conn_on_written) < 0) {
        c->writing = false;
        c->n_sending = 0;
        buf_clear(&c->records);
        conn_break(c);
    }
}

/* Cuts off the client of @charge, which reads slowly. */
static void conn_reclaim_unsent(struct quota_charge *charge) {
    struct conn *c = CONTAINER_OF(charge, struct conn, unsent);

    c->server->n_lost_outputs++;
    conn_break(c);
    output_cut(&c->out, c->n_sending);
    write_charge(c);
}

void conn_hold_init(struct conn *c, struct quota_charge *charge) {
    quota_charge_init(charge, &c->payer->account[PAYER_OUTPUT]);
}

bool conn_hold(struct conn *c, struct quota_charge *charge, uint64_t n) {
    if (n > charge->n && !quota_make_room(&c->server->payers.quota[PAYER_OUTPUT], charge,
                                          n - charge->n, conn_reclaim_unsent))
        return false;
    quota_charge_set(charge, n);
    return true;
}

/* Makes room in the payer's account for @n bytes more. Returns 0, -EPIPE or -ENOBUFS. */
static int write_admit(struct conn *c, size_t n) {
    if (c->state == CONN_CLOSED || c->broken)
        return -EPIPE;
    struct quota *quota = &c->server->payers.quota[PAYER_OUTPUT];
    if (!quota_make_room(quota, &c->unsent, n, conn_reclaim_unsent))
        return -ENOBUFS;
    return 0;
}

int conn_send(struct conn *c, const void *data, size_t len) {
    int r = write_admit(c, len);

    if (r < 0)
        return r;
    r = output_add(&c->out, data, len);
    write_charge(c);
    return r;
}

int conn_refer(struct conn *c, struct blob *blob, size_t from, size_t len) {
    int r = write_admit(c, len);

    if (r < 0)
        return r;
    r = output_refer(&c->out, blob, from, len);
    write_charge(c);
    return r;
}
