/*
 * bench_tokenizer VOCAB.gguf [FILE...]: the time to load the vocabulary, the speed on each file
 * (whole, best of several runs) and on generated hostile texts of 1 MB. Time is that of the
 * processor: what else the machine does costs caches, but is not counted.
 */

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/buf.h"
#include "text/tokenizer.h"

#define HOSTILE (1u << 20)

static double now(void) {
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void measure(const struct tokenizer *t, const char *name, const char *text, size_t len) {
    double best = 1e9, spent = 0, first = 0;
    size_t n = 0;

    for (int i = 0; i < 20 && (i < 1 || spent < 0.3); i++) {
        struct tokens out = {0};
        double t0 = now(), dt;

        if (tokenizer_encode(t, text, len, 0, NULL, 0, &out) < 0)
            exit(1);
        dt = now() - t0;
        spent += dt;
        first = i ? first : dt;
        best = MIN(best, dt);
        n = out.n;
        tokens_deinit(&out);
    }
    printf("%-20s %8.1f MB/s (first time %6.1f) %9zu bytes %8zu tokens %8.2f ms\n", name,
           (double)len / best / 1e6, (double)len / first / 1e6, len, n, best * 1e3);
}

static void measure_file(const struct tokenizer *t, const char *path) {
    FILE *f = fopen(path, "rb");
    const char *name = strrchr(path, '/');
    struct buf b;
    size_t n;

    buf_init(&b, 1u << 28);
    while (f && buf_reserve(&b, 65536) == 0 && (n = fread(b.data + b.len, 1, 65536, f)) > 0)
        b.len += n;
    if (f)
        fclose(f);
    if (b.len)
        measure(t, name ? name + 1 : path, b.data, b.len);
    else
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
    buf_deinit(&b);
}

static void measure_hostile(const struct tokenizer *t) {
    static const char *const units[][2] = {
        {"one word of a", "a"},
        {"one word of ab", "ab"},
        {"spaces", " "},
        {"line breaks", "\n"},
        {"digits", "7"},
        {"marks, one kind", "\xCC\x81"},
        {"marks, two kinds", "\xCC\x81\xCC\xA3"},
        {"invalid bytes", "\xFF"},
        {"cut sequences", "\xE2\x82"},
        {"one emoji", "\xF0\x9F\x98\x80"},
        {"less-than signs", "<"},
        {"starts of specials", "<|im_"},
        {"Hangul jamo", "\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8"},
    };
    char *text = malloc(HOSTILE);

    for (size_t i = 0; text && i < ARRAY_SIZE(units); i++) {
        size_t n = strlen(units[i][1]), len = HOSTILE / n * n;

        for (size_t k = 0; k < len; k++)
            text[k] = units[i][1][k % n];
        measure(t, units[i][0], text, len);
    }
    free(text);
}

int main(int argc, char **argv) {
    CLEANUP(gguf_freep) struct gguf *g = NULL;
    CLEANUP(tokenizer_freep) struct tokenizer *t = NULL;
    struct err err = {0};
    double t0;

    if (argc < 2 || gguf_open(&g, argv[1], &err) < 0) {
        fprintf(stderr, "usage: %s VOCAB.gguf [FILE...]\n%s\n", argv[0], err.message);
        return 2;
    }
    t0 = now();
    if (tokenizer_new(&t, g, &err) < 0) {
        fprintf(stderr, "%s: %s\n", argv[1], err.message);
        return 1;
    }
    printf("%s: %u tokens, loaded in %.1f ms\n", argv[1], tokenizer_n_vocab(t), (now() - t0) * 1e3);
    for (int i = 2; i < argc; i++)
        measure_file(t, argv[i]);
    measure_hostile(t);
    return 0;
}
