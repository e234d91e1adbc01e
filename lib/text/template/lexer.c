/*
 * lexer - cuts the source into text and tags, and tags into tokens. A tag that begins with `{%-`
 * takes the white space before it, one that ends with `-%}` the white space behind it. Beyond that
 * the settings of Jinja's environment apply, as transformers has them:
 *
 *   trim_blocks    one newline directly behind a block tag or a comment is removed, unless the tag
 *                  ends with `+%}`
 *   lstrip_blocks  blanks between the beginning of a line and a block tag or a comment are removed,
 *                  unless the tag begins with `{%+`; not before `{{ }}`
 *
 * Inside brackets `}}` and `%}` are two operators, so that `{{ {'a': {}} }}` needs no blank.
 */

#include "text/template/lexer.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/try.h"
#include "text/template.h"

/* Invariants: pos <= len; `line` is the line of pos, counted from 1. */
struct lexer {
    const char *src;
    size_t len, pos;
    uint32_t line;
    /* the last token ended with a newline */
    bool line_starting;
    struct arena *arena;
    struct token_list *out;
    struct err *err;
};

int lexer_fail(struct err *err, uint32_t line, const char *fmt, ...) {
    char reason[300];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(reason, sizeof(reason), fmt, ap);
    va_end(ap);
    return err_set(err, 400, "", "chat template, line %u: %s", line, reason);
}

/* Appends a token. The list of tokens is not in the arena, since it is freed after parsing. */
static struct token *lexer_push(struct lexer *lx, uint8_t type) {
    struct token_list *l = lx->out;

    assert(l->n <= l->cap && (l->n == 0 || l->t[l->n - 1].line <= lx->line));
    if (!ARRAY_GROW(l->t, l->n, l->cap, 256)) {
        lx->arena->starved = true;
        return NULL;
    }
    l->t[l->n] = (struct token){.type = type, .line = lx->line};
    return &l->t[l->n++];
}

static int push_string(struct lexer *lx, uint8_t type, const char *s, size_t len) {
    struct token *t = lexer_push(lx, type);

    if (!t)
        return -EINVAL;
    t->s = s;
    t->len = len;
    return 0;
}

/* Advances to @to and counts lines. */
static void lexer_advance(struct lexer *lx, size_t to) {
    assert(to >= lx->pos && to <= lx->len);
    for (; lx->pos < to; lx->pos++)
        lx->line += lx->src[lx->pos] == '\n';
}

static bool lexer_at(const struct lexer *lx, size_t pos, const char *what) {
    size_t n = strlen(what);

    assert(pos <= lx->len);
    return n <= lx->len - pos && memcmp(lx->src + pos, what, n) == 0;
}

static size_t lexer_skip_space(const struct lexer *lx, size_t pos) {
    size_t w;

    while (pos < lx->len && tstr_is_space(tstr_decode(lx->src, lx->len, pos, &w)))
        pos += w;
    return pos;
}

/* Returns the end of a tag whose end mark @end begins at @pos (perhaps after a sign), with the
 * white space that it removes; 0 when no tag ends there. */
static size_t tag_end(const struct lexer *lx, size_t pos, const char *end, bool trim, bool plus) {
    if (lx->src[pos] == '-' && lexer_at(lx, pos + 1, end))
        return lexer_skip_space(lx, pos + 3);
    if (plus && lx->src[pos] == '+' && lexer_at(lx, pos + 1, end))
        return pos + 3;
    if (!lexer_at(lx, pos, end))
        return 0;
    return pos + 2 + (trim && lexer_at(lx, pos + 2, "\n"));
}

/* Leaves a tag and adds the token @type for its end; T_TEXT: a comment, which has no token. */
static int close_tag(struct lexer *lx, uint8_t type, size_t end) {
    assert(end > lx->pos && end <= lx->len);
    if (type != T_TEXT && !lexer_push(lx, type))
        return -EINVAL;
    lexer_advance(lx, end);
    lx->line_starting = lx->src[end - 1] == '\n';
    return 0;
}

/* Emits the text [lx->pos, end) before a tag with @sign. */
static int lexer_add_text(struct lexer *lx, size_t end, char sign, bool lstrip) {
    struct tstr s = {.data = lx->src + lx->pos, .len = end - lx->pos};
    size_t b = 0, e = s.len;

    if (sign == '-') {
        tstr_trim(&s, false, true, &b, &e);
    } else if (lstrip && sign != '+') {
        const char *nl = memrchr(s.data, '\n', s.len);
        size_t line = nl ? (size_t)(nl - s.data) + 1 : 0;

        if ((line > 0 || lx->line_starting) && lexer_skip_space(lx, lx->pos + line) >= end)
            e = line;
    }
    if (e && push_string(lx, T_TEXT, s.data, e))
        return -EINVAL;
    lexer_advance(lx, end);
    return 0;
}

