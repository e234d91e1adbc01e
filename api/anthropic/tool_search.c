#include "api/anthropic/tool_search.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>

#include "base/buf.h"
#include "base/jobs.h"
#include "base/json_read.h"
#include "base/try.h"
#include "base/util.h"

/*
 * Searches read one text for each tool: its name, its description, and the names and
 * descriptions of its parameters.
 *
 * A pattern has the syntax of Python's re.search(), which PCRE2 reads nearly alike. Back references
 * and nested repetitions may take time that is exponential in their length, so each search has a
 * clock, which is looked at within a match, too.
 *
 * BM25: Robertson and Zaragoza, The Probabilistic Relevance Framework (2009), with k1 = 1.2 and b =
 * 0.75. Terms are runs of letters and digits in lower case; they also end where a small letter is
 * followed by a capital, as in getWeather.
 */

#define PATTERN_MAX 200u      /* characters, as at Anthropic */
#define TEXT_MAX 4096u        /* bytes of a tool that are searched */
#define TERMS_MAX 16u         /* different terms of a query */
#define TERM_MAX 32u          /* bytes of a term that are compared */
#define SEARCH_NS 500000000ll /* time of one search with a pattern */
#define ITEMS_PER_LOOK 64     /* items of a pattern that are matched between looks at the clock */
#define HEAP_KIB 4096         /* memory of one match */

/* Results of check_time(); PCRE2's own errors are above them. */
enum { PATTERN_LATE = -1000, PATTERN_CANCELED };

const char *const tool_search_names[TOOL_SEARCH_KINDS] = {
    [TOOL_SEARCH_REGEX] = "tool_search_tool_regex",
    [TOOL_SEARCH_BM25] = "tool_search_tool_bm25",
};

/* ---- texts ---- */

static bool tool_search_is_deferred(yyjson_val *tool) {
    return yyjson_get_bool(yyjson_obj_get(tool, "defer_loading"));
}

/* Adds the string @v and a line break, as far as there is room. */
static void tool_search_add_line(struct buf *out, yyjson_val *v) {
    size_t len = MIN((size_t)json_len(v), out->max - out->len);

    if (len && buf_add(out, json_text(v), len) == 0)
        buf_add_char(out, '\n'); /* fails where the text ends anyway */
}

/* Writes the text of @tool that is searched to @out, whose max bounds it. */
static int tool_search_text(yyjson_val *tool, struct buf *out) {
    yyjson_val *f = yyjson_obj_get(tool, "function");
    yyjson_val *properties = yyjson_obj_get(yyjson_obj_get(f, "parameters"), "properties");

    buf_clear(out);
    if (buf_reserve(out, out->max) < 0)
        return -ENOMEM;
    tool_search_add_line(out, yyjson_obj_get(f, "name"));
    tool_search_add_line(out, yyjson_obj_get(f, "description"));
    JSON_MEMBERS(key, value, properties) {
        tool_search_add_line(out, key);
        tool_search_add_line(out, yyjson_obj_get(value, "description"));
    }
    for (size_t i = 0; i < out->len; i++) /* words are read up to a NUL */
        out->data[i] = out->data[i] ? out->data[i] : ' ';
    return 0;
}

/* ---- regular expressions ---- */

