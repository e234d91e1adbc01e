/* text_ops - operations on strings that filters and methods share. All of them keep the marks of
 * the user's text. */

#include <assert.h>
#include <ctype.h>
#include <string.h>
#include <utf8proc.h>

#include "base/try.h"
#include "text/template/builtin.h"

int builtin_int(struct render *rd, struct value v, int64_t def, int64_t *out) {
    *out = def;
    if (v.type == V_MISSING || v.type == V_NONE)
        return 0;
    if (v.type == V_UNDEFINED)
        return value_fail_undefined(rd, v);
    if (!value_is_int(v) || v.type == V_UINT)
        return render_fail(rd, "'%s' object cannot be interpreted as an integer",
                           value_type_name(v));
    *out = (int64_t)value_wide(v);
    return 0;
}

int builtin_string(struct render *rd, struct value v, const struct tstr **out) {
    *out = v.type == V_STR ? v.s : NULL;
    if (v.type == V_STR || v.type == V_MISSING || v.type == V_NONE)
        return 0;
    if (v.type == V_UNDEFINED)
        return value_fail_undefined(rd, v);
    return render_fail(rd, "a string is wanted, not '%s'", value_type_name(v));
}

/* Makes the result of an operation on @s; it is safe if @s is. */
static int text_finish(struct render *rd, struct sink *k, bool safe, struct value *out) {
    const struct tstr *s = sink_string(rd, k);

    if (s && safe)
        s = tstr_safe(rd, s, true);
    *out = value_str(s);
    if (!s)
        return -1;
    return 0;
}

enum { TO_LOWER, TO_UPPER, TO_TITLE };

static uint32_t change_case(uint32_t cp, int to) {
    if (cp < 0x80 && to == TO_LOWER)
        return (uint32_t)tolower((int)cp);
    if (cp < 0x80)
        return (uint32_t)toupper((int)cp);
    if (cp >= 0x110000)
        return cp;
    if (to == TO_LOWER)
        return (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp);
    if (to == TO_UPPER)
        return (uint32_t)utf8proc_toupper((utf8proc_int32_t)cp);
    return (uint32_t)utf8proc_totitle((utf8proc_int32_t)cp);
}

/* Returns how a character changes: @first: it is the first one of the text, @inside: it follows a
 * character that is part of the same word. */
static int case_of(enum case_mode mode, bool first, bool inside, uint32_t cp) {
    switch (mode) {
    case CASE_UPPER:
        return TO_UPPER;
    case CASE_CAPITALIZE:
        if (first)
            return TO_TITLE;
        return TO_LOWER;
    case CASE_TITLE:
        if (inside)
            return TO_LOWER;
        return TO_TITLE;
    case CASE_WORDS:
        if (inside)
            return TO_LOWER;
        return TO_UPPER;
    case CASE_SWAP:
        if (text_is_kind(cp, KIND_UPPER))
            return TO_LOWER;
        return TO_UPPER;
    default:
        return TO_LOWER;
    }
}

/* Returns whether the next character is inside of a word that this one belongs to. */
static bool word_goes_on(enum case_mode mode, uint32_t cp) {
    if (mode == CASE_TITLE)
        return text_is_kind(cp, KIND_UPPER) || text_is_kind(cp, KIND_LOWER);
    return mode == CASE_WORDS && !tstr_is_space(cp) &&
           !(cp < 0x80 && cp && strchr("-({[<", (int)cp));
}

/* Maps upper and lower case, one code point to one. Of those that become several, only the German
 * sharp s does. */
int text_case(struct render *rd, const struct tstr *s, enum case_mode mode, struct value *out) {
    struct sink *k = sink_new(rd);
    bool inside = false;
    size_t w;

    if (!k || sink_reserve(rd, k, s->len))
        return -1;
    for (size_t i = 0; i < s->len; i += w) {
        uint32_t cp = tstr_decode(s->data, s->len, i, &w);
        int to = case_of(mode, i == 0, inside, cp), r;
        bool user = tstr_user_at(s, i);

        if (i % 4 == 0 && render_charge(rd, 1))
            return -1;
        if (cp == 0xdf && to != TO_LOWER)
            r = sink_add(rd, k, to == TO_UPPER ? "SS" : "Ss", 2, user);
        else if (cp == 0xdf && mode == CASE_FOLD)
            r = sink_add(rd, k, "ss", 2, user);
        else
            r = sink_add_cp(rd, k, change_case(cp, to), user);
        if (r)
            return -1;
        inside = word_goes_on(mode, cp);
    }
    return text_finish(rd, k, s->safe, out);
}

/* Replaces @from by @to, at most @count times; negative: everywhere. An empty @from is found before
 * every character and at the end. */
int text_replace(struct render *rd, const struct tstr *s, const struct tstr *from,
                 const struct tstr *to, int64_t count, struct value *out) {
    struct sink *k = sink_new(rd);
    size_t done = 0, w;

    if (!k || render_charge_bytes(rd, s->len))
        return -1;
    for (size_t at = 0; count != 0; count--) {
        at = from->len ? tstr_find(s, from, done, s->len) : at;
        if (at == SIZE_MAX)
            break;
        if (render_charge(rd, 1) || sink_add_part(rd, k, s, done, at) || sink_add_str(rd, k, to))
            return -1;
        done = at + from->len;
        if (!from->len) { /* continues behind the next character */
            if (at >= s->len)
                break;
            tstr_decode(s->data, s->len, at, &w);
            at += w;
        }
    }
    if (!k->len && !done) {
        *out = value_str(s);
        return 0;
    }
    TRY(sink_add_part(rd, k, s, done, s->len));
    return text_finish(rd, k, s->safe, out);
}

