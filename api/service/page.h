#pragma once

/*
 * page - the web page: static files in the program, which web/embed.py makes a table of. They need
 * no key and contain no data of the service; the page gets its data from the API, with the key that
 * its user types in.
 */

#include <stddef.h>

#include "api/http/dialect.h"

struct page_file {
    const char *name, *type;
    /* header lines of its answers */
    const char *headers;
    /* without quotes */
    const char *etag;
    const unsigned char *data;
    size_t len;
};

extern const struct page_file page_files[]; /* ends with one without name */

/* Forbids resources from other origins, code other than the page's own modules, and frames around
 * the page: text of a model remains text even if the page has a bug. */
#define PAGE_POLICY                                                                                \
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "                \
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
#define PAGE_HEADERS(etag)                                                                         \
    "ETag: \"" etag "\"\r\nCache-Control: no-cache\r\nVary: Accept\r\n"                            \
    "Content-Security-Policy: " PAGE_POLICY "\r\nX-Content-Type-Options: nosniff\r\n"              \
    "Referrer-Policy: no-referrer\r\nCross-Origin-Opener-Policy: same-origin\r\n"                  \
    "Cross-Origin-Resource-Policy: same-origin\r\n"

/* Returns true if GET / must be answered with the page: it is turned on, and the client is a
 * browser. */
bool page_is_asked_for(const struct exchange *x, const struct http *h);
/* Answers with the file @name: 200, 304, or 404. Ends the exchange. */
void page_answer(struct exchange *x, const struct http *h, const char *name);
void page_serve(struct exchange *x, struct http *h); /* /web/NAME */
