#include "api/anthropic/tool_search.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <regex.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>
#include "api/http/json.h"
#include "base/jobs.h"
#include "base/util.h"

/*
 * Searches read one text for each tool: its name, its description, and the names and
 * descriptions of its parameters.
 *
 * A pattern has the syntax of Python's re.search(). It is rewritten as an extended regular
 * expression of POSIX, which the C library matches with an automaton: without back references and
 * counted repetitions, both of which are refused, the work for each byte is bounded by the length
 * of the pattern. The clock bounds the whole. The C library compiles x+ as xx*, so that n of them
 * inside one another make 2^n copies of x: more than PLUS_MAX are refused.
 *
 * BM25: Robertson and Zaragoza, The Probabilistic Relevance Framework (2009), with k1 = 1.2 and b =
 * 0.75. Terms are runs of letters and digits in lower case; they also end where a small letter is
 * followed by a capital, as in getWeather.
 */

#define PATTERN_MAX 200u      /* characters, as at Anthropic */
#define PLUS_MAX 4u           /* "+" inside one another */
#define TEXT_MAX 4096u        /* bytes of a tool that are searched */
#define TERMS_MAX 16u         /* different ones of a query */
#define TERM_MAX 32u          /* bytes of a term that are compared */
#define SEARCH_NS 500000000ll /* time of one search with a pattern */

const char *const tool_search_names[TOOL_SEARCH_KINDS] = {
    [TOOL_SEARCH_REGEX] = "tool_search_tool_regex",
    [TOOL_SEARCH_BM25] = "tool_search_tool_bm25",
};

/* ---- texts ---- */

static bool is_deferred(yyjson_val *tool) {
    return yyjson_get_bool(yyjson_obj_get(tool, "defer_loading"));
}

/* Adds the string @v and a line break, as far as there is room. */
static void add_line(struct buf *out, yyjson_val *v) {
    size_t len = MIN((size_t)json_len(v), out->max - out->len);

    if (len && buf_add(out, json_text(v), len) == 0)
        buf_add_char(out, '\n'); /* fails where the text ends anyway */
}

/* Writes the text of @tool that is searched to @out, whose max bounds it. */
static int text_of(yyjson_val *tool, struct buf *out) {
    yyjson_val *f = yyjson_obj_get(tool, "function"), *key, *value;
    yyjson_val *properties = yyjson_obj_get(yyjson_obj_get(f, "parameters"), "properties");
    size_t i, n;

    buf_clear(out);
    if (buf_reserve(out, out->max) < 0)
        return -ENOMEM;
    add_line(out, yyjson_obj_get(f, "name"));
    add_line(out, yyjson_obj_get(f, "description"));
    yyjson_obj_foreach(properties, i, n, key, value) {
        add_line(out, key);
        add_line(out, yyjson_obj_get(value, "description"));
    }
    for (i = 0; i < out->len; i++) /* the C library matches strings that NUL ends */
        out->data[i] = out->data[i] ? out->data[i] : ' ';
    return 0;
}

/* ---- regular expressions ---- */

/* Rewrites the escape at @p, behind its backslash; in a bracket expression the classes have other
 * names. Returns false for one that cannot be rewritten. */
static bool add_escape(struct buf *out, char c, bool bracket) {
    static const struct {
        char c;
        const char *plain, *bracket;
    } classes[] = {{'d', "[0-9]", "0-9"},
                   {'D', "[^0-9]", NULL},
                   {'w', "[[:alnum:]_]", "[:alnum:]_"},
                   {'s', "[[:space:]]", "[:space:]"},
                   {'W', "[^[:alnum:]_]", NULL},
                   {'S', "[^[:space:]]", NULL},
                   {'b', "\\b", NULL},
                   {'B', "\\B", NULL},
                   {'n', "\n", "\n"},
                   {'t', "\t", "\t"}};

    for (size_t i = 0; i < ARRAY_SIZE(classes); i++) {
        const char *text = bracket ? classes[i].bracket : classes[i].plain;

        if (c == classes[i].c)
            return text && buf_add_str(out, text) == 0;
    }
    if (isalnum((unsigned char)c) || c == 0 || (bracket && strchr("]-^[\\", c)))
        return false;
    return (bracket || buf_add_char(out, '\\') == 0) && buf_add_char(out, c) == 0;
}

