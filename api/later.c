#include "api/call.h"
#include "api/respond.h"

#define LATER(name)                                                                                \
    void name(struct call *c, struct http *h) {                                                    \
        struct err err;                                                                            \
        (void)h;                                                                                   \
        err_set(&err, 501, NULL, "Not served yet.");                                               \
        respond_error(c, &err);                                                                    \
    }
LATER(chat_serve)
LATER(chat_render_serve)
LATER(completions_serve)
LATER(completions_render_serve)
LATER(metrics_serve)
LATER(tokenize_serve)
LATER(detokenize_serve)
