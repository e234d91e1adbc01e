/* Searches among tools: the first byte chooses the search, the first line is the query, the rest is
 * the list of tools. Each result is a name of the list, and no tool occurs twice. */

#include "api/anthropic/tool_search.h"

#include <errno.h>
#include <string.h>
#include <yyjson.h>

#include "base/util.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
    const uint8_t *line = len > 1 ? memchr(data + 1, '\n', len - 1) : NULL;
    yyjson_val *found[TOOL_SEARCH_MOST] = {0};

    if (!line)
        return 0;
    CLEANUP(freep) char *query = strndup((const char *)data + 1, (size_t)(line - data) - 1);
    yyjson_doc *doc = yyjson_read((const char *)line + 1, (size_t)(data + len - line) - 1, 0);
    int r = tool_search(*data % TOOL_SEARCH_KINDS, query, yyjson_doc_get_root(doc), found);

    FUZZ_ASSERT(r == -EINVAL || r == -ENOMEM || r == -ETIME ||
                (r >= 0 && r <= (int)TOOL_SEARCH_MOST));
    for (int i = 0; i < r; i++)
        for (int k = 0; k < i; k++)
            FUZZ_ASSERT(!found[i] || found[i] != found[k]);
    yyjson_doc_free(doc);
    return 0;
}
