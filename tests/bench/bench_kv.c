/*
 * bench_kv [-b BACKEND] [-c CONTEXT] [-n TOKENS] MODEL.gguf TEXT KV[,KV]...: what formats of keys
 * and values cost in quality. The text's first tokens are computed in pieces of CONTEXT tokens with
 * each format (f16, or q8_0:q4_0 for keys and values apart), and the logits of each token compared
 * with those of the first format: their rms difference, the mean of Kullback and Leibler's
 * divergence, and how many of 1,000 best tokens are others; and the perplexity on the text.
 */

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/try.h"
#include "tests/support/engine_driver.h"
#include "text/tokenizer.h"

/* One format's run. */
struct run {
    const int32_t *token;
    /* [n][n_vocab] logits of the first format */
    float *base;
    /* this is the first one */
    bool fills;
    uint32_t n_vocab, first, context;
    struct driver_seq *seq;
    double squares, divergence, surprise;
    uint32_t n_others, n_scored, n;
};

static double log_sum(const float *x, uint32_t n, uint32_t *best) {
    double sum = 0;

    *best = 0;
    for (uint32_t i = 1; i < n; i++)
        *best = x[i] > x[*best] ? i : *best;
    for (uint32_t i = 0; i < n; i++)
        sum += exp((double)x[i] - (double)x[*best]);
    return log(sum) + (double)x[*best];
}

static void look(void *ctx, struct driver_seq *s, uint32_t pos, const struct engine_out *out,
                 const float *logits) {
    struct run *r = ctx;
    float *base = r->base + (size_t)(r->first + pos) * r->n_vocab;
    uint32_t best, base_best;

    if (r->fills)
        memcpy(base, logits, r->n_vocab * sizeof(*base));
    double sum = log_sum(logits, r->n_vocab, &best);
    double base_sum = log_sum(base, r->n_vocab, &base_best);
    for (uint32_t i = 0; i < r->n_vocab; i++) {
        double d = (double)logits[i] - (double)base[i], p = (double)base[i] - base_sum;

        r->squares += d * d;
        r->divergence += exp(p) * (p - ((double)logits[i] - sum));
    }
    r->n_others += best != base_best;
    r->n++;
    if (pos + 1 < r->context) { /* the next token is in the same piece */
        r->surprise += sum - (double)logits[r->token[r->first + pos + 1]];
        r->n_scored++;
    }
}

static bool read_format(const char *name, size_t n, enum engine_kv_type *out) {
    for (size_t i = 0; i < ARRAY_SIZE(kv_types); i++)
        if (strlen(kv_types[i].name) == n && strncmp(name, kv_types[i].name, n) == 0) {
            *out = (enum engine_kv_type)i;
            return true;
        }
    return false;
}

static bool read_formats(const char *text, struct kv_formats *out) {
    size_t n = strcspn(text, ":");
    const char *v = text[n] ? text + n + 1 : text;

    return read_format(text, n, &out->k) && read_format(v, strlen(v), &out->v);
}

/* Appends the text's tokens in pieces of @context, which begin with the token that texts begin
 * with. */
static int cut(const struct tokenizer *t, const struct tokens *all, uint32_t context,
               struct tokens *out) {
    bool begins = tokenizer_bos(t) >= 0;
    int r = 0;

    for (size_t i = 0, at = 0; i < all->n && r == 0; at++)
        r = tokens_add(out, begins && at % context == 0 ? tokenizer_bos(t) : all->id[i++]);
    return r;
}

