/*
 * OpenSSL reads and writes through a BIO of our own, which takes the peer's bytes from where the
 * socket's read has put them and appends records to `wire`: memory BIOs would copy both, and keep
 * the largest read of each connection. An incomplete record stays inside OpenSSL.
 *
 * Sessions are resumed by tickets, whose secret is the config's: the server remembers none. There
 * is no renegotiation, no early data and no compression.
 */

#include "api/http/tls.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#ifdef HAVE_OPENSSL

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <pthread.h>

#include "base/files.h"
#include "base/text.h"
#include "base/try.h"

#define PEM_MAX (256u << 10)  /* bytes of a certificate with its issuers, or of a key */
#define PART (64u << 10)      /* bytes of HTTP that are encrypted at a time */
#define WIRE_MAX (256u << 10) /* a part as records, certificates, answers to key updates */
#define CIPHERS_12 "ECDHE+AESGCM:ECDHE+CHACHA20"

/* ---- configuration ---- */

/* Fills @err with OpenSSL's description of the error. OpenSSL tells many a failed allocation as
 * another error, but errno, which the caller has cleared, keeps it. */
static int tls_refuse(struct err *err, const char *param, const char *path) {
    int r = errno == ENOMEM ? -ENOMEM : -EINVAL;
    unsigned long e = ERR_peek_last_error();
    const char *why = NULL;

    if (r == -ENOMEM)
        why = strerror(ENOMEM);
    else if (ERR_GET_LIB(e) == ERR_LIB_PEM && ERR_GET_REASON(e) == PEM_R_NO_START_LINE)
        why = "is no PEM file: no line begins with -----BEGIN";
    else if (e)
        why = ERR_reason_error_string(e);
    err_set(err, 0, param, "%s: %.200s: %.120s", param, path, text_or(why, "cannot be used"));
    ERR_clear_error();
    return r;
}

/* Keys with a passphrase are refused: there is no terminal to ask at. */
static int no_passphrase(char *out, int size, int rwflag, void *ctx) {
    return -1;
}

/* Reads the file @path into @out, whose room is reserved at once: a buffer that moves as it grows
 * would leave copies of a key in freed memory. */
static int read_at_once(const char *path, struct buf *out, mode_t *mode) {
    TRY(buf_reserve(out, out->max));
    return files_read(path, out, mode);
}

static int read_pem(const char *param, const char *path, struct buf *out, mode_t *mode,
                    struct err *err) {
    int r = read_at_once(path, out, mode);

    if (r < 0)
        err_set(err, 0, param, "%s: %.200s: cannot be read: %s", param, path, strerror(-r));
    return r;
}

/* Takes the server's certificate from @pem, and those of its issuers behind it. */
static bool use_certificates(SSL_CTX *ctx, BIO *pem) {
    X509 *x = pem ? PEM_read_bio_X509_AUX(pem, NULL, no_passphrase, NULL) : NULL;
    bool ok = x && SSL_CTX_use_certificate(ctx, x) == 1;

    X509_free(x);
    while (ok && (x = PEM_read_bio_X509(pem, NULL, no_passphrase, NULL)))
        if (!(ok = SSL_CTX_add0_chain_cert(ctx, x) == 1))
            X509_free(x);
    return ok && ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE; /* the end */
}

static int read_certificates(SSL_CTX *ctx, const char *path, struct err *err) {
    CLEANUP(buf_deinit) struct buf text = {.max = PEM_MAX};

    TRY(read_pem("tls-certificate", path, &text, NULL, err));
    BIO *pem = BIO_new_mem_buf(text.data, (int)text.len);
    bool ok = use_certificates(ctx, pem);
    BIO_free(pem);
    if (!ok)
        return tls_refuse(err, "tls-certificate", path);
    ERR_clear_error();
    return 0;
}

static bool use_key(SSL_CTX *ctx, const struct buf *text) {
    BIO *pem = BIO_new_mem_buf(text->data, (int)text->len);
    EVP_PKEY *key = pem ? PEM_read_bio_PrivateKey(pem, NULL, no_passphrase, NULL) : NULL;
    bool ok = key && SSL_CTX_use_PrivateKey(ctx, key) == 1;

    EVP_PKEY_free(key);
    BIO_free(pem);
    return ok;
}