/* Rewrites the bracket expression at @p and returns its end; NULL: it has none. */
static const char *add_bracket(struct buf *out, const char *p) {
    const char *begin = ++p;

    if (buf_add_char(out, '[') < 0 || (*p == '^' && buf_add_char(out, *p++) < 0))
        return NULL;
    for (; *p && (*p != ']' || p == begin); p++) {
        bool escape = *p == '\\';

        p += escape;
        if (!*p || (*p == '[' && !escape) ||
            (escape ? !add_escape(out, *p, true) : buf_add_char(out, *p) < 0))
            return NULL;
    }
    return *p && buf_add_char(out, ']') == 0 ? p + 1 : NULL;
}

/* Counts "+" inside one another at each byte @c of a pattern outside brackets and escapes. */
struct pluses {
    unsigned most[PATTERN_MAX + 1]; /* in each open group, the outermost first */
    unsigned depth, last;           /* open groups; "+" inside one another in the last operand */
};

static bool count_plus(struct pluses *n, char c) {
    if (c == '(') {
        n->most[++n->depth] = n->last = 0;
    } else if (c == ')' && n->depth) {
        n->last = n->most[n->depth--];
    } else if (c == '+') {
        n->last++;
    } else if (c != '*' && c != '?') {
        n->last = 0;
    }
    n->most[n->depth] = MAX(n->most[n->depth], n->last);
    return n->last <= PLUS_MAX;
}

/* Rewrites @p, of at most PATTERN_MAX bytes, for regcomp(). Returns false for what it has not:
 * counted repetitions, back references, lookaround. */
static bool rewrite(struct buf *out, const char *p, int *flags) {
    struct pluses pluses = {0};

    if (strncmp(p, "(?i)", 4) == 0) {
        *flags |= REG_ICASE;
        p += 4;
    }
    while (*p) {
        if (*p == '\\' || *p == '[')
            pluses.last = 0;
        if (*p == '\\' ? !add_escape(out, p[1], false) : *p == '{')
            return false;
        if (*p == '[') {
            if (!(p = add_bracket(out, p)))
                return false;
            continue;
        }
        if (*p == '\\') {
            p += 2;
            continue;
        }
        if (p[0] == '(' && p[1] == '?' && p[2] != ':')
            return false;
        if (!count_plus(&pluses, *p) || buf_add_char(out, *p) < 0)
            return false;
        /* No capturing is asked for, and a lazy match is a match. */
        p += p[0] == '(' && p[1] == '?' ? 3 : strchr("*+?", *p) && p[1] == '?' ? 2 : 1;
    }
    return true;
}

