#pragma once

/*
 * tenants - reads the tenants file: a section for each tenant, `default` for all others and for
 * what the other sections leave out. Keys are rows of the table in tenants.c; conf/tenants.conf
 * explains them.
 */

#include "api/api.h"

/* Reads the rows of file @path; the caller frees *out. @err of a refusal is one line: "FILE:LINE:
 * key: what is allowed". */
int tenants_read(const char *path, struct api_tenant **out, uint32_t *n, struct err *err);
