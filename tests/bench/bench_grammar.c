/*
 * bench_grammar VOCABULARY.gguf: what constrained generation costs with a real vocabulary. Prints
 * the time to prepare the vocabulary, to compile several grammars, and of masks along texts that
 * were generated under them (median, 99th percentile, worst).
 */

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/buf.h"
#include "base/rng.h"
#include "grammar/grammar.h"
#include "text/tokenizer.h"

#define MASKS 4000

static double now(void) {
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t); /* others use the machine, too */
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Tool @i of an agent: eight parameters of the kinds that agents have. */
static void add_tool(struct buf *b, int i) {
    buf_printf(b,
               R"({"type": "object", "properties": {)"
               R"("path_%d": {"type": "string", "description": "Where"}, )"
               R"("pattern": {"type": "string", "maxLength": %d}, )"
               R"("mode": {"enum": ["read", "write", "append", "list_%d"]}, )"
               R"("limit": {"type": "integer", "minimum": 1, "maximum": %d}, )"
               R"("recursive": {"type": "boolean"}, )"
               R"("tags": {"type": "array", "items": {"type": "string"}, "maxItems": 20}, )"
               R"("edits": {"type": "array", "items": {"type": "object", "properties": )"
               R"({"old": {"type": "string"}, "new": {"type": "string"}, "line": )"
               R"({"anyOf": [{"type": "integer"}, {"type": "null"}]}}, "required": )"
               R"(["old", "new"], "additionalProperties": false}}, )"
               R"("options_%d": {"type": "object", "additionalProperties": {"type": )"
               R"("string"}}}, )"
               R"("required": ["path_%d", "mode"], "additionalProperties": false})",
               i, 100 + i * 10, i, 1000 + i, i, i);
}

static grammar_part literal(struct grammar_builder *b, const char *s) {
    return grammar_literal(b, s, strlen(s));
}

static struct grammar *compile_tools(const struct grammar_vocab *v, int n_tools) {
    CLEANUP(grammar_builder_freep) struct grammar_builder *b = NULL;
    CLEANUP(freep) grammar_part *call = calloc((size_t)n_tools, sizeof(*call));
    struct grammar *g = NULL;
    struct err err = {0};

    if (!call || grammar_builder_new(&b, v, NULL) < 0)
        return NULL;
    for (int i = 0; i < n_tools; i++) {
        struct buf schema, head;

        buf_init(&schema, 1 << 20);
        buf_init(&head, 1 << 10);
        add_tool(&schema, i);
        buf_printf(&head,
                   "<tool_call>\n"
                   R"({"name": "tool_%d", "arguments": )",
                   i);
        struct grammar_source src = {
            .kind = GRAMMAR_JSON_SCHEMA, .text = schema.data, .len = schema.len};
        grammar_part part[] = {literal(b, head.data), grammar_part_of(b, &src),
                               literal(b, "}\n</tool_call>")};

        call[i] = grammar_sequence(b, part, 3);
        buf_deinit(&schema);
        buf_deinit(&head);
    }
    grammar_part all =
        grammar_repeat(b, grammar_either(b, call, (size_t)n_tools), literal(b, "\n"), 1, 8);

    if (grammar_build(&g, b, all, &err) < 0)
        fprintf(stderr, "%s\n", err.message);
    return g;
}

/* One of the allowed tokens; more often a long one, as models prefer. */
static int32_t pick(const uint32_t *bits, uint32_t n_words, int64_t allowed,
                    const struct tokenizer *t, struct rng *r) {
    int32_t best = -1;
    size_t best_len = 0;

    for (int try = 0; try < 3; try++) {
        int64_t k = (int64_t)(rng_next(r) % (uint64_t)allowed);

        for (uint32_t w = 0; w < n_words; w++) {
            int n = __builtin_popcount(bits[w]);

            if (k >= n) {
                k -= n;
                continue;
            }
            uint32_t x = bits[w];

            while (k-- > 0)
                x &= x - 1;
            int32_t id = (int32_t)(w * 32 + (uint32_t)__builtin_ctz(x));
            size_t len;

            tokenizer_piece(t, id, false, &len);
            if (best < 0 || len > best_len) {
                best = id;
                best_len = len;
            }
            break;
        }
    }
    return best;
}

/* Texts that are led to their end at a limit of up to 60 tokens beyond the shortest one: masks that
 * know how many tokens are left, far from the limit and at it, and whether the texts are whole. */
static void measure_ends(const struct grammar *g, const struct grammar_vocab *v,
                         const struct tokenizer *t) {
    static double far[MASKS], near[MASKS];
    uint32_t n_words = grammar_vocab_n_words(v), left = 0, not_whole = 0, least;
    CLEANUP(freep) uint32_t *bits = calloc(n_words, sizeof(*bits));
    CLEANUP(grammar_state_freep) struct grammar_state *s = NULL;
    struct rng r = {1};
    int n = 0, texts = -1;

    if (!bits || grammar_state_new(&s, g) < 0)
        return;
    least = grammar_distance(s);
    while (n < MASKS) {
        if (left == 0 || grammar_is_done(s)) {
            not_whole += texts >= 0 && left == 0 && grammar_distance(s) > 0;
            grammar_state_reset(s);
            left = MAX(least, 1u) + rng_below(&r, 60);
            texts++;
        }
        double t0 = now();
        int64_t allowed = grammar_mask_within(s, bits, 100000);
        double t1 = now();

        allowed = grammar_mask_within(s, bits, left--);
        near[n] = now() - t1;
        far[n++] = t1 - t0;
        if (allowed <= 0 || grammar_accept(s, pick(bits, n_words, allowed, t, &r)) < 0) {
            not_whole++;
            left = 0;
        }
    }
    qsort(far, MASKS, sizeof(far[0]), by_size);
    qsort(near, MASKS, sizeof(near[0]), by_size);
    printf("                 shortest %u tokens; far from it p50 %6.1f us, p99 %7.1f us; up to the "
           "limit p50 %6.1f us, p99 %7.1f us, max %7.1f us; %d texts, %u not whole\n",
           least, far[MASKS / 2] * 1e6, far[MASKS * 99 / 100] * 1e6, near[MASKS / 2] * 1e6,
           near[MASKS * 99 / 100] * 1e6, near[MASKS - 1] * 1e6, texts, not_whole);
}

