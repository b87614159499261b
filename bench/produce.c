/*
 * produce: an idempotent producer that costs next to nothing, so that the broker is the limit.
 *
 *   produce HOST PORT TOPIC COUNT SIZE PRODUCER_ID PRODUCER_EPOCH
 *
 * COUNT values of SIZE bytes to partition 0, acks=all. Each record is written into its batch one by
 * one, as any producer does it, and each batch gets its time, sequence number and checksum; at most
 * five requests are under way. Produce 3, which has no flexible fields. Any error ends it.
 * Prints one line of JSON.
 */
#include <arpa/inet.h>
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
#include <unistd.h>

enum {
    BATCH_SIZE_MAX = 1000000,
    RECORD_OVERHEAD_MAX = 32,
    IN_FLIGHT_MAX = 5, /* what a broker allows an idempotent producer */
    BATCH_HEADER_SIZE = 61,
    BATCH_SIZE_FROM = 12,
    BATCH_CRC_FROM = 21,
    ANSWER_SIZE_MAX = 4096,
};

static uint8_t frame[BATCH_SIZE_MAX + 4096];
static int link_fd;

static void fail(const char *what) {
    fprintf(stderr, "produce: %s (%s)\n", what, errno ? strerror(errno) : "protocol");
    exit(1);
}

static double seconds(clockid_t clock) {
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

static uint8_t *put(uint8_t *at, uint64_t value, int size) {
    for (int i = size - 1; i >= 0; i--, value >>= 8)
        at[i] = (uint8_t)value;
    return at + size;
}

/* A zigzag varint of a number that is not negative. */
static uint8_t *put_varint(uint8_t *at, uint32_t value) {
    for (value <<= 1; value > 0x7F; value >>= 7)
        *at++ = (uint8_t)(value | 0x80);
    *at++ = (uint8_t)value;
    return at;
}

static int varint_size(uint32_t value) {
    int size = 1;
    for (value <<= 1; value > 0x7F; value >>= 7)
        size++;
    return size;
}

static void send_all(const uint8_t *data, size_t size) {
    while (size) {
        ssize_t count = send(link_fd, data, size, MSG_NOSIGNAL);
        if (count < 0)
            fail("cannot send");
        data += count;
        size -= (size_t)count;
    }
}

static void take_answer(size_t topic_size) {
    uint8_t answer[ANSWER_SIZE_MAX];
    uint32_t size;
    if (recv(link_fd, answer, 4, MSG_WAITALL) != 4)
        fail("the broker closed the connection");
    memcpy(&size, answer, 4);
    size = ntohl(size);
    /* Correlation id, one topic with its name, one partition with its index, then the code. */
    size_t code_at = 4 + 4 + 2 + topic_size + 4 + 4;
    if (size > sizeof answer || size < code_at + 2)
        fail("an answer of an odd size");
    if (recv(link_fd, answer, size, MSG_WAITALL) != (ssize_t)size)
        fail("the broker closed the connection");
    errno = 0;
    if (answer[code_at] || answer[code_at + 1]) {
        fprintf(stderr, "produce: error code %d\n", answer[code_at] << 8 | answer[code_at + 1]);
        exit(1);
    }
}

/* Write records behind the header until the batch is full. Returns how many. */
static int fill(uint8_t **end, const uint8_t *value, uint32_t value_size, long wanted) {
    uint8_t *at = *end, *limit = at + BATCH_SIZE_MAX - BATCH_HEADER_SIZE;
    int count = 0;
    while (count < wanted && at + value_size + RECORD_OVERHEAD_MAX <= limit) {
        /* Attributes, no time after the first, place, no key, the value, no headers. */
        uint32_t size = 1 + 1 + (uint32_t)varint_size((uint32_t)count) + 1;
        size += (uint32_t)varint_size(value_size) + value_size + 1;
        at = put_varint(at, size);
        *at++ = 0;
        *at++ = 0;
        at = put_varint(at, (uint32_t)count);
        *at++ = 1; /* -1 */
        at = put_varint(at, value_size);
        memcpy(at, value, value_size);
        at += value_size;
        *at++ = 0;
        count++;
    }
    *end = at;
    return count;
}

static void head_of_batch(uint8_t *batch, const uint8_t *end, int count, uint64_t producer_id,
                          uint32_t epoch, uint32_t sequence) {
    uint64_t now_ms = (uint64_t)(seconds(CLOCK_REALTIME) * 1000);
    uint8_t *at = put(batch, 0, 8);
    at = put(at, (uint64_t)(end - batch) - BATCH_SIZE_FROM, 4);
    at = put(at, 0xFFFFFFFF, 4); /* leader epoch: not known */
    *at++ = 2;
    uint8_t *crc_at = at;
    at = put(at + 4, 0, 2);
    at = put(at, (uint64_t)count - 1, 4);
    at = put(at, now_ms, 8);
    at = put(at, now_ms, 8);
    at = put(at, producer_id, 8);
    at = put(at, epoch, 2);
    at = put(at, sequence, 4);
    put(at, (uint64_t)count, 4);
    put(crc_at, crc32c(batch + BATCH_CRC_FROM, (size_t)(end - batch) - BATCH_CRC_FROM), 4);
}

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

int main(int argc, char **argv) {
    if (argc != 8)
        fail("HOST PORT TOPIC COUNT SIZE PRODUCER_ID PRODUCER_EPOCH");
    const char *topic = argv[3];
    size_t topic_size = strlen(topic);
    long count = atol(argv[4]);
    uint32_t value_size = (uint32_t)atol(argv[5]);
    uint64_t producer_id = (uint64_t)atoll(argv[6]);
    uint32_t epoch = (uint32_t)atol(argv[7]);
    uint8_t *value = malloc(value_size ? value_size : 1);
    if (value == NULL || topic_size > 255)
        fail("too large");
    memset(value, 'x', value_size);
    link_fd = connect_to(argv[1], argv[2]);

    /* Produce 3: key, version, correlation id, no client id; no transaction, acks, limit, one topic,
     * one partition. The sizes are filled in with each batch. */
    uint8_t *at = put(put(put(put(frame + 4, 0, 2), 3, 2), 1, 4), 0xFFFF, 2);
    at = put(put(put(put(at, 0xFFFF, 2), 0xFFFF, 2), 30000, 4), 1, 4);
    at = put(at, topic_size, 2);
    memcpy(at, topic, topic_size);
    at = put(put(at + topic_size, 1, 4), 0, 4);
    uint8_t *records_size_at = at, *batch = at + 4;

    double start = seconds(CLOCK_MONOTONIC);
    int in_flight = 0;
    for (long sent = 0; sent < count;) {
        uint8_t *end = batch + BATCH_HEADER_SIZE;
        int filled = fill(&end, value, value_size, count - sent);
        if (!filled)
            fail("a value is larger than a batch");
        head_of_batch(batch, end, filled, producer_id, epoch, (uint32_t)sent);
        put(records_size_at, (uint64_t)(end - batch), 4);
        put(frame, (uint64_t)(end - frame) - 4, 4);
        if (in_flight == IN_FLIGHT_MAX) {
            take_answer(topic_size);
            in_flight--;
        }
        send_all(frame, (size_t)(end - frame));
        in_flight++;
        sent += filled;
    }
    while (in_flight--)
        take_answer(topic_size);
    double took = seconds(CLOCK_MONOTONIC) - start;
    printf("{\"records_per_s\": %.0f, \"mb_per_s\": %.1f}\n", (double)count / took,
           (double)count * value_size / took / 1e6);
    return 0;
}
