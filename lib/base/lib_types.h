#pragma once

/* lib_types - names of types of yyjson and libuv, for headers that have pointers to them: to read
 * <yyjson.h> or <uv.h> takes a third of the time of an average file's compilation. */

typedef struct yyjson_doc yyjson_doc;
typedef struct yyjson_val yyjson_val;
typedef struct yyjson_mut_doc yyjson_mut_doc;
typedef struct yyjson_mut_val yyjson_mut_val;
typedef struct uv_loop_s uv_loop_t;