static void measure(const char *name, struct grammar *g, double compile,
                    const struct grammar_vocab *v, const struct tokenizer *t) {
    static double mask[MASKS], accept[MASKS];
    uint32_t n_words = grammar_vocab_n_words(v);
    CLEANUP(freep) uint32_t *bits = calloc(n_words, sizeof(*bits));
    CLEANUP(grammar_state_freep) struct grammar_state *s = NULL;
    struct rng r = {1};
    int n = 0, texts = 0;

    if (!g || !bits || grammar_state_new(&s, g) < 0)
        return;
    for (int in_text = 0; n < MASKS; in_text++) {
        double t0 = now();
        int64_t allowed = grammar_mask(s, bits);
        double t1 = now();

        if (allowed <= 0 || in_text > 400) {
            grammar_state_reset(s);
            in_text = 0;
            texts++;
            continue;
        }
        int32_t id = pick(bits, n_words, allowed, t, &r);
        double t2 = now();

        if (grammar_accept(s, id) < 0)
            fprintf(stderr, "%s: token %d was masked in and refused\n", name, id);
        mask[n] = t1 - t0;
        accept[n++] = now() - t2;
    }
    qsort(mask, MASKS, sizeof(mask[0]), by_size);
    qsort(accept, MASKS, sizeof(accept[0]), by_size);
    printf(
        "%-16s compile %7.2f ms, %8zu bytes; mask p50 %6.1f us, p99 %7.1f us, max %7.1f us; accept "
        "p50 %5.2f us, p99 %5.2f us; %d texts\n",
        name, compile * 1e3, grammar_bytes(g), mask[MASKS / 2] * 1e6, mask[MASKS * 99 / 100] * 1e6,
        mask[MASKS - 1] * 1e6, accept[MASKS / 2] * 1e6, accept[MASKS * 99 / 100] * 1e6, texts);
    measure_ends(g, v, t);
}

static void run_source(const char *name, enum grammar_kind kind, const char *text,
                       const struct grammar_vocab *v, const struct tokenizer *t) {
    struct grammar_source src = {.kind = kind, .text = text, .len = strlen(text)};
    CLEANUP(grammar_freep) struct grammar *g = NULL;
    struct err err = {0};
    double t0 = now();

    if (grammar_compile(&g, v, &src, NULL, &err) < 0)
        printf("%-16s %.5f s: %s\n", name, now() - t0, err.message);
    else
        measure(name, g, now() - t0, v, t);
}

int main(int argc, char **argv) {
    CLEANUP(gguf_freep) struct gguf *file = NULL;
    CLEANUP(tokenizer_freep) struct tokenizer *t = NULL;
    CLEANUP(grammar_vocab_freep) struct grammar_vocab *v = NULL;
    struct buf schema;
    struct err err = {0};

    if (argc != 2 || gguf_open(&file, argv[1], &err) < 0 || tokenizer_new(&t, file, &err) < 0) {
        fprintf(stderr, "usage: bench_grammar VOCABULARY.gguf %s\n", err.message);
        return 1;
    }
    double t0 = now();

    if (grammar_vocab_of(&v, t) < 0)
        return 1;
    printf("vocabulary of %u tokens: %.1f ms\n", tokenizer_n_vocab(t), (now() - t0) * 1e3);
    run_source("json_object", GRAMMAR_JSON_OBJECT, "", v, t);
    buf_init(&schema, 1 << 20);
    add_tool(&schema, 1);
    run_source("one schema", GRAMMAR_JSON_SCHEMA, schema.data, v, t);
    buf_deinit(&schema);
    run_source("pattern", GRAMMAR_JSON_SCHEMA,
               R"({"type": "array", "items": {"type": "string", "pattern": )"
               R"("^[a-zA-Z_][a-zA-Z0-9_]{0,63}(\\.[a-z]+)*$"}})",
               v, t);
    run_source("formats", GRAMMAR_JSON_SCHEMA,
               R"({"properties": {"a": {"type": "string", "format": "date-time"}, "b": )"
               R"({"type": "string", "format": "uri"}, "c": {"type": "string", )"
               R"("format": "email"}, "d": {"type": "string", "format": "ipv6"}, "e": )"
               R"({"type": "number", "minimum": 0, "maximum": 1}}, "required": ["a", )"
               R"("b", "c", "d", "e"]})",
               v, t);
    run_source("free text regex", GRAMMAR_REGEX, "[^#]{0,2000}#[ -~]*", v, t);
    run_source("open properties", GRAMMAR_JSON_SCHEMA,
               R"({"properties": {"name": {"type": "string"}, "nature": {"type": )"
               R"("string"}, "value": {}}, "additionalProperties": {"type": "string", )"
               R"("maxLength": 12}})",
               v, t);
    run_source("ebnf", GRAMMAR_EBNF,
               "root ::= expr\nexpr ::= term ([-+*/] term)*\nterm ::= [0-9]+ | [a-z]+ | \"(\" expr "
               "\")\"",
               v, t);
    t0 = now();
    CLEANUP(grammar_freep) struct grammar *g = compile_tools(v, 100);

    measure("100 tools", g, now() - t0, v, t);
    return 0;
}
