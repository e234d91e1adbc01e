/*
 * bench_schemas VOCABULARY.gguf [any_order] [quick] [digest] [compile] [check] < names: reads names
 * of files, one a line, each {"schema": ..., "tests": [{"valid": true, "data": ...}, ...]}.
 * Compiles each schema and reads its instances token by token under the masks, as a server would.
 * Writes one JSON object a line; maskbench.py adds them up. quick: what a step with other requests
 * waits for; masks that are late are counted, and made outside the time that is told, as a thread
 * does. digest: of all masks of a schema, to compare two builds. compile: no instances, only the
 * first mask. check: also the time in which the front checks the schema, without a vocabulary.
 *
 * Instances are written as Python's json.dumps(x, ensure_ascii=False) writes them: a blank after a
 * comma and a colon, numbers as in the file.
 */

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <yyjson.h>

#include "base/buf.h"
#include "grammar/grammar.h"
#include "text/tokenizer.h"

struct bench {
    const struct tokenizer *tokens;
    const struct grammar_vocab *vocab;
    uint32_t *bits;
    unsigned flags;
    /* nanoseconds of each mask, separated by commas */
    struct buf masks;
    /* valid instances refused, invalid ones accepted */
    uint32_t n_refused, n_accepted;
    /* masks and tokens that were -E2BIG */
    uint32_t n_too_ambiguous;
    uint32_t n_late;
    bool quick, digests, compile_only, checks;
    uint64_t digest;
    /* of the first of each */
    struct buf detail;
};

