/* Makes the opening of files slow, as a network file system does: preloaded, it sleeps SLOW_OPEN_US microseconds before
   each open of a path below the folder SLOW_OPEN_UNDER. Nothing else is delayed.

   cc -O2 -shared -fPIC -o slow_open.so slow_open.c -ldl */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void pause_for(const char *path) {
    const char *under = getenv("SLOW_OPEN_UNDER"), *us = getenv("SLOW_OPEN_US");
    if (under && us && strncmp(path, under, strlen(under)) == 0) usleep(atoi(us));
}

#define MODE(flags, mode) \
    mode_t mode = 0; \
    if (flags & (O_CREAT | O_TMPFILE)) { va_list rest; va_start(rest, flags); mode = va_arg(rest, mode_t); va_end(rest); }

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        MODE(flags, mode) \
        int (*real)(const char *, int, ...) = dlsym(RTLD_NEXT, #name); \
        pause_for(path); \
        return real(path, flags, mode); \
    }

#define OPENAT(name) \
    int name(int folder, const char *path, int flags, ...) { \
        MODE(flags, mode) \
        int (*real)(int, const char *, int, ...) = dlsym(RTLD_NEXT, #name); \
        pause_for(path); \
        return real(folder, path, flags, mode); \
    }

OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
