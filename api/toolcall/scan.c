#include "api/toolcall/scan.h"

#include <assert.h>
#include <string.h>

#include "base/try.h"

enum {
    WANT_VALUE,
    /* a value or the end of the list */
    WANT_FIRST,
    /* a key or the end of the object */
    WANT_KEY,
    WANT_COLON,
    /* a comma or a closing bracket */
    WANT_NEXT,
    IN_STRING,
    IN_ESCAPE,
    IN_HEX,
    /* Gemma's quote */
    IN_OPEN,
    /* a key without quotes */
    IN_BARE,
    IN_WORD,
    NUM_MINUS,
    NUM_ZERO,
    NUM_INT,
    NUM_POINT,
    NUM_FRACTION,
    NUM_E,
    NUM_SIGN,
    NUM_EXPONENT,
    AT_END,
};

static const char gemma_quote[] = "<|\"|>";

void scan_begin(struct scan *s, enum scan_mode mode) {
    *s = (struct scan){.mode = (uint8_t)mode, .state = WANT_VALUE};
}

static int scan_put(struct buf *out, const char *data, size_t len) {
    if (!out)
        return 0;
    return buf_add(out, data, len);
}

static int put_char(struct buf *out, char c) {
    return scan_put(out, &c, 1);
}

static int scan_put_hex(struct buf *out, unsigned v) {
    static const char hex[] = "0123456789abcdef";
    char text[6] = {'\\', 'u', hex[v >> 12 & 15], hex[v >> 8 & 15], hex[v >> 4 & 15], hex[v & 15]};

    return scan_put(out, text, 6);
}

/* Writes one byte of a string, escaped where JSON requires it. */
static int put_byte(struct buf *out, char c) {
    static const char special[] = "\"\\\b\f\n\r\t", letter[] = "\"\\bfnrt";
    const char *at = c ? strchr(special, c) : NULL;

    if (at) {
        char text[2] = {'\\', letter[at - special]};

        return scan_put(out, text, 2);
    }
    if ((unsigned char)c < 0x20)
        return scan_put_hex(out, (unsigned char)c);
    return put_char(out, c);
}

int scan_escape(struct buf *out, const char *data, size_t len) {
    size_t from = 0;

    for (size_t i = 0; i < len; i++) {
        if ((unsigned char)data[i] >= 0x20 && data[i] != '"' && data[i] != '\\')
            continue;
        TRY(scan_put(out, data + from, i - from));
        TRY(put_byte(out, data[i]));
        from = i + 1;
    }
    return scan_put(out, data + from, len - from);
}

static bool in_object(const struct scan *s) {
    return s->depth && s->objects >> (s->depth - 1) & 1;
}

/* Ends a value or a key. */
static int finish_value(struct scan *s) {
    if (s->is_key) {
        s->is_key = false;
        s->state = WANT_COLON;
        return SCAN_MORE;
    }
    s->state = s->depth ? WANT_NEXT : AT_END;
    if (s->depth)
        return SCAN_MORE;
    return SCAN_DONE;
}

/* Writes the comma that is due. A comma is written only with the value behind it, so that one
 * before a closing bracket is left out. */
static int put_comma(struct scan *s, struct buf *out) {
    assert(s->n_ws <= sizeof(s->ws) && (s->comma || s->n_ws == 0));
    if (s->comma)
        TRY(put_char(out, ','));
    TRY(scan_put(out, s->ws, s->n_ws));
    s->comma = false;
    s->n_ws = 0;
    return 0;
}

static int open_bracket(struct scan *s, char c, struct buf *out) {
    if (s->depth == SCAN_DEPTH)
        return SCAN_BAD;
    s->objects &= ~((uint64_t)1 << s->depth);
    s->objects |= (uint64_t)(c == '{') << s->depth++;
    s->state = c == '{' ? WANT_KEY : WANT_FIRST;
    return put_char(out, c);
}

static char scan_bracket(const struct scan *s) {
    if (in_object(s))
        return '}';
    return ']';
}

static int close_level(struct scan *s, struct buf *out) {
    assert(s->depth > 0 && s->depth <= SCAN_DEPTH);
    char c = scan_bracket(s);

    s->depth--;
    return put_char(out, c);
}