/* Of this thread: others on the same core do not count. */
static int64_t now_ns(void) {
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static void write_string(struct buf *out, yyjson_val *v) {
    const char *s = yyjson_get_str(v), *shorts = "\bb\ff\nn\rr\tt", *p;

    buf_add(out, R"(")", 1);
    for (size_t i = 0; i < yyjson_get_len(v); i++) {
        uint8_t c = (uint8_t)s[i];

        if (c == '"' || c == '\\')
            buf_printf(out, "\\%c", c);
        else if (c && c < 0x20 && (p = strchr(shorts, c)))
            buf_printf(out, "\\%c", p[1]);
        else if (c < 0x20)
            buf_printf(out, "\\u%04x", c);
        else
            buf_add(out, s + i, 1);
    }
    buf_add(out, R"(")", 1);
}

static void write_value(struct buf *out, yyjson_val *v) {
    yyjson_val *key, *item;
    size_t i, n;

    switch (yyjson_get_type(v)) {
    case YYJSON_TYPE_OBJ:
        buf_add(out, "{", 1);
        yyjson_obj_foreach(v, i, n, key, item) {
            buf_add(out, ", ", i ? 2 : 0);
            write_string(out, key);
            buf_add(out, ": ", 2);
            write_value(out, item);
        }
        buf_add(out, "}", 1);
        return;
    case YYJSON_TYPE_ARR:
        buf_add(out, "[", 1);
        yyjson_arr_foreach(v, i, n, item) {
            buf_add(out, ", ", i ? 2 : 0);
            write_value(out, item);
        }
        buf_add(out, "]", 1);
        return;
    case YYJSON_TYPE_STR:
        write_string(out, v);
        return;
    case YYJSON_TYPE_RAW:
        buf_add(out, yyjson_get_raw(v), yyjson_get_len(v));
        return;
    default:
        buf_printf(out, "%s", yyjson_is_null(v) ? "null" : yyjson_get_bool(v) ? "true" : "false");
    }
}

/* *@late_ns: of a mask that was late. */
static int64_t make_mask(struct bench *b, struct grammar_state *s, int64_t *late_ns) {
    grammar_state_set_quick(s, b->quick);
    int64_t n = grammar_mask(s, b->bits);

    grammar_state_set_quick(s, false);
    if (n != -EAGAIN)
        return n;
    int64_t t0 = now_ns();

    b->n_late++;
    n = grammar_mask(s, b->bits);
    *late_ns = now_ns() - t0;
    return n;
}

static void add_digest(struct bench *b, int64_t n) {
    uint64_t h = b->digest ^ (uint64_t)n;

    for (uint32_t i = 0; n >= 0 && i < grammar_vocab_n_words(b->vocab); i++)
        h = (h ^ b->bits[i]) * 0x9E3779B97F4A7C15u, h ^= h >> 29;
    b->digest = h;
}

/* Reads @text under the masks; the byte where it is refused, or -1 when it is accepted. */
static long read_instance(struct bench *b, struct grammar_state *s, const struct buf *text) {
    struct tokens ids = {0};
    long at = 0;
    bool ok = tokenizer_encode(b->tokens, text->data, text->len, 0, NULL, 0, &ids) == 0;

    for (size_t i = 0; ok && i < ids.n; i++) {
        uint32_t id = (uint32_t)ids.id[i];
        int64_t t0 = now_ns();
        int64_t late_ns = 0;
        int64_t n = make_mask(b, s, &late_ns);
        bool allowed = n > 0 && (b->bits[id / 32] >> (id % 32) & 1);
        int r = grammar_accept(s, ids.id[i]);
        size_t len;

        buf_printf(&b->masks, "%s%lld", b->masks.len ? "," : "",
                   (long long)(now_ns() - t0 - late_ns));
        if (b->digests)
            add_digest(b, n);
        if (n >= 0 && allowed != (r == 0) && r != -E2BIG) {
            fprintf(stderr, "a mask and its acceptance differ: token %u of %s (%d %ld)\n", id,
                    text->data, allowed, (long)n);
            exit(1);
        }
        b->n_too_ambiguous += n < 0 || r == -E2BIG;
        ok = allowed && r == 0;
        tokenizer_piece(b->tokens, ids.id[i], true, &len);
        at += ok ? (long)len : 0;
    }
    ok = ok && grammar_can_end(s);
    tokens_deinit(&ids);
    return ok ? -1 : at;
}

static void read_tests(struct bench *b, const struct grammar *g, yyjson_val *tests) {
    CLEANUP(grammar_state_freep) struct grammar_state *s = NULL;
    yyjson_val *test;
    size_t i, n;

    if (grammar_state_new(&s, g) < 0)
        return;
    yyjson_arr_foreach(tests, i, n, test) {
        bool valid = yyjson_get_bool(yyjson_obj_get(test, "valid"));
        struct buf text;

        buf_init(&text, 64u << 20);
        write_value(&text, yyjson_obj_get(test, "data"));
        grammar_state_reset(s);
        long at = read_instance(b, s, &text);

        if (valid == (at >= 0)) {
            long from = at > 60 ? at - 60 : 0;

            if (b->detail.len == 0)
                buf_printf(&b->detail, "test %zu: %.*s<HERE>%.40s", i,
                           (int)(at < 0 ? 0 : at - from), text.data + from,
                           text.data + (at < 0 ? 0 : at));
            b->n_refused += valid;
            b->n_accepted += !valid;
        }
        buf_deinit(&text);
    }
}

/* Returns the time in which the front checks @src, in ns. */
static int64_t time_check(const struct grammar_source *src) {
    CLEANUP(grammar_freep) struct grammar *g = NULL;
    int64_t t0 = now_ns();

    (void)grammar_compile(&g, NULL, src, NULL, NULL);
    return now_ns() - t0;
}

static void run_file(struct bench *b, const char *name) {
    yyjson_doc *doc = yyjson_read_file(name, YYJSON_READ_NUMBER_AS_RAW, NULL, NULL);
    yyjson_val *root = yyjson_doc_get_root(doc);
    struct buf schema, line;
    CLEANUP(grammar_freep) struct grammar *g = NULL;
    struct err err = {0};

    buf_init(&schema, 64u << 20);
    buf_init(&line, 64u << 20);
    buf_init(&b->masks, 256u << 20);
    buf_init(&b->detail, 1u << 20);
    b->n_refused = b->n_accepted = b->n_too_ambiguous = b->n_late = 0;
    b->digest = 0;
    write_value(&schema, yyjson_obj_get(root, "schema"));

    struct grammar_source src = {
        .kind = GRAMMAR_JSON_SCHEMA, .text = schema.data, .len = schema.len, .flags = b->flags};
    int64_t check = b->checks ? time_check(&src) : 0, t0 = now_ns();
    int r = grammar_compile(&g, b->vocab, &src, NULL, &err);
    CLEANUP(grammar_state_freep) struct grammar_state *s = NULL;

    if (r == 0 && grammar_state_new(&s, g) == 0)
        grammar_mask(s, b->bits);
    int64_t first = now_ns() - t0, prepare = 0;

    if (r == 0 && !b->compile_only) {
        t0 = now_ns();
        grammar_prepare(g);
        prepare = now_ns() - t0;
    }
    if (r == 0 && !b->compile_only)
        read_tests(b, g, yyjson_obj_get(root, "tests"));
    yyjson_mut_doc *out = yyjson_mut_doc_new(NULL);
    yyjson_mut_val *o = yyjson_mut_obj(out);

    yyjson_mut_doc_set_root(out, o);
    yyjson_mut_obj_add_str(out, o, "file", name);
    yyjson_mut_obj_add_int(out, o, "check_ns", check);
    yyjson_mut_obj_add_int(out, o, "first_ns", first);
    yyjson_mut_obj_add_int(out, o, "prepare_ns", prepare);
    yyjson_mut_obj_add_str(out, o, "error", r < 0 ? err.message : "");
    yyjson_mut_obj_add_uint(out, o, "bytes", g ? grammar_bytes(g) : 0);
    yyjson_mut_obj_add_uint(out, o, "valid_refused", b->n_refused);
    yyjson_mut_obj_add_uint(out, o, "invalid_accepted", b->n_accepted);
    yyjson_mut_obj_add_uint(out, o, "too_ambiguous", b->n_too_ambiguous);
    yyjson_mut_obj_add_uint(out, o, "late", b->n_late);
    yyjson_mut_obj_add_uint(out, o, "digest", b->digest);
    yyjson_mut_obj_add_strn(out, o, "detail", b->detail.data ? b->detail.data : "", b->detail.len);
    buf_printf(&line, "[%.*s]", (int)b->masks.len, b->masks.data ? b->masks.data : "");
    yyjson_mut_obj_add_val(out, o, "masks_ns", yyjson_mut_rawn(out, line.data, line.len));
    char *json = yyjson_mut_write(out, YYJSON_WRITE_ALLOW_INVALID_UNICODE, NULL);

    puts(json ? json : "{}");
    free(json);
    yyjson_mut_doc_free(out);
    yyjson_doc_free(doc);
    buf_deinit(&schema);
    buf_deinit(&line);
    buf_deinit(&b->masks);
    buf_deinit(&b->detail);
}

int main(int argc, char **argv) {
    static char name[4096];
    CLEANUP(gguf_freep) struct gguf *file = NULL;
    CLEANUP(tokenizer_freep) struct tokenizer *t = NULL;
    CLEANUP(grammar_vocab_freep) struct grammar_vocab *v = NULL;
    struct err err = {0};

    if (argc < 2 || gguf_open(&file, argv[1], &err) < 0 || tokenizer_new(&t, file, &err) < 0 ||
        grammar_vocab_of(&v, t) < 0) {
        fprintf(stderr, "usage: bench_schemas VOCABULARY.gguf < names %s\n", err.message);
        return 1;
    }
    struct bench b = {.tokens = t, .vocab = v, .flags = GRAMMAR_ANY_FORMAT};

    for (int i = 2; i < argc; i++) {
        b.flags |= strcmp(argv[i], "any_order") == 0 ? GRAMMAR_ANY_ORDER : 0;
        b.quick |= strcmp(argv[i], "quick") == 0;
        b.compile_only |= strcmp(argv[i], "compile") == 0;
        b.checks |= strcmp(argv[i], "check") == 0;
        b.digests |= strcmp(argv[i], "digest") == 0;
    }

    b.bits = calloc(grammar_vocab_n_words(v), sizeof(*b.bits));
    while (b.bits && fgets(name, sizeof(name), stdin)) {
        name[strcspn(name, "\n")] = '\0';
        run_file(&b, name);
    }
    free(b.bits);
    return 0;
}
