/*
 * The page's files. Each has an ETag, a hash of its bytes, and is asked for again each time
 * (no-cache): after an upgrade no browser mixes old files with new ones.
 */

#include "api/service/page.h"

#include <string.h>

#include "api/generation/env.h"
#include "api/http/exchange.h"
#include "api/http/http.h"
#include "api/http/respond.h"

bool page_is_asked_for(const struct exchange *x, const struct http *h) {
    const char *accept = http_header(h, "accept", NULL);

    return env_of(x)->opts.web_page && accept && strstr(accept, "text/html");
}

static const struct page_file *page_find(const char *name) {
    for (const struct page_file *f = page_files; f->name; f++)
        if (strcmp(f->name, name) == 0)
            return f;
    return NULL;
}

void page_answer(struct exchange *x, const struct http *h, const char *name) {
    const struct page_file *f = page_find(name);
    const char *known = http_header(h, "if-none-match", NULL);
    struct err err;

    if (!f || !env_of(x)->opts.web_page) {
        err_set_code(&err, 404, "not_found", NULL, "This path does not exist.");
        respond_error(x, &err);
        return;
    }
    x->headers = f->headers;
    if (known && strstr(known, f->etag)) {
        x->head_only = true;
        respond(x, 304, f->type, f->data, f->len);
        return;
    }
    respond(x, 200, f->type, f->data, f->len);
}

void page_serve(struct exchange *x, struct http *h) {
    page_answer(x, h, x->arg);
}