/* Closes the levels inside the innermost one that @c closes, if there is one. */
static int mend_levels(struct scan *s, char c, struct buf *out) {
    uint64_t all = ((uint64_t)2 << (s->depth - 1)) - 1;
    uint64_t there = (c == '}' ? s->objects : ~s->objects) & all;

    while (there && (c == '}') != in_object(s)) {
        s->mended = true;
        TRY(close_level(s, out));
    }
    return 0;
}

static int close_bracket(struct scan *s, char c, struct buf *out) {
    if (s->mends && s->depth)
        TRY(mend_levels(s, c, out));
    if (!s->depth || (c == '}') != in_object(s))
        return SCAN_BAD;
    assert(s->depth <= SCAN_DEPTH && !s->is_key);
    s->comma = false;
    s->n_ws = 0;
    TRY(close_level(s, out));
    return finish_value(s);
}

static int open_string(struct scan *s, char c, struct buf *out) {
    s->quote = c;
    s->n_quote = 0;
    s->high = 0;
    s->state = IN_STRING;
    return put_char(out, '"');
}

static int begin_key(struct scan *s, char c, struct buf *out) {
    if (c == '}' || (c == ']' && s->mends))
        return close_bracket(s, c, out);
    TRY(put_comma(s, out));
    s->is_key = true;
    if (c == '"' || (c == '\'' && s->mode == SCAN_PYTHON))
        return open_string(s, c, out);
    if (s->mode != SCAN_GEMMA || (unsigned char)c < 0x20 || strchr("{}[],:", c))
        return SCAN_BAD;
    s->n_quote = 1;
    s->state = c == '<' ? IN_OPEN : IN_BARE;
    if (c == '<')
        return 0;
    TRY(put_char(out, '"'));
    return put_byte(out, c);
}

static int begin_value(struct scan *s, char c, struct buf *out) {
    if (s->state == WANT_FIRST && (c == ']' || (c == '}' && s->mends)))
        return close_bracket(s, c, out);
    TRY(put_comma(s, out));
    if (c == '{' || c == '[')
        return open_bracket(s, c, out);
    if ((c == '"' && s->mode != SCAN_GEMMA) || (c == '\'' && s->mode == SCAN_PYTHON))
        return open_string(s, c, out);
    if (c == '<' && s->mode == SCAN_GEMMA) {
        s->n_quote = 1;
        s->state = IN_OPEN;
        return 0;
    }
    if (c == '-' || (c >= '0' && c <= '9')) {
        s->state = NUM_INT;
        if (c == '-')
            s->state = NUM_MINUS;
        else if (c == '0')
            s->state = NUM_ZERO;
        return put_char(out, c);
    }
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) {
        s->state = IN_WORD;
        s->word[0] = c;
        s->n_word = 1;
        return 0;
    }
    return SCAN_BAD;
}

/* ---- strings ---- */

/* Writes U+FFFD for a high surrogate that no low one follows. */
static int put_lone(struct scan *s, struct buf *out) {
    assert(!s->high || (s->high >= 0xD800 && s->high < 0xDC00));
    int r = s->high ? scan_put_hex(out, 0xFFFD) : 0;

    s->high = 0;
    return r;
}

static int close_string(struct scan *s, struct buf *out) {
    TRY(put_lone(s, out));
    TRY(put_char(out, '"'));
    return finish_value(s);
}

static int gemma_byte(struct scan *s, char c, struct buf *out) {
    assert(s->n_quote < sizeof(gemma_quote) - 1);
    if (c == gemma_quote[s->n_quote]) {
        if (++s->n_quote < sizeof(gemma_quote) - 1)
            return 0;
        s->n_quote = 0;
        return close_string(s, out);
    }
    for (size_t i = 0; i < s->n_quote; i++)
        TRY(put_byte(out, gemma_quote[i]));
    s->n_quote = c == '<';
    if (c == '<')
        return 0;
    return put_byte(out, c);
}

static int string_byte(struct scan *s, char c, struct buf *out) {
    if (s->mode == SCAN_GEMMA && s->quote == '<')
        return gemma_byte(s, c, out);
    if (c == '\\') {
        s->state = IN_ESCAPE;
        return 0;
    }
    if (c == s->quote)
        return close_string(s, out);
    TRY(put_lone(s, out));
    return put_byte(out, c);
}

