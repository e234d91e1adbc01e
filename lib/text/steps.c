#include "text/steps.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <utf8proc.h>

#include "base/jobs.h"
#include "base/try.h"
#include "text/charsmap.h"
#include "text/unicode.h"

#define MARK "\xE2\x96\x81" /* U+2581, which stands for a space */
#define ARG_MAX 256u        /* most bytes of an argument */
#define PAUSE_BYTES 16384u
#define GRAPHEME_MAX 6u /* bytes from which on a grapheme is not mapped as a whole */

/* Input of a step. */
struct input {
    const struct steps *all;
    const struct text_step *step;
    const char *s, *end;
    /* enum steps_place */
    unsigned place;
};

typedef int step_function(const struct input *in, struct buf *out);

/* Appends the text of @in whose characters each become what @map returns for them in @c, with its
 * length; UINT_MAX: the character stays. */
static int steps_map(const struct input *in, struct buf *out,
                     unsigned (*map)(uint32_t cp, char c[8])) {
    size_t done = 0;

    for (const char *s = in->s; s < in->end;) {
        uint32_t cp;
        unsigned n = unicode_decode(s, in->end, &cp);
        char c[8];
        unsigned m = cp == UNICODE_INVALID ? UINT32_MAX : map(cp, c);

        if (m == UINT32_MAX)
            TRY(buf_add(out, s, n));
        else
            TRY(buf_add(out, c, m));
        s += n;
        done += n;
        if (done >= PAUSE_BYTES) {
            done = 0;
            TRY(job_pause());
        }
    }
    return 0;
}

/* Writes a character in lower case; U+0130 is the only one whose lower case has two code points. */
static unsigned steps_lower(uint32_t cp, char c[8]) {
    if (cp == 0x130) {
        memcpy(c, "i\xCC\x87", 3);
        return 3;
    }
    return unicode_encode((uint32_t)utf8proc_tolower((utf8proc_int32_t)cp), c);
}

/* Removes marks. */
static unsigned steps_unmark(uint32_t cp, char c[8]) {
    (void)c;
    if (cp >= 0x80 && unicode_wide_class(cp) & UC_MARK)
        return 0;
    return UINT32_MAX;
}

static int run_lower(const struct input *in, struct buf *out) {
    return steps_map(in, out, steps_lower);
}

static int run_strip_accents(const struct input *in, struct buf *out) {
    return steps_map(in, out, steps_unmark);
}

static int run_form(const struct input *in, struct buf *out, enum unicode_form form) {
    return unicode_normal(in->s, (size_t)(in->end - in->s), form, out);
}

static int run_nfc(const struct input *in, struct buf *out) {
    return run_form(in, out, UNICODE_NFC);
}

static int run_nfd(const struct input *in, struct buf *out) {
    return run_form(in, out, UNICODE_NFD);
}

static int run_nfkc(const struct input *in, struct buf *out) {
    return run_form(in, out, UNICODE_NFKC);
}

static int run_nfkd(const struct input *in, struct buf *out) {
    return run_form(in, out, UNICODE_NFKD);
}

static int run_strip_left(const struct input *in, struct buf *out) {
    const char *s = in->s;

    while (s < in->end && !(in->place & STEPS_BEHIND)) {
        unsigned n;

        if (!(unicode_class_at(s, in->end, &n) & UC_SPACE))
            break;
        s += n;
    }
    return buf_add(out, s, (size_t)(in->end - s));
}

static int run_strip_right(const struct input *in, struct buf *out) {
    const char *body = in->s;

    for (const char *s = in->s; s < in->end;) {
        unsigned n, c = unicode_class_at(s, in->end, &n);

        s += n;
        if (!(c & UC_SPACE) || in->place & STEPS_BEFORE)
            body = s;
    }
    return buf_add(out, in->s, (size_t)(body - in->s));
}

static int steps_replace(const char *s, const char *end, struct gguf_str from, struct gguf_str to,
                         struct buf *out) {
    while (s < end) {
        const char *at = memmem(s, (size_t)(end - s), from.data, from.len);

        if (!at)
            break;
        TRY(buf_add(out, s, (size_t)(at - s)));
        TRY(buf_add(out, to.data, to.len));
        s = at + from.len;
    }
    return buf_add(out, s, (size_t)(end - s));
}

