#include "tests/text/expect.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/test_data.h"

struct tokenizer *expect_tokenizer(const char *path) {
    CLEANUP(gguf_freep) struct gguf *g = NULL;
    struct tokenizer *t = NULL;
    struct err err = {0};

    cr_assert_eq(gguf_open(&g, path, &err), 0, "%s: %s", path, err.message);
    cr_assert_eq(tokenizer_new(&t, g, &err), 0, "%s: %s", path, err.message);
    return t;
}

const char *expect_data(const char *folder, const char *name) {
    static char path[TEST_DATA_PATH];

    return test_data_file(path, folder, name, "");
}

struct tokens expect_encode(const struct tokenizer *t, const char *text, size_t len,
                            unsigned flags) {
    struct tokens out = {0};

    cr_assert_eq(tokenizer_encode(t, text, len, flags, NULL, 0, &out), 0);
    return out;
}

void expect_ids(const struct tokens *got, const int32_t *ids, size_t n, const char *what) {
    for (size_t i = 0; i < MIN(n, got->n); i++)
        cr_assert_eq(got->id[i], ids[i], "%s: id %zu is %d, expected %d", what, i, got->id[i],
                     ids[i]);
    cr_assert_eq(got->n, n, "%s: %zu ids, expected %zu", what, got->n, n);
}

char *expect_read(const char *path, size_t *len) {
    FILE *f = fopen(path, "rb");
    char *s;

    cr_assert_not_null(f, "%s", path);
    fseek(f, 0, SEEK_END);
    *len = (size_t)ftell(f);
    rewind(f);
    s = malloc(*len + 1);
    cr_assert(s && fread(s, 1, *len, f) == *len);
    fclose(f);
    s[*len] = 0;
    return s;
}

int expect_load(struct tokenizer **out, struct gguf_writer *w, struct err *err) {
    CLEANUP(gguf_freep) struct gguf *g = NULL;
    char path[] = "/tmp/weft-test-vocab-XXXXXX";
    int fd = mkstemp(path), r;

    cr_assert_geq(fd, 0);
    close(fd);
    gw_save(w, path);
    r = gguf_open(&g, path, err);
    unlink(path);
    cr_assert_eq(r, 0, "%s", err->message);
    return tokenizer_new(out, g, err);
}

void expect_byte_char(uint8_t byte, char *out) {
    static int code[256];

    if (!code[0]) {
        int n = 256;

        for (int b = 0; b < 256; b++)
            code[b] = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE ? b : n++;
    }
    out += strlen(out);
    if (code[byte] < 0x80) {
        *out++ = (char)code[byte];
    } else {
        *out++ = (char)(0xC0 | code[byte] >> 6);
        *out++ = (char)(0x80 | (code[byte] & 0x3F));
    }
    *out = 0;
}
