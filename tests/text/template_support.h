#pragma once

/* template_support - renders templates in tests. */

#include "text/template.h"

/* Renders @source with the JSON object @vars (or "{}"): malloc'd text, or NULL with @err set. */
char *template_text(const char *source, const char *vars, const struct template_opts *opts,
                    struct err *err);
/* Fails the test unless the rendering is exactly @want. */
void expect_text(const char *source, const char *vars, const char *want);
/* Fails the test unless it is an error that contains @part. */
void expect_error(const char *source, const char *vars, const char *part);

/* Variables of every kind: see template_support.c. */
extern const char TEMPLATE_VARS[];

struct template_row {
    /* want NULL: any error */
    const char *source, *want;
};

/* Expects each row's source, put into @wrap (which has one %s), to render with TEMPLATE_VARS as
 * wanted. */
void expect_rows(const char *wrap, const struct template_row *rows, size_t n);