static int run_replace(const struct input *in, struct buf *out) {
    return steps_replace(in->s, in->end, in->step->arg[0], in->step->arg[1], out);
}

static int run_prepend(const struct input *in, struct buf *out) {
    if (in->s < in->end && !(in->place & STEPS_BEHIND))
        TRY(buf_add(out, in->step->arg[0].data, in->step->arg[0].len));
    return buf_add(out, in->s, (size_t)(in->end - in->s));
}

/* Replaces two or more spaces by the argument. */
static int run_squeeze(const struct input *in, struct buf *out) {
    for (const char *s = in->s; s < in->end;) {
        size_t n = 0;

        while (s + n < in->end && s[n] == ' ')
            n++;
        if (n > 1)
            TRY(buf_add(out, in->step->arg[0].data, in->step->arg[0].len));
        else
            TRY(buf_add_char(out, *s));
        s += MAX(n, 1u);
    }
    return 0;
}

static int run_prefix_space(const struct input *in, struct buf *out) {
    if (in->s < in->end && *in->s != ' ')
        TRY(buf_add_char(out, ' '));
    return buf_add(out, in->s, (size_t)(in->end - in->s));
}

static bool steps_begins_marked(const char *s, const char *end) {
    return *s == ' ' || (end - s >= 3 && memcmp(s, MARK, 3) == 0);
}

/* Writes spaces as marks, with one more before a text that begins with none if @prefix. */
static int steps_mark(const struct input *in, bool prefix, struct buf *out) {
    if (in->s < in->end && prefix && !steps_begins_marked(in->s, in->end))
        TRY(buf_add_str(out, MARK));
    return steps_replace(in->s, in->end, (struct gguf_str){" ", 1}, (struct gguf_str){MARK, 3},
                         out);
}

static int run_mark(const struct input *in, struct buf *out) {
    return steps_mark(in, false, out);
}

static int run_mark_first(const struct input *in, struct buf *out) {
    return steps_mark(in, in->place & STEPS_FIRST, out);
}

static int run_mark_always(const struct input *in, struct buf *out) {
    return steps_mark(in, true, out);
}

/* Writes each word between white space with a mark before it. */
static int run_mark_words(const struct input *in, struct buf *out) {
    bool inside = false;

    for (const char *s = in->s; s < in->end;) {
        unsigned n;
        bool space = unicode_class_at(s, in->end, &n) & UC_SPACE;

        if (!space && !inside && !steps_begins_marked(s, in->end))
            TRY(buf_add_str(out, MARK));
        if (!space)
            TRY(buf_add(out, s, n));
        inside = !space;
        s += n;
    }
    return 0;
}

/* Returns the bytes of the first grapheme cluster at @s < @end. */
static size_t steps_grapheme(const char *s, const char *end) {
    uint32_t cp, next;
    size_t n = unicode_decode(s, end, &cp);
    utf8proc_int32_t state = 0;

    while (s + n < end && cp != UNICODE_INVALID) {
        unsigned m = unicode_decode(s + n, end, &next);

        if (next == UNICODE_INVALID ||
            utf8proc_grapheme_break_stateful((utf8proc_int32_t)cp, (utf8proc_int32_t)next, &state))
            break;
        cp = next;
        n += m;
    }
    return n;
}

/* Appends the @n bytes of one grapheme. A short one is replaced by what the map has for its
 * shortest beginning, as a whole; otherwise each character is. */
static int steps_map_grapheme(const struct charsmap *m, const char *s, size_t n, struct buf *out) {
    struct gguf_str to;

    if (n < GRAPHEME_MAX && charsmap_find(m, s, n, true, &to))
        return buf_add(out, to.data, to.len);
    for (size_t i = 0, k; i < n; i += k) {
        uint32_t cp;

        k = unicode_decode(s + i, s + n, &cp);
        if (!charsmap_find(m, s + i, k, true, &to))
            to = (struct gguf_str){s + i, k};
        TRY(buf_add(out, to.data, to.len));
    }
    return 0;
}

static int run_precompiled(const struct input *in, struct buf *out) {
    size_t done = 0;

    for (const char *s = in->s; s < in->end;) {
        size_t n = steps_grapheme(s, in->end);

        TRY(steps_map_grapheme(in->all->map, s, n, out));
        s += n;
        done += n;
        if (done >= PAUSE_BYTES) {
            done = 0;
            TRY(job_pause());
        }
    }
    return 0;
}

