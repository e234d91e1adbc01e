#include "checkpoint/safetensors.h"

#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/try.h"

static const struct {
    const char *name;
    uint32_t bytes;
} types[ST_N_TYPES] = {
    [ST_BOOL] = {"BOOL", 1},       [ST_U8] = {"U8", 1},           [ST_I8] = {"I8", 1},
    [ST_F8_E4M3] = {"F8_E4M3", 1}, [ST_F8_E5M2] = {"F8_E5M2", 1}, [ST_F8_E8M0] = {"F8_E8M0", 1},
    [ST_I16] = {"I16", 2},         [ST_U16] = {"U16", 2},         [ST_F16] = {"F16", 2},
    [ST_BF16] = {"BF16", 2},       [ST_I32] = {"I32", 4},         [ST_U32] = {"U32", 4},
    [ST_F32] = {"F32", 4},         [ST_I64] = {"I64", 8},         [ST_U64] = {"U64", 8},
    [ST_F64] = {"F64", 8},
};

/* Reads a header; the offset of a message is that in the header. */
struct st_cursor {
    const char *text;
    size_t at, len;
    struct err *err;
};

/* A string of the header, between its quotes, with escapes as they are. */
struct st_text {
    const char *data;
    size_t len;
};

const char *st_type_name(enum st_type type) {
    return types[type].name;
}

size_t st_type_bytes(enum st_type type) {
    return types[type].bytes;
}

static struct gguf_str safetensors_name(const void *owner, uint32_t i) {
    const char *name = ((const struct st_list *)owner)->tensor[i].name;

    return (struct gguf_str){name, strlen(name)};
}

void st_list_init(struct st_list *l) {
    *l = (struct st_list){.index.name = safetensors_name};
    arena_init(&l->names, (size_t)GGUF_TENSORS_MAX * 4 * (ST_NAME_MAX + 17));
}

void st_list_deinit(struct st_list *l) {
    free(l->tensor);
    hash_index_deinit(&l->index.items);
    arena_deinit(&l->names);
}

static int PRINTF(2, 3) st_fail(const struct st_cursor *c, const char *fmt, ...) {
    char text[300];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    return err_set(c->err, 0, NULL, "byte %zu of the header: %s", c->at, text);
}

static void st_skip_blanks(struct st_cursor *c) {
    while (c->at < c->len && strchr(" \t\r\n", c->text[c->at]) && c->text[c->at])
        c->at++;
}

/* Takes the character @want after blanks if it is the next one. */
static bool st_accept(struct st_cursor *c, char want) {
    st_skip_blanks(c);
    if (c->at >= c->len || c->text[c->at] != want)
        return false;
    c->at++;
    return true;
}

static int st_need(struct st_cursor *c, char want) {
    return st_accept(c, want) ? 0 : st_fail(c, "'%c' is missing", want);
}

static int st_string(struct st_cursor *c, struct st_text *out) {
    TRY(st_need(c, '"'));
    size_t start = c->at;

    while (c->at < c->len && c->text[c->at] != '"') {
        if ((unsigned char)c->text[c->at] < 0x20)
            return st_fail(c, "a control character in a string");
        c->at += c->text[c->at] == '\\' ? 2 : 1;
    }
    if (c->at >= c->len)
        return st_fail(c, "a string does not end");
    *out = (struct st_text){c->text + start, c->at - start};
    c->at++;
    return 0;
}

static int st_number(struct st_cursor *c, uint64_t *out) {
    uint64_t v = 0;

    st_skip_blanks(c);
    size_t start = c->at;
    while (c->at < c->len && c->text[c->at] >= '0' && c->text[c->at] <= '9') {
        uint64_t digit = (uint64_t)(c->text[c->at] - '0');

        if (v > (INT64_MAX - digit) / 10)
            return st_fail(c, "a number is too large");
        v = 10 * v + digit;
        c->at++;
    }
    if (c->at == start || (c->text[start] == '0' && c->at > start + 1))
        return st_fail(c, "a whole number is missing");
    *out = v;
    return 0;
}

/* Reads at most @max numbers in brackets. */
static int st_numbers(struct st_cursor *c, uint32_t max, uint64_t *out, uint32_t *n) {
    *n = 0;
    TRY(st_need(c, '['));
    if (st_accept(c, ']'))
        return 0;
    do {
        if (*n == max)
            return st_fail(c, "more than %u numbers", max);
        TRY(st_number(c, &out[(*n)++]));
    } while (st_accept(c, ','));
    return st_need(c, ']');
}

static bool st_is(struct st_text s, const char *word) {
    return s.len == strlen(word) && memcmp(s.data, word, s.len) == 0;
}

/* A text for a message, returned by value. */
struct st_shown {
    char s[41];
};

static struct st_shown st_show(struct st_text t) {
    struct st_shown out = {{0}};

    for (size_t i = 0; i < MIN(t.len, sizeof(out.s) - 1); i++)
        out.s[i] = '!' <= t.data[i] && t.data[i] <= '~' ? t.data[i] : '?';
    return out;
}

