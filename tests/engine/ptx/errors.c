/* Errors end the process, or jump to ptx_catch if it is set. */

#include <stdarg.h>

#include "tests/engine/ptx/parser.h"

jmp_buf *ptx_catch;
char ptx_message[512];

_Noreturn void ptx_end(void) {
    if (ptx_catch)
        longjmp(*ptx_catch, 1);
    fprintf(stderr, "ptx: %s\n", ptx_message);
    abort();
}

_Noreturn void refuse(const struct instruction *in, const char *why) {
    const struct parser *ps = in->parser;

    snprintf(ptx_message, sizeof(ptx_message), "%s, line %u: %s: %.200s", ps->function->module,
             ps->line, why, in->text);
    ptx_end();
}

_Noreturn void refuse_at(const struct parser *ps, const char *why) {
    snprintf(ptx_message, sizeof(ptx_message), "%s, line %u: %s", ps->function->module, ps->line,
             why);
    ptx_end();
}

static const struct ptx_kernel *running;

void ptx_set_running(const struct ptx_kernel *k) {
    running = k;
}

_Noreturn void fail(const struct op *o, const char *format, ...) {
    char why[200];
    va_list args;

    va_start(args, format);
    vsnprintf(why, sizeof(why), format, args);
    va_end(args);
    snprintf(ptx_message, sizeof(ptx_message), "%s, %s, line %u: %s: %.120s",
             running ? running->module : "", running ? running->name : "", o ? o->line : 0, why,
             o ? o->text : "");
    ptx_end();
}