static const struct {
    const char *name;
    unsigned n_args;
    step_function *run;
} ops[] = {
    {"nfc", 0, run_nfc},
    {"nfd", 0, run_nfd},
    {"nfkc", 0, run_nfkc},
    {"nfkd", 0, run_nfkd},
    {"lower", 0, run_lower},
    {"strip_accents", 0, run_strip_accents},
    {"strip_left", 0, run_strip_left},
    {"strip_right", 0, run_strip_right},
    {"replace", 2, run_replace},
    {"prepend", 1, run_prepend},
    {"squeeze", 1, run_squeeze},
    {"prefix_space", 0, run_prefix_space},
    {"mark", 0, run_mark},
    {"mark_first", 0, run_mark_first},
    {"mark_always", 0, run_mark_always},
    {"mark_words", 0, run_mark_words},
    {"precompiled", 0, run_precompiled},
    /* marks the end of the normalizer */
    {"normalized", 0, NULL},
};

static unsigned steps_find(struct gguf_str name) {
    unsigned op = 0;

    while (op < ARRAY_SIZE(ops) &&
           (strlen(ops[op].name) != name.len || memcmp(ops[op].name, name.data, name.len) != 0))
        op++;
    return op;
}

/* Copies string @i of the array to *@to, in memory of @s at *@at. Returns false if it is too
 * long. */
static bool steps_copy(struct steps *s, struct gguf_str from, size_t *at, struct gguf_str *to) {
    if (from.len > ARG_MAX)
        return false;
    memcpy(s->text + *at, from.data, from.len);
    *to = (struct gguf_str){s->text + *at, from.len};
    *at += from.len;
    return true;
}

int steps_load(struct steps *s, const struct gguf *g, const char *key, struct err *err) {
    const struct gguf_array *a = gguf_array(g, key);
    uint64_t n = a ? gguf_array_n(a) : 0;
    size_t at = 0;

    if (a && (gguf_array_type(a) != GGUF_STRING || n > STEPS_MAX))
        return err_set(err, 0, NULL, "%s is not an array of at most %d strings", key, STEPS_MAX);
    s->step = calloc(n + 1, sizeof(*s->step));
    s->text = malloc((n + 1) * ARG_MAX);
    if (!s->step || !s->text)
        return -ENOMEM;
    for (uint64_t i = 0; i < n;) {
        struct text_step *step = &s->step[s->n];
        unsigned op = steps_find(gguf_array_str(a, i++));

        if (op == ARRAY_SIZE(ops) || ops[op].n_args > n - i)
            return err_set(err, 0, NULL, "%s[%u] is no step, or lacks arguments", key,
                           (unsigned)i - 1);
        if (!ops[op].run) {
            s->n_normalize = s->n;
            s->is_marked = true;
            continue;
        }
        step->op = (uint8_t)op;
        for (unsigned k = 0; k < ops[op].n_args; k++, i++)
            if (!steps_copy(s, gguf_array_str(a, i), &at, &step->arg[k]))
                return err_set(err, 0, NULL, "%s[%u] has more than %u bytes", key, (unsigned)i,
                               ARG_MAX);
        if (ops[op].run == run_replace && step->arg[0].len == 0)
            return err_set(err, 0, NULL, "%s: an empty text cannot be replaced", key);
        s->n++;
    }
    if (!s->is_marked)
        s->n_normalize = s->n;
    return 0;
}

void steps_deinit(struct steps *s) {
    free(s->step);
    free(s->text);
    *s = (struct steps){0};
}

int steps_run(const struct steps *s, enum steps_part part, struct gguf_str text, unsigned place,
              struct buf *a, struct buf *b, struct gguf_str *out) {
    uint32_t begin = part == STEPS_REST ? s->n_normalize : 0;
    uint32_t end = part == STEPS_NORMALIZE ? s->n_normalize : s->n;

    for (uint32_t i = begin; i < end; i++) {
        struct buf *to = i % 2 ? b : a;
        struct input in = {s, &s->step[i], text.data, text.data + text.len, place};

        buf_clear(to);
        TRY(ops[s->step[i].op].run(&in, to));
        text = (struct gguf_str){to->len ? to->data : "", to->len};
    }
    *out = text;
    return 0;
}