/* Skips a comment. Comments do not nest, and end at the first `#}` even inside quotes. */
static int lex_comment(struct lexer *lx) {
    const char *p = memmem(lx->src + lx->pos, lx->len - lx->pos, "#}", 2);

    if (!p)
        return lexer_fail(lx->err, lx->line, "the comment is not closed");
    size_t end = (size_t)(p - lx->src);

    if (end > lx->pos && (p[-1] == '-' || p[-1] == '+'))
        end--;
    return close_tag(lx, T_TEXT, tag_end(lx, end, "#}", true, true));
}

static const char OPERATORS2[][3] = {"//", "**", "==", "!=", ">=", "<="};

/* Reads an operator. @open holds the closing brackets that are still expected. */
static int lex_operator(struct lexer *lx, char *open, size_t *n_open) {
    char c = lx->src[lx->pos];
    uint16_t op = 0;

    for (size_t i = 0; i < ARRAY_SIZE(OPERATORS2); i++) {
        if (lexer_at(lx, lx->pos, OPERATORS2[i]))
            op = LEX2(OPERATORS2[i][0], OPERATORS2[i][1]);
    }
    if (!op && strchr("+-/*%~[](){}><=.:|,;", c))
        op = (uint16_t)c;
    if (!op || !c)
        return lexer_fail(lx->err, lx->line, "unexpected character 0x%02x", (unsigned char)c);
    if (op == '(' || op == '[' || op == '{') {
        if (*n_open >= TEMPLATE_DEPTH)
            return lexer_fail(lx->err, lx->line, "too many nested brackets");
        char close = op == '[' ? ']' : '}';
        if (op == '(')
            close = ')';
        open[(*n_open)++] = close;
    } else if (op == ')' || op == ']' || op == '}') {
        if (!*n_open || open[--*n_open] != c)
            return lexer_fail(lx->err, lx->line, "unexpected '%c'", c);
    }
    struct token *t = lexer_push(lx, T_OP);

    if (!t)
        return -EINVAL;
    t->op = op;
    lx->pos += op > 0xff ? 2 : 1;
    return 0;
}

/* Returns whether @c can be in a name. Bytes above ASCII count as letters. */
static bool lexer_is_name(char c) {
    return isalnum((unsigned char)c) || c == '_' || (unsigned char)c >= 0x80;
}

/* Reads an integer: decimal, 0x, 0o or 0b, with underscores. */
static int lex_integer(struct lexer *lx) {
    char kind = lx->src[lx->pos] == '0' && lx->pos + 1 < lx->len
                    ? (char)tolower((unsigned char)lx->src[lx->pos + 1])
                    : 0;
    unsigned base = 10;
    uint64_t n = 0;

    if (kind == 'x')
        base = 16;
    else if (kind == 'o')
        base = 8;
    else if (kind == 'b')
        base = 2;
    if (base != 10)
        lx->pos += 2;
    for (; lx->pos < lx->len; lx->pos++) {
        char c = lx->src[lx->pos];

        if (c == '_')
            continue;
        int digit = hex_digit(c);

        if (digit < 0 || (unsigned)digit >= base)
            break;
        if (__builtin_mul_overflow(n, (uint64_t)base, &n) ||
            __builtin_add_overflow(n, (uint64_t)digit, &n))
            return lexer_fail(lx->err, lx->line, "an integer has more than 64 bits");
    }
    struct token *t = lexer_push(lx, T_INT);

    if (!t)
        return -EINVAL;
    t->i = n;
    return 0;
}

static size_t skip_digits(const struct lexer *lx, size_t p) {
    while (p < lx->len && (isdigit((unsigned char)lx->src[p]) || lx->src[p] == '_'))
        p++;
    return p;
}

static bool digit_at(const struct lexer *lx, size_t p) {
    return p < lx->len && isdigit((unsigned char)lx->src[p]);
}

/* Reads a number. A point must be followed by a digit: `1.real` is an attribute. */
static int lex_number(struct lexer *lx) {
    const struct token *last = &lx->out->t[lx->out->n - 1];
    bool after_dot = last->type == T_OP && last->op == '.'; /* x.0.1: two subscripts */
    size_t end = skip_digits(lx, lx->pos), whole = end;
    char digits[64];
    size_t n = 0;

    if (after_dot)
        return lex_integer(lx);
    if (lexer_at(lx, end, ".") && digit_at(lx, end + 1))
        end = skip_digits(lx, end + 1);
    if (end < lx->len && (lx->src[end] == 'e' || lx->src[end] == 'E')) {
        size_t e = end + 1;

        e += e < lx->len && (lx->src[e] == '+' || lx->src[e] == '-');
        if (digit_at(lx, e))
            end = skip_digits(lx, e);
    }
    if (end == whole)
        return lex_integer(lx);
    for (; lx->pos < end && n < sizeof(digits) - 1; lx->pos++) {
        if (lx->src[lx->pos] != '_')
            digits[n++] = lx->src[lx->pos];
    }
    digits[n] = 0;
    if (lx->pos < end)
        return lexer_fail(lx->err, lx->line, "a number has too many digits");
    struct token *t = lexer_push(lx, T_FLOAT);

    if (!t)
        return -EINVAL;
    t->f = strtod(digits, NULL);
    return 0;
}

