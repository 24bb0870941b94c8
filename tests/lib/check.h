/* check.h - cmocka and the one assertion that it lacks: a call that must succeed, with its error's text. */
#ifndef MOEFLUX_TESTS_CHECK_H
#define MOEFLUX_TESTS_CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/err.h"

#define check_ok(call, e)                                                                                    \
    do {                                                                                                     \
        int check_rc_ = (call);                                                                              \
        if (check_rc_ < 0)                                                                                   \
            fail_msg("%s: %s", #call, (e)->text);                                                            \
    } while (0)

#endif
