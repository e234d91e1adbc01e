/* lark_common - the terminals of Lark's own library, `common`, as regular expressions. */

#include <string.h>

#include "grammar/front/lark.h"

#define INT "[0-9]+"
#define DECIMAL "([0-9]+\\.[0-9]*|\\.[0-9]+)"
#define EXP "[eE][+-]?[0-9]+"
#define FLOAT "([0-9]+" EXP "|" DECIMAL "(" EXP ")?)"

static const struct {
    const char *name, *regex;
} TERMINALS[] = {
    {"DIGIT", "[0-9]"},
    {"HEXDIGIT", "[0-9a-fA-F]"},
    {"INT", INT},
    {"SIGNED_INT", "[+-]?" INT},
    {"DECIMAL", DECIMAL},
    {"FLOAT", FLOAT},
    {"SIGNED_FLOAT", "[+-]?" FLOAT},
    {"NUMBER", "(" FLOAT "|" INT ")"},
    {"SIGNED_NUMBER", "[+-]?(" FLOAT "|" INT ")"},
    {"ESCAPED_STRING", "\"([^\"\\\\\\n]|\\\\[^\\n])*\""},
    {"LCASE_LETTER", "[a-z]"},
    {"UCASE_LETTER", "[A-Z]"},
    {"LETTER", "[A-Za-z]"},
    {"WORD", "[A-Za-z]+"},
    {"CNAME", "[A-Za-z_][A-Za-z0-9_]*"},
    {"WS_INLINE", "[ \\t]+"},
    {"WS", "[ \\t\\f\\r\\n]+"},
    {"CR", "\\r"},
    {"LF", "\\n"},
    {"NEWLINE", "(\\r?\\n)+"},
    {"SH_COMMENT", "#[^\\n]*"},
    {"CPP_COMMENT", "//[^\\n]*"},
    {"C_COMMENT", "/\\*([^*]|\\*+[^*/])*\\*+/"},
    {"SQL_COMMENT", "--[^\\n]*"},
};

const char *lark_common(const char *name, size_t len) {
    for (size_t i = 0; i < ARRAY_SIZE(TERMINALS); i++) {
        if (strlen(TERMINALS[i].name) == len && memcmp(TERMINALS[i].name, name, len) == 0)
            return TERMINALS[i].regex;
    }
    return NULL;
}
