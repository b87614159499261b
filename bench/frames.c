/*
 * frames: send prepared requests over plain sockets, one in flight per connection.
 *
 *   frames HOST:PORT SCRIPT SECONDS [INTERVAL_MS]
 *
 * Without an interval, each connection sends its next request as soon as the last is answered. With
 * an interval, each connection sends one request per interval, and the connections are spread
 * evenly. Prints one line of JSON. The broker is to be measured, not the client, so the client
 * decodes nothing: it compares the response, or looks at one error code.
 *
 * SCRIPT, all numbers i32 big-endian unless said otherwise:
 *
 *   count of connections, then for each:
 *     10 bytes identity: i64 producer id, i16 producer epoch (unused without transactions)
 *     count of steps, repeated until the end, then for each:
 *       frame size      including the length in front of it
 *       answer size     0, or the answer must be these bytes, except for the correlation ID
 *       code at         position of the error code in the answer; -1: none
 *       identity at     position of the identity in the frame; -1: none
 *       batch at        position of a record batch that gets identity and checksum; -1: none
 *       identity from   position of the next identity in the answer; -1: none
 *       the frame, the answer
 *
 * Positions in an answer count from the byte after its length. CONCURRENT_TRANSACTIONS is not a
 * failure: the step is repeated at once.
 */
#include <arpa/inet.h>
#include <sys/epoll.h>
#include <unistd.h>

#define PROGRAM "frames"
#include "bare.h"

enum {
    ANSWER_SIZE_MAX = 1 << 16,
    EVENTS_MAX = 256,
    IDENTITY_SIZE = 10,
    CORRELATION_ID_SIZE = 4,
    CONCURRENT_TRANSACTIONS = 51,
    BATCH_CRC_AT = 17,
    BATCH_CRC_FROM = 21,
    BATCH_IDENTITY_AT = 43,
    BATCH_SIZE_AT = 8,
    BATCH_SIZE_FROM = 12,
};
static const double STALL_SECONDS = 20;

struct step {
    int frame_size, answer_size, code_at, identity_at, batch_at, identity_from;
    uint8_t *frame, *answer;
};

struct connection {
    int socket, step_count, next, received, is_waiting;
    uint8_t identity[IDENTITY_SIZE];
    struct step *steps;
    uint8_t *buffer;
};

static long answered, rounds, retries, late;

static uint32_t read_u32(const uint8_t *at) {
    uint32_t value;
    memcpy(&value, at, 4);
    return ntohl(value);
}

static int read_int(FILE *file) {
    uint8_t raw[4];
    if (fread(raw, 4, 1, file) != 1)
        fail("the script ends early");
    return (int32_t)read_u32(raw);
}

static void *read_bytes(FILE *file, int size) {
    uint8_t *bytes = malloc(size ? size : 1);
    if (bytes == NULL || (size && fread(bytes, size, 1, file) != 1))
        fail("the script ends early");
    return bytes;
}

static void stamp(const struct connection *one, struct step *step) {
    if (step->identity_at >= 0)
        memcpy(step->frame + step->identity_at, one->identity, IDENTITY_SIZE);
    if (step->batch_at >= 0) {
        uint8_t *batch = step->frame + step->batch_at;
        memcpy(batch + BATCH_IDENTITY_AT, one->identity, IDENTITY_SIZE);
        int size = BATCH_SIZE_FROM + (int)read_u32(batch + BATCH_SIZE_AT);
        uint32_t crc = htonl(crc32c(batch + BATCH_CRC_FROM, size - BATCH_CRC_FROM));
        memcpy(batch + BATCH_CRC_AT, &crc, 4);
    }
}

static void send_next(struct connection *one) {
    struct step *step = &one->steps[one->next];
    stamp(one, step);
    for (int sent = 0; sent < step->frame_size;) {
        ssize_t count = send(one->socket, step->frame + sent, step->frame_size - sent, MSG_NOSIGNAL);
        if (count < 0)
            fail("cannot send");
        sent += (int)count;
    }
    one->is_waiting = 1;
    one->received = 0;
}