static int tls_read_key(SSL_CTX *ctx, const char *path, struct err *err) {
    CLEANUP(buf_deinit) struct buf text = {.max = PEM_MAX};
    mode_t mode = 0;

    TRY(read_pem("tls-key", path, &text, &mode, err));
    if (mode & 07)
        return err_set(err, 0, "tls-key",
                       "tls-key: %.200s: other users have access to it (chmod 640)", path);
    bool ok = use_key(ctx, &text);
    explicit_bzero(text.data, text.len);
    if (!ok)
        return tls_refuse(err, "tls-key", path);
    return 0;
}

/* Selects HTTP/1.1 for clients that name protocols (ALPN). */
static int select_protocol(SSL *ssl, const unsigned char **out, unsigned char *out_len,
                           const unsigned char *in, unsigned in_len, void *ctx) {
    static const unsigned char http11[] = "\x08http/1.1";
    unsigned char *chosen;

    if (SSL_select_next_proto(&chosen, out_len, http11, sizeof(http11) - 1, in, in_len) !=
        OPENSSL_NPN_NEGOTIATED)
        return SSL_TLSEXT_ERR_ALERT_FATAL;
    *out = chosen;
    return SSL_TLSEXT_ERR_OK;
}

static int set_rules(SSL_CTX *ctx) {
    SSL_CTX_set_options(ctx, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
    SSL_CTX_set_mode(ctx, SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_alpn_select_cb(ctx, select_protocol, NULL);
    if (SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION) != 1 ||
        SSL_CTX_set_cipher_list(ctx, CIPHERS_12) != 1)
        return -EINVAL;
    return 0;
}

/* Sets the rules, the certificates and the key of @ctx. Reading the key checks also that it belongs
 * to the certificate. */
static int tls_fill(SSL_CTX *ctx, const char *certificate, const char *key, struct err *err) {
    if (set_rules(ctx) < 0)
        return tls_refuse(err, "tls-certificate", certificate);
    TRY(read_certificates(ctx, certificate, err));
    return tls_read_key(ctx, key, err);
}

int tls_config_init(struct tls_config *out, const char *certificate, const char *key,
                    struct err *err) {
    struct tls_config config = {.ctx = SSL_CTX_new(TLS_server_method())};
    int days = 0, seconds;

    if (!config.ctx)
        return -ENOMEM;
    ERR_clear_error();
    errno = 0;
    int r = tls_fill(config.ctx, certificate, key, err);
    if (r < 0) {
        SSL_CTX_free(config.ctx);
        return r;
    }
    const X509 *x = SSL_CTX_get0_certificate(config.ctx);
    const EVP_PKEY *k = SSL_CTX_get0_privatekey(config.ctx);
    if (ASN1_TIME_diff(&days, &seconds, NULL, X509_get0_notAfter(x)) == 1)
        config.days_left = days > 0 || seconds > 0 ? days : MIN(days, -1);
    config.rsa_bits = EVP_PKEY_get_base_id(k) == EVP_PKEY_RSA ? EVP_PKEY_get_bits(k) : 0;
    *out = config;
    return 0;
}

void tls_config_deinit(struct tls_config *config) {
    SSL_CTX_free(config->ctx);
    *config = (struct tls_config){0};
}

/* ---- between OpenSSL and the connection's bytes ---- */

static int bio_read(BIO *b, char *out, int size) {
    struct tls *t = BIO_get_data(b);
    size_t n = MIN(t->n_in, (size_t)size);

    BIO_clear_retry_flags(b);
    if (n == 0) {
        BIO_set_retry_read(b);
        return -1;
    }
    memcpy(out, t->in, n);
    t->in += n;
    t->n_in -= n;
    return (int)n;
}

static int bio_write(BIO *b, const char *data, int n) {
    struct tls *t = BIO_get_data(b);

    BIO_clear_retry_flags(b);
    t->answered = true;
    if (buf_add(&t->wire, data, (size_t)n) != 0)
        return -1;
    return n;
}

static long bio_ctrl(BIO *b, int what, long n, void *p) {
    return what == BIO_CTRL_FLUSH;
}

static BIO_METHOD *method; /* NULL: out of memory */

static void make_method(void) {
    if (!(method = BIO_meth_new(BIO_TYPE_SOURCE_SINK, "weft")))
        return;
    BIO_meth_set_read(method, bio_read);
    BIO_meth_set_write(method, bio_write);
    BIO_meth_set_ctrl(method, bio_ctrl);
}

static BIO_METHOD *bio_method(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, make_method);
    return method;
}