static int encode_file(const char *model, const char *path, uint32_t context, struct tokens *out,
                       struct err *err) {
    CLEANUP(gguf_freep) struct gguf *g = NULL;
    CLEANUP(tokenizer_freep) struct tokenizer *t = NULL;
    CLEANUP(tokens_deinit) struct tokens all = {0};
    CLEANUP(buf_deinit) struct buf b = {.max = 1u << 26};
    FILE *f = fopen(path, "rb");
    size_t n;

    while (f && buf_reserve(&b, 65536) == 0 && (n = fread(b.data + b.len, 1, 65536, f)) > 0)
        b.len += n;
    if (f)
        fclose(f);
    if (!b.len)
        return err_set(err, 0, NULL, "%s: cannot be read", path);
    TRY(gguf_open(&g, model, err));
    TRY(tokenizer_new(&t, g, err));
    TRY(tokenizer_encode(t, b.data, b.len, 0, NULL, 0, &all));
    return cut(t, &all, context, out);
}

static int read_tokens(const char *model, const char *path, uint32_t context, struct tokens *out) {
    struct err err = {0};
    int r = encode_file(model, path, context, out, &err);

    if (r < 0)
        fprintf(stderr, "bench_kv: %s\n", err.message);
    return r;
}

static int measure(const struct driver_opts *opts, const char *format, struct run *r, uint32_t n) {
    struct driver_opts o = *opts;
    struct driver d;
    struct err err = {0};

    o.on_out = look;
    o.ctx = r;
    if (!read_formats(format, &o.kv_type)) {
        fprintf(stderr, "bench_kv: format %s is not known: f16, q8_0, q4_0 or f32\n", format);
        return -EINVAL;
    }
    if (driver_open(&d, &o, &err) < 0) {
        fprintf(stderr, "bench_kv: %s\n", err.message);
        return -EINVAL;
    }
    r->n_vocab = d.info->n_vocab;
    if (!r->base && !(r->base = calloc((size_t)n * r->n_vocab, sizeof(float))))
        return -ENOMEM;
    for (r->first = 0; r->first + r->context <= n; r->first += r->context) {
        r->seq = driver_add(&d, r->token + r->first, r->context, 1, NULL);
        assert(r->seq);
        r->seq->every_row = true;
        driver_prefill(&d, r->seq, 0);
        r->seq = driver_drop(&d, r->seq);
    }
    driver_close(&d);
    printf("%-12s rms %.4f  divergence %.6f  other tokens of 1,000 %5.1f  perplexity %.4f\n",
           format, sqrt(r->squares / r->n / r->n_vocab), r->divergence / r->n,
           1e3 * r->n_others / r->n, exp(r->surprise / r->n_scored));
    return 0;
}

int main(int argc, char **argv) {
    struct driver_opts o = {.backend = "cpu", .n_threads = 2, .page_tokens = 32};
    struct tokens tokens = {0};
    uint32_t context = 512, n = 4096;
    float *base = NULL;

    for (int c; (c = getopt(argc, argv, "b:c:n:")) != -1;) {
        if (c == 'b')
            o.backend = optarg;
        else if (c == 'c')
            context = (uint32_t)strtoul(optarg, NULL, 10);
        else if (c == 'n')
            n = (uint32_t)strtoul(optarg, NULL, 10);
        else
            return 2;
    }
    if (argc - optind != 3 || context < 2) {
        fprintf(stderr, "usage: bench_kv [-b BACKEND] [-c CONTEXT] [-n TOKENS] MODEL TEXT KV,..\n");
        return 2;
    }
    o.path = argv[optind];
    o.n_pages = context / o.page_tokens + 2;
    o.max_rows = MIN(context, 128);
    if (read_tokens(o.path, argv[optind + 1], context, &tokens) < 0)
        return 1;
    n = MIN(n, (uint32_t)tokens.n) / context * context;
    printf("%u tokens in pieces of %u, %s\n", n, context, o.backend);
    int r = 0;
    for (char *name, *rest = argv[optind + 2]; r == 0 && (name = strsep(&rest, ","));) {
        struct run run = {.token = tokens.id, .base = base, .fills = !base, .context = context};

        r = measure(&o, name, &run, n);
        base = run.base;
    }
    free(base);
    tokens_deinit(&tokens);
    return r < 0;
}
