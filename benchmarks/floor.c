/* The physical floor of `shardtool create`: the same work in the fewest system calls, in C.
 *
 *   cc -O3 -march=native -o floor floor.c
 *   floor PROCESSES ROOT OUT
 *
 * Reads every file under ROOT and writes it, with a ustar header and padding, into OUT.0, OUT.1 ...:
 * one archive per process. Takes the CRC-32C of every file, as shardtool does. Top folder number i
 * goes to process i % PROCESSES, so that a corpus with equal top folders is shared out evenly.
 * It plans nothing, writes no index and gives no promise: nothing that does the job can be faster.
 * The checksum needs SSE 4.2 (x86-64).
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <nmmintrin.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BUFFER = 1 << 20, BLOCK = 512, PAGE = 4096 };

static char *buffer;
static size_t used;
static int out, processes, me, top_folders;
static uint32_t checksums; /* all of them xored: keeps the compiler from leaving the work out */

static void die(const char *what) {
    perror(what);
    exit(1);
}

static uint32_t crc32c(uint32_t crc, const char *p, size_t n) {
    uint64_t x = (uint32_t)~crc;
    for (; n >= 8; n -= 8, p += 8) x = _mm_crc32_u64(x, *(const uint64_t *)p);
    for (; n; n--, p++) x = _mm_crc32_u8((uint32_t)x, (uint8_t)*p);
    return ~(uint32_t)x;
}

static void write_all(size_t n) {
    for (size_t at = 0; at < n;) {
        ssize_t written = write(out, buffer + at, n - at);
        if (written < 0) die("write");
        at += written;
    }
}

/* Whole pages only, so that the buffer and the page cache stay aligned alike; the tail waits. */
static void flush(void) {
    size_t whole = used & -(size_t)PAGE;
    write_all(whole);
    memmove(buffer, buffer + whole, used - whole);
    used -= whole;
}

static void zeros(size_t n) {
    if (BUFFER - used < n) flush();
    memset(buffer + used, 0, n);
    used += n;
}

static void header(const char *name, const struct stat *st) {
    zeros(BLOCK);
    char *h = buffer + used - BLOCK;
    if (snprintf(h, 100, "%s", name) >= 100) die("a name over 100 bytes");
    memcpy(h + 100, "0000644\0000000000\0000000000", 24);
    snprintf(h + 124, 12, "%011lo", (long)st->st_size);
    memcpy(h + 136, "00000000000", 12);
    memset(h + 148, ' ', 8);
    h[156] = '0';
    memcpy(h + 257, "ustar\00000", 8);
    unsigned sum = 0;
    for (int i = 0; i < BLOCK; i++) sum += (unsigned char)h[i];
    snprintf(h + 148, 8, "%06o", sum);
}

static void add_file(int folder, const char *entry, const char *name) {
    struct stat st;
    int fd = openat(folder, entry, O_RDONLY);
    if (fd < 0 || fstat(fd, &st)) die(name);
    header(name, &st);
    uint32_t crc = 0;
    for (size_t left = st.st_size; left;) {
        if (BUFFER - used < left && used > BUFFER / 2) flush();
        size_t room = BUFFER - used;
        ssize_t n = read(fd, buffer + used, left < room ? left : room);
        if (n <= 0) die(name);
        crc = crc32c(crc, buffer + used, n);
        used += n, left -= n;
        if (used == BUFFER) flush();
    }
    checksums ^= crc;
    zeros(-st.st_size & (BLOCK - 1));
    close(fd);
}

static void walk(int at, const char *entry, const char *name) {
    int fd = openat(at, entry, O_RDONLY | O_DIRECTORY);
    DIR *folder = fd < 0 ? NULL : fdopendir(fd);
    if (!folder) die(entry);
    for (struct dirent *e; (e = readdir(folder));) {
        char below[PATH_MAX];
        if (e->d_name[0] == '.') continue;
        if (snprintf(below, sizeof below, "%s%s%s", name, *name ? "/" : "", e->d_name) >= (int)sizeof below) die(name);
        if (e->d_type != DT_DIR) add_file(fd, e->d_name, below);
        else if (*name || top_folders++ % processes == me) walk(fd, e->d_name, below);
    }
    closedir(folder);
}

static int failed_children(void) {
    int failed = 0;
    for (int status; wait(&status) > 0;) failed |= status != 0;
    return failed;
}

int main(int argc, char **argv) {
    char path[PATH_MAX];
    if (argc != 4 || (processes = atoi(argv[1])) < 1) {
        fputs("usage: floor PROCESSES ROOT OUT\n", stderr);
        return 2;
    }
    if (posix_memalign((void **)&buffer, PAGE, BUFFER)) die("memory");
    for (int k = 1; k < processes && !me; k++) {
        pid_t child = fork();
        if (child < 0) die("fork");
        if (!child) me = k;
    }
    if (snprintf(path, sizeof path, "%s.%d", argv[3], me) >= (int)sizeof path) die(argv[3]);
    out = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (out < 0) die(path);
    walk(AT_FDCWD, argv[2], "");
    zeros(2 * BLOCK);
    write_all(used);
    if (me) return 0;
    int failed = failed_children();
    printf("%08x\n", checksums);
    return failed;
}
