#pragma once

/*
 * page - the web page: static files in the program, which web/embed.py makes a table of. They need
 * no key and say nothing of the service; what the page shows it asks the API for, with the key that
 * its user gives it.
 */

#include <stddef.h>
#include "api/http/dialect.h"

struct page_file {
    const char *name, *type;
    const char *headers; /* header lines of its answers */
    const char *etag;    /* without quotes */
    const unsigned char *data;
    size_t len;
};

extern const struct page_file page_files[]; /* ends with one without name */

/* Forbids resources from other origins, code other than the page's own modules, and frames around
 * the page: text of a model stays text even where the page has a mistake. */
#define PAGE_POLICY                                                                                \
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "                \
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
#define PAGE_HEADERS(etag)                                                                         \
    "ETag: \"" etag "\"\r\nCache-Control: no-cache\r\nVary: Accept\r\n"                            \
    "Content-Security-Policy: " PAGE_POLICY "\r\nX-Content-Type-Options: nosniff\r\n"              \
    "Referrer-Policy: no-referrer\r\nCross-Origin-Opener-Policy: same-origin\r\n"                  \
    "Cross-Origin-Resource-Policy: same-origin\r\n"

/* Returns true if GET / is to be answered with the page: it is not turned off, and a browser
 * asks. */
bool page_is_asked_for(const struct exchange *x, const struct http *h);
/* Answers with the file @name: 200, 304, or 404. Ends the exchange. */
void page_answer(struct exchange *x, const struct http *h, const char *name);
void page_serve(struct exchange *x, struct http *h); /* /web/NAME */