/* Decodes the number of an escape: @n hexadecimal digits at @p. */
static bool hex_escape(const char *p, const char *end, size_t n, uint32_t *cp) {
    *cp = 0;
    if ((size_t)(end - p) < n)
        return false;
    for (size_t i = 0; i < n; i++) {
        if (hex_digit(p[i]) < 0)
            return false;
        *cp = *cp << 4 | (uint32_t)hex_digit(p[i]);
    }
    return *cp < 0x110000 && (*cp < 0xd800 || *cp > 0xdfff);
}

/* Reads one escape of Python's string literals at @p, behind the backslash, and writes its bytes to
 * @o. Returns their number. *used: bytes read, 0 when malformed. */
static size_t unescape(const char *p, const char *end, char *o, size_t *used) {
    static const char names[] = "abfnrtv\\'\"", bytes[] = "\a\b\f\n\r\t\v\\'\"";
    const char *known = memchr(names, *p, sizeof(names) - 1);
    uint32_t cp = 0;

    *used = 1;
    if (known) {
        *o = bytes[known - names];
        return 1;
    }
    if (*p == '\n')
        return 0;
    if (*p >= '0' && *p <= '7') {
        for (*used = 0; *used < 3 && p[*used] >= '0' && p[*used] <= '7'; ++*used) /* octal */
            cp = cp * 8 + (uint32_t)(p[*used] - '0');
        return tstr_encode(cp, o);
    }
    size_t n = 0;

    if (*p == 'x')
        n = 2;
    else if (*p == 'u')
        n = 4;
    else if (*p == 'U')
        n = 8;
    if (n) {
        *used = hex_escape(p + 1, end, n, &cp) ? n + 1 : 0;
        if (!*used)
            return 0;
        return tstr_encode(cp, o);
    }
    o[0] = '\\'; /* an unknown escape is not changed */
    o[1] = *p;
    return 2;
}

/* Reads a string literal. Its decoded bytes are never more than its bytes in the source. */
static int lex_string(struct lexer *lx) {
    char quote = lx->src[lx->pos];
    size_t end = lx->pos + 1;

    while (end < lx->len && lx->src[end] != quote)
        end += lx->src[end] == '\\' ? 2 : 1;
    if (end >= lx->len)
        return lexer_fail(lx->err, lx->line, "a string is not closed");
    const char *p = lx->src + lx->pos + 1, *stop = lx->src + end;
    char *s = arena_alloc(lx->arena, (size_t)(stop - p) + 4);
    size_t n = 0;

    if (!s)
        return lexer_fail(lx->err, lx->line, "the template needs too much memory");
    while (p < stop) {
        if (*p != '\\') {
            s[n++] = *p++;
            continue;
        }
        size_t used;

        n += unescape(p + 1, stop, s + n, &used);
        if (!used)
            return lexer_fail(lx->err, lx->line, "a malformed escape in a string");
        p += 1 + used;
    }
    TRY(push_string(lx, T_STRING, s, n));
    lexer_advance(lx, end + 1);
    return 0;
}

static int lex_name(struct lexer *lx) {
    size_t begin = lx->pos;

    while (lx->pos < lx->len && lexer_is_name(lx->src[lx->pos]))
        lx->pos++;
    return push_string(lx, T_NAME, lx->src + begin, lx->pos - begin);
}

/* Reads the tokens of a tag up to its end mark. */
static int lex_code(struct lexer *lx, bool block) {
    char open[TEMPLATE_DEPTH];
    size_t n_open = 0;
    uint32_t line = lx->line;

    for (;;) {
        lexer_advance(lx, lexer_skip_space(lx, lx->pos));
        if (lx->pos >= lx->len)
            return lexer_fail(lx->err, line, "the tag is not closed");
        char c = lx->src[lx->pos];
        const char *mark = block ? "%}" : "}}";
        size_t end = n_open ? 0 : tag_end(lx, lx->pos, mark, block, block);
        int r;

        if (end)
            return close_tag(lx, block ? T_BLOCK_END : T_PRINT_END, end);
        if (isdigit((unsigned char)c))
            r = lex_number(lx);
        else if (lexer_is_name(c))
            r = lex_name(lx);
        else if (c == '\'' || c == '"')
            r = lex_string(lx);
        else
            r = lex_operator(lx, open, &n_open);
        if (r)
            return r;
    }
}

