#pragma once

/*
 * tls - TLS 1.2 and 1.3 of one connection, between the bytes of its socket and those of HTTP. It
 * reads and writes no socket: ciphertext of the peer comes in by tls_feed(), ciphertext for the
 * peer goes out by tls_wrap(), so that deadlines, turns and charges stay those of conn.c.
 *
 * Built without OpenSSL a tls_config cannot be made, and so no connection has a struct tls.
 *
 * All of a server runs on the loop's thread: a full handshake is less than 1 ms of CPU time with a
 * P-256 or RSA-2048 key, 4 ms with RSA-4096 (docs/manual/network.md). A client's config and its
 * connections may be another thread's.
 */

#include <stdbool.h>
#include <sys/types.h>

#include "base/buf.h"
#include "base/err.h"

#define TLS_RECORD (16u << 10) /* most bytes of HTTP that one record holds */

struct ssl_st;
struct ssl_ctx_st;

/* Configuration of connections; for a server with a certificate, its chain and its key. */
struct tls_config {
    struct ssl_ctx_st *ctx;
    /* days until the certificate expires; negative: expired */
    int days_left;
    /* size of an RSA key; 0: another kind */
    int rsa_bits;
};

/* Reads the PEM files @certificate (chain included) and @key, which must be closed to other users.
 * Returns 0, or -errno with @err. */
int tls_config_init(struct tls_config *out, const char *certificate, const char *key,
                    struct err *err);
/* Frees the configuration; its connections continue. Accepts a zeroed one. */
void tls_config_deinit(struct tls_config *config);

/* Invariants: at < plain.len or both are 0; n_in = 0 when tls_read() has answered 0. */
struct tls {
    struct ssl_st *ssl;
    /* bytes of the peer that were not read yet; memory of the caller */
    const char *in;
    size_t n_in;
    /* being encrypted; up to `at` it is */
    struct buf plain;
    size_t at;
    /* records for the peer */
    struct buf wire;
    /* there have been some */
    bool answered;
};

/* Makes the server's side of a connection in which at most @max bytes of HTTP wait. Returns 0 or
 * -ENOMEM. */
int tls_new(struct tls **out, const struct tls_config *config, size_t max);
struct tls *tls_free(struct tls *t);

/* Passes the peer's next bytes, which tls_read() must read before the caller's buffer is used
 * again. */
void tls_feed(struct tls *t, const char *data, size_t len);
/* Reads the next bytes of HTTP, at most @size. Returns their number; 0: the peer must send more
 * first. -EPIPE: the peer ends the connection (close_notify); -EPROTONOSUPPORT: it speaks plain
 * HTTP; -EPROTO: it breaks the rules. */
ssize_t tls_read(struct tls *t, void *out, size_t size);
/* Returns true if the peer has had no answer yet: the server's signature, which costs most of a
 * handshake, is still to be made. */
bool tls_is_new(const struct tls *t);
/* Returns true if the handshake is over. */
bool tls_is_open(const struct tls *t);

/* Takes over @from once all earlier bytes are encrypted, encrypts up to 64 KiB, and swaps the
 * records to send with @to, which is empty. Returns 0, or -EPIPE: the connection cannot
 * continue. */
int tls_wrap(struct tls *t, struct buf *from, struct buf *to);
/* Returns the number of bytes that tls_wrap() still has to send, without @from. */
size_t tls_unsent(const struct tls *t);
/* Adds, once, the record (close_notify) that ends the connection, for tls_wrap(). */
void tls_end(struct tls *t);
/* Frees the buffers of a connection that has nothing to send. */
void tls_rest(struct tls *t);