static int64_t tool_search_now_ns(void) {
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

struct pattern {
    pcre2_code *code;
    pcre2_match_data *match;
    pcre2_match_context *context;
    /* the search ends then */
    int64_t until;
    uint32_t n_items;
};

static void pattern_free(struct pattern *p) {
    pcre2_code_free(p->code);
    pcre2_match_data_free(p->match);
    pcre2_match_context_free(p->context);
}

/* Ends a match whose time is over or whose job was abandoned. PCRE2 calls it before it matches an
 * item of the pattern (PCRE2_AUTO_CALLOUT); what an item takes is bounded by the length of the
 * text. */
static int check_time(pcre2_callout_block *block, void *ctx) {
    struct pattern *p = ctx;

    if (++p->n_items % ITEMS_PER_LOOK)
        return 0;
    if (job_pause() < 0)
        return PATTERN_CANCELED;
    if (tool_search_now_ns() > p->until)
        return PATTERN_LATE;
    return 0;
}

static int pattern_compile(struct pattern *p, const char *text) {
    const uint32_t flags = PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF |
                           PCRE2_NEVER_BACKSLASH_C | PCRE2_AUTO_CALLOUT;
    size_t len = strlen(text), n_chars = 0, at;
    int error;

    for (size_t i = 0; i < len; i++)
        n_chars += (text[i] & 0xc0) != 0x80; /* not within a character of UTF-8 */
    if (n_chars == 0 || n_chars > PATTERN_MAX)
        return -EINVAL;
    p->code = pcre2_compile((PCRE2_SPTR)text, len, flags, &error, &at, NULL);
    if (!p->code) {
        if (error == PCRE2_ERROR_HEAP_FAILED)
            return -ENOMEM;
        return -EINVAL;
    }
    p->match = pcre2_match_data_create(1, NULL);
    p->context = pcre2_match_context_create(NULL);
    if (!p->match || !p->context)
        return -ENOMEM;
    pcre2_set_callout(p->context, check_time, p);
    pcre2_set_heap_limit(p->context, HEAP_KIB);
    return 0;
}

/* Returns 1 if @text has a match, 0, or an error. */
static int pattern_search(struct pattern *p, const struct buf *text) {
    int r = pcre2_match(p->code, (PCRE2_SPTR)text->data, text->len, 0, 0, p->match, p->context);

    switch (r) {
    case PCRE2_ERROR_NOMATCH:
        return 0;
    case PCRE2_ERROR_NOMEMORY:
        return -ENOMEM;
    case PATTERN_CANCELED:
        return -ECANCELED;
    default:
        if (r < 0)
            return -ETIME;
        return 1; /* a limit: of time, memory, or PCRE2's own */
    }
}

static int search_pattern(const char *pattern, yyjson_val *tools, struct buf *text,
                          yyjson_val *found[TOOL_SEARCH_MOST]) {
    CLEANUP(pattern_free) struct pattern p = {.until = tool_search_now_ns() + SEARCH_NS};
    uint32_t n_found = 0;

    TRY(pattern_compile(&p, pattern));
    JSON_EACH(tool, tools) {
        if (n_found == TOOL_SEARCH_MOST || !tool_search_is_deferred(tool))
            continue;
        if (job_pause() < 0)
            return -ECANCELED;
        if (tool_search_now_ns() > p.until)
            return -ETIME;
        TRY(tool_search_text(tool, text));
        int r = pattern_search(&p, text);
        TRY(r);
        if (r > 0)
            found[n_found++] = yyjson_obj_get(yyjson_obj_get(tool, "function"), "name");
    }
    return (int)n_found;
}

/* ---- BM25 ---- */

struct term {
    char text[TERM_MAX];
    /* tools that have it */
    uint32_t len, n_tools;
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
    if (tool_search_text(tool, text) < 0)
        return -ENOMEM;
    *out = (struct counted){.name = yyjson_obj_get(yyjson_obj_get(tool, "function"), "name")};
    for (const char *p = text->data; next_term(&p, &t); out->n_terms++) {
        uint32_t i = find_term(terms, n_terms, &t);

        if (i < n_terms)
            terms[i].n_tools += out->counts[i]++ == 0;
    }
    return 0;
}

static double tool_search_score(const struct counted *c, const struct term *terms, uint32_t n_terms,
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
static int tool_search_pick_best(struct counted *tools, size_t n,
                                 yyjson_val *found[TOOL_SEARCH_MOST]) {
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
    size_t n_all = 0;
    double length = 0;

    if (!all)
        return -ENOMEM;
    while (n_terms < TERMS_MAX && next_term(&query, &terms[n_terms])) {
        terms[n_terms].n_tools = 0;
        n_terms += find_term(terms, n_terms, &terms[n_terms]) == n_terms;
    }
    JSON_EACH(tool, tools) {
        if (!tool_search_is_deferred(tool))
            continue;
        TRY(count_terms(tool, terms, n_terms, text, &all[n_all]));
        length += all[n_all++].n_terms;
    }
    for (size_t i = 0; i < n_all; i++)
        all[i].score =
            tool_search_score(&all[i], terms, n_terms, (double)n_all, length / (double)n_all);
    if (!n_terms)
        return -EINVAL;
    return tool_search_pick_best(all, n_all, found);
}

int tool_search(enum tool_search_kind kind, const char *query, yyjson_val *tools,
                yyjson_val *found[TOOL_SEARCH_MOST]) {
    CLEANUP(buf_deinit) struct buf text = {.max = TEXT_MAX};

    return (kind == TOOL_SEARCH_REGEX ? search_pattern : search_words)(query, tools, &text, found);
}