/* Skips the object of free texts. */
static int st_metadata(struct st_cursor *c) {
    struct st_text s;

    TRY(st_need(c, '{'));
    if (st_accept(c, '}'))
        return 0;
    do {
        TRY(st_string(c, &s));
        TRY(st_need(c, ':'));
        TRY(st_string(c, &s));
    } while (st_accept(c, ','));
    return st_need(c, '}');
}

/* Reads the value of a tensor's member @key. @seen has a bit for each member. */
static int st_member(struct st_cursor *c, struct st_text key, struct st_tensor *t,
                     uint64_t place[2], unsigned *seen) {
    struct st_text s;
    uint32_t n;
    unsigned bit;

    if (st_is(key, "dtype")) {
        bit = 1;
        TRY(st_string(c, &s));
        for (t->type = 0; t->type < ST_N_TYPES && !st_is(s, types[t->type].name);)
            t->type++;
        if (t->type == ST_N_TYPES)
            return st_fail(c, "tensor '%s' has the unknown type %s", t->name, st_show(s).s);
    } else if (st_is(key, "shape")) {
        bit = 2;
        TRY(st_numbers(c, ST_DIMS_MAX, t->dim, &t->n_dims));
    } else if (st_is(key, "data_offsets")) {
        bit = 4;
        TRY(st_numbers(c, 2, place, &n));
        if (n != 2)
            return st_fail(c, "tensor '%s': data_offsets has %u numbers", t->name, n);
    } else {
        return st_fail(c, "tensor '%s' has the unknown member '%s'", t->name, st_show(key).s);
    }
    if (*seen & bit)
        return st_fail(c, "tensor '%s' has '%s' twice", t->name, st_show(key).s);
    *seen |= bit;
    return 0;
}

/* Checks that the place of @t is that of its shape and type, and lies in the @room bytes of
 * data. */
static int st_check(const struct st_cursor *c, struct st_tensor *t, const uint64_t place[2],
                    uint64_t room) {
    size_t bytes = types[t->type].bytes;

    for (uint32_t i = 0; i < t->n_dims; i++)
        if (size_mul(bytes, t->dim[i], &bytes))
            return st_fail(c, "tensor '%s' is too large", t->name);
    if (place[1] < place[0] || place[1] > room)
        return st_fail(c, "tensor '%s' has bytes %llu to %llu of %llu" GGUF_WHOLE, t->name,
                       (unsigned long long)place[0], (unsigned long long)place[1],
                       (unsigned long long)room);
    if (place[1] - place[0] != bytes)
        return st_fail(c, "tensor '%s' has %llu bytes, its shape needs %zu", t->name,
                       (unsigned long long)(place[1] - place[0]), bytes);
    if (place[0] % types[t->type].bytes)
        return st_fail(c, "tensor '%s' begins in the middle of a value", t->name);
    t->n_bytes = bytes;
    return 0;
}

/* Reads the object of one tensor, whose name is @name; @start: offset of the data. */
static int st_tensor_of(struct st_list *l, struct st_cursor *c, struct st_text name, uint32_t file,
                        uint64_t start, uint64_t room) {
    struct st_tensor t = {.file = file};
    uint64_t place[2] = {0};
    struct st_text key;
    unsigned seen = 0;

    if (name.len == 0 || name.len > ST_NAME_MAX)
        return st_fail(c, "a name of %zu bytes; 1 to %u are allowed", name.len, ST_NAME_MAX);
    for (size_t i = 0; i < name.len; i++)
        if (name.data[i] < 0x21 || name.data[i] > 0x7E || name.data[i] == '\\')
            return st_fail(c, "a tensor's name has the byte 0x%02x",
                           (unsigned)(unsigned char)name.data[i]);
    if (l->n == 4 * GGUF_TENSORS_MAX)
        return st_fail(c, "more than %u tensors", 4 * GGUF_TENSORS_MAX);
    t.name = arena_strndup(&l->names, name.data, name.len);
    if (!t.name)
        return -ENOMEM;
    TRY(st_need(c, '{'));
    do {
        TRY(st_string(c, &key));
        TRY(st_need(c, ':'));
        TRY(st_member(c, key, &t, place, &seen));
    } while (st_accept(c, ','));
    TRY(st_need(c, '}'));
    if (seen != 7)
        return st_fail(c, "tensor '%s' lacks dtype, shape or data_offsets", t.name);
    TRY(st_check(c, &t, place, room));
    t.offset = start + place[0];
    if (!ARRAY_GROW(l->tensor, l->n, l->cap, 256))
        return -ENOMEM;
    TRY(gguf_index_reserve(&l->index, l->n + 1));
    if (gguf_index_find(&l->index, l, (struct gguf_str){t.name, name.len}) >= 0)
        return st_fail(c, "tensor '%s' appears twice", t.name);
    l->tensor[l->n] = t;
    TRY(gguf_index_add(&l->index, (struct gguf_str){t.name, name.len}, l->n));
    l->n++;
    return 0;
}

