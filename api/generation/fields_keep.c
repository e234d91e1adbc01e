/* Ollama's and LM Studio's fields for the time that a model stays loaded after a request. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "api/generation/fields.h"
#include "base/json_read.h"
#include "base/util.h"

/* Returns the seconds of the unit at *@text and moves *@text behind it; 0 if there is no such
 * unit. */
static double unit_s(const char **text) {
    static const struct {
        const char *name;
        double s;
    } units[] = {{"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}, {"h", 3600}, {"m", 60}, {"s", 1}};

    for (size_t i = 0; i < ARRAY_SIZE(units); i++) {
        size_t n = strlen(units[i].name);

        if (strncmp(*text, units[i].name, n) != 0)
            continue;
        *text += n;
        return units[i].s;
    }
    return 0;
}

/* Reads a number of seconds or a duration; returns false if @v is neither. */
static bool read_duration(yyjson_val *v, int64_t *seconds) {
    const char *text = json_cstr(v);
    bool negative = text && *text == '-';
    double sum = yyjson_is_num(v) ? yyjson_get_num(v) : 0;

    if (!text && !yyjson_is_num(v))
        return false;
    text += text && (negative || *text == '+');
    if (text && !*text)
        return false;
    while (text && *text) {
        char *end;
        double n = strtod(text, &end);

        if (end == text || *text < '.' || *text > '9')
            return false;
        text = end;
        double unit = *text ? unit_s(&text) : 1;
        if (unit == 0)
            return false;
        sum += n * unit;
    }
    if (negative)
        sum = -sum;
    if (sum < 0)
        *seconds = -1;
    else
        *seconds = (int64_t)(MIN(sum, 1e9) + 0.999);
    return true;
}

READER(field_keep_alive) {
    if (!read_duration(v, &r->input.keep_alive_s))
        return field_refuse(f, err);
    r->input.has_keep_alive = true;
    return 0;
}

READER(field_ttl) {
    field_number(v);
    double keep_s = yyjson_get_num(v);

    if (!yyjson_is_num(v) || !(keep_s >= 0 && keep_s <= f->hi))
        return field_refuse(f, err);
    r->input.has_keep_alive = true;
    r->input.keep_alive_s = (int64_t)ceil(keep_s);
    return 0;
}