/* Returns 1 if @chars, a set of characters, has this one, 0 if not, or a failure, since searching a
 * long set costs fuel. */
static int text_is_one_of(struct render *rd, const struct tstr *chars, const char *p, size_t w) {
    struct tstr c = {.data = p, .len = w};

    TRY(render_charge(rd, 1 + chars->len / 64));
    return tstr_find(chars, &c, 0, chars->len) != SIZE_MAX;
}

int text_strip(struct render *rd, const struct tstr *s, struct value chars, bool left, bool right,
               struct value *out) {
    const struct tstr *set;
    size_t begin = 0, end = s->len, w;
    int r = 1;

    TRY(builtin_string(rd, chars, &set));
    if (!set)
        tstr_trim(s, left, right, &begin, &end);
    while (set && left && begin < end) {
        tstr_decode(s->data, end, begin, &w);
        r = text_is_one_of(rd, set, s->data + begin, w);
        if (r <= 0)
            break;
        begin += w;
    }
    while (set && right && r >= 0 && end > begin) {
        size_t last = end - 1;

        while (last > begin && ((unsigned char)s->data[last] & 0xc0) == 0x80 && end - last < 4)
            last--;
        r = text_is_one_of(rd, set, s->data + last, end - last);
        if (r <= 0)
            break;
        end = last;
    }
    assert(begin <= end && end <= s->len);
    if (r < 0 || render_charge_bytes(rd, s->len - (end - begin)))
        return -1;
    const struct tstr *part = tstr_slice(rd, s, begin, end);

    *out = value_str(part);
    if (!part)
        return -1;
    return 0;
}

/* Joins values. @strict: all must be strings, as for str.join(). */
int text_join(struct render *rd, const struct tstr *sep, const struct value *v, uint32_t n,
              bool strict, struct value *out) {
    struct sink *k = sink_new(rd);

    if (!k)
        return -1;
    for (uint32_t i = 0; i < n; i++) {
        if (strict && v[i].type != V_STR)
            return render_fail(rd, "sequence item %u: expected str instance, %s found", i,
                               value_type_name(v[i]));
        if (render_charge(rd, 1) || (i && sink_add_str(rd, k, sep)) || format_str(rd, k, v[i]))
            return -1;
    }
    return text_finish(rd, k, false, out);
}

static int digit(char c) {
    if (c >= '0' && c <= '9')
        return c - '0';
    if (!isalpha((unsigned char)c))
        return 99;
    return tolower(c) - 'a' + 10;
}

/* Reads an integer as Python's int() does, with white space around it, and single underscores
 * behind a digit or a prefix. */
bool text_to_int(const struct tstr *s, int base, wide *out) {
    size_t i, end;
    bool minus, any = false, joins = false; /* joins: an underscore may follow */
    wide n = 0;

    assert(base >= 2 && base <= 36);
    tstr_trim(s, true, true, &i, &end);
    minus = i < end && s->data[i] == '-';
    i += i < end && (s->data[i] == '-' || s->data[i] == '+');
    if (base == 16 && i + 1 < end && s->data[i] == '0' && (s->data[i + 1] | 32) == 'x') {
        i += 2;
        joins = true;
    }
    for (; i < end; i++) {
        if (s->data[i] == '_' && joins) {
            joins = false;
            continue;
        }
        if (digit(s->data[i]) >= base || n > (wide)UINT64_MAX)
            return false;
        n = n * base + digit(s->data[i]);
        any = joins = true;
    }
    *out = minus ? -n : n;
    return any && joins;
}

/* Reads a decimal float; strtod() alone would also take hexadecimal ones. */
bool text_to_double(const struct tstr *s, double *out) {
    char text[128], *stop;
    size_t begin, end;

    tstr_trim(s, true, true, &begin, &end);
    if (end - begin >= sizeof(text) || begin == end)
        return false;
    memcpy(text, s->data + begin, end - begin);
    text[end - begin] = 0;
    if (strpbrk(text, "xXpP(") || memchr(text, 0, end - begin))
        return false;
    *out = strtod(text, &stop);
    return *stop == 0;
}

size_t text_line_end(const struct tstr *s, size_t pos, size_t *next) {
    size_t w;

    for (; pos < s->len; pos += w) {
        uint32_t cp = tstr_decode(s->data, s->len, pos, &w);

        if ((cp >= 10 && cp <= 13) || (cp >= 0x1c && cp <= 0x1e) || cp == 0x85 || cp == 0x2028 ||
            cp == 0x2029) {
            bool crlf = cp == 13 && pos + 1 < s->len && s->data[pos + 1] == '\n';

            *next = pos + w + crlf;
            return pos;
        }
    }
    *next = s->len;
    return s->len;
}
