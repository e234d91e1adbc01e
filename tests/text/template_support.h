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
