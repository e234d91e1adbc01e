/* methods_kind - methods of strings that ask for the kind of characters, and those that pad. */

#include <string.h>
#include <utf8proc.h>

#include "base/try.h"
#include "text/template/builtin.h"

static uint32_t category_bits(uint32_t cp) {
    if (cp >= 0x110000)
        return 0;
    return 1u << utf8proc_category((utf8proc_int32_t)cp);
}

#define BIT(name) (1u << UTF8PROC_CATEGORY_##name)
#define LETTERS (BIT(LU) | BIT(LL) | BIT(LT) | BIT(LM) | BIT(LO))

/* Python's isdigit() and isnumeric() also accept superscripts, isnumeric() fractions and others. */
static bool is_superscript(uint32_t cp) {
    return cp == 0xb2 || cp == 0xb3 || cp == 0xb9 || cp == 0x2070 ||
           (cp >= 0x2074 && cp <= 0x2079) || (cp >= 0x2080 && cp <= 0x2089);
}

bool text_is_kind(uint32_t cp, enum text_kind kind) {
    uint32_t bits = category_bits(cp);

    switch (kind) {
    case KIND_ALPHA:
        return bits & LETTERS;
    case KIND_DECIMAL:
        return bits & BIT(ND);
    case KIND_DIGIT:
        return bits & BIT(ND) || is_superscript(cp);
    case KIND_NUMERIC:
        return bits & (BIT(ND) | BIT(NL) | BIT(NO));
    case KIND_ALNUM:
        return bits & (LETTERS | BIT(ND) | BIT(NL) | BIT(NO));
    case KIND_SPACE:
        return tstr_is_space(cp);
    case KIND_ASCII:
        return cp < 0x80;
    case KIND_UPPER:
        return bits & (BIT(LU) | BIT(LT));
    default:
        return bits & BIT(LL);
    }
}

/* Implements isalpha() and its like: all characters are of the kind, and there is one. */
static int str_is(struct render *rd, const struct call *c, struct value *out) {
    const struct tstr *s = c->self.s;
    bool all = s->len > 0 || c->how == KIND_ASCII;
    size_t w;

    TRY(render_charge_bytes(rd, s->len * 2));
    for (size_t i = 0; i < s->len && all; i += w)
        all = text_is_kind(tstr_decode(s->data, s->len, i, &w), (enum text_kind)c->how);
    *out = value_bool(all);
    return 0;
}

bool text_is_cased(const struct tstr *s, enum text_kind kind) {
    enum text_kind other = kind == KIND_UPPER ? KIND_LOWER : KIND_UPPER;
    bool any = false;
    size_t w;

    for (size_t i = 0; i < s->len; i += w) {
        uint32_t cp = tstr_decode(s->data, s->len, i, &w);

        if (text_is_kind(cp, other))
            return false;
        any |= text_is_kind(cp, kind);
    }
    return any;
}

/* Implements isupper() and islower(): no letter is of the other case, and there is one. */
static int str_is_cased(struct render *rd, const struct call *c, struct value *out) {
    TRY(render_charge_bytes(rd, c->self.s->len * 4));
    *out = value_bool(text_is_cased(c->self.s, (enum text_kind)c->how));
    return 0;
}

/* Implements istitle(): upper case begins every word and is only there. */
static int str_is_title(struct render *rd, const struct call *c, struct value *out) {
    const struct tstr *s = c->self.s;
    bool title = true, any = false, inside = false;
    size_t w;

    TRY(render_charge_bytes(rd, s->len * 4));
    for (size_t i = 0; i < s->len && title; i += w) {
        uint32_t cp = tstr_decode(s->data, s->len, i, &w);
        bool upper = text_is_kind(cp, KIND_UPPER), lower = text_is_kind(cp, KIND_LOWER);

        title = !(upper && inside) && !(lower && !inside);
        inside = upper || lower;
        any |= inside;
    }
    *out = value_bool(title && any);
    return 0;
}

int text_pad(struct render *rd, const struct tstr *s, int64_t width, uint32_t fill, enum pad pad,
             struct value *out) {
    int64_t n = (int64_t)tstr_count(s), more = width > n ? width - n : 0, left = 0;
    struct sink *k = sink_new(rd);

    *out = value_str(s);
    if (!more)
        return render_charge_bytes(rd, s->len);
    if (!k || sink_reserve(rd, k, s->len + (size_t)MIN(more, (int64_t)1 << 40)))
        return -1;
    if (pad == PAD_LEFT)
        left = more;
    else if (pad == PAD_CENTER) /* as Python: an odd place is left if the width is odd */
        left = more / 2 + (more & width & 1);
    for (int64_t i = 0; i < more; i++) {
        if ((i == left && sink_add_str(rd, k, s)) || render_charge(rd, 1) ||
            sink_add_cp(rd, k, fill, false))
            return -1;
    }
    if (left == more)
        TRY(sink_add_str(rd, k, s));
    *out = value_str(sink_string(rd, k));
    if (out->s)
        return 0;
    return -1;
}

static int str_just(struct render *rd, const struct call *c, struct value *out) {
    const struct tstr *fill;
    int64_t width;
    size_t w;

    if (builtin_int(rd, c->a[0], 0, &width) || builtin_string(rd, c->a[1], &fill))
        return -1;
    if (fill && tstr_count(fill) != 1)
        return render_fail(rd, "The fill character must be exactly one character long");
    return text_pad(rd, c->self.s, width, fill ? tstr_decode(fill->data, fill->len, 0, &w) : ' ',
                    (enum pad)c->how, out);
}

/* Implements zfill(): zeros behind the sign. */
static int str_zfill(struct render *rd, const struct call *c, struct value *out) {
    const struct tstr *s = c->self.s, *rest;
    bool sign = s->len && (s->data[0] == '-' || s->data[0] == '+');
    int64_t width;

    TRY(builtin_int(rd, c->a[0], 0, &width));
    rest = tstr_slice(rd, s, sign, s->len);
    if (!rest || text_pad(rd, rest, width - sign, '0', PAD_LEFT, out))
        return -1;
    const struct tstr *head = tstr_slice(rd, s, 0, sign);

    head = head ? tstr_concat(rd, head, out->s) : NULL;
    *out = value_str(head);
    if (!head)
        return -1;
    return 0;
}

/* Sorted by name. */
static const struct builtin METHODS[] = {
    {"center", "width fillchar", 1, str_just, PAD_CENTER, 0},
    {"isalnum", "", 0, str_is, KIND_ALNUM, 0},
    {"isalpha", "", 0, str_is, KIND_ALPHA, 0},
    {"isascii", "", 0, str_is, KIND_ASCII, 0},
    {"isdecimal", "", 0, str_is, KIND_DECIMAL, 0},
    {"isdigit", "", 0, str_is, KIND_DIGIT, 0},
    {"islower", "", 0, str_is_cased, KIND_LOWER, 0},
    {"isnumeric", "", 0, str_is, KIND_NUMERIC, 0},
    {"isspace", "", 0, str_is, KIND_SPACE, 0},
    {"istitle", "", 0, str_is_title, 0, 0},
    {"isupper", "", 0, str_is_cased, KIND_UPPER, 0},
    {"ljust", "width fillchar", 1, str_just, PAD_RIGHT, 0},
    {"rjust", "width fillchar", 1, str_just, PAD_LEFT, 0},
    {"zfill", "width", 1, str_zfill, 0, 0},
};

const struct builtin *method_find_kind(const struct tstr *name) {
    return builtin_find(METHODS, ARRAY_SIZE(METHODS), name);
}