static int escape_byte(struct scan *s, char c, struct buf *out) {
    char text[2] = {'\\', c};

    if (c == 'u' || (c == 'x' && s->mode == SCAN_PYTHON)) {
        s->state = IN_HEX;
        s->n_hex = c == 'u' ? 4 : 2;
        s->hex = 0;
        return 0;
    }
    s->state = IN_STRING;
    TRY(put_lone(s, out));
    if (strchr("\"\\/bfnrt", c) && c)
        return scan_put(out, text, 2);
    if (c == '\'')
        return put_char(out, c);
    if (c == '\n' && s->mode == SCAN_PYTHON)
        return 0;
    TRY(scan_put(out, "\\\\", 2)); /* "\d" can only mean a backslash and a d */
    return put_byte(out, c);
}

static int hex_byte(struct scan *s, char c, struct buf *out) {
    int v = hex_digit(c);

    assert(s->n_hex > 0);
    if (v < 0)
        return SCAN_BAD;
    s->hex = (uint16_t)(s->hex << 4 | v);
    if (--s->n_hex)
        return 0;
    s->state = IN_STRING;
    if (s->hex >= 0xDC00 && s->hex < 0xE000 && s->high) {
        int r = scan_put_hex(out, s->high);

        s->high = 0;
        TRY(r);
        return scan_put_hex(out, s->hex);
    }
    TRY(put_lone(s, out));
    if (s->hex >= 0xD800 && s->hex < 0xDC00) {
        s->high = s->hex;
        return 0;
    }
    return scan_put_hex(out, s->hex >= 0xDC00 && s->hex < 0xE000 ? 0xFFFD : s->hex);
}

static int open_gemma(struct scan *s, char c, struct buf *out) {
    assert(s->n_quote > 0 && s->n_quote < sizeof(gemma_quote) - 1);
    if (c != gemma_quote[s->n_quote])
        return SCAN_BAD;
    if (++s->n_quote < sizeof(gemma_quote) - 1)
        return 0;
    return open_string(s, '<', out);
}

static int bare_byte(struct scan *s, char c, struct buf *out) {
    if (c != ':') {
        if ((unsigned char)c < 0x20 || strchr("{}[],", c))
            return SCAN_BAD;
        return put_byte(out, c);
    }
    s->is_key = false;
    s->state = WANT_VALUE;
    TRY(put_char(out, '"'));
    return put_char(out, ':');
}

/* ---- words and numbers: they end before a byte that is not theirs ---- */

static int scan_end_word(struct scan *s, struct buf *out) {
    static const struct {
        const char *text, *json;
        bool python;
    } words[] = {
        {"true", "true", false}, {"false", "false", false}, {"null", "null", false},
        {"True", "true", true},  {"False", "false", true},  {"None", "null", true},
        {"none", "null", true},
    };

    for (size_t i = 0; i < ARRAY_SIZE(words); i++) {
        if (strlen(words[i].text) != s->n_word || memcmp(words[i].text, s->word, s->n_word) != 0 ||
            (words[i].python && s->mode == SCAN_JSON))
            continue;
        TRY(scan_put(out, words[i].json, strlen(words[i].json)));
        return finish_value(s);
    }
    return SCAN_BAD;
}

/* Returns the state of a number after the character @c, or 0 if the number does not continue with
 * it. */
static uint8_t next_number(uint8_t state, char c) {
    bool digit = c >= '0' && c <= '9';

    switch (state) {
    case NUM_MINUS:
        if (!digit)
            return 0;
        if (c == '0')
            return NUM_ZERO;
        return NUM_INT;
    case NUM_ZERO:
    case NUM_INT:
        if (digit) {
            if (state == NUM_INT)
                return NUM_INT;
            return 0;
        }
        if (c == '.')
            return NUM_POINT;
        if (c == 'e' || c == 'E')
            return NUM_E;
        return 0;
    case NUM_POINT:
    case NUM_FRACTION:
        if (digit)
            return NUM_FRACTION;
        if (state == NUM_FRACTION && (c == 'e' || c == 'E'))
            return NUM_E;
        return 0;
    case NUM_E:
        if (c == '+' || c == '-')
            return NUM_SIGN;
        if (digit)
            return NUM_EXPONENT;
        return 0;
    default:
        if (digit)
            return NUM_EXPONENT;
        return 0;
    }
}

