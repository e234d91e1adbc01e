#include "base/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

static int fill(struct err *e, int status, const char *code, const char *param, const char *fmt,
                va_list ap) {
    if (e) {
        e->status = status;
        snprintf(e->code, sizeof(e->code), "%s", code ? code : "");
        snprintf(e->param, sizeof(e->param), "%s", param ? param : "");
        vsnprintf(e->message, sizeof(e->message), fmt, ap);
    }
    return -EINVAL;
}

int err_set(struct err *e, int status, const char *param, const char *fmt, ...) {
    va_list ap;

    va_start(ap, fmt);
    int r = fill(e, status, NULL, param, fmt, ap);
    va_end(ap);
    return r;
}

int err_set_code(struct err *e, int status, const char *code, const char *param, const char *fmt,
                 ...) {
    va_list ap;

    va_start(ap, fmt);
    int r = fill(e, status, code, param, fmt, ap);
    va_end(ap);
    return r;
}