int tls_new(struct tls **out, const struct tls_config *config, size_t max) {
    struct tls *t = calloc(1, sizeof(*t));
    BIO *bio = t && bio_method() ? BIO_new(bio_method()) : NULL;

    if (bio)
        t->ssl = SSL_new(config->ctx);
    if (!bio || !t->ssl) {
        BIO_free(bio);
        free(t);
        return -ENOMEM;
    }
    BIO_set_data(bio, t);
    BIO_set_init(bio, 1);
    SSL_set_bio(t->ssl, bio, bio);
    SSL_set_accept_state(t->ssl);
    buf_init(&t->plain, max);
    buf_init(&t->wire, WIRE_MAX);
    *out = t;
    return 0;
}

struct tls *tls_free(struct tls *t) {
    if (!t)
        return NULL;
    SSL_free(t->ssl);
    buf_deinit(&t->plain);
    buf_deinit(&t->wire);
    free(t);
    return NULL;
}

/* ---- reading ---- */

void tls_feed(struct tls *t, const char *data, size_t len) {
    t->in = data;
    t->n_in = len;
}

/* Returns the reason why the last call on @t, which returned @r, gave no bytes. */
static int reason(struct tls *t, int r) {
    unsigned long e = ERR_peek_error();

    switch (SSL_get_error(t->ssl, r)) {
    case SSL_ERROR_WANT_READ:
        assert(t->n_in == 0);
        return 0;
    case SSL_ERROR_ZERO_RETURN:
        return -EPIPE;
    default:
        if (ERR_GET_LIB(e) == ERR_LIB_SSL && ERR_GET_REASON(e) == SSL_R_HTTP_REQUEST)
            return -EPROTONOSUPPORT;
        return -EPROTO;
    }
}

ssize_t tls_read(struct tls *t, void *out, size_t size) {
    ERR_clear_error();
    int r = SSL_read(t->ssl, out, (int)MIN(size, (size_t)TLS_RECORD));
    if (r > 0)
        return r;
    return reason(t, r);
}

bool tls_is_new(const struct tls *t) {
    return !t->answered;
}

bool tls_is_open(const struct tls *t) {
    return SSL_is_init_finished(t->ssl);
}

/* ---- writing ---- */

static void tls_swap(struct buf *a, struct buf *b) {
    struct buf t = *a;

    *a = *b;
    *b = t;
}

int tls_wrap(struct tls *t, struct buf *from, struct buf *to) {
    assert(to->len == 0);
    if (t->plain.len == 0)
        tls_swap(&t->plain, from);
    int n = (int)MIN(t->plain.len - t->at, (size_t)PART);
    ERR_clear_error();
    if (n > 0 && SSL_write(t->ssl, t->plain.data + t->at, n) != n)
        return -EPIPE;
    t->at += (size_t)n;
    if (t->at == t->plain.len) {
        t->at = 0;
        buf_clear(&t->plain);
    }
    tls_swap(&t->wire, to);
    t->wire.max = WIRE_MAX;
    return 0;
}

size_t tls_unsent(const struct tls *t) {
    return t->plain.len - t->at + t->wire.len;
}

void tls_end(struct tls *t) {
    ERR_clear_error();
    if (!(SSL_get_shutdown(t->ssl) & SSL_SENT_SHUTDOWN))
        (void)SSL_shutdown(t->ssl);
}

void tls_rest(struct tls *t) {
    assert(tls_unsent(t) == 0);
    buf_deinit(&t->plain);
    buf_deinit(&t->wire);
}

#else

int tls_config_init(struct tls_config *out, const char *certificate, const char *key,
                    struct err *err) {
    return err_set(err, 0, "tls-certificate",
                   "tls-certificate: weftd was built without OpenSSL (libssl-dev)");
}

void tls_config_deinit(struct tls_config *config) {
    assert(!config->ctx);
}

int tls_new(struct tls **out, const struct tls_config *config, size_t max) {
    if (config->ctx)
        return -EINVAL;
    return -ENOMEM;
}

struct tls *tls_free(struct tls *t) {
    assert(!t);
    return NULL;
}

void tls_feed(struct tls *t, const char *data, size_t len) {
    t->in = data;
    t->n_in = len;
}

ssize_t tls_read(struct tls *t, void *out, size_t size) {
    return -EPROTO;
}

bool tls_is_new(const struct tls *t) {
    return !t->answered;
}

bool tls_is_open(const struct tls *t) {
    return !t;
}

int tls_wrap(struct tls *t, struct buf *from, struct buf *to) {
    return -EPIPE;
}

size_t tls_unsent(const struct tls *t) {
    return t->wire.len;
}

void tls_end(struct tls *t) {}

void tls_rest(struct tls *t) {}

#endif