static int64_t now_ns(void) {
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static int search_pattern(const char *pattern, yyjson_val *tools, struct buf *text,
                          yyjson_val *found[TOOL_SEARCH_MOST]) {
    CLEANUP(buf_deinit) struct buf posix = {.max = 16 * PATTERN_MAX};
    int64_t until = now_ns() + SEARCH_NS;
    int flags = REG_EXTENDED | REG_NOSUB, r = 0;
    uint32_t n_found = 0;
    yyjson_val *tool;
    size_t i, n;
    regex_t re;

    if (!*pattern || strlen(pattern) > PATTERN_MAX || !rewrite(&posix, pattern, &flags) ||
        !posix.len || regcomp(&re, posix.data, flags) != 0)
        return -EINVAL;
    yyjson_arr_foreach(tools, i, n, tool) {
        if (r < 0 || n_found == TOOL_SEARCH_MOST || !is_deferred(tool))
            continue;
        r = job_pause() < 0 ? -ECANCELED : now_ns() > until ? -ETIME : text_of(tool, text);
        if (r == 0 && regexec(&re, text->data, 0, NULL, 0) == 0)
            found[n_found++] = yyjson_obj_get(yyjson_obj_get(tool, "function"), "name");
    }
    regfree(&re);
    return r < 0 ? r : (int)n_found;
}

/* ---- BM25 ---- */

struct term {
    char text[TERM_MAX];
    uint32_t len, n_tools; /* tools that have it */
};

/* Finds the next term at or behind *@p and moves *@p behind it. Returns false at the end. */
static bool next_term(const char **p, struct term *out) {
    const char *s = *p;

    while (*s && !isalnum((unsigned char)*s) && !(*s & 0x80))
        s++;
    out->len = 0;
    for (; isalnum((unsigned char)*s) || (*s & 0x80); s++) {
        if (out->len && islower((unsigned char)s[-1]) && isupper((unsigned char)*s))
            break;
        if (out->len < TERM_MAX)
            out->text[out->len++] = (char)tolower((unsigned char)*s);
    }
    *p = s;
    if (out->len > 3 && out->text[out->len - 1] == 's') /* a plural, mostly */
        out->len--;
    return out->len > 0;
}

static uint32_t find_term(const struct term *terms, uint32_t n, const struct term *t) {
    uint32_t i = 0;

    while (i < n && (terms[i].len != t->len || memcmp(terms[i].text, t->text, t->len) != 0))
        i++;
    return i;
}

struct counted {
    yyjson_val *name;
    uint32_t n_terms, counts[TERMS_MAX];
    double score;
};

static int count_terms(yyjson_val *tool, struct term *terms, uint32_t n_terms, struct buf *text,
                       struct counted *out) {
    struct term t;

    if (job_pause() < 0)
        return -ECANCELED;
    if (text_of(tool, text) < 0)
        return -ENOMEM;
    *out = (struct counted){.name = yyjson_obj_get(yyjson_obj_get(tool, "function"), "name")};
    for (const char *p = text->data; next_term(&p, &t); out->n_terms++) {
        uint32_t i = find_term(terms, n_terms, &t);

        if (i < n_terms)
            terms[i].n_tools += out->counts[i]++ == 0;
    }
    return 0;
}

static double score(const struct counted *c, const struct term *terms, uint32_t n_terms,
                    double n_tools, double mean) {
    const double k1 = 1.2, b = 0.75;
    double sum = 0;

    for (uint32_t i = 0; i < n_terms; i++) {
        double n = terms[i].n_tools, f = c->counts[i];

        sum += log(1 + (n_tools - n + 0.5) / (n + 0.5)) * f * (k1 + 1) /
               (f + k1 * (1 - b + b * c->n_terms / mean));
    }
    return sum;
}

/* Takes the best of @tools one after another; the earlier of two that are equal. */
static int take_best(struct counted *tools, size_t n, yyjson_val *found[TOOL_SEARCH_MOST]) {
    int n_found = 0;

    while (n_found < (int)TOOL_SEARCH_MOST) {
        struct counted *best = NULL;

        for (size_t i = 0; i < n; i++)
            if (tools[i].score > 0 && (!best || tools[i].score > best->score))
                best = &tools[i];
        if (!best)
            break;
        found[n_found++] = best->name;
        best->score = 0;
    }
    return n_found;
}

static int search_words(const char *query, yyjson_val *tools, struct buf *text,
                        yyjson_val *found[TOOL_SEARCH_MOST]) {
    CLEANUP(freep) struct counted *all = calloc(yyjson_arr_size(tools) + 1, sizeof(*all));
    struct term terms[TERMS_MAX];
    uint32_t n_terms = 0;
    size_t i, n, n_all = 0;
    double length = 0;
    yyjson_val *tool;
    int r = 0;

    if (!all)
        return -ENOMEM;
    while (n_terms < TERMS_MAX && next_term(&query, &terms[n_terms])) {
        terms[n_terms].n_tools = 0;
        n_terms += find_term(terms, n_terms, &terms[n_terms]) == n_terms;
    }
    yyjson_arr_foreach(tools, i, n, tool) {
        if (!is_deferred(tool))
            continue;
        if ((r = count_terms(tool, terms, n_terms, text, &all[n_all])) < 0)
            return r;
        length += all[n_all++].n_terms;
    }
    for (i = 0; i < n_all; i++)
        all[i].score = score(&all[i], terms, n_terms, (double)n_all, length / (double)n_all);
    return n_terms ? take_best(all, n_all, found) : -EINVAL;
}

int tool_search(enum tool_search_kind kind, const char *query, yyjson_val *tools,
                yyjson_val *found[TOOL_SEARCH_MOST]) {
    CLEANUP(buf_deinit) struct buf text = {.max = TEXT_MAX};

    return (kind == TOOL_SEARCH_REGEX ? search_pattern : search_words)(query, tools, &text, found);
}
