/* Shared by the programs on plain sockets: failing, time, checksum, connecting. */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

static void fail(const char *what) {
    fprintf(stderr, "%s: %s (%s)\n", PROGRAM, what, errno ? strerror(errno) : "protocol");
    exit(1);
}

static double clock_s(clockid_t clock) {
    struct timespec at;
    clock_gettime(clock, &at);
    return at.tv_sec + at.tv_nsec / 1e9;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) static uint32_t crc32c(const uint8_t *data, size_t size) {
    uint64_t crc = ~0u, word;
    for (; size >= 8; data += 8, size -= 8) {
        memcpy(&word, data, 8);
        crc = __builtin_ia32_crc32di(crc, word);
    }
    for (; size; data++, size--)
        crc = __builtin_ia32_crc32qi((uint32_t)crc, *data);
    return ~(uint32_t)crc;
}
#else
static uint32_t crc32c(const uint8_t *data, size_t size) {
    static uint32_t table[256];
    if (!table[1])
        for (uint32_t byte = 0; byte < 256; byte++) {
            uint32_t crc = byte;
            for (int bit = 0; bit < 8; bit++)
                crc = crc & 1 ? crc >> 1 ^ 0x82F63B78 : crc >> 1;
            table[byte] = crc;
        }
    uint32_t crc = ~0u;
    while (size--)
        crc = crc >> 8 ^ table[(crc ^ *data++) & 0xFF];
    return ~crc;
}
#endif

static int connect_to(const char *host, const char *port) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
    if (getaddrinfo(host, port, &hints, &found) != 0)
        fail("cannot resolve the address");
    int made = socket(found->ai_family, found->ai_socktype, 0), on = 1;
    if (made < 0 || connect(made, found->ai_addr, found->ai_addrlen) != 0)
        fail("cannot connect");
    freeaddrinfo(found);
    setsockopt(made, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return made;
}