static bool number_may_end(uint8_t state) {
    return state == NUM_ZERO || state == NUM_INT || state == NUM_FRACTION || state == NUM_EXPONENT;
}

/* Handles a byte of a word or number. Sets *kept if the byte is behind its end. */
static int scalar_byte(struct scan *s, char c, struct buf *out, bool *kept) {
    if (s->state == IN_WORD) {
        if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) {
            if (s->n_word == sizeof(s->word))
                return SCAN_BAD;
            s->word[s->n_word++] = c;
            return 0;
        }
        *kept = true;
        return scan_end_word(s, out);
    }
    assert(s->state >= NUM_MINUS && s->state < AT_END);
    uint8_t next = next_number(s->state, c);

    if (next) {
        s->state = next;
        return put_char(out, c);
    }
    *kept = true;
    if (!number_may_end(s->state))
        return SCAN_BAD;
    return finish_value(s);
}

static int next_byte(struct scan *s, char c, struct buf *out) {
    if (c == '}' || c == ']')
        return close_bracket(s, c, out);
    if (c != ',')
        return SCAN_BAD;
    s->comma = true;
    /* A closing bracket is accepted in either state: models write commas before brackets. */
    s->state = in_object(s) ? WANT_KEY : WANT_FIRST;
    return 0;
}

static int space(struct scan *s, char c, struct buf *out) {
    if (!s->comma)
        return put_char(out, c);
    if (s->n_ws < sizeof(s->ws))
        s->ws[s->n_ws++] = c;
    return 0;
}

static int scan_step_char(struct scan *s, char c, struct buf *out, bool *kept) {
    if (s->state <= WANT_NEXT && (c == ' ' || c == '\n' || c == '\t' || c == '\r'))
        return space(s, c, out);
    switch (s->state) {
    case WANT_VALUE:
    case WANT_FIRST:
        return begin_value(s, c, out);
    case WANT_KEY:
        return begin_key(s, c, out);
    case WANT_COLON:
        if (c != ':')
            return SCAN_BAD;
        s->state = WANT_VALUE;
        return put_char(out, c);
    case WANT_NEXT:
        return next_byte(s, c, out);
    case IN_STRING:
        return string_byte(s, c, out);
    case IN_ESCAPE:
        return escape_byte(s, c, out);
    case IN_HEX:
        return hex_byte(s, c, out);
    case IN_OPEN:
        return open_gemma(s, c, out);
    case IN_BARE:
        return bare_byte(s, c, out);
    default:
        return scalar_byte(s, c, out, kept);
    }
}

int scan_feed(struct scan *s, const char *data, size_t len, size_t *used, struct buf *out) {
    int r = SCAN_MORE;

    assert(s->state != AT_END && s->depth <= SCAN_DEPTH);
    for (*used = 0; *used < len && r == SCAN_MORE;) {
        bool kept = false;

        r = scan_step_char(s, data[*used], out, &kept);
        *used += !kept && r != SCAN_BAD;
        assert((s->state == AT_END) == (r == SCAN_DONE) || r < 0);
    }
    return r;
}

int scan_end(struct scan *s, struct buf *out) {
    if (s->depth)
        return SCAN_BAD;
    if (s->state == IN_WORD)
        return scan_end_word(s, out);
    if (!number_may_end(s->state))
        return SCAN_BAD;
    return finish_value(s);
}

int scan_close(struct scan *s, struct buf *out) {
    int r = s->state == WANT_NEXT ? SCAN_MORE : SCAN_BAD;

    if (s->state == IN_WORD)
        r = scan_end_word(s, out);
    else if (number_may_end(s->state))
        r = finish_value(s);
    if (r < 0 || r == SCAN_BAD)
        return r;
    while (s->depth)
        TRY(close_level(s, out));
    s->state = AT_END;
    return SCAN_DONE;
}
