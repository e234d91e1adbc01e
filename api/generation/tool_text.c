#include "api/generation/tool_text.h"

#include <errno.h>
#include <yyjson.h>

#include "base/util.h"

int tool_text_write(yyjson_mut_doc *doc, yyjson_mut_val *f, struct buf *out) {
    static const char *const keys[] = {"description", "name", "parameters"};
    yyjson_mut_val *shown = yyjson_mut_obj(doc);

    for (size_t i = 0; i < ARRAY_SIZE(keys); i++)
        yyjson_mut_obj_add_val(doc, shown, keys[i],
                               yyjson_mut_val_mut_copy(doc, yyjson_mut_obj_get(f, keys[i])));
    CLEANUP(freep) char *text = yyjson_mut_val_write(shown, 0, NULL);
    if (!text)
        return -ENOMEM;
    return buf_printf(out, "<functions>\n<function>%s</function>\n</functions>", text);
}