/* Check an answer: continue with the next step, or repeat this one. */
static void judge(struct connection *one, int size) {
    struct step *step = &one->steps[one->next];
    const uint8_t *answer = one->buffer + 4;
    one->is_waiting = 0;
    errno = 0;
    if (step->code_at >= 0) {
        int code = answer[step->code_at] << 8 | answer[step->code_at + 1];
        if (code == CONCURRENT_TRANSACTIONS) {
            retries++;
            return;
        }
        if (code) {
            fprintf(stderr, "frames: error code %d at step %d\n", code, one->next);
            exit(1);
        }
    }
    if (step->answer_size &&
        (size != step->answer_size || memcmp(answer + CORRELATION_ID_SIZE,
                                             step->answer + CORRELATION_ID_SIZE,
                                             size - CORRELATION_ID_SIZE) != 0))
        fail("another answer than before");
    if (step->identity_from >= 0)
        memcpy(one->identity, answer + step->identity_from, IDENTITY_SIZE);
    answered++;
    one->next = (one->next + 1) % one->step_count;
    rounds += one->next == 0;
}

/* Receive; returns 1 once the answer is complete. */
static int receive(struct connection *one) {
    ssize_t count =
        recv(one->socket, one->buffer + one->received, ANSWER_SIZE_MAX - one->received, MSG_DONTWAIT);
    if (count < 0 && errno == EAGAIN)
        return 0;
    if (count <= 0)
        fail("the broker closed a connection");
    one->received += (int)count;
    if (one->received < 4)
        return 0;
    int size = (int)read_u32(one->buffer);
    if (size > ANSWER_SIZE_MAX - 4)
        fail("an answer is too large");
    if (one->received < 4 + size)
        return 0;
    judge(one, size);
    return 1;
}

static struct connection *read_script(const char *path, int *count) {
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        fail("cannot open the script");
    *count = read_int(file);
    struct connection *all = calloc(*count, sizeof *all);
    for (struct connection *one = all; one < all + *count; one++) {
        uint8_t *identity = read_bytes(file, IDENTITY_SIZE);
        memcpy(one->identity, identity, IDENTITY_SIZE);
        free(identity);
        one->step_count = read_int(file);
        one->steps = calloc(one->step_count, sizeof *one->steps);
        one->buffer = malloc(ANSWER_SIZE_MAX);
        for (struct step *step = one->steps; step < one->steps + one->step_count; step++) {
            step->frame_size = read_int(file);
            step->answer_size = read_int(file);
            step->code_at = read_int(file);
            step->identity_at = read_int(file);
            step->batch_at = read_int(file);
            step->identity_from = read_int(file);
            step->frame = read_bytes(file, step->frame_size);
            step->answer = read_bytes(file, step->answer_size);
        }
    }
    fclose(file);
    return all;
}

int main(int argc, char **argv) {
    if (argc < 4)
        fail("usage: frames HOST:PORT SCRIPT SECONDS [INTERVAL_MS]");
    char *port = strrchr(argv[1], ':');
    if (port == NULL)
        fail("the address has no port");
    *port++ = 0;
    double seconds = atof(argv[3]), interval = argc > 4 ? atof(argv[4]) / 1000 : 0;
    int count;
    struct connection *all = read_script(argv[2], &count);

    int poller = epoll_create1(0);
    for (int i = 0; i < count; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &all[i]};
        all[i].socket = connect_to(argv[1], port);
        epoll_ctl(poller, EPOLL_CTL_ADD, all[i].socket, &event);
    }
    double start = clock_s(CLOCK_MONOTONIC), heard_at = start, now = start;
    if (interval == 0)
        for (int i = 0; i < count; i++)
            send_next(&all[i]);
    long paced = 0;
    while (now - start < seconds) {
        int wait_ms = 100;
        if (interval > 0) {
            double due;
            while ((due = start + paced * interval / count) <= now) {
                struct connection *one = &all[paced++ % count];
                if (one->is_waiting)
                    late++; /* the last request is not answered: skip this turn */
                else
                    send_next(one);
            }
            wait_ms = (int)((due - now) * 1000) + 1;
        }
        struct epoll_event events[EVENTS_MAX];
        int ready = epoll_wait(poller, events, EVENTS_MAX, wait_ms);
        for (int i = 0; i < ready; i++)
            if (receive(events[i].data.ptr) && interval == 0)
                send_next(events[i].data.ptr);
        now = clock_s(CLOCK_MONOTONIC);
        if (ready > 0)
            heard_at = now;
        else if (now - heard_at > STALL_SECONDS)
            fail("nothing was answered for a long time");
    }
    printf("{\"seconds\": %.6f, \"answered\": %ld, \"rounds\": %ld, \"retries\": %ld, \"late\": %ld}\n",
           now - start, answered, rounds, retries, late);
    return 0;
}
