#pragma once

/*
 * tenants - reads the tenants file: a section for each tenant, and `default` for tenants without a
 * section and for keys that a section leaves out. Keys are rows of the table in tenants.c;
 * conf/tenants.conf explains them.
 */

#include "api/api.h"

/* Reads the *n tenants of file @path to *out, which the caller frees. Returns 0, or -errno with one
 * line in @err: "FILE:LINE: KEY: REASON". */
int tenants_read(const char *path, struct api_tenant **out, uint32_t *n, struct err *err);