/* A tensor's place, for sorting. */
struct st_place {
    uint64_t from, to;
    const char *name;
};

static int st_by_place(const void *a, const void *b) {
    const struct st_place *x = a, *y = b;

    if (x->from != y->from)
        return x->from < y->from ? -1 : 1;
    return (x->to > y->to) - (x->to < y->to);
}

/* Checks that the tensors from @first on fill bytes [start, end) of their file without gap or
 * overlap. */
static int st_check_places(const struct st_list *l, uint32_t first, uint64_t start, uint64_t end,
                           struct err *err) {
    uint32_t n = l->n - first;
    CLEANUP(freep) struct st_place *place = calloc(n + 1, sizeof(*place));
    uint64_t at = start;

    if (!place)
        return -ENOMEM;
    for (uint32_t i = 0; i < n; i++) {
        const struct st_tensor *t = &l->tensor[first + i];

        place[i] = (struct st_place){t->offset, t->offset + t->n_bytes, t->name};
    }
    qsort(place, n, sizeof(*place), st_by_place);
    for (uint32_t i = 0; i < n; i++) {
        if (place[i].from != at)
            return err_set(err, 0, NULL, "tensor '%s' %s at offset %llu", place[i].name,
                           place[i].from < at ? "overlaps another one" : "follows a gap",
                           (unsigned long long)place[i].from);
        at = place[i].to;
    }
    if (at != end)
        return err_set(err, 0, NULL, "the tensors end at offset %llu, the file at %llu" GGUF_WHOLE,
                       (unsigned long long)at, (unsigned long long)end);
    return 0;
}

int st_parse(struct st_list *l, uint32_t file, const char *text, size_t len, uint64_t file_bytes,
             struct err *err) {
    struct st_cursor c = {.text = text, .len = len, .err = err};
    uint64_t start = 8 + (uint64_t)len;
    uint32_t first = l->n;
    struct st_text name;
    bool met = false;

    assert(start <= file_bytes);
    TRY(st_need(&c, '{'));
    bool some = !st_accept(&c, '}');
    while (some) {
        TRY(st_string(&c, &name));
        TRY(st_need(&c, ':'));
        if (!st_is(name, "__metadata__")) {
            TRY(st_tensor_of(l, &c, name, file, start, file_bytes - start));
        } else if (met) {
            return st_fail(&c, "'__metadata__' appears twice");
        } else {
            met = true;
            TRY(st_metadata(&c));
        }
        some = st_accept(&c, ',');
        if (!some)
            TRY(st_need(&c, '}'));
    }
    st_skip_blanks(&c);
    if (c.at != c.len)
        return st_fail(&c, "something follows the last brace");
    return st_check_places(l, first, start, file_bytes, err);
}

/* Reads @n bytes at offset @at of @fd. Returns 0 or -errno. */
static int st_pread(int fd, void *to, size_t n, off_t at) {
    for (size_t done = 0; done < n;) {
        ssize_t r = pread(fd, (char *)to + done, n - done, at + (off_t)done);

        if (r < 0 && errno == EINTR)
            continue;
        if (r <= 0)
            return r < 0 ? -errno : -EIO;
        done += (size_t)r;
    }
    return 0;
}

int st_read(struct st_list *l, uint32_t file, int fd, struct err *err) {
    struct stat st;
    uint64_t n;

    if (fstat(fd, &st) < 0)
        return -errno;
    if (!S_ISREG(st.st_mode))
        return err_set(err, 0, NULL, "not a regular file");
    if (st.st_size < 10)
        return err_set(err, 0, NULL, "%lld bytes are no safetensors file" GGUF_WHOLE,
                       (long long)st.st_size);
    TRY(st_pread(fd, &n, sizeof(n), 0));
    n = le64toh(n);
    if (memcmp(&n, "version ", 8) == 0)
        return err_set(err, 0, NULL,
                       "not a safetensors file but, it seems, a pointer of Git LFS: run git lfs "
                       "pull in its repository, or download the file itself");
    if (n < 2 || n > ST_HEADER_MAX || n > (uint64_t)st.st_size - 8)
        return err_set(err, 0, NULL, "a header of %llu bytes; 2 to %u are allowed" GGUF_WHOLE,
                       (unsigned long long)n, (unsigned)MIN(ST_HEADER_MAX, st.st_size - 8));
    CLEANUP(freep) char *text = malloc(n);
    if (!text)
        return -ENOMEM;
    TRY(st_pread(fd, text, n, 8));
    return st_parse(l, file, text, n, (uint64_t)st.st_size, err);
}

const struct st_tensor *st_find(const struct st_list *l, const char *name) {
    int64_t i = gguf_index_find(&l->index, l, (struct gguf_str){name, strlen(name)});

    return i < 0 ? NULL : &l->tensor[i];
}
