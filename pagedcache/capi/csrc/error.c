#include "error.h"

#include <stdarg.h>
#include <stdio.h>

static _Thread_local char last[512];

int pc_fail(int status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(last, sizeof last, format, arguments);
    va_end(arguments);
    return status;
}

const char *pc_last_error(void) { return last; }
