/* The formats of strings as regular expressions (schema_pattern.c). They may be narrower than the format. */
#include <string.h>

#include "text/grammar/schema_writer.h"

/* Dates that exist in every year: no 29 February. */
#define DATE                                                                                                 \
    "[1-9][0-9]{3}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|" \
    "1[0-9]|2[0-8]))"
#define HOUR "([01][0-9]|2[0-3])"
#define TIME HOUR ":[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?(Z|[+-]" HOUR ":[0-5][0-9])"

/* Durations with their units in order, without gaps: RFC 3339, appendix A. */
#define N        "[0-9]{1,9}"
#define DAYS     N "D"
#define MONTHS   N "M(" DAYS ")?"
#define SECONDS  N "S"
#define MINUTES  N "M(" SECONDS ")?"
#define CLOCK    "T(" N "H(" MINUTES ")?|" MINUTES "|" SECONDS ")"
#define DURATION "P((" N "Y(" MONTHS ")?|" MONTHS "|" DAYS ")(" CLOCK ")?|" CLOCK "|" N "W)"

/* Labels of at most 62 characters, names of at most 251; the last label has letters only. */
#define LABEL "[A-Za-z0-9]{1,20}(-[A-Za-z0-9]{1,13}){0,3}"
#define TOP   "[A-Za-z]{2,20}"
#define NAME  "(" LABEL "\\.){0,3}" TOP
#define EMAIL "[A-Za-z0-9_+-]{1,20}(\\.[A-Za-z0-9_+-]{1,20}){0,2}@(" LABEL "\\.){1,3}" TOP

#define BYTE "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
#define IPV4 BYTE "(\\." BYTE "){3}"
#define H    "[0-9A-Fa-f]{1,4}"
#define IPV6                                                                                                 \
    "((" H ":){7}" H "|(" H ":){1,7}:|(" H ":){1,6}:" H "|(" H ":){1,5}(:" H "){1,2}|(" H ":){1,4}(:" H      \
    "){1,3}|(" H ":){1,3}(:" H "){1,4}|(" H ":){1,2}(:" H "){1,5}|" H ":(:" H "){1,6}|:(:" H "){1,7}|::)"

#define PATH "([A-Za-z0-9._~!$&'()*+,;=:@/-]|%[0-9A-Fa-f]{2})*"
#define URI                                                                                                  \
    "[A-Za-z][A-Za-z0-9+.-]{0,15}://(" NAME "|" IPV4 ")(:[1-9][0-9]{0,3})?(/" PATH ")?(\\?" PATH ")?(#" PATH \
    ")?"

#define HEX                    "[0-9A-Fa-f]"
#define UUID(version, variant) HEX "{8}-" HEX "{4}-" version HEX "{3}-" variant HEX "{3}-" HEX "{12}"
#define UUID_OF(version)       UUID(version, "[89ABab]")
#define BASE64                 "[A-Za-z0-9+/]"

const char *schema_format(const char *name)
{
    static const struct {
        const char *name, *regex;
    } formats[] = {
        {"date", "^" DATE "$"},
        {"time", "^" TIME "$"},
        {"date-time", "^" DATE "T" TIME "$"},
        {"duration", "^" DURATION "$"},
        {"email", "^" EMAIL "$"},
        {"idn-email", "^" EMAIL "$"},
        {"hostname", "^" NAME "$"},
        {"idn-hostname", "^" NAME "$"},
        {"ipv4", "^" IPV4 "$"},
        {"ipv6", "^" IPV6 "$"},
        {"ipvanyaddress", "^(" IPV4 "|" IPV6 ")$"},
        {"ipv4interface", "^" IPV4 "/([12]?[0-9]|3[0-2])$"},
        {"ipv6interface", "^" IPV6 "/([1-9]?[0-9]|1[01][0-9]|12[0-8])$"},
        {"cidrv4", "^" IPV4 "/([12]?[0-9]|3[0-2])$"},
        {"cidrv6", "^" IPV6 "/([1-9]?[0-9]|1[01][0-9]|12[0-8])$"},
        {"uri", "^" URI "$"},
        {"iri", "^" URI "$"},
        {"uri-reference", "^" URI "$"},
        {"iri-reference", "^" URI "$"},
        {"uuid", "^" UUID(HEX, HEX) "$"},
        {"uuid1", "^" UUID_OF("1") "$"},
        {"uuid3", "^" UUID_OF("3") "$"},
        {"uuid4", "^" UUID_OF("4") "$"},
        {"uuid5", "^" UUID_OF("5") "$"},
        {"uuid6", "^" UUID_OF("6") "$"},
        {"uuid7", "^" UUID_OF("7") "$"},
        {"byte", "^(" BASE64 "{4})*(" BASE64 "{2}==|" BASE64 "{3}=)?$"},
        {"base64", "^(" BASE64 "{4})*(" BASE64 "{2}==|" BASE64 "{3}=)?$"},
        {"base64url", "^([A-Za-z0-9_-]{4})*([A-Za-z0-9_-]{2}==|[A-Za-z0-9_-]{3}=)?$"},
        {"json-pointer", "^(/([^~/]|~[01])*)*$"},
        /* What a program makes of these texts is not seen in them. */
        {"binary", ""},
        {"password", ""},
        {"path", ""},
        {"file-path", ""},
        {"directory-path", ""},
    };
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (strcmp(formats[i].name, name) == 0)
            return formats[i].regex;
    return NULL;
}
