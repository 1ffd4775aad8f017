/* What went wrong, in words: one message per thread, the last one. */
#pragma once

/* Keeps the message and returns the status. */
int pc_fail(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));

const char *pc_last_error(void);
