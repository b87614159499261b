/*
 * produce: an idempotent producer that uses almost no CPU, so that the broker is the bottleneck.
 *
 *   produce HOST PORT TOPIC COUNT SIZE PRODUCER_ID PRODUCER_EPOCH
 *
 * Sends COUNT values of SIZE bytes to partition 0, with acks=all. Each record is written into its
 * batch one by one, as by any producer, and each batch gets its timestamp, sequence number and
 * checksum. At most five requests are in flight. Uses Produce 3, which has no flexible fields. Stops
 * at the first error. Prints one line of JSON.
 */
#include <arpa/inet.h>
#include <sys/resource.h>
#include <unistd.h>

#define PROGRAM "produce"
#include "bare.h"

enum {
    BATCH_SIZE_MAX = 1000000,
    RECORD_OVERHEAD_MAX = 32,
    IN_FLIGHT_MAX = 5, /* the broker's limit for idempotent producers */
    BATCH_HEADER_SIZE = 61,
    BATCH_SIZE_FROM = 12,
    BATCH_CRC_FROM = 21,
    ANSWER_SIZE_MAX = 4096,
};

static uint8_t frame[BATCH_SIZE_MAX + 4096];
static int link_fd;

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
        /* Attributes, timestamp delta 0, offset delta, no key, the value, no headers. */
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
    uint64_t now_ms = (uint64_t)(clock_s(CLOCK_REALTIME) * 1000);
    uint8_t *at = put(batch, 0, 8);
    at = put(at, (uint64_t)(end - batch) - BATCH_SIZE_FROM, 4);
    at = put(at, 0xFFFFFFFF, 4); /* leader epoch: unknown */
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

static double cpu_seconds(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return used.ru_utime.tv_sec + used.ru_stime.tv_sec +
           (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
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

    double start = clock_s(CLOCK_MONOTONIC);
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
    double took = clock_s(CLOCK_MONOTONIC) - start;
    printf("{\"seconds\": %.4f, \"records_per_s\": %.0f, \"mb_per_s\": %.1f, \"client_cpu_s\": %.3f}\n",
           took, (double)count / took, (double)count * value_size / took / 1e6, cpu_seconds());
    return 0;
}
