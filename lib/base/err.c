#include "base/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"

static int err_fill(struct err *e, int status, const char *code, const char *param, const char *fmt,
                    va_list ap) {
    if (e) {
        e->status = status;
        snprintf(e->code, sizeof(e->code), "%s", text_or(code, ""));
        snprintf(e->param, sizeof(e->param), "%s", text_or(param, ""));
        vsnprintf(e->message, sizeof(e->message), fmt, ap);
        e->n_prompt = e->n_context = 0;
    }
    return -EINVAL;
}

int err_set(struct err *e, int status, const char *param, const char *fmt, ...) {
    va_list ap;

    va_start(ap, fmt);
    int r = err_fill(e, status, NULL, param, fmt, ap);
    va_end(ap);
    return r;
}

int err_set_code(struct err *e, int status, const char *code, const char *param, const char *fmt,
                 ...) {
    va_list ap;

    va_start(ap, fmt);
    int r = err_fill(e, status, code, param, fmt, ap);
    va_end(ap);
    return r;
}

int err_add_lengths(struct err *e, size_t n_prompt, uint32_t n_context) {
    if (e) {
        e->n_prompt = (uint32_t)MIN(n_prompt, (size_t)UINT32_MAX);
        e->n_context = n_context;
    }
    return -EINVAL;
}

/* Replaces the word @from by @to. Returns false if @text does not contain it, or first in a longer
 * name. */
static bool err_replace(char *text, size_t size, const char *from, const char *to) {
    char *at = strstr(text, from);
    size_t n = strlen(from);
    char rest[sizeof(((struct err *)0)->message)];

    if (!at || (at > text && (at[-1] == '_' || at[-1] == '.')) || at[n] == '_')
        return false;
    snprintf(rest, sizeof(rest), "%s", at + n);
    snprintf(at, size - (size_t)(at - text), "%s%s", to, rest);
    return true;
}

void err_rename(struct err *e, const char *from, const char *to) {
    err_replace(e->param, sizeof(e->param), from, to);
    for (int k = 0; k < 3 && err_replace(e->message, sizeof(e->message), from, to); k++)
        ;
}

void note_add(char *note, size_t size, const char *between, const char *fmt, ...) {
    size_t n = strlen(note);
    va_list ap;

    snprintf(note + n, size - n, "%s", n ? between : "");
    n = strlen(note);
    va_start(ap, fmt);
    vsnprintf(note + n, size - n, fmt, ap);
    va_end(ap);
}