/* Returns the place behind the white space and @word that begin at @pos, and the white space behind
 * it; 0: there is something else. */
static size_t word_end(const struct lexer *lx, size_t pos, const char *word) {
    pos = lexer_skip_space(lx, pos);
    if (!lexer_at(lx, pos, word))
        return 0;
    return lexer_skip_space(lx, pos + strlen(word));
}

/* Reads `{% raw %}`, whose inside begins at @inside, and its text up to `{% endraw %}`, in which
 * nothing is a tag. Returns 1, 0 if the tag is another one, or negative. */
static int lex_raw(struct lexer *lx, size_t inside) {
    size_t end = word_end(lx, inside, "raw"), p, stop;

    if (!end || end >= lx->len || !(end = tag_end(lx, end, "%}", false, false)))
        return 0;
    uint32_t line = lx->line;

    TRY(close_tag(lx, T_TEXT, end));
    for (p = lx->pos;; p++) {
        const char *brace = memmem(lx->src + p, lx->len - p, "{%", 2);

        if (!brace)
            return lexer_fail(lx->err, line, "the block 'raw' is not closed");
        p = (size_t)(brace - lx->src);
        inside = p + 2;
        inside += inside < lx->len && (lx->src[inside] == '-' || lx->src[inside] == '+');
        end = word_end(lx, inside, "endraw");
        if (end && end < lx->len && (stop = tag_end(lx, end, "%}", true, true)))
            break;
    }
    TRY(lexer_add_text(lx, p, inside > p + 2 ? lx->src[p + 2] : 0, true));
    TRY(close_tag(lx, T_TEXT, stop));
    return 1;
}

/* Reads the text up to the next tag, and that tag. */
static int lex_piece(struct lexer *lx) {
    size_t p = lx->pos;

    while (p < lx->len) {
        const char *brace = memchr(lx->src + p, '{', lx->len - p);

        if (!brace) {
            p = lx->len;
            break;
        }
        p = (size_t)(brace - lx->src);
        if (p + 1 < lx->len && strchr("%{#", brace[1]) && brace[1])
            break;
        p++;
    }
    if (p >= lx->len)
        return lexer_add_text(lx, lx->len, '+', false);
    char kind = lx->src[p + 1];
    char sign =
        p + 2 < lx->len && (lx->src[p + 2] == '-' || lx->src[p + 2] == '+') ? lx->src[p + 2] : 0;
    size_t inside = p + 2 + (sign != 0);

    if (lexer_add_text(lx, p, sign, kind != '{'))
        return -EINVAL;
    int raw = kind == '%' ? lex_raw(lx, inside) : 0;

    if (raw)
        return MIN(raw, 0);
    if (kind != '#' && !lexer_push(lx, kind == '%' ? T_BLOCK_BEGIN : T_PRINT_BEGIN))
        return -EINVAL;
    lx->pos = inside;
    lx->line_starting = false;
    if (kind == '#')
        return lex_comment(lx);
    return lex_code(lx, kind == '%');
}

/* Copies the source with CRLF and CR as LF, and without one newline at the end. */
static char *lexer_normalise(const char *source, size_t len, struct arena *arena, size_t *n) {
    char *s = arena_alloc(arena, len + 1);
    size_t k = 0;

    for (size_t i = 0; s && i < len; i++) {
        if (source[i] == '\r') {
            s[k++] = '\n';
            i += i + 1 < len && source[i + 1] == '\n';
        } else {
            s[k++] = source[i];
        }
    }
    if (k && s[k - 1] == '\n')
        k--;
    *n = k;
    return s;
}

static int lex_pieces(struct lexer *lx) {
    while (lx->pos < lx->len) {
        int r = lex_piece(lx);

        if (r)
            return r;
    }
    if (!lexer_push(lx, T_END))
        return -EINVAL;
    return 0;
}

int lexer_run(const char *source, size_t len, struct arena *arena, struct token_list *out,
              struct err *err) {
    struct token_list tokens = {0};
    struct lexer lx = {
        .line = 1, .line_starting = true, .arena = arena, .out = &tokens, .err = err};

    lx.src = lexer_normalise(source, len, arena, &lx.len);
    if (!lx.src)
        return lexer_fail(err, 1, "the template needs too much memory");
    int r = lex_pieces(&lx);
    if (r) {
        free(tokens.t);
        return r;
    }
    *out = tokens;
    return 0;
}
